//! `dimmer observe --pid` and `--via uprobes`: chooses the functions to count from outside, and
//! counts them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dimmer_host::held::Held;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::process::{self, Thread};
use dimmer_host::relay::Relay;
use dimmer_host::root::Root;
use dimmer_host::usage::Usage;
use dimmer_host::{libraries, program as files};
use dimmer_observe::{Attached, FunctionPlace, INTERVAL, MOST_COUNTERS, ProbePoint};
use dimmer_policy::phases::Graph;
use dimmer_processor::class::InstructionClass;
use dimmer_scan::{Code, ScanError};

use super::{Options, Seen};
use crate::LaunchError;
use crate::error::chain;
use crate::follow::{end_of, follow, wait};
use crate::program::{self, Program};

/// Counts calls in a running process until it ends, until `after` has passed, or until the user
/// interrupts.
///
/// # Errors
/// [`LaunchError`]: there is no such process, or its calls cannot be counted.
pub fn attach(
    root: &Root,
    process: u32,
    classes: &[InstructionClass],
    after: Option<Duration>,
) -> Result<Seen, LaunchError> {
    let (files, deleted) = libraries::mapped_and_deleted(root, process)
        .map_err(|why| LaunchError::NoProcess { process, why })?;
    let files = files.iter().map(|one| (Path::new(&one.path), &*one.file));
    let (points, mut unseen) = all_points(files, classes);
    let is_gone = |path| format!("{path}: deleted since the process loaded it: {UNCOUNTED}");
    unseen.extend(deleted.into_iter().map(is_gone));
    check(&points, process::family(root, process).len())?;
    let mut attached = Attached::new(root, process, points)?;
    let before = process::on_cpu(root, process);
    let mut on_cpu = before.clone();
    let ended = end_of(process);
    let interrupt = Interrupt::install().map_err(LaunchError::Interrupt)?;
    let deadline = after.map(|after| Instant::now() + after);
    let is_over = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
    while !interrupt.is_set() && !is_over() {
        let now = process::on_cpu(root, process);
        if now.is_empty() || wait(ended.as_ref()) {
            break;
        }
        on_cpu.extend(now);
        attached.look();
    }
    let since = |(thread, time): (&Thread, &Duration)| {
        time.saturating_sub(before.get(thread).copied().unwrap_or_default())
    };
    let usage = Usage { on_cpu: on_cpu.iter().map(since).sum(), ..Usage::default() };
    let command = vec![format!("process {process}")];
    let mut observed = attached.finish();
    observed.unreadable.extend(unseen);
    Ok(Seen {
        command,
        status: None,
        usage,
        observed,
        graph: Ok(Graph::default()),
        choice: None,
        plans: None,
    })
}

/// Starts a program and counts calls in it and its children until it ends.
///
/// # Errors
/// [`LaunchError`]: there is no such program, or its calls cannot be counted.
pub fn start(root: &Root, options: &Options<'_>) -> Result<Seen, LaunchError> {
    let words = options.command;
    let program = Program::find(words)?;
    let loaded = program.loaded();
    let files: Vec<PathBuf> =
        loaded.iter().filter_map(|loaded| loaded.file.canonicalize().ok()).collect();
    let files = files.iter().map(|file| (&**file, &**file));
    let (points, unseen) = all_points(files, options.classes);
    check(&points, 1)?;
    let refused = |why| LaunchError::CannotRun { file: program.file.clone(), why };
    let before = Usage::of_ended_children();
    let relay = Relay::begin().map_err(LaunchError::Signals)?;
    let held =
        Held::start(relay.command(&program.command(words), &program.name)).map_err(refused)?;
    let mut attached = Attached::new(root, held.process(), points)?;
    relay.started(held.process());
    let mut child = held.let_go().map_err(refused)?;
    let look = |_| {
        attached.look();
        INTERVAL
    };
    let status = follow(&mut child, options.deadline(), &relay, look)?;
    drop(relay);
    let usage = Usage::of_ended_children().since(before);
    let mut observed = attached.finish();
    observed.unreadable.extend(unseen);
    let command = program::shown(words);
    let (status, graph) = (Some(status), Ok(Graph::default()));
    Ok(Seen { command, status, usage, observed, graph, choice: None, plans: None })
}

/// Checks that this number of counters is possible.
fn check(points: &[ProbePoint], threads: usize) -> Result<(), LaunchError> {
    let (functions, counters) = (points.len(), points.len() * threads);
    if counters > MOST_COUNTERS {
        return Err(LaunchError::Counters { counters, functions, threads });
    }
    Ok(())
}

/// The end of a message about a file that was left out.
const UNCOUNTED: &str = "its calls were not counted";

/// The places where calls of the functions of these classes can be counted, in files that are each
/// named by the first path, and can be read at the second; and which files cannot be scanned.
fn all_points<'a>(
    files: impl Iterator<Item = (&'a Path, &'a Path)>,
    classes: &[InstructionClass],
) -> (Vec<ProbePoint>, Vec<String>) {
    let (mut all, mut unseen) = (Vec::new(), Vec::new());
    for (path, file) in files {
        match points(path, file, classes) {
            Ok(points) => all.extend(points),
            Err(why) => unseen.push(format!("{}: {why}: {UNCOUNTED}", path.display())),
        }
    }
    (all, unseen)
}

/// As [`all_points`], in one file; or why it cannot be scanned.
fn points(
    path: &Path,
    file: &Path,
    classes: &[InstructionClass],
) -> Result<Vec<ProbePoint>, String> {
    let bytes = files::read(file).map_err(|error| chain(&error))?;
    let scan = match dimmer_scan::scan(&bytes) {
        // Some programs generate code into files, which have no functions to count.
        Err(ScanError::NotElf { .. }) => return Ok(Vec::new()),
        scan => scan.map_err(|error| chain(&error))?,
    };
    // The C library's memory and string functions are called everywhere.
    if scan.soname.as_deref().is_some_and(|soname| soname.starts_with("libc.")) {
        return Ok(Vec::new());
    }
    let code = Code::read(&bytes).map_err(|error| chain(&error))?;
    let wanted: BTreeSet<InstructionClass> = classes.iter().copied().collect();
    let wide = scan
        .functions
        .iter()
        .filter(|function| wanted.iter().any(|class| function.instructions.of(*class) > 0));
    let asked: BTreeSet<u64> = wide.clone().map(|function| function.addresses.start).collect();
    let point = |function: &dimmer_scan::Function, entry: u64| {
        Some(ProbePoint {
            function: FunctionPlace { file: path.into(), address: entry },
            file: file.to_owned(),
            offset: code.file_offset(code.probe_point(&function.addresses, entry)?)?,
        })
    };
    let of_start = |function: &dimmer_scan::Function| point(function, function.addresses.start);
    let of_function = |function: &dimmer_scan::Function| -> Vec<ProbePoint> {
        let start = function.addresses.start;
        let inner = function.entries.iter().filter(|entry| entry.hook.is_ok());
        let inner = inner.map(|entry| start + u64::from(entry.offset));
        let entries = [start].into_iter().chain(inner);
        let mut points: Vec<ProbePoint> =
            entries.filter_map(|entry| point(function, entry)).collect();
        // Two entries may lead to the same place.
        points.dedup_by_key(|point| point.offset);
        points
    };
    // A function may lead into several others.
    let leaders = wide.clone().flat_map(dimmer_scan::Function::hookable_leaders);
    let leaders: BTreeSet<u64> =
        leaders.map(|(start, _)| start).filter(|start| !asked.contains(start)).collect();
    let leaders = leaders.into_iter().filter_map(|start| scan.at(start)).flat_map(of_start);
    Ok(wide.flat_map(of_function).chain(leaders).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_cannot_be_scanned_are_told_unless_they_hold_no_code_of_a_linker() {
        let directory = tempfile::tempdir().unwrap();
        let paths = ["generated", "truncated", "missing"].map(|name| directory.path().join(name));
        std::fs::write(&paths[0], [0x90; 100]).unwrap();
        std::fs::write(&paths[1], b"\x7fELF").unwrap();
        let files = paths.iter().map(|path| (&**path, &**path));
        let (points, unseen) = all_points(files, &InstructionClass::ALL);
        assert_eq!(points, []);
        assert_eq!(unseen.len(), 2, "{unseen:?}");
        for (why, path) in unseen.iter().zip(&paths[1..]) {
            assert!(why.starts_with(path.to_str().unwrap()) && why.ends_with(UNCOUNTED), "{why}");
        }
    }
}
