//! Everything a change must pass, in one command with one summary.
//!
//! All steps run even when one fails, so that one run shows everything there is to mend.

use std::env;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, bail};

use crate::dependencies::{self, cargo, has_command};
use crate::test_log::{self, Counts};
use crate::tidy;
use crate::tree::{self, Problem};

/// How a step ended; a step that failed is an error instead.
enum Outcome {
    Passed,
    Skipped(String),
}

/// Runs all steps on the tree at `root` and prints a summary, with the test counts last.
///
/// # Errors
/// When a step failed.
pub(crate) fn run(root: &Path) -> Result<()> {
    let mut counts = Counts::default();
    let mut summary = Vec::new();
    let mut failed = Vec::new();
    let mut step = |name: &'static str, action: &mut dyn FnMut() -> Result<Outcome>| {
        println!("\n==> {name}");
        let start = Instant::now();
        let word = match action() {
            Ok(Outcome::Passed) => "ok".to_owned(),
            Ok(Outcome::Skipped(reason)) => format!("SKIPPED: {reason}"),
            Err(error) => {
                eprintln!("error: {error:#}");
                failed.push(name);
                "FAILED".to_owned()
            }
        };
        summary.push(format!("{name:<14}{:>6.1} s  {word}", start.elapsed().as_secs_f64()));
    };
    step("format", &mut || component("fmt", &mut cargo_at(root, FORMAT)));
    step("tidy", &mut || tidy::run(root).map(|()| Outcome::Passed));
    step("dependencies", &mut || dependencies::run(root).map(|()| Outcome::Passed));
    step("clippy", &mut || component("clippy", &mut cargo_at(root, CLIPPY)));
    step("clippy panics", &mut || component("clippy", &mut cargo_at(root, CLIPPY_PANICS)));
    step("documentation", &mut || succeed(&mut cargo_at(root, DOCUMENTATION)));
    step("what tests start", &mut || succeed(&mut cargo_at(root, STARTED)));
    step("test", &mut || {
        let mut tests = cargo_at(root, TEST);
        tests.env("DIMMER_BUILT", "1");
        let (outcome, found) = test(&mut tests, &mut io::stdout())?;
        counts = found;
        outcome
    });
    step("commands", &mut || commands(root));
    step("guest", &mut || guest(root, "ci/guest.sh", &mut io::stdout()));
    step("processors", &mut || guest(root, "ci/processors.sh", &mut io::stdout()));

    println!("\n==> summary");
    for line in summary.into_iter().chain(counts.reasons.iter().map(|r| format!("SKIPPED: {r}"))) {
        println!("{line}");
    }
    println!("{counts}");
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

const FORMAT: &[&str] = &["fmt", "--all", "--check"];

const CLIPPY: &[&str] =
    &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];

/// Tests may unwrap, all else may not. Clippy's own switch for tests does not reach helper
/// functions of integration tests, so this is a second run that leaves tests out.
const CLIPPY_PANICS: &[&str] = &[
    "clippy",
    "--workspace",
    "--lib",
    "--bins",
    "--locked",
    "--",
    "-D",
    "warnings",
    "-D",
    "clippy::unwrap_used",
    "-D",
    "clippy::expect_used",
    "-D",
    "clippy::panic",
];

const DOCUMENTATION: &[&str] = &[
    "doc",
    "--workspace",
    "--no-deps",
    "--document-private-items",
    "--locked",
    "--config",
    "build.rustdocflags=['-D', 'warnings']",
];

/// What tests of other packages start, which `cargo test` does not build.
const STARTED: &[&str] = &[
    "build",
    "--locked",
    "--package",
    "dimmer-preload",
    "--package",
    "dimmer-daemon",
    "--package",
    "dimmer-runtime",
    "--lib",
    "--bins",
    "--example",
    "client",
];

const TEST: &[&str] = &["test", "--workspace", "--locked", "--no-fail-fast", "--", "--show-output"];

const HELP: &[&str] =
    &["run", "--quiet", "--locked", "--package", "dimmer-cli", "--bin", "dimmer", "--", "--help"];

fn cargo_at(root: &Path, arguments: &[&str]) -> Command {
    let mut command = cargo();
    command.args(arguments).current_dir(root);
    command
}

fn succeed(command: &mut Command) -> Result<Outcome> {
    let status = command.status().context("cannot start cargo")?;
    if !status.success() {
        bail!("cargo ended with {status}");
    }
    Ok(Outcome::Passed)
}

/// Runs a command of a part of the toolchain that may be absent, except where CI runs.
fn component(name: &str, command: &mut Command) -> Result<Outcome> {
    if has_command(name) {
        return succeed(command);
    }
    let reason = format!("cargo {name} is not installed (rustup component add clippy rustfmt)");
    if env::var_os("CI").is_some() {
        bail!(reason);
    }
    Ok(Outcome::Skipped(reason))
}

/// Runs the tests, passing on and counting what they print.
fn test(command: &mut Command, log: &mut dyn Write) -> Result<(Result<Outcome>, Counts)> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot start cargo")?;
    let mut reader = test_log::Reader::default();
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).split(b'\n') {
            let line = line.context("cannot read what the tests print")?;
            let line = String::from_utf8_lossy(&line);
            writeln!(log, "{line}")?;
            reader.line(&line);
        }
    }
    let status = child.wait().context("cannot wait for cargo")?;
    let outcome = if status.success() {
        Ok(Outcome::Passed)
    } else {
        Err(anyhow!("cargo ended with {status}"))
    };
    Ok((outcome, reader.finish()))
}

/// Runs a script that takes a machine of its own, where one can be had.
fn guest(root: &Path, script: &str, log: &mut dyn Write) -> Result<Outcome> {
    let mut command = Command::new("sh");
    command.arg(script).current_dir(root).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot start a shell")?;
    let mut skipped = None;
    for line in child.stdout.take().into_iter().flat_map(|output| BufReader::new(output).lines()) {
        let line = line.context("cannot read what the guest prints")?;
        writeln!(log, "{line}")?;
        skipped = line.strip_prefix("SKIPPED: ").map(str::to_owned).or(skipped);
    }
    let status = child.wait().context("cannot wait for the guest")?;
    if !status.success() {
        bail!("{script} ended with {status}");
    }
    Ok(skipped.map_or(Outcome::Passed, Outcome::Skipped))
}

/// Checks that README.md shows every command that `dimmer --help` lists.
fn commands(root: &Path) -> Result<Outcome> {
    let help = cargo_at(root, HELP).output().context("cannot start cargo")?;
    if !help.status.success() {
        bail!("`dimmer --help` ended with {}", help.status);
    }
    let readme = fs::read_to_string(root.join("README.md")).context("cannot read README.md")?;
    tree::none_of(&unmentioned_commands(&String::from_utf8_lossy(&help.stdout), &readme))?;
    Ok(Outcome::Passed)
}

fn unmentioned_commands(help: &str, readme: &str) -> Vec<Problem> {
    let mut commands = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.trim().is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .peekable();
    if commands.peek().is_none() {
        return vec![Problem::new("dimmer --help", "lists no commands under `Commands:`")];
    }
    commands
        .filter(|command| *command != "help" && !readme.contains(&format!("dimmer {command}")))
        .map(|command| Problem::new("README.md", format!("does not show `dimmer {command}`")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::fixture;

    /// Whether `cargo` is content with a crate that has the given `src/lib.rs`.
    fn accepts(arguments: &[&str], source: &str) -> bool {
        let crate_root = tiny_crate(source);
        tiny_cargo(crate_root.path(), arguments).output().expect("cargo").status.success()
    }

    fn tiny_cargo(crate_root: &Path, arguments: &[&str]) -> Command {
        let mut command = cargo_at(crate_root, arguments);
        command.env("CARGO_TARGET_DIR", crate_root.join("target"));
        command
    }

    fn tiny_crate(source: &str) -> tempfile::TempDir {
        fixture::tree(&format!(
            "//- Cargo.toml\n[package]\nname = \"tiny\"\nedition = \"2024\"\n[workspace]\n\
             //- Cargo.lock\nversion = 4\n[[package]]\nname = \"tiny\"\nversion = \"0.0.0\"\n\
             //- src/lib.rs\n{source}"
        ))
    }

    /// Checks that a step takes one source and refuses the other.
    #[track_caller]
    fn check(arguments: &[&str], good: &str, bad: &str) {
        let [command, ..] = arguments else { panic!("no command") };
        // `cargo doc` is part of Cargo, but knows no `--version`.
        if *command != "doc" && !has_command(command) {
            println!("SKIPPED: cargo {command} is not installed");
            return;
        }
        assert!(accepts(arguments, good), "refused {good}");
        assert!(!accepts(arguments, bad), "accepted {bad}");
    }

    #[test]
    fn format_refuses_unformatted_code() {
        check(FORMAT, "fn f() {}\n", "fn  f( ) {}\n");
    }

    #[test]
    fn clippy_refuses_warnings() {
        check(CLIPPY, "pub fn f() {}\n", "pub fn f() { return; }\n");
    }

    #[test]
    fn clippy_refuses_panics_outside_tests() {
        let function = "pub fn f(x: Option<u8>) -> u8 { x.unwrap() }\n";
        check(CLIPPY_PANICS, &format!("#[cfg(test)]\n{function}"), function);
        check(CLIPPY_PANICS, "", &function.replace("unwrap()", "expect(\"a number\")"));
    }

    #[test]
    fn documentation_refuses_links_to_nothing() {
        check(DOCUMENTATION, "//! See [`f`].\npub fn f() {}\n", "//! See [`g`].\n");
    }

    #[test]
    fn a_failed_test_fails_the_step_and_is_counted() {
        let crate_root = tiny_crate("#[test]\nfn a() {}\n#[test]\nfn b() { assert_eq!(1, 2); }\n");
        let mut command = tiny_cargo(crate_root.path(), TEST);
        let (outcome, counts) =
            test(command.stderr(Stdio::null()), &mut io::sink()).expect("cargo");
        assert!(outcome.is_err());
        assert_eq!(counts.to_string(), "1 passed, 1 failed, 0 skipped");
    }

    #[test]
    fn a_guest_that_fails_fails_the_step_and_one_that_cannot_be_had_is_skipped() {
        let run = |script: &str| {
            let tree = fixture::tree(&format!("//- ci/guest.sh\n{script}\n"));
            guest(tree.path(), "ci/guest.sh", &mut io::sink())
        };
        assert!(run("exit 3").is_err());
        assert!(matches!(run("echo fine"), Ok(Outcome::Passed)));
        let skipped = run("echo 'SKIPPED: no QEMU'");
        assert!(matches!(skipped, Ok(Outcome::Skipped(why)) if why == "no QEMU"));
    }

    #[test]
    fn refuses_a_command_that_the_readme_does_not_show() {
        let help =
            "Commands:\n  doctor  Tells\n  probe   Measures\n  help    Helps\n\nOptions:\n  -h\n";
        assert_eq!(
            unmentioned_commands(help, "Run `dimmer doctor`."),
            [Problem::new("README.md", "does not show `dimmer probe`")]
        );
        assert_eq!(
            unmentioned_commands("Usage: dimmer\n", ""),
            [Problem::new("dimmer --help", "lists no commands under `Commands:`")]
        );
    }
}
