//! The changes of the machine that were undone, and those that were not, as text.

use std::fmt::Write as _;

use dimmer_host::journal::Report;

/// One line for each change.
pub fn text(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    for change in &report.restored {
        let (from, to) = (value(&change.from), value(&change.to));
        let _ = writeln!(text, "restored {}: {from} -> {to}", change.path);
    }
    for change in &report.left {
        let _ = writeln!(
            text,
            "left {} at {}: {} (it was {} before the run)",
            change.path,
            value(&change.found),
            change.why.as_deref().unwrap_or("it was changed since"),
            value(&change.before)
        );
    }
    for change in &report.failed {
        let wanted = value(&change.wanted);
        let _ = writeln!(text, "cannot set {} to {wanted}: {}", change.path, change.why);
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

/// What a file holds, or should hold.
fn value(text: &str) -> &str {
    if text.is_empty() { "(empty)" } else { text }
}

#[cfg(test)]
mod tests {
    use dimmer_host::journal::Left;

    use super::*;

    #[test]
    fn what_was_left_has_its_reason() {
        let left = |why: Option<&str>| {
            let [path, before, found] = ["/sys/x", "0x0", "0x3"].map(str::to_owned);
            Left { path, before, found, why: why.map(str::to_owned) }
        };
        let report = Report { left: vec![left(None), left(Some("in use"))], ..Report::default() };
        let expected = "left /sys/x at 0x3: it was changed since (it was 0x0 before the run)\n\
                        left /sys/x at 0x3: in use (it was 0x0 before the run)\n";
        assert_eq!(text(&report), expected);
    }
}
