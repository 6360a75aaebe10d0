//! Which entries of a file to hook, kept for the next process: a shell script starts tens of processes, most of
//! them with the same libraries.
//!
//! A plan is named by what tells a file apart: device, inode, length and time of change. Its directory is for
//! one set of classes and one version of Dimmer.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use dimmer_processor::class::InstructionClass;
use dimmer_scan::{Function, Leaf, Needed, Runtime, Scan, Width};

use crate::file::Mapped;
use crate::hooks::HookError;
use crate::ledger::may_write;

/// Names of files that hooks, or the loader under them, run on themselves: the C library and the loader,
/// and the unwinder.
const OWN_GROUND: [&str; 4] = ["libc.", "ld-", "ld64.", "libgcc_s."];

/// Whether hooks, or the loader under them, run on the library of this name themselves; then nothing of it is hooked.
#[must_use]
pub fn is_own_ground(soname: &str) -> bool {
    OWN_GROUND.iter().any(|own| soname.starts_with(own))
}

/// An entry to hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedEntry {
    /// Its address in the file.
    pub address: u64,
    /// How many bytes from there on are displaced, the landing pad's included, as `dimmer_scan` says.
    pub displaced: u8,
    /// What travels where its calls are lent to another core rather than moved with their thread.
    pub leaf: Option<Leaf>,
}

impl PlannedEntry {
    /// An entry that is hooked as `dimmer_scan` says, whose calls go with their thread if they are moved.
    #[must_use]
    pub const fn new(address: u64, displaced: u8) -> Self {
        Self { address, displaced, leaf: None }
    }

    fn read(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        let displaced = words.next()?.parse().ok()?;
        let Some(reads_general) = words.next() else { return Some(Self::new(address, displaced)) };
        let leaf = Leaf {
            reads_general: u16::from_str_radix(reads_general, 16).ok()?,
            reads_vectors: u64::from_str_radix(words.next()?, 16).ok()?,
            returns_general: u16::from_str_radix(words.next()?, 16).ok()?,
            returns_vectors: match words.next()? {
                "0" => None,
                bits => Some(Width::from_bits(bits.parse().ok()?)?),
            },
        };
        Some(Self { address, displaced, leaf: Some(leaf) })
    }
}

/// As plans hold it, in one line.
impl fmt::Display for PlannedEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, displaced, leaf } = self;
        write!(f, "{address:x} {displaced}")?;
        let Some(leaf) = leaf else { return Ok(()) };
        let Leaf { reads_general, reads_vectors, returns_general, returns_vectors } = leaf;
        let width = returns_vectors.map_or(0, Width::bits);
        write!(f, " {reads_general:x} {reads_vectors:x} {returns_general:x} {width}")
    }
}

/// Nothing is told of what is wrong: these lines are written and read here alone.
impl FromStr for PlannedEntry {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        Self::read(line).ok_or(())
    }
}

/// Has processes that look in `directory` hook these entries of a file, and no others.
///
/// # Errors
/// If the file is not there, or nothing can be written.
pub fn keep_plan(file: &Path, mut entries: Vec<PlannedEntry>, directory: &Path) -> io::Result<()> {
    entries.sort_unstable_by_key(|entry| entry.address);
    let kept = kept_at(file, directory)?;
    // What is no file of code has no runtime either.
    let runtime = dimmer_scan::runtime(&Mapped::new(&File::open(file)?)?).ok().flatten();
    replace(&kept, &Plan { runtime, entries }.write())
}

/// Has processes that look in `directory` find there what to hook of a file for these classes, so that none of them has to scan it.
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

/// What a program or library needs to be loaded, of which no more than the parts that say so is read; `None` where it is neither.
#[must_use]
pub fn needed(file: &File) -> Option<Needed> {
    dimmer_scan::needed(&Mapped::new(file).ok()?).ok()
}

/// What to hook of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The runtime of a language that is part of the file.
    pub(crate) runtime: Option<Runtime>,
    /// Each entry that is hooked, at the begin of a function or inside; by address.
    pub(crate) entries: Vec<PlannedEntry>,
}

impl Plan {
    /// The plan for a file: the one that is kept in `directory`, or a new one, which is kept then.
    ///
    /// # Errors
    /// If the file cannot be read or scanned.
    pub(crate) fn of(
        path: &Path,
        classes: &BTreeSet<InstructionClass>,
        directory: Option<&Path>,
    ) -> Result<Self, HookError> {
        let kept = directory.and_then(|directory| kept_at(path, directory).ok());
        let text = kept.as_ref().and_then(|kept| fs::read_to_string(kept).ok());
        if let Some(plan) = text.and_then(|text| Self::read(&text)) {
            return Ok(plan);
        }
        let file = File::open(path).map_err(HookError::Read)?;
        let bytes = Mapped::new(&file).map_err(HookError::Read)?;
        let mut plan = Self { runtime: dimmer_scan::runtime(&bytes)?, entries: Vec::new() };
        // Without classes only what plans that are kept name is hooked.
        if !classes.is_empty() && dimmer_scan::may_hold(&bytes, classes)? {
            let mut scan = dimmer_scan::scan(&bytes)?;
            if classes.iter().any(|class| *class < InstructionClass::Light256) {
                scan.check_narrow(&bytes)?;
            }
            plan.entries = entries(&scan, classes);
        }
        if let Some(kept) = kept {
            // Without it the next process scans the file again, nothing else.
            let _ = replace(&kept, &plan.write());
        }
        Ok(plan)
    }

    /// A line for the runtime, if there is one, and for each entry; a last one, so that a file cut short is known.
    fn write(&self) -> String {
        let mut text = String::new();
        if let Some(runtime) = self.runtime {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{RUNTIME}{runtime}");
        }
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
        Some(Self { runtime, entries: lines.map(PlannedEntry::read).collect::<Option<_>>()? })
    }
}

const RUNTIME: &str = "runtime ";
const END: &str = "end\n";

/// What to hook of a file that was scanned.
fn entries(scan: &Scan, classes: &BTreeSet<InstructionClass>) -> Vec<PlannedEntry> {
    if is_own_ground(scan.soname.as_deref().unwrap_or_default()) {
        return Vec::new();
    }
    let is_wide =
        |function: &&Function| classes.iter().any(|class| function.instructions.of(*class) > 0);
    let wide = scan.functions.iter().filter(is_wide);
    let entries = wide.flat_map(Function::hookable_entries);
    entries.map(|(address, displaced)| PlannedEntry::new(address, displaced)).collect()
}

fn kept_at(path: &Path, directory: &Path) -> io::Result<PathBuf> {
    let file = fs::metadata(path)?;
    let (seconds, rest) = (file.mtime(), file.mtime_nsec());
    let name = format!("{}-{}-{}-{seconds}.{rest}.plan", file.dev(), file.ino(), file.size());
    Ok(directory.join(name))
}

/// Replaces a file; whoever reads it meanwhile gets the old one or the new one.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}", std::process::id()));
    // This may be the program's process, which a write beyond its limit would end.
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
    fn plan_is_read_as_it_was_written() {
        let leaf = Leaf {
            reads_general: 0xc6,
            reads_vectors: 6,
            returns_general: 1,
            returns_vectors: Some(Width::Bits256),
        };
        let plan = Plan {
            runtime: None,
            entries: vec![
                PlannedEntry::new(0x1000, 5),
                PlannedEntry { leaf: Some(leaf), ..PlannedEntry::new(0x2000, 6) },
                PlannedEntry::new(0xffff_ffff_1040, 23),
            ],
        };
        assert_eq!(Plan::read(&plan.write()), Some(plan.clone()));
        let of_go = Plan { runtime: Some(Runtime::Go), ..plan.clone() };
        assert_eq!(Plan::read(&of_go.write()), Some(of_go));
        assert_eq!(Plan::read("runtime C\nend\n"), None);
        assert_eq!(Plan::read(&plan.write()[..9]), None);
        assert_eq!(Plan::read("x\nend\n"), None);
        assert_eq!(Plan::read(&Plan::default().write()), Some(Plan::default()));
    }
}
