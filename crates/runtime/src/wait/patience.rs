//! Waiting for a word, for as long as it pays: spinning first, sleeping later.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::word::Word;
use super::{sleep, spin, ways};

/// How long to spin before sleeping. In a virtual machine, sleeping and being woken costs a hundred
/// times as much as a hand-off to a spinning thread. Spinning for as long as that takes is never
/// more than twice as expensive as the better of the two choices (the ski-rental bound).
/// A [`Stretch`] gives that up where it has been too short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patience(pub(crate) Duration);

/// How many times its patience a thread spins: twice as long after each wait in which it slept, but
/// which was over within [`MOST`] times its patience, and no longer than its patience after a
/// longer one. KVM polls for halted virtual CPUs likewise (Linux,
/// Documentation/virt/kvm/halt-polling.rst).
#[derive(Debug)]
pub(crate) struct Stretch(AtomicU32);

/// The longest stretch. Spinning in vain uses power and, where other threads want the CPU, time: a
/// guess at what being there at once is worth.
const MOST: u32 = 8;

/// Of all threads of the process that wait for their work.
static CALLERS: Stretch = Stretch(AtomicU32::new(1));

impl Default for Stretch {
    fn default() -> Self {
        Self(AtomicU32::new(1))
    }
}

impl Stretch {
    /// How long to spin.
    pub(crate) fn of(&self, patience: Patience) -> Duration {
        patience.0.saturating_mul(self.0.load(Ordering::Relaxed))
    }

    /// A thread slept in a wait of this length.
    pub(crate) fn has_slept(&self, patience: Patience, waited: Duration) {
        let times = self.0.load(Ordering::Relaxed);
        let is_soon_over = waited <= patience.0.saturating_mul(MOST);
        self.0.store(if is_soon_over { (times * 2).min(MOST) } else { 1 }, Ordering::Relaxed);
    }
}

impl Word {
    /// Waits with the processor's monitor-wait, for some microseconds, while `is_waited_for` is
    /// true for the value. Returns whether the processor has it.
    #[inline]
    pub(crate) fn monitor_wait(&self, is_waited_for: impl Fn(u32) -> bool) -> bool {
        let Some(way) = ways::monitor() else { return false };
        // SAFETY: it was chosen because the processor has it.
        let _ = unsafe { (way.wait)(self, &is_waited_for) };
        true
    }

    /// Waits while the value is `value`. Returns `None` after a nap without a change, or if a
    /// signal or an earlier wake-up cut the nap short. The caller then checks whether the other
    /// thread still exists.
    ///
    /// Touches neither `errno` nor anything else in thread-local storage.
    pub(crate) fn wait_while(&self, value: u32, patience: Patience) -> Option<u32> {
        let is_waited_for = |now| now == value;
        if let Some(now) = spin::spin(self, is_waited_for) {
            return Some(now);
        }
        let patient = ways::patient();
        let begin = Instant::now();
        let longest = CALLERS.of(patience);
        while begin.elapsed() < longest {
            // SAFETY: it was chosen because the processor has it.
            if let Some(now) = unsafe { (patient.wait)(self, &is_waited_for) } {
                return Some(now);
            }
        }
        // SAFETY: every processor can sleep.
        let now = unsafe { (sleep::WAY.wait)(self, &is_waited_for) };
        if patience.0 > Duration::ZERO {
            CALLERS.has_slept(patience, begin.elapsed());
        }
        now
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn where_waits_are_soon_over_threads_spin_for_longer() {
        let us = Duration::from_micros;
        let (stretch, patience) = (Stretch::default(), Patience(us(30)));
        let spins = [100, 100, 240, 240, 241, 1, 5000].map(|waited| {
            stretch.has_slept(patience, us(waited));
            stretch.of(patience)
        });
        assert_eq!(spins, [60, 120, 240, 240, 30, 60, 30].map(us));
        assert_eq!(stretch.of(Patience(Duration::ZERO)), Duration::ZERO);
        // A thread that is never to sleep.
        stretch.has_slept(Patience(Duration::MAX), us(1));
        assert_eq!(stretch.of(Patience(Duration::MAX)), Duration::MAX);
    }

    #[test]
    fn who_is_woken_without_a_change_looks_around() {
        let word = Word::default();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| word.wait_while(0, Patience(Duration::ZERO)));
            while !waiter.is_finished() {
                word.wake();
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
