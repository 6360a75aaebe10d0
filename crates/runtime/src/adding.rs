//! Who may add sites: one thread at a time.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::fork::{FORGETS_OTHERS, IN_CHILD};

/// Whether a thread is adding sites.
static IS_ADDING: AtomicBool = AtomicBool::new(false);

/// Held by the thread that adds sites, or changes the memory in which they are published. No thread
/// waits for it on the way into a region.
#[derive(Debug)]
pub(crate) struct Adding(());

impl Adding {
    /// `None` if it is held already, perhaps by the code that this signal handler has interrupted.
    pub(crate) fn begin() -> Option<Self> {
        IN_CHILD.set::<FORGETS_OTHERS>(forget_others);
        // Ordering: pairs with the stores below: what the last owner added is visible.
        let is_free = !IS_ADDING.swap(true, Ordering::Acquire);
        is_free.then_some(Self(()))
    }
}

impl Drop for Adding {
    fn drop(&mut self) {
        // Ordering: pairs with the swap in `begin`.
        IS_ADDING.store(false, Ordering::Release);
    }
}

/// For a child of fork(2): the thread that was adding sites has stayed with the parent, or goes on
/// adding them in the child.
fn forget_others() {
    // Ordering: as in `drop`.
    IS_ADDING.store(false, Ordering::Release);
}
