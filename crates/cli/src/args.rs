//! What can be said on the command line; the help texts are the reference.

mod bench;
mod run;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use dimmer_processor::class::InstructionClass;

pub(crate) use bench::{
    Bench, BenchDaemon, BenchHook, BenchMoves, BenchNginx, BenchOffload, BenchProgram, BenchServer,
    Moves, Neighbour, Tls,
};
pub(crate) use run::{Mechanism, Run};

/// Makes mixed workloads run at the frequency and on the core that each phase of their code
/// deserves.
#[derive(Debug, Parser)]
#[command(name = "dimmer", version, max_term_width = 100, arg_required_else_help = true)]
pub(crate) struct Arguments {
    /// A directory to read and change instead of the machine itself, laid out like `/`.
    #[arg(long, value_name = "DIR", global = true, hide_short_help = true)]
    pub(crate) root: Option<PathBuf>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Tells what this machine can do, what that enables, and how to get what is missing.
    Doctor(Doctor),
    /// Measures what wide-vector code costs on this machine; needs no privilege.
    Probe(Probe),
    /// Finds the wide-vector functions of a program, a library or a process.
    Scan(Scan),
    /// Runs an unchanged program, and tells which wide-vector functions it calls.
    Observe(Observe),
    /// Runs a program that nobody changed so that its wide-vector code costs less.
    Run(Run),
    /// Measures what Dimmer itself costs, and what it brings.
    #[command(subcommand)]
    Bench(Bench),
    /// Shows what the policy server does, live.
    Top(Top),
    /// Writes down what the policy server sees and decides, to replay it.
    Record(Record),
    /// Runs a recording through the policy it was made under, or another.
    Replay(Replay),
    /// Predicts what a workload does on a processor model.
    Sim(Sim),
    /// Compares governors of license levels on a workload, on a processor model.
    Compare(Compare),
    /// Runs phases of scalar and wide-vector code, on this machine or on a processor model.
    Phases(Phases),
    /// Compares what the simulator gives with a paper's results, or with what this machine does.
    Validate(Validate),
    /// Lists, shows and checks processor models.
    Model(Model),
    /// Undoes changes to the machine that a killed run left behind.
    Restore(Restore),
}

#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What other cores do while one is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PreThrottle {
    /// Nothing.
    None,
    /// Scalar code.
    Scalar,
    /// The kernel under test.
    Vector,
}

#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  dimmer probe --quick --report report.html
  dimmer probe --mode episode --kernel vfmadd231pd-512-unrolled,vpaddd-512-unrolled --json -
  dimmer probe --mode recurrence --kernel vfmadd231pd-512-unrolled
  dimmer probe --mode downclock --kernel 'vfmadd231pd-512-unrolled:1+add-scalar-unrolled:15'
  dimmer probe --list")]
pub(crate) struct Probe {
    /// Takes less than 20 s: few kernels, short horizons.
    #[arg(long)]
    pub(crate) quick: bool,

    /// Modes: downclock, upclock, throttle, instructions, episode, recurrence, levels [default:
    /// all that tell something about a kernel].
    #[arg(long, value_name = "MODE,...", value_delimiter = ',')]
    pub(crate) mode: Vec<String>,

    /// Kernels, or mixtures such as `vfmadd231pd-512-unrolled:1+add-scalar-unrolled:15`, a share
    /// of instructions each; `--list` names them [default: all, six of them with `--quick`].
    #[arg(long, value_name = "KERNEL,...", value_delimiter = ',')]
    pub(crate) kernel: Vec<String>,

    /// Lists the kernels, and why those are missing that this machine cannot run.
    #[arg(long)]
    pub(crate) list: bool,

    /// The CPU to measure [default: the last one allowed, which interrupts visit least].
    #[arg(long, value_name = "CPU")]
    pub(crate) cpu: Option<u32>,

    /// How many CPUs run the measured code in step.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) threads: usize,

    /// What the other CPUs do meanwhile.
    #[arg(long, value_name = "LOAD", value_enum, default_value_t = PreThrottle::None)]
    pub(crate) pre_throttle: PreThrottle,

    /// Instructions in a burst, for the modes episode and recurrence [default: 800; a full probe
    /// also sweeps from 1 to 4 million].
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    pub(crate) burst: Vec<u32>,

    /// At most so many repetitions; fewer where the result is precise before, up to 16 times as
    /// many of an episode that few bursts have.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(4..=100_000))]
    pub(crate) repetitions: u32,

    /// Switches turbo frequencies off for the run; undone at its end, on signals, and by `dimmer
    /// restore` after a crash.
    #[arg(long)]
    pub(crate) turbo_off: bool,

    /// Puts the measured code on huge pages.
    #[arg(long)]
    pub(crate) huge_pages: bool,

    /// Writes the results as JSON; `-`: to standard output, without the table.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Writes raw series as CSV, one file each.
    #[arg(long, value_name = "DIR")]
    pub(crate) csv: Option<PathBuf>,

    /// Writes a report as one HTML file that needs no network.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,

    /// Writes a processor model of this machine from what was measured.
    #[arg(long, value_name = "FILE")]
    pub(crate) emit_model: Option<PathBuf>,
}

impl Probe {
    /// Whether nothing narrows what is asked, so that the answer is about the machine as it is.
    pub(crate) fn is_about_the_machine(&self) -> bool {
        self.mode.is_empty()
            && self.kernel.is_empty()
            && self.burst.is_empty()
            && self.threads == 1
            && matches!(self.pre_throttle, PreThrottle::None)
            && !self.turbo_off
    }
}

#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  dimmer scan /usr/lib/x86_64-linux-gnu/libcrypto.so.3
  dimmer scan /usr/bin/openssl --libraries
  dimmer scan 1234 --libraries --json -")]
pub(crate) struct Scan {
    /// A program, a library, or the id of a process.
    #[arg(value_name = "FILE|PID")]
    pub(crate) target: String,

    /// Also scans the libraries that it needs, or, of a process, has loaded.
    #[arg(long)]
    pub(crate) libraries: bool,

    /// The processor model that says which code asks for which level, by name or file [default:
    /// what `dimmer probe` measured on this kind of processor].
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,

    /// Writes everything as JSON; `-`: to standard output, without the tables.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(after_long_help = "\
The program runs as ever: its output, and its exit status, which is also that of this command. What was
observed goes to standard error.

Examples:
  dimmer observe -- openssl speed -seconds 2 -evp chacha20-poly1305
  dimmer observe --seconds 10 --json served.json -- nginx -g 'daemon off;'
  sudo dimmer observe --pid 1234 --seconds 10
  sudo dimmer observe --via uprobes -- ./static-server")]
pub(crate) struct Observe {
    /// Observes a process that runs already, until it ends or Ctrl-C; by uprobes.
    #[arg(long, value_name = "PID", conflicts_with = "command")]
    pub(crate) pid: Option<u32>,

    /// How calls are seen [default: hooks; with --pid uprobes].
    #[arg(long, value_enum)]
    pub(crate) via: Option<Via>,

    /// Ends the program after so many seconds, with SIGTERM; or, with --pid, leaves it alone.
    #[arg(long, value_name = "N", value_parser = seconds)]
    pub(crate) seconds: Option<f64>,

    /// The processor model by which levels and costs are told, by name or file [default: what
    /// `dimmer probe` measured on this kind of processor].
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,

    /// Hooks functions with instructions of these classes [default: those that ask for a license
    /// level by the model; without a model heavy-256,light-512,heavy-512,tile].
    #[arg(long, value_name = "CLASS,...", value_delimiter = ',')]
    pub(crate) classes: Vec<InstructionClass>,

    /// Hooks these functions instead, whatever their instructions: by symbol, as `dimmer scan`
    /// shows them (0xADDRESS without a name), or by LIBRARY:0xADDRESS.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', conflicts_with_all = ["pid", "via", "classes"])]
    pub(crate) function: Vec<String>,

    /// Writes a page with plots that needs no network.
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,

    /// Writes everything as JSON; `-`: to standard output, without the tables.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// The program and its arguments.
    #[arg(value_name = "COMMAND", required_unless_present = "pid", last = true)]
    pub(crate) command: Vec<OsString>,
}

/// How `dimmer observe` sees calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Via {
    /// By hooks in the program, from a preloaded library.
    Hooks,
    /// From outside, by the kernel's uprobes, for programs that take no library: needs root, tells
    /// no durations, makes each call in question 0.2 to 15 us longer, misses the first 20 ms of new
    /// threads and children, and libraries that are loaded later.
    Uprobes,
}

#[derive(Args, Debug)]
#[command(after_long_help = "\
On a terminal a screen that goes with the server, also when that ends and comes again; `?` there explains keys and columns. Elsewhere, \
and with --once, a table.

Examples:
  dimmer top
  dimmer top --once
  dimmer top --json - | jq '.clients[].sites[]'")]
pub(crate) struct Top {
    /// The server's socket [default: $DIMMER_SOCKET, or else the user's own server, or that of the
    /// machine].
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,

    /// Prints a table of one interval, and ends.
    #[arg(long)]
    pub(crate) once: bool,

    /// The seconds between two looks.
    #[arg(long, value_name = "S", value_parser = seconds, default_value_t = 1.0)]
    pub(crate) interval: f64,

    /// Writes the state as JSON (docs/dimmerd.md); `-`: to standard output, and nothing else.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(after_long_help = "\
Ends with Ctrl-C, after --seconds, or when the server ends; what is complete is written as it comes. Only root and the server's own \
user may record. The format is that of docs/dimmerd.md.

Examples:
  dimmer record morning.jsonl
  dimmer record --seconds 60 - | gzip >minute.jsonl.gz")]
pub(crate) struct Record {
    /// The file; `-` is standard output.
    pub(crate) file: PathBuf,

    /// The server's socket [default: $DIMMER_SOCKET, or else the user's own server, or that of the
    /// machine].
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,

    /// Ends after so many seconds.
    #[arg(long, value_name = "N", value_parser = seconds)]
    pub(crate) seconds: Option<f64>,
}

#[derive(Args, Debug)]
#[command(after_long_help = "\
A policy's decisions change what programs do, and a recording only knows what they did under the server's. So it tells what another \
policy would have said to that, not what would have come of it.

The exit status is 1 if the policy is the server's, from its begin, and says anything else than the server did.

Examples:
  dimmer replay morning.jsonl
  dimmer replay morning.jsonl --config thresholds.toml --json -")]
pub(crate) struct Replay {
    /// What `dimmer record` has written.
    pub(crate) file: PathBuf,

    /// The policy to run it through, a configuration of `dimmerd` [default: the one that it was
    /// made under].
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Writes the comparison as JSON; `-`: to standard output, without the table.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// A number of seconds that one can wait for.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds".to_owned())?;
    if seconds > 0.0 && seconds <= 1e9 {
        Ok(seconds)
    } else {
        Err("expected more than 0 and at most 1e9 seconds".to_owned())
    }
}

/// Who decides which license level a core has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Governor {
    /// The processor by itself.
    Hardware,
    /// AVXFREQ: the same in the kernel, by counters and a timer.
    Avxfreq,
    /// The program, by system calls before each phase.
    User,
    /// Whoever knows what will run.
    Oracle,
    /// Whoever learns what will run.
    Predictive,
}

/// Who decides where marked regions run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Offloading {
    /// Nobody: they stay.
    None,
    /// The policy server of paper 001.
    OffloadPaper,
    /// The policy server with Dimmer's own loop, which tries each program's regions with and
    /// without.
    Offload,
    /// Nobody: all of them run on dedicated cores.
    OffloadAlways,
}

#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  dimmer sim scenarios/multiphase-worst-case.toml
  dimmer sim scenarios/multiphase-worst-case.toml --governor user --json -
  dimmer sim scenarios/bursts-in-a-sieve.toml --model xeon-gold-6130 --trace trace.pftrace
  dimmer sim scenarios/nginx-avx512.toml --mechanism offload")]
pub(crate) struct Sim {
    /// The workload: a scenario file.
    pub(crate) scenario: PathBuf,

    /// The processor: a model by name or file [default: the one that the scenario names].
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,

    /// Who decides which license level a core has.
    #[arg(long, value_name = "GOVERNOR", value_enum, default_value_t = Governor::Hardware)]
    pub(crate) governor: Governor,

    /// Who decides where marked regions run.
    #[arg(long, value_name = "MECHANISM", value_enum, default_value_t = Offloading::None)]
    pub(crate) mechanism: Offloading,

    /// The seed of chance; the same one gives the same result.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Writes the result as JSON; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Writes a time line of cores, levels, clocks, P-states and threads in Perfetto's own format,
    /// for its viewer; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  dimmer compare scenarios/multiphase-worst-case.toml
  dimmer compare scenarios/bursts-in-a-sieve.toml --governors hardware,predictive --repeat 100
  dimmer compare scenarios/nginx-avx512.toml --mechanisms none,offload-paper,offload,offload-always --repeat 5")]
pub(crate) struct Compare {
    /// The workload: a scenario file.
    pub(crate) scenario: PathBuf,

    /// The processor: a model by name or file [default: the one that the scenario names].
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,

    /// Governors beside `hardware`, with which they are compared [default: all].
    #[arg(long, value_name = "GOVERNOR,...", value_enum, value_delimiter = ',')]
    pub(crate) governors: Vec<Governor>,

    /// Who decides where marked regions run, beside `none`: compares these instead of governors,
    /// under the processor's own.
    #[arg(
        long,
        value_name = "MECHANISM,...",
        value_enum,
        value_delimiter = ',',
        conflicts_with = "governors"
    )]
    pub(crate) mechanisms: Vec<Offloading>,

    /// How often to run each, with seeds 1 to N.
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) repeat: u64,

    /// Writes a page with a plot of each phase, and of the energy where the model knows power.
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,

    /// Writes the comparison as JSON; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(after_long_help = "\
Durations are those of heavy wide code, light wide code and scalar code in turn; 0 leaves a phase out. Heavy are independent 512-bit \
multiply-adds, 31 an iteration; light are those that wait for each other, one an iteration; an iteration of scalar code takes one cycle.

Without --model they run on this machine, pinned to a CPU; without AVX-512, in 256 bits. Phases in which others had the CPU for more \
than 1 % of the time are left out and counted. The first Ctrl-C ends after the run under way, the second at once.

Examples:
  dimmer phases 0 0 20000 2000 0 666
  dimmer phases 0 0 2000000 200000 0 666 --model i9-7940x
  dimmer phases 200 150 400 0 100 --model i9-7940x --governor avxfreq")]
pub(crate) struct Phases {
    /// How long each phase lasts (microseconds).
    #[arg(value_name = "MICROSECONDS", required = true, value_parser = clap::value_parser!(u64).range(0..=3_600_000_000))]
    pub(crate) durations: Vec<u64>,

    /// Simulates this processor instead, a model by name or file.
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,

    /// Who decides which license level a simulated core has.
    #[arg(long, value_name = "GOVERNOR", value_enum, default_value_t = Governor::Hardware)]
    pub(crate) governor: Governor,

    /// The CPU to run on [default: the last one allowed, which interrupts visit least].
    #[arg(long, value_name = "CPU", conflicts_with = "model")]
    pub(crate) cpu: Option<u32>,

    /// How often to run, on a model with seeds 1 to N [default: 30; on this machine as often as
    /// fits into 3 s, but 3 to 30 times].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) repeat: Option<u64>,

    /// Writes the iterations of each run and phase as CSV, on this machine with the time that
    /// others had the CPU; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
}

/// A paper whose results can be recreated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Paper {
    /// AVX-induced reclocking on the i9-7940X.
    #[value(name = "000")]
    Avxfreq,
    /// A library that moves wide code to other cores.
    #[value(name = "001")]
    Offloading,
}

#[derive(Args, Debug)]
#[command(after_long_help = "\
With --here: scalar code of 0.3 to 100 µs between bursts of 10 to 1000 instructions, of the widest heavy class of this machine, its widest \
light one, and the next narrower heavy one. How much longer the scalar code takes than between scalar stand-ins is predicted by the model, \
then measured, interleaved, with what others did left out and counted. The model is the one that a whole `dimmer probe` has left; where \
there is none, a quick probe is made first.

Examples:
  dimmer validate
  dimmer validate --here --json here.json")]
pub(crate) struct Validate {
    /// The paper [default: all].
    #[arg(long, value_name = "PAPER", value_enum)]
    pub(crate) paper: Option<Paper>,

    /// Predicts and measures scalar code interleaved with bursts, on this machine; some 20 s.
    #[arg(long, conflicts_with_all = ["paper", "markdown"])]
    pub(crate) here: bool,

    /// The model of this machine, by name or file, instead of what a probe found.
    #[arg(long, value_name = "MODEL", requires = "here")]
    pub(crate) model: Option<String>,

    /// The CPU to measure [default: the last one allowed, which interrupts visit least].
    #[arg(long, value_name = "CPU", requires = "here")]
    pub(crate) cpu: Option<u32>,

    /// How often to measure each point [default: 12].
    #[arg(long, value_name = "N", requires = "here", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) repeat: Option<u32>,

    /// Writes the rows, or the points, as JSON; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Writes the rows as Markdown, as docs/VALIDATION.md has them; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct Model {
    #[command(subcommand)]
    pub(crate) action: ModelAction,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ModelAction {
    /// Lists the models that come with Dimmer.
    List,
    /// Shows a model, by name or file.
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

#[derive(Args, Debug)]
pub(crate) struct Restore {
    /// Also undoes changes of runs that are still alive.
    #[arg(long)]
    pub(crate) force: bool,
}
