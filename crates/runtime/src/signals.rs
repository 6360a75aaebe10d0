//! The signal mask of the calling thread, and system calls about signals and threads.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::arch::{RESTORER, of_thread, system_call};
use crate::nap;
use crate::thread::Kept;

/// Signals that an instruction of the thread itself raises. If they were blocked, they would end
/// the process without a message.
const OWN: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// The signal by which the C library cancels a thread; its own functions never block it. At home
/// its handler would unwind the trampoline stack. Source: glibc,
/// sysdeps/unix/sysv/linux/internal-signals.h.
pub(crate) const CANCEL: libc::c_int = 32;

/// The signal by which the C library changes the rights of all threads; the calling thread waits
/// for all of them. Source: glibc, as for [`CANCEL`].
const SET_IDS: libc::c_int = 33;

/// The signals that are blocked while a thread is away, both at home and on the worker.
const MIGRATED: Mask = {
    let mut blocked = !Mask::of(SET_IDS).0;
    let mut index = 0;
    while index < OWN.len() {
        blocked &= !Mask::of(OWN[index]).0;
        index += 1;
    }
    Mask(blocked)
};

/// The signals that a worker blocks if threads can be cancelled on it.
const ON_WORKER: Mask = Mask(MIGRATED.0 & !Mask::of(CANCEL).0);

/// A thread's own.
struct Own {
    /// The signal mask from before it blocked everything. The thread, or its child, restores it.
    before: Kept<Mask>,
    /// The signal mask and the signal stack at home, when it came home early.
    at_home: Kept<(Mask, libc::stack_t)>,
}

of_thread! {
    fn of_thread() -> Own, "dimmer_runtime_signals";
}

/// Whether threads can be cancelled on workers, which then unblock [`CANCEL`].
static IS_CANCELLATION_HEARD: AtomicBool = AtomicBool::new(false);

/// Lets workers unblock [`CANCEL`] from now on. Call it before there are workers.
pub(crate) fn hear_cancellation() {
    IS_CANCELLATION_HEARD.store(true, Ordering::Relaxed);
}

/// Whether workers unblock [`CANCEL`].
pub(crate) fn is_cancellation_heard() -> bool {
    IS_CANCELLATION_HEARD.load(Ordering::Relaxed)
}

/// Blocked signals in the kernel's format: the lowest bit is signal 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mask(u64);

/// Size of a mask, as the kernel's system calls expect it (bytes).
const MASK_BYTES: i64 = 8;

const _: () = assert!(size_of::<Mask>() == 8);

impl Mask {
    const fn of(signal: libc::c_int) -> Self {
        Self(1 << (signal - 1))
    }

    /// Whether no signal is blocked.
    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Every signal.
pub(crate) const ALL: std::ops::RangeInclusive<libc::c_int> = 1..=64;

/// The action of a signal, in the kernel's format. Source: Linux,
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
    /// The action of a signal in this process.
    pub(crate) fn of(signal: libc::c_int) -> Option<Self> {
        let mut action = Self::default();
        let to = i64::try_from((&raw mut action).expose_provenance()).ok()?;
        let told = ask(libc::SYS_rt_sigaction, [signal.into(), 0, to, MASK_BYTES]);
        (told == 0).then_some(action)
    }

    /// The handler, if there is one.
    pub(crate) const fn handler(&self) -> Option<usize> {
        if self.is_handler() { Some(self.handler) } else { None }
    }

    /// Installs this action with another handler. Returns whether that succeeded.
    pub(crate) fn replace_handler(self, signal: libc::c_int, handler: usize) -> bool {
        let action = Self { handler, ..self };
        let Ok(from) = i64::try_from((&raw const action).expose_provenance()) else { return false };
        ask(libc::SYS_rt_sigaction, [signal.into(), from, 0, MASK_BYTES]) == 0
    }

    /// Whether the action calls a handler.
    pub(crate) const fn is_handler(&self) -> bool {
        self.handler != libc::SIG_DFL && self.handler != libc::SIG_IGN
    }

    /// Whether the signal stays unblocked while its handler runs.
    pub(crate) const fn lets_itself_through(&self) -> bool {
        self.flags & libc::SA_NODEFER as u64 != 0
    }

    /// The address that the handler returns to.
    pub(crate) const fn end(&self) -> Option<usize> {
        if self.flags & RESTORER == 0 { None } else { Some(self.restorer) }
    }
}

/// The signals that the calling thread blocks now.
pub(crate) fn blocked() -> Mask {
    change(None)
}

/// Whether a signal is pending for the calling thread, or for the process. Touches nothing in
/// thread-local storage, like the next function.
pub(crate) fn is_pending(signal: libc::c_int) -> bool {
    let mut pending = Mask(0);
    let to = i64::try_from((&raw mut pending).expose_provenance()).unwrap_or_default();
    ask(libc::SYS_rt_sigpending, [to, MASK_BYTES, 0, 0]) == 0 && pending.0 & Mask::of(signal).0 != 0
}

/// The data of a signal with a value, in the kernel's format. Source: Linux,
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

/// Reads at most `bytes` bytes of the process's own memory, from the address `from` up to the first
/// unmapped one. Returns the number of bytes.
pub(crate) fn read_own(from: usize, to: &mut [usize], bytes: usize) -> usize {
    let bytes = bytes.min(size_of_val(to));
    let to = [to.as_mut_ptr().expose_provenance(), bytes];
    let from = [from, bytes];
    let at = |pair: &[usize; 2]| i64::try_from(pair.as_ptr().expose_provenance()).unwrap_or(0);
    let process = i64::from(rustix::process::getpid().as_raw_nonzero().get());
    let read = ask_six(libc::SYS_process_vm_readv, [process, at(&to), 1, at(&from), 1, 0]);
    usize::try_from(read).unwrap_or(0)
}

/// Reads the word at an address in the process's own memory, if it is mapped.
pub(crate) fn read_word(from: usize) -> Option<usize> {
    let mut word = [0];
    (read_own(from, &mut word, size_of::<usize>()) == size_of::<usize>()).then_some(word[0])
}

/// Blocks every signal except the thread's own faults, until [`restore`].
pub(crate) fn block() {
    remember(exchange());
}

/// Sets the mask for [`restore`].
pub(crate) fn remember(mask: Mask) {
    of_thread().before.set(mask);
}

/// Blocks every signal except the thread's own faults. Returns the previous mask.
pub(crate) fn exchange() -> Mask {
    change(Some(&MIGRATED))
}

/// Restores the mask from before [`block`], once.
pub(crate) fn restore() {
    if let Some(mask) = of_thread().before.take() {
        set(&mask);
    }
}

/// Takes the mask that [`restore`] would install, for a caller that installs it instead.
pub(crate) fn take() -> Option<u64> {
    of_thread().before.take().map(|mask| mask.0)
}

/// Installs a mask.
pub(crate) fn set(mask: &Mask) {
    change(Some(mask));
}

/// Blocks the signals that a worker blocks.
pub(crate) fn block_as_migrated() {
    set(if is_cancellation_heard() { &ON_WORKER } else { &MIGRATED });
}

/// Blocks the same signals, and the thread's own faults: the kernel then ends the process on a
/// fault.
pub(crate) fn block_with_faults() {
    set(&Mask(!Mask::of(SET_IDS).0));
}

/// Installs a mask, if one is given, and returns the previous one. The C library's own functions
/// would leave [`CANCEL`] unblocked.
fn change(to: Option<&Mask>) -> Mask {
    let mut before = Mask(0);
    let to = to.map_or(0, |mask| std::ptr::from_ref(mask).expose_provenance());
    let to = i64::try_from(to).unwrap_or_default();
    let found = i64::try_from((&raw mut before).expose_provenance()).unwrap_or_default();
    ask(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK.into(), to, found, MASK_BYTES]);
    before
}

/// Records the state that [`after_return_from_handler`] restores.
pub(crate) fn note_at_home() {
    let mut stack = MaybeUninit::<libc::stack_t>::zeroed();
    // SAFETY: writes to `stack` only, and reads nothing.
    unsafe { libc::sigaltstack(std::ptr::null(), stack.as_mut_ptr()) };
    // SAFETY: all-zero bytes are a valid value.
    of_thread().at_home.set((change(None), unsafe { stack.assume_init() }));
}

/// A handler that was entered on the worker and returned at home has installed the worker's mask
/// there. This restores the recorded signal stack, and returns the mask from before.
pub(crate) fn after_return_from_handler() -> Option<u64> {
    let (mask, stack) = of_thread().at_home.take()?;
    // Programs never block it: if it is unblocked, the worker's mask was not installed.
    if change(None).0 & Mask::of(CANCEL).0 == 0 {
        return None;
    }
    // SAFETY: reads `stack` only, and writes nothing.
    unsafe { libc::sigaltstack(&raw const stack, std::ptr::null_mut()) };
    Some(mask.0)
}

/// Whether the process has that thread. Takes a system call. Touches neither `errno` nor anything
/// else in thread-local storage.
pub(crate) fn is_there(thread: u32) -> bool {
    let process = i64::from(rustix::process::getpid().as_raw_nonzero().get());
    // A process that may not ask (in a sandbox) gets another error.
    ask(libc::SYS_tgkill, [process, thread.into(), 0, 0]) != -i64::from(libc::ESRCH)
}

/// Waits until the process has that thread no more, for some ten seconds at most.
pub(crate) fn wait_until_gone(thread: u32) {
    nap::until(|| !is_there(thread));
    unlinked();
}

/// Call after [`is_there`] has said that a thread is gone: returns when it also counts no more.
/// The kernel takes away a thread's number a moment before the thread, under a lock for which this
/// call waits (`tasklist_lock`, `release_task`, `do_wait`).
pub(crate) fn unlinked() {
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    let mut child = MaybeUninit::<libc::siginfo_t>::zeroed();
    let place = i64::try_from((&raw mut child).expose_provenance()).unwrap_or_default();
    ask(libc::SYS_waitid, [libc::P_ALL.into(), 0, place, options.into()]);
}

/// Prepares for [`fence_all`].
pub(crate) fn may_fence_all() {
    ask(libc::SYS_membarrier, [libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED.into(), 0, 0, 0]);
}

/// Executes a fence in every running thread of the process, so that frequent code needs none.
/// Returns whether the kernel supports it. Touches no thread-local storage.
pub(crate) fn fence_all() -> bool {
    #[cfg(all(test, loom))]
    loom::sync::atomic::fence(Ordering::SeqCst);
    #[cfg(not(all(test, loom)))]
    return ask(libc::SYS_membarrier, [libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED.into(), 0, 0, 0])
        == 0;
    #[cfg(all(test, loom))]
    true
}

/// A system call that accesses only memory that the caller passes.
fn ask(number: i64, [first, second, third, fourth]: [i64; 4]) -> i64 {
    ask_six(number, [first, second, third, fourth, 0, 0])
}

fn ask_six(number: i64, arguments: [i64; 6]) -> i64 {
    // SAFETY: the signals that are sent do nothing or are handled, barriers are harmless, and the
    // caller provides the memory that is read and written.
    unsafe { system_call(number, arguments) }
}
