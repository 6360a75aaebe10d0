//! Signals of the process and its threads.
//!
//! Uses `unsafe` because no crate used here wraps `pthread_sigmask` and tgkill(2).

use std::mem::MaybeUninit;

/// Blocks all signals in the calling thread, so that the program's other threads handle them.
pub fn block_all() {
    block();
}

/// Runs `body` with all signals blocked in the calling thread: those that come meanwhile wait.
pub(crate) fn with_all_blocked<T>(body: impl FnOnce() -> T) -> T {
    let before = block();
    let result = body();
    // SAFETY: the set is what the kernel has told; the call writes no memory.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    result
}

/// Blocks all signals in the calling thread, and returns which were blocked before.
fn block() -> libc::sigset_t {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: a set of signals, which this fills.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: one set was filled, and the call writes the other one alone.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    // SAFETY: all-zero bytes are a valid set, so it is initialized whatever the call did.
    unsafe { before.assume_init() }
}

/// Whether this process has a thread of this number now. The kernel gives numbers of threads that
/// have ended to others, also of other processes.
#[must_use]
pub fn is_own_thread(thread: u32) -> bool {
    // SAFETY: signal 0 is none: the kernel only looks whether there is such a thread.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread, 0) };
    sent == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_those_of_this_process_that_have_not_ended() {
        let number = || rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        assert!(is_own_thread(number()));
        assert!(!is_own_thread(std::thread::spawn(number).join().unwrap()));
        let other = rustix::process::getppid().unwrap().as_raw_nonzero().get().unsigned_abs();
        assert!(!is_own_thread(other));
    }
}
