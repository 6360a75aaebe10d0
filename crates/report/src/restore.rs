//! The changes of the machine that were undone, and those that were not, as text.

use std::fmt::Write as _;

use dimmer_host::journal::Report;

/// One line for each change.
pub fn text(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    for change in &report.restored {
        let _ = writeln!(text, "restored {}: {} -> {}", change.path, change.from, change.to);
    }
    for change in &report.left {
        let _ = writeln!(
            text,
            "left {} at {}: it was changed since (it was {} before the run)",
            change.path, change.found, change.before
        );
    }
    for change in &report.failed {
        let _ = writeln!(text, "cannot set {} to {}: {}", change.path, change.wanted, change.why);
    }
    for run in &report.live {
        let _ = writeln!(
            text,
            "left the changes of process {}, which is still running ({}); --force undoes them",
            run.process, run.journal
        );
    }
    for damaged in &report.damaged {
        let _ = writeln!(text, "left {} where it is: {}", damaged.journal, damaged.why);
    }
    text
}
