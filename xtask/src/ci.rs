//! Everything a change must pass, in one command with one summary.
//!
//! All steps run even if one fails, so that one run shows everything that must be fixed.

use std::collections::VecDeque;
use std::env;
use std::io::{self, BufRead as _, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};

use crate::dependencies::{self, cargo, has_command};
use crate::test_log::{self, Counts};
use crate::tidy::{self, links::title};
use crate::tree::{self, Problem, TextFile};

/// How a step ended. A step that failed is an error instead.
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
                let error = format!("{error:#}");
                eprintln!("error: {error}");
                failed.push(format!("{name}: {error}"));
                "FAILED".to_owned()
            }
        };
        summary.push(format!("{name:<14}{:>6.1} s  {word}", start.elapsed().as_secs_f64()));
    };
    step("format", &mut || component("fmt", &mut cargo_at(root, FORMAT)));
    step("tidy", &mut || tidy::run(root).map(|()| Outcome::Passed));
    step("dependencies", &mut || dependencies::run(root, "").map(|()| Outcome::Passed));
    step("clippy", &mut || component("clippy", &mut cargo_at(root, CLIPPY)));
    step("clippy panics", &mut || component("clippy", &mut cargo_at(root, CLIPPY_PANICS)));
    step("documentation", &mut || succeed(&mut cargo_at(root, DOCUMENTATION)));
    step("what tests start", &mut || succeed(&mut cargo_at(root, STARTED)));
    step("test", &mut || {
        // Apart, so that no time of the compiler is silence of a test.
        succeed(&mut cargo_at(root, TEST_BUILD))?;
        let mut tests = cargo_at(root, TEST);
        tests.env("DIMMER_BUILT", "1");
        let (outcome, found) = test(&mut tests, SILENCE, &mut io::stdout())?;
        counts = found;
        outcome
    });
    step("commands", &mut || commands(root).map(|_| Outcome::Passed));
    step("book", &mut || match book(root) {
        // Without a network or Python there is no mdBook.
        Err(error) if env::var_os("CI").is_none() => Ok(Outcome::Skipped(format!("{error:#}"))),
        outcome => outcome.map(|()| Outcome::Passed),
    });
    let mut failures = std::mem::take(&mut counts.failures);
    let mut step_of_guest = |name: &'static str, script: &str| {
        step(name, &mut || {
            let (outcome, found) = guest(root, script, &mut io::stdout())?;
            failures.extend(found.failures);
            outcome
        });
    };
    step_of_guest("guest", "ci/guest.sh");
    step_of_guest("processors", "ci/processors.sh");
    step_of_guest("metrics", "ci/check-metrics.sh");
    step_of_guest("python", "ci/python.sh");
    step_of_guest("packages", "ci/built-packages.sh");

    println!("\n==> summary");
    for line in summary.into_iter().chain(counts.reasons.iter().map(|r| format!("SKIPPED: {r}"))) {
        println!("{line}");
    }
    println!("not part of this: make test-kernel (builds a Linux), make torture");
    // Once more at the end: a reader looks there first, and logs keep their end.
    for failure in &failures {
        println!("\n==> failed: {failure}");
    }
    println!("{counts}");
    if !failed.is_empty() {
        bail!("failed:\n{}", failed.join("\n"));
    }
    Ok(())
}

const FORMAT: &[&str] = &["fmt", "--all", "--check"];

const CLIPPY: &[&str] =
    &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];

/// Tests may unwrap; other code may not. Clippy's own switch for tests does not cover helper
/// functions of integration tests, so this is a second run without tests.
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

/// What tests of other packages start. `cargo test` does not build it.
const STARTED: &[&str] = &[
    "build",
    "--locked",
    "--package",
    "dimmer-preload",
    "--package",
    "dimmer-boost",
    "--package",
    "dimmer-daemon",
    "--package",
    "dimmer-runtime",
    "--lib",
    "--bins",
    "--example",
    "client",
];

const TEST_BUILD: &[&str] = &["test", "--workspace", "--locked", "--no-run"];

const TEST: &[&str] = &["test", "--workspace", "--locked", "--no-fail-fast", "--", "--show-output"];

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

/// Runs a command of a part of the toolchain that may be absent, except on CI.
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

/// A test that hangs is killed once no test has printed a line for this long. The longest one takes
/// ten minutes, alone at last, and twice that on a busy machine.
const SILENCE: Duration = Duration::from_secs(25 * 60);

/// Runs the tests. Passes on what they print, and counts it. A test binary that prints nothing for
/// `silence` is killed; the other ones run.
fn test(
    command: &mut Command,
    silence: Duration,
    log: &mut dyn Write,
) -> Result<(Result<Outcome>, Counts)> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot start cargo")?;
    let output = child.stdout.take().context("cannot read what the tests print")?;
    let (lines, printed) = mpsc::channel();
    thread::spawn(move || {
        let _ = BufReader::new(output).split(b'\n').try_for_each(|line| lines.send(line));
    });
    let mut reader = test_log::Reader::default();
    loop {
        match printed.recv_timeout(silence) {
            Ok(line) => {
                let line = line.context("cannot read what the tests print")?;
                let line = String::from_utf8_lossy(&line);
                writeln!(log, "{line}")?;
                reader.line(&line);
            }
            Err(RecvTimeoutError::Disconnected) => break,
            // What a test has started may hold the pipe open.
            Err(RecvTimeoutError::Timeout) if child.try_wait()?.is_some() => break,
            Err(RecvTimeoutError::Timeout) => {
                writeln!(log, "error: no test has printed anything for {silence:?}; killing them")?;
                reader.killed();
                kill_descendants(child.id())?;
            }
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

/// Kills what a process has started, and what that has, first those at the top: they do not see how
/// the others end.
fn kill_descendants(process: u32) -> Result<()> {
    for descendant in descendants(process)? {
        // One that has ended meanwhile is none any more.
        let mut kill = Command::new("kill");
        let _ = kill.arg("-KILL").arg(descendant.to_string()).stderr(Stdio::null()).status();
    }
    Ok(())
}

fn descendants(process: u32) -> Result<Vec<u32>> {
    let listed = Command::new("pgrep").arg("-P").arg(process.to_string()).output();
    let listed = listed.context("cannot start pgrep")?.stdout;
    let mut all = Vec::new();
    for child in String::from_utf8_lossy(&listed).lines().filter_map(|child| child.parse().ok()) {
        all.push(child);
        all.extend(descendants(child)?);
    }
    Ok(all)
}

/// The number of last lines that are shown once more of a script that failed: enough to see in
/// which part it was.
const LAST_LINES: usize = 20;

/// Runs a script that needs a machine or a Python of its own, if one is available. Passes on what
/// it prints, and reads the tests in it.
fn guest(root: &Path, script: &str, log: &mut dyn Write) -> Result<(Result<Outcome>, Counts)> {
    let mut command = Command::new("sh");
    command.arg(script).current_dir(root).env("DIMMER_BUILT", "1").stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot start a shell")?;
    let mut skipped = None;
    let mut last = VecDeque::new();
    let mut reader = test_log::Reader::default();
    for line in child.stdout.take().into_iter().flat_map(|output| BufReader::new(output).lines()) {
        let line = line.context("cannot read what the guest prints")?;
        writeln!(log, "{line}")?;
        reader.line(&line);
        skipped = line.strip_prefix("SKIPPED: ").map(str::to_owned).or(skipped);
        if last.len() == LAST_LINES {
            last.pop_front();
        }
        last.push_back(line);
    }
    let status = child.wait().context("cannot wait for the guest")?;
    let outcome = if status.success() {
        Ok(skipped.map_or(Outcome::Passed, Outcome::Skipped))
    } else {
        let last = last.make_contiguous().join("\n");
        Err(anyhow!("{script} ended with {status}; it printed at last:\n{last}"))
    };
    Ok((outcome, reader.finish()))
}

/// The directory of what the steps before have built.
fn built(root: &Path) -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    root.join(target).join("debug")
}

/// Builds the book.
///
/// # Errors
/// As of [`book::run`](crate::book::run), and when `dimmer` is not built.
pub(crate) fn book(root: &Path) -> Result<()> {
    let target = built(root).parent().map_or_else(|| root.join("target"), Path::to_owned);
    crate::book::run(root, &target, &commands(root)?)
}

/// Checks that README.md shows every command that `dimmer --help` lists, that each has a page, and
/// that the documents show every command below these. Returns the help of all, in alphabetical
/// order.
fn commands(root: &Path) -> Result<Vec<(String, String)>> {
    let help = |command: &str| -> Result<String> {
        let asked = command.split_whitespace().chain(["--help"]);
        let dimmer = built(root).join("dimmer");
        let help = Command::new(&dimmer).args(asked).output();
        let help = help.with_context(|| format!("cannot start {}", dimmer.display()))?;
        if !help.status.success() {
            bail!("`dimmer {command} --help` ended with {}", help.status);
        }
        Ok(String::from_utf8_lossy(&help.stdout).into_owned())
    };
    let all = tree::documents(root)?;
    let (readme, others): (Vec<_>, Vec<_>) = all.iter().partition(|one| one.path == "README.md");
    let pages: Vec<&TextFile> =
        others.into_iter().filter(|one| one.path.starts_with("docs/")).collect();
    let joined = |files: &[&TextFile]| files.iter().map(|file| &*file.text).collect::<String>();
    let documents = joined(&readme) + &joined(&pages);
    let mut below = listed_commands(&help("")?);
    if below.is_empty() {
        bail!("`dimmer --help` lists no commands under `Commands:`");
    }
    let mut problems = unmentioned_commands(&below, "README.md", &joined(&readme));
    problems.extend(commands_without_page(&below, &pages));
    let mut found = Vec::new();
    while let Some(command) = below.pop() {
        let text = help(&command)?;
        let own = listed_commands(&text);
        let own: Vec<String> = own.into_iter().map(|one| format!("{command} {one}")).collect();
        problems.extend(unmentioned_commands(&own, "docs/", &documents));
        below.extend(own);
        found.push((command, text));
    }
    tree::none_of(&problems)?;
    found.sort_unstable();
    Ok(found)
}

/// A command's page starts with its name.
fn commands_without_page(commands: &[String], pages: &[&TextFile]) -> Vec<Problem> {
    let has_page = |command: &str| {
        let start = format!("`dimmer {command}`");
        pages.iter().any(|page| title(&page.text).is_some_and(|title| title.starts_with(&start)))
    };
    let missing = commands.iter().filter(|command| !has_page(command));
    let problem =
        |command| Problem::new("docs/", format!("no page has the title `dimmer {command}`"));
    missing.map(problem).collect()
}

/// The commands that a help text lists.
fn listed_commands(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = lines.take_while(|line| !line.trim().is_empty());
    // A line that goes on with the description of a command is indented further.
    let commands = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let commands = commands.filter(|command| !command.is_empty() && *command != "help");
    commands.map(str::to_owned).collect()
}

fn unmentioned_commands(commands: &[String], place: &str, text: &str) -> Vec<Problem> {
    let missing = commands.iter().filter(|command| !text.contains(&format!("dimmer {command}")));
    missing.map(|one| Problem::new(place, format!("does not show `dimmer {one}`"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::fixture;

    /// Whether `cargo` accepts a crate with the given `src/lib.rs`.
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

    /// Checks that a step accepts one source and refuses the other.
    #[track_caller]
    fn check(arguments: &[&str], good: &str, bad: &str) {
        let [command, ..] = arguments else { panic!("no command") };
        // `cargo doc` is part of Cargo, but has no `--version`.
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
            test(command.stderr(Stdio::null()), SILENCE, &mut io::sink()).expect("cargo");
        assert!(outcome.is_err());
        assert_eq!(counts.to_string(), "1 passed, 1 failed, 0 skipped");
    }

    #[test]
    fn a_test_that_hangs_is_killed_with_what_it_has_started_and_the_step_fails() {
        let hangs = "#[test]\nfn a() {\n    let sleep = std::process::Command::new(\"sleep\")\
                     .arg(\"1000\").status();\n    sleep.unwrap();\n}\n";
        let crate_root = tiny_crate(hangs);
        let mut build = tiny_cargo(crate_root.path(), TEST_BUILD);
        assert!(build.stderr(Stdio::null()).status().expect("cargo").success());
        let mut command = tiny_cargo(crate_root.path(), TEST);
        let silence = Duration::from_secs(5);
        let (outcome, counts) =
            test(command.stderr(Stdio::null()), silence, &mut io::sink()).expect("cargo");
        assert!(outcome.is_err());
        assert_eq!(counts.failed, 1);
    }

    #[test]
    fn a_guest_that_fails_fails_the_step_and_one_that_cannot_be_had_is_skipped() {
        let run = |script: &str| {
            let tree = fixture::tree(&format!("//- ci/guest.sh\n{script}\n"));
            guest(tree.path(), "ci/guest.sh", &mut io::sink()).expect("a shell").0
        };
        let error = run("seq 30; exit 3").err().expect("an error").to_string();
        assert!(error.contains("\n11\n") && error.ends_with("\n30"), "{error}");
        assert!(!error.contains("\n10\n"), "{error}");
        assert!(matches!(run("echo fine"), Ok(Outcome::Passed)));
        let skipped = run("echo 'SKIPPED: no QEMU'");
        assert!(matches!(skipped, Ok(Outcome::Skipped(why)) if why == "no QEMU"));
    }

    #[test]
    fn refuses_a_command_that_the_documents_do_not_show() {
        let help = "Commands:\n  doctor  Tells\n          more\n  probe   Measures\n  \
                    help    Helps\n\nOptions:\n  -h\n";
        let commands = listed_commands(help);
        assert_eq!(commands, ["doctor", "probe"]);
        assert_eq!(
            unmentioned_commands(&commands, "README.md", "Run `dimmer doctor`."),
            [Problem::new("README.md", "does not show `dimmer probe`")]
        );
        let page = |text: &str| TextFile { path: "docs/a.md".to_owned(), text: text.to_owned() };
        let pages = [page("# `dimmer probe`: what\n"), page("Text\n`dimmer doctor`\n")];
        assert_eq!(
            commands_without_page(&commands, &pages.iter().collect::<Vec<_>>()),
            [Problem::new("docs/", "no page has the title `dimmer doctor`")]
        );
        assert!(listed_commands("Usage: dimmer\n").is_empty());
    }
}
