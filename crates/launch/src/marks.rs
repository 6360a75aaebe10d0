//! Functions whose entries are marks in an unmodified program (paper 004).

use std::path::Path;
use std::process::Command;

use dimmer_hook::PlannedEntry;
use dimmer_host::bounded_file;
use dimmer_policy::phases::{Graph, Mark};

use crate::LaunchError;
use crate::named::{self, Planned, Plans, Wanted};
use crate::program::Program;

/// The longest graph that is read (bytes): some hundred thousand edges.
const LONGEST_GRAPH: u64 = 1 << 26;

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
    let write = || {
        let plans = Plans::write(files.iter().map(std::path::PathBuf::as_path), functions)?;
        let text: String = names.iter().map(|name| format!("{name}\n")).collect();
        std::fs::write(plans.directory.path().join(dimmer_hook::NAMES_FILE), text)
            .map_err(LaunchError::Plan)?;
        Ok(plans)
    };
    write().map_err(|error| (0, error))
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
