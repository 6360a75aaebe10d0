//! The arguments of `dimmer study`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use dimmer_study::{Mechanism, builtin};

use super::common::{Json, Page, whole};

fn mechanism() -> impl TypedValueParser<Value = Mechanism> {
    let possible = |of: Mechanism| PossibleValue::new(of.name()).help(of.summary());
    let names = PossibleValuesParser::new(Mechanism::ALL.map(possible));
    names.map(|name| Mechanism::named(&name).unwrap_or_default())
}

#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  dimmer study nginx-avx512 --model i9-7940x
  dimmer study nginx-specialised --model xeon-gold-6130 --mechanisms delegate,specialise-learning --sensitivity
  dimmer study --report study.html
  dimmer study nginx-avx512 --model i9-7940x --auto")]
pub(crate) struct Study {
    /// Workloads: scenarios that come with Dimmer, or files [default: all that come with it].
    #[arg(value_name = "SCENARIO", default_values_t = builtin::names(), hide_default_value = true)]
    pub(crate) scenarios: Vec<String>,
    /// A processor model, a name or a file; may be repeated [default: all that come with Dimmer].
    #[arg(long = "model", value_name = "MODEL", default_values_t = builtin::models(), hide_default_value = true)]
    pub(crate) models: Vec<String>,
    /// Compares these mechanisms with `none` [default: all].
    #[arg(long, value_name = "MECHANISM,...", value_parser = mechanism(), value_delimiter = ',')]
    pub(crate) mechanisms: Vec<Mechanism>,
    /// Runs each N times, with the seeds 1 to N.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = whole::<u64>(1..=1000))]
    pub(crate) seeds: u64,
    /// Also finds by which factor a parameter must change for another mechanism to be first.
    #[arg(long)]
    pub(crate) sensitivity: bool,
    /// Instead, lets auto choose among mechanisms while a workload runs, beside each alone, for
    /// SECONDS of simulated time [default: 60]; the first half is for learning.
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "60",
        value_parser = whole::<u32>(20..=100_000),
        conflicts_with_all = ["sensitivity", "mechanisms", "seeds", "report"]
    )]
    pub(crate) auto: Option<u32>,
    /// Simulates on N threads [default: one for each CPU that this process may use].
    #[arg(long, value_name = "N", value_parser = whole::<u16>(1..=1024))]
    pub(crate) jobs: Option<u16>,
    /// Keeps results of runs in DIR [default: ~/.cache/dimmer/study].
    #[arg(long, value_name = "DIR")]
    pub(crate) cache: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) page: Page,
    #[command(flatten)]
    pub(crate) json: Json,
}
