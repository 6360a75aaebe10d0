//! `dimmer bench`: the overhead of Dimmer itself, and what it gains.

mod auto;
mod daemon;
mod hook;
mod hooked_moves;
mod lock;
mod moves;
mod nginx;
mod phases;
mod primesieve;
mod program;
mod server;
mod ways;

use std::process::ExitCode;

use dimmer_bench::moves::Way;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::root::Root;

use crate::args::{Bench, BenchDev, BenchOf};

pub(crate) fn run(root: &Root, arguments: &Bench) -> anyhow::Result<ExitCode> {
    arguments.load.check(root)?;
    match &arguments.of {
        BenchOf::Program(arguments) => program::run(arguments),
        BenchOf::Nginx(arguments) => nginx::run(root, arguments),
        BenchOf::Server(arguments) => server::run(root, arguments),
        BenchOf::Primesieve(arguments) => primesieve::run(root, arguments),
        BenchOf::Phases(arguments) => phases::run(root, arguments),
        BenchOf::Dev(BenchDev::Hook(arguments)) => hook::run(arguments),
        BenchOf::Dev(BenchDev::Delegate(arguments)) => moves::run(root, arguments, Way::Delegate),
        BenchOf::Dev(BenchDev::MigrateCall(arguments)) => moves::run(root, arguments, Way::Migrate),
        BenchOf::Dev(BenchDev::Migrate(arguments)) => moves::run(root, arguments, Way::Migration),
        BenchOf::Dev(BenchDev::HookedMoves(arguments)) => hooked_moves::run(root, arguments),
        BenchOf::Dev(BenchDev::Region(arguments)) => moves::region(arguments),
        BenchOf::Dev(BenchDev::Lock(arguments)) => lock::run(root, arguments),
        BenchOf::Dev(BenchDev::Daemon(arguments)) => daemon::run(root, arguments),
        BenchOf::Dev(BenchDev::Auto(arguments)) => auto::run(arguments),
    }
}

/// Returns the error, or the signal's exit status if the user has interrupted the command, as a
/// shell expects.
fn end(error: anyhow::Error, interrupt: &Interrupt, what: &str) -> anyhow::Result<ExitCode> {
    match interrupt.exit_status() {
        Some(status) => {
            eprintln!("Interrupted; {what}.");
            Ok(ExitCode::from(status))
        }
        None => Err(error),
    }
}
