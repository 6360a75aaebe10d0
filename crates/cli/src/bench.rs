//! `dimmer bench`: what Dimmer itself costs, and what it brings.

mod daemon;
mod hook;
mod moves;
mod nginx;
mod offload;
mod primesieve;
mod program;
mod server;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use dimmer_bench::moves::Way;
use dimmer_bench::pairs;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::root::Root;
use dimmer_processor::units::CpuId;
use indicatif::{ProgressBar, ProgressStyle};

use crate::report::number::{grouped, percent};

use crate::args::Bench;

pub(crate) fn run(root: &Root, arguments: &Bench) -> anyhow::Result<ExitCode> {
    match arguments {
        Bench::Hook(arguments) => hook::run(arguments),
        Bench::Handoff(arguments) => moves::run(root, arguments, Way::Offload),
        Bench::Borrow(arguments) => moves::run(root, arguments, Way::Borrow),
        Bench::Offload(arguments) => offload::run(root, arguments),
        Bench::Migrate(arguments) => moves::run(root, arguments, Way::Migrate),
        Bench::Region(arguments) => moves::region(arguments),
        Bench::Primesieve(arguments) => primesieve::run(root, arguments),
        Bench::Nginx(arguments) => nginx::run(root, arguments),
        Bench::Program(arguments) => program::run(arguments),
        Bench::Daemon(arguments) => daemon::run(root, arguments),
        Bench::Server(arguments) => server::run(root, arguments),
    }
}

/// The ways, by their place in results. The last is taken if it is asked for.
const PLAIN: usize = 0;
const OBSERVE: usize = 1;
const NARROW: usize = 2;
const BORROW: usize = 3;
const NAMES: [&str; 4] = ["plain", "observe", "narrow", "borrow"];

/// An error, or that the user has interrupted: the exit status says so then, as a shell expects.
fn end(error: anyhow::Error, interrupt: &Interrupt, what: &str) -> anyhow::Result<ExitCode> {
    match interrupt.exit_status() {
        Some(status) => {
            eprintln!("Interrupted; {what}.");
            Ok(ExitCode::from(status))
        }
        None => Err(error),
    }
}

/// What each way puts before the program's own command; the last one, if functions are given whose calls are moved, with what else
/// moving takes.
fn prefixes(
    observed: &Path,
    borrow: &[String],
    borrow_from: &[String],
    borrow_to: Option<CpuId>,
) -> anyhow::Result<Vec<Vec<OsString>>> {
    let own: PathBuf = std::env::current_exe().context("cannot find this program's own file")?;
    let with = |arguments: &[&str]| -> Vec<OsString> {
        let arguments = arguments.iter().map(OsString::from);
        std::iter::once(own.clone().into_os_string()).chain(arguments).collect()
    };
    let mut observe = with(&["observe", "--json"]);
    observe.extend([observed.as_os_str().to_owned(), "--".into()]);
    let mut prefixes = vec![Vec::new(), observe, with(&["run", "--mechanism", "narrow", "--"])];
    if !borrow.is_empty() {
        let mut moved: Vec<OsString> = borrow_from.iter().map(OsString::from).collect();
        moved.extend(with(&["run", "--mechanism", "borrow", "--hook", &borrow.join(",")]));
        if let Some(cpu) = borrow_to {
            moved.extend(["--cores".into(), cpu.to_string().into()]);
        }
        moved.push("--".into());
        prefixes.push(moved);
    }
    Ok(prefixes)
}

/// A number with its sign, also a positive one's.
fn signed(value: f64) -> String {
    let number = grouped(value, 1);
    if value > 0.0 { format!("+{number}") } else { number }
}

/// How far intervals of so many rounds can be relied on, where that needs a word.
fn ratio_of_rounds(rounds: usize) -> String {
    if rounds >= pairs::ENOUGH {
        return String::new();
    }
    let holds = percent(pairs::range_holds_median_ratio(rounds));
    format!(
        "Intervals of {rounds} rounds are their range, which holds the true median in {holds} of cases.\n"
    )
}

fn progress(turns: u64) -> ProgressBar {
    let bar = ProgressBar::new(turns);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {elapsed}  {msg}");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar
}
