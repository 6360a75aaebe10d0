//! The cache line through which one thread hands work to one worker.
//!
//! Each thread has its own lane on each worker, as in remote core locking (paper 002 §5.4). Nothing
//! is claimed or queued, so a hand-off transfers one line there and the same line back, and a
//! thread that stalls in the middle of one delays no other thread. A worker polls its lanes in
//! turn.
//!
//! # States of the word
//!
//! The word says what the lane is for, and to whom the payload belongs: to the *owner* (the
//! thread), or to the *worker*. A *request* is [`DELEGATE`], [`DELEGATE_LEAF`] or [`MIGRATE`].
//!
//! | state | payload: whose, and what |
//! |---|---|
//! | [`IDLE`] | owner's: nothing, or a result, or a thread that is back |
//! | [`READY`] | owner's: a closure, whose code is about to be stored |
//! | a request | worker's: a closure, or a thread that has left its stack |
//! | [`PANICKED`] | owner's: what the closure panicked with |
//! | [`WITHDRAWN`] | neither's, until the owner has seen where the worker is; then the owner's |
//!
//! | from | to | by, with | when |
//! |---|---|---|---|
//! | `IDLE` | `DELEGATE` | owner, `set` | a closure is in the payload ([`Lane::ask_call`]) |
//! | `IDLE` | `MIGRATE` | owner, `set` | its kernel thread stands on the trampoline stack |
//! | `IDLE` | `READY` | owner, `put` | a leaf call's closure is in the payload |
//! | `READY` | `DELEGATE_LEAF` | owner, `set` | the work is noted, so handlers find it |
//! | a closure | `IDLE` | worker, `post` | the result is in the payload |
//! | a closure | `PANICKED` | worker, `post` | the panic is in the payload |
//! | `MIGRATE` | `IDLE` | worker, `post` | the thread has left the worker ([`crate::carry`]) |
//! | a request | `WITHDRAWN` | owner, `change` | the worker is long at other work |
//! | `WITHDRAWN` | the request | owner, `change` | the worker has started it, or may have |
//! | `WITHDRAWN`, `PANICKED` | `IDLE` | owner, `put` | the owner has what was in the payload |
//! | `READY` | `IDLE` | owner, `put` | a handler has jumped out before the request |
//! | a request | `IDLE` | owner, `put` | the worker has ended, and had not started it |
//!
//! While the owner sleeps, a request has the bit `ASLEEP` too, which the thread that changes the
//! word sees. The operations are those of [`Word`]. The worker does nothing in other states than
//! requests ([`is_asked`]), and looks again after it has said that it starts
//! ([`crate::shared::Shared::claim`]).

use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;

use crate::arch::Context;
use crate::wait::Word;

/// Nothing is asked for, or what was asked for is done.
pub(crate) const IDLE: u32 = 0;
/// Request: run the call in the lane.
pub(crate) const DELEGATE: u32 = 1;
/// Request: resume the thread in the lane.
pub(crate) const MIGRATE: u32 = 2;
/// The call is complete, and the payload holds its panic.
pub(crate) const PANICKED: u32 = 3;
/// The owner takes its request back; see [`crate::shared::Shared::give_back`].
pub(crate) const WITHDRAWN: u32 = 4;
/// Like [`DELEGATE`], for code without fault handlers of its own; see [`crate::delegate`].
pub(crate) const DELEGATE_LEAF: u32 = 5;
/// Work is in the lane, and [`DELEGATE_LEAF`] is about to request it.
pub(crate) const READY: u32 = 6;

/// Whether a lane's word requests work.
#[inline]
pub(crate) const fn is_asked(word: u32) -> bool {
    matches!(word, DELEGATE | MIGRATE | DELEGATE_LEAF)
}

/// Data in the line itself, which need not be fetched separately.
pub(crate) type ClosureBytes = MaybeUninit<[u64; 6]>;

/// Runs the work in the payload, and stores the result there. Returns the new value of the lane's
/// word.
pub(crate) type Run = unsafe fn(*mut ClosureBytes) -> u32;

/// One thread's line to one worker, and the line that processors fetch with it.
#[repr(C, align(128))]
pub(crate) struct Lane {
    pub(crate) word: Word,
    payload: UnsafeCell<Payload>,
    /// Number of calls that were started without waiting for them at once. It belongs to the thread
    /// and lies in the second line: workers never fetch it.
    pub(crate) begun: Cell<u64>,
}

/// The content of the lane. It belongs to the thread while the word is [`IDLE`], otherwise to the
/// worker.
#[derive(Clone, Copy)]
#[repr(C)]
union Payload {
    call: Call,
    thread: ThreadPayload,
}

/// A closure: its code, and the closure itself in the payload.
#[derive(Clone, Copy)]
#[repr(C, packed(4))]
struct Call {
    unused: u32,
    run: Run,
    closure: ClosureBytes,
}

/// A thread.
#[derive(Clone, Copy)]
#[repr(C, packed(4))]
pub(crate) struct ThreadPayload {
    pub(crate) context: Context,
    /// Address of its thread-local storage.
    pub(crate) thread_pointer: u64,
    unused: u64,
}

#[cfg(not(all(test, loom)))]
const _: () = assert!(size_of::<Payload>() + size_of::<Word>() == 64, "they fill a cache line");

// SAFETY: `payload` belongs to one thread at a time, which the word determines; `begun` belongs to
// one thread.
unsafe impl Sync for Lane {}
#[cfg(not(all(test, loom)))]
const _: () = assert!(size_of::<Lane>() == 128, "no lane shares a line with another");

// SAFETY: `payload` belongs to one thread at a time; what it points to is handed over with it.
unsafe impl Send for Lane {}

impl Default for Lane {
    fn default() -> Self {
        let thread = ThreadPayload { context: Context::default(), thread_pointer: 0, unused: 0 };
        Self {
            word: Word::default(),
            payload: UnsafeCell::new(Payload { thread }),
            begun: Cell::new(0),
        }
    }
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").field("word", &self.word).finish_non_exhaustive()
    }
}

impl Lane {
    fn call(&self) -> *mut Call {
        self.payload.get().cast()
    }

    /// The payload of a call.
    pub(crate) fn closure(&self) -> *mut ClosureBytes {
        // SAFETY: within `payload`; nothing is read.
        unsafe { &raw mut (*self.call()).closure }
    }

    /// Requests a call of the work in the payload; `how` is [`DELEGATE`] or [`DELEGATE_LEAF`].
    ///
    /// # Safety
    /// The lane belongs to the caller and is idle; `run` can run the content of the payload on
    /// another thread.
    pub(crate) unsafe fn ask_call(&self, run: Run, how: u32) {
        // SAFETY: the lane belongs to the caller.
        unsafe { (*self.call()).run = run };
        self.word.set(how);
    }

    /// Runs the requested call, and reports its completion.
    ///
    /// # Safety
    /// The word is [`DELEGATE`] or [`DELEGATE_LEAF`], and the caller is the lane's worker.
    pub(crate) unsafe fn answer_call(&self) {
        // SAFETY: with either word, the lane holds a call.
        let run = unsafe { (*self.call()).run };
        // SAFETY: the requesting thread guarantees that `run` fits the payload.
        let done = unsafe { run(self.closure()) };
        self.word.post(done);
    }

    /// The thread that is handed over.
    #[inline]
    pub(crate) fn thread(&self) -> *mut ThreadPayload {
        self.payload.get().cast()
    }

    /// The point where that thread resumes.
    #[inline]
    pub(crate) fn context(&self) -> *mut Context {
        // The first of its fields.
        self.payload.get().cast()
    }
}
