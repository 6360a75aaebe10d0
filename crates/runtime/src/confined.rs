//! Whether the process has confined itself, or is about to: dropped rights, filtered its system
//! calls, left a namespace. From then on this crate starts nothing in it, nor in its children,
//! which inherit what confines it: its threads would not be confined, or break a filter's rules.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

static IS_CONFINED: AtomicBool = AtomicBool::new(false);

/// The number of threads that are starting something.
static STARTING: AtomicU32 = AtomicU32::new(0);

/// The calling thread starts threads of this crate, or changes its affinity, until this is dropped.
#[derive(Debug)]
pub(crate) struct Starting(());

impl Starting {
    /// `None` in a process that has confined itself.
    pub(crate) fn begin() -> Option<Self> {
        // Ordering: SeqCst, before the look whether it has: either this sees that, or the thread
        // that confines the process sees this.
        STARTING.fetch_add(1, Ordering::SeqCst);
        let starting = Self(());
        (!is_confined()).then_some(starting)
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        // Ordering: pairs with the load in `is_any_starting`: what was started is visible. In a
        // child of fork(2) it may not count any more.
        let less = |number: u32| number.checked_sub(1);
        let _ = STARTING.fetch_update(Ordering::SeqCst, Ordering::Relaxed, less);
    }
}

/// Whether a thread is starting something.
pub(crate) fn is_any_starting() -> bool {
    // Ordering: SeqCst, as in `Starting`.
    STARTING.load(Ordering::SeqCst) > 0
}

/// For a child of fork(2), which has none of its parent's other threads.
pub(crate) fn forget_others() {
    STARTING.store(0, Ordering::Relaxed);
}

/// Notes that the process is confined from now on. Returns whether it was before.
pub(crate) fn begin() -> bool {
    // Ordering: SeqCst, as in `Starting`.
    IS_CONFINED.swap(true, Ordering::SeqCst)
}

/// Whether it is. Costs a load.
pub(crate) fn is_confined() -> bool {
    // Ordering: SeqCst, as in `Starting`.
    IS_CONFINED.load(Ordering::SeqCst)
}
