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
//!
//! All code of this crate that uses files runs [`Uncancelled`]: file functions are cancellation
//! points too, and Rust code ends the process when it is cancelled there.

use std::arch::naked_asm;
use std::ffi::c_int;
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use crate::migrate::MigrationState;
use crate::signals::{self, Action, CANCEL, Information};
use crate::switch;
use crate::thread::Thread;
use crate::worker::{Own, Shared};

/// Whether homes check for cancellations.
static IS_HEARD: AtomicBool = AtomicBool::new(false);

/// The C library's handler, once [`receive`] is called before it.
static HANDLER: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Distance of a thread's [`Thread`] from its FS base, the same for all threads.
static OFFSET: AtomicU64 = AtomicU64::new(0);

/// Offset of the interrupted stack pointer in a handler's context argument.
const STACK_POINTER: usize = offset_of!(libc::ucontext_t, uc_mcontext)
    + offset_of!(libc::mcontext_t, gregs)
    + libc::REG_RSP as usize * size_of::<libc::greg_t>();

unsafe extern "C" {
    /// pthread_setcancelstate(3).
    safe fn pthread_setcancelstate(state: c_int, before: &mut c_int) -> c_int;
}

/// The calling thread cannot be cancelled until this is dropped.
#[derive(Debug)]
pub(crate) struct Uncancelled(c_int);

impl Uncancelled {
    pub(crate) fn begin() -> Self {
        /// Source: glibc, sysdeps/nptl/pthread.h.
        const DISABLE: c_int = 1;
        let mut before = 0;
        pthread_setcancelstate(DISABLE, &mut before);
        Self(before)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        pthread_setcancelstate(self.0, &mut 0);
    }
}

/// Makes homes check for cancellations from now on. Call it before there are workers: they unblock
/// the signal.
pub(crate) fn hear() {
    IS_HEARD.store(true, Ordering::Relaxed);
}

/// Whether homes check for cancellations, and workers unblock the signal.
pub(crate) fn is_heard() -> bool {
    IS_HEARD.load(Ordering::Relaxed)
}

/// The trampoline stack calls it now and then: passes a cancellation on to the thread that is away
/// at that worker. Takes some system calls, and touches nothing in thread-local storage.
pub(crate) fn pass_on(worker: &Shared, state: &MigrationState) {
    if !is_heard()
        || state.thread.is_cancelled.load(Ordering::Relaxed)
        || !signals::is_pending(CANCEL)
    {
        return;
    }
    let own = std::ptr::from_ref(state.thread).expose_provenance() as u64;
    let base = state.thread_pointer;
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
    HANDLER.store(std::ptr::with_exposed_provenance_mut(handler), Ordering::Release);
    action.replace_handler(CANCEL, own)
}

/// The signal handler. It leaves no frame of its own below the C library's handler, which unwinds,
/// and which ignores signals with a value.
#[unsafe(naked)]
unsafe extern "C" fn receive() {
    naked_asm!(
        ".cfi_startproc",
        "cmp dword ptr [rsi + {code}], {with_value}",
        "jne 2f",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "push rdx",
        ".cfi_adjust_cfa_offset 8",
        "mov rdi, rsi",
        "mov rsi, [rdx + {stack_pointer}]",
        "call {look}",
        "pop rdx",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "2:",
        "jmp [rip + {handler}]",
        ".cfi_endproc",
        code = const offset_of!(Information, code),
        with_value = const libc::SI_QUEUE,
        stack_pointer = const STACK_POINTER,
        look = sym look,
        handler = sym HANDLER,
    )
}

/// If the signal is for the thread that was interrupted here, makes it look like one of the C
/// library.
extern "C" fn look(information: &mut Information, stack_pointer: usize) {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: the signal is sent only to workers that carry threads, where reading it is allowed.
    let base = unsafe { switch::thread_pointer() };
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
fn kept(base: u64) -> *const Thread {
    let own = base.wrapping_add(OFFSET.load(Ordering::Relaxed));
    std::ptr::with_exposed_provenance(usize::try_from(own).unwrap_or_default())
}

/// Whether the thread with this FS base was interrupted on the calling kernel thread. The base may
/// be in use there although the thread has left, or has even ended. Therefore the kernel reads the
/// thread's memory.
fn is_here(base: u64, stack_pointer: usize) -> bool {
    let worker = signals::read_word(kept(base).addr().wrapping_add(offset_of!(Thread, bound_for)));
    let Some(worker) = worker.filter(|worker| *worker != 0) else { return false };
    let read = |offset: usize| signals::read_word(worker.wrapping_add(offset));
    let (Some(thread), Some(stack)) = (read(Own::THREAD), read(Own::STACK)) else { return false };
    let caller = rustix::thread::gettid().as_raw_nonzero().get();
    // On its own stack, the worker has not started to carry the thread, or no longer does.
    let is_worker = (stack.saturating_sub(Own::DEEPEST)..=stack).contains(&stack_pointer);
    u32::try_from(caller).is_ok_and(|caller| thread & 0xFFFF_FFFF == caller as usize) && !is_worker
}
