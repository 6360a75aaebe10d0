//! Cancellation of threads that are away.
//!
//! glibc cancels a waiting thread by a signal to its kernel thread; the signal's handler unwinds
//! the thread. For a thread that is away, that kernel thread is its home. The signal stays pending
//! there, and the thread may wait forever. So the home checks for the signal now and then, and
//! sends it on to the worker. There the C library's own handler finds the thread, on its stack and
//! with its thread-local storage, and the unwinding brings the thread home.
//!
//! When the signal arrives at the worker, the thread may have left it. So [`receive`] is called
//! first, and passes on to the C library's handler only signals for a thread that is there. The
//! home sends the signal until one was passed on: from then on the thread itself detects its
//! cancellation, wherever it may be cancelled.

use std::cell::Cell;
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use crate::arch::{cancellation_handler, of_thread, thread_pointer};
use crate::shared::{Own, Shared};
use crate::signals::{self, Action, CANCEL, Information};

/// What homes and handlers know of a thread.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Cancelled {
    /// The worker that the thread was sent to, while it is away; otherwise null.
    pub(crate) bound_for: Cell<*const Own>,
    /// Whether the thread has received its cancellation on a worker; its home reads this.
    is_cancelled: AtomicBool,
}

of_thread! {
    /// The calling thread's.
    pub(crate) fn of_thread() -> Cancelled, "dimmer_runtime_cancel";
}

/// The C library's handler, once [`receive`] is called before it.
static HANDLER: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Distance of a thread's [`Cancelled`] from its FS base, the same for all threads.
static OFFSET: AtomicU64 = AtomicU64::new(0);

/// The trampoline stack calls it now and then: passes a cancellation on to the thread that is away
/// at that worker; `base` is its FS base. Takes some system calls, and touches nothing in
/// thread-local storage.
pub(crate) fn pass_on(worker: &Shared, thread: &Cancelled, base: u64) {
    if !signals::is_cancellation_heard()
        || thread.is_cancelled.load(Ordering::Relaxed)
        || !signals::is_pending(CANCEL)
    {
        return;
    }
    let own = std::ptr::from_ref(thread).expose_provenance() as u64;
    OFFSET.store(own.wrapping_sub(base), Ordering::Relaxed);
    if receives()
        && let Some(thread) = worker.thread()
    {
        signals::send(thread, CANCEL, base);
    }
}

/// Installs [`receive`] for the signal, and returns whether it is installed. Done only once: a
/// handler that is installed later in the same way calls this one, as this one calls its
/// predecessor.
fn receives() -> bool {
    if !HANDLER.load(Ordering::Relaxed).is_null() {
        return true;
    }
    let Some(action) = Action::of(CANCEL) else { return false };
    let Some(handler) = action.handler() else { return false };
    let own = receive as *const () as usize;
    if handler == own {
        return true;
    }
    // Ordering: before the system call that installs `receive`, which jumps there.
    HANDLER.store(std::ptr::with_exposed_provenance_mut(handler), Ordering::Release);
    action.replace_handler(CANCEL, own)
}

cancellation_handler! {
    /// The signal handler. The C library's handler ignores signals with a value.
    unsafe fn receive, look, offset_of!(Information, code), libc::SI_QUEUE, HANDLER
}

/// If the signal is for the thread that was interrupted here, makes it look like one of the C
/// library.
extern "C" fn look(information: &mut Information, stack_pointer: usize) {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: the signal is sent only to workers that carry threads, where reading it is allowed.
    let base = unsafe { thread_pointer() };
    if information.process == process && information.value == base && is_here(base, stack_pointer) {
        // SAFETY: the thread is here, so its data exists.
        let own = unsafe { &*kept(base) };
        // Only once, even if its home has sent the signal several times before it arrived.
        if !own.is_cancelled.swap(true, Ordering::Relaxed) {
            information.code = libc::SI_TKILL;
            // A handler that does not return leaves its signal blocked, and the next thread on this
            // worker may be cancelled, too.
            signals::block_as_migrated();
        }
    }
}

/// The data of the thread with this FS base.
fn kept(base: u64) -> *const Cancelled {
    let own = base.wrapping_add(OFFSET.load(Ordering::Relaxed));
    std::ptr::with_exposed_provenance(usize::try_from(own).unwrap_or_default())
}

/// Whether the thread with this FS base was interrupted on the calling kernel thread. The base may
/// be in use there although the thread has left, or has even ended. Therefore the kernel reads the
/// thread's memory.
fn is_here(base: u64, stack_pointer: usize) -> bool {
    let worker =
        signals::read_word(kept(base).addr().wrapping_add(offset_of!(Cancelled, bound_for)));
    let Some(worker) = worker.filter(|worker| *worker != 0) else { return false };
    let read = |offset: usize| signals::read_word(worker.wrapping_add(offset));
    let (Some(thread), Some(stack)) = (read(Own::THREAD), read(Own::STACK)) else { return false };
    let caller = rustix::thread::gettid().as_raw_nonzero().get();
    // On its own stack, the worker has not started to carry the thread, or no longer does.
    let is_worker = (stack.saturating_sub(Own::DEEPEST)..=stack).contains(&stack_pointer);
    u32::try_from(caller).is_ok_and(|caller| thread & 0xFFFF_FFFF == caller as usize) && !is_worker
}
