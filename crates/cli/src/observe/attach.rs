//! `dimmer observe --pid`: which functions of a running process to count, and for how long.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::libraries::{self, Mapped};
use dimmer_host::root::Root;
use dimmer_observe::{Attached, FunctionPlace, INTERVAL, Observed, ProbePoint};
use dimmer_processor::class::InstructionClass;
use dimmer_scan::Code;

use crate::bad_input;

/// More counters than this are not opened: each is a file and a breakpoint.
const MOST_COUNTERS: usize = 4096;

/// Counts in the process until it ends, the deadline or Ctrl-C; and the time that it had on CPUs.
pub(super) fn observe(
    root: &Root,
    process: u32,
    classes: &[InstructionClass],
    deadline: Option<Instant>,
    interrupt: &Interrupt,
) -> anyhow::Result<(Observed, Duration)> {
    let files = libraries::mapped(root, process)
        .map_err(|error| bad_input(format!("no process {process} of this user: {error}")))?;
    let points: Vec<ProbePoint> =
        files.iter().flat_map(|file| points(file, classes).unwrap_or_default()).collect();
    let threads = threads(root, process).context("cannot list the process's threads")?;
    let counters = points.len() * threads.len();
    if counters > MOST_COUNTERS {
        return Err(bad_input(format!(
            "{counters} counters are needed, for {} functions in {} threads, and at most {MOST_COUNTERS} can \\
             be had; choose fewer --classes",
            points.len(),
            threads.len()
        )));
    }
    let before = on_cpu(root, process);
    let attached = Attached::new(root, process, &threads, &points)?;
    let mut last = before;
    while !interrupt.is_set() && deadline.is_none_or(|deadline| Instant::now() < deadline) {
        // A process that has ended has no threads.
        match on_cpu(root, process) {
            Some(now) => last = Some(now),
            None => break,
        }
        std::thread::sleep(INTERVAL);
    }
    let on_cpu = last.unwrap_or_default().saturating_sub(before.unwrap_or_default());
    Ok((attached.finish(), on_cpu))
}

/// Where calls of a file's functions of these classes can be counted; nothing of a file that cannot be
/// scanned.
fn points(file: &Mapped, classes: &[InstructionClass]) -> Option<Vec<ProbePoint>> {
    let bytes = std::fs::read(&file.file).ok()?;
    let scan = dimmer_scan::scan(&bytes).ok()?;
    // The C library's memory and string functions are everywhere.
    if scan.soname.as_deref().is_some_and(|soname| soname.starts_with("libc.")) {
        return None;
    }
    let code = Code::read(&bytes).ok()?;
    let wanted: BTreeSet<InstructionClass> = classes.iter().copied().collect();
    let wide = scan
        .functions
        .iter()
        .filter(|function| wanted.iter().any(|class| function.instructions.of(*class) > 0));
    let point = |function: &dimmer_scan::Function| {
        Some(ProbePoint {
            function: FunctionPlace {
                file: PathBuf::from(&file.path),
                address: function.addresses.start,
            },
            file: file.file.clone(),
            offset: code.file_offset(code.probe_point(&function.addresses))?,
        })
    };
    Some(wide.filter_map(point).collect())
}

fn threads(root: &Root, process: u32) -> anyhow::Result<Vec<u32>> {
    let names = root.list(&format!("/proc/{process}/task"))?;
    Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
}

/// The time that the process's threads had on CPUs; `None` if it has ended.
fn on_cpu(root: &Root, process: u32) -> Option<Duration> {
    let threads = threads(root, process).ok().filter(|threads| !threads.is_empty())?;
    let time = |thread: &u32| -> Option<u64> {
        let text = root.text(&format!("/proc/{process}/task/{thread}/schedstat")).ok()?;
        text.split_whitespace().next()?.parse().ok()
    };
    Some(Duration::from_nanos(threads.iter().filter_map(time).sum()))
}
