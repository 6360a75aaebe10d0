//! Waiting for a condition under any lock of this crate.

use std::sync::atomic::{AtomicU32, Ordering};

use lock_api::MutexGuard;

use crate::waiting::{ALL, sleep, wake};

/// A condition that threads wait for under a lock, as `std::sync::Condvar`.
///
/// It works with every [`lock_api`] mutex. A decorated one executes its acts when it is released
/// for the wait and acquired after it; between the two, the thread sleeps.
///
/// # Cost
/// A system call for each notification, and one for a wait.
#[derive(Debug, Default)]
pub struct Condvar {
    /// The number of notifications so far.
    notified: AtomicU32,
}

impl Condvar {
    /// A condition without waiting threads.
    #[must_use]
    pub const fn new() -> Self {
        Self { notified: AtomicU32::new(0) }
    }

    /// Releases the lock, waits for a notification, and acquires the lock again. It may return
    /// without a notification, so callers check their condition in a loop.
    pub fn wait<R: lock_api::RawMutex, T: ?Sized>(&self, guard: &mut MutexGuard<'_, R, T>) {
        // Relaxed: this thread has the lock. A thread that changes the condition under the lock,
        // and then notifies, comes either before this load, and is seen, or after it: then the word
        // differs and the kernel does not let this thread sleep.
        let before = self.notified.load(Ordering::Relaxed);
        MutexGuard::unlocked(guard, || sleep(&self.notified, before));
    }

    /// The same for a lock without a guard, which the calling thread has: releases it by
    /// `release`, waits, and acquires it by `acquire`.
    pub fn wait_between(&self, release: impl FnOnce(), acquire: impl FnOnce()) {
        // Relaxed: as above.
        let before = self.notified.load(Ordering::Relaxed);
        release();
        sleep(&self.notified, before);
        acquire();
    }

    /// Waits while the condition holds for the data.
    pub fn wait_while<R: lock_api::RawMutex, T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, R, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) {
        while condition(guard) {
            self.wait(guard);
        }
    }

    /// Wakes one of the threads that wait, if there is one.
    pub fn notify_one(&self) {
        self.notified.fetch_add(1, Ordering::Relaxed);
        wake(&self.notified, 1);
    }

    /// Wakes all threads that wait.
    pub fn notify_all(&self) {
        self.notified.fetch_add(1, Ordering::Relaxed);
        wake(&self.notified, ALL);
    }
}
