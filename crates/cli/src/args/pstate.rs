//! The arguments of `dimmer pstate`.

use std::ffi::OsString;

use clap::{Args, Subcommand};
use dimmer_host::pstate::Redefinition;
use dimmer_host::pstate::words::{Cpus, cpus, definition, request};
use dimmer_processor::units::CpuId;

use super::common::Json;

#[derive(Debug, Subcommand)]
pub(crate) enum Pstate {
    /// Shows the P-states, their limits, and which of them each CPU requests and has.
    Show(Json),
    /// Requests P-states for CPUs, or defines P-states, until a signal ends it.
    Set(PstateSet),
    /// Fixes clocks and keeps cores awake while a program is measured, or until a signal.
    Tune(PstateTune),
}

#[derive(Args, Debug)]
pub(crate) struct PstateTune {
    /// Lists what would change, and what this machine lacks; changes nothing.
    #[arg(long, conflicts_with = "command")]
    pub(crate) list: bool,

    /// The program to run meanwhile, with its arguments [default: until a signal ends it].
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
#[command(after_long_help = "\
P-states have the numbers that `dimmer pstate show` prints. On Intel's processors that is the ratio to 100 MHz: P20 is 2000 MHz.

This lasts until a signal ends it (Ctrl-C, SIGQUIT, SIGTERM, SIGHUP); the P-states and governors from before come back then, and by \
`dimmer restore` after a SIGKILL. Definitions stay within the processor's own: no frequency and no voltage above its highest, and no \
voltage below that of its slowest P-state that is as fast. docs/pstate.md has the details.

Examples:
  dimmer pstate set --fast 0-1 --define P2=833MHz --turbo-off   # paper 004, table 5.1: one core at P0, all others slow
  dimmer pstate set --request 4-7=P3 --keep
  dimmer pstate set --define P1=2500MHz@1000mV")]
pub(crate) struct PstateSet {
    /// CPUs that request the fastest P-state; without --slow, all others request the slowest.
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    pub(crate) fast: Option<Cpus>,

    /// CPUs that request the slowest P-state.
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    pub(crate) slow: Option<Cpus>,

    /// CPUs that request a P-state; can be repeated.
    #[arg(long, value_name = "LIST=P", value_parser = request)]
    pub(crate) request: Vec<(Vec<CpuId>, u8)>,

    /// Gives a P-state another frequency and voltage, for all CPUs (AMD); can be repeated. Without
    /// a voltage, it gets the least that the frequency needs.
    #[arg(long, value_name = "P=MHz[@mV]", value_parser = definition)]
    pub(crate) define: Vec<Redefinition>,

    /// Switches turbo off as well, so that no core is faster than its P-state.
    #[arg(long)]
    pub(crate) turbo_off: bool,

    /// Ends at once and leaves everything as it is then, until `dimmer restore` or a restart.
    #[arg(long)]
    pub(crate) keep: bool,
}
