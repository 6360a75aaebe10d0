//! Arguments that several commands have: each is defined once.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use dimmer_host::load;
use dimmer_host::pstate::words::{Cpus, cpus};
use dimmer_host::root::Root;
use dimmer_processor::units::Nanos;

use crate::bad_input;
use crate::output::{self, Output};

/// `--json[=FILE]`.
#[derive(Args, Debug)]
pub(crate) struct Json {
    /// Writes the result as JSON to FILE; without FILE, to standard output instead of the text.
    #[arg(
        long,
        value_name = "FILE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "-"
    )]
    pub(crate) json: Option<PathBuf>,
}

impl Json {
    /// Opens the file for writing, before anything is measured.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn open(&self) -> anyhow::Result<Option<Output>> {
        self.json.as_deref().map(Output::open).transpose()
    }
}

/// `--report FILE.html`.
#[derive(Args, Debug)]
pub(crate) struct Page {
    /// Writes a page with plots as one HTML file, which needs no network.
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
}

impl Page {
    /// Opens the file for writing, before anything is measured.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn open(&self) -> anyhow::Result<Option<Output>> {
        self.report.as_deref().map(Output::open).transpose()
    }
}

/// `--textfile FILE.prom`.
#[derive(Args, Debug)]
pub(crate) struct Textfile {
    /// Writes metrics for the textfile collector of Prometheus' node_exporter. The file is replaced
    /// as a whole at the end, and all users may read it.
    #[arg(long, value_name = "FILE.prom")]
    pub(crate) textfile: Option<PathBuf>,
}

impl Textfile {
    /// Checks that the file can be replaced and would be read, before anything is measured.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let Some(path) = &self.textfile else { return Ok(()) };
        if path.extension().is_none_or(|ending| ending != "prom") || path.is_dir() {
            return Err(bad_input(format!(
                "--textfile {}: expected a file whose name ends in `.prom`: node_exporter reads no others",
                path.display()
            )));
        }
        output::temporary_beside(path).map(drop)
    }

    /// Writes the file, if there is to be one. If that fails, it has its old content.
    pub(crate) fn write(&self, text: impl FnOnce() -> String) -> anyhow::Result<()> {
        self.textfile.as_deref().map_or(Ok(()), |path| output::publish(path, &text()))
    }
}

/// `--model MODEL`.
#[derive(Args, Debug)]
pub(crate) struct ModelName {
    /// The processor model, a name or a file [default: what `dimmer probe` measured on this kind of
    /// processor].
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
}

impl ModelName {
    /// The name or file that the user gave.
    pub(crate) fn name(&self) -> Option<&str> {
        self.model.as_deref()
    }
}

/// The greatest number of options whose own limit depends on the machine.
pub(crate) const MOST: u64 = 0xffff_ffff;

/// Parses a whole number within these limits.
pub(crate) fn whole<N: TryFrom<u64>>(
    accepted: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<N, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| accepted.contains(number));
        number.and_then(|number| N::try_from(number).ok()).ok_or_else(|| {
            format!("expected a whole number from {} to {}", accepted.start(), accepted.end())
        })
    }
}

/// `-p PID`.
#[derive(Args, Debug)]
pub(crate) struct Process {
    /// The process.
    #[arg(short, long, value_name = "PID", value_parser = whole::<u32>(1..=MOST))]
    pub(crate) pid: Option<u32>,
}

/// `--duration TIME`.
#[derive(Args, Debug)]
pub(crate) struct Lasting {
    /// Ends after this time.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) duration: Option<Duration>,
}

impl Lasting {
    /// Whole seconds, from `least` to an hour, of a command that has a default.
    ///
    /// # Errors
    /// If the user gave something else.
    pub(crate) fn whole_seconds(&self, least: u32) -> anyhow::Result<u32> {
        let duration = self.duration.unwrap_or_default();
        let seconds = u32::try_from(duration.as_secs()).unwrap_or(u32::MAX);
        if duration.subsec_nanos() == 0 && (least..=3600).contains(&seconds) {
            Ok(seconds)
        } else {
            Err(bad_input(format!("--duration: expected whole seconds, {least}s to 1h")))
        }
    }
}

/// `--cpu CPU`.
#[derive(Args, Debug)]
pub(crate) struct Cpu {
    /// The CPU to measure on [default: the last one allowed, which gets the fewest interrupts].
    #[arg(long, value_name = "CPU", value_parser = whole::<u32>(0..=MOST))]
    pub(crate) cpu: Option<u32>,
}

/// `--cpus LIST`.
#[derive(Args, Debug)]
pub(crate) struct DedicatedCpus {
    /// The CPUs to move calls to, as in `2-3,8`; the program stays off them while calls move
    /// [default: those of one core; with --phases, slow ones].
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    pub(crate) cpus: Option<Cpus>,
}

/// `--max-load LOAD`.
#[derive(Args, Debug)]
pub(crate) struct MaxLoad {
    /// Measures nothing if the machine's load over the last minute is above LOAD per CPU, as in
    /// `0.5`.
    #[arg(long, value_name = "LOAD", global = true, value_parser = load)]
    pub(crate) max_load: Option<f64>,
}

impl MaxLoad {
    /// Checks the load, if the user gave a limit.
    ///
    /// # Errors
    /// If the load is above the limit, or cannot be read.
    pub(crate) fn check(&self, root: &Root) -> anyhow::Result<()> {
        Ok(self.max_load.map_or(Ok(()), |limit| load::check(root, limit))?)
    }
}

/// A load per CPU.
fn load(text: &str) -> Result<f64, String> {
    let load = text.parse().ok().filter(|load| (0.0..=1000.0).contains(load));
    load.ok_or_else(|| "expected a number from 0 to 1000, as in `0.5`".to_owned())
}

/// `--socket PATH`.
#[derive(Args, Debug)]
pub(crate) struct Socket {
    /// The daemon's socket [default: $DIMMER_SOCKET, or else the user's own daemon, or the
    /// machine's].
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
}

/// The longest duration that a command waits (s): 30 years.
const LONGEST_S: f64 = 1e9;

/// A duration on the command line: a number with `ms`, `s`, `min` or `h`; without a unit, seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let end = text.find(|c: char| c.is_ascii_alphabetic() && c != 'e').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let seconds = match unit {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("unknown unit `{unit}`: expected ms, s, min or h")),
    };
    let number: f64 = number
        .trim_end()
        .parse()
        .map_err(|_| "expected a duration such as 10s, 500ms or 5min".to_owned())?;
    let seconds = number * seconds;
    if seconds > 0.0 && seconds <= LONGEST_S {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("expected more than 0 s and at most 1e9 s".to_owned())
    }
}

/// The longest time that [`span`] accepts (ns): a second.
const LONGEST_NS: f64 = 1e9;

/// A short time with its unit, above 0.
pub(crate) fn span(text: &str) -> Result<Nanos, String> {
    span_up_to(text, LONGEST_NS).ok_or_else(|| {
        "expected a time from 1ns to 1s, with its unit (ns, us, ms, s), as in `1.75us`".to_owned()
    })
}

/// A time with its unit, from a nanosecond to this one.
pub(crate) fn span_up_to(text: &str, longest_ns: f64) -> Option<Nanos> {
    let units = [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)];
    let parsed = units.into_iter().find_map(|(unit, ns)| {
        let number: f64 = text.strip_suffix(unit)?.trim_end().parse().ok()?;
        Some(number * ns).filter(|ns| (1.0..=longest_ns).contains(ns))
    });
    parsed.map(Nanos::rounded)
}

/// The most that something may take longer (%): a hundred times as long.
const MOST_PERCENT: f64 = 9900.0;

/// How much longer something may take, in percent.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    let percent = text.parse().ok().filter(|percent| (0.0..=MOST_PERCENT).contains(percent));
    percent.ok_or_else(|| format!("expected a number from 0 to {MOST_PERCENT}, as in `5`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_a_unit() {
        for (text, ns) in [("1.75us", 1750), ("4 µs", 4000), ("1ns", 1), ("2ms", 2_000_000)] {
            assert_eq!(span(text), Ok(Nanos::from_ns(ns)), "{text}");
        }
        for text in ["", "us", "1750", "0ns", "-1us", "nanus", "infs", "2s", "1 hour"] {
            assert!(span(text).unwrap_err().contains("`1.75us`"), "{text}");
        }
    }

    #[test]
    fn whole_numbers_have_limits() {
        assert_eq!([whole::<u16>(1..=9)("1"), whole(1..=9)("9")], [Ok(1), Ok(9)]);
        for text in ["", "0", "10", "-1", "1.5", "x", "99999999999999999999"] {
            let expected = "expected a whole number from 1 to 9";
            assert_eq!(whole::<u32>(1..=9)(text).unwrap_err(), expected, "{text}");
        }
    }

    #[test]
    fn durations_have_units() {
        let check = |text: &str, ms: u64| {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        };
        check("10s", 10_000);
        check("500ms", 500);
        check("0.5", 500);
        check("2min", 120_000);
        check("2m", 120_000);
        check("1h", 3_600_000);
        check("1e3", 1_000_000);
    }

    #[test]
    fn what_is_no_duration_is_refused_with_what_is_expected() {
        let check = |text: &str, expected: &str| {
            let error = duration(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        };
        check("", "such as 10s");
        check("s", "such as 10s");
        check("10 parsecs", "expected ms, s, min or h");
        for text in ["0", "-1s", "nan", "inf", "1e10", "1e400"] {
            check(text, "expected");
        }
        let whole = |text: &str, least| {
            Lasting { duration: Some(duration(text).unwrap()) }.whole_seconds(least)
        };
        assert!(whole("1.5s", 1).is_err() && whole("2h", 1).is_err() && whole("1s", 2).is_err());
        assert_eq!(whole("1min", 2).unwrap(), 60);
    }
}
