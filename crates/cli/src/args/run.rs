//! The arguments of `dimmer run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use dimmer_narrow::Width;

/// How `dimmer run` makes wide-vector code cost less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mechanism {
    /// Has the program choose narrower vectors by itself: by the switches of the libraries that it
    /// needs, and by what CPUID tells it.
    Narrow,
    /// Has calls run on a dedicated core: the caller's thread goes there, with its stack, and comes
    /// back.
    Borrow,
    /// Has calls of leaf functions run on a dedicated core, while their threads wait: only
    /// registers travel, which takes a fraction of the time.
    Offload,
    /// Has calls run on a dedicated core by whichever of the two fits, as long as the policy server
    /// (dimmerd) finds that programs do better so; and the program choose narrower vectors, where
    /// earlier runs with the same arguments speak for that.
    Auto,
}

#[derive(Args, Debug)]
#[command(after_long_help = "\
The program runs as ever: its input and output, and its exit status, which is also that of this command. What
was set for it, and what could not be, goes to standard error, and at its end which calls were moved. What it
starts inherits it.

Examples:
  dimmer run --mechanism narrow -- openssl speed -seconds 2 -evp chacha20-poly1305
  dimmer run --mechanism narrow --width 128 --only glibc,cpuid -- ./server
  dimmer run --mechanism borrow --hook EVP_EncryptUpdate --cores 3 -- ./server
  dimmer run --mechanism offload --hook ChaCha20_avx512 -- ./server
  dimmer run --mechanism offload --cores 3 --dedicate -- ./server     # nobody else on cpu 3
  dimmer run --mechanism auto -- ./server                     # as dimmerd and earlier runs decide
  dimmer observe -- dimmer run --mechanism narrow -- python3 job.py    # is anything wide left?")]
pub(crate) struct Run {
    /// How; several can be had at once. With offload and borrow, calls go with their thread where
    /// the function is no leaf function.
    #[arg(long, value_enum, value_name = "MECHANISM,...", value_delimiter = ',', required = true)]
    pub(crate) mechanism: Vec<Mechanism>,

    /// The functions whose calls are moved: by symbol, as `dimmer scan` shows them, or by a library
    /// and the address of an entry in it, as in `libcrypto.so.3:0x1a2b0`. Calls that are over
    /// before they would have travelled stay. `auto`, and without this: the outermost functions
    /// around wide-vector code (to offload: the functions with that code), where moving takes less
    /// than the code costs what comes after it.
    #[arg(long, value_name = "auto|NAME|LIBRARY:OFFSET", value_delimiter = ',')]
    pub(crate) hook: Vec<String>,

    /// The processor model that says what wide-vector code costs, by name or file [default: what
    /// `dimmer probe` measured on this kind of processor].
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,

    /// The hardware threads to move them to, as in `2-3,8`; the program keeps off them while calls
    /// move [default: those of one core].
    #[arg(long, value_name = "LIST")]
    pub(crate) cores: Option<String>,

    /// Keeps everybody else's threads off these hardware threads, by cpusets, as long as the
    /// program runs: other programs have so much less of the machine. `dimmer doctor` says whether
    /// it can be done here (dedicated-cores).
    #[arg(long)]
    pub(crate) dedicate: bool,

    /// The widest vectors to leave, in bits. 256 takes away AVX-512 and AMX, 128 also AVX and AVX2.
    #[arg(long, value_name = "256|128", default_value_t = Width::Bits256)]
    pub(crate) width: Width,

    /// Uses these switches only; a wrong name lists them. `cpuid` hides features from the CPUID
    /// instruction, the others are for one library each [default: all that apply].
    #[arg(long, value_name = "LIBRARY,...", value_delimiter = ',')]
    pub(crate) only: Vec<String>,

    /// Writes which calls were moved as JSON, at the program's end.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// The program and its arguments.
    #[arg(value_name = "COMMAND", required = true, last = true)]
    pub(crate) command: Vec<OsString>,
}
