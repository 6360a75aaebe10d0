//! A mutex of one word.

use std::sync::atomic::{AtomicU32, Ordering};

use lock_api::GuardSend;

use crate::waiting::{Wait, Waiting, WaitingLock, sleep, wake};

/// No thread has it.
const FREE: u32 = 0;
/// A thread has it, and none sleeps for it.
const TAKEN: u32 = 1;
/// A thread has it, and others may sleep for it.
const SLEEPERS: u32 = 2;

/// A mutex of one word. Threads that wait spin for some microseconds, then sleep in the kernel.
///
/// It is not fair: a thread that runs may get it before one that has waited longer.
///
/// | word | meaning | leaves it by |
/// |---|---|---|
/// | 0 | free | a thread that takes it: 1, or 2 after it has slept |
/// | 1 | taken | its owner: 0; a thread that is about to sleep: 2 |
/// | 2 | taken, others may sleep | its owner: 0, and wakes one of them |
///
/// # Cost
/// An atomic operation for each of acquisition and release, if no thread waits.
///
/// # Source
/// The third mutex of Drepper, "Futexes Are Tricky".
#[derive(Debug)]
pub struct RawMutex {
    word: AtomicU32,
}

impl RawMutex {
    #[cold]
    fn lock_slow(&self, waiting: Waiting) {
        let mut wait = Wait::on_shared_line(waiting);
        // After it has slept, this thread does not know whether others still do.
        let mut taken = TAKEN;
        let mut now = self.word.load(Ordering::Relaxed);
        loop {
            if now == FREE {
                // Ordering: Acquire pairs with the swap in `unlock`: the sections before this one
                // are visible.
                let take =
                    self.word.compare_exchange(FREE, taken, Ordering::Acquire, Ordering::Relaxed);
                match take {
                    Ok(_) => return,
                    Err(other) => now = other,
                }
            } else if (now == TAKEN || wait.is_awake()) && wait.pause(&self.word, now) {
                now = self.word.load(Ordering::Relaxed);
            } else {
                // Ordering: as above, since this may take the lock.
                if self.word.swap(SLEEPERS, Ordering::Acquire) == FREE {
                    return;
                }
                sleep(&self.word, SLEEPERS);
                taken = SLEEPERS;
                now = self.word.load(Ordering::Relaxed);
            }
        }
    }

    #[cold]
    fn wake_one(&self) {
        wake(&self.word, 1);
    }
}

// SAFETY: only the thread that has changed the word from FREE has the lock, until `unlock`.
unsafe impl lock_api::RawMutex for RawMutex {
    const INIT: Self = Self { word: AtomicU32::new(FREE) };

    type GuardMarker = GuardSend;

    #[inline]
    fn lock(&self) {
        if !self.try_lock() {
            self.lock_slow(Waiting::SpinThenBlock);
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        // Ordering: Acquire pairs with the swap in `unlock`.
        self.word.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline]
    unsafe fn unlock(&self) {
        // Ordering: Release pairs with each Acquire that takes the lock.
        if self.word.swap(FREE, Ordering::Release) == SLEEPERS {
            self.wake_one();
        }
    }

    #[inline]
    fn is_locked(&self) -> bool {
        self.word.load(Ordering::Relaxed) != FREE
    }
}

impl WaitingLock for RawMutex {
    fn lock_by(&self, waiting: Waiting) {
        self.lock_slow(waiting);
    }
}
