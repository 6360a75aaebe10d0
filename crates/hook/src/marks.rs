//! Marks: entries of functions that code outside of this crate is called at, before the function
//! (paper 004, section 4.1). What a mark does is decided there.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

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

/// Files about marks that runs put into their directories.
pub(crate) const MARK_FILES: [&str; 3] = [NAMES_FILE, GRAPH_FILE, PROFILE_FILE];

/// The environment variable that makes threads migrate at marks. Its value is the threshold, a
/// space, and what a migration takes (ns).
pub const PHASES: &str = "DIMMER_HOOK_PHASES";

/// The environment variable that has marks be switched off if they are passed too often. Its value
/// is the CPU time that a process may take from one mark to the next, on average (ns).
pub const INTERVAL: &str = "DIMMER_HOOK_MARKS_INTERVAL";

/// The number of a mark that no file has: the one of this crate's own function.
pub const OWN_MARK: u32 = u32::MAX;

/// What marks call. Null before [`set`].
pub(crate) static PASS: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// The entries that were hooked while marks were passed.
static ENTRIES: Mutex<Vec<&'static Site>> = Mutex::new(Vec::new());

/// Adds hooked entries.
pub(crate) fn add(sites: &'static [Site]) {
    ENTRIES.lock().unwrap_or_else(PoisonError::into_inner).extend(sites);
}

/// From now on, calls pass none of these marks; they are still counted. Does nothing while another
/// thread does this or hooks functions: it waits for no lock, which a child of fork(2) may have
/// inherited.
pub fn switch_off(marks: &[u32]) {
    let Ok(entries) = ENTRIES.try_lock() else { return };
    for entry in entries.iter().filter(|entry| marks.contains(&entry.mark)) {
        // Relaxed: a call that passes the mark meanwhile does no harm.
        entry.is_off.store(1, Ordering::Relaxed);
    }
}

/// From now on, marks call this function.
pub(crate) fn set(pass: extern "C" fn(u32) -> u64) {
    // Relaxed: no mark is hooked yet.
    PASS.store(pass as *mut (), Ordering::Relaxed);
}
