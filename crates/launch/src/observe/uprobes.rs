//! `dimmer observe --pid` and `--via uprobes`: chooses the functions to count from outside, and
//! counts them.

use std::collections::BTreeSet;
use std::path::Path;
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
use dimmer_scan::Code;

use super::{Options, Seen};
use crate::LaunchError;
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
    let files =
        libraries::mapped(root, process).map_err(|why| LaunchError::NoProcess { process, why })?;
    let points: Vec<ProbePoint> = files
        .iter()
        .flat_map(|one| points(Path::new(&one.path), &one.file, classes).unwrap_or_default())
        .collect();
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
    let observed = attached.finish();
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
    let files = loaded.iter().filter_map(|loaded| loaded.file.canonicalize().ok());
    let points: Vec<ProbePoint> =
        files.flat_map(|file| points(&file, &file, options.classes).unwrap_or_default()).collect();
    check(&points, 1)?;
    let refused = |why| LaunchError::CannotRun { file: program.file.clone(), why };
    let before = Usage::of_ended_children();
    let relay = Relay::begin().map_err(LaunchError::Signals)?;
    let held =
        Held::start(relay.command(&program.command(words), &program.name)).map_err(refused)?;
    let mut attached = Attached::new(root, held.process(), points)?;
    relay.started(held.process());
    let mut child = held.let_go().map_err(refused)?;
    let look = || {
        attached.look();
        INTERVAL
    };
    let status = follow(&mut child, options.deadline(), &relay, look)?;
    drop(relay);
    let usage = Usage::of_ended_children().since(before);
    let observed = attached.finish();
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

/// The places where calls of a file's functions of these classes can be counted; `None` if the file
/// cannot be scanned. The file is named `path`, and can be read at `file`.
fn points(path: &Path, file: &Path, classes: &[InstructionClass]) -> Option<Vec<ProbePoint>> {
    let bytes = files::read(file).ok()?;
    let scan = dimmer_scan::scan(&bytes).ok()?;
    // The C library's memory and string functions are called everywhere.
    if scan.soname.as_deref().is_some_and(|soname| soname.starts_with("libc.")) {
        return None;
    }
    let code = Code::read(&bytes).ok()?;
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
    Some(wide.flat_map(of_function).chain(leaders).collect())
}
