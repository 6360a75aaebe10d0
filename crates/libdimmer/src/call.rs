//! A C function's call on its way to another core, and a barrier for panics.

use std::ffi::{c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use dimmer_runtime::Site;

use crate::Function;

/// A [`crate::Where`] as a C program passes it, which may be any number. By its name, the header
/// has the type of the constants there.
///
/// cbindgen:ignore
#[expect(non_camel_case_types, reason = "the name in C")]
pub(crate) type dimmer_where = c_uint;

/// Runs work of the runtime. Returns `None` if it panicked.
#[inline]
pub(crate) fn contained<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}

/// The same, and leaves `errno` as it is.
pub(crate) fn quiet<T>(work: impl FnOnce() -> T) -> Option<T> {
    let before = errno();
    let result = contained(work);
    set_errno(before);
    result
}

/// A call that may run on another thread. No thread reads or writes it while it changes threads, so
/// no access needs an ordering.
pub(crate) struct Call {
    function: Function,
    argument: *mut c_void,
    has_begun: AtomicBool,
    errno: AtomicI32,
}

// SAFETY: `dimmer_delegate` and `dimmer_run` require of their callers that the function may run on
// another thread.
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

    /// Makes the call, on a worker's thread.
    pub(crate) fn happen_away(&self) {
        let ended = EndOfWorker;
        self.happen();
        std::mem::forget(ended);
    }

    /// Makes the call, on any thread. The call may be unwound, because the function may end its
    /// thread, or be cancelled with it.
    pub(crate) fn happen(&self) {
        self.has_begun.store(true, Ordering::Relaxed);
        set_errno(self.errno.load(Ordering::Relaxed));
        // SAFETY: the caller's function, with the caller's argument.
        unsafe { (self.function)(self.argument) };
        self.errno.store(errno(), Ordering::Relaxed);
    }

    /// Finishes the call, back on the caller's thread. A call that could not be moved, and has not
    /// started, runs here, in a region if there is a site. The frames below it can be unwound.
    /// Returns whether the call has run.
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

/// Ends the worker's thread if the function unwinds it: by `pthread_exit`, or by an exception that
/// it must not throw. No code further up could go on from there. The thread that waits for the call
/// finds it lost.
struct EndOfWorker;

impl Drop for EndOfWorker {
    fn drop(&mut self) {
        // SAFETY: ends the calling thread, and no other thread relies on its stack.
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
