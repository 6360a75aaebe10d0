//! Locks this process's pages in memory, so that no measured section waits for a page.

use rustix::mm::{MlockAllFlags, mlockall, munlockall};

use crate::unavailable::Unavailable;

/// While this value lives, the pages that were mapped when it was made stay in memory.
#[derive(Debug)]
pub struct LockedPages(());

/// Locks all pages that are mapped now. Pages mapped later are not locked: map and touch them
/// first.
///
/// # Errors
/// [`Unavailable`]: more memory is mapped than the process may lock; nothing has changed.
pub fn lock_pages() -> Result<LockedPages, Unavailable> {
    match mlockall(MlockAllFlags::CURRENT) {
        Ok(()) => Ok(LockedPages(())),
        Err(error) => Err(Unavailable::new(
            "locking memory",
            format!("mlockall: {error}"),
            "raise `ulimit -l`, or run as root; without it, stretches with a page fault are \
             recognised and left out",
        )),
    }
}

impl Drop for LockedPages {
    fn drop(&mut self) {
        // Unlocking never fails.
        let _ = munlockall();
    }
}
