//! `dimmer bench`: what Dimmer itself costs, and what it brings.

mod daemon;
mod hook;
mod moves;
mod nginx;
mod offload;
mod primesieve;
mod program;
mod server;
mod ways;

use std::process::ExitCode;

use dimmer_bench::moves::Way;
use dimmer_bench::pairs;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::root::Root;
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
