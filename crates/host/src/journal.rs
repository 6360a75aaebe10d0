//! A record of every change to the machine, written before the change is made, so that it can
//! always be undone: when the [`Journal`] is dropped, or by [`restore()`] after a crash.
//!
//! One file per journal, `/run/dimmer/journal.<process>.<number>`:
//!
//! ```text
//! v2 <TAB> path <TAB> value before <TAB> value written <TAB> sum <LF>   a file was written
//! group2 <TAB> path <TAB> file that lists its members <TAB> sum <LF>  a control group was made
//! controller2 <TAB> path <TAB> controller <TAB> sum <LF>              a controller was switched on
//! other2 <TAB> path <TAB> value at rest <TAB> sum <LF>            another program writes it
//! register1 <TAB> path <TAB> number <TAB> value before <TAB> value written <TAB> sum <LF>
//!                                                          a register (MSR) was written
//! corepower1 <TAB> place <TAB> value before <TAB> value written <TAB> sum <LF>
//!                                      a place of Intel Speed Select core power was changed
//! ```
//!
//! One line per change, but no second one for a value that was written to the same place before;
//! `sum` is the CRC-32 of the preceding part of the line. A register is one place by whichever
//! module it was written (`msr`, `msr-safe`). A control group is undone by moving its
//! members to the group above and removing it. Writes to files within it therefore need no line of
//! their own. A file that another program writes, which the journal's process has started, gets its
//! value at rest whatever it holds, because only that program knows what it writes; so do limits
//! that the kernel writes by itself when turbo is switched. All files are read before the first is
//! written back, and those that do not take their value get it once more after the others: of two
//! limits of a clock, the kernel lets neither pass the other. A place of core power is on record
//! also if it held already what it should: where a class or a core of a domain then holds what
//! others have set, they use the domain, and its switches stay. A switch gets its value before also
//! if it reads as that, because a change of it may show later.
//!
//! | moment of a crash               | what is on disk       | what [`restore()`] does            |
//! |---------------------------------|-----------------------|------------------------------------|
//! | while the line is written       | line without LF       | skips it: there was no change      |
//! | before the change               | whole line            | finds the value before: nothing    |
//! | after the change                | whole line            | finds the value written: undoes it |
//! | after a later change by others  | whole line            | finds a third value: leaves it     |
//! | a file was emptied, not written | whole line            | reports it, keeps the journal      |
//! | the journal was damaged         | line with a wrong sum | reports it, keeps the journal      |
//! | while undoing                   | all lines             | as above, path by path             |
//!
//! A journal whose changes are to stay (`Journal::keep`) is named `kept` instead of `journal`. Only
//! `dimmer restore` undoes those.
//!
//! A process holds an exclusive lock (`flock`) on its journal until it ends. The kernel releases
//! the lock however the process ends, so a journal that can be locked has no living owner. This
//! does not depend on process ids, which are reused, and works under any root. A second lock,
//! `/run/dimmer/lock`, is held during each single change or restoration, so that two processes
//! never change the same file at the same time: the second gets an error that names the first.
//! A child of fork, which has its parent's open files, does not keep the second lock: its holder
//! unlocks it. But it keeps the lock on its parent's journal, which counts as live until it ends.
//!
//! A journal is followed only if it is a regular file that belongs to root or to the user who
//! restores. Its paths are looked up under the root, which neither `..` nor a symbolic link can
//! leave.

mod record;
mod restore;

use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{FlockOperation, flock};

use self::record::Record;
pub use self::restore::{Damaged, Failed, Left, LiveJournal, OfLive, Report, Restored, restore};
use crate::core_power::{self, Place};
use crate::msr;
use crate::root::{Patience, Root, RootError};

/// The directory of journals.
pub const DIRECTORY: &str = "/run/dimmer";
const LOCK: &str = "/run/dimmer/lock";
const PREFIX: &str = "journal.";
/// The prefix of journals whose changes stay after their processes have ended.
const KEPT: &str = "kept.";

/// Why the machine was not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The journal cannot be written, so nothing was changed. Running as root helps.
    #[error("cannot use the journal of changes")]
    Journal(#[source] RootError),
    /// The value before the change cannot be read. Nothing was changed.
    #[error("cannot read what is to be changed")]
    Before(#[source] RootError),
    /// The kernel refused the new value.
    #[error("cannot change the machine")]
    Change(#[source] RootError),
    /// The kernel accepted the write but did nothing.
    #[error("wrote `{written}` to {path}, which still holds `{found}`")]
    NotTaken {
        /// The file, as the kernel names it.
        path: String,
        /// The value that was written.
        written: String,
        /// The value that the file held before and holds now.
        found: String,
    },
    /// Another process of Dimmer has changed this file. Nothing was changed: wait for that process,
    /// or restore first if it has crashed.
    #[error("process {process} has changed {path} and not yet restored it")]
    Busy {
        /// The file, as the kernel names it.
        path: String,
        /// The process id.
        process: u32,
    },
    /// The file was changed on request for good. Nothing was changed: restore first.
    #[error("{path} holds a change that was to be kept; `dimmer restore` undoes it")]
    Kept {
        /// The file, as the kernel names it.
        path: String,
    },
}

/// The changes of this process. Dropping it undoes them.
#[derive(Debug)]
pub struct Journal {
    root: Root,
    /// The journal's path and its locked file; `None` before the first change.
    file: Option<(String, File)>,
    records: Vec<Record>,
    /// What the kernel has made of values that it did not take as written: path, written, found.
    rounded: Vec<[String; 3]>,
    /// Whether the file ends in a partial line, because the disk accepted neither the rest of the
    /// line nor its removal.
    is_torn: bool,
    /// Whether all records are on disk.
    is_whole: bool,
}

impl Journal {
    /// Opens a journal for changes under `root`. First restores what crashed processes left
    /// changed; otherwise that state would be recorded as the one to restore.
    ///
    /// Creates no file before the first change.
    ///
    /// # Errors
    /// [`JournalError::Journal`]: there are journals, and this process may not read them.
    pub fn open(root: &Root) -> Result<(Self, Report), JournalError> {
        let report = restore::of_ended(root)?;
        let (root, records, rounded) = (root.clone(), Vec::new(), Vec::new());
        Ok((Self { root, file: None, records, rounded, is_torn: false, is_whole: true }, report))
    }

    /// The root under which this journal makes changes.
    #[must_use]
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// Writes `new` into the file `path`, after recording what the file held. Does nothing if the
    /// file already holds `new`.
    ///
    /// # Errors
    /// [`JournalError`]. Earlier changes stay on record and will be undone.
    pub fn change(&mut self, path: &str, new: &str) -> Result<(), JournalError> {
        let _lock = lock(&self.root).map_err(JournalError::Journal)?;
        self.refuse_if_busy(path)?;
        let before = self.root.text(path).map_err(JournalError::Before)?;
        if before == new {
            return Ok(());
        }
        self.record(Record::file(path, &before, new)).map_err(JournalError::Journal)?;
        self.root.write(path, new).map_err(JournalError::Change)?;

        let (awaited, patience) = self.awaited(path, &before, new);
        let after = self.root.text_after(path, &awaited, patience);
        let after = after.map_err(JournalError::Change)?;
        self.rounded.retain(|[of, written, _]| of != path || written != new);
        if after != new {
            self.rounded.push([path, new, &after].map(str::to_owned));
        }
        if after == before {
            let (path, written) = (path.to_owned(), new.to_owned());
            return Err(JournalError::NotTaken { path, written, found: after });
        }
        if after != new {
            // The kernel rounds some values. The rounded value counts as ours too.
            self.record(Record::file(path, &before, &after)).map_err(JournalError::Journal)?;
        }
        Ok(())
    }

    /// Records that another program, which the caller starts next, or the kernel by itself writes
    /// the file `path`. Undoing gives the file back what it holds now, whatever that program has
    /// written.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn change_by_other(&mut self, path: &str) -> Result<(), JournalError> {
        let _lock = lock(&self.root).map_err(JournalError::Journal)?;
        self.refuse_if_busy(path)?;
        let rest = self.root.text(path).map_err(JournalError::Before)?;
        self.record(Record::by_other(path, &rest)).map_err(JournalError::Journal)
    }

    /// Writes a register of the device file `path` (see [`crate::msr`]), after recording what it
    /// held. Does nothing if it already holds `new`.
    ///
    /// # Errors
    /// [`JournalError`]; [`JournalError::NotTaken`] if the register keeps its value.
    pub fn change_register(
        &mut self,
        path: &str,
        register: u32,
        new: u64,
    ) -> Result<(), JournalError> {
        let _lock = lock(&self.root).map_err(JournalError::Journal)?;
        let before = msr::read(&self.root, path, register).map_err(JournalError::Before)?;
        let record = |written| Record::register(path, register, before, written);
        let place = record(new).place();
        self.refuse_if_busy(&place)?;
        if before == new {
            return Ok(());
        }
        self.record(record(new)).map_err(JournalError::Journal)?;
        msr::write(&self.root, path, register, new).map_err(JournalError::Change)?;
        let found = msr::read(&self.root, path, register).map_err(JournalError::Change)?;
        if found == before {
            let (written, found) = (format!("{new:#x}"), format!("{found:#x}"));
            return Err(JournalError::NotTaken { path: place, written, found });
        }
        if found != new {
            // The processor keeps some bits. The value that it took counts as ours too.
            self.record(record(found)).map_err(JournalError::Journal)?;
        }
        Ok(())
    }

    /// Changes a place of Intel Speed Select core power ([`crate::core_power`]), after recording
    /// what it held. Changes nothing if it already holds `new`, but records it: if it holds
    /// something else when all is undone, others have changed it.
    ///
    /// # Errors
    /// [`JournalError`]; [`JournalError::NotTaken`] if the place holds something else then.
    pub fn change_core_power(&mut self, place: Place, new: u64) -> Result<(), JournalError> {
        let _lock = lock(&self.root).map_err(JournalError::Journal)?;
        self.refuse_if_busy(&place.name())?;
        let before = core_power::held(&self.root, place).map_err(JournalError::Before)?;
        self.record(Record::core_power(place, before, new)).map_err(JournalError::Journal)?;
        if before == new {
            return Ok(());
        }
        core_power::write(&self.root, place, new).map_err(JournalError::Change)?;
        let found = core_power::held_after(&self.root, place, new).map_err(JournalError::Change)?;
        if found == new {
            return Ok(());
        }
        if found != before {
            // What the processor has made of it counts as ours, too.
            self.record(Record::core_power(place, before, found)).map_err(JournalError::Journal)?;
        }
        let (written, found) = (format!("{new:#x}"), format!("{found:#x}"));
        Err(JournalError::NotTaken { path: place.name(), written, found })
    }

    /// Makes a control group, after recording it. `members` names the file that lists the members,
    /// in this group and in the one above: undoing moves the members there.
    ///
    /// # Errors
    /// [`JournalError::Change`], also if the group already exists.
    pub(crate) fn make_group(&mut self, path: &str, members: &str) -> Result<(), JournalError> {
        let _lock = lock(&self.root).map_err(JournalError::Journal)?;
        if self.root.exists(path) {
            let exists = self.root.write_error(path, io::ErrorKind::AlreadyExists.into());
            return Err(JournalError::Change(exists));
        }
        self.record(Record::group(path, members)).map_err(JournalError::Journal)?;
        self.root.make_group(path).map_err(JournalError::Change)
    }

    /// Switches a controller on for the children of a control group, in the group's file
    /// `cgroup.subtree_control`.
    ///
    /// # Errors
    /// [`JournalError`]; [`JournalError::NotTaken`] if the kernel did nothing.
    pub(crate) fn switch_on(&mut self, path: &str, controller: &str) -> Result<(), JournalError> {
        let _lock = lock(&self.root).map_err(JournalError::Journal)?;
        self.refuse_if_busy(path)?;
        if restore::lists(&self.root, path, controller).map_err(JournalError::Before)? {
            return Ok(());
        }
        self.record(Record::controller(path, controller)).map_err(JournalError::Journal)?;
        let written = format!("+{controller}");
        self.root.write(path, &written).map_err(JournalError::Change)?;
        let found = self.root.text(path).map_err(JournalError::Change)?;
        if !restore::names(&found, controller) {
            let path = path.to_owned();
            return Err(JournalError::NotTaken { path, written, found });
        }
        Ok(())
    }

    /// Undoes all changes, latest first, and removes the journal if every step succeeded.
    ///
    /// # Errors
    /// [`JournalError::Journal`]: the lock or the journal is inaccessible; [`restore()`] will find
    /// the journal.
    pub fn undo(mut self) -> Result<Report, JournalError> {
        self.undo_all()
    }

    /// Leaves the changes in place when this process ends. They stay on record: `dimmer restore`
    /// undoes them.
    ///
    /// # Errors
    /// [`JournalError::Journal`]: the journal cannot be renamed; the changes are undone.
    pub fn keep(mut self) -> Result<(), JournalError> {
        let Some((path, _)) = &self.file else { return Ok(()) };
        let name = path.rsplit('/').next().unwrap_or_default().replacen(PREFIX, KEPT, 1);
        let _lock = lock(&self.root).map_err(JournalError::Journal)?;
        self.root.rename(path, &name).map_err(JournalError::Journal)?;
        self.file = None;
        Ok(())
    }

    fn undo_all(&mut self) -> Result<Report, JournalError> {
        let mut report = Report::default();
        let records = std::mem::take(&mut self.records);
        let Some((path, _file)) = self.file.take() else { return Ok(report) };
        let _lock = lock(&self.root).map_err(JournalError::Journal)?;
        restore::undo(&self.root, &records, &mut report);
        if report.failed.is_empty() {
            self.root.remove(&path).map_err(JournalError::Journal)?;
        }
        Ok(report)
    }

    /// Appends a record and waits until it is on disk. A value that was written before needs no
    /// second record: so a file that changes often between few values does not fill the journal.
    fn record(&mut self, record: Record) -> Result<(), RootError> {
        if self.is_whole && self.records.iter().any(|known| known.covers(&record)) {
            return Ok(());
        }
        let (journal, mut file) = match self.file.take() {
            Some(open) => open,
            None => create(&self.root)?,
        };
        let end = file.metadata().map(|meta| meta.len());
        // A partial line must not spoil the next one: it becomes a line of its own, which is
        // reported as damaged.
        let start = if self.is_torn { "\n" } else { "" };
        let append = |file: &mut File| -> io::Result<()> {
            file.write_all(format!("{start}{}", record.line()).as_bytes())?;
            file.sync_data()
        };
        let appended = append(&mut file);
        self.is_torn = appended.is_err() && !end.is_ok_and(|end| file.set_len(end).is_ok());
        self.is_whole &= appended.is_ok();
        let appended = appended.map_err(|source| self.root.write_error(&journal, source));
        self.file = Some((journal, file));
        self.records.push(record);
        appended
    }

    /// What a file is expected to hold after this write: what was written, or what it held after an
    /// earlier one, as the kernel may round both to the same. Not what it held before: whether the
    /// kernel has rounded to that, or not yet taken the write, only time tells; less of it if the
    /// kernel seemed to round this value to that the last time.
    fn awaited<'a>(&'a self, path: &str, before: &str, new: &'a str) -> (Vec<&'a str>, Patience) {
        let of_path = self.records.iter().filter(|record| record.path == path);
        let known = of_path.filter_map(Record::written);
        let rounded = self.rounded.iter().filter(|[of, written, _]| of == path && written == new);
        let rounded = rounded.map(|[_, _, found]| found.as_str());
        let is_known = rounded.clone().any(|found| found == before);
        let values = std::iter::once(new).chain(known).chain(rounded);
        let patience = if is_known { Patience::Short } else { Patience::Long };
        (values.filter(|value| *value != before).collect(), patience)
    }

    fn refuse_if_busy(&self, place: &str) -> Result<(), JournalError> {
        let own = self.file.as_ref().map(|(name, _)| name.as_str());
        for name in journals(&self.root) {
            if own == Some(name.as_str()) {
                continue;
            }
            // A file that is not one of Dimmer's journals blocks no change.
            let Ok(file) = self.root.open_own(&name) else { continue };
            let text = self.root.text_of(&name, &file).unwrap_or_default();
            if record::parse(&text).0.iter().any(|record| record.place() == place) {
                let (path, process) = (place.to_owned(), process(&name).unwrap_or(0));
                return Err(match is_kept(&name) {
                    true => JournalError::Kept { path },
                    false => JournalError::Busy { path, process },
                });
            }
        }
        Ok(())
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // Failed steps stay in the journal for `restore`; there is no caller left to report them
        // to.
        let _ = self.undo_all();
    }
}

/// Changes that are on record and not undone, with their process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The process that made the changes.
    pub process: u32,
    /// The state of that process.
    pub owner: Owner,
    /// The files on record, as the kernel names them, registers with their number; empty if this
    /// process may not read the journal.
    pub paths: Vec<String>,
    /// Whether the file is not one of Dimmer's journals, or cannot be read completely;
    /// [`restore()`] reports the details.
    pub is_damaged: bool,
}

/// The state of the process that a journal belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The process is alive and will undo its changes.
    Lives,
    /// The process has ended: [`restore()`] undoes its changes.
    Gone,
    /// The process has ended, and its changes are to stay until [`restore()`] undoes them.
    Kept,
    /// This process may not read the journal.
    Hidden,
}

/// The changes that are on record and not undone. Changes nothing.
#[must_use]
pub fn pending(root: &Root) -> Vec<Pending> {
    let describe = |name: String| {
        let process = process(&name)?;
        let unread = |error: RootError| Pending {
            process,
            owner: Owner::Hidden,
            paths: Vec::new(),
            is_damaged: error.kind().is_none(),
        };
        let read = root.open_own(&name).map(Locked);
        let read = read.and_then(|file| Ok((root.text_of(&name, &file.0)?, file)));
        let (text, file) = match read {
            Ok(read) => read,
            Err(error) => return Some(unread(error)),
        };
        // A shared lock, so that two readers do not take each other for the owner.
        let gone = file.try_lock(FlockOperation::NonBlockingLockShared);
        let (records, damaged) = record::parse(&text);
        let mut paths: Vec<String> = records.iter().map(Record::place).collect();
        paths.sort_unstable();
        paths.dedup();
        let owner = match gone {
            true if is_kept(&name) => Owner::Kept,
            true => Owner::Gone,
            false => Owner::Lives,
        };
        Some(Pending { process, owner, paths, is_damaged: !damaged.is_empty() })
    };
    journals(root).into_iter().filter_map(describe).collect()
}

/// Creates a journal of this process and locks it. The caller holds the directory's lock, so no
/// other process sees the file before it is locked.
fn create(root: &Root) -> Result<(String, File), RootError> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let process = std::process::id();
    loop {
        // Relaxed: the number only has to be unique.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{process}.{number}");
        // A kept journal of an earlier process with this process id: this one could not be kept.
        if root.exists(&format!("{DIRECTORY}/{KEPT}{name}")) {
            continue;
        }
        let path = format!("{DIRECTORY}/{PREFIX}{name}");
        match root.create_new(&path) {
            Ok(file) => {
                flock(&file, FlockOperation::LockExclusive)
                    .map_err(|error| root.write_error(&path, error.into()))?;
                return Ok((path, file));
            }
            // Left by a crashed process with this process id, in this or another PID namespace.
            Err(error) if error.kind() == Some(io::ErrorKind::AlreadyExists) => {}
            Err(error) => return Err(error),
        }
    }
}

/// A file that may be locked. Dropping it releases the lock. Closing it would not, if a thread has
/// forked meanwhile: the child has the same open file, to which the lock belongs.
#[derive(Debug)]
struct Locked(File);

impl Locked {
    /// Locks the file if no other process holds it. Returns whether it did.
    fn try_lock(&self, operation: FlockOperation) -> bool {
        flock(&self.0, operation).is_ok()
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // An open file can always be unlocked.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// What keeps this process from putting changes on record: a directory or file that it may not
/// write. `None` if it may.
pub(crate) fn unwritable(root: &Root) -> Option<&'static str> {
    let above = [DIRECTORY, "/run", "/"].into_iter().find(|directory| root.exists(directory))?;
    if !root.is_directory_writable(above) {
        return Some(above);
    }
    (root.exists(LOCK) && !root.is_writable(LOCK)).then_some(LOCK)
}

/// Waits for the directory's lock.
fn lock(root: &Root) -> Result<Locked, RootError> {
    root.create_directory(DIRECTORY)?;
    let file = Locked(root.open_or_create_own(LOCK)?);
    match flock(&file.0, FlockOperation::LockExclusive) {
        Ok(()) => Ok(file),
        Err(error) => Err(root.write_error(LOCK, error.into())),
    }
}

/// The paths of all journals, sorted.
fn journals(root: &Root) -> Vec<String> {
    let names = root.list(DIRECTORY).unwrap_or_default();
    let journals = names.into_iter().filter(|name| process(name).is_some());
    journals.map(|name| format!("{DIRECTORY}/{name}")).collect()
}

/// The process id in a journal's name or path.
fn process(name: &str) -> Option<u32> {
    let name = name.rsplit('/').next()?;
    let rest = name.strip_prefix(PREFIX).or_else(|| name.strip_prefix(KEPT))?;
    rest.split_once('.')?.0.parse().ok()
}

/// Whether the changes of this journal stay.
fn is_kept(journal: &str) -> bool {
    journal.rsplit('/').next().is_some_and(|name| name.starts_with(KEPT))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value before is not awaited: the file may hold it because the write is not taken over.
    #[test]
    fn a_value_that_the_kernel_has_rounded_to_before_is_awaited_too() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::new(directory.path());
        std::fs::write(directory.path().join("limit"), "0").unwrap();
        let (mut journal, _) = Journal::open(&root).unwrap();
        journal.change("/limit", "1").unwrap();
        journal.change("/limit", "2").unwrap();
        assert_eq!(journal.awaited("/limit", "2", "3"), (vec!["3", "1"], Patience::Long));
        assert_eq!(journal.awaited("/other", "2", "3"), (vec!["3"], Patience::Long));
        // The kernel has been seen to make 2 of 3, or it was slow to take the 3.
        journal.rounded.push(["/limit", "3", "2"].map(str::to_owned));
        assert_eq!(journal.awaited("/limit", "2", "3"), (vec!["3", "1"], Patience::Short));
        assert_eq!(journal.awaited("/limit", "2", "4"), (vec!["4", "1"], Patience::Long));
        assert_eq!(journal.awaited("/limit", "1", "3"), (vec!["3", "2", "2"], Patience::Long));
        // It was slow.
        journal.change("/limit", "3").unwrap();
        assert!(journal.rounded.is_empty());
    }

    /// A child of fork has the same open file as its parent, as a copy of the file's descriptor.
    #[test]
    fn a_lock_is_released_although_a_child_of_fork_has_the_file_open() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::new(directory.path());
        let locked = lock(&root).unwrap();
        let other = Locked(root.open_own(LOCK).unwrap());
        let of_child = locked.0.try_clone().unwrap();
        assert!(!other.try_lock(FlockOperation::NonBlockingLockExclusive));
        drop(locked);
        assert!(other.try_lock(FlockOperation::NonBlockingLockExclusive));
        drop(of_child);
    }
}
