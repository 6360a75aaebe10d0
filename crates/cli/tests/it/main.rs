//! The real binary in a directory of its own: what it prints, where, and how it ends.

#![expect(clippy::print_stdout, reason = "tests that cannot run here say so")]

mod bad_input;
mod borrow;
mod dedicate;
mod doctor;
mod forms;
mod interrupt;
mod ledgers;
mod loaders;
mod model;
mod observe;
mod offload;
mod predict;
mod restore;
mod run;
mod scan;
mod server;
mod signals;
mod trace;
mod victims;

use std::path::Path;
use std::process::{Command, Output};

/// `dimmer` with arguments, run in `directory`.
fn dimmer(directory: &Path, arguments: &[&str]) -> Output {
    command(directory, arguments).output().unwrap()
}

fn command(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dimmer"));
    command.current_dir(directory).args(arguments);
    command
}

/// As [`command`], started with signals as `env` is told: whoever runs the tests may ignore some, as a shell does for
/// what it runs in the background.
fn heeding(signals: &str, directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("env");
    command.arg(signals).arg(env!("CARGO_BIN_EXE_dimmer"));
    command.current_dir(directory).args(arguments);
    command
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}
