//! `dimmer restore`: undoes changes that killed runs have left behind.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use dimmer_host::journal::{self, Journal, OfLive, Report};
use dimmer_host::root::Root;
use dimmer_observe::{places, remove_left_behind};

use crate::args::Restore;
use crate::output;

pub(crate) fn run(root: &Root, arguments: &Restore) -> anyhow::Result<ExitCode> {
    let of_live = if arguments.force { OfLive::Restore } else { OfLive::Leave };
    let report = journal::restore(root, of_live).context("cannot restore the machine")?;
    let removed = remove_left_behind(root, &places_of(root));
    let mut text = dimmer_report::restore::text(&report);
    if report.is_empty() && removed.is_empty() {
        text += "Nothing to restore: no run has left this machine changed.\n";
    }
    for directory in removed {
        text += &format!("removed {}: a killed run has left it\n", directory.display());
    }
    output::print(&text)?;
    Ok(if report.is_complete() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints what was undone at a command's end, if not all went as usual.
///
/// # Errors
/// If the machine is not as it was.
pub(crate) fn ended(undone: &Report) -> anyhow::Result<()> {
    let text = dimmer_report::restore::text(undone);
    anyhow::ensure!(undone.is_complete(), "{}", text.trim_end());
    if !undone.left.is_empty() {
        eprint!("{text}");
    }
    Ok(())
}

/// The result of a command, after what it has changed was undone.
///
/// # Errors
/// The command's, or if the machine is not as it was; of two errors, the latter is printed.
pub(crate) fn after<T>(
    result: anyhow::Result<T>,
    journal: Journal,
    what_failed: &'static str,
) -> anyhow::Result<T> {
    let ended = journal.undo().context(what_failed).and_then(|undone| ended(&undone));
    print_second(&result, &ended);
    let value = result?;
    ended.map(|()| value)
}

/// Prints that the machine is not as it was, where the error to end with is another one.
pub(crate) fn print_second<T, E>(first: &Result<T, E>, second: &anyhow::Result<()>) {
    if first.is_err()
        && let Err(error) = second
    {
        error!("error: {error:#}");
    }
}

/// The directories in which runs have theirs; for a made-up machine, only the first of these.
fn places_of(root: &Root) -> Vec<PathBuf> {
    if root.is_live() {
        return places();
    }
    // Neither the directory nor a part of its path may be a link out of the made-up machine.
    let whole = |path: &str| root.path(path).canonicalize().ok();
    let place = whole("/dev/shm").zip(whole("/"));
    place
        .filter(|(place, top)| place.starts_with(top))
        .map(|(place, _)| place)
        .into_iter()
        .collect()
}
