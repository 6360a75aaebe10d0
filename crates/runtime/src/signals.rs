//! The signal mask of the calling thread, and whether a thread is there.

use std::arch::asm;
use std::mem::MaybeUninit;

use crate::{cancel, thread};

/// Signals that an instruction of the thread itself raises: blocked, they would end the process
/// without a word.
const OWN: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// The signal by which the C library cancels a thread; its own functions never block it. At home
/// its handler would unwind the trampoline stack. Source: glibc,
/// sysdeps/unix/sysv/linux/internal-signals.h.
pub(crate) const CANCEL: libc::c_int = 32;

/// The signal by which the C library has all threads change their rights; who asks waits for all of
/// them. Source: as above.
const SET_IDS: libc::c_int = 33;

/// What is blocked while a thread is away, at home and there.
const AWAY: Mask = {
    let mut blocked = !Mask::of(SET_IDS).0;
    let mut index = 0;
    while index < OWN.len() {
        blocked &= !Mask::of(OWN[index]).0;
        index += 1;
    }
    Mask(blocked)
};

/// What a worker blocks where threads are cancelled on it.
const ON_WORKER: Mask = Mask(AWAY.0 & !Mask::of(CANCEL).0);

/// Blocked signals, as the kernel has them: the lowest bit is signal 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mask(u64);

/// As the kernel asks for it.
const MASK_BYTES: i64 = 8;

const _: () = assert!(size_of::<Mask>() == 8);

impl Mask {
    const fn of(signal: libc::c_int) -> Self {
        Self(1 << (signal - 1))
    }

    /// Whether it has none.
    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Every signal.
pub(crate) const ALL: std::ops::RangeInclusive<libc::c_int> = 1..=64;

/// What becomes of a signal, as the kernel has it. Source: Linux,
/// arch/x86/include/uapi/asm/signal.h.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

impl Action {
    /// That of a signal, in this process.
    pub(crate) fn of(signal: libc::c_int) -> Option<Self> {
        let mut action = Self::default();
        let to = i64::try_from((&raw mut action).expose_provenance()).ok()?;
        let told = ask(libc::SYS_rt_sigaction, [signal.into(), 0, to, MASK_BYTES]);
        (told == 0).then_some(action)
    }

    /// The function that is called, if one is.
    pub(crate) const fn handler(&self) -> Option<usize> {
        if self.is_handler() { Some(self.handler) } else { None }
    }

    /// The same with another function, in force from now on; whether it is.
    pub(crate) fn replace_handler(self, signal: libc::c_int, handler: usize) -> bool {
        let action = Self { handler, ..self };
        let Ok(from) = i64::try_from((&raw const action).expose_provenance()) else { return false };
        ask(libc::SYS_rt_sigaction, [signal.into(), from, 0, MASK_BYTES]) == 0
    }

    /// Whether a function is called.
    pub(crate) const fn is_handler(&self) -> bool {
        self.handler != libc::SIG_DFL && self.handler != libc::SIG_IGN
    }

    /// Whether the signal is not blocked while its handler runs.
    pub(crate) const fn lets_itself_through(&self) -> bool {
        self.flags & libc::SA_NODEFER as u64 != 0
    }

    /// Where the handler returns to.
    pub(crate) const fn end(&self) -> Option<usize> {
        /// There is such a place. Source: as above.
        const SA_RESTORER: u64 = 0x0400_0000;
        if self.flags & SA_RESTORER == 0 { None } else { Some(self.restorer) }
    }
}

/// What the calling thread blocks now.
pub(crate) fn blocked() -> Mask {
    change(None)
}

/// Whether a signal waits for the calling thread, or for any that lets it in. Touches nothing in
/// thread-local storage, as the next.
pub(crate) fn is_pending(signal: libc::c_int) -> bool {
    let mut pending = Mask(0);
    let to = i64::try_from((&raw mut pending).expose_provenance()).unwrap_or_default();
    ask(libc::SYS_rt_sigpending, [to, MASK_BYTES, 0, 0]) == 0 && pending.0 & Mask::of(signal).0 != 0
}

/// What comes with a signal that has a value, as the kernel has it. Source: Linux,
/// include/uapi/asm-generic/siginfo.h.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Information {
    signal: libc::c_int,
    errno: libc::c_int,
    pub(crate) code: libc::c_int,
    unused: libc::c_int,
    pub(crate) process: libc::c_int,
    user: u32,
    pub(crate) value: u64,
    rest: [u64; 12],
}

const _: () = assert!(size_of::<Information>() == size_of::<libc::siginfo_t>());

/// Sends a signal with a value to a thread of the process.
pub(crate) fn send(thread: u32, signal: libc::c_int, value: u64) {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    let (errno, code, unused, user, rest) = (0, libc::SI_QUEUE, 0, 0, [0; 12]);
    let sent = Information { signal, errno, code, unused, process, user, value, rest };
    let from = i64::try_from((&raw const sent).expose_provenance()).unwrap_or_default();
    ask(libc::SYS_rt_tgsigqueueinfo, [process.into(), thread.into(), signal.into(), from]);
}

/// Reads so many bytes of the process's own memory at most, from there on, up to where there is
/// none; how many.
pub(crate) fn read_own(from: usize, to: &mut [usize], bytes: usize) -> usize {
    let bytes = bytes.min(size_of_val(to));
    let to = [to.as_mut_ptr().expose_provenance(), bytes];
    let from = [from, bytes];
    let at = |pair: &[usize; 2]| i64::try_from(pair.as_ptr().expose_provenance()).unwrap_or(0);
    let process = i64::from(rustix::process::getpid().as_raw_nonzero().get());
    let read = ask_six(libc::SYS_process_vm_readv, [process, at(&to), 1, at(&from), 1, 0]);
    usize::try_from(read).unwrap_or(0)
}

/// The word of the process's own memory that is there, if there is one.
pub(crate) fn read_word(from: usize) -> Option<usize> {
    let mut word = [0];
    (read_own(from, &mut word, size_of::<usize>()) == size_of::<usize>()).then_some(word[0])
}

/// Blocks every signal but the thread's own faults, until [`restore`].
pub(crate) fn block() {
    remember(exchange());
}

/// Says what [`restore`] is to put in force.
pub(crate) fn remember(mask: Mask) {
    thread::own().before.set(mask);
}

/// Blocks every signal but the thread's own faults; what was blocked before.
pub(crate) fn exchange() -> Mask {
    change(Some(&AWAY))
}

/// Puts in force again, once, what was before [`block`].
pub(crate) fn restore() {
    if let Some(mask) = thread::own().before.take() {
        set(&mask);
    }
}

/// What [`restore`] would put in force, for who does that instead.
pub(crate) fn take() -> Option<u64> {
    thread::own().before.take().map(|mask| mask.0)
}

/// Puts a mask in force.
pub(crate) fn set(mask: &Mask) {
    change(Some(mask));
}

/// Blocks what a worker blocks.
pub(crate) fn block_as_away() {
    set(if cancel::is_heard() { &ON_WORKER } else { &AWAY });
}

/// Likewise, and its own faults as well: they end the process then, by the kernel's doing.
pub(crate) fn block_with_faults() {
    set(&Mask(!Mask::of(SET_IDS).0));
}

/// A mask to put in force, if any; which one was before. The C library's own functions let
/// [`CANCEL`] through.
fn change(to: Option<&Mask>) -> Mask {
    let mut before = Mask(0);
    let to = to.map_or(0, |mask| std::ptr::from_ref(mask).expose_provenance());
    let to = i64::try_from(to).unwrap_or_default();
    let found = i64::try_from((&raw mut before).expose_provenance()).unwrap_or_default();
    ask(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK.into(), to, found, MASK_BYTES]);
    before
}

/// Notes what [`after_return_from_handler`] is to tell.
pub(crate) fn note_at_home() {
    let mut stack = MaybeUninit::<libc::stack_t>::zeroed();
    // SAFETY: writes the one, and reads nothing.
    unsafe { libc::sigaltstack(std::ptr::null(), stack.as_mut_ptr()) };
    // SAFETY: all-zero bytes are a valid one.
    thread::own().at_home.set((change(None), unsafe { stack.assume_init() }));
}

/// A handler that has begun away and returned at home has put in force there what was so away. Puts
/// back the stack for handlers that was noted, and says what was blocked.
pub(crate) fn after_return_from_handler() -> Option<u64> {
    let (mask, stack) = thread::own().at_home.take()?;
    // No program blocks it.
    if change(None).0 & Mask::of(CANCEL).0 == 0 {
        return None;
    }
    // SAFETY: reads the one, and writes nothing.
    unsafe { libc::sigaltstack(&raw const stack, std::ptr::null_mut()) };
    Some(mask.0)
}

/// Whether the process has that thread; a system call. Touches neither `errno` nor anything else in
/// thread-local storage.
pub(crate) fn is_there(thread: u32) -> bool {
    let process = i64::from(rustix::process::getpid().as_raw_nonzero().get());
    // Who may not ask (a sandbox's program) gets another answer.
    ask(libc::SYS_tgkill, [process, thread.into(), 0, 0]) != -i64::from(libc::ESRCH)
}

/// Prepares for [`fence_all`].
pub(crate) fn may_fence_all() {
    ask(libc::SYS_membarrier, [libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED.into(), 0, 0, 0]);
}

/// A fence in every running thread of the process, so that what runs often needs none; whether the
/// kernel can. Touches no thread-local storage.
pub(crate) fn fence_all() -> bool {
    ask(libc::SYS_membarrier, [libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED.into(), 0, 0, 0]) == 0
}

/// A system call that touches none of the program's memory.
fn ask(number: i64, [first, second, third, fourth]: [i64; 4]) -> i64 {
    ask_six(number, [first, second, third, fourth, 0, 0])
}

fn ask_six(number: i64, [first, second, third, fourth, fifth, sixth]: [i64; 6]) -> i64 {
    let answer: i64;
    // SAFETY: signals are sent that do nothing or are handled, barriers harm nobody, and what is
    // read and written is where the caller has put it.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => answer,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            in("r10") fourth,
            in("r8") fifth,
            in("r9") sixth,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    answer
}
