//! The arguments of `dimmer bench`.

use std::ffi::OsString;

use clap::{Args, Subcommand, ValueEnum};
use dimmer_bench::auto::Metric;

use super::common::{DedicatedCpus, Json, Lasting, MOST, MaxLoad, ModelName, whole};

#[derive(Args, Debug)]
pub(crate) struct Bench {
    #[command(flatten)]
    pub(crate) load: MaxLoad,

    #[command(subcommand)]
    pub(crate) of: BenchOf,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchOf {
    /// What observing costs a program of yours, and what narrower code gains.
    Program(BenchProgram),
    /// What wide SIMD code costs a stock web server with TLS here, whether `dimmer observe`
    /// predicts that, and whether `dimmer run --narrow` avoids it.
    Nginx(BenchNginx),
    /// Whether the policy daemon finds out if moving pays here: two programs side by side.
    Server(BenchServer),
    /// What bursts of wide SIMD code cost the scalar work between them, and what moving the
    /// bursts gives back.
    Primesieve(BenchMoves),
    /// What marks and migrations at them cost here, and from which length of phases on they gain.
    Phases(BenchMoves),
    /// What the parts of Dimmer itself cost.
    #[command(subcommand)]
    Dev(BenchDev),
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchDev {
    /// A hooked call, beside the same call without a hook.
    Hook(BenchHook),
    /// Delegating a closure to another core, beside a cache line's round trip.
    Delegate(BenchMoves),
    /// Migrating for one call, with the caller's own stack.
    MigrateCall(BenchMoves),
    /// Migrating a thread to another core and back, by Dimmer and by the kernel.
    Migrate(BenchMoves),
    /// A hooked call of a leaf function that is delegated, beside one that migrates.
    HookedMoves(BenchHookedMoves),
    /// A marked region that stays where it is.
    Region(BenchMoves),
    /// Locks: of the C library, the standard library, `parking_lot`, and Dimmer's.
    Lock(BenchLock),
    /// The policy daemon's CPU time, with many programs and sites.
    Daemon(BenchDaemon),
    /// A program under `dimmer run --auto`, beside the same program without it.
    Auto(BenchAuto),
}

#[derive(Args, Debug)]
pub(crate) struct BenchAuto {
    /// The program's work a second: one over its `time`, or (`output`) the last word that COMMAND
    /// prints, which starts the program behind the words in $DIMMER_AUTO.
    #[arg(long, default_value = "time")]
    pub(crate) metric: Metric,

    /// A function whose calls --auto may move [default: by the processor's model]. Repeatable.
    #[arg(long, value_name = "FN")]
    pub(crate) function: Vec<String>,

    /// The most rounds. There are fewer once the gain's interval is narrower than 2 %.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = whole::<u32>(6..=1000))]
    pub(crate) rounds: u32,

    #[command(flatten)]
    pub(crate) model: ModelName,

    #[command(flatten)]
    pub(crate) json: Json,

    /// The program and its arguments.
    #[arg(value_name = "COMMAND", required = true, last = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
#[command(mut_arg("duration", |arg| arg
    .default_value("16s")
    .help("How long a run is; its second half counts")))]
pub(crate) struct BenchServer {
    /// Runs each way N times.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = whole::<u32>(1..=1000))]
    pub(crate) rounds: u32,

    #[command(flatten)]
    pub(crate) duration: Lasting,

    #[command(flatten)]
    pub(crate) json: Json,

    /// Be one of the two programs.
    #[arg(long, value_enum, hide = true)]
    pub(crate) program: Option<Neighbour>,
}

/// The two programs of `dimmer bench server`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Neighbour {
    Wide,
    Scalar,
}

#[derive(Args, Debug)]
#[command(mut_arg("duration", |arg| arg
    .default_value("10s")
    .help("How long each policy loop is measured")))]
pub(crate) struct BenchDaemon {
    /// The number of programs that it serves.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = whole::<u32>(1..=100_000))]
    pub(crate) clients: u32,

    /// The number of sites of each program.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = whole::<u32>(1..=1024))]
    pub(crate) sites: u32,

    /// Sampled region entries per second, all programs together.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = whole::<u64>(1..=1_000_000_000))]
    pub(crate) records: u64,

    #[command(flatten)]
    pub(crate) duration: Lasting,

    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Args, Debug)]
pub(crate) struct BenchMoves {
    /// Runs each way N times.
    #[arg(long, value_name = "N", default_value_t = 31, value_parser = whole::<u32>(3..=1000))]
    pub(crate) rounds: u32,

    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Args, Debug)]
pub(crate) struct BenchLock {
    /// The most threads that compete for a lock; by default as many as there are CPUs.
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=MOST))]
    pub(crate) threads: Option<u32>,

    /// Runs each lock N times.
    #[arg(long, value_name = "N", default_value_t = 21, value_parser = whole::<u32>(3..=1000))]
    pub(crate) rounds: u32,

    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Args, Debug)]
pub(crate) struct BenchHookedMoves {
    #[command(flatten)]
    pub(crate) cpus: DedicatedCpus,

    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Args, Debug)]
pub(crate) struct BenchHook {
    #[command(flatten)]
    pub(crate) json: Json,
}

/// The mechanisms that move calls; each one that is given is measured as well.
#[derive(Args, Debug)]
pub(crate) struct Moves {
    /// Also runs each round with calls migrated, as `dimmer run --migrate` does.
    #[arg(long, value_name = "FN", num_args = 0.., require_equals = true, value_delimiter = ',')]
    pub(crate) migrate: Option<Vec<String>>,

    /// Also runs each round with calls delegated, as `dimmer run --delegate` does.
    #[arg(long, value_name = "FN", num_args = 0.., require_equals = true, value_delimiter = ',')]
    pub(crate) delegate: Option<Vec<String>>,

    /// Also runs each round with threads that go to wide cores, as `dimmer run --specialise` does.
    #[arg(long, value_name = "FN", num_args = 0.., require_equals = true, value_delimiter = ',')]
    pub(crate) specialise: Option<Vec<String>>,

    /// Also runs each round with threads that migrate at marks, as `dimmer run --phases` does.
    #[arg(long, value_name = "PROFILE", num_args = 1, require_equals = true)]
    pub(crate) phases: Option<Vec<String>>,

    /// Also runs each round as `dimmer run --auto` does, under a policy daemon of this command's
    /// own.
    #[arg(long, value_name = "FN", num_args = 0.., require_equals = true, value_delimiter = ',')]
    pub(crate) auto: Option<Vec<String>>,

    /// Also runs each round as `dimmer run --boost` does, which observes locks.
    #[arg(long, value_name = "STRATEGY", num_args = 0..=1, require_equals = true)]
    pub(crate) boost: Option<Vec<String>>,
}

impl Moves {
    /// The functions that the flag of this mechanism names; `None` if the flag is not there.
    pub(crate) fn functions_of(&self, mechanism: &str) -> Option<&[String]> {
        match mechanism {
            "migrate" => self.migrate.as_deref(),
            "delegate" => self.delegate.as_deref(),
            "auto" => self.auto.as_deref(),
            "boost" => self.boost.as_deref(),
            "specialise" => self.specialise.as_deref(),
            "phases" => self.phases.as_deref(),
            _ => None,
        }
    }
}

#[derive(Args, Debug)]
#[command(after_long_help = "\
Runs the program plain, observed, and narrow, in turn, and compares the rounds: their time, their CPU time, and whether standard output \
and exit status are the same. The program has no input; its standard error is discarded. The exit status is 3 if observing changed the \
output or the exit status.

Examples:
  dimmer bench program -- x265 --asm avx512 -o /dev/stdout clip.y4m
  dimmer bench program --rounds 9 --json=cost.json -- openssl speed -seconds 1 sha256")]
pub(crate) struct BenchProgram {
    /// Runs each way N times; from 6 on, agreement of all rounds is significant at 95 %.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = whole::<u32>(3..=1000))]
    pub(crate) rounds: u32,

    #[command(flatten)]
    pub(crate) moves: Moves,

    #[command(flatten)]
    pub(crate) json: Json,

    /// The program and its arguments.
    #[arg(value_name = "COMMAND", required = true, last = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
#[command(mut_arg("duration", |arg| arg
    .default_value("4s")
    .help("How long each way is loaded in a round")))]
#[command(after_long_help = "\
Needs nginx, wrk and openssl; without them it fails and names the command that installs them. Server and load generator talk only to \
each other, each on a CPU of its own, and leave nothing behind. The exit status is 3 if a request failed.

Examples:
  dimmer bench nginx
  dimmer bench nginx --rounds 12 --json=nginx.json")]
pub(crate) struct BenchNginx {
    /// Runs each way N times; from 6 on, agreement of all rounds is significant at 95 %.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = whole::<u32>(3..=1000))]
    pub(crate) rounds: u32,

    #[command(flatten)]
    pub(crate) duration: Lasting,

    /// The encryption.
    #[arg(long, value_enum, default_value_t = Tls::Chacha)]
    pub(crate) tls: Tls,

    #[command(flatten)]
    pub(crate) moves: Moves,

    #[command(flatten)]
    pub(crate) json: Json,
}

/// The encryption of `dimmer bench nginx`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tls {
    /// ChaCha20-Poly1305, with connections that are kept open.
    Chacha,
    /// AES-128-GCM, with connections that are kept open.
    Aes,
    /// Handshakes with an RSA key: a connection for each request.
    Rsa,
}
