//! The arguments of `dimmer phases`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use dimmer_policy::phases::{Metric, Threshold};
use dimmer_processor::units::Nanos;

use super::common::{DedicatedCpus, Json, Page};

/// The longest time of a migration that is accepted (ns): a second.
const LONGEST_NS: f64 = 1e9;

#[derive(Args, Debug)]
#[command(mut_arg("report", |arg| arg
    .visible_alias("page")
    .help("Writes the graph and its tables as one HTML file, which needs no network")))]
#[command(mut_arg("cpus", |arg| arg
    .conflicts_with("migration")
    .help("The CPUs to measure a migration to, as in `2-3,8` [default: those of one core]")))]
#[command(after_long_help = "\
A FILE is what `libswp` prints or `DIMMER_MARKS` names; docs/phases.md describes its format. Several files are summed up. Of --dot, --svg, \
--profile and --json, one may go to standard output; it is then there instead of the text.

Examples:
  dimmer phases graph
  dimmer phases graph --threshold 0.01 --profile=profile   # for SWP_CFG
  dimmer phases run-1 run-2 --page graph.html --migration 1.75us
  ssh server cat graph | dimmer phases - --dot | dot -Tpdf > graph.pdf")]
pub(crate) struct PhaseGraph {
    /// Files with graphs; `-` is standard input.
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,

    /// What the profile, the threshold and the colors are by.
    #[arg(long, value_name = "METRIC", value_enum, default_value_t = By::L3Misses)]
    pub(crate) metric: By,

    /// Marks with a larger value are slow; `gap` is the middle of the largest gap between values.
    #[arg(long, value_name = "VALUE|gap", value_parser = threshold, default_value = "gap", allow_hyphen_values = true)]
    pub(crate) threshold: Chosen,

    /// How long a migration there and back takes, as in `1.75us`: shorter edges are too short
    /// [default: measured, if the graph has times].
    #[arg(long, value_name = "TIME", value_parser = migration)]
    pub(crate) migration: Option<Nanos>,

    #[command(flatten)]
    pub(crate) cpus: DedicatedCpus,

    /// Writes the profile to FILE, as `SWP_CFG` names one; without FILE, to standard output.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub(crate) profile: Option<PathBuf>,

    /// Writes the graph for Graphviz to FILE; without FILE, to standard output.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub(crate) dot: Option<PathBuf>,

    /// Writes the graph as a drawing to FILE; without FILE, to standard output.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub(crate) svg: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) page: Page,

    #[command(flatten)]
    pub(crate) json: Json,
}

/// What describes an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    /// L3 misses per instruction.
    L3Misses,
    /// Cycles of waiting for the L2, or L2 misses, per instruction.
    L2,
    /// Cycles per instruction.
    Cpi,
}

impl By {
    pub(crate) const fn metric(self) -> Metric {
        match self {
            Self::L3Misses => Metric::L3MissRate,
            Self::L2 => Metric::L2Rate,
            Self::Cpi => Metric::Cpi,
        }
    }
}

/// How the threshold is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Chosen {
    Gap,
    ByHand(Threshold),
}

fn threshold(text: &str) -> Result<Chosen, String> {
    if text == "gap" {
        return Ok(Chosen::Gap);
    }
    Threshold::parse(text).map(Chosen::ByHand).map_err(|error| format!("{error}, or `gap`"))
}

/// A time with its unit, above 0.
fn migration(text: &str) -> Result<Nanos, String> {
    let units = [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)];
    let parsed = units.into_iter().find_map(|(unit, ns)| {
        let number: f64 = text.strip_suffix(unit)?.trim_end().parse().ok()?;
        Some(number * ns).filter(|ns| (1.0..=LONGEST_NS).contains(ns))
    });
    parsed.map(Nanos::rounded).ok_or_else(|| {
        "expected a time from 1ns to 1s, with its unit (ns, us, ms, s), as in `1.75us`".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_migration_has_a_unit() {
        for (text, ns) in [("1.75us", 1750), ("4 µs", 4000), ("1ns", 1), ("2ms", 2_000_000)] {
            assert_eq!(migration(text), Ok(Nanos::from_ns(ns)), "{text}");
        }
        for text in ["", "us", "1750", "0ns", "-1us", "nanus", "infs", "2s", "1 hour"] {
            assert!(migration(text).unwrap_err().contains("`1.75us`"), "{text}");
        }
    }

    #[test]
    fn a_threshold_is_a_number_or_the_largest_gap() {
        assert_eq!(threshold("gap"), Ok(Chosen::Gap));
        assert_eq!(threshold("-1"), Ok(Chosen::ByHand(Threshold::new(-1.0).unwrap())));
        for text in ["", "gaps", "NaN", "0,01"] {
            assert!(threshold(text).unwrap_err().ends_with("such as 0.01, or `gap`"), "{text}");
        }
    }
}
