//! The arguments of `dimmer run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use dimmer_launch::mechanism::Boosting;
use dimmer_narrow::Width;

use super::common::{DedicatedCpus, Json, ModelName, percent};

#[derive(Args, Debug)]
#[command(mut_arg("json", |arg| arg.help(
    "Writes to FILE as JSON which calls or threads moved, when the program ends; without FILE, to standard output"
)))]
#[command(after_long_help = "\
The program runs unmodified: its input and output stay as they are, and its exit status becomes that of this command. Notes on what was \
set for it, and at its end which calls moved, go to standard error, or to the file of -o. Programs that it starts are treated the same.

--migrate and --delegate without FN take functions by the processor model: the outermost functions around wide SIMD code (to delegate: \
the functions with that code) whose calls cost the code after them more than moving takes. Calls shorter than a move stay.

--specialise moves threads rather than calls: at its first call of such a function a thread goes to the wide CPUs, and stays there \
until it has made no such call for a while. They are those of --cpus, or else those that the policy daemon (dimmerd) gives all such \
programs, or else those of one core.

--phases migrates threads at entries of functions: to the CPUs of --cpus, which are slow (default: the efficiency cores of a hybrid \
processor, or else the CPUs with a lower highest clock than others), for functions above the threshold, and home for the others. \
`dimmer observe --marks` measures what a profile is made from. Without PROFILE, threads find out by trying which functions lose little \
there (--slower).

With FN, calls of these functions move, whichever of the flags names them. FN is a symbol, as `dimmer scan` shows it, or a library and the address of an entry in it, as in `libcrypto.so.3:0x1a2b0`.

Examples:
  dimmer run --narrow -- openssl speed -seconds 2 -evp chacha20-poly1305
  dimmer run --narrow --width 128 --only glibc,cpuid -- ./server
  dimmer run --migrate=EVP_EncryptUpdate --cpus 3 -- ./server
  dimmer run --delegate=ChaCha20_avx512 -- ./server
  dimmer run --delegate --cpus 3 --dedicate -- ./server     # no other program on CPU 3
  dimmer run --specialise=EVP_EncryptUpdate --cpus 6-7 -- ./server
  dimmer run --phases=profile --threshold 0.01 --cpus 6-7 -- ./server
  dimmer run --phases --slower 20 --cpus 6-7 -- ./server    # without a profile
  dimmer run --boost --model fx-8120 -- ./server            # which locks are held for long?
  dimmer run --boost=auto -- ./server                       # a faster clock for their holders
  dimmer run --boost --section take_gil..drop_gil -- python3 job.py
  dimmer run --auto -- ./server                             # whichever it does the most under
  dimmer observe -- dimmer run --narrow -- python3 job.py   # is any wide code left?")]
pub(crate) struct Run {
    /// Makes the program choose narrower vectors, by its libraries' switches and by CPUID.
    #[arg(long, help_heading = "Mechanisms")]
    pub(crate) narrow: bool,

    /// Runs calls on a dedicated core, with their thread (experimental).
    #[arg(
        long,
        value_name = "FN",
        num_args = 0..,
        require_equals = true,
        value_delimiter = ',',
        help_heading = "Mechanisms"
    )]
    pub(crate) migrate: Option<Vec<String>>,

    /// Runs calls of leaf functions on a dedicated core while their thread waits (experimental).
    /// With --migrate, calls of other functions migrate.
    #[arg(
        long,
        value_name = "FN",
        num_args = 0..,
        require_equals = true,
        value_delimiter = ',',
        help_heading = "Mechanisms"
    )]
    pub(crate) delegate: Option<Vec<String>>,

    /// Delegates, migrates or boosts, as trials while it runs (or dimmerd) show that the program
    /// gains; narrows, as earlier runs with the same arguments do (experimental).
    #[arg(
        long,
        value_name = "FN",
        num_args = 0..,
        require_equals = true,
        value_delimiter = ',',
        help_heading = "Mechanisms"
    )]
    pub(crate) auto: Option<Vec<String>>,

    /// Threads go to wide cores (those of --cpus, or of dimmerd) when they begin wide code, stay
    /// there until it is over, and then get back where they were (experimental).
    #[arg(
        long,
        value_name = "FN",
        num_args = 0..,
        require_equals = true,
        value_delimiter = ',',
        help_heading = "Mechanisms"
    )]
    pub(crate) specialise: Option<Vec<String>>,

    /// Threads migrate to slow cores (--cpus) and back at the entries of functions (experimental):
    /// as PROFILE has it, a line `"FUNCTION" VALUE` for each, or as they find out by trying.
    #[arg(
        long,
        value_name = "PROFILE",
        num_args = 0..=1,
        require_equals = true,
        help_heading = "Mechanisms"
    )]
    pub(crate) phases: Option<Option<PathBuf>>,

    /// Shows which locks the program holds so long that a faster clock for the holder would pay
    /// (experimental). With `auto`, requests it there; with `one`, `ownr` or `wait`, at all locks.
    #[arg(
        long,
        value_name = "STRATEGY",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "observe",
        help_heading = "Mechanisms"
    )]
    pub(crate) boost: Option<Boosting>,

    /// With --boost: a section that is observed and boosted as that of a lock: from a call of
    /// FUNCTION to its return, or from the return of FIRST to the same thread's next call of LAST.
    /// Functions are named as for `dimmer observe --function`.
    #[arg(long, value_name = "FUNCTION|FIRST..LAST")]
    pub(crate) section: Vec<String>,

    /// With --boost: also measures some of the sections by counters: cycles, clock, stalls and
    /// cache misses, page faults, waits.
    #[arg(long, requires = "boost")]
    pub(crate) counters: bool,

    /// With --phases=PROFILE, functions with a larger value are slow [default: the middle of the
    /// largest gap between the values].
    #[arg(long, value_name = "VALUE", requires = "phases", allow_negative_numbers = true)]
    pub(crate) threshold: Option<String>,

    /// With --phases alone: how much longer code may take on a slow core to be better off there, in
    /// percent [default: 10].
    #[arg(long, value_name = "PERCENT", value_parser = percent, requires = "phases", allow_hyphen_values = true)]
    pub(crate) slower: Option<f64>,

    #[command(flatten)]
    pub(crate) model: ModelName,

    #[command(flatten)]
    pub(crate) cpus: DedicatedCpus,

    /// Keeps other programs off these CPUs, by cpusets, while the program runs: the others have
    /// that much less of the machine. `dimmer doctor --all` says whether this works here
    /// (dedicated-cores).
    #[arg(long)]
    pub(crate) dedicate: bool,

    /// The widest vectors to leave with --narrow, in bits. 256 takes away AVX-512 and AMX, 128 also
    /// AVX and AVX2.
    #[arg(long, value_name = "256|128", default_value_t = Width::Bits256)]
    pub(crate) width: Width,

    /// Uses only these switches with --narrow; a wrong name lists them. `cpuid` hides features from
    /// the CPUID instruction, the others are for one library each [default: all that apply].
    #[arg(long, value_name = "LIBRARY,...", value_delimiter = ',')]
    pub(crate) only: Vec<String>,

    #[command(flatten)]
    pub(crate) json: Json,

    /// With --migrate, --delegate or --auto: writes the calls of each thread over time, and when
    /// they were moved, for Perfetto (ui.perfetto.dev). Timing all calls takes 25 to 69 ns
    /// each.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,

    /// The program and its arguments.
    #[arg(value_name = "COMMAND", required = true, last = true)]
    pub(crate) command: Vec<OsString>,
}

impl Run {
    /// The functions that the flag of this mechanism names; `None` if the flag is not there.
    pub(crate) fn functions_of(&self, mechanism: &str) -> Option<&[String]> {
        match mechanism {
            "narrow" => self.narrow.then_some(&[]),
            "migrate" => self.migrate.as_deref(),
            "delegate" => self.delegate.as_deref(),
            "auto" => self.auto.as_deref(),
            "specialise" => self.specialise.as_deref(),
            "boost" => self.boost.map(|_| &[][..]),
            "phases" => self.phases.as_ref().map(|_| &[][..]),
            _ => None,
        }
    }
}
