//! A word in shared memory that one thread changes and another waits for. The waiter spins first,
//! and sleeps later.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::futex::Futex;

/// The waiter sleeps: the thread that changes the word wakes it.
const ASLEEP: u32 = 1 << 31;

/// Iterations of the spinning loop between two readings of the clock.
const TURNS: u32 = if cfg!(all(test, loom)) { 1 } else { 64 };

/// Maximum time of a sleep before the waiter checks the other side.
const NAP: Duration = Duration::from_millis(100);

/// How long to spin before sleeping. In a virtual machine, sleeping and being woken costs a hundred
/// times as much as a hand-off to a spinning thread. Spinning for as long as that takes is never
/// more than twice as expensive as the better of the two choices (the ski-rental bound).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patience(pub(crate) Duration);

/// The word: a value below 2^31, and a bit for a waiter that sleeps.
#[derive(Debug, Default)]
pub(crate) struct Word(Futex);

impl Word {
    /// The value. All writes before its posting are visible.
    pub(crate) fn value(&self) -> u32 {
        self.0.load(Ordering::Acquire) & !ASLEEP
    }

    /// Changes the value while no thread waits for it yet. The change is ordered before all later
    /// loads, since the caller checks next whether the other side sleeps.
    pub(crate) fn set(&self, value: u32) {
        self.0.swap(value, Ordering::SeqCst);
        // On x86-64 the exchange is a fence; the model needs an explicit one.
        #[cfg(all(test, loom))]
        loom::sync::atomic::fence(Ordering::SeqCst);
    }

    /// Changes the value. The only ordering: earlier writes become visible with it.
    pub(crate) fn put(&self, value: u32) {
        self.0.store(value, Ordering::Release);
    }

    /// Changes the value if it is `from`, and returns whether it was. Ordered before all later
    /// loads.
    pub(crate) fn change(&self, from: u32, to: u32) -> bool {
        let change = |now| (now & !ASLEEP == from).then_some(to);
        self.0.fetch_update(Ordering::SeqCst, Ordering::Acquire, change).is_ok()
    }

    /// Changes the value, and wakes the waiter if it sleeps.
    pub(crate) fn post(&self, value: u32) {
        if self.0.swap(value, Ordering::AcqRel) & ASLEEP != 0 {
            self.0.wake();
        }
    }

    /// Waits with the processor's monitor-wait, for some microseconds, while `is_waited_for` is
    /// true for the value. Returns whether the processor has it. See
    /// [`monitor_wait`](crate::monitor_wait::wait).
    pub(crate) fn monitor_wait(&self, is_waited_for: impl FnOnce(u32) -> bool) -> bool {
        // A model of the protocol has no cache lines.
        cfg!(not(all(test, loom)))
            && crate::monitor_wait::wait(&raw const self.0, || is_waited_for(self.value()))
    }

    /// Waits while the value is `value`. Returns `None` after a nap without a change, or if a
    /// signal or an earlier wake-up cut the nap short. The caller then checks whether the other
    /// thread still exists.
    ///
    /// Touches neither `errno` nor anything else in thread-local storage.
    pub(crate) fn wait_while(&self, value: u32, patience: Patience) -> Option<u32> {
        for _ in 0..TURNS {
            let now = self.value();
            if now != value {
                return Some(now);
            }
            std::hint::spin_loop();
        }
        let begin = Instant::now();
        while begin.elapsed() < patience.0 {
            let turns = if self.monitor_wait(|now| now == value) { 1 } else { TURNS };
            for _ in 0..turns {
                let now = self.value();
                if now != value {
                    return Some(now);
                }
                std::hint::spin_loop();
            }
        }
        let asleep = value | ASLEEP;
        let told = self.0.compare_exchange(value, asleep, Ordering::AcqRel, Ordering::Acquire);
        if told.is_err_and(|now| now != asleep) {
            return Some(self.value());
        }
        self.0.wait(asleep, NAP);
        let now = self.value();
        (now != value).then_some(now)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_is_woken_without_a_change_looks_around() {
        let word = Word::default();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| word.wait_while(0, Patience(Duration::ZERO)));
            while !waiter.is_finished() {
                word.0.wake();
            }
            assert_eq!(waiter.join().unwrap(), None);
        });
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    use super::*;

    #[test]
    fn loom_what_is_posted_wakes_who_waits_and_is_seen_whole() {
        loom::model(|| {
            let shared = Arc::new((Word::default(), UnsafeCell::new(0)));
            let poster = Arc::clone(&shared);
            let thread = loom::thread::spawn(move || {
                // SAFETY: no other thread reads it before the word is posted.
                poster.1.with_mut(|payload| unsafe { *payload = 7 });
                poster.0.post(1);
            });
            let value = loop {
                if let Some(value) = shared.0.wait_while(0, Patience(Duration::ZERO)) {
                    break value;
                }
            };
            assert_eq!(value, 1);
            // SAFETY: the posted word guarantees that the writer has finished.
            assert_eq!(shared.1.with(|payload| unsafe { *payload }), 7);
            thread.join().unwrap();
        });
    }
}
