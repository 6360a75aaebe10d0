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

use anyhow::Context as _;
use dimmer_bench::moves::Way;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::root::Root;

use crate::args::{Bench, BenchDev, BenchOf, BenchServer};

pub(crate) fn run(root: &Root, arguments: &Bench) -> anyhow::Result<ExitCode> {
    arguments.load.check(root)?;
    if let BenchOf::Server(own @ BenchServer { program: Some(kind), .. }) = &arguments.of {
        // Signals end it, as they do users' programs.
        return server::run_program(root, own, *kind);
    }
    // Before anything changes: what a command has changed is undone when it returns.
    let interrupt = &Interrupt::install().context("cannot handle signals")?;
    let done = match &arguments.of {
        BenchOf::Program(arguments) => program::run(arguments, interrupt),
        BenchOf::Nginx(arguments) => nginx::run(root, arguments, interrupt),
        BenchOf::Server(arguments) => server::run(root, arguments, interrupt),
        BenchOf::Primesieve(arguments) => primesieve::run(root, arguments, interrupt),
        BenchOf::Phases(arguments) => phases::run(root, arguments, interrupt),
        BenchOf::Dev(of) => dev(root, of, interrupt),
    };
    match (done, interrupt.exit_status()) {
        // After an interrupt, the reason for a failure does not matter.
        (Err(_), Some(status)) => {
            eprintln!("interrupted: nothing was measured to its end");
            Ok(ExitCode::from(status))
        }
        (done, _) => done,
    }
}

fn dev(root: &Root, of: &BenchDev, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    match of {
        BenchDev::Hook(arguments) => hook::run(arguments, interrupt),
        BenchDev::Delegate(arguments) => moves::run(root, arguments, Way::Delegate, interrupt),
        BenchDev::MigrateCall(arguments) => moves::run(root, arguments, Way::Migrate, interrupt),
        BenchDev::Migrate(arguments) => moves::run(root, arguments, Way::Migration, interrupt),
        BenchDev::HookedMoves(arguments) => hooked_moves::run(root, arguments),
        BenchDev::Region(arguments) => moves::region(arguments, interrupt),
        BenchDev::Lock(arguments) => lock::run(root, arguments, interrupt),
        BenchDev::Daemon(arguments) => daemon::run(root, arguments, interrupt),
        BenchDev::Auto(arguments) => auto::run(arguments, interrupt),
    }
}
