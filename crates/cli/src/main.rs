//! The `dimmer` command: arguments in; tables, JSON and reports out. Decides and measures nothing.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a command speaks through it")]

// First: all others are to have its macros.
#[macro_use]
mod standard_error;

mod args;
mod bench;
mod compare;
mod doctor;
mod input;
mod launch;
mod measured;
mod model;
mod named;
mod observe;
mod output;
mod phases;
mod probe;
mod progress;
mod record;
mod replay;
mod report;
mod restore;
mod run;
mod scan;
mod sim;
mod state;
mod top;
mod validate;

use std::process::ExitCode;

use clap::Parser;
use dimmer_host::file_limit;
use dimmer_host::root::Root;

use crate::args::{Arguments, Command};

/// Exit status for input that cannot be used; the same that clap gives.
const BAD_INPUT: u8 = 2;

/// The user asked for something that does not exist or cannot be: exit status 2, not 1.
#[derive(Debug)]
struct BadInput(String);

impl std::fmt::Display for BadInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for BadInput {}

/// An error of the user's input, from anything that has words.
fn bad_input(error: impl ToString) -> anyhow::Error {
    BadInput(error.to_string()).into()
}

fn main() -> ExitCode {
    output::quiet_closed_pipes();
    // Without it, a file that grows too long ends this process instead of being reported.
    let _ = file_limit::report();
    std::panic::catch_unwind(run_command).unwrap_or_else(|panic| {
        if output::is_closed_pipe(panic.as_ref()) {
            return ExitCode::from(output::CLOSED_PIPE);
        }
        std::panic::resume_unwind(panic)
    })
}

fn run_command() -> ExitCode {
    let arguments = Arguments::parse();
    let root = arguments.root.map_or_else(Root::live, Root::new);
    let result = match &arguments.command {
        Command::Doctor(arguments) => doctor::run(&root, arguments),
        Command::Probe(arguments) => probe::run(&root, arguments),
        Command::Scan(arguments) => scan::run(&root, arguments),
        Command::Observe(arguments) => observe::run(&root, arguments),
        Command::Run(arguments) => run::run(&root, arguments),
        Command::Bench(arguments) => bench::run(&root, arguments),
        Command::Top(arguments) => top::run(&root, arguments),
        Command::Record(arguments) => record::run(arguments),
        Command::Replay(arguments) => replay::run(arguments),
        Command::Sim(arguments) => sim::run(arguments),
        Command::Compare(arguments) => compare::run(arguments),
        Command::Phases(arguments) => phases::run(arguments),
        Command::Validate(arguments) => validate::run(arguments),
        Command::Model(arguments) => model::run(arguments),
        Command::Restore(arguments) => restore::run(&root, arguments),
    };
    result.unwrap_or_else(|error| {
        if error.is::<output::ClosedPipe>() {
            return ExitCode::from(output::CLOSED_PIPE);
        }
        eprintln!("error: {error:#}");
        ExitCode::from(if error.is::<BadInput>() { BAD_INPUT } else { 1 })
    })
}
