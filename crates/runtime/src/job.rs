//! Closures as payloads of a lane: small ones travel in the line itself.

use std::any::Any;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::Result;

use crate::lane::{CALL, IDLE, Lane, PANICKED, Payload, Run};

/// What a closure panicked with.
type Panic = Box<dyn Any + Send>;

/// Whether a value can lie in a payload.
const fn fits<T>() -> bool {
    size_of::<T>() <= size_of::<Payload>() && align_of::<T>() <= align_of::<Payload>()
}

/// A closure that fits into a payload, and whose result does.
#[derive(Debug)]
pub(crate) struct Small<F, T>(F, PhantomData<fn() -> T>);

impl<F: FnOnce() -> T, T> Small<F, T> {
    /// The closure, or the same closure where one of the two is too large.
    pub(crate) fn new(work: F) -> std::result::Result<Self, F> {
        if fits::<F>() && fits::<T>() {
            return Ok(Self(work, PhantomData));
        }
        Err(work)
    }

    /// Puts it into an idle lane and asks for it to be run.
    ///
    /// # Safety
    /// The lane is the caller's and idle. What the closure borrows lives until the lane is idle again.
    pub(crate) unsafe fn ask(self, lane: &Lane) {
        // SAFETY: as the caller says.
        unsafe { self.put(lane) };
        // SAFETY: as the caller says, and it is there.
        unsafe { Self::ask_for(lane, CALL) };
    }

    /// Puts it into an idle lane.
    ///
    /// # Safety
    /// The lane is the caller's and idle.
    pub(crate) unsafe fn put(self, lane: &Lane) {
        // SAFETY: it fits, and the lane is the caller's.
        unsafe { lane.payload().cast::<F>().write(self.0) };
    }

    /// Asks for what is in the lane to be run, by the word `how`.
    ///
    /// # Safety
    /// As [`Self::ask`], and a closure of this kind is there.
    pub(crate) unsafe fn ask_for(lane: &Lane, how: u32) {
        let run: Run = run::<F, T>;
        // SAFETY: the payload is what `run` takes.
        unsafe { lane.ask_call(run, how) };
    }

    /// Takes back what a worker that ended has not begun.
    ///
    /// # Safety
    /// The lane holds this closure, and nobody runs it.
    pub(crate) unsafe fn take_back(lane: &Lane) -> F {
        // SAFETY: as the caller says.
        let work = unsafe { lane.payload().cast::<F>().read() };
        lane.word.put(IDLE);
        work
    }

    /// The closure.
    pub(crate) fn into_inner(self) -> F {
        self.0
    }

    /// Runs it on the calling thread.
    pub(crate) fn run_here(self) -> T {
        (self.0)()
    }
}

/// What a closure gave, or what it panicked with. The lane is idle then.
///
/// # Safety
/// The lane's word was `word` once a closure that gives `T` had been run.
pub(crate) unsafe fn result<T>(lane: &Lane, word: u32) -> Result<T> {
    if word == IDLE {
        // SAFETY: `run` has left it there.
        return Ok(unsafe { lane.payload().cast::<T>().read() });
    }
    // SAFETY: as above, of the other kind.
    let panic = unsafe { lane.payload().cast::<Panic>().read() };
    lane.word.put(IDLE);
    Err(panic)
}

/// Runs the closure in the payload, and leaves there what it gives.
unsafe fn run<F: FnOnce() -> T, T>(payload: *mut Payload) -> u32 {
    // SAFETY: `Small::ask` has put it there.
    let work = unsafe { payload.cast::<F>().read() };
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(value) => {
            // SAFETY: it fits, and the lane is the worker's.
            unsafe { payload.cast::<T>().write(value) };
            IDLE
        }
        Err(panic) => {
            // SAFETY: two words.
            unsafe { payload.cast::<Panic>().write(panic) };
            PANICKED
        }
    }
}

/// A closure that does not fit, on its owner's stack; a pointer to it travels.
#[derive(Debug)]
pub(crate) struct Large<F, T> {
    work: Option<F>,
    value: MaybeUninit<T>,
}

impl<F: FnOnce() -> T, T> Large<F, T> {
    pub(crate) const fn new(work: F) -> Self {
        Self { work: Some(work), value: MaybeUninit::uninit() }
    }

    /// A small closure that runs the large one and leaves there what it gives.
    pub(crate) fn pointer(&mut self) -> impl FnOnce() + Send + '_
    where
        F: Send,
        T: Send,
    {
        || {
            if let Some(work) = self.work.take() {
                self.value.write(work());
            }
        }
    }

    /// What it gave.
    ///
    /// # Safety
    /// The small closure has run, and has not panicked.
    pub(crate) unsafe fn value(self) -> T {
        // SAFETY: written then.
        unsafe { self.value.assume_init() }
    }
}
