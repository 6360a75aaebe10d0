//! `dimmer observe --marks`: the graph of what runs between marks.

use std::os::unix::process::ExitStatusExt as _;

use dimmer_host::root::Root;
use dimmer_host::user_counters::UserCounters;
use dimmer_launch::observe::{Marks, Seen};

use crate::args::Observe;
use crate::bad_input;
use crate::output::Output;

/// The value of `--marks` by which Dimmer chooses the marks. No function in C or C++ has this name.
const AUTO: &str = "auto";

/// Which functions are marks, if any are.
///
/// # Errors
/// If functions are both named and to be chosen.
pub(super) fn of(arguments: &Observe) -> anyhow::Result<Option<Marks<'_>>> {
    match &arguments.marks[..] {
        [] => Ok(None),
        [one] if one == AUTO => Ok(Some(Marks::Chosen)),
        names if names.iter().any(|name| name == AUTO) => Err(bad_input(
            "--marks: `auto` chooses all marks: expected either `auto` alone, or names of functions",
        )),
        names => Ok(Some(Marks::Named(names))),
    }
}

/// Where the graph goes, if there are marks.
///
/// # Errors
/// If the file cannot be written, or the JSON goes to standard output as well.
pub(super) fn output(arguments: &Observe) -> anyhow::Result<Option<Output>> {
    if arguments.marks.is_empty() {
        return Ok(None);
    }
    let is_json = arguments.json.json.as_deref().is_some_and(|file| file.as_os_str() == "-");
    if is_json && arguments.graph.is_none() {
        return Err(bad_input(
            "the graph and the JSON both go to standard output: expected --graph FILE or --json=FILE",
        ));
    }
    let standard = "-".as_ref();
    Output::open(arguments.graph.as_deref().unwrap_or(standard)).map(Some)
}

/// Writes the graph, and says what is not in it.
///
/// # Errors
/// If it cannot be written, or the program has damaged it.
pub(super) fn write(to: Output, root: &Root, seen: &Seen) -> anyhow::Result<()> {
    let graph = seen.graph.as_ref().map_err(|why| anyhow::anyhow!("the graph: {why}"))?;
    if graph.edges().next().is_none() {
        eprintln!("dimmer: no thread passed two marks, or none of their processes wrote its graph");
    } else if let Err(missing) = UserCounters::open(root) {
        eprintln!(
            "dimmer: marks were measured by calls and time alone, without instructions, cycles, L2 \
             latency and L3 misses: {}",
            missing.why
        );
    }
    if let Some(signal) = seen.status.and_then(|status| status.signal()) {
        eprintln!("dimmer: signal {signal} ended the program: what that process measured is lost");
    }
    to.write(&graph.to_text())
}
