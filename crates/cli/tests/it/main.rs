//! Tests of the real binary in a directory of its own: what it prints, where, and how it ends.

#![expect(clippy::print_stdout, reason = "tests that cannot run here say so")]

mod auto;
mod bad_input;
mod bench;
mod boost;
mod counters;
mod dedicate;
mod delegate;
mod doctor;
mod fit;
mod forms;
mod interrupt;
mod kernel;
mod latencies;
mod ledgers;
mod loaders;
mod looks;
mod machines;
mod marks;
mod merge;
mod migrate;
mod model;
mod observe;
mod once;
mod pages;
mod phase_graph;
mod predict;
mod ps;
mod pstate;
mod restore;
mod run;
mod scan;
mod scan_perf;
mod scenario;
mod sections;
mod server;
mod signals;
mod specialise;
mod stat;
mod study;
mod trace;
mod victims;
mod wide_cores;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs `dimmer` with arguments in `directory`.
fn dimmer(directory: &Path, arguments: &[&str]) -> Output {
    command(directory, arguments).output().unwrap()
}

fn command(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dimmer"));
    command.current_dir(directory).args(arguments);
    command
}

/// Builds `what` (programs and libraries of other packages, which Cargo builds only on request)
/// into the directory of `dimmer`, and returns that directory. With `DIMMER_BUILT` in the
/// environment, they have been built before (`cargo xtask ci`).
fn built(what: &[&str]) -> PathBuf {
    let directory = Path::new(env!("CARGO_BIN_EXE_dimmer")).parent().unwrap();
    if std::env::var_os("DIMMER_BUILT").is_some() {
        return directory.to_owned();
    }
    let profile = match directory.file_name().unwrap().to_str().unwrap() {
        "debug" => "dev",
        other => other,
    };
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args(["build", "--quiet", "--offline", "--profile", profile]).args(what);
    cargo.arg("--target-dir").arg(directory.parent().unwrap());
    let output = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    directory.to_owned()
}

/// Like [`command`], but started by `env` with these signal settings. Otherwise the environment of
/// the tests may make it ignore some signals, as a shell does for background jobs.
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
