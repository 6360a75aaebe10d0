//! Undoes the changes in journals, and reports the outcome.

mod files;
mod words;

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::fs::FlockOperation;

use self::files::{Files, Own};
use super::record::{self, Change, Record};
use super::{JournalError, Locked, is_kept, journals, lock, process};
use crate::root::{Root, RootError};

/// The outcome of undoing the changes on record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Files that were restored.
    pub restored: Vec<Restored>,
    /// Files left alone, because another program has changed them since.
    pub left: Vec<Left>,
    /// Files that could not be restored. The journal is kept for another try with more permission.
    pub failed: Vec<Failed>,
    /// Journals of living processes, left alone.
    pub live: Vec<LiveJournal>,
    /// Untrusted journals, unreadable lines of journals, and journals of other versions.
    pub damaged: Vec<Damaged>,
}

/// A file that was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The file, as the kernel names it.
    pub path: String,
    /// What Dimmer had written to it.
    pub from: String,
    /// What it holds again.
    pub to: String,
}

/// A file that another program has changed since, or that other programs rely on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// The file, as the kernel names it.
    pub path: String,
    /// What it held before Dimmer changed it.
    pub before: String,
    /// What it holds now.
    pub found: String,
    /// Why it was left, and what can be done by hand; `None`: Dimmer did not write what it holds.
    pub why: Option<String>,
}

/// A file that could not be restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The file, as the kernel names it.
    pub path: String,
    /// What it should hold.
    pub wanted: String,
    /// Reason why it does not hold that.
    pub why: String,
}

/// The journal of a living process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveJournal {
    /// The process id.
    pub process: u32,
    /// The path of the journal's file under the root.
    pub journal: String,
}

/// A journal, or a line of one, that was not followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// The path of the journal's file under the root. The file is kept.
    pub journal: String,
    /// What is wrong, with the line's number (from 1).
    pub why: String,
}

/// How to handle journals of living processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfLive {
    /// Leave them: their processes will undo the changes.
    Leave,
    /// Undo them too, while their processes still rely on the changes.
    Restore,
}

impl Report {
    /// Whether nothing was on record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether every attempt to undo a change succeeded and every journal was readable. Files that
    /// another program changed and journals of living processes do not count.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.failed.is_empty() && self.damaged.is_empty()
    }
}

/// Undoes the changes under `root` of processes that have ended, kept ones included.
///
/// # Errors
/// [`JournalError::Journal`]: there are journals, and this process may not read or lock them.
pub fn restore(root: &Root, of_live: OfLive) -> Result<Report, JournalError> {
    restore_all(root, of_live, &|_| true)
}

/// As [`restore()`] of ended processes, without changes that are to stay.
pub(super) fn of_ended(root: &Root) -> Result<Report, JournalError> {
    restore_all(root, OfLive::Leave, &|journal| !is_kept(journal))
}

fn restore_all(
    root: &Root,
    of_live: OfLive,
    is_meant: &dyn Fn(&str) -> bool,
) -> Result<Report, JournalError> {
    let mut report = Report::default();
    let meant = || journals(root).into_iter().filter(|journal| is_meant(journal));
    // Without journals there is nothing to lock, so no permission is needed.
    if meant().next().is_none() {
        return Ok(report);
    }
    let _lock = lock(root).map_err(JournalError::Journal)?;
    for journal in meant() {
        restore_one(root, &journal, of_live, &mut report).map_err(JournalError::Journal)?;
    }
    Ok(report)
}

fn restore_one(
    root: &Root,
    journal: &str,
    of_live: OfLive,
    report: &mut Report,
) -> Result<(), RootError> {
    let damage = |why: String| Damaged { journal: journal.to_owned(), why };
    let file = match root.open_own(journal) {
        Ok(file) => Locked(file),
        // The process has ended and removed its journal since the directory was read.
        Err(error) if error.is_not_found() => return Ok(()),
        Err(RootError::Foreign { why, .. }) => {
            report.damaged.push(damage(why));
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let is_ended = file.try_lock(FlockOperation::NonBlockingLockExclusive);
    if !is_ended && of_live == OfLive::Leave {
        let process = process(journal).unwrap_or(0);
        report.live.push(LiveJournal { process, journal: journal.to_owned() });
        return Ok(());
    }
    let text = match root.text_of(journal, &file.0) {
        Ok(text) => text,
        Err(RootError::Malformed { expected, .. }) => {
            report.damaged.push(damage(format!("it is no journal, which has {expected}")));
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let (records, damaged) = record::parse(&text);
    let failed_before = report.failed.len();
    undo(root, &records, report);
    let keep = !damaged.is_empty() || report.failed.len() > failed_before;
    let of_line = |line| damage(format!("line {line} was damaged, or written by another version"));
    report.damaged.extend(damaged.into_iter().map(of_line));
    if keep { Ok(()) } else { root.remove(journal) }
}

/// Restores the files in `records`, the one changed last first.
///
/// A file gets back what it held before its first record, if it holds what one of its records has
/// written. Undoing twice has the same effect as undoing once.
pub(super) fn undo(root: &Root, records: &[Record], report: &mut Report) {
    undo_in(root, root, records, report);
}

/// What files hold may change when others are written. So all are read before one is written, and
/// those that do not take their value get it once more after the others. Registers and places of
/// core power get a second try, too.
fn undo_in(root: &Root, files: &dyn Files, records: &[Record], report: &mut Report) {
    let places = by_place(records);
    let own: Vec<_> = places.iter().map(|records| Own::of(files, records)).collect();
    let of_others = words::of_others(root, &places);
    let (mut again, mut busy) = (Vec::new(), Vec::new());
    for (records, own) in places.iter().zip(own) {
        if records.first().is_none_or(|first| !root.exists(above(&first.path))) {
            // The file disappeared with its directory, as the files of control groups and drivers
            // do. A directory made again has the kernel's own values.
            continue;
        }
        if words::is_word(records) {
            if words::undo(root, records, &of_others, report).is_err() {
                busy.push(records);
            }
            continue;
        }
        match own.or_else(|| Own::at_rest(files, records)) {
            Some(own) if own.give_back(files).is_ok() => report.restored.push(own.into()),
            Some(own) => again.push(own),
            None => undo_place(root, files, records, report),
        }
    }
    for own in again {
        give_back(files, own, report);
    }
    for records in busy {
        let undone = words::undo(root, records, &of_others, report);
        if let (Err(error), Some(first)) = (undone, records.first()) {
            report.failed.push(words::failed(first, &error));
        }
    }
}

impl From<Own> for Restored {
    fn from(Own { path, from, to }: Own) -> Self {
        Self { path, from, to }
    }
}

/// The records of each place, of the one changed last first.
fn by_place(records: &[Record]) -> Vec<Vec<&Record>> {
    let placed: Vec<(String, &Record)> =
        records.iter().map(|record| (record.place(), record)).collect();
    let mut known: BTreeSet<&str> = BTreeSet::new();
    let last = placed.iter().rev().filter(|(place, _)| known.insert(place));
    last.map(|(place, _)| {
        let of_place = placed.iter().filter(|(other, _)| other == place);
        of_place.map(|(_, record)| *record).collect()
    })
    .collect()
}

/// Undoes what is not a write of a file that holds what was written.
fn undo_place(root: &Root, files: &dyn Files, records: &[&Record], report: &mut Report) {
    let Some(first) = records.first() else { return };
    let path = first.path.as_str();
    match &first.change {
        Change::File { before, .. } => match files.held(path) {
            Ok(found) if found == *before => {}
            found => report_file(root, path, before, found, records, report),
        },
        Change::Group { members } => undo_group(root, path, members, report),
        Change::Controller { name } => undo_controller(root, path, name, report),
        Change::ByOther { rest } => {
            // It holds that, or it cannot be read: see `Own::at_rest`.
            if let Err(error) = files.held(path) {
                let (path, wanted) = (path.to_owned(), rest.clone());
                report.failed.push(Failed { path, wanted, why: explain(&error) });
            }
        }
        // See `words::undo`.
        Change::Register { .. } | Change::CorePower { .. } => {}
    }
}

/// Reports a file that holds neither what was written nor what it held before.
fn report_file(
    root: &Root,
    path: &str,
    before: &str,
    found: Result<String, RootError>,
    records: &[&Record],
    report: &mut Report,
) {
    let (path, before) = (path.to_owned(), before.to_owned());
    let why = match found {
        Ok(found) if is_cut_short(root, &found, &before, records) => format!(
            "the file is empty, as a write of it was cut short; write `{before}` into it, and restore again"
        ),
        Ok(found) => {
            report.left.push(Left { path, before, found, why: None });
            return;
        }
        Err(error) => explain(&error),
    };
    report.failed.push(Failed { path, wanted: before, why });
}

fn give_back(files: &dyn Files, own: Own, report: &mut Report) {
    match own.give_back(files) {
        Ok(()) => report.restored.push(own.into()),
        Err(why) => report.failed.push(Failed { path: own.path, wanted: own.to, why }),
    }
}

/// Whether a file is empty although no state on record is empty. Only on a made-up machine: the
/// real kernel takes a write completely or not at all, so there another program has emptied the
/// file.
fn is_cut_short(root: &Root, found: &str, before: &str, records: &[&Record]) -> bool {
    let is_empty = |record: &&Record| matches!(&record.change, Change::File { written, .. } if written.is_empty());
    !root.is_live() && found.is_empty() && !before.is_empty() && !records.iter().any(is_empty)
}

/// Number of tries to empty a group and to remove it: its members may start others meanwhile, and
/// the kernel takes a moment to drop members that have ended. A guess.
const TRIES: u32 = 50;
const BETWEEN_TRIES: Duration = Duration::from_millis(2);

/// The wanted state in a report, when the control group should not exist.
const NO_GROUP: &str = "none";

fn undo_group(root: &Root, path: &str, members: &str, report: &mut Report) {
    if !root.exists(path) {
        return;
    }
    let above = above(path);
    let mut why = String::new();
    for _ in 0..TRIES {
        for member in root.text(&format!("{path}/{members}")).unwrap_or_default().lines() {
            // Members that have ended meanwhile cannot be moved and need not be. If another member
            // cannot be moved, removing the group fails.
            let _ = root.write_control(&format!("{above}/{members}"), member);
        }
        match root.remove_group(path) {
            Ok(()) => {
                let (from, to) = ("a control group".to_owned(), NO_GROUP.to_owned());
                report.restored.push(Restored { path: path.to_owned(), from, to });
                return;
            }
            Err(error) => why = explain(&error),
        }
        std::thread::sleep(BETWEEN_TRIES);
    }
    report.failed.push(Failed { path: path.to_owned(), wanted: NO_GROUP.to_owned(), why });
}

/// The directory that a path lies in.
fn above(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(above, _)| above)
}

fn undo_controller(root: &Root, path: &str, name: &str, report: &mut Report) {
    let (on, off, path) = (format!("+{name}"), format!("-{name}"), path.to_owned());
    match lists(root, &path, name) {
        Ok(false) => {}
        Ok(true) if is_relied_on(root, above(&path), name) => {
            report.left.push(Left { path, before: off, found: on, why: None });
        }
        Ok(true) => match root.write(&path, &off) {
            Ok(()) => report.restored.push(Restored { path, from: on, to: off }),
            Err(error) => report.failed.push(Failed { path, wanted: off, why: explain(&error) }),
        },
        Err(error) => report.failed.push(Failed { path, wanted: off, why: explain(&error) }),
    }
}

/// What a control group's cpuset files hold if they were never set (Linux
/// `Documentation/admin-guide/cgroup-v2.rst`, "Cpuset Interface Files").
const UNSET: [(&str, &str); 4] = [
    ("cpuset.cpus", ""),
    ("cpuset.mems", ""),
    ("cpuset.cpus.exclusive", ""),
    ("cpuset.cpus.partition", "member"),
];

/// Whether a group directly below this one uses a controller: it has switched the controller on for
/// groups further below, or set a value of the controller. An intention to use it later cannot be
/// seen.
fn is_relied_on(root: &Root, group: &str, controller: &str) -> bool {
    root.list(group).unwrap_or_default().into_iter().any(|name| {
        let below = format!("{group}/{name}");
        let is_set = |(file, unset): &(&str, &str)| {
            let is_controllers = file.split('.').next() == Some(controller);
            let found = root.text(&format!("{below}/{file}"));
            is_controllers && found.is_ok_and(|found| found != *unset)
        };
        let control = format!("{below}/cgroup.subtree_control");
        lists(root, &control, controller).unwrap_or(false) || UNSET.iter().any(is_set)
    })
}

/// Whether a file that lists controllers contains this one.
pub(super) fn lists(root: &Root, path: &str, controller: &str) -> Result<bool, RootError> {
    Ok(names(&root.text(path)?, controller))
}

/// Whether a list of controllers contains this one. (A file of a made-up machine, where no kernel
/// turns the writes into a list, holds the written text.)
pub(super) fn names(list: &str, controller: &str) -> bool {
    list.split_whitespace().any(|name| name.trim_start_matches('+') == controller)
}

/// The error and its source in one line, because it becomes data in the report.
fn explain(error: &RootError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
