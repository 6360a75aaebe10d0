//! The arguments of the commands for the simulator and its processor models.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use dimmer_processor::units::Nanos;
use dimmer_sim::Moving;

use super::common::{Cpu, Json, MaxLoad, ModelName, Page, span, whole};

/// `--model` where a scenario names one.
const OF_SCENARIO: &str =
    "The processor model, a name or a file [default: the one that the scenario names]";

#[derive(Debug, Subcommand)]
pub(crate) enum Sim {
    /// Predicts what a workload does on a processor model.
    Run(SimRun),
    /// Compares governors of license levels, or loops that move code, on one workload.
    Compare(Compare),
    /// Runs phases of scalar and wide SIMD code, on this machine or on a processor model.
    Phases(Phases),
    /// Predicts how long a critical section must be to gain by a faster clock.
    PredictLock(PredictLock),
    /// Fits parameters of a scenario or of a model to measured values.
    Fit(Fit),
    /// Compares the simulator's results with a paper's, or with measurements on this machine.
    Validate(Validate),
    /// Lists, shows and checks processor models.
    #[command(subcommand)]
    Model(Model),
}

/// The governor of a core's license level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Governor {
    /// The processor itself.
    Hardware,
    /// AVXFREQ: the processor's rules in the kernel, by counters and a timer.
    Avxfreq,
    /// The program, by system calls before each phase.
    User,
    /// Oracle: knows the future; the fastest of all ways to govern.
    Oracle,
    /// Predictor: learns from history.
    Predictive,
}

/// Parses what decides where marked regions run.
fn moving() -> impl TypedValueParser<Value = Moving> {
    let possible = |moving: Moving| PossibleValue::new(moving.name()).help(moving.summary());
    let names = PossibleValuesParser::new(Moving::all().into_iter().map(possible));
    names.map(|name| Moving::named(&name).unwrap_or_default())
}

#[derive(Args, Debug)]
#[command(mut_arg("model", |arg| arg.help(OF_SCENARIO)))]
#[command(after_long_help = "\
Examples:
  dimmer sim run scenarios/multiphase-worst-case.toml
  dimmer sim run scenarios/multiphase-worst-case.toml --governor user --json
  dimmer sim run scenarios/bursts-in-a-sieve.toml --model xeon-gold-6130 --trace trace.pftrace
  dimmer sim run scenarios/nginx-avx512.toml --loop trials")]
pub(crate) struct SimRun {
    /// The workload: a scenario that comes with Dimmer, by its name, or a file.
    pub(crate) scenario: PathBuf,

    #[command(flatten)]
    pub(crate) model: ModelName,

    /// The governor of license levels.
    #[arg(long, value_name = "GOVERNOR", value_enum, default_value_t = Governor::Hardware)]
    pub(crate) governor: Governor,

    /// The policy loop that decides where marked regions run.
    #[arg(long = "loop", value_name = "LOOP", value_parser = moving(), default_value = Moving::None.name())]
    pub(crate) moving: Moving,

    /// The seed of the random numbers; the same seed gives the same result.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u64>(0..=u64::MAX))]
    pub(crate) seed: u64,

    #[command(flatten)]
    pub(crate) json: Json,

    /// Writes a time line of cores, levels, clocks, P-states and threads for Perfetto's viewer; `-`
    /// is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(mut_arg("model", |arg| arg.help(OF_SCENARIO)))]
#[command(after_long_help = "\
Examples:
  dimmer sim compare scenarios/multiphase-worst-case.toml
  dimmer sim compare scenarios/bursts-in-a-sieve.toml --governors hardware,predictive --repeat 100
  dimmer sim compare scenarios/nginx-avx512.toml --loops none,thresholds,trials,always --repeat 5
  dimmer sim compare scenarios/nginx-specialised.toml --loops always,specialise,specialise-learning")]
pub(crate) struct Compare {
    /// The workload: a scenario that comes with Dimmer, by its name, or a file.
    pub(crate) scenario: PathBuf,

    #[command(flatten)]
    pub(crate) model: ModelName,

    /// Compares these governors with `hardware` [default: all].
    #[arg(long, value_name = "GOVERNOR,...", value_enum, value_delimiter = ',')]
    pub(crate) governors: Vec<Governor>,

    /// Compares these policy loops with `none`, under the processor's own governor, instead of
    /// governors.
    #[arg(
        long,
        value_name = "LOOP,...",
        value_parser = moving(),
        value_delimiter = ',',
        conflicts_with = "governors"
    )]
    pub(crate) loops: Vec<Moving>,

    /// Runs each N times, with the seeds 1 to N.
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = whole::<u64>(1..=100_000))]
    pub(crate) repeat: u64,

    #[command(flatten)]
    pub(crate) page: Page,

    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Args, Debug)]
#[command(mut_arg("model", |arg| arg
    .conflicts_with("cpu")
    .help("Simulates this processor model instead, a name or a file")))]
#[command(after_long_help = "\
The durations are those of heavy wide code, light wide code and scalar code in turn; 0 leaves a phase out. Heavy code is independent \
512-bit multiply-adds, 31 in an iteration. Light code is 512-bit multiply-adds that depend on each other, one in an iteration. An \
iteration of scalar code takes one cycle.

Without --model, the phases run on this machine, pinned to a CPU; without AVX-512, in 256 bits. Phases in which other programs had the \
CPU for more than 1 % of the time are left out and counted. The first Ctrl-C ends after the current run, the second at once.

Examples:
  dimmer sim phases 0 0 20000 2000 0 666
  dimmer sim phases 0 0 2000000 200000 0 666 --model i9-7940x
  dimmer sim phases 200 150 400 0 100 --model i9-7940x --governor avxfreq")]
pub(crate) struct Phases {
    /// How long each phase lasts (microseconds).
    #[arg(value_name = "MICROSECONDS", required = true, value_parser = whole::<u64>(0..=3_600_000_000))]
    pub(crate) durations: Vec<u64>,

    #[command(flatten)]
    pub(crate) model: ModelName,

    /// The governor of license levels on a model.
    #[arg(long, value_name = "GOVERNOR", value_enum, default_value_t = Governor::Hardware)]
    pub(crate) governor: Governor,

    #[command(flatten)]
    pub(crate) cpu: Cpu,

    /// Runs the phases N times, on a model with the seeds 1 to N [default: 30; on this machine as
    /// often as fits into 3 s, but 3 to 30 times].
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1..=100_000))]
    pub(crate) repeat: Option<u64>,

    /// Writes the iterations of each run and phase as CSV, on this machine with the time that other
    /// programs had the CPU; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(mut_arg("model", |arg| arg
    .required(true)
    .help("The processor model, a name or a file, with P-states and what changing them costs")))]
#[command(after_long_help = "\
By the cost model of paper 002, section 4.4. The owner's boost: the thread waits for the lock at \
the slowest P-state, runs the section at the fastest, and goes on at the base. One step: it waits \
at the base, and runs the section at the next faster P-state.

Examples:
  dimmer sim predict-lock --model fx-8120 --section 120us --wait 1ms
  dimmer sim predict-lock --model fx-8120 --section 120us --wait 1ms --memory-share 0.3 --json")]
pub(crate) struct PredictLock {
    #[command(flatten)]
    pub(crate) model: ModelName,

    /// How long the section takes at the base clock, as in `120us`.
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) section: Nanos,

    /// How long the thread waits for the lock before it; 0 if the lock is free.
    #[arg(long, value_name = "TIME", value_parser = wait)]
    pub(crate) wait: Nanos,

    /// The part of the section's time in which memory stalls it, whatever the clock; 0 to 1.
    #[arg(long, value_name = "S", value_parser = share, default_value = "0")]
    pub(crate) memory_share: f64,

    #[command(flatten)]
    pub(crate) json: Json,
}

/// A time with its unit, or none.
fn wait(text: &str) -> Result<Nanos, String> {
    if text == "0" { Ok(Nanos::ZERO) } else { span(text).map_err(|error| format!("{error}, or 0")) }
}

/// A part of a whole.
fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "expected a number from 0 to 1".to_owned())
}

#[derive(Args, Debug)]
#[command(after_long_help = "\
The exit status is 3 if a parameter is not identified, or if a residual contradicts.

Examples:
  dimmer sim fit server-fit.toml
  dimmer sim fit server-fit.toml --emit-scenario fitted.toml --json=fit.json")]
pub(crate) struct Fit {
    /// What to fit: the scenario, the model, parameters with their bounds, and measured values.
    pub(crate) fit: PathBuf,
    /// Writes the scenario with the fitted values; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) emit_scenario: Option<PathBuf>,
    /// Writes the model with the fitted values; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) emit_model: Option<PathBuf>,
    /// Simulates on N threads [default: one for each CPU that this process may use].
    #[arg(long, value_name = "N", value_parser = whole::<u16>(1..=1024))]
    pub(crate) jobs: Option<u16>,
    #[command(flatten)]
    pub(crate) json: Json,
}

/// A paper whose results the simulator recreates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Paper {
    /// AVX-induced reclocking on the i9-7940X.
    #[value(name = "000")]
    Avxfreq,
    /// A library that moves wide code to other cores.
    #[value(name = "001")]
    Library,
    /// Locks whose owners ask for a faster clock.
    #[value(name = "002")]
    Turbo,
    /// Cores for 512-bit code, to which threads move by themselves.
    #[value(name = "003")]
    Specialisation,
    /// Threads that migrate between a fast and a slow core.
    #[value(name = "004")]
    Migration,
}

/// What is about papers, and not about this machine. Named also by options that require `--here`:
/// a missing option is no error if what is given excludes it.
const OF_PAPERS: [&str; 3] = ["paper", "markdown", "report"];

#[derive(Args, Debug)]
#[command(mut_arg("model", |arg| arg
    .requires("here")
    .conflicts_with_all(OF_PAPERS)
    .help("With --here: the model of this machine, a name or a file, instead of the measured one")))]
#[command(mut_arg("cpu", |arg| arg.requires("here").conflicts_with_all(OF_PAPERS)))]
#[command(mut_arg("max_load", |arg| arg.requires("here").conflicts_with_all(OF_PAPERS)))]
#[command(after_long_help = "\
With --here: scalar code of 0.3 to 300 µs between bursts of 10 to 1000 instructions, of the widest heavy class of this machine, its widest \
light one, and the next narrower heavy one. The model predicts how much longer the scalar code takes than between scalar stand-ins. Then \
that is measured, interleaved; measurements that other programs disturbed are left out and counted. The model is the one of the last full \
`dimmer probe`; if there is none, a quick probe makes one first.

Examples:
  dimmer sim validate
  dimmer sim validate --all
  dimmer sim validate --paper 003 --report validation.html
  dimmer sim validate --here --json=here.json")]
pub(crate) struct Validate {
    /// The paper [default: all].
    #[arg(long, value_name = "PAPER", value_enum)]
    pub(crate) paper: Option<Paper>,

    /// All papers in one table, by paper and class, without their rows.
    #[arg(long, conflicts_with_all = ["paper", "here", "markdown", "report", "json"])]
    pub(crate) all: bool,

    /// Predicts and measures scalar code between bursts, on this machine; takes some 30 s.
    #[arg(long, conflicts_with_all = OF_PAPERS)]
    pub(crate) here: bool,

    #[command(flatten)]
    pub(crate) model: ModelName,

    #[command(flatten)]
    pub(crate) cpu: Cpu,

    #[command(flatten)]
    pub(crate) load: MaxLoad,

    /// With --here: measures each point N times [default: 12].
    #[arg(long, value_name = "N", requires = "here", conflicts_with_all = OF_PAPERS, value_parser = whole::<u32>(1..=10_000))]
    pub(crate) repeat: Option<u32>,

    #[command(flatten)]
    pub(crate) json: Json,

    #[command(flatten)]
    pub(crate) page: Page,

    /// Writes the rows as Markdown, as in docs/VALIDATION.md; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Model {
    /// Lists the models that come with Dimmer.
    List,
    /// Shows a model.
    Show {
        /// The name of a model that comes with Dimmer, or a file.
        model: String,
    },
    /// Checks a model file and prints every problem with its line.
    Check {
        /// The file.
        file: PathBuf,
    },
}
