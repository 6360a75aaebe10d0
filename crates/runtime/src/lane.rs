//! The cache line through which one thread hands work to one worker.
//!
//! Each thread has a lane of its own on each worker, as remote core locking has (paper 002 §5.4): nothing
//! is claimed or queued, so a hand-over is one line there and the same line back, and a thread that stalls in
//! the middle of one holds up nobody. A worker looks at its lanes in turn.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;

use crate::travel::Traveller;
use crate::word::Word;

/// Nothing is asked, or what was asked is done.
pub(crate) const IDLE: u32 = 0;
/// Run [`Cargo::run`] with the payload.
pub(crate) const CALL: u32 = 1;
/// Go on with the thread in [`Cargo::traveller`].
pub(crate) const TRAVEL: u32 = 2;
/// The call is done, and the payload is what it panicked with.
pub(crate) const PANICKED: u32 = 3;

/// What travels in the line itself, and need not be fetched.
pub(crate) type Payload = MaybeUninit<[u64; 6]>;

/// Runs what is in the payload, and leaves there what it gave; what the lane's word is then.
pub(crate) type Run = unsafe fn(*mut Payload) -> u32;

/// One thread's line to one worker, and the line that processors fetch with it.
#[repr(C, align(128))]
pub(crate) struct Lane {
    pub(crate) word: Word,
    cargo: UnsafeCell<Cargo>,
}

/// What is handed over. It belongs to the thread while the word is [`IDLE`], else to the worker.
#[derive(Clone, Copy)]
pub(crate) union Cargo {
    /// With [`CALL`].
    call: Call,
    /// With [`TRAVEL`].
    travel: Travel,
}

/// A closure: its code and, in the payload, itself.
#[derive(Clone, Copy)]
#[repr(C)]
struct Call {
    run: Run,
    payload: Payload,
}

/// A thread: who it is, and where its stack ends.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Travel {
    pub(crate) traveller: *const Traveller,
    pub(crate) stack_pointer: u64,
    pub(crate) thread_pointer: u64,
}

const _: () = assert!(std::mem::size_of::<Cargo>() + 8 == 64, "a lane fills its cache line");

// SAFETY: the cargo belongs to one thread at a time, and the word says to whom.
unsafe impl Sync for Lane {}
// SAFETY: as above; what it points to is handed over with it.
unsafe impl Send for Lane {}

impl Default for Lane {
    fn default() -> Self {
        let cargo = Cargo {
            travel: Travel { traveller: std::ptr::null(), stack_pointer: 0, thread_pointer: 0 },
        };
        Self { word: Word::default(), cargo: UnsafeCell::new(cargo) }
    }
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").field("word", &self.word).finish_non_exhaustive()
    }
}

impl Lane {
    /// The payload of a call.
    pub(crate) fn payload(&self) -> *mut Payload {
        // SAFETY: the field of a union that is plain data; nothing is read.
        unsafe { &raw mut (*self.cargo.get()).call.payload }
    }

    /// Asks for a call of what is in the payload.
    ///
    /// # Safety
    /// The lane is the caller's and idle; `run` can run what is in the payload on another thread.
    pub(crate) unsafe fn ask_call(&self, run: Run) {
        // SAFETY: the lane is the caller's.
        unsafe { (*self.cargo.get()).call.run = run };
        self.word.set(CALL);
    }

    /// Runs what was asked, and says that it is done.
    ///
    /// # Safety
    /// The word is [`CALL`], and the caller the lane's worker.
    pub(crate) unsafe fn answer_call(&self) {
        // SAFETY: with `CALL` there is a call.
        let run = unsafe { (*self.cargo.get()).call.run };
        // SAFETY: whoever asked vouches for it.
        let done = unsafe { run(self.payload()) };
        self.word.post(done);
    }

    /// Asks for a thread to be gone on with.
    ///
    /// # Safety
    /// The lane is the caller's and idle; `travel` is a thread that runs nowhere.
    pub(crate) unsafe fn ask_travel(&self, travel: Travel) {
        // SAFETY: the lane is the caller's.
        unsafe { (*self.cargo.get()).travel = travel };
        self.word.set(TRAVEL);
    }

    /// Takes the thread that waits, and frees the lane.
    ///
    /// # Safety
    /// The word is [`TRAVEL`], and the caller the lane's worker.
    pub(crate) unsafe fn take_travel(&self) -> Travel {
        // SAFETY: with `TRAVEL` there is one.
        let travel = unsafe { (*self.cargo.get()).travel };
        self.word.put(IDLE);
        travel
    }
}
