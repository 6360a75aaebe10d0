//! A C function's call on the way to another core, and what keeps panics on this side.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use dimmer_runtime::Site;

use crate::Function;

/// Does something of the runtime's; `None` if it panicked.
#[inline]
pub(crate) fn contained<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}

/// A call that may happen on another thread. Nobody reads or writes it while it changes threads, so
/// no access is ordered.
pub(crate) struct Call {
    function: Function,
    argument: *mut c_void,
    has_begun: AtomicBool,
    errno: AtomicI32,
}

// SAFETY: that the function may run on another thread is what `dimmer_offload` and `dimmer_run` ask
// of their callers.
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

    /// Happens, on a worker's thread.
    pub(crate) fn happen_away(&self) {
        let ended = EndOfWorker;
        self.happen();
        std::mem::forget(ended);
    }

    /// Happens, on whichever thread. May be unwound, as the function may end or be cancelled with
    /// its thread.
    pub(crate) fn happen(&self) {
        self.has_begun.store(true, Ordering::Relaxed);
        set_errno(self.errno.load(Ordering::Relaxed));
        // SAFETY: the caller's function, with what the caller gives it.
        unsafe { (self.function)(self.argument) };
        self.errno.store(errno(), Ordering::Relaxed);
    }

    /// Back with the caller. What could not be moved, and has not begun, happens here, in a region
    /// if there is a site: with nothing below it that an unwinding thread could not pass. Whether
    /// it has happened.
    pub(crate) fn settle(&self, has_happened: bool, site: Option<&'static Site>) -> bool {
        let is_lost = !has_happened && self.has_begun.load(Ordering::Relaxed);
        if !has_happened && !is_lost {
            let _region = site.and_then(|site| contained(|| site.region()));
            self.happen();
        }
        set_errno(self.errno.load(Ordering::Relaxed));
        !is_lost
    }
}

/// The function that a worker runs unwinds it: by `pthread_exit`, or by an exception that it must
/// not throw. Nobody further up could go on from there, so the worker's thread ends where it is,
/// and who waits for the call finds it lost.
struct EndOfWorker;

impl Drop for EndOfWorker {
    fn drop(&mut self) {
        // SAFETY: ends the calling thread, on whose stack nobody else counts.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
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
