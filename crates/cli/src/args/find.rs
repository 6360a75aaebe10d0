//! The arguments of the commands that measure the machine and find wide SIMD code: `doctor`,
//! `probe`, `scan`, `observe`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use dimmer_probe::question::Question;
use dimmer_processor::class::InstructionClass;

use super::common::{
    Cpu, Json, Lasting, MOST, MaxLoad, ModelName, Page, Process, Textfile, duration, whole,
};

#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  dimmer doctor
  dimmer doctor --require probe,observe && dimmer observe -- ./server")]
pub(crate) struct Doctor {
    /// Lists every capability of the machine, with what it is for and how to get it.
    #[arg(long)]
    pub(crate) all: bool,

    /// Ends with exit status 3 unless these commands work here, at least in part.
    #[arg(long, value_name = "COMMAND,...", value_enum, value_delimiter = ',')]
    pub(crate) require: Vec<Use>,

    #[command(flatten)]
    pub(crate) json: Json,
}

/// What the other CPUs do while one is measured.
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
  dimmer probe --mode episode --kernel vfmadd231pd-512-unrolled,vpaddd-512-unrolled --json
  dimmer probe --mode recurrence --kernel vfmadd231pd-512-unrolled
  dimmer probe --mode latency,pstate --json -
  dimmer probe --mode downclock --kernel 'vfmadd231pd-512-unrolled:1+add-scalar-unrolled:15'
  dimmer probe --list")]
pub(crate) struct Probe {
    /// Measures six kernels in under 20 s, instead of all in 7 minutes.
    #[arg(long)]
    pub(crate) quick: bool,

    /// What to measure [default: all that can find something about the kernel; levels only with
    /// --all-cpus]. latency (waiting, waking, moving) and pstate (how long clocks take to change)
    /// run no kernel.
    #[arg(long, value_name = "MODE,...", value_enum, value_delimiter = ',')]
    pub(crate) mode: Vec<ModeArgument>,

    /// Kernels, or mixtures such as `vfmadd231pd-512-unrolled:1+add-scalar-unrolled:15`, with a
    /// share of the instructions each; `--list` names them [default: all; six with `--quick`].
    #[arg(long, value_name = "KERNEL,...", value_delimiter = ',')]
    pub(crate) kernel: Vec<String>,

    /// Lists the kernels, and what this machine lacks for those that it cannot run.
    #[arg(long)]
    pub(crate) list: bool,

    #[command(flatten)]
    pub(crate) cpu: Cpu,

    #[command(flatten)]
    pub(crate) load: MaxLoad,

    /// Also measures the clock that heavy code leaves when 1, 2, 4 ... all CPUs run it (mode
    /// levels). Other programs on the machine slow down meanwhile.
    #[arg(long)]
    pub(crate) all_cpus: bool,

    /// Runs the measured code on N CPUs in step.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<usize>(1..=MOST))]
    pub(crate) threads: usize,

    /// What the other CPUs do meanwhile.
    #[arg(long, value_name = "LOAD", value_enum, default_value_t = PreThrottle::None)]
    pub(crate) pre_throttle: PreThrottle,

    /// Instructions in a burst, for the modes episode and recurrence [default: 800; a full probe
    /// also tries 1 to 4 million].
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = whole::<u32>(1..=1_000_000_000))]
    pub(crate) burst: Vec<u32>,

    /// The most repetitions of a measurement. It ends earlier when it is precise enough; an effect
    /// that few bursts have gets up to 16 times as many. For latency, samples of each measurement,
    /// at least 40; for pstate, a twentieth of it for each pair of clocks.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = whole::<u32>(4..=100_000))]
    pub(crate) repetitions: u32,

    /// Switches turbo frequencies off during the run. The end of the run and signals switch them on
    /// again; after a crash, `dimmer restore` does.
    #[arg(long)]
    pub(crate) turbo_off: bool,

    /// Puts the measured code on huge pages.
    #[arg(long)]
    pub(crate) huge_pages: bool,

    #[command(flatten)]
    pub(crate) json: Json,

    /// Standard output, which is what `--json` means by itself: `--json -`.
    #[arg(hide = true, requires = "json", value_parser = ["-"])]
    standard_output: Option<String>,

    /// Writes raw series as CSV files into DIR.
    #[arg(long, value_name = "DIR")]
    pub(crate) csv: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) page: Page,

    #[command(flatten)]
    pub(crate) textfile: Textfile,

    /// Writes a processor model of this machine, made from the measurements.
    #[arg(long, value_name = "FILE")]
    pub(crate) emit_model: Option<PathBuf>,

    /// Measures nothing if a model of this kind of machine (processor, microcode, hypervisor) is
    /// stored and all files that are to be written are there, JSON with a complete probe of this
    /// kind of machine.
    #[arg(long, conflicts_with_all = ["mode", "kernel", "list", "baseline"])]
    pub(crate) once: bool,

    /// Compares the results with those of an earlier probe, as of another kernel, microcode or
    /// host, and ends with status 3 if a cost is surely higher than then.
    #[arg(long, value_name = "FILE.json")]
    pub(crate) baseline: Option<PathBuf>,
}

impl Probe {
    /// The first option given that only modes with kernels have.
    pub(crate) fn of_kernels(&self) -> Option<&'static str> {
        let given = [
            ("--kernel", !self.kernel.is_empty()),
            ("--burst", !self.burst.is_empty()),
            ("--threads", self.threads != 1),
            ("--all-cpus", self.all_cpus),
            ("--pre-throttle", self.pre_throttle != PreThrottle::None),
            ("--turbo-off", self.turbo_off),
            ("--huge-pages", self.huge_pages),
            ("--csv", self.csv.is_some()),
            ("--report", self.page.report.is_some()),
            ("--textfile", self.textfile.textfile.is_some()),
            ("--emit-model", self.emit_model.is_some()),
            ("--baseline", self.baseline.is_some()),
        ];
        given.into_iter().find_map(|(option, is_given)| is_given.then_some(option))
    }

    /// The files, and the directory, to be written.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        let Self { json, csv, page, textfile, emit_model, .. } = self;
        let files = [&json.json, csv, &page.report, &textfile.textfile, emit_model];
        files.into_iter().filter_map(Option::as_deref)
    }

    /// Whether the JSON is to go to a file and to standard output.
    pub(crate) fn names_two_outputs(&self) -> bool {
        self.standard_output.is_some() && self.json.json != Some(PathBuf::from("-"))
    }

    /// Whether the arguments leave the default modes, kernels, bursts and threads, so that the
    /// result describes the machine.
    pub(crate) fn is_about_the_machine(&self) -> bool {
        self.mode.is_empty()
            && self.kernel.is_empty()
            && self.burst.is_empty()
            && self.threads == 1
            && matches!(self.pre_throttle, PreThrottle::None)
            && !self.turbo_off
    }
}

/// Declares an argument whose values are the names of the constant `ALL` of a type of another
/// crate.
macro_rules! named {
    ($(#[$attribute:meta])* $name:ident: $of:ty) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct $name(pub(crate) $of);

        impl ValueEnum for $name {
            fn value_variants<'a>() -> &'a [Self] {
                const ALL: [$name; <$of>::ALL.len()] = {
                    let mut all = [$name(<$of>::ALL[0]); <$of>::ALL.len()];
                    let mut at = 0;
                    while at < all.len() {
                        all[at] = $name(<$of>::ALL[at]);
                        at += 1;
                    }
                    all
                };
                &ALL
            }

            fn to_possible_value(&self) -> Option<PossibleValue> {
                Some(PossibleValue::new(self.0.name()))
            }
        }
    };
}

named! {
    /// A mode of `dimmer probe`.
    ModeArgument: Question
}

named! {
    /// A command, or a mechanism of `dimmer run`, that `dimmer doctor` judges.
    Use: dimmer_report::doctor::Use
}

#[derive(Args, Debug)]
#[command(after_long_help = "\
Machines are of one kind if processor, microcode, hypervisor and kernel are the same. A cost is an outlier if it is surely and noticeably \
higher or lower than the median of at least three of its processor.

Examples:
  dimmer merge fleet/*.json
  dimmer merge fleet/*.json --csv fleet.csv
  dimmer merge fleet/*.json --parquet fleet.parquet        # for DuckDB or Spark")]
pub(crate) struct Merge {
    /// What `dimmer probe --json=FILE` has written.
    #[arg(required = true, value_name = "FILE.json")]
    pub(crate) files: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) json: Json,

    /// Writes all costs of all probes as CSV, a line each.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,

    /// Writes the same as Parquet.
    #[arg(long, value_name = "FILE")]
    pub(crate) parquet: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(mut_arg("pid", |arg| arg.help("Shows this process alone")))]
#[command(after_long_help = "\
Two looks at /proc are compared. The column of AVX-512 has the threads whose AVX-512 registers held values when the kernel last took a CPU \
from them; code of 128 and 256 bits may use these registers, too. `widest code` is the most demanding class of instructions in the files \
that the process runs code from, whether it is executed or not. The first time, these files are scanned, which takes a while.

Examples:
  dimmer ps
  dimmer ps --cgroup --all
  dimmer ps --watch --interval 5s
  dimmer ps --all --json | jq '.processes[] | select(.avx512_threads > 0) | .name'")]
pub(crate) struct Ps {
    #[command(flatten)]
    pub(crate) process: Process,

    /// Shows all processes, not only those that use AVX-512 registers or CPU time.
    #[arg(short, long)]
    pub(crate) all: bool,

    /// Shows the sums of each control group: unit, container or pod.
    #[arg(long)]
    pub(crate) cgroup: bool,

    /// Goes on until Ctrl-C; with --json, with a line for each interval.
    #[arg(short, long)]
    pub(crate) watch: bool,

    /// The time between two looks [default: 200ms; with --watch 1s].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) interval: Option<Duration>,

    #[command(flatten)]
    pub(crate) model: ModelName,

    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Args, Debug)]
#[command(mut_arg("pid", |arg| arg
    .conflicts_with_all(["file", "perf"])
    .help("Scans the program of this process")))]
#[command(after_long_help = "\
Examples:
  dimmer scan /usr/lib/x86_64-linux-gnu/libcrypto.so.3
  dimmer scan /usr/bin/openssl --libraries
  dimmer scan -p 1234 --libraries --json
  dimmer scan build/server --fail-on heavy-512             # in CI: may this program slow its neighbors?
  perf record -g -- ./server && dimmer scan --perf perf.data
  perf script --show-mmap-events | dimmer scan --perf - --folded stacks.txt
  curl -s localhost:6060/debug/pprof/profile | dimmer scan --perf -")]
pub(crate) struct Scan {
    /// A program or a library.
    #[arg(value_name = "FILE", required_unless_present_any = ["pid", "perf"])]
    pub(crate) file: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) process: Process,

    /// Shows the share of a profile's samples that lies in wide SIMD code: a file of `perf record`,
    /// the text of `perf script --show-mmap-events`, or a CPU profile of pprof; `-` is standard
    /// input.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["file", "pid", "libraries"])]
    pub(crate) perf: Option<PathBuf>,

    /// Where files perf-PID.map and jit-PID.dump are, with generated code [default: /tmp, and the
    /// jitdump that the process has mapped].
    #[arg(long, value_name = "DIR", requires = "perf", conflicts_with_all = ["file", "pid"])]
    pub(crate) perf_maps: Option<PathBuf>,

    /// Writes the profile's stacks for flame graphs and speedscope, a line each, with a frame for
    /// the class and level of the sampled code.
    #[arg(long, value_name = "FILE", requires = "perf", conflicts_with_all = ["file", "pid"])]
    pub(crate) folded: Option<PathBuf>,

    /// Also scans the libraries that the program needs, or those that the process has loaded.
    #[arg(long)]
    pub(crate) libraries: bool,

    /// Ends with status 3 if a function has instructions of this class or a more demanding one, or
    /// asks for this license level of the model or a higher one: for builds and CI. With --perf,
    /// only functions with samples in such code count.
    #[arg(long, value_name = "CLASS|LEVEL")]
    pub(crate) fail_on: Option<String>,

    #[command(flatten)]
    pub(crate) model: ModelName,

    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Args, Debug)]
#[command(mut_arg("pid", |arg| arg
    .conflicts_with_all(["command", "all"])
    .help("Counts in a running process, and in what it starts, until it ends or Ctrl-C")))]
#[command(mut_arg("duration", |arg| arg.help(
    "Ends after this time; a program, with SIGTERM"
)))]
#[command(after_long_help = "\
Events have the vendor's names and the codes of this processor. With fewer counters than events, counts are estimated from the time in which \
each was counted. Without a PMU, as in most virtual machines, there is the clock by timing, and what the kernel counts. The program's output \
stays as it is; the report goes to standard error, or to the file of -o.

Examples:
  dimmer stat -- ./server
  dimmer stat -p 1234 --duration 10s
  sudo dimmer stat -a --duration 10s --json")]
pub(crate) struct Stat {
    #[command(flatten)]
    pub(crate) process: Process,

    /// Counts everything on all CPUs that it may use, until Ctrl-C; needs root, or
    /// perf_event_paranoid below 1.
    #[arg(short, long, conflicts_with = "command")]
    pub(crate) all: bool,

    #[command(flatten)]
    pub(crate) duration: Lasting,

    #[command(flatten)]
    pub(crate) json: Json,

    /// The program and its arguments.
    #[arg(value_name = "COMMAND", required_unless_present_any = ["pid", "all"], last = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
#[command(mut_arg("pid", |arg| arg
    .conflicts_with("command")
    .help("Observes a running process, by uprobes, until it ends or Ctrl-C")))]
#[command(mut_arg("duration", |arg| arg.help(
    "Ends the program with SIGTERM after this time; with --pid, lets the process run on"
)))]
#[command(after_long_help = "\
The program runs unmodified. Its output stays as it is, and its exit status becomes that of this command. The report goes to standard \
error, or to the file of -o.

Examples:
  dimmer observe -- openssl speed -seconds 2 -evp chacha20-poly1305
  dimmer observe --duration 10s --json=served.json -- nginx -g 'daemon off;'
  dimmer observe --marks do_command,mysql_execute_command --graph graph -- mariadbd
  dimmer observe --marks=auto --graph graph -- sqlite3 data.db 'select ...'
  dimmer observe --scenario x264.toml -- x264 --threads 1 -o out.264 clip.y4m
  sudo dimmer observe -p 1234 --duration 10s
  sudo dimmer observe --via uprobes -- ./static-server")]
pub(crate) struct Observe {
    #[command(flatten)]
    pub(crate) process: Process,

    /// How to see calls [default: hooks; with --pid uprobes].
    #[arg(long, value_enum)]
    pub(crate) via: Option<Via>,

    #[command(flatten)]
    pub(crate) duration: Lasting,

    #[command(flatten)]
    pub(crate) model: ModelName,

    /// Hooks functions with instructions of these classes [default: those that ask for a license
    /// level by the model; without a model heavy-256,light-512,heavy-512,tile].
    #[arg(long, value_name = "CLASS,...", value_delimiter = ',')]
    pub(crate) classes: Vec<InstructionClass>,

    /// Hooks these functions instead, whatever their instructions: by symbol, as `dimmer scan`
    /// shows them (0xADDRESS without a name), in C++ also without arguments (`ns::Class::method`)
    /// if only one is called so, or by LIBRARY:0xADDRESS.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', conflicts_with_all = ["pid", "via", "classes"])]
    pub(crate) function: Vec<String>,

    /// Hooks these functions instead, and measures what runs from the entry of one to the entry of
    /// the next, in each thread: the graph goes to standard output after the program, or to the
    /// file of --graph. Named as for `--function`; `auto` chooses some of all functions.
    #[arg(long, value_name = "NAME,...|auto", value_delimiter = ',', conflicts_with_all = ["pid", "via", "classes", "function", "scenario"])]
    pub(crate) marks: Vec<String>,

    /// Writes the graph of --marks to FILE.
    #[arg(long, value_name = "FILE", requires = "marks")]
    pub(crate) graph: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) page: Page,

    #[command(flatten)]
    pub(crate) json: Json,

    #[command(flatten)]
    pub(crate) textfile: Textfile,

    /// Writes the calls of each thread over time for Perfetto (ui.perfetto.dev). All calls are
    /// timed for it, which takes 25 to 69 ns each; the first two million are kept.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pid", "via", "marks"])]
    pub(crate) trace: Option<PathBuf>,

    /// Writes what the program did as a scenario, which `dimmer sim` simulates. All calls are timed
    /// for it, which takes 25 to 69 ns each.
    #[arg(long, value_name = "FILE.toml", conflicts_with_all = ["pid", "via"])]
    pub(crate) scenario: Option<PathBuf>,

    /// Each call of this function starts a request of the scenario, which ends where the thread
    /// starts the next one. Named as for `--function`.
    #[arg(long, value_name = "NAME", requires = "scenario")]
    pub(crate) request: Option<String>,

    /// The program and its arguments.
    #[arg(value_name = "COMMAND", required_unless_present = "pid", last = true)]
    pub(crate) command: Vec<OsString>,
}

impl Observe {
    /// The functions that are named, as marks or otherwise.
    pub(crate) fn named(&self) -> &[String] {
        if self.marks.is_empty() { &self.function } else { &self.marks }
    }
}

/// How `dimmer observe` sees calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Via {
    /// By hooks in the program, from a preloaded library.
    Hooks,
    /// From outside, by the kernel's uprobes, for programs that take no preloaded library. Needs
    /// root, measures no durations, makes each counted call 0.2 to 15 us longer, and misses the
    /// first 20 ms of new threads and children and all libraries that are loaded later.
    Uprobes,
}
