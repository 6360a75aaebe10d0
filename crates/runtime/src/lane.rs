//! The cache line through which one thread hands work to one worker.
//!
//! Each thread has a lane of its own on each worker, as remote core locking has (paper 002 §5.4):
//! nothing is claimed or queued, so a hand-over is one line there and the same line back, and a
//! thread that stalls in the middle of one holds up nobody. A worker looks at its lanes in turn.

use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;

use crate::switch::Context;
use crate::word::Word;

/// Nothing is asked, or what was asked is done.
pub(crate) const IDLE: u32 = 0;
/// Run what is in the cargo.
pub(crate) const CALL: u32 = 1;
/// Go on with the thread in the cargo.
pub(crate) const TRAVEL: u32 = 2;
/// The call is done, and the payload is what it panicked with.
pub(crate) const PANICKED: u32 = 3;

/// Whoever asked takes it back; see [`crate::worker::Shared::give_back`].
pub(crate) const WITHDRAWN: u32 = 5;

/// As [`CALL`], of code that has no handlers for faults of its own; see [`crate::lend`].
pub(crate) const LENT: u32 = 6;

/// Work lies ready that is about to be asked for by [`LENT`].
pub(crate) const READY: u32 = 7;

/// What travels in the line itself, and need not be fetched.
pub(crate) type Payload = MaybeUninit<[u64; 6]>;

/// Runs what is in the payload, and leaves there what it gave; what the lane's word is then.
pub(crate) type Run = unsafe fn(*mut Payload) -> u32;

/// One thread's line to one worker, and the line that processors fetch with it.
#[repr(C, align(128))]
pub(crate) struct Lane {
    pub(crate) word: Word,
    cargo: UnsafeCell<Cargo>,
    /// How many calls were begun that nobody waited for at once. The thread's own, and in the
    /// second line: workers never fetch it.
    pub(crate) begun: Cell<u64>,
}

/// What is handed over. It belongs to the thread while the word is [`IDLE`], else to the worker.
#[derive(Clone, Copy)]
#[repr(C)]
union Cargo {
    call: Call,
    travel: Travel,
}

/// A closure: its code and, in the payload, itself.
#[derive(Clone, Copy)]
#[repr(C, packed(4))]
struct Call {
    unused: u32,
    run: Run,
    payload: Payload,
}

/// A thread.
#[derive(Clone, Copy)]
#[repr(C, packed(4))]
pub(crate) struct Travel {
    pub(crate) context: Context,
    /// Its thread-local storage.
    pub(crate) thread_pointer: u64,
    unused: u64,
}

#[cfg(not(all(test, loom)))]
const _: () = assert!(size_of::<Cargo>() + size_of::<Word>() == 64, "they fill a cache line");

// SAFETY: the cargo belongs to one thread at a time, and the word says to whom; the count is one
// thread's.
unsafe impl Sync for Lane {}
#[cfg(not(all(test, loom)))]
const _: () = assert!(size_of::<Lane>() == 128, "no lane shares a line with another");

// SAFETY: as above; what it points to is handed over with it.
unsafe impl Send for Lane {}

impl Default for Lane {
    fn default() -> Self {
        let travel = Travel { context: Context::default(), thread_pointer: 0, unused: 0 };
        Self {
            word: Word::default(),
            cargo: UnsafeCell::new(Cargo { travel }),
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
        self.cargo.get().cast()
    }

    /// The payload of a call.
    pub(crate) fn payload(&self) -> *mut Payload {
        // SAFETY: within the cargo; nothing is read.
        unsafe { &raw mut (*self.call()).payload }
    }

    /// Asks for a call of what is in the payload, by [`CALL`] or [`LENT`].
    ///
    /// # Safety
    /// The lane is the caller's and idle; `run` can run what is in the payload on another thread.
    pub(crate) unsafe fn ask_call(&self, run: Run, how: u32) {
        // SAFETY: the lane is the caller's.
        unsafe { (*self.call()).run = run };
        self.word.set(how);
    }

    /// Runs what was asked, and says that it is done.
    ///
    /// # Safety
    /// The word is [`CALL`] or [`LENT`], and the caller the lane's worker.
    pub(crate) unsafe fn answer_call(&self) {
        // SAFETY: with either there is a call.
        let run = unsafe { (*self.call()).run };
        // SAFETY: whoever asked vouches for it.
        let done = unsafe { run(self.payload()) };
        self.word.post(done);
    }

    /// The thread that is handed over.
    #[inline]
    pub(crate) fn travel(&self) -> *mut Travel {
        self.cargo.get().cast()
    }

    /// Where that thread goes on.
    #[inline]
    pub(crate) fn context(&self) -> *mut Context {
        // The first of its fields.
        self.cargo.get().cast()
    }
}
