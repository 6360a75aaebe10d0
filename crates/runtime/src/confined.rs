//! Whether the process has confined itself, or is about to: dropped rights, filtered its system
//! calls, left a namespace. From then on this crate starts no thread in it, nor in its children,
//! which inherit what confines it: its threads would not be confined, or break a filter's rules.

use std::sync::atomic::{AtomicBool, Ordering};

static IS_CONFINED: AtomicBool = AtomicBool::new(false);

/// Notes that it is from now on. Returns whether it was before.
pub(crate) fn begin() -> bool {
    // Ordering: SeqCst, before a look at what threads there are: a thread that is being started
    // is seen there, or sees this.
    IS_CONFINED.swap(true, Ordering::SeqCst)
}

/// Whether it is. Costs a load.
pub(crate) fn is_confined() -> bool {
    // Ordering: as above.
    IS_CONFINED.load(Ordering::SeqCst)
}
