//! Functions whose entries are marks in an unmodified program (paper 004).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use dimmer_hook::PlannedEntry;
use dimmer_host::bounded_file;
use dimmer_observe::{FunctionPlace, Observed};
use dimmer_policy::phases::{Choice, Choosing, Graph, Mark};
use dimmer_processor::units::Nanos;

use crate::LaunchError;
use crate::named::{self, Candidates, Planned, Plans, Wanted};
use crate::program::Program;

/// The longest graph that is read (bytes): some hundred thousand edges.
const LONGEST_GRAPH: u64 = 1 << 26;

/// The most functions of which marks are chosen. A guess: hooking one takes some microseconds in
/// each process, and programs rarely call more functions than these.
const MOST_CANDIDATES: usize = 2000;

/// Marks are switched off until a process takes this CPU time from one to the next, on average. A
/// guess: a mark takes 270 ns, and phases that pay for a migration last longer.
const INTERVAL: Nanos = Nanos::from_us(10);

/// How marks are chosen. A migration there and back takes some 2 us (docs/migrate.md); the most
/// marks are a guess: the paper's MySQL has seven.
const CHOOSING: Choosing = Choosing { shortest: Nanos::from_us(2), most: 16 };

/// Which functions' entries are marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marks<'a> {
    /// Those of these names.
    Named(&'a [String]),
    /// All that can be; afterwards, some of them are chosen.
    Chosen,
}

impl Marks<'_> {
    /// Writes the plans for these marks.
    pub(crate) fn plans(self, program: &Program) -> Result<Plans, LaunchError> {
        match self {
            Self::Named(names) => plans(program, names).map_err(|(_, error)| error),
            Self::Chosen => candidates(program),
        }
    }
}

/// Writes the plans by which the entry of each function with a name is a mark.
fn candidates(program: &Program) -> Result<Plans, LaunchError> {
    let Candidates { names, functions, files } =
        named::candidates(program, MOST_CANDIDATES, planned)?;
    if names.is_empty() {
        return Err(LaunchError::NoCandidate { program: program.file.clone() });
    }
    write(&names, functions, &files)
}

/// Writes the plans by which the entry of each function is a mark. A mark is called as its function
/// is named here.
///
/// # Errors
/// The place in `names` of the function that cannot be a mark, and why; the first, if the plans
/// cannot be written.
pub(crate) fn plans(program: &Program, names: &[String]) -> Result<Plans, (usize, LaunchError)> {
    let wanted: Vec<Wanted> = names.iter().map(|name| Wanted::parse(name)).collect();
    for (at, name) in names.iter().enumerate() {
        Mark::new(name).map_err(|error| (at, LaunchError::NoMark(error.to_string())))?;
    }
    let (functions, files) = named::find_each(program, &wanted, planned)?;
    write(names, functions, &files).map_err(|error| (0, error))
}

/// Writes plans, and the names of the marks in them.
fn write(
    names: &[String],
    functions: Vec<Planned>,
    files: &[PathBuf],
) -> Result<Plans, LaunchError> {
    let mut plans = Plans::write(files.iter().map(PathBuf::as_path), functions)?;
    plans.marks = names.to_vec();
    let text: String = names.iter().map(|name| format!("{name}\n")).collect();
    std::fs::write(plans.directory.path().join(dimmer_hook::NAMES_FILE), text)
        .map_err(LaunchError::Plan)?;
    Ok(plans)
}

/// A function as the mark of this number. Not the functions that lead into it: their calls need not
/// go on there.
fn planned(number: usize, (file, function): named::Found<'_>) -> Result<Planned, LaunchError> {
    let title = named::title(function);
    let mark = u32::try_from(number).ok();
    let entries: Vec<PlannedEntry> =
        named::planned_entries(function).map(|entry| PlannedEntry { mark, ..entry }).collect();
    if entries.is_empty() {
        let why = function.hook.err().map(|reason| reason.to_string()).unwrap_or_default();
        let what = format!("`{title}` of {}", file.display());
        return Err(LaunchError::CannotHook { what, why });
    }
    Ok(Planned { file: file.to_path_buf(), title, entries })
}

/// Sets the variable by which Dimmer's library in the program finds the names of the marks.
pub(crate) fn set_environment(command: &mut Command, plans: &Plans) {
    command.env(dimmer_hook::MARKS, plans.directory.path().join(dimmer_hook::NAMES_FILE));
}

/// Likewise, and the one by which marks that are passed too often are switched off.
pub(crate) fn set_choosing(command: &mut Command, plans: &Plans) {
    set_environment(command, plans);
    command.env(dimmer_hook::INTERVAL, INTERVAL.ns().to_string());
}

/// Chooses from the marks of a graph.
pub(crate) fn choose(graph: &Graph, plans: &Plans, observed: &Observed) -> Choice {
    let (seen, mut calls) = (observed.functions(), BTreeMap::new());
    for planned in &plans.functions {
        for entry in &planned.entries {
            let file = planned.file.as_path().into();
            let place = FunctionPlace { file, address: entry.address };
            let number = entry.mark.and_then(|mark| usize::try_from(mark).ok());
            let name = number.and_then(|number| plans.marks.get(number));
            if let (Some(name), Some(tally)) = (name, seen.get(&place)) {
                *calls.entry(name.as_str()).or_insert(0) += tally.calls;
            }
        }
    }
    CHOOSING.of(graph, |mark| calls.get(mark.name()).copied())
}

/// The graph of all processes that ended; empty if none wrote one.
///
/// # Errors
/// What is wrong with it, in words.
pub(crate) fn graph(directory: &Path) -> Result<Graph, String> {
    let path = directory.join(dimmer_hook::GRAPH_FILE);
    if !path.exists() {
        return Ok(Graph::default());
    }
    let bytes = bounded_file::read(&path, LONGEST_GRAPH).map_err(|error| error.to_string())?;
    Graph::from_text(&String::from_utf8_lossy(&bytes)).map_err(|error| error.to_string())
}
