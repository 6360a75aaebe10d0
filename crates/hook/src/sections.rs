//! Sections: calls whose begin and end code outside of this crate is called at. What that does is
//! decided there.

use std::mem::offset_of;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::process::{ONLY_COUNTS, RESTRICTED};

/// The environment variable that is set if the marks in plans are numbers of functions whose calls
/// are watched.
pub const SECTIONS: &str = "DIMMER_HOOK_SECTIONS";

/// Functions that watch calls. They run on the caller's stack, with the processor's state stored
/// there, and must not unwind.
#[derive(Clone, Copy, Debug)]
pub struct Watcher {
    /// The thread calls the function of this number. `stack` is the stack pointer before the call,
    /// which identifies it. `end` is 0 if the end of the call cannot be seen, 1 if it can be, and 2
    /// if the function was reached by a jump from a watched one: they end together, with the same
    /// `stack`. Returns 0 if its end need not be seen.
    pub called: extern "C" fn(number: u32, stack: usize, end: u32) -> u32,
    /// A call whose end was wanted has returned.
    pub returned: extern "C" fn(stack: usize),
    /// The unwinder leaves such a call: for an exception, or for the end of the thread.
    pub left: extern "C" fn(stack: usize),
}

/// The functions of the [`Watcher`] in use. Null before [`set`].
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Functions {
    called: AtomicPtr<()>,
    returned: AtomicPtr<()>,
    left: AtomicPtr<()>,
}

pub(crate) static FUNCTIONS: Functions = Functions {
    called: AtomicPtr::new(std::ptr::null_mut()),
    returned: AtomicPtr::new(std::ptr::null_mut()),
    left: AtomicPtr::new(std::ptr::null_mut()),
};

/// Offset in [`FUNCTIONS`] of the function that assembly calls.
pub(crate) const CALLED: usize = offset_of!(Functions, called);
/// Likewise.
pub(crate) const RETURNED: usize = offset_of!(Functions, returned);

/// From now on, `watcher` is called.
pub(crate) fn set(watcher: Watcher) {
    // Relaxed: no call is watched yet.
    let set = |place: &AtomicPtr<()>, function| place.store(function, Ordering::Relaxed);
    set(&FUNCTIONS.called, watcher.called as *mut ());
    set(&FUNCTIONS.returned, watcher.returned as *mut ());
    set(&FUNCTIONS.left, watcher.left as *mut ());
}

/// The unwinder leaves a watched call. Not reported where no time stamps may be read.
pub(crate) fn leave(stack: u64) {
    if ONLY_COUNTS.load(Ordering::Relaxed) >= RESTRICTED {
        return;
    }
    let left = FUNCTIONS.left.load(Ordering::Relaxed);
    // SAFETY: `set` has stored the function, or no call would be watched.
    let left = unsafe { std::mem::transmute::<*mut (), extern "C" fn(usize)>(left) };
    left(usize::try_from(stack).unwrap_or_default());
}
