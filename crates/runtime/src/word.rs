//! A word in shared memory that one thread waits for and another changes: spinning first, sleeping later.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::futex;

/// The waiter sleeps: whoever changes the word wakes it.
const ASLEEP: u32 = 1 << 31;

/// Turns of the spinning loop between two looks at the time.
const TURNS: u32 = 64;

/// How long a sleeper sleeps at most before it looks around.
const NAP: Duration = Duration::from_millis(100);

/// How long to spin before sleeping. In a virtual machine, going to sleep and being woken costs a hundred times
/// what a hand-over to a spinning thread does; spinning for as long as that costs is never more than twice as
/// dear as the better of the two would have been (the ski-rental bound).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patience(pub(crate) Duration);

/// The word: a value below 2^31, and whether the waiter sleeps.
#[derive(Debug, Default)]
pub(crate) struct Word(AtomicU32);

impl Word {
    /// The value, with everything that was written before it was posted.
    pub(crate) fn value(&self) -> u32 {
        self.0.load(Ordering::Acquire) & !ASLEEP
    }

    /// Changes the value where nobody waits for it yet. Ordered before all later loads, as who
    /// posts looks next whether the other side sleeps.
    pub(crate) fn set(&self, value: u32) {
        self.0.swap(value, Ordering::SeqCst);
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
            // Nobody may be there any more; that is no matter.
            let _ = futex::wake(&self.0, futex::Flags::PRIVATE, 1);
        }
    }

    /// Waits as long as the value is `value`. `None` after a nap without a change, or when a signal or an earlier
    /// waking cut it short, for the caller to see whether who should change it is still there.
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
            for _ in 0..TURNS {
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
        let nap = futex::Timespec { tv_sec: 0, tv_nsec: NAP.subsec_nanos().into() };
        // However it ended: the value tells.
        let _ = futex::wait(&self.0, futex::Flags::PRIVATE, asleep, Some(&nap));
        let now = self.value();
        (now != value).then_some(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_woken_without_a_change_looks_around() {
        let word = Word::default();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| word.wait_while(0, Patience(Duration::ZERO)));
            while !waiter.is_finished() {
                futex::wake(&word.0, futex::Flags::PRIVATE, 1).unwrap();
            }
            assert_eq!(waiter.join().unwrap(), None);
        });
    }
}
