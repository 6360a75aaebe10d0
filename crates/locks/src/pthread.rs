//! The C library's mutex, to compare others with.

use std::cell::UnsafeCell;

use lock_api::GuardNoSend;

/// `pthread_mutex_t` of the default kind.
pub struct RawPthread(UnsafeCell<libc::pthread_mutex_t>);

impl std::fmt::Debug for RawPthread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawPthread").finish_non_exhaustive()
    }
}

// SAFETY: made for several threads. The mutex of the GNU C library may be moved while it is free.
unsafe impl Send for RawPthread {}
// SAFETY: likewise.
unsafe impl Sync for RawPthread {}

// SAFETY: the C library's guarantee.
unsafe impl lock_api::RawMutex for RawPthread {
    const INIT: Self = Self(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));

    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock(&self) {
        // SAFETY: initialised; a mutex of this kind does not fail.
        unsafe { libc::pthread_mutex_lock(self.0.get()) };
    }

    #[inline]
    fn try_lock(&self) -> bool {
        // SAFETY: initialised.
        unsafe { libc::pthread_mutex_trylock(self.0.get()) == 0 }
    }

    #[inline]
    unsafe fn unlock(&self) {
        // SAFETY: the caller has the lock.
        unsafe { libc::pthread_mutex_unlock(self.0.get()) };
    }
}
