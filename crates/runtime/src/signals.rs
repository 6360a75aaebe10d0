//! The signal mask of the calling thread, and whether a thread is there.

use std::arch::asm;
use std::cell::Cell;
use std::mem::MaybeUninit;

/// Signals that an instruction of the thread itself raises: blocked, they would end the process without a word.
const OWN: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

thread_local! {
    /// What was blocked before the thread blocked everything, for it or for its child to have again.
    static BEFORE: Cell<Option<Mask>> = const { Cell::new(None) };
}

/// A mask that was in force.
#[derive(Clone, Copy)]
pub(crate) struct Mask(libc::sigset_t);

impl std::fmt::Debug for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mask")
    }
}

/// Blocks every signal but the thread's own faults, until [`restore`].
pub(crate) fn block() {
    remember(exchange());
}

/// Says what [`restore`] is to put in force.
pub(crate) fn remember(mask: Mask) {
    BEFORE.set(Some(mask));
}

/// Blocks every signal but the thread's own faults; what was blocked before.
pub(crate) fn exchange() -> Mask {
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

/// Puts in force again, once, what was before [`block`].
pub(crate) fn restore() {
    if let Some(mask) = BEFORE.take() {
        set(&mask);
    }
}

/// Puts a mask in force.
pub(crate) fn set(mask: &Mask) {
    // SAFETY: points to a set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask.0, std::ptr::null_mut()) };
}

/// Whether the process has that thread; a system call. Touches neither `errno` nor anything else in thread-local storage.
pub(crate) fn is_there(thread: u32) -> bool {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    let answer: i64;
    // SAFETY: signal 0 does nothing.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") libc::SYS_tgkill => answer,
            in("edi") process,
            in("esi") thread,
            in("edx") 0,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    // Who may not ask (a sandbox's program) gets another answer.
    answer != -i64::from(libc::ESRCH)
}
