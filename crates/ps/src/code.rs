//! The instruction classes of the files that a process runs code from. Scans are kept in a file
//! between runs, by what identifies a file: after the first time, a look at hundreds of processes
//! opens none of their files.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use dimmer_host::cache::directory;
use dimmer_host::libraries::Mapped;
use dimmer_host::program;
use dimmer_launch::cache;
use dimmer_processor::class::InstructionClass;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// The classes that are looked for: all wider than 128 bits.
const WIDE: [InstructionClass; 5] = [
    InstructionClass::Light256,
    InstructionClass::Heavy256,
    InstructionClass::Light512,
    InstructionClass::Heavy512,
    InstructionClass::Tile,
];

/// Changes whenever the same bytes may give other classes.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-1");

/// Most files that are kept. A guess: a host has some thousand.
const MOST_KEPT: usize = 20_000;

/// The most demanding code that a process may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// Its class.
    pub class: InstructionClass,
    /// Whether code of its file uses 512-bit registers.
    pub uses_zmm: bool,
    /// The file, as the process sees it.
    pub file: String,
}

/// What is known of a file's code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    /// Names of the classes, the most demanding last.
    classes: Vec<String>,
    uses_zmm: bool,
}

/// The files that a process runs code from, with what identifies each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Files {
    files: Vec<File>,
    /// The number of those that cannot be looked at, or were deleted since.
    missing: usize,
}

#[derive(Clone, Debug)]
struct File {
    shown: String,
    path: PathBuf,
    key: String,
}

impl Files {
    /// Looks which files these are, beside some that were deleted.
    pub(crate) fn of(mapped: Vec<Mapped>, deleted: usize) -> Self {
        let all = mapped.len() + deleted;
        let file = |one: Mapped| {
            let key = key(&one.file)?;
            Some(File { shown: one.path, path: one.file, key })
        };
        let files: Vec<File> = mapped.into_iter().filter_map(file).collect();
        Self { missing: all - files.len(), files }
    }
}

/// What identifies a file and its content; `None` if it cannot be looked at.
fn key(path: &Path) -> Option<String> {
    let found = path.metadata().ok()?;
    let (seconds, ns) = (found.mtime(), found.mtime_nsec());
    Some(format!("{}:{}:{}:{seconds}.{ns:09}", found.dev(), found.ino(), found.size()))
}

/// What is known of files, from this and from earlier runs.
#[derive(Debug)]
pub struct Codes {
    /// Where it is kept; `None` if nothing is.
    path: Option<PathBuf>,
    known: BTreeMap<String, Known>,
    /// Keys that were needed in this run.
    used: BTreeSet<String>,
    /// Classes that this processor runs.
    runs: Vec<InstructionClass>,
    is_changed: bool,
}

impl Codes {
    /// What is kept in the user's cache, for a processor that runs these classes.
    #[must_use]
    pub fn open(runs: Vec<InstructionClass>) -> Self {
        let path = directory().map(|cache| cache.join("ps").join(VERSION));
        Self::open_at(path, runs)
    }

    fn open_at(path: Option<PathBuf>, runs: Vec<InstructionClass>) -> Self {
        let text = path.as_deref().and_then(|path| cache::read_own(path).ok());
        let known = text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        Self { path, known, used: BTreeSet::new(), runs, is_changed: false }
    }

    /// Scans those of these files that are not known, on all CPUs.
    pub(crate) fn learn<'a>(
        &mut self,
        files: impl IntoIterator<Item = &'a Files>,
        on_file: impl Fn(&str) -> bool + Sync,
    ) {
        let mut missing: BTreeMap<&str, &File> = BTreeMap::new();
        for file in files.into_iter().flat_map(|files| &files.files) {
            self.used.insert(file.key.clone());
            if !self.known.contains_key(&file.key) {
                missing.insert(&file.key, file);
            }
        }
        let missing: Vec<&File> = missing.into_values().collect();
        let found = Mutex::new(Vec::new());
        missing.par_iter().for_each(|file| {
            if !on_file(&file.shown) {
                return;
            }
            // What cannot be scanned has no known code; it is tried again next time.
            let Some(known) = scan(&file.path) else { return };
            found
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .push((&file.key, known));
        });
        let found = found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.is_changed |= !found.is_empty();
        self.known.extend(found.into_iter().map(|(key, known)| (key.clone(), known)));
    }

    /// The most demanding code of these files that this processor runs; `None` if they have no
    /// wide code.
    pub(crate) fn most_demanding(&self, files: &Files) -> Option<Code> {
        let of = |file: &File| {
            let known = self.known.get(&file.key)?;
            let classes = known.classes.iter().filter_map(|name| name.parse().ok());
            let class = classes.filter(|class| self.runs.contains(class)).max()?;
            Some(Code { class, uses_zmm: known.uses_zmm, file: file.shown.clone() })
        };
        // Of equals, the first: the program comes before its libraries.
        files.files.iter().filter_map(of).rev().max_by_key(|code| code.class)
    }

    /// The number of these files whose code is not known: deleted, unreadable, or not scanned.
    pub(crate) fn unknown(&self, files: &Files) -> usize {
        let unknown = |file: &&File| !self.known.contains_key(&file.key);
        files.missing + files.files.iter().filter(unknown).count()
    }

    /// Keeps what was learnt for the next run.
    pub fn keep(mut self) {
        let Some(path) = self.path.filter(|_| self.is_changed) else { return };
        if self.known.len() > MOST_KEPT {
            self.known.retain(|key, _| self.used.contains(key));
        }
        if let Ok(text) = serde_json::to_string(&self.known) {
            cache::keep(&path, &text);
        }
    }
}

fn scan(path: &Path) -> Option<Known> {
    let bytes = program::read(path).ok()?;
    let functions = dimmer_scan::scan_wide(&bytes, &WIDE.into()).ok()?;
    let holds = |class: &&InstructionClass| {
        functions.iter().any(|function| function.instructions.of(**class) > 0)
    };
    Some(Known {
        classes: WIDE.iter().filter(holds).map(|class| class.name().to_owned()).collect(),
        uses_zmm: functions.iter().any(|function| function.zmm > 0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_scanned_once_is_known_until_the_file_changes() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("program");
        std::fs::copy("/proc/self/exe", &file).unwrap();
        let kept = directory.path().join("kept");
        let mapped = || Mapped { path: "/p".to_owned(), file: file.clone(), is_program: true };
        let scanned = |expected: usize| {
            let mut codes = Codes::open_at(Some(kept.clone()), InstructionClass::ALL.to_vec());
            let files = Files::of(vec![mapped(), mapped()], 1);
            let asked = Mutex::new(0);
            codes.learn([&files], |_| {
                *asked.lock().unwrap() += 1;
                true
            });
            assert_eq!(*asked.lock().unwrap(), expected);
            let found = (codes.most_demanding(&files), codes.unknown(&files));
            codes.keep();
            found
        };
        let first = scanned(1);
        assert_eq!(scanned(0), first);
        std::fs::write(&file, "no program").unwrap();
        assert_eq!(first.1, 1);
        assert_eq!(scanned(1), (None, 3));
        std::fs::write(&kept, "damaged").unwrap();
        assert_eq!(scanned(1), (None, 3));
    }
}
