//! The arguments of `dimmer phases`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use dimmer_policy::phases::{Metric, Threshold};
use dimmer_processor::units::Nanos;

use super::common::{DedicatedCpus, Json, ModelName, Page, percent, span, span_up_to};

/// The longest deadline that is accepted (ns): a million seconds.
const LONGEST_DEADLINE_NS: f64 = 1e15;

#[derive(Args, Debug)]
#[command(mut_arg("report", |arg| arg
    .visible_alias("page")
    .help("Writes the graph and its tables as one HTML file, which needs no network")))]
#[command(mut_arg("model", |arg| arg.help("The processor model, a name or a file")))]
#[command(mut_arg("cpus", |arg| arg
    .conflicts_with("migration")
    .help("The CPUs to measure a migration to, as in `2-3,8` [default: those of one core]")))]
#[command(after_long_help = "\
A FILE is what `libswp` prints or `DIMMER_MARKS` names; docs/phases.md describes its format. Several files are summed up. Of --dot, --svg, \
--profile and --json, one may go to standard output; it is then there instead of the text.

Examples:
  dimmer phases graph
  dimmer phases graph --threshold 0.01 --profile=profile   # for SWP_CFG
  dimmer phases graph --threshold energy --model ryzen-1600x --slower 5
  dimmer phases run-1 run-2 --page graph.html --migration 1.75us
  ssh server cat graph | dimmer phases - --dot | dot -Tpdf > graph.pdf")]
pub(crate) struct PhaseGraph {
    /// Files with graphs; `-` is standard input.
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,

    /// What the profile, the threshold and the colors are by.
    #[arg(long, value_name = "METRIC", value_enum, default_value_t = By::L3Misses)]
    pub(crate) metric: By,

    /// Marks with a larger value are slow; `gap` is the middle of the largest gap between values,
    /// `energy` the threshold with least energy on a processor model.
    #[arg(long, value_name = "VALUE|gap|energy", value_parser = threshold, default_value = "gap", allow_hyphen_values = true)]
    pub(crate) threshold: Chosen,

    /// How long a migration there and back takes, as in `1.75us`: shorter edges are too short
    /// [default: measured, if the graph has times].
    #[arg(long, value_name = "TIME", value_parser = span)]
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

    #[command(flatten, next_help_heading = "For --threshold energy")]
    pub(crate) energy: Energy,
}

/// What the threshold for least energy depends on.
#[derive(Args, Debug)]
pub(crate) struct Energy {
    #[command(flatten)]
    pub(crate) model: ModelName,

    /// The P-state of the slow core [default: the slowest].
    #[arg(long, value_name = "PSTATE")]
    pub(crate) slow: Option<String>,

    /// How much longer the program may take than on the fast core alone, in percent [default: 10].
    #[arg(long, value_name = "PERCENT", value_parser = percent, allow_hyphen_values = true)]
    pub(crate) slower: Option<f64>,

    /// How long the program may take instead, as in `90s`.
    #[arg(long, value_name = "TIME", value_parser = deadline, conflicts_with = "slower")]
    pub(crate) deadline: Option<Nanos>,

    /// How long a core waits for an L3 miss, on average [default: 80ns, a guess].
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) miss: Option<Nanos>,
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
    Energy,
}

fn threshold(text: &str) -> Result<Chosen, String> {
    match text {
        "gap" => Ok(Chosen::Gap),
        "energy" => Ok(Chosen::Energy),
        _ => Threshold::parse(text)
            .map(Chosen::ByHand)
            .map_err(|error| format!("{error}, and the words `gap` and `energy`")),
    }
}

fn deadline(text: &str) -> Result<Nanos, String> {
    span_up_to(text, LONGEST_DEADLINE_NS).ok_or_else(|| {
        "expected a time from 1ns to 1000000s, with its unit (ns, us, ms, s), as in `90s`"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_is_a_number_or_found() {
        assert_eq!(threshold("gap"), Ok(Chosen::Gap));
        assert_eq!(threshold("energy"), Ok(Chosen::Energy));
        assert_eq!(threshold("-1"), Ok(Chosen::ByHand(Threshold::new(-1.0).unwrap())));
        for text in ["", "gaps", "NaN", "0,01"] {
            assert!(threshold(text).unwrap_err().ends_with("`gap` and `energy`"), "{text}");
        }
    }
}
