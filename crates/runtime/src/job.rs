//! Closures as payloads of a lane: small ones are passed in the line itself.

use std::any::Any;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::Result;

use crate::lane::{ClosureBytes, DELEGATE, IDLE, Lane, PANICKED, Run};

/// The payload of a panic of a closure.
type Panic = Box<dyn Any + Send>;

/// Whether a value fits into a payload.
const fn fits<T>() -> bool {
    size_of::<T>() <= size_of::<ClosureBytes>() && align_of::<T>() <= align_of::<ClosureBytes>()
}

/// A closure that fits into a payload, and whose result fits.
#[derive(Debug)]
pub(crate) struct Small<F, T>(F, PhantomData<fn() -> T>);

impl<F: FnOnce() -> T, T> Small<F, T> {
    /// Wraps the closure, or returns it as an error if it or its result is too large.
    pub(crate) fn new(work: F) -> std::result::Result<Self, F> {
        if fits::<F>() && fits::<T>() {
            return Ok(Self(work, PhantomData));
        }
        Err(work)
    }

    /// Stores it in an idle lane and requests its run.
    ///
    /// # Safety
    /// The lane belongs to the caller and is idle. What the closure borrows lives until the lane is
    /// idle again.
    pub(crate) unsafe fn ask(self, lane: &Lane) {
        // SAFETY: the caller guarantees that the lane is its own and idle.
        unsafe { self.put(lane) };
        // SAFETY: the caller guarantees the lane and the borrows, and the closure was just stored.
        unsafe { Self::ask_for(lane, DELEGATE) };
    }

    /// Stores it in an idle lane.
    ///
    /// # Safety
    /// The lane belongs to the caller and is idle.
    pub(crate) unsafe fn put(self, lane: &Lane) {
        // SAFETY: it fits, and the lane belongs to the caller.
        unsafe { lane.closure().cast::<F>().write(self.0) };
    }

    /// Requests a run of the closure in the lane, with the word `how`.
    ///
    /// # Safety
    /// As for [`Self::ask`], and the lane holds a closure of this kind.
    pub(crate) unsafe fn ask_for(lane: &Lane, how: u32) {
        let run: Run = run::<F, T>;
        // SAFETY: the payload is what `run` takes.
        unsafe { lane.ask_call(run, how) };
    }

    /// Takes back a closure that the worker has not started.
    ///
    /// # Safety
    /// The lane holds this closure, and no worker runs it.
    pub(crate) unsafe fn take_back(lane: &Lane) -> Self {
        // SAFETY: the caller guarantees that the lane holds this closure, and that no worker runs
        // it.
        let work = unsafe { lane.closure().cast::<F>().read() };
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

/// The result or the panic of a closure. The lane is idle afterwards.
///
/// # Safety
/// The lane's word was `word` after a run of a closure that returns `T`.
pub(crate) unsafe fn result<T>(lane: &Lane, word: u32) -> Result<T> {
    if word == IDLE {
        // SAFETY: `run` has stored it there.
        return Ok(unsafe { lane.closure().cast::<T>().read() });
    }
    // SAFETY: `run` has stored it there: with another word it is a panic.
    let panic = unsafe { lane.closure().cast::<Panic>().read() };
    lane.word.put(IDLE);
    Err(panic)
}

/// Runs the closure in the payload, and stores its result there.
unsafe fn run<F: FnOnce() -> T, T>(closure: *mut ClosureBytes) -> u32 {
    // SAFETY: `Small::ask` has stored it there.
    let work = unsafe { closure.cast::<F>().read() };
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(value) => {
            // SAFETY: it fits, and the lane belongs to the worker.
            unsafe { closure.cast::<T>().write(value) };
            IDLE
        }
        Err(panic) => {
            // SAFETY: two words fit, and the lane belongs to the worker.
            unsafe { closure.cast::<Panic>().write(panic) };
            PANICKED
        }
    }
}

/// A closure that does not fit, on its owner's stack; a pointer to it is passed.
#[derive(Debug)]
pub(crate) struct Large<F, T> {
    work: Option<F>,
    value: MaybeUninit<T>,
}

impl<F: FnOnce() -> T, T> Large<F, T> {
    pub(crate) const fn new(work: F) -> Self {
        Self { work: Some(work), value: MaybeUninit::uninit() }
    }

    /// A small closure that runs the large one and stores its result here.
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

    /// The result.
    ///
    /// # Safety
    /// The small closure has run, and has not panicked.
    pub(crate) unsafe fn value(self) -> T {
        // SAFETY: the small closure has run, which writes it.
        unsafe { self.value.assume_init() }
    }

    /// The closure, for its owner to run.
    ///
    /// # Safety
    /// The small closure has not run.
    pub(crate) unsafe fn into_work(self) -> F {
        // SAFETY: only the small closure takes it.
        unsafe { self.work.unwrap_unchecked() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::wait::Patience;

    /// The word of a lane whose worker should end.
    const END: u32 = 100;

    /// Runs `check` while a thread answers the calls of a lane, as workers do.
    fn with_worker<R>(check: impl FnOnce(&Lane) -> R) -> R {
        let lane = Lane::default();
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                loop {
                    match lane.word.value() {
                        // SAFETY: the word requests a call, and this is the lane's only worker.
                        DELEGATE => unsafe { lane.answer_call() },
                        END => break,
                        _ => std::thread::yield_now(),
                    }
                }
            });
            let result = check(&lane);
            lane.word.post(END);
            // The end of the scope waits as well, but ThreadSanitizer does not see how.
            worker.join().unwrap();
            result
        })
    }

    /// Hands a closure over and waits for its result.
    fn hand_over<F: FnOnce() -> T, T>(lane: &Lane, work: F) -> Result<T> {
        let Ok(small) = Small::new(work) else { panic!("it fits") };
        // SAFETY: the lane belongs to this thread and is idle, and this function waits for the
        // result.
        unsafe { small.ask(lane) };
        let word = loop {
            match lane.word.value() {
                DELEGATE => drop(lane.word.wait_while(DELEGATE, Patience(Duration::ZERO))),
                word => break word,
            }
        };
        // SAFETY: the worker has left this word.
        unsafe { result::<T>(lane, word) }
    }

    /// Counts its drops.
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
    fn large_ones_are_handed_over_by_a_pointer() {
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
            // SAFETY: nothing else uses the lane.
            unsafe { small.put(lane) };
            // SAFETY: the lane holds the closure, and no worker runs it.
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
