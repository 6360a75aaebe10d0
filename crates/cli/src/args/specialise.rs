//! The arguments of `dimmer specialise`.

use clap::Args;

#[derive(Args, Debug)]
#[command(after_long_help = "\
All programs keep running as they are: a thread that begins wide SIMD code on a narrow CPU goes to a wide one before the first wide \
instruction, and any CPU may take it when that is over. This lasts until a signal ends it (Ctrl-C, SIGQUIT, SIGTERM, SIGHUP), or the scheduler ends; \
all CPUs are wide then. After a SIGKILL, `dimmer restore` undoes it. `dimmer run --specialise` does it for one program, without rights.

Experimental: docs/specialise.md says what can go wrong. It needs root, the module dimmer_xcr0, and Linux 6.12 with sched_ext, or with \
--affinity the module alone. Everything is checked before anything changes; `dimmer doctor --all` has the same checks.

Examples:
  dimmer specialise --wide 0-1,16-17              # with their SMT siblings
  dimmer specialise --wide 0-3 --affinity         # the kernel has no sched_ext")]
pub(crate) struct Specialise {
    /// The CPUs that may run wide code: whole cores. All others are narrow.
    #[arg(long, value_name = "LIST", required = true)]
    pub(crate) wide: String,

    /// Loads no scheduler: the module moves threads by their affinity, which programs can see.
    #[arg(long)]
    pub(crate) affinity: bool,
}
