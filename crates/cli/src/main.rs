//! The `dimmer` command: arguments in; tables, JSON and reports out. Decides and measures nothing.
#![forbid(unsafe_code)]

// First, so that all other modules have its macros.
#[macro_use]
mod standard_error;

mod args;
mod bench;
mod compare;
mod doctor;
mod exit;
mod fit;
mod input;
mod machines;
mod manual;
mod measured;
mod merge;
mod model;
mod observe;
mod output;
mod phase_graph;
mod phases;
mod predict_lock;
mod probe;
mod progress;
mod ps;
mod pstate;
mod record;
mod replay;
mod restore;
mod run;
mod scan;
mod sim;
mod specialise;
mod stat;
mod study;
mod top;
mod validate;

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use dimmer_host::file_limit;
use dimmer_host::root::Root;
use dimmer_launch::LaunchError;

use crate::args::{Arguments, Command, Daemon, Sim};
use crate::output::Output;

/// The user asked for something that does not exist or is impossible: see [`exit`].
#[derive(Debug)]
struct BadInput(String);

impl std::fmt::Display for BadInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for BadInput {}

/// Turns any error with a text into an error of the user's input.
fn bad_input(error: impl ToString) -> anyhow::Error {
    BadInput(error.to_string()).into()
}

/// Turns an error of the engine into one of the user's input if it is one.
fn not_launched(error: LaunchError) -> anyhow::Error {
    if error.is_input() { bad_input(error) } else { error.into() }
}

fn main() -> ExitCode {
    // Otherwise a file that grows too long ends this process instead of being reported.
    let _ = file_limit::report();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() && args::names_wrapper(std::env::args_os()) => {
            // A status of its own: the program's may be clap's.
            let _ = error.print();
            return ExitCode::from(exit::WRAPPER_FAILED);
        }
        Err(error) if error.use_stderr() => error.exit(),
        // The text of `--help` or `--version`.
        Err(text) => return status(shown(&text), false),
    };
    output::set_verbosity(arguments.quiet, arguments.verbose);
    output::set_colours(arguments.color);
    let wraps = arguments.command.wraps();
    status(run_to_output(&arguments), wraps)
}

/// The exit status of a command, which `wraps` a program or not. Prints its error.
fn status(ended: anyhow::Result<ExitCode>, wraps: bool) -> ExitCode {
    ended.unwrap_or_else(|error| {
        if !error.is::<output::ClosedPipe>() {
            error!("error: {error:#}");
        }
        ExitCode::from(exit::of(&error, wraps))
    })
}

/// Prints clap's text to standard output.
fn shown(text: &clap::Error) -> anyhow::Result<ExitCode> {
    output::written(text.print(), Path::new("-"))?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the command with its report going where `--output` says.
fn run_to_output(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let output = arguments.output.as_deref().map(Output::open).transpose()?;
    if arguments.command.wraps() {
        // Standard output is the program's.
        return dispatch(arguments, output);
    }
    let output = output.filter(|output| !output.is_standard());
    let redirected = output.map(output::Redirected::begin).transpose()?;
    let status = dispatch(arguments, None)?;
    redirected.map_or(Ok(()), output::Redirected::end)?;
    Ok(status)
}

/// The machine below a directory.
fn root(directory: &Path) -> anyhow::Result<Root> {
    if directory.is_dir() {
        Ok(Root::new(directory))
    } else {
        let directory = directory.display();
        Err(bad_input(format!("--root {directory}: expected a directory like `/`")))
    }
}

fn dispatch(arguments: &Arguments, report: Option<Output>) -> anyhow::Result<ExitCode> {
    let root = arguments.root.as_deref().map_or_else(|| Ok(Root::live()), root)?;
    match &arguments.command {
        Command::Doctor(arguments) => doctor::run(&root, arguments),
        Command::Probe(arguments) => probe::run(&root, arguments),
        Command::Merge(arguments) => merge::run(arguments),
        Command::Machines(arguments) => machines::run(&root, arguments),
        Command::Ps(arguments) => ps::run(&root, arguments),
        Command::Scan(arguments) => scan::run(&root, arguments),
        Command::Stat(arguments) => stat::run(&root, arguments, report),
        Command::Observe(arguments) => observe::run(&root, arguments, report),
        Command::Run(arguments) => run::run(&root, arguments, report),
        Command::Specialise(arguments) => specialise::run(&root, arguments),
        Command::Pstate(arguments) => pstate::run(&root, arguments, report),
        Command::Phases(arguments) => phase_graph::run(&root, arguments),
        Command::Bench(arguments) => bench::run(&root, arguments),
        Command::Top(arguments) | Command::Daemon(Daemon::Top(arguments)) => {
            top::run(&root, arguments)
        }
        Command::Daemon(Daemon::Record(arguments)) => record::run(arguments),
        Command::Daemon(Daemon::Replay(arguments)) => replay::run(arguments),
        Command::Sim(Sim::Run(arguments)) => sim::run(arguments),
        Command::Sim(Sim::Compare(arguments)) => compare::run(arguments),
        Command::Sim(Sim::Phases(arguments)) => phases::run(arguments),
        Command::Sim(Sim::PredictLock(arguments)) => predict_lock::run(arguments),
        Command::Sim(Sim::Fit(arguments)) => fit::run(arguments),
        Command::Sim(Sim::Validate(arguments)) => validate::run(arguments),
        Command::Sim(Sim::Model(arguments)) => model::run(arguments),
        Command::Study(arguments) => study::run(arguments),
        Command::Restore(arguments) => restore::run(&root, arguments),
        Command::Completions(arguments) => manual::completions(arguments),
        Command::Manual(arguments) => manual::pages(arguments),
    }
}
