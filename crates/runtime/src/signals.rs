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
    let process = i64::from(rustix::process::getpid().as_raw_nonzero().get());
    // Who may not ask (a sandbox's program) gets another answer.
    ask(libc::SYS_tgkill, [process, thread.into(), 0]) != -i64::from(libc::ESRCH)
}

/// Prepares for [`fence_all`].
pub(crate) fn may_fence_all() {
    ask(libc::SYS_membarrier, [libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED.into(), 0, 0]);
}

/// A fence in every running thread of the process, so that what runs often needs none; whether the kernel can. Touches
/// no thread-local storage.
pub(crate) fn fence_all() -> bool {
    ask(libc::SYS_membarrier, [libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED.into(), 0, 0]) == 0
}

/// A system call that touches none of the program's memory.
fn ask(number: i64, [first, second, third]: [i64; 3]) -> i64 {
    let answer: i64;
    // SAFETY: signal 0 does nothing, and barriers harm nobody.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => answer,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    answer
}
