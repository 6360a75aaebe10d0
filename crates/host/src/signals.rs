//! Signals of the process and its threads.
//!
//! Uses `unsafe` because no crate used here wraps `pthread_sigmask` and tgkill(2).

use std::mem::MaybeUninit;

/// Blocks all signals in the calling thread, so that the program's other threads handle them.
pub fn block_all() {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: a set of signals, which this fills.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: the set was filled; the call writes no other memory.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut()) };
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
