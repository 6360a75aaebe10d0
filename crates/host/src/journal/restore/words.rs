//! Gives registers and places of core power back what they held.
//!
//! Where a class or a core of a power domain holds what others have set, they use the domain: its
//! switches are left as they are, because to switch it off would undo what they have set.

use std::collections::BTreeSet;
use std::io;

use super::{Change, Failed, Left, Record, Report, Restored, explain};
use crate::core_power::{self, DomainId, Place};
use crate::msr;
use crate::root::{Root, RootError};

/// How to switch a domain off that others use.
const BY_HAND: &str = "others have changed a class or a core of its domain since; to switch it off \
                       as well, as root: intel-speed-select core-power disable";

/// Whether these are the records of a register or a place of core power.
pub(super) fn is_word(records: &[&Record]) -> bool {
    records.first().is_some_and(|first| first.words().is_some())
}

/// The power domains in which a class or a core holds what others have set.
pub(super) fn of_others(root: &Root, places: &[Vec<&Record>]) -> BTreeSet<DomainId> {
    let domain = |records: &Vec<&Record>| {
        let Change::CorePower { place, .. } = records.first()?.change else { return None };
        let found = core_power::held(root, place).ok()?;
        (!place.is_switch() && !is_ours(records, found)).then(|| place.domain())
    };
    places.iter().filter_map(domain).collect()
}

/// Whether a word is that before the changes, or one of those that were written.
fn is_ours(records: &[&Record], found: u64) -> bool {
    let words = || records.iter().filter_map(|record| record.words());
    words().next().is_some_and(|(before, _)| before == found)
        || words().any(|(_, written)| written == found)
}

/// Gives the place of these records what it held before, if it holds what was written. `of_others`:
/// domains whose switches are left.
///
/// # Errors
/// [`RootError`]: it cannot be read or written. A second try may succeed: the processor was busy.
pub(super) fn undo(
    root: &Root,
    records: &[&Record],
    of_others: &BTreeSet<DomainId>,
    report: &mut Report,
) -> Result<(), RootError> {
    let Some(first) = records.first() else { return Ok(()) };
    let Some((before, _)) = first.words() else { return Ok(()) };
    let (path, to) = (first.place(), format!("{before:#x}"));
    let (found, why) = match first.change {
        Change::Register { register, .. } => {
            let (device, found) = reach(root, &first.path, register)?;
            if found != before && is_ours(records, found) {
                msr::write(root, &device, register, before)?;
                report.restored.push(Restored { path, from: format!("{found:#x}"), to });
                return Ok(());
            }
            (found, None)
        }
        Change::CorePower { place, .. } => {
            let found = core_power::held(root, place)?;
            let is_left = place.is_switch() && of_others.contains(&place.domain());
            if !is_left && is_ours(records, found) {
                if give_back(root, place, before, found)? {
                    report.restored.push(Restored { path, from: format!("{found:#x}"), to });
                }
                return Ok(());
            }
            (found, (is_left && is_ours(records, found)).then(|| BY_HAND.to_owned()))
        }
        _ => return Ok(()),
    };
    if found != before {
        let found = format!("{found:#x}");
        report.left.push(Left { path, before: to, found, why });
    }
    Ok(())
}

/// Gives a place of core power what it held. Returns whether it held something else.
fn give_back(root: &Root, place: Place, before: u64, found: u64) -> Result<bool, RootError> {
    if found == before && !place.lags() {
        return Ok(false);
    }
    // Where a change may show later, also if it holds that already.
    match core_power::write(root, place, before) {
        // The kernel has refused the change as well. If the processor is busy, that is unknown.
        Err(error) if found == before && error.kind() != Some(io::ErrorKind::ResourceBusy) => {
            return Ok(false);
        }
        written => written?,
    }
    let now = core_power::held_after(root, place, before)?;
    if now != before {
        let why = format!("the kernel took {before:#x}, and it holds {now:#x}");
        return Err(root.write_error(&place.name(), io::Error::other(why)));
    }
    Ok(found != before)
}

/// The word of this record's place was not given back.
pub(super) fn failed(first: &Record, error: &RootError) -> Failed {
    let before = first.words().map_or(0, |(before, _)| before);
    Failed { path: first.place(), wanted: format!("{before:#x}"), why: explain(error) }
}

/// The file by which a register can be read and written now, and what it holds: the module that it
/// was changed by may be gone, or be closed to this process.
///
/// # Errors
/// That of the file by which it was changed.
fn reach(root: &Root, path: &str, register: u32) -> Result<(String, u64), RootError> {
    let [path, other] = msr::ways(path);
    if !(root.is_readable(&path) && root.is_writable(&path))
        && root.is_writable(&other)
        && let Ok(found) = msr::read(root, &other, register)
    {
        return Ok((other, found));
    }
    msr::read(root, &path, register).map(|found| (path, found))
}
