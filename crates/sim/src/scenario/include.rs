//! Files that scenarios include.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::ScenarioError;
use super::document::{Document, Key, Part, Place, Source, Table, stand_once};

/// Maximum number of files within each other, besides the first.
const DEEPEST: usize = 8;

/// Maximum number of files of a scenario.
const MOST_FILES: usize = 64;

/// Maximum length of all files of a scenario together (bytes), as of a single one.
const LONGEST: usize = 16 << 20;

/// Returns the text of a file, or why there is none.
type Read<'a> = &'a dyn Fn(&Path) -> Result<String, String>;

/// The files of a scenario.
pub(super) struct Files<'a> {
    read: Read<'a>,
    /// Files that are being read, each included by the one before.
    chain: Vec<PathBuf>,
    /// What was read from each file.
    done: BTreeMap<PathBuf, Arc<Part>>,
    /// Files that were read, and their length in all (bytes).
    files: usize,
    bytes: usize,
}

impl<'a> Files<'a> {
    pub(super) fn new(read: Read<'a>) -> Self {
        Self { read, chain: Vec::new(), done: BTreeMap::new(), files: 1, bytes: 0 }
    }

    /// What a file with this text and those that it includes contain.
    pub(super) fn part(&mut self, path: &Path, text: &str) -> Result<Part, ScenarioError> {
        self.bytes += text.len();
        let source = Source { path: path.into(), text: text.into() };
        let mut document = Document::parse(&source)?;
        let Some(include) = document.include.take() else { return document.check(&source) };
        let place = source.place(&include);
        let own = document.check(&source)?;
        self.chain.push(plain(path));
        let mut included: Vec<Arc<Part>> = Vec::new();
        for (index, name) in include.get_ref().iter().enumerate() {
            let refuse = |error: &dyn fmt::Display| {
                place.refuse(format!("`include`: \"{}\": {error}", name.escape_debug()))
            };
            if include.get_ref().iter().take(index).any(|other| other == name) {
                return Err(refuse(&"it stands twice, expected each file once"));
            }
            let path = path.parent().unwrap_or(Path::new("")).join(name);
            included.push(self.included(&path, &refuse)?);
        }
        self.chain.pop();
        merged(own, &included, &place)
    }

    /// The part of an included file.
    fn included(
        &mut self,
        path: &Path,
        refuse: &dyn Fn(&dyn fmt::Display) -> ScenarioError,
    ) -> Result<Arc<Part>, ScenarioError> {
        let plain = plain(path);
        if let Some(start) = self.chain.iter().position(|open| *open == plain) {
            let circle = self.chain.iter().skip(start).chain([&plain]);
            let circle: Vec<String> = circle.map(|path| path.display().to_string()).collect();
            let circle = circle.join(" includes ");
            return Err(refuse(&format!("{circle}, expected no file that includes itself")));
        }
        if let Some(part) = self.done.get(&plain) {
            return Ok(Arc::clone(part));
        }
        if self.chain.len() > DEEPEST {
            return Err(refuse(&format!(
                "files are nested deeper, expected at most {DEEPEST} deep"
            )));
        }
        if self.files == MOST_FILES {
            return Err(refuse(&format!("more files, expected at most {MOST_FILES} in all")));
        }
        self.files += 1;
        let text = (self.read)(path).map_err(|error| refuse(&error))?;
        if self.bytes + text.len() > LONGEST {
            return Err(refuse(&format!(
                "with it, the files have more than {LONGEST} bytes, the most accepted"
            )));
        }
        let part = self.part(path, &text)?;
        stand_once("thread", &part.threads)?;
        let part = Arc::new(part);
        self.done.insert(plain, Arc::clone(&part));
        Ok(part)
    }
}

/// The path without `.`, and without `..` where that follows a name: the same for the same file, as
/// far as names say.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        let is_after_name = matches!(plain.components().next_back(), Some(Component::Normal(_)));
        match component {
            Component::CurDir => {}
            Component::ParentDir if is_after_name => _ = plain.pop(),
            component => plain.push(component),
        }
    }
    plain
}

/// What a file contains together with those that it includes. `place` is its `include`.
fn merged(own: Part, included: &[Arc<Part>], place: &Place) -> Result<Part, ScenarioError> {
    macro_rules! of {
        ($merge:ident, $name:literal, $field:ident) => {
            $merge($name, own.$field, included.iter().map(|part| &part.$field), place)?
        };
    }
    Ok(Part {
        schema: own.schema,
        name: of!(key, "name", name),
        source: of!(key, "source", source),
        model: of!(key, "model", model),
        cores: of!(key, "cores", cores),
        threads_per_core: of!(key, "threads_per_core", threads_per_core),
        smt_share: of!(key, "smt_share", smt_share),
        idle_states: of!(key, "idle_states", idle_states),
        scheduler: of!(key, "scheduler", scheduler),
        pstate: of!(key, "pstate", pstate),
        end: of!(key, "end_us", end),
        hand_over: of!(key, "hand_over_us", hand_over),
        wide_cores: of!(key, "wide_cores", wide_cores),
        core_pstates: of!(key, "core_pstates", core_pstates),
        mwait_cores: of!(key, "mwait_cores", mwait_cores),
        phases: of!(key, "phases", phases),
        code: of!(tables, "code", code),
        distributions: of!(tables, "distribution", distributions),
        regions: of!(tables, "region", regions),
        threads: of!(tables, "thread", threads),
    })
}

/// The file's own value of a key, otherwise the included one.
fn key<'a, T: 'a>(
    name: &str,
    own: Key<T>,
    included: impl Iterator<Item = &'a Key<T>>,
    place: &Place,
) -> Result<Key<T>, ScenarioError> {
    if own.is_some() {
        return Ok(own);
    }
    let mut found: Key<T> = None;
    for other in included.flatten() {
        match &found {
            Some(found) if Arc::ptr_eq(found, other) => {}
            Some(found) => {
                return Err(place.twice(&format!("`{name}`"), &found.place, &other.place));
            }
            None => found = Some(Arc::clone(other)),
        }
    }
    Ok(found)
}

/// The included tables, each replaced by the file's own one of that name, and its other ones.
fn tables<'a, T: 'a>(
    kind: &str,
    own: Vec<Arc<Table<T>>>,
    included: impl Iterator<Item = &'a Vec<Arc<Table<T>>>>,
    place: &Place,
) -> Result<Vec<Arc<Table<T>>>, ScenarioError> {
    let mut all: Vec<Arc<Table<T>>> = Vec::new();
    let mut known = BTreeMap::new();
    for table in included.flatten() {
        match known.get(&table.name).map(|index: &usize| &all[*index]) {
            Some(found) if Arc::ptr_eq(found, table) => {}
            Some(found) => {
                let what = format!("{kind} `{}`", table.name);
                return Err(place.twice(&what, &found.place, &table.place));
            }
            None => {
                known.insert(table.name.clone(), all.len());
                all.push(Arc::clone(table));
            }
        }
    }
    for table in own {
        match known.remove(&table.name) {
            Some(index) => all[index] = table,
            None => all.push(table),
        }
    }
    Ok(all)
}

impl Place {
    /// Refuses that two included files define the same.
    fn twice(&self, what: &str, one: &Self, other: &Self) -> ScenarioError {
        let [one, other] =
            [one, other].map(|at| format!("{}, line {}", at.path.display(), at.line()));
        self.refuse(format!(
            "`include`: {what} stands in two files, expected one: {one}, and {other}"
        ))
    }
}

#[cfg(test)]
mod tests;
