//! Which functions' calls may be moved: those that the user names, or those that a processor's model names.
//!
//! To find them, all code of the program and of its libraries is looked through, which takes a second for large ones. What was found
//! is kept, as long as these files, what their names come from, this program, the model and what was asked for are the same.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use anyhow::Context;
use dimmer_hook::PlannedEntry;
use dimmer_host::cpuid::Cpuid;
use dimmer_host::machine::Machine;
use dimmer_host::root::Root;
use dimmer_policy::cost::CallCost;
use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::Model;
use dimmer_processor::units::LicenceLevel;
use serde::{Deserialize, Serialize};

use super::leaves::{self, NoLeaf};
use super::{How, outermost};
use crate::args::Run;
use crate::named::{self, Planned, Plans, Wanted};
use crate::{bad_input, launch, scan, state};

/// Has functions chosen by the processor's model.
const AUTO: &str = "auto";

/// The functions whose calls may be moved.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) plans: Plans,
    /// What the calls of each cost the code after them, where that is to decide.
    pub(super) costs: Vec<Option<CallCost>>,
    /// Functions that stay, as they are no leaf functions.
    pub(super) others: Vec<NoLeaf>,
}

/// What was found, as it is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Found {
    pub(super) functions: Vec<Candidate>,
    /// Functions that stay, as they are no leaf functions.
    pub(super) others: Vec<NoLeaf>,
    /// Files of which nothing else is hooked.
    pub(super) files: Vec<PathBuf>,
}

/// A function whose calls may be moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Candidate {
    file: PathBuf,
    title: String,
    /// As [`PlannedEntry`] writes itself.
    entries: Vec<String>,
    /// The licence level that code around which it is asks for, where that is to decide.
    level: Option<u32>,
}

/// Chooses functions; `None` if there are none.
pub(super) fn choose(
    arguments: &Run,
    how: How,
    program: &launch::Program,
) -> anyhow::Result<Option<Chosen>> {
    let is_auto = |hook: &String| hook == AUTO;
    if !arguments.hook.iter().any(is_auto) && !arguments.hook.is_empty() {
        if arguments.model.is_some() {
            return Err(bad_input(format!(
                "--model is for --hook {AUTO}: named functions need none"
            )));
        }
        let wanted: Vec<Wanted> = arguments.hook.iter().map(|hook| Wanted::parse(hook)).collect();
        let found = once(key(program, how, &format!("{wanted:?}")), || {
            let (mut planned, files) = named::find(program, &wanted)?;
            let others = leaves::judge(&mut planned, how);
            let functions = planned.iter().map(|planned| Candidate::new(planned, None));
            Ok(Found { functions: functions.collect(), others, files })
        })?;
        return found.chosen(None).map(Some);
    }
    if arguments.hook.len() > 1 {
        return Err(bad_input(format!("--hook {AUTO} goes without names")));
    }
    let machine = Machine::read(&Root::live(), &Cpuid::instruction());
    let Some((model, from)) = scan::choose_model(arguments.model.as_deref(), &machine)? else {
        return Err(bad_input(format!(
            "--hook {AUTO} has to know what wide-vector code costs here: `dimmer probe` measures it; or name functions"
        )));
    };
    let runs = InstructionClass::ALL.map(|class| machine.runs(class));
    let asked = format!("{AUTO} {runs:?}\n{}", model.to_toml());
    let found =
        once(key(program, how, &asked), || outermost::find(program, how, &model, &machine))?;
    if found.functions.is_empty() {
        let what = if how.borrows { "code" } else { "leaf function" };
        eprintln!(
            "{}: nothing to move: by {from}, no {what} of this program costs the code after it anything here.",
            how.name()
        );
        return Ok(None);
    }
    found.chosen(Some(&model)).map(Some)
}

impl Found {
    fn chosen(self, model: Option<&Model>) -> anyhow::Result<Chosen> {
        let cost = |level: u32, model| CallCost::new(model, LicenceLevel::new(level));
        let costs = self.functions.iter().map(|function| function.level.zip(model));
        let costs: Result<_, _> =
            costs.map(|of| of.map(|(level, model)| cost(level, model)).transpose()).collect();
        let planned: Option<_> = self.functions.iter().map(Candidate::planned).collect();
        let planned = planned.context("what was chosen cannot be read back")?;
        let plans = Plans::write(self.files.iter().map(PathBuf::as_path), planned)?;
        Ok(Chosen { plans, costs: costs.map_err(bad_input)?, others: self.others })
    }
}

impl Candidate {
    pub(super) fn new(planned: &Planned, level: Option<LicenceLevel>) -> Self {
        Self {
            file: planned.file.clone(),
            title: planned.title.clone(),
            entries: planned.entries.iter().map(ToString::to_string).collect(),
            level: level.map(LicenceLevel::index),
        }
    }

    /// `None` if it is not as this version writes it.
    fn planned(&self) -> Option<Planned> {
        let entries = self.entries.iter().map(|entry| entry.parse::<PlannedEntry>().ok());
        let entries = entries.collect::<Option<_>>()?;
        Some(Planned { file: self.file.clone(), title: self.title.clone(), entries })
    }
}

/// What the choice depends on, in words; `None` if it cannot be kept.
fn key(program: &launch::Program, how: How, asked: &str) -> Option<String> {
    let files = program.loaded();
    let stamp = |loaded: &launch::Loaded| {
        let stamp = scan::stamp(&Root::live(), &loaded.file).ok().flatten()?;
        Some(format!("{} {stamp}\n", loaded.file.canonicalize().ok()?.display()))
    };
    let stamps: String = files.iter().map(stamp).collect::<Option<_>>()?;
    let How { borrows, offloads, .. } = how;
    // Another build of this program may choose otherwise.
    let own = std::fs::metadata(std::env::current_exe().ok()?).ok()?;
    let own = format!("{}.{}.{}", own.len(), own.mtime(), own.mtime_nsec());
    Some(format!("by {own}: {asked}\nborrows {borrows}, offloads {offloads}\n{stamps}"))
}

/// What was found under this key before, or is found now. What cannot be kept is found again the next time, nothing else.
fn once(
    key: Option<String>,
    find: impl FnOnce() -> anyhow::Result<Found>,
) -> anyhow::Result<Found> {
    let path = key.as_ref().and_then(|key| path(key));
    let kept = path.as_ref().and_then(|path| std::fs::read_to_string(path).ok());
    let kept = kept.and_then(|text| serde_json::from_str::<(String, Found)>(&text).ok());
    let is_it = |(of, found): &(String, Found)| {
        Some(of) == key.as_ref() && found.functions.iter().all(|one| one.planned().is_some())
    };
    if let Some((_, found)) = kept.filter(is_it) {
        return Ok(found);
    }
    let found = find()?;
    if let (Some(path), Ok(text)) = (path, serde_json::to_string(&(key, &found))) {
        let _ = state::replace(&path, &text);
    }
    Ok(found)
}

fn path(key: &str) -> Option<PathBuf> {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    Some(state::choices()?.join(format!("{:016x}.json", hasher.finish())))
}
