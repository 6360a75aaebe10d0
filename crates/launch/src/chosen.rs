//! Chooses the functions whose calls may be moved: those that the user names, or those that follow
//! from a processor model.
//!
//! To find them, all code of the program and of its libraries is scanned, which takes a second for
//! large ones. The last result is cached. It holds as long as these files, the files that their
//! names come from, this program and the model are the same.

use std::path::{Path, PathBuf};

use dimmer_hook::PlannedEntry;
use dimmer_host::cpuid::Cpuid;
use dimmer_host::machine::Machine;
use dimmer_host::models;
use dimmer_host::root::Root;
use dimmer_policy::cost::CallCost;
use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::Model;
use dimmer_processor::units::LicenseLevel;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::leaves::{self, NoLeaf};
use crate::mechanism::{How, Setup};
use crate::named::{self, Planned, Plans, Wanted};
use crate::note::Note;
use crate::program::Program;
use crate::{LaunchError, cache, names, outermost};

/// The functions whose calls may be moved.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) plans: Plans,
    /// What the calls of each function request and cost the code after them, if that decides.
    pub(crate) costs: Vec<Option<(LicenseLevel, CallCost)>>,
    /// The model by which that is so.
    pub(crate) model: Option<Model>,
    /// Whether each function uses 512-bit registers, as far as known.
    pub(crate) have_zmm: Vec<bool>,
    /// The program and request, and what the choice is based on; `None` if nothing can be cached
    /// for it.
    pub(crate) key: Option<Key>,
    /// Functions whose calls stay because they are no leaf functions.
    pub(crate) others: Vec<NoLeaf>,
}

/// The result as it is cached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Found {
    pub(crate) functions: Vec<Candidate>,
    /// Functions whose calls stay because they are no leaf functions.
    pub(crate) others: Vec<NoLeaf>,
    /// Files in which nothing else is hooked.
    pub(crate) files: Vec<PathBuf>,
}

/// A function whose calls may be moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Candidate {
    file: PathBuf,
    title: String,
    /// Each entry as [`PlannedEntry`] prints itself.
    entries: Vec<String>,
    /// The license level that the wide code in or below the function requests, if that decides.
    level: Option<u32>,
    /// Whether that code is known to use 512-bit registers.
    has_zmm: bool,
}

/// Chooses functions; `None` if there are none.
pub(crate) fn choose(setup: &mut Setup<'_>) -> Result<Option<Chosen>, LaunchError> {
    let (request, asked, program) = (setup.request, setup.how, setup.program);
    // A thread goes with any function, as one that migrates.
    let how = How { migrates: asked.migrates || asked.specialises, ..asked };
    let wanted = &request.functions;
    if !wanted.is_empty() {
        if request.model.is_some() {
            return Err(LaunchError::NeedlessModel);
        }
        let key = || Key::new(program, how, wanted, "");
        let (found, key) = once(key, || {
            let (mut planned, files) = named::find(program, wanted)?;
            let others = leaves::judge(&mut planned, how);
            let functions = planned.iter().map(Candidate::new);
            Ok(Found { functions: functions.collect(), others, files })
        })?;
        return found.chosen(None, key).map(Some);
    }
    let machine = Machine::read(&Root::live(), &Cpuid::instruction());
    let chosen = models::choose(request.model.as_deref(), &Root::live(), &machine)?;
    let models::Chosen { model, from } = chosen.ok_or(LaunchError::NoModel)?;
    let runs = InstructionClass::ALL.map(|class| machine.runs(class));
    let by = format!("{runs:?}\n{}", model.to_toml());
    let key = || Key::new(program, how, &[], &by);
    let (found, key) = once(key, || outermost::find(program, how, &model, &machine))?;
    if found.functions.is_empty() {
        (setup.notes)(Note::NothingToMove { how: asked, model: from });
        return Ok(None);
    }
    found.chosen(Some(&model), key).map(Some)
}

impl Found {
    fn chosen(self, model: Option<&Model>, key: Option<Key>) -> Result<Chosen, LaunchError> {
        let cost = |level, model| CallCost::new(model, level).map(|cost| (level, cost));
        let level = |function: &Candidate| function.level.map(LicenseLevel::new);
        let costs = self.functions.iter().map(|function| level(function).zip(model));
        let costs: Result<_, _> =
            costs.map(|of| of.map(|(level, model)| cost(level, model)).transpose()).collect();
        let have_zmm = self.functions.iter().map(|function| function.has_zmm).collect();
        let planned: Option<_> = self.functions.iter().map(Candidate::planned).collect();
        let planned = planned.ok_or(LaunchError::Choice)?;
        let plans = Plans::write(self.files.iter().map(PathBuf::as_path), planned)?;
        let (costs, model) = (costs?, model.cloned());
        Ok(Chosen { plans, costs, model, have_zmm, key, others: self.others })
    }
}

impl Candidate {
    /// A candidate whose code is not known.
    pub(crate) fn new(planned: &Planned) -> Self {
        Self {
            file: planned.file.clone(),
            title: planned.title.clone(),
            entries: planned.entries.iter().map(ToString::to_string).collect(),
            level: None,
            has_zmm: false,
        }
    }

    /// Adds the license level that its code requests, and whether that code uses 512-bit registers.
    pub(crate) fn with_demand(self, level: LicenseLevel, has_zmm: bool) -> Self {
        Self { level: Some(level.index()), has_zmm, ..self }
    }

    /// The function to hook; `None` if the entries are not in this version's format.
    fn planned(&self) -> Option<Planned> {
        let entries = self.entries.iter().map(|entry| entry.parse::<PlannedEntry>().ok());
        let entries = entries.collect::<Option<_>>()?;
        Some(Planned { file: self.file.clone(), title: self.title.clone(), entries })
    }
}

/// What a choice depends on, as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Key {
    /// The request and the program. For each such pair the last answer is cached.
    asked: String,
    /// What the answer is derived from.
    from: String,
}

impl Key {
    /// The key for these functions, or for those that are chosen `by` a model; `None` if the choice
    /// cannot be cached.
    fn new(program: &Program, how: How, wanted: &[Wanted], by: &str) -> Option<Self> {
        let stamp = |file: &Path| {
            let stamp = names::stamp(&Root::live(), file)?;
            Some(format!("{} {stamp}\n", file.canonicalize().ok()?.display()))
        };
        let loaded = program.loaded();
        let loaded = loaded.iter().map(|loaded| stamp(&loaded.file));
        // A library that is loaded later may be named by its file.
        let later = wanted.iter().filter_map(|wanted| match wanted {
            Wanted::Place { library, .. } if Path::new(library).exists() => Some(library),
            _ => None,
        });
        let later = later.map(|library| stamp(Path::new(library)));
        let files: String = loaded.chain(later).collect::<Option<_>>()?;
        // Another build of this program may choose differently.
        let own = names::identity(&std::env::current_exe().ok()?).ok()?;
        let How { migrates, delegates, .. } = how;
        let executed = program.executed.canonicalize().ok()?;
        Some(Self {
            asked: format!("{wanted:?} {migrates} {delegates} {}", executed.display()),
            from: format!("{own}\n{by}\n{files}"),
        })
    }

    /// The key of the program's runs. What can be moved in a script is in its interpreter, but how
    /// a run goes depends on the script; likewise on the name by which a file is called that is
    /// several programs.
    pub(crate) fn of_runs(mut self, program: &Program) -> Self {
        let name = Path::new(&program.name).file_name();
        let file = program.file.canonicalize().unwrap_or_else(|_| program.file.clone());
        self.asked.push_str(&format!(" {file:?} {name:?}"));
        self.from.push_str(&names::identity(&file).unwrap_or_default());
        self
    }

    /// What is cached under this name for this key; `None` if there is nothing, or if it belongs to
    /// another key of the same program.
    pub(crate) fn kept<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let text = cache::read_own(&self.path(name)?).ok()?;
        let (of, kept) = serde_json::from_str::<(Self, T)>(&text).ok()?;
        (of == *self).then_some(kept)
    }

    /// Caches it. A failure is ignored: it must not affect the program.
    pub(crate) fn keep<T: Serialize>(&self, name: &str, what: &T) {
        if let (Some(path), Ok(text)) = (self.path(name), serde_json::to_string(&(self, what))) {
            cache::keep(&path, &text);
        }
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        let digest = cache::digest([self.asked.as_bytes()]);
        Some(cache::choices()?.join(format!("{digest:016x}{name}.json")))
    }
}

/// Returns the result cached under this key, or finds it now; also returns the key, if it still
/// holds. If the result cannot be cached, the next run finds it again.
fn once(
    key: impl Fn() -> Option<Key>,
    find: impl FnOnce() -> Result<Found, LaunchError>,
) -> Result<(Found, Option<Key>), LaunchError> {
    let Some(before) = key() else { return Ok((find()?, None)) };
    let is_whole = |found: &Found| found.functions.iter().all(|one| one.planned().is_some());
    if let Some(found) = before.kept::<Found>("").filter(is_whole) {
        return Ok((found, Some(before)));
    }
    let found = find()?;
    // If a file was replaced meanwhile, the result may come from either version.
    let key = key().filter(|key| *key == before);
    if let Some(key) = &key {
        key.keep("", &found);
    }
    Ok((found, key))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn each_script_and_each_name_of_a_program_has_its_own_runs() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let write = |name: &str, text: &str| {
            std::fs::write(path(name), text).unwrap();
            std::fs::set_permissions(path(name), Permissions::from_mode(0o755)).unwrap();
        };
        write("one", "#!/bin/sh\n");
        write("two", "#!/bin/sh\n");
        symlink("/bin/sh", path("also-sh")).unwrap();
        let key = |program: PathBuf| {
            let program = Program::find(&[program.into()]).unwrap();
            let (asked, from) = (program.executed.display().to_string(), String::new());
            Key { asked, from }.of_runs(&program)
        };
        let names = [path("one"), path("two"), path("also-sh"), "/bin/sh".into()];
        let asked: Vec<String> = names.clone().map(|name| key(name).asked).into();
        for (at, one) in asked.iter().enumerate() {
            assert!(!asked[..at].contains(one), "{asked:?}");
        }
        let before = key(path("one"));
        assert_eq!(key(directory.path().join(".").join("one")), before);
        // A script that was changed is another one, in the place of the first.
        write("one", "#!/bin/sh\nexit 1\n");
        let after = key(path("one"));
        assert!(after.asked == before.asked && after.from != before.from);
    }
}
