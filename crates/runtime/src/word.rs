//! A word in shared memory that one thread waits for and another changes: spinning first, sleeping
//! later.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::futex::Futex;

/// The waiter sleeps: whoever changes the word wakes it.
const ASLEEP: u32 = 1 << 31;

/// Turns of the spinning loop between two looks at the time.
const TURNS: u32 = if cfg!(all(test, loom)) { 1 } else { 64 };

/// How long a sleeper sleeps at most before it looks around.
const NAP: Duration = Duration::from_millis(100);

/// How long to spin before sleeping. In a virtual machine, going to sleep and being woken costs a
/// hundred times what a hand-over to a spinning thread does; spinning for as long as that costs is
/// never more than twice as dear as the better of the two would have been (the ski-rental bound).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patience(pub(crate) Duration);

/// The word: a value below 2^31, and whether the waiter sleeps.
#[derive(Debug, Default)]
pub(crate) struct Word(Futex);

impl Word {
    /// The value, with everything that was written before it was posted.
    pub(crate) fn value(&self) -> u32 {
        self.0.load(Ordering::Acquire) & !ASLEEP
    }

    /// Changes the value where nobody waits for it yet. Ordered before all later loads, as who
    /// posts looks next whether the other side sleeps.
    pub(crate) fn set(&self, value: u32) {
        self.0.swap(value, Ordering::SeqCst);
        // On x86-64 the exchange is a fence; the model has to be told.
        #[cfg(all(test, loom))]
        loom::sync::atomic::fence(Ordering::SeqCst);
    }

    /// Changes the value without any order but that what was written before is seen with it.
    pub(crate) fn put(&self, value: u32) {
        self.0.store(value, Ordering::Release);
    }

    /// Changes the value if it is `from`; whether it was. Ordered before all later loads.
    pub(crate) fn change(&self, from: u32, to: u32) -> bool {
        let change = |now| (now & !ASLEEP == from).then_some(to);
        self.0.fetch_update(Ordering::SeqCst, Ordering::Acquire, change).is_ok()
    }

    /// Changes the value, and wakes who sleeps on it.
    pub(crate) fn post(&self, value: u32) {
        if self.0.swap(value, Ordering::AcqRel) & ASLEEP != 0 {
            self.0.wake();
        }
    }

    /// Waits for a change for some microseconds while the value is to be waited for, with what the
    /// processor has for that; whether it has something. See
    /// [`monitor_wait`](crate::monitor_wait::wait).
    pub(crate) fn monitor_wait(&self, is_waited_for: impl FnOnce(u32) -> bool) -> bool {
        // A model of the protocol has no cache lines.
        cfg!(not(all(test, loom)))
            && crate::monitor_wait::wait(&raw const self.0, || is_waited_for(self.value()))
    }

    /// Waits as long as the value is `value`. `None` after a nap without a change, or when a signal
    /// or an earlier waking cut it short, for the caller to see whether who should change it is
    /// still there.
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
                // SAFETY: nobody else looks before the word says so.
                poster.1.with_mut(|cargo| unsafe { *cargo = 7 });
                poster.0.post(1);
            });
            let value = loop {
                if let Some(value) = shared.0.wait_while(0, Patience(Duration::ZERO)) {
                    break value;
                }
            };
            assert_eq!(value, 1);
            // SAFETY: the word says so.
            assert_eq!(shared.1.with(|cargo| unsafe { *cargo }), 7);
            thread.join().unwrap();
        });
    }
}
