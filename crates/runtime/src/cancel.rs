//! Threads that are cancelled while they are away.
//!
//! The C library cancels a thread that waits by a signal to the kernel's thread that it knows,
//! whose handler unwinds the thread. Of a thread that is away that is its home, where the signal
//! waits; and what the thread waits for may never come. So its home looks now and then whether the
//! signal is there, and sends it on to the worker: there the C library's own handler finds the
//! thread, on its stack and with its thread-local storage, and what it unwinds brings the thread
//! home.
//!
//! When the worker has the signal, the thread may have left it again. So [`receive`] is called
//! first, and lets the C library's handler know only what comes to a thread that is there. Its home
//! sends the signal until that has happened once: from then on the thread finds by itself, wherever
//! it may be cancelled, that it is.
//!
//! Whatever this crate does with files is done [`Uncancelled`]: the C library cancels there too,
//! and Rust's code ends the process then.

use std::arch::naked_asm;
use std::ffi::c_int;
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use crate::signals::{self, Action, CANCEL, Information};
use crate::switch;
use crate::thread::Thread;
use crate::travel::Travelling;
use crate::worker::{Own, Shared};

/// Whether homes listen.
static IS_HEARD: AtomicBool = AtomicBool::new(false);

/// The handler of the C library, from when [`receive`] is called before it.
static HANDLER: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// How far from its FS base what is kept of a thread lies, the same for all.
static OFFSET: AtomicU64 = AtomicU64::new(0);

/// Where the interrupted stack pointer lies in what a handler is given.
const STACK_POINTER: usize = offset_of!(libc::ucontext_t, uc_mcontext)
    + offset_of!(libc::mcontext_t, gregs)
    + libc::REG_RSP as usize * size_of::<libc::greg_t>();

unsafe extern "C" {
    /// pthread_setcancelstate(3).
    safe fn pthread_setcancelstate(state: c_int, before: &mut c_int) -> c_int;
}

/// The calling thread is not cancelled, until this is dropped.
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

/// Has homes listen from now on. To be called before there are workers: they let the signal in.
pub(crate) fn hear() {
    IS_HEARD.store(true, Ordering::Relaxed);
}

/// Whether homes listen, and workers let the signal in.
pub(crate) fn is_heard() -> bool {
    IS_HEARD.load(Ordering::Relaxed)
}

/// To be called on the trampoline stack now and then: if the thread that is away at that worker is
/// cancelled, it learns of it. Some system calls, and nothing of thread-local storage.
pub(crate) fn pass_on(worker: &Shared, traveller: &Travelling) {
    if !is_heard()
        || traveller.thread.is_cancelled.load(Ordering::Relaxed)
        || !signals::is_pending(CANCEL)
    {
        return;
    }
    let own = std::ptr::from_ref(traveller.thread).expose_provenance() as u64;
    let base = traveller.thread_pointer;
    OFFSET.store(own.wrapping_sub(base), Ordering::Relaxed);
    if receives()
        && let Some(thread) = worker.thread()
    {
        signals::send(thread, CANCEL, base);
    }
}

/// Has [`receive`] called for the signal; whether it is. Once: others that do the same call it, as
/// it calls those before it.
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

/// The signal's handler. It leaves no frame below that of the C library, which unwinds, and does
/// not heed what has a value.
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

/// What comes to a thread that was interrupted here looks then as the C library sends it.
extern "C" fn look(information: &mut Information, stack_pointer: usize) {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: it is sent to workers that carry threads, where that may be read.
    let base = unsafe { switch::thread_pointer() };
    if information.process == process && information.value == base && is_here(base, stack_pointer) {
        // SAFETY: the thread is here, so what is kept of it is there.
        let own = unsafe { &*kept(base) };
        // Once, however often its home has sent it before it came.
        if !own.is_cancelled.swap(true, Ordering::Relaxed) {
            information.code = libc::SI_TKILL;
            // A handler that does not return leaves its signal blocked, and the next thread on this
            // worker may be cancelled, too.
            signals::block_as_away();
        }
    }
}

/// What is kept of the thread with this FS base.
fn kept(base: u64) -> *const Thread {
    let own = base.wrapping_add(OFFSET.load(Ordering::Relaxed));
    std::ptr::with_exposed_provenance(usize::try_from(own).unwrap_or_default())
}

/// Whether the thread with this FS base was interrupted on the calling kernel thread. That may have
/// its base in force although it has left, and even ended: so its memory is read by the kernel.
fn is_here(base: u64, stack_pointer: usize) -> bool {
    let worker = signals::read_word(kept(base).addr().wrapping_add(offset_of!(Thread, bound_for)));
    let Some(worker) = worker.filter(|worker| *worker != 0) else { return false };
    let read = |offset: usize| signals::read_word(worker.wrapping_add(offset));
    let (Some(thread), Some(stack)) = (read(Own::THREAD), read(Own::STACK)) else { return false };
    let caller = rustix::thread::gettid().as_raw_nonzero().get();
    // On its own stack the worker has not begun to carry the thread, or no longer does.
    let is_worker = (stack.saturating_sub(Own::DEEPEST)..=stack).contains(&stack_pointer);
    u32::try_from(caller).is_ok_and(|caller| thread & 0xFFFF_FFFF == caller as usize) && !is_worker
}
