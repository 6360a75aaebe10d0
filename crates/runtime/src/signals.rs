//! The signal mask of the calling thread.

use std::mem::MaybeUninit;

/// Signals that an instruction of the thread itself raises: blocked, they would end the process without a word.
const OWN: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// A mask that was in force.
#[derive(Clone, Copy)]
pub(crate) struct Mask(libc::sigset_t);

impl std::fmt::Debug for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mask")
    }
}

/// Blocks every signal but the thread's own faults; what was blocked before.
pub(crate) fn block() -> Mask {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: fills the set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    for signal in OWN {
        // SAFETY: the set was filled.
        unsafe { libc::sigdelset(all.as_mut_ptr(), signal) };
    }
    // SAFETY: both point to sets; it cannot fail with a known `how`.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    // SAFETY: filled by the call.
    Mask(unsafe { before.assume_init() })
}

/// Puts a mask in force again.
pub(crate) fn restore(mask: &Mask) {
    // SAFETY: points to a set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask.0, std::ptr::null_mut()) };
}
