//! Which functions' calls may be moved: those that the user names, or those that a processor's
//! model names.
//!
//! To find them, all code of the program and of its libraries is looked through, which takes a
//! second for large ones. What was found last is kept, and holds as long as these files, what their
//! names come from, this program and the model are the same.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use dimmer_hook::PlannedEntry;
use dimmer_host::cpuid::Cpuid;
use dimmer_host::machine::Machine;
use dimmer_host::root::Root;
use dimmer_policy::cost::CallCost;
use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::Model;
use dimmer_processor::units::LicenseLevel;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::leaves::{self, NoLeaf};
use super::{How, outermost};
use crate::args::Run;
use crate::named::{self, Planned, Plans, Wanted};
use crate::{bad_input, input, launch, scan, state};

/// Has functions chosen by the processor's model.
const AUTO: &str = "auto";

/// The functions whose calls may be moved.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) plans: Plans,
    /// What the calls of each cost the code after them, where that is to decide.
    pub(super) costs: Vec<Option<CallCost>>,
    /// Of each, whether it has 512-bit registers, as far as known.
    pub(super) have_zmm: Vec<bool>,
    /// What was asked for of which program, on what grounds; `None` if nothing can be kept of it.
    pub(super) key: Option<Key>,
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
    /// The license level that code around which it is asks for, where that is to decide.
    level: Option<u32>,
    /// Whether that code is known to have 512-bit registers.
    has_zmm: bool,
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
        let key = || Key::new(program, how, &wanted, "");
        let (found, key) = once(key, || {
            let (mut planned, files) = named::find(program, &wanted)?;
            let others = leaves::judge(&mut planned, how);
            let functions = planned.iter().map(Candidate::new);
            Ok(Found { functions: functions.collect(), others, files })
        })?;
        return found.chosen(None, key).map(Some);
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
    let by = format!("{runs:?}\n{}", model.to_toml());
    let key = || Key::new(program, how, &[], &by);
    let (found, key) = once(key, || outermost::find(program, how, &model, &machine))?;
    if found.functions.is_empty() {
        let what = if how.borrows { "code" } else { "leaf function" };
        eprintln!(
            "{}: nothing to move: by {from}, no {what} of this program costs the code after it anything here.",
            how.name()
        );
        return Ok(None);
    }
    found.chosen(Some(&model), key).map(Some)
}

impl Found {
    fn chosen(self, model: Option<&Model>, key: Option<Key>) -> anyhow::Result<Chosen> {
        let cost = |level: u32, model| CallCost::new(model, LicenseLevel::new(level));
        let costs = self.functions.iter().map(|function| function.level.zip(model));
        let costs: Result<_, _> =
            costs.map(|of| of.map(|(level, model)| cost(level, model)).transpose()).collect();
        let have_zmm = self.functions.iter().map(|function| function.has_zmm).collect();
        let planned: Option<_> = self.functions.iter().map(Candidate::planned).collect();
        let planned = planned.context("what was chosen cannot be read back")?;
        let plans = Plans::write(self.files.iter().map(PathBuf::as_path), planned)?;
        let costs = costs.map_err(bad_input)?;
        Ok(Chosen { plans, costs, have_zmm, key, others: self.others })
    }
}

impl Candidate {
    /// One of whose code nothing is known.
    pub(super) fn new(planned: &Planned) -> Self {
        Self {
            file: planned.file.clone(),
            title: planned.title.clone(),
            entries: planned.entries.iter().map(ToString::to_string).collect(),
            level: None,
            has_zmm: false,
        }
    }

    /// The code around which it is asks for this level, and has 512-bit registers or has not.
    pub(super) fn with_demand(self, level: LicenseLevel, has_zmm: bool) -> Self {
        Self { level: Some(level.index()), has_zmm, ..self }
    }

    /// `None` if it is not as this version writes it.
    fn planned(&self) -> Option<Planned> {
        let entries = self.entries.iter().map(|entry| entry.parse::<PlannedEntry>().ok());
        let entries = entries.collect::<Option<_>>()?;
        Some(Planned { file: self.file.clone(), title: self.title.clone(), entries })
    }
}

/// What a choice depends on, in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Key {
    /// What was asked for of which program: of that, the last answer is kept.
    asked: String,
    /// What the answer comes from.
    from: String,
}

impl Key {
    /// The key for these functions, or for those that are chosen `by` a model; `None` if the choice
    /// cannot be kept.
    fn new(program: &launch::Program, how: How, wanted: &[Wanted], by: &str) -> Option<Self> {
        let stamp = |file: &Path| {
            let stamp = scan::stamp(&Root::live(), file).ok()?;
            Some(format!("{} {stamp}\n", file.canonicalize().ok()?.display()))
        };
        let loaded = program.loaded();
        let loaded = loaded.iter().map(|loaded| stamp(&loaded.file));
        // What is loaded later may be named by its file.
        let later = wanted.iter().filter_map(|wanted| match wanted {
            Wanted::Place { library, .. } if Path::new(library).exists() => Some(library),
            _ => None,
        });
        let later = later.map(|library| stamp(Path::new(library)));
        let files: String = loaded.chain(later).collect::<Option<_>>()?;
        // Another build of this program may choose otherwise.
        let own = scan::identity(&std::env::current_exe().ok()?).ok()?;
        let How { borrows, offloads, .. } = how;
        let executed = program.executed.canonicalize().ok()?;
        Some(Self {
            asked: format!("{wanted:?} {borrows} {offloads} {}", executed.display()),
            from: format!("{own}\n{by}\n{files}"),
        })
    }

    /// What is kept by this name under this key; `None` if nothing is, or under another key for the
    /// same program.
    pub(super) fn kept<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let text = read_own(&self.path(name)?).ok()?;
        let (of, kept) = serde_json::from_str::<(Self, T)>(&text).ok()?;
        (of == *self).then_some(kept)
    }

    /// Keeps it; if it cannot be, that is none of the program's business.
    pub(super) fn keep<T: Serialize>(&self, name: &str, what: &T) {
        if let (Some(path), Ok(text)) = (self.path(name), serde_json::to_string(&(self, what))) {
            state::cache(&path, &text);
        }
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        let mut hasher = DefaultHasher::new();
        self.asked.hash(&mut hasher);
        Some(state::choices()?.join(format!("{:016x}{name}.json", hasher.finish())))
    }
}

/// What was found under this key before, or is found now, and the key, if it holds. What cannot be
/// kept is found again the next time, nothing else.
fn once(
    key: impl Fn() -> Option<Key>,
    find: impl FnOnce() -> anyhow::Result<Found>,
) -> anyhow::Result<(Found, Option<Key>)> {
    let Some(before) = key() else { return Ok((find()?, None)) };
    let is_whole = |found: &Found| found.functions.iter().all(|one| one.planned().is_some());
    if let Some(found) = before.kept::<Found>("").filter(is_whole) {
        return Ok((found, Some(before)));
    }
    let found = find()?;
    // Of a file that was replaced meanwhile, it may have been found in either.
    let key = key().filter(|key| *key == before);
    if let Some(key) = &key {
        key.keep("", &found);
    }
    Ok((found, key))
}

/// What a file of this user holds: what others have written, who may have lent their home
/// directory, decides nothing here.
fn read_own(path: &Path) -> io::Result<String> {
    if path.metadata()?.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    input::kept(path)
}
