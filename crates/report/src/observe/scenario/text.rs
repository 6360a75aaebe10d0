//! The scenario as text.

use std::fmt::Write as _;
use std::path::Path;

use dimmer_observe::{BURST_ENDS_NS, Pattern, Values};
use dimmer_processor::text::quoted;
use dimmer_sim::scenario::Scenario;

use super::super::hand_off;
use super::{Check, Group, Written};
use crate::number::{SPACE, counted, grouped, percent, time};
use crate::shell;

/// Columns of the file.
const WIDTH: usize = 100;

/// The longest time that a scenario simulates (s).
const LONGEST_S: f64 = 5.0;

/// The shortest (s).
const SHORTEST_S: f64 = 0.01;

/// Steps that its simulation takes at most, at a clock of 100 GHz: at a real one, a tenth of a
/// second of simulating. A comparison of governors has a few hundred runs.
const MOST_STEPS: f64 = 3e7;

/// The share of bursts from which waits, or gaps without a wait, are left out as too rare.
const RARE: f64 = 0.002;

/// The share of calls in bursts that were not seen as a whole, from which the bursts that were are
/// not representative.
const MANY_CUT: f64 = 0.3;

/// The share of time that a thread waits, up to which it always has a request.
const SATURATED: f64 = 0.1;

/// The scenario, simulated for as long as its steps allow.
pub(super) fn render(written: &Written<'_>, check: Option<Check>) -> String {
    let lasted = written.traced.run.observed.lasted.as_secs_f64();
    let mut end_s = lasted.clamp(SHORTEST_S, LONGEST_S);
    let mut text = until(written, check, end_s);
    let is_too_long = |text: &str| {
        let scenario = Scenario::parse(Path::new("scenario"), text);
        scenario.map_or(true, |scenario| scenario.usual_steps() > MOST_STEPS)
    };
    while is_too_long(&text) && end_s > SHORTEST_S {
        end_s /= 2.0;
        text = until(written, check, end_s);
    }
    text
}

fn until(written: &Written<'_>, check: Option<Check>, end_s: f64) -> String {
    let mut text = head(written, check, end_s);
    text.push_str(&codes(written));
    for group in &written.groups {
        text.push_str(&thread(written, group));
    }
    text.push_str(&others(written));
    text
}

/// A comment within the columns.
fn comment(text: &str) -> String {
    let options = textwrap::Options::new(WIDTH).initial_indent("# ").subsequent_indent("# ");
    let text: String = text.chars().map(|one| if one.is_control() { '?' } else { one }).collect();
    plain(&textwrap::fill(&text, options)) + "\n"
}

/// Text with spaces where numbers have spaces at which no line breaks.
fn plain(text: &str) -> String {
    text.replace(SPACE, " ")
}

/// A point in a list, likewise.
fn item(text: &str) -> String {
    let options = textwrap::Options::new(WIDTH).initial_indent("# * ").subsequent_indent("#   ");
    plain(&textwrap::fill(text, options)) + "\n"
}

fn head(written: &Written<'_>, check: Option<Check>, end_s: f64) -> String {
    let traced = &written.traced;
    let run = traced.run;
    let (clock, is_measured) = written.clock;
    let command = shell::line(run.command);
    let kernel = run.machine.kernel_release.as_deref().unwrap_or("unknown");
    let brand = run.machine.identity.brand.trim();
    let program = run.command.first().map_or("", |word| word.rsplit('/').next().unwrap_or(word));
    let lasted = grouped(run.observed.lasted.as_secs_f64(), 1);
    let mut text = comment(&format!(
        "Measured by `dimmer observe --scenario`: the calls of hooked functions of `{command}`, the code between them, and waits."
    ));
    text.push_str("#\n# Measured, in this run:\n");
    text.push_str(&item(&format!(
        "durations of calls, gaps between them, calls of a burst, shares: all calls of {} in {} were timed, less what timing adds. A gap of {} \
         or a wait ends a burst;",
        counted(written.groups.iter().map(|group| group.threads.len()).sum(), "thread"),
        counted(run.observed.processes, "process"),
        time(BURST_ENDS_NS),
    )));
    text.push_str(&item(
        "waits: the time that the kernel counted a thread off CPUs, in looks 2 ms apart. Which gap of a look it belongs to is an estimate: the \
         longest ones, as many as the kernel counted waits.",
    ));
    text.push_str("# Guesses:\n");
    text.push_str(&item(&format!(
        "`per_cycle = 1`: `instructions` are cycles at {} GHz, {}. Cycles that wait for memory do not scale with the clock; they are not \
         separated (`memory_ns`);",
        grouped(clock, 2),
        if is_measured {
            "the median clock next to calls, measured by chains of multiplications"
        } else {
            "an assumed clock: no call had it measured"
        }
    )));
    text.push_str(&item(
        "`class` and `share`: all instructions of a call count as of the most demanding class that this processor runs in the function, or in hooked ones that \
         it calls. A processor with wider vectors may take other functions;",
    ));
    text.push_str(&item(
        "draws depend on the one before of their distribution alone (`correlation`): phases of the program are mixed.",
    ));
    let on_cpu = run.on_cpu.as_secs_f64();
    if on_cpu > 0.0 {
        text.push_str("#\n");
        let kernel = traced.in_kernel.as_secs_f64() / on_cpu;
        text.push_str(&comment(&format!(
            "The program took {} s of CPU time in {lasted} s, {} of it in the kernel, which counts as scalar code.",
            grouped(on_cpu, 1),
            percent(kernel)
        )));
    }
    let (threads, calls) = written.left_out;
    if threads > 0 {
        text.push_str(&comment(&format!(
            "Left out: {} with {calls} calls, too few for distributions.",
            counted(threads, "thread")
        )));
    }
    if let Some(Check { recorded, scenario }) = check {
        text.push_str(&comment(&format!(
            "Check, simulated on {}: above level L0, cores spend {} of their busy time with the recorded steps themselves, {} with this \
             scenario.",
            traced.model,
            percent(recorded),
            percent(scenario)
        )));
    }
    let source = format!(
        "dimmer observe of {program}, {lasted} s, {brand}, Linux {kernel}, {}",
        traced.date
    );
    let _ = write!(
        text,
        "\nschema = \"dimmer/scenario/1\"\nname = {}\nsource = {}\nmodel = {}\ncores = {}\nend_us = {}\n",
        quoted(&program),
        quoted(&plain(&source)),
        quoted(&traced.model),
        written.cores(),
        number(end_s * 1e6),
    );
    if let Some(mean_ns) = hand_off::mean_ns(run) {
        let _ = writeln!(
            text,
            "hand_over_us = {}    # To another core and back, after gaps like these: measured after the run.",
            number(mean_ns / 1000.0)
        );
    }
    text
}

/// The code that the threads run.
pub(super) fn codes(written: &Written<'_>) -> String {
    let mut text =
        "\n[[code]]\nname = \"scalar\"\nclass = \"scalar\"\nper_cycle = 1.0\n".to_owned();
    for (name, class) in written.kinds.all.iter().filter(|(name, _)| name != "scalar") {
        let (name, class) = (quoted(name), quoted(class));
        let _ = write!(text, "\n[[code]]\nname = {name}\nclass = {class}\nper_cycle = 1.0\n");
    }
    text
}

/// Writes distributions of one group of threads, and what stands for them in steps.
struct Distributions<'a> {
    written: &'a Written<'a>,
    group: &'a str,
    text: String,
}

/// What a distribution is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// Times, written as instructions.
    Code,
    /// Times, written as microseconds.
    Wait,
    Numbers,
}

impl Distributions<'_> {
    /// What stands for these values: a number, or the name of a distribution.
    fn of(&mut self, what: &str, of: Of, values: &Values) -> String {
        let Some(distribution) = values.distribution() else { return "1".to_owned() };
        let convert = |value: f64| match of {
            Of::Code => self.written.instructions(value),
            Of::Wait => (value / 1000.0).max(0.001),
            Of::Numbers => value.round(),
        };
        let points: Vec<(f64, f64)> = distribution.points;
        let (first, last) = (points.first().copied(), points.last().copied());
        let ends = first.zip(last).map(|((_, first), (_, last))| (convert(first), convert(last)));
        if let Some((first, last)) = ends
            && number(first) == number(last)
        {
            return number(first);
        }
        let name = format!("{}: {what}", self.group);
        let mean = match of {
            Of::Numbers => grouped(distribution.mean, 1),
            Of::Code | Of::Wait => time(distribution.mean),
        };
        let seen = counted(distribution.values, "value");
        let unit = match of {
            Of::Code => " In instructions.",
            Of::Wait => " In µs.",
            Of::Numbers => "",
        };
        self.text.push('\n');
        self.text.push_str(&comment(&format!("Mean {mean}, of {seen}.{unit}")));
        let pairs = points
            .iter()
            .map(|(share, value)| format!("[{}, {}]", trimmed(*share, 4), number(convert(*value))));
        let pairs = pairs.collect::<Vec<_>>().join(", ");
        let options = textwrap::Options::new(WIDTH - 1)
            .initial_indent("    ")
            .subsequent_indent("    ")
            .word_separator(textwrap::WordSeparator::Custom(words));
        let pairs = textwrap::fill(&pairs, options);
        let _ = write!(
            self.text,
            "[[distribution]]\nname = {}\nquantiles = [\n{pairs},\n]\n",
            quoted(&name)
        );
        if distribution.correlation != 0.0 {
            let _ = writeln!(self.text, "correlation = {}", trimmed(distribution.correlation, 2));
        }
        quoted(&name)
    }
}

/// Keeps points of a distribution together.
fn words(line: &str) -> Box<dyn Iterator<Item = textwrap::core::Word<'_>> + '_> {
    Box::new(line.split_inclusive("], ").map(textwrap::core::Word::from))
}

/// The threads of a group.
fn thread(written: &Written<'_>, group: &Group<'_>) -> String {
    let pattern = &group.pattern;
    let mut distributions = Distributions { written, group: &group.name, text: String::new() };
    let (burst, less) = burst(&mut distributions, pattern);
    let has_requests = written.traced.request.is_some();
    let mut keys = String::new();
    let steps = if has_requests {
        let before = distributions.of(
            "before the first call of a request",
            Of::Code,
            &pattern.requests.before,
        );
        let bursts = distributions.of("bursts of a request", Of::Numbers, &pattern.requests.bursts);
        let after = distributions.of("after a burst", Of::Code, &pattern.between.less(less));
        let every = pattern.requests.every.sum();
        let waits = pattern.requests.waits.sum() / every;
        if waits < SATURATED {
            let _ = writeln!(keys, "requests = \"closed\"");
        } else {
            let every_us = every / pattern.requests.every.times() / 1000.0;
            let _ = writeln!(keys, "requests = \"random\"\nevery_us = {}", number(every_us));
        }
        vec![
            format!("    {{ run = \"scalar\", instructions = {before} }},\n"),
            format!("    {{ repeat = {bursts}, steps = [\n"),
            indented(&burst),
            format!("        {{ run = \"scalar\", instructions = {after} }},\n    ] }},\n"),
        ]
    } else {
        vec![burst, between(&mut distributions, pattern, less)]
    };
    let mut text = distributions.text;
    text.push('\n');
    text.push_str(&about(written, group));
    let _ = write!(text, "[[thread]]\nname = {}\n", quoted(&group.name));
    if group.count > 1 {
        let _ = writeln!(text, "count = {}", group.count);
    }
    let _ = write!(text, "times = 0\n{keys}steps = [\n{}]\n", steps.concat());
    text
}

/// What was seen of a group of threads, as a comment.
fn about(written: &Written<'_>, group: &Group<'_>) -> String {
    let pattern = &group.pattern;
    let sum = |part: fn(&dimmer_observe::ThreadTrace) -> std::time::Duration| {
        group.threads.iter().map(|trace| part(trace).as_secs_f64()).sum::<f64>()
    };
    let lasted = sum(|trace| trace.lasted);
    let mut text = format!(
        "{}: {} of the time on CPUs in calls",
        counted(group.threads.len(), "thread"),
        percent(pattern.share_in_calls()),
    );
    if lasted > 0.0 {
        let _ = write!(
            text,
            "; {} of the time waiting, {} with the CPU taken by others",
            percent(sum(|trace| trace.waited) / lasted),
            percent(sum(|trace| trace.queued) / lasted),
        );
    }
    if let Some(request) = written.traced.request {
        let _ = write!(
            text,
            ". A request runs from one entry of `{request}` to the next on its thread: {}",
            counted(pattern.requests.every.len(), "request")
        );
    }
    comment(&format!("{text}."))
}

/// The steps of a burst, and the code after its last call that is among them (ns).
fn burst(distributions: &mut Distributions<'_>, pattern: &Pattern) -> (String, f64) {
    let kinds = distributions.written.kinds.all.iter().zip(&pattern.lasted);
    let kinds = kinds.zip(pattern.shares()).filter(|((_, lasted), _)| !lasted.is_empty());
    let mut calls: Vec<(f64, String)> = Vec::new();
    for (((name, _), lasted), share) in kinds {
        let lasted = distributions.of(name, Of::Code, lasted);
        let name = quoted(name);
        let steps = format!(
            "{{ enter = {name} }}, {{ run = {name}, instructions = {lasted} }}, {{ leave = {name} }}"
        );
        calls.push((share, steps));
    }
    let call = |indent: &str| match calls.as_slice() {
        [(_, steps)] => {
            format!("{indent}{},\n", steps.replace("}, {", &format!("}},\n{indent}{{")))
        }
        calls => {
            let branch = |(share, steps): &(f64, String)| {
                let steps = steps.replace("}, {", &format!("}},\n{indent}        {{"));
                format!(
                    "{indent}    {{ share = {}, steps = [\n{indent}        {steps},\n{indent}    ] }},\n",
                    significant(*share)
                )
            };
            let branches: String = calls.iter().map(branch).collect();
            format!("{indent}{{ choose = [\n{branches}{indent}] }},\n")
        }
    };
    if pattern.within.is_empty() {
        return (call("    "), 0.0);
    }
    let calls_of = if pattern.share_cut() <= MANY_CUT {
        distributions.of("calls of a burst", Of::Numbers, &pattern.calls)
    } else {
        number(pattern.mean_calls().round().max(1.0))
    };
    let within = distributions.of("within a burst", Of::Code, &pattern.within);
    let less = pattern.within.sum() / pattern.within.times();
    let steps = format!(
        "    {{ repeat = {calls_of}, steps = [\n{}        {{ run = \"scalar\", instructions = {within} }},\n    ] }},\n",
        call("        ")
    );
    (steps, less)
}

/// The steps between bursts; `less` of the code there is in the burst (ns).
fn between(distributions: &mut Distributions<'_>, pattern: &Pattern, less: f64) -> String {
    let (waits, others) = (pattern.beside_wait.times(), pattern.between.times());
    let share = waits / (waits + others);
    let code = |steps: &str| format!("{{ run = \"scalar\", instructions = {steps} }}");
    let without = |distributions: &mut Distributions<'_>| {
        code(&distributions.of("between bursts", Of::Code, &pattern.between.less(less)))
    };
    let with = |distributions: &mut Distributions<'_>| {
        let beside = distributions.of("beside a wait", Of::Code, &pattern.beside_wait.less(less));
        let wait = distributions.of("a wait", Of::Wait, &pattern.wait);
        format!("{}, {{ sleep_us = {wait} }}", code(&beside))
    };
    if waits + others == 0.0 {
        return String::new();
    }
    if share < RARE {
        return format!("    {},\n", without(distributions));
    }
    if share > 1.0 - RARE {
        return format!("    {},\n", with(distributions).replace("}, {", "},\n    {"));
    }
    let (without, with) = (without(distributions), with(distributions));
    format!(
        "    {{ choose = [\n        {{ share = {}, steps = [{without}] }},\n        {{ share = {}, steps = [\n            \
         {},\n        ] }},\n    ] }},\n",
        significant(1.0 - share),
        significant(share),
        with.replace("}, {", "},\n            {"),
    )
}

/// Threads that stand for the code of all threads without traced calls.
fn others(written: &Written<'_>) -> String {
    let busy = written.others();
    if busy <= 0.0 {
        return String::new();
    }
    let count = busy.ceil().max(1.0);
    let share = busy / count;
    let mut text = "\n".to_owned();
    text.push_str(&comment(&format!(
        "Code of threads without traced calls, and the program's start: as much CPU time as {} CPUs have. That it comes in turns of 1 ms is a \
         guess.",
        grouped(busy, 2)
    )));
    let _ = write!(text, "[[thread]]\nname = \"other code\"\n");
    if count > 1.0 {
        let _ = writeln!(text, "count = {count}");
    }
    let _ = write!(
        text,
        "times = 0\nsteps = [\n    {{ run = \"scalar\", us = {} }},\n",
        number(share * 1000.0)
    );
    if share < 0.999 {
        let _ = writeln!(text, "    {{ sleep_us = {} }},", number((1.0 - share) * 1000.0));
    }
    text.push_str("]\n");
    text
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("    {line}\n")).collect()
}

/// A number with three digits.
fn number(value: f64) -> String {
    if value < 1000.0 {
        return significant(value);
    }
    let digits = value.log10().floor();
    let unit = 10_f64.powf(digits - 2.0);
    grouped((value / unit).round() * unit, 0).replace(SPACE, "_")
}

/// A number below 1000 with three digits.
fn significant(value: f64) -> String {
    if value <= 0.0 {
        return "0".to_owned();
    }
    let mut decimals = 0;
    while decimals < 9 && value * 10_f64.powi(decimals) < 99.95 {
        decimals += 1;
    }
    trimmed(value, usize::try_from(decimals).unwrap_or_default())
}

/// A number with at most this many decimals.
fn trimmed(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    if !text.contains('.') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
