//! Which entries of a file to hook. A plan is kept for the next process: a shell script starts tens
//! of processes, most of them with the same libraries.
//!
//! The name of a plan identifies the file: device, inode, length and time of change. The directory
//! of plans is for one set of classes and one version of Dimmer.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use dimmer_processor::class::InstructionClass;
use dimmer_scan::{Function, Leaf, Needed, Runtime, ScanError, Width};

use crate::error::HookError;
use crate::file::Mapped;
use crate::ledger::may_write;

/// Names of files that hooks, or the loader below them, need to run: the C library and the loader,
/// and the unwinder.
const OWN_GROUND: [&str; 4] = ["libc.", "ld-", "ld64.", "libgcc_s."];

/// Whether hooks, or the loader below them, need the library of this name to run. Then nothing of
/// it is hooked.
#[must_use]
pub fn is_own_ground(soname: &str) -> bool {
    OWN_GROUND.iter().any(|own| soname.starts_with(own))
}

/// An entry to hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedEntry {
    /// Its address in the file.
    pub address: u64,
    /// The number of bytes from there on that are displaced, including the landing pad, as
    /// `dimmer_scan` reports it.
    pub displaced: u8,
    /// The registers that go along if its calls are delegated rather than migrated with their
    /// thread.
    pub leaf: Option<Leaf>,
    /// The number of the mark that it is, if it is one.
    pub mark: Option<u32>,
}

impl PlannedEntry {
    /// An entry that is hooked as `dimmer_scan` reports. Its calls migrate with their thread if
    /// they are moved.
    #[must_use]
    pub const fn new(address: u64, displaced: u8) -> Self {
        Self { address, displaced, leaf: None, mark: None }
    }

    fn read(line: &str) -> Option<Self> {
        let (line, mark) = match line.split_once(MARK) {
            Some((line, mark)) => (line, Some(mark.parse().ok()?)),
            None => (line, None),
        };
        let mut words = line.split(' ');
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        let displaced = words.next()?.parse().ok()?;
        let Some(reads_general) = words.next() else {
            return Some(Self { mark, ..Self::new(address, displaced) });
        };
        let leaf = Leaf {
            reads_general: u16::from_str_radix(reads_general, 16).ok()?,
            reads_vectors: u64::from_str_radix(words.next()?, 16).ok()?,
            returns_general: u16::from_str_radix(words.next()?, 16).ok()?,
            returns_vectors: match words.next()? {
                "0" => None,
                bits => Some(Width::from_bits(bits.parse().ok()?)?),
            },
        };
        Some(Self { address, displaced, leaf: Some(leaf), mark })
    }
}

/// The entry's line in a plan.
impl fmt::Display for PlannedEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, displaced, leaf, mark } = self;
        write!(f, "{address:x} {displaced}")?;
        if let Some(leaf) = leaf {
            let Leaf { reads_general, reads_vectors, returns_general, returns_vectors } = leaf;
            let width = returns_vectors.map_or(0, Width::bits);
            write!(f, " {reads_general:x} {reads_vectors:x} {returns_general:x} {width}")?;
        }
        mark.map_or(Ok(()), |mark| write!(f, "{MARK}{mark}"))
    }
}

/// The error has no details: these lines are written and read only here.
impl FromStr for PlannedEntry {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        Self::read(line).ok_or(())
    }
}

/// Keeps a plan: processes with the directory `directory` hook these entries of the file, and no
/// others.
///
/// # Errors
/// If the file is not there, or nothing can be written.
pub fn keep_plan(file: &Path, mut entries: Vec<PlannedEntry>, directory: &Path) -> io::Result<()> {
    sort(&mut entries);
    let kept = kept_at(file, directory)?;
    // A file without code has no runtime either.
    let runtime = dimmer_scan::runtime(&Mapped::new(&File::open(file)?)?).ok().flatten();
    replace(&kept, &Plan { runtime, counts: Counts::default(), entries }.write())
}

/// Adds entries to the plan that `directory` has for a file, or keeps a plan of these alone.
///
/// # Errors
/// As [`keep_plan`].
pub fn add_to_plan(file: &Path, entries: &[PlannedEntry], directory: &Path) -> io::Result<()> {
    let kept = kept_at(file, directory)?;
    let Some(mut plan) = read(&kept).ok().and_then(|text| Plan::read(&text)) else {
        return keep_plan(file, entries.to_vec(), directory);
    };
    let is_new = |one: &&PlannedEntry| plan.entries.iter().all(|own| own.address != one.address);
    let new: Vec<PlannedEntry> = entries.iter().filter(is_new).copied().collect();
    plan.entries.extend(new);
    sort(&mut plan.entries);
    replace(&kept, &plan.write())
}

/// The counts of the plan that `directory` has for a file; `None` if it has no plan.
#[must_use]
pub fn kept_counts(file: &Path, directory: &Path) -> Option<Counts> {
    let text = fs::read_to_string(kept_at(file, directory).ok()?).ok()?;
    Plan::read(&text).map(|plan| plan.counts)
}

/// How many functions of a file there are to hook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Functions with instructions of the classes.
    pub functions: usize,
    /// The number of these functions with an entry that can be hooked.
    pub hookable: usize,
    /// Entries that can be hooked, and functions that jump into the middle of others and are hooked
    /// for that.
    pub entries: usize,
    /// The number of hookable functions that others enter in the middle where no hook counts that.
    pub entered_unseen: usize,
}

/// Keeps a plan of what to hook of a file for these classes, so that processes with the directory
/// `directory` need not scan the file.
///
/// # Errors
/// If the file cannot be read or scanned.
pub fn prepare_plan(
    file: &Path,
    classes: &BTreeSet<InstructionClass>,
    directory: &Path,
) -> Result<(), HookError> {
    Plan::of(file, classes, Some(directory)).map(drop)
}

/// What the loader needs to load a program or library; `None` if the file is neither. Reads only
/// the parts of the file that hold this.
#[must_use]
pub fn needed(file: &File) -> Option<Needed> {
    dimmer_scan::needed(&Mapped::new(file).ok()?).ok()
}

/// What to hook of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The language runtime that is part of the file.
    pub(crate) runtime: Option<Runtime>,
    /// The results of a scan for classes; zeros in a plan of entries that a user has named.
    pub(crate) counts: Counts,
    /// Each entry that is hooked, at the start of a function or inside, sorted by address.
    pub(crate) entries: Vec<PlannedEntry>,
}

impl Plan {
    /// The plan for a file: the one in `directory`, or a new one, which is then kept there.
    ///
    /// # Errors
    /// If the file cannot be read or scanned.
    pub(crate) fn of(
        path: &Path,
        classes: &BTreeSet<InstructionClass>,
        directory: Option<&Path>,
    ) -> Result<Self, HookError> {
        let kept = directory.and_then(|directory| kept_at(path, directory).ok());
        let text = kept.as_ref().and_then(|kept| read(kept).ok());
        if let Some(plan) = text.and_then(|text| Self::read(&text)) {
            return Ok(plan);
        }
        let file = File::open(path).map_err(HookError::Read)?;
        let bytes = Mapped::new(&file).map_err(HookError::Read)?;
        let mut plan = Self { runtime: dimmer_scan::runtime(&bytes)?, ..Self::default() };
        // Without classes, only entries in kept plans are hooked.
        if !classes.is_empty() {
            plan.take(&functions(&bytes, classes)?, &bytes)?;
        }
        if let Some(kept) = kept {
            // If this fails, the next process has to scan the file again. It has no other effect.
            let _ = replace(&kept, &plan.write());
        }
        Ok(plan)
    }

    /// Plans to hook these functions of a file, as far as they can be hooked.
    fn take(&mut self, functions: &[Function], bytes: &[u8]) -> Result<(), ScanError> {
        self.counts.functions = functions.len();
        if functions.is_empty() || is_own_ground(&dimmer_scan::soname(bytes)?.unwrap_or_default()) {
            return Ok(());
        }
        let own: BTreeSet<u64> = functions.iter().map(|one| one.addresses.start).collect();
        for function in functions {
            let before = self.entries.len();
            let leaders = function.hookable_leaders().filter(|(start, _)| !own.contains(start));
            let entries = function.hookable_entries().chain(leaders);
            self.entries.extend(entries.map(|(address, bytes)| PlannedEntry::new(address, bytes)));
            let is_hookable = self.entries.len() > before;
            self.counts.hookable += usize::from(is_hookable);
            let is_unseen = is_hookable && function.is_entered_unseen(|start| own.contains(&start));
            self.counts.entered_unseen += usize::from(is_unseen);
        }
        sort(&mut self.entries);
        self.counts.entries = self.entries.len();
        Ok(())
    }

    /// Writes one line for the runtime, if there is one, one for the counts, and one for each
    /// entry. A last line shows that the file is complete.
    fn write(&self) -> String {
        let mut text = String::new();
        if let Some(runtime) = self.runtime {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{RUNTIME}{runtime}");
        }
        let Counts { functions, hookable, entries, entered_unseen } = self.counts;
        let _ = writeln!(text, "{functions} {hookable} {entries} {entered_unseen}");
        for entry in &self.entries {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{entry}");
        }
        text.push_str(END);
        text
    }

    fn read(text: &str) -> Option<Self> {
        let mut lines = text.strip_suffix(END)?.lines().peekable();
        let runtime = lines.peek().and_then(|line| line.strip_prefix(RUNTIME));
        let runtime = runtime.map(|name| name.parse().map_err(drop)).transpose().ok()?;
        if runtime.is_some() {
            lines.next();
        }
        let mut counts = lines.next()?.split(' ').map(|count| count.parse().ok());
        let mut count = || counts.next().flatten();
        let counts = Counts {
            functions: count()?,
            hookable: count()?,
            entries: count()?,
            entered_unseen: count()?,
        };
        let entries = lines.map(PlannedEntry::read).collect::<Option<_>>()?;
        Some(Self { runtime, counts, entries })
    }
}

const RUNTIME: &str = "runtime ";
/// In an entry's line, before the number of its mark.
const MARK: &str = " mark ";
const END: &str = "end\n";

/// Sorts entries by address, and keeps one of those at the same address: a function may lead into
/// several others.
fn sort(entries: &mut Vec<PlannedEntry>) {
    entries.sort_by_key(|entry| entry.address);
    entries.dedup_by_key(|entry| entry.address);
}

/// The functions of a file with instructions of one of these classes.
fn functions(
    bytes: &[u8],
    classes: &BTreeSet<InstructionClass>,
) -> Result<Vec<Function>, ScanError> {
    if classes.iter().all(|class| *class >= InstructionClass::Light256) {
        return dimmer_scan::scan_wide(bytes, classes);
    }
    let mut scan = dimmer_scan::scan(bytes)?;
    scan.check_narrow(bytes)?;
    let holds =
        |function: &Function| classes.iter().any(|class| function.instructions.of(*class) > 0);
    scan.functions.retain(holds);
    Ok(scan.functions)
}

fn kept_at(path: &Path, directory: &Path) -> io::Result<PathBuf> {
    let file = fs::metadata(path)?;
    let (seconds, rest) = (file.mtime(), file.mtime_nsec());
    let name = format!("{}-{}-{}-{seconds}.{rest}.plan", file.dev(), file.ino(), file.size());
    Ok(directory.join(name))
}

/// Reads the text of a plan. Most plans have only some bytes.
fn read(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut text = Vec::new();
    let mut part = [0; 1 << 12];
    loop {
        let length = file.read(&mut part)?;
        text.extend_from_slice(&part[..length]);
        if length < part.len() {
            return String::from_utf8(text).map_err(io::Error::other);
        }
    }
}

/// Replaces a file. A process that reads it meanwhile gets the old one or the new one.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}", std::process::id()));
    // This may be the program's process, and a write beyond its limit would end it.
    may_write(text.len())?;
    let replaced = fs::write(&new, text).and_then(|()| fs::rename(&new, path));
    replaced.inspect_err(|_| drop(fs::remove_file(&new)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_classes_nothing_is_looked_for() {
        let own = Path::new("/proc/self/exe");
        assert_eq!(Plan::of(own, &BTreeSet::new(), None).unwrap(), Plan::default());
        let directory = Plan::of(&std::env::temp_dir(), &BTreeSet::new(), None);
        assert!(matches!(directory, Err(HookError::Read(_))));
    }

    #[test]
    fn plans_that_are_kept_tell_what_a_scan_finds() {
        let own = Path::new("/proc/self/exe");
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(kept_counts(own, directory.path()), None);
        let classes = BTreeSet::from([InstructionClass::Light256]);
        prepare_plan(own, &classes, directory.path()).unwrap();
        let mut functions = dimmer_scan::scan(&fs::read(own).unwrap()).unwrap().functions;
        functions.retain(|function| function.instructions.of(InstructionClass::Light256) > 0);
        let hookable =
            functions.iter().filter(|function| function.hookable_entries().next().is_some());
        let expected = Counts {
            functions: functions.len(),
            hookable: hookable.count(),
            entries: functions.iter().flat_map(Function::hookable_entries).count(),
            entered_unseen: 0,
        };
        assert_eq!(kept_counts(own, directory.path()), Some(expected));
        assert!(expected.hookable > 0, "{expected:?}");
    }

    #[test]
    fn entries_are_added_to_a_plan_once() {
        let own = Path::new("/proc/self/exe");
        let directory = tempfile::tempdir().unwrap();
        let entry = |address| PlannedEntry::new(address, 5);
        let kept = || Plan::of(own, &BTreeSet::new(), Some(directory.path())).unwrap().entries;
        add_to_plan(own, &[entry(0x2000)], directory.path()).unwrap();
        add_to_plan(own, &[entry(0x2000), entry(0x1000)], directory.path()).unwrap();
        assert_eq!(kept(), [entry(0x1000), entry(0x2000)]);
    }

    #[test]
    fn plan_is_read_as_it_was_written() {
        let leaf = Leaf {
            reads_general: 0xc6,
            reads_vectors: 6,
            returns_general: 1,
            returns_vectors: Some(Width::Bits256),
        };
        let plan = Plan {
            runtime: None,
            counts: Counts { functions: 4, hookable: 2, entries: 3, entered_unseen: 1 },
            entries: vec![
                PlannedEntry::new(0x1000, 5),
                PlannedEntry { leaf: Some(leaf), ..PlannedEntry::new(0x2000, 6) },
                PlannedEntry { leaf: Some(leaf), mark: Some(0), ..PlannedEntry::new(0x3000, 6) },
                PlannedEntry { mark: Some(12), ..PlannedEntry::new(0xffff_ffff_1040, 23) },
            ],
        };
        assert_eq!(Plan::read(&plan.write()), Some(plan.clone()));
        let of_go = Plan { runtime: Some(Runtime::Go), ..plan.clone() };
        assert_eq!(Plan::read(&of_go.write()), Some(of_go));
        assert_eq!(Plan::read("runtime C\n0 0 0 0\nend\n"), None);
        assert_eq!(Plan::read("1 2 3\nend\n"), None);
        assert_eq!(Plan::read(&plan.write()[..9]), None);
        assert_eq!(Plan::read("x\nend\n"), None);
        assert_eq!(Plan::read(&Plan::default().write()), Some(Plan::default()));
    }
}
