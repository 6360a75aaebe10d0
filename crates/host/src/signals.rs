//! Signals of the process, for threads of Dimmer's own.
//!
//! Uses `unsafe` because no crate used here wraps `pthread_sigmask`.

use std::mem::MaybeUninit;

/// Blocks all signals in the calling thread, so that the program's other threads handle them.
pub fn block_all() {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: a set of signals, which this fills.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: the set was filled; the call writes no other memory.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut()) };
}
