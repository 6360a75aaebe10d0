//! Marks: entries of functions that code outside of this crate is called at, before the function
//! (paper 004, section 4.1). What a mark does is decided there.

use std::sync::atomic::{AtomicPtr, Ordering};

use crate::site::Site;

/// The environment variable that names the file with the names of marks, one a line. An entry's
/// number in its plan is that of the line, from 0.
pub const MARKS: &str = "DIMMER_HOOK_MARKS";

/// The name of the file with the names of marks, in a directory of plans.
pub const NAMES_FILE: &str = "marks";
/// The name of the file for the graph of measured marks, beside it.
pub const GRAPH_FILE: &str = "graph";
/// The name of the file with the profile by which threads migrate at marks, beside it.
pub const PROFILE_FILE: &str = "profile";

/// What the names of files begin with for what processes have learned of their marks, beside it: a
/// profile each. The process's number follows.
pub const LEARNED_FILE: &str = "learned-";

/// Whether a file of this name is about marks, and of those that runs put into their directories.
pub(crate) fn is_mark_file(name: &[u8]) -> bool {
    let is = |file: &&str| name == file.as_bytes();
    [NAMES_FILE, GRAPH_FILE, PROFILE_FILE].iter().any(is)
        || name.starts_with(LEARNED_FILE.as_bytes())
}

/// The environment variable that makes threads migrate at marks. Its value is the threshold, a
/// space, and what a migration takes (ns). If there is no profile, [`LEARN`] and a space come
/// first, and the threshold is the part of its speed that code must keep on a slow CPU.
pub const PHASES: &str = "DIMMER_HOOK_PHASES";

/// The first word of [`PHASES`] if threads learn.
pub const LEARN: &str = "learn";

/// The environment variable that switches off marks that are passed too often. Its value is the
/// least CPU time of a process from one mark to the next, on average (ns).
pub const INTERVAL: &str = "DIMMER_HOOK_MARKS_INTERVAL";

/// The number of a mark that no file has: the one of this crate's own function.
pub const OWN_MARK: u32 = u32::MAX;

/// What marks call. Null before [`set`].
pub(crate) static PASS: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Entries that were hooked together, and those that were hooked before them.
struct Hooked {
    sites: &'static [Site],
    before: Option<&'static Hooked>,
}

/// The entries that were hooked while marks were passed, the last ones first. No lock: a child of
/// fork(2) might inherit one that is held.
static ENTRIES: AtomicPtr<Hooked> = AtomicPtr::new(std::ptr::null_mut());

fn last() -> Option<&'static Hooked> {
    // SAFETY: null, or what `add` has leaked.
    // Ordering: Acquire pairs with the store in `add`.
    unsafe { ENTRIES.load(Ordering::Acquire).as_ref() }
}

/// Adds hooked entries. One thread at a time does this: the one that hooks.
pub(crate) fn add(sites: &'static [Site]) {
    let hooked = Box::leak(Box::new(Hooked { sites, before: last() }));
    // Ordering: pairs with the load in `last`: the sites are there.
    ENTRIES.store(hooked, Ordering::Release);
}

/// From now on, calls pass none of these marks; they are still counted. Takes no lock.
pub fn switch_off(marks: &[u32]) {
    let all = std::iter::successors(last(), |hooked| hooked.before);
    for entry in all.flat_map(|hooked| hooked.sites).filter(|entry| marks.contains(&entry.mark)) {
        // Relaxed: a call that passes the mark meanwhile does no harm.
        entry.is_off.store(1, Ordering::Relaxed);
    }
}

/// From now on, marks call this function.
pub(crate) fn set(pass: extern "C" fn(u32) -> u64) {
    // Relaxed: no mark is hooked yet.
    PASS.store(pass as *mut (), Ordering::Relaxed);
}
