//! Marks: entries of functions that code outside of this crate is called at, before the function
//! (paper 004, section 4.1). What a mark does is decided there.

use std::sync::atomic::{AtomicPtr, Ordering};

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

/// The number of a mark that no file has: the one of this crate's own function.
pub const OWN_MARK: u32 = u32::MAX;

/// What marks call. Null before [`set`].
pub(crate) static PASS: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// From now on, marks call this function.
pub(crate) fn set(pass: extern "C" fn(u32) -> u64) {
    // Relaxed: no mark is hooked yet.
    PASS.store(pass as *mut (), Ordering::Relaxed);
}
