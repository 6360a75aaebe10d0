//! What can be said to `dimmer bench`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// What a hooked call takes, beside the same call without a hook.
    Hook(BenchHook),
    /// What it takes to have a closure run on another core, beside a cache line's round trip.
    Handoff(BenchMoves),
    /// What it takes to run one call on another core, with the caller's own stack.
    Borrow(BenchMoves),
    /// What it takes to have a hooked call of a leaf function run on another core, beside moving it
    /// with its thread.
    Offload(BenchOffload),
    /// What it takes a thread to go to another core and back, by itself and by the kernel.
    Migrate(BenchMoves),
    /// What a marked region costs that stays where it is.
    Region(BenchMoves),
    /// What bursts of wide-vector code cost the scalar work between them, and what moving them
    /// gives back.
    Primesieve(BenchMoves),
    /// What observing costs a program of yours, and what narrower code gives back.
    Program(BenchProgram),
    /// What wide-vector code costs a stock web server with TLS here, whether `dimmer observe`
    /// foretells it, and whether `dimmer run --mechanism narrow` gives it back.
    Nginx(BenchNginx),
    /// What the policy server takes, with many programs and sites.
    Daemon(BenchDaemon),
    /// Whether the policy server finds out if moving pays here: two programs beside each other.
    Server(BenchServer),
}

#[derive(Args, Debug)]
pub(crate) struct BenchServer {
    /// How often each way has its turn.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,

    /// How long a turn is; its second half counts.
    #[arg(long, value_name = "S", default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..=3600))]
    pub(crate) seconds: u32,

    /// Writes the figures as JSON; `-`: to standard output, without the table.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Be one of the two programs.
    #[arg(long, value_enum, hide = true)]
    pub(crate) program: Option<Neighbour>,
}

/// The two programs.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Neighbour {
    Wide,
    Scalar,
}

#[derive(Args, Debug)]
pub(crate) struct BenchDaemon {
    /// How many programs it serves.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) clients: u32,

    /// How many sites each of them has.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) sites: u32,

    /// Entries that are looked at closely, and so written down, a second, in all of them together.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) records: u64,

    /// For how long each loop of the policy is measured.
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) seconds: u32,

    /// Writes the figures as JSON; `-`: to standard output, without the table.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct BenchMoves {
    /// How often each way has its turn.
    #[arg(long, value_name = "N", default_value_t = 31, value_parser = clap::value_parser!(u32).range(3..=1000))]
    pub(crate) rounds: u32,

    /// Writes the figures as JSON; `-`: to standard output, without the table.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct BenchOffload {
    /// The hardware threads to move calls to, as in `2-3,8` [default: those of one core].
    #[arg(long, value_name = "LIST")]
    pub(crate) cores: Option<String>,

    /// Writes the figures as JSON; `-`: to standard output, without the table.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct BenchHook {
    /// Writes the figures as JSON; `-`: to standard output, without the table.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// The ways that move calls; each is taken if functions are named for it.
#[derive(Args, Debug)]
pub(crate) struct Moves {
    /// In each round also with calls of these functions moved, as by `dimmer run --mechanism borrow
    /// --hook`.
    #[arg(long, value_name = "auto|NAME,...", value_delimiter = ',')]
    pub(crate) borrow: Vec<String>,

    /// The same, as by `dimmer run --mechanism offload --hook`.
    #[arg(long, value_name = "auto|NAME,...", value_delimiter = ',')]
    pub(crate) offload: Vec<String>,

    /// The same, as by `dimmer run --mechanism auto --hook`, under a policy server of this
    /// command's own.
    #[arg(long, value_name = "auto|NAME,...", value_delimiter = ',')]
    pub(crate) auto: Vec<String>,
}

#[derive(Args, Debug)]
#[command(after_long_help = "\
Runs the program as it is, observed, and narrow, in turn, and compares the rounds: how long it took, its time on CPUs, and
whether its standard output and exit status are the same. It has no input; what it writes to standard error is lost.
The exit status is 1 if observing changed what it does.

Examples:
  dimmer bench program -- x265 --asm avx512 -o /dev/stdout clip.y4m
  dimmer bench program --rounds 9 --json cost.json -- openssl speed -seconds 1 sha256")]
pub(crate) struct BenchProgram {
    /// How often each way has its turn; from 6 on, agreement of all rounds is significant at 95 %.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(3..=1000))]
    pub(crate) rounds: u32,

    #[command(flatten)]
    pub(crate) moves: Moves,

    /// Writes everything as JSON; `-`: to standard output, without the table.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// The program and its arguments.
    #[arg(value_name = "COMMAND", required = true, last = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
#[command(after_long_help = "\
Needs nginx, wrk and openssl: as root it installs what is missing with apt, else it says how to. Server and load
listen to each other only, on a CPU each, and leave nothing behind. The exit status is 1 if any request failed.

Examples:
  dimmer bench nginx
  dimmer bench nginx --rounds 12 --json nginx.json")]
pub(crate) struct BenchNginx {
    /// How often each way has its turn; from 6 on, agreement of all rounds is significant at 95 %.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(3..=1000))]
    pub(crate) rounds: u32,

    /// How long each way is loaded in a round.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) seconds: u32,

    /// What encrypts.
    #[arg(long, value_enum, default_value_t = Tls::Chacha)]
    pub(crate) tls: Tls,

    #[command(flatten)]
    pub(crate) moves: Moves,

    /// Writes everything as JSON; `-`: to standard output, without the table.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// What encrypts in `dimmer bench nginx`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tls {
    /// ChaCha20-Poly1305, with connections that are kept.
    Chacha,
    /// AES-128-GCM, likewise.
    Aes,
    /// Handshakes with a key of RSA: a connection for each request.
    Rsa,
}
