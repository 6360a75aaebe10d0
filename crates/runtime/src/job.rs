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
    /// The lane is the caller's and idle. What the closure borrows lives until the lane is idle
    /// again.
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
    pub(crate) unsafe fn take_back(lane: &Lane) -> Self {
        // SAFETY: as the caller says.
        let work = unsafe { lane.payload().cast::<F>().read() };
        lane.word.put(IDLE);
        Self(work, PhantomData)
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

    /// It, to be run by who has it.
    ///
    /// # Safety
    /// The small closure has not run.
    pub(crate) unsafe fn into_work(self) -> F {
        // SAFETY: it is taken only then.
        unsafe { self.work.unwrap_unchecked() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::word::Patience;

    /// Word of a lane whose worker is to end.
    const END: u32 = 100;

    /// Has a thread answer the calls of a lane meanwhile, as workers do.
    fn with_worker<R>(check: impl FnOnce(&Lane) -> R) -> R {
        let lane = Lane::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                loop {
                    match lane.word.value() {
                        // SAFETY: the word says so, and this is the lane's only worker.
                        CALL => unsafe { lane.answer_call() },
                        END => break,
                        _ => std::thread::yield_now(),
                    }
                }
            });
            let result = check(&lane);
            lane.word.post(END);
            result
        })
    }

    /// Hands it over and waits for what it gives.
    fn hand_over<F: FnOnce() -> T, T>(lane: &Lane, work: F) -> Result<T> {
        let Ok(small) = Small::new(work) else { panic!("it fits") };
        // SAFETY: the lane is this thread's and idle; it waits right here.
        unsafe { small.ask(lane) };
        let word = loop {
            match lane.word.value() {
                CALL => drop(lane.word.wait_while(CALL, Patience(Duration::ZERO))),
                word => break word,
            }
        };
        // SAFETY: the worker has left it so.
        unsafe { result::<T>(lane, word) }
    }

    /// Counts how often it is dropped.
    struct Counted<'a>(&'a AtomicU32);

    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_is_handed_over_runs_once_and_is_dropped_once() {
        let dropped = AtomicU32::new(0);
        with_worker(|lane| {
            let home = std::thread::current().id();
            let mut sum = 0_u64;
            for turn in 0..20 {
                let held = Counted(&dropped);
                let text = format!("turn {turn}");
                let (text, away) = hand_over(lane, || {
                    let _held = held;
                    sum += turn;
                    (text, std::thread::current().id())
                })
                .unwrap();
                assert_eq!((text, away == home), (format!("turn {turn}"), false));
            }
            assert_eq!(sum, 190);
        });
        assert_eq!(dropped.into_inner(), 20);
    }

    #[test]
    fn large_ones_travel_by_a_pointer() {
        with_worker(|lane| {
            let words: [u64; 32] = std::array::from_fn(|index| index as u64);
            let work = move || words.map(|word| 2 * word);
            assert!(Small::new(work).is_err());
            let mut large = Large::new(work);
            hand_over(lane, large.pointer()).unwrap();
            // SAFETY: it has run.
            let doubled = unsafe { large.value() };
            assert_eq!(doubled[31], 62);
        });
    }

    #[test]
    fn panics_come_back_and_the_lane_goes_on() {
        let dropped = AtomicU32::new(0);
        with_worker(|lane| {
            let held = Counted(&dropped);
            let panic = hand_over(lane, move || -> u8 {
                let _held = held;
                std::panic::resume_unwind(Box::new("out of it"));
            });
            assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"out of it"));
            assert_eq!(hand_over(lane, || 7).unwrap(), 7);
        });
        assert_eq!(dropped.into_inner(), 1);
    }

    #[test]
    fn what_was_not_begun_is_taken_back_whole() {
        fn put_and_take_back<F: FnOnce() -> T, T>(lane: &Lane, work: F) -> F {
            let Ok(small) = Small::new(work) else { panic!("it fits") };
            // SAFETY: nobody else knows the lane.
            unsafe { small.put(lane) };
            // SAFETY: it holds that, and nobody runs it.
            unsafe { Small::<F, T>::take_back(lane) }.into_inner()
        }
        let (dropped, ran) = (AtomicU32::new(0), Cell::new(0));
        let held = Counted(&dropped);
        let work = put_and_take_back(&Lane::default(), || {
            let _held = held;
            ran.set(ran.get() + 1);
        });
        assert_eq!(dropped.load(Ordering::Relaxed), 0);
        work();
        assert_eq!((dropped.load(Ordering::Relaxed), ran.get()), (1, 1));
    }
}
