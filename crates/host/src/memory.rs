//! Locks the pages of this process in memory, so that no measured stretch waits for one.

use rustix::mm::{MlockAllFlags, mlockall, munlockall};

use crate::unavailable::Unavailable;

/// The pages that were mapped when it was made stay in memory for as long as this lives.
#[derive(Debug)]
pub struct LockedPages(());

/// Locks all pages that are mapped now. Pages mapped later are not locked: map and touch first.
///
/// # Errors
/// [`Unavailable`]: the process has more mapped than the limit lets it lock; nothing has changed.
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
        // Unlocking cannot be refused.
        let _ = munlockall();
    }
}
