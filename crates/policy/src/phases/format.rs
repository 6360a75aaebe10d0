//! The text formats of paper 004: a graph as the measuring library prints it (§4.1), and a profile
//! (listing 5.2). docs/phases.md describes both.
//!
//! Text that was written is read, and written again, without a change.

use std::fmt::Write as _;

use dimmer_processor::units::{Nanos, nearest};

use super::{ARROW, Counters, Counts, Graph, Mark, Metric, NameError, Profile};

/// How far a printed rate may be from its two counts: half of its last digit, and a little for
/// counts that are rounded in decimal.
const AS_PRINTED: f64 = 0.6e-6;

/// Why text is no graph or no profile. Nothing of it is used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct FormatError {
    /// The number of the line, from 1.
    pub line: usize,
    /// What is wrong there.
    pub problem: Problem,
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// A line that does not have the form of any.
    #[error("found `{found}`, expected {accepted}")]
    Form {
        /// The line.
        found: String,
        /// The accepted forms.
        accepted: &'static str,
    },
    /// A number that is negative, not finite, or not a number.
    #[error("`{key}` is `{found}`, expected {accepted}")]
    Number {
        /// What the number is for.
        key: &'static str,
        /// What was found instead.
        found: String,
        /// The accepted numbers.
        accepted: &'static str,
    },
    /// A mark with a name that it may not have.
    #[error(transparent)]
    Name(#[from] NameError),
    /// An edge, a line of an edge, or a mark that occurs twice.
    #[error("`{what}` occurs twice, expected once")]
    Duplicate {
        /// The edge, the line or the mark.
        what: String,
    },
    /// An edge without a line that it needs.
    #[error("the edge `{edge}` has no `{missing}`")]
    Missing {
        /// The edge.
        edge: String,
        /// The line that is missing.
        missing: &'static str,
    },
    /// A miss rate that its two counts do not have.
    #[error("the miss rate is `{found}`, but its counts give {counted:.6}")]
    Disagrees {
        /// The rate.
        found: String,
        /// The rate of the counts.
        counted: f64,
    },
}

const COUNT: &str = "a whole number from 0 to 18446744073709551615, such as 62,742";
const POSITIVE: &str = "a whole number from 1 to 18446744073709551615, such as 62,742";
const RATE: &str = "a finite number that is not negative, such as 0.003649";
const EDGE_LINES: &str = "`START -> END`, `calls = N`, `miss rate = R (l3miss = N / instr = N)`, \
                          `CPI = R`, `L2 rate = R` or `time = N ns`";
const PROFILE_LINE: &str = "`\"MARK\" VALUE`";

impl Graph {
    /// The graph as text, an edge a block. Lines for what was not counted are left out, and so are
    /// all rates of edges that executed no instruction.
    ///
    /// The paper's own scripts read it. They do not see the line `time`, which is ours.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for (start, end, counts) in self.edges() {
            write_edge(&mut text, start, end, counts);
        }
        text
    }

    /// Reads a graph. Instructions and L3 misses are exact; cycles and L2 latency come from rates
    /// with six digits after the point, so they are exact up to a million instructions. Empty lines
    /// are skipped.
    ///
    /// # Errors
    /// With the first line that is wrong: not of the format, a number that is negative or none, an
    /// edge that occurs twice or has no calls, a rate without the counts that it is of.
    pub fn from_text(text: &str) -> Result<Self, FormatError> {
        let mut graph = Self::default();
        let mut block: Option<Block> = None;
        for (line, number) in text.lines().zip(1..) {
            let fail = |problem| FormatError { line: number, problem };
            if line.trim().is_empty() {
                continue;
            }
            if line.starts_with(char::is_whitespace) {
                let Some(block) = &mut block else {
                    return Err(fail(form(line, "`START -> END`")));
                };
                block.read(line.trim()).map_err(fail)?;
            } else {
                let next = Block::new(line.trim_end(), number).map_err(fail)?;
                if let Some(done) = block.replace(next) {
                    done.add_to(&mut graph)?;
                }
            }
        }
        if let Some(done) = block {
            done.add_to(&mut graph)?;
        }
        Ok(graph)
    }
}

fn write_edge(text: &mut String, start: &Mark, end: &Mark, counts: &Counts) {
    let mut line = |arguments: std::fmt::Arguments<'_>| {
        // Writing to a string cannot fail.
        _ = text.write_fmt(arguments);
        text.push('\n');
    };
    line(format_args!("{start}{ARROW}{end}"));
    line(format_args!("        calls = {}", grouped(counts.calls)));
    let spent = &counts.spent;
    if let Some(rate) = Metric::L3MissRate.of(counts)
        && let (Some(misses), Some(instructions)) = (spent.l3_misses, spent.instructions)
    {
        let (misses, instructions) = (grouped(misses), grouped(instructions));
        line(format_args!(
            "        miss rate = {rate:.6} (l3miss = {misses} / instr = {instructions})"
        ));
        if let Some(cpi) = Metric::Cpi.of(counts) {
            line(format_args!("        CPI = {cpi:.6}"));
        }
        if let Some(rate) = Metric::L2Rate.of(counts) {
            line(format_args!("        L2 rate = {rate:.6}"));
        }
    }
    if let Some(time) = spent.time {
        line(format_args!("        time = {} ns", grouped(time.ns())));
    }
}

/// The edge that is being read.
struct Block {
    start: Mark,
    end: Mark,
    /// Where it starts.
    line: usize,
    calls: Option<u64>,
    misses: Option<(u64, u64)>,
    cpi: Option<f64>,
    l2_rate: Option<f64>,
    time: Option<u64>,
}

impl Block {
    fn new(text: &str, line: usize) -> Result<Self, Problem> {
        let (start, end) = text.split_once(ARROW).ok_or_else(|| form(text, EDGE_LINES))?;
        let (start, end) = (Mark::new(start)?, Mark::new(end)?);
        let (calls, misses, cpi, l2_rate, time) = (None, None, None, None, None);
        Ok(Self { start, end, line, calls, misses, cpi, l2_rate, time })
    }

    fn read(&mut self, text: &str) -> Result<(), Problem> {
        let (key, value) = text.split_once(" = ").ok_or_else(|| form(text, EDGE_LINES))?;
        match key {
            "calls" => once(&mut self.calls, key, count("calls", value, 1)?),
            "miss rate" => once(&mut self.misses, key, misses(text, value)?),
            "CPI" => once(&mut self.cpi, key, rate("CPI", value)?),
            "L2 rate" => once(&mut self.l2_rate, key, rate("L2 rate", value)?),
            "time" => {
                let ns = value.strip_suffix(" ns").ok_or_else(|| form(text, EDGE_LINES))?;
                once(&mut self.time, key, count("time", ns, 0)?)
            }
            _ => Err(form(text, EDGE_LINES)),
        }
    }

    fn add_to(self, graph: &mut Graph) -> Result<(), FormatError> {
        let fail = |problem| FormatError { line: self.line, problem };
        let edge = || format!("{}{ARROW}{}", self.start, self.end);
        let missing = |missing| fail(Problem::Missing { edge: edge(), missing });
        let calls = self.calls.ok_or_else(|| missing("calls"))?;
        if self.misses.is_none() && (self.cpi.is_some() || self.l2_rate.is_some()) {
            return Err(missing("miss rate"));
        }
        if graph.edge(&self.start, &self.end).is_some() {
            return Err(fail(Problem::Duplicate { what: edge() }));
        }
        let of = |rate: Option<f64>| Some(nearest(rate? * self.misses?.1 as f64));
        let spent = Counters {
            time: self.time.map(Nanos::from_ns),
            instructions: self.misses.map(|(_, instructions)| instructions),
            cycles: of(self.cpi),
            l2_latency: of(self.l2_rate),
            l3_misses: self.misses.map(|(misses, _)| misses),
        };
        graph.add(&self.start, &self.end, &Counts { calls, spent });
        Ok(())
    }
}

/// `R (l3miss = N / instr = N)`: L3 misses and instructions.
fn misses(text: &str, value: &str) -> Result<(u64, u64), Problem> {
    let parts = || {
        let (found, counts) = value.split_once(" (l3miss = ")?;
        let (misses, instructions) = counts.strip_suffix(')')?.split_once(" / instr = ")?;
        Some((found, misses, instructions))
    };
    let (found, misses, instructions) = parts().ok_or_else(|| form(text, EDGE_LINES))?;
    let printed = rate("miss rate", found)?;
    let (misses, instructions) = (count("l3miss", misses, 0)?, count("instr", instructions, 1)?);
    let counted = misses as f64 / instructions as f64;
    if (printed - counted).abs() > AS_PRINTED.max(counted * f64::EPSILON) {
        return Err(Problem::Disagrees { found: found.to_owned(), counted });
    }
    Ok((misses, instructions))
}

impl Profile {
    /// The profile as text, a mark a line, with six significant digits as in listing 5.2.
    #[must_use]
    pub fn to_text(&self) -> String {
        let line = |(mark, value): (&Mark, f64)| {
            // The value of the six digits, without an exponent.
            let rounded = format!("{value:.5e}").parse().unwrap_or(value);
            format!("\"{mark}\"\t{rounded}\n")
        };
        self.values().map(line).collect()
    }

    /// Reads a profile. Empty lines are skipped.
    ///
    /// # Errors
    /// With the first line that is wrong: not of the format, a value that is negative or no finite
    /// number, a mark that occurs twice.
    pub fn from_text(text: &str) -> Result<Self, FormatError> {
        let mut profile = Self::default();
        for (line, number) in text.lines().zip(1..) {
            if !line.trim().is_empty() {
                profile
                    .read(line.trim())
                    .map_err(|problem| FormatError { line: number, problem })?;
            }
        }
        Ok(profile)
    }

    fn read(&mut self, line: &str) -> Result<(), Problem> {
        let parts = line.strip_prefix('"').and_then(|rest| rest.split_once('"'));
        let (name, value) = parts.ok_or_else(|| form(line, PROFILE_LINE))?;
        if !value.starts_with(char::is_whitespace) {
            return Err(form(line, PROFILE_LINE));
        }
        let (mark, value) = (Mark::new(name)?, rate("value", value.trim())?);
        if self.value(&mark).is_some() {
            return Err(Problem::Duplicate { what: name.to_owned() });
        }
        self.insert(mark, value);
        Ok(())
    }
}

fn form(found: &str, accepted: &'static str) -> Problem {
    Problem::Form { found: found.to_owned(), accepted }
}

fn once<T>(value: &mut Option<T>, key: &str, read: T) -> Result<(), Problem> {
    match value.replace(read) {
        Some(_) => Err(Problem::Duplicate { what: key.to_owned() }),
        None => Ok(()),
    }
}

fn rate(key: &'static str, text: &str) -> Result<f64, Problem> {
    let number = text.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate >= 0.0);
    number.ok_or_else(|| Problem::Number { key, found: text.to_owned(), accepted: RATE })
}

/// A count of at least `least`, with commas between groups of three digits or without any.
fn count(key: &'static str, text: &str, least: u64) -> Result<u64, Problem> {
    let digits = text.replace(',', "");
    let is_count = digits.bytes().all(|byte| byte.is_ascii_digit());
    let number: Option<u64> = digits.parse().ok().filter(|_| is_count);
    let is_right =
        |number: &u64| *number >= least && (!text.contains(',') || grouped(*number) == text);
    let accepted = if least == 0 { COUNT } else { POSITIVE };
    number.filter(is_right).ok_or_else(|| Problem::Number { key, found: text.to_owned(), accepted })
}

/// The number with a comma before each group of three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
