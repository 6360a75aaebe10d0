//! Functions of other libraries for which this library has functions of the same name.

use std::ffi::{CStr, c_void};
use std::mem::offset_of;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::arch::FIRST_VERSION;

/// Functions that glibc has in that version and, different, in a later one. Source: its `Versions`
/// files.
const LATER: [(&CStr, &CStr); 3] = [
    (c"posix_spawn", c"GLIBC_2.15"),
    (c"posix_spawnp", c"GLIBC_2.15"),
    (c"pthread_kill", c"GLIBC_2.34"),
];

/// A function of the C library, or of the next library that has it.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Next {
    /// Null until the first lookup. Assembly reads it here, at the start.
    found: AtomicPtr<c_void>,
    name: &'static CStr,
}

const _: () = assert!(offset_of!(Next, found) == 0);

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    pub(crate) const fn name(&self) -> &'static CStr {
        self.name
    }

    /// The function's address; null if there is none.
    pub(crate) fn get(&self) -> *mut c_void {
        // Relaxed: an address of code, which was there before.
        let found = self.found.load(Ordering::Relaxed);
        if !found.is_null() {
            return found;
        }
        // SAFETY: a lookup of a name, ended by zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        let found = later(self.name, found);
        // Relaxed: an address of code; a second thread finds the same one.
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Replaces the first version of a function by the one that programs are linked with today. `dlsym`
/// returns the first version before glibc 2.36
/// (<https://sourceware.org/bugzilla/show_bug.cgi?id=14932>). A function of another library has no
/// version, and stays.
fn later(name: &CStr, found: *mut c_void) -> *mut c_void {
    let Some((_, version)) = LATER.iter().find(|(old, _)| *old == name) else { return found };
    if found.is_null() || found != versioned(name, FIRST_VERSION) {
        return found;
    }
    let later = versioned(name, version);
    if later.is_null() { found } else { later }
}

fn versioned(name: &CStr, version: &CStr) -> *mut c_void {
    // SAFETY: a lookup of a name and a version, ended by zero.
    unsafe { libc::dlvsym(libc::RTLD_NEXT, name.as_ptr(), version.as_ptr()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::print_stdout, reason = "tests that cannot run here say so")]
    fn a_function_in_its_first_version_is_replaced_by_the_later_one() {
        for (name, version) in LATER {
            let (first, second) = (versioned(name, FIRST_VERSION), versioned(name, version));
            if first.is_null() || second.is_null() {
                println!("SKIPPED: this C library has {name:?} in one version alone");
                continue;
            }
            assert_ne!(first, second, "{name:?}");
            // As an old `dlsym` finds it, and as a new one does.
            assert_eq!(later(name, first), second, "{name:?}");
            assert_eq!(later(name, second), second, "{name:?}");
            assert_eq!(Next::new(name).get(), second, "{name:?}");
        }
    }

    #[test]
    fn what_another_library_has_instead_stays() {
        let others = later as *mut c_void;
        assert_eq!(later(c"posix_spawn", others), others);
        let only = versioned(c"pthread_mutex_lock", FIRST_VERSION);
        assert_eq!(later(c"pthread_mutex_lock", only), only);
    }
}
