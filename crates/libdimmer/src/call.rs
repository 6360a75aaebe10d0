//! A C function's call on the way to another core, and what keeps panics on this side.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::Function;

/// Does something of the runtime's; `None` if it panicked.
#[inline]
pub(crate) fn contained<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}

/// A call that may happen on another thread. Nobody reads or writes it while it changes threads, so no access is ordered.
pub(crate) struct Call {
    function: Function,
    argument: *mut c_void,
    has_begun: AtomicBool,
    errno: AtomicI32,
}

// SAFETY: that the function may run on another thread is what `dimmer_offload` and `dimmer_run` ask of their callers.
unsafe impl Sync for Call {}

impl Call {
    pub(crate) fn new(function: Function, argument: *mut c_void) -> Self {
        Self {
            function,
            argument,
            has_begun: AtomicBool::new(false),
            errno: AtomicI32::new(errno()),
        }
    }

    /// Happens, on whichever thread.
    pub(crate) fn happen(&self) {
        self.has_begun.store(true, Ordering::Relaxed);
        set_errno(self.errno.load(Ordering::Relaxed));
        // SAFETY: the caller's function, with what the caller gives it.
        unsafe { (self.function)(self.argument) };
        self.errno.store(errno(), Ordering::Relaxed);
    }

    /// Back with the caller. What could not be moved, and has not begun, happens here. Whether it has happened.
    pub(crate) fn settle(&self, has_happened: bool) -> bool {
        let is_lost = !has_happened && self.has_begun.load(Ordering::Relaxed);
        if !has_happened && !is_lost {
            self.happen();
        }
        set_errno(self.errno.load(Ordering::Relaxed));
        !is_lost
    }
}

/// The calling thread's `errno`.
pub(crate) fn errno() -> c_int {
    let place = errno_place();
    // SAFETY: the thread's own variable.
    unsafe { *place }
}

pub(crate) fn set_errno(number: c_int) {
    let place = errno_place();
    // SAFETY: the thread's own variable.
    unsafe { *place = number };
}

fn errno_place() -> *mut c_int {
    // SAFETY: needs nothing.
    unsafe { libc::__errno_location() }
}
