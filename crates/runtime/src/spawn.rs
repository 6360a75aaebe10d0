//! Threads without the setup that the standard library adds to its own. That setup waits for the
//! loader while a library is being loaded, and the thread that loads it may wait for the new
//! thread.

use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::signals;

/// Size of a thread's stack (bytes): that of the standard library's threads.
const STACK: usize = 2 << 20;

/// A thread that was started. Dropping this detaches it.
#[derive(Debug)]
pub(crate) struct Spawned {
    /// `None` once it is joined.
    thread: Option<libc::pthread_t>,
    /// The kernel's id, once the thread has begun.
    number: Arc<AtomicU32>,
}

// SAFETY: it is the C library's name of a thread, by which any thread may wait for that one's end.
// With some C libraries it is a pointer, through which nothing here reads.
unsafe impl Send for Spawned {}

// SAFETY: as above.
unsafe impl Sync for Spawned {}

/// The argument of a new thread.
type Work = Box<dyn FnOnce() + Send>;

/// Number of threads that [`spawn`] has started in this process and that have not ended.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// Number of threads of this process that this crate has started.
pub(crate) fn our_threads() -> usize {
    RUNNING.load(Ordering::Relaxed)
}

/// In a child of fork(2), which has none.
pub(crate) fn forget_threads() {
    RUNNING.store(0, Ordering::Relaxed);
}

/// Starts a thread. A panic ends only that thread.
///
/// # Errors
/// The system's, if there can be no more threads.
pub(crate) fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<Spawned> {
    let mut attributes = MaybeUninit::uninit();
    // SAFETY: initializes `attributes`, which needs no cleanup.
    check(unsafe { libc::pthread_attr_init(attributes.as_mut_ptr()) })?;
    // SAFETY: initialized above.
    check(unsafe { libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK) })?;
    RUNNING.fetch_add(1, Ordering::Relaxed);
    let number = Arc::new(AtomicU32::new(0));
    let own = Arc::clone(&number);
    let work = move || {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        own.store(u32::try_from(thread).unwrap_or(0), Ordering::Relaxed);
        work();
    };
    // A pointer to two words fits into one.
    let work = Box::into_raw(Box::new(Box::new(work) as Work));
    let (mut thread, argument) = (MaybeUninit::uninit(), work.cast());
    // SAFETY: `begin` takes ownership of its argument, once.
    let started = check(unsafe {
        libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), begin, argument)
    });
    if let Err(error) = started {
        RUNNING.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: the thread was not started, so no other owner exists.
        drop(unsafe { Box::from_raw(work) });
        return Err(error);
    }
    // SAFETY: the thread was started, which initializes `thread`.
    Ok(Spawned { thread: Some(unsafe { thread.assume_init() }), number })
}

extern "C" fn begin(work: *mut c_void) -> *mut c_void {
    // SAFETY: the pointer comes from `Box::into_raw` in `spawn`.
    let work = unsafe { Box::from_raw(work.cast::<Work>()) };
    let _ = catch_unwind(AssertUnwindSafe(work));
    RUNNING.fetch_sub(1, Ordering::Relaxed);
    std::ptr::null_mut()
}

fn check(error: libc::c_int) -> io::Result<()> {
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

impl Spawned {
    /// Waits until the kernel has the thread no more. (The C library waits only until the thread
    /// uses its stack no more. Until it is gone, the process is one of several threads.)
    pub(crate) fn join(mut self) {
        let Some(thread) = self.thread.take() else { return };
        // SAFETY: nothing else joins the thread, and it was not detached.
        unsafe { libc::pthread_join(thread, std::ptr::null_mut()) };
        signals::wait_until_gone(self.number.load(Ordering::Relaxed));
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // SAFETY: nothing joins the thread.
            unsafe { libc::pthread_detach(thread) };
        }
    }
}

#[cfg(test)]
mod tests {
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
