//! Threads without what the standard library does for each of its own: that waits for the loader
//! where a library is just being loaded, and whoever loads it may be who waits for the thread.

use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// As much as the standard library's have.
const STACK: usize = 2 << 20;

/// A thread that was started. Dropping this leaves it to itself.
#[derive(Debug)]
pub(crate) struct Spawned(libc::pthread_t);

/// What a thread is given.
type Work = Box<dyn FnOnce() + Send>;

/// Starts a thread. A panic ends it alone.
///
/// # Errors
/// The system's, if there can be no more.
pub(crate) fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<Spawned> {
    let mut attributes = MaybeUninit::uninit();
    // SAFETY: makes what is asked for, which takes nothing that would have to be given back.
    check(unsafe { libc::pthread_attr_init(attributes.as_mut_ptr()) })?;
    // SAFETY: made above.
    check(unsafe { libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK) })?;
    // A pointer to two words fits into one.
    let work = Box::into_raw(Box::new(Box::new(work) as Work));
    let (mut thread, argument) = (MaybeUninit::uninit(), work.cast());
    // SAFETY: the function takes what it is given, once.
    let started = check(unsafe {
        libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), begin, argument)
    });
    if let Err(error) = started {
        // SAFETY: nobody else has it.
        drop(unsafe { Box::from_raw(work) });
        return Err(error);
    }
    // SAFETY: it was started.
    Ok(Spawned(unsafe { thread.assume_init() }))
}

extern "C" fn begin(work: *mut c_void) -> *mut c_void {
    // SAFETY: as `spawn` gives it.
    let work = unsafe { Box::from_raw(work.cast::<Work>()) };
    let _ = catch_unwind(AssertUnwindSafe(work));
    std::ptr::null_mut()
}

fn check(error: libc::c_int) -> io::Result<()> {
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

impl Spawned {
    /// Waits for its end.
    pub(crate) fn join(self) {
        let thread = std::mem::ManuallyDrop::new(self).0;
        // SAFETY: nobody else waits for it, nor has left it to itself.
        unsafe { libc::pthread_join(thread, std::ptr::null_mut()) };
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        // SAFETY: nobody waits for it.
        unsafe { libc::pthread_detach(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn work_is_done_once_and_a_panic_ends_its_thread_alone() {
        let done = Arc::new(AtomicU32::new(0));
        for panics in [false, true] {
            let mine = Arc::clone(&done);
            let thread = spawn(move || {
                mine.fetch_add(1, Ordering::Relaxed);
                assert!(!panics, "on purpose");
            });
            thread.unwrap().join();
        }
        assert_eq!(Arc::into_inner(done).unwrap().into_inner(), 2);
    }
}
