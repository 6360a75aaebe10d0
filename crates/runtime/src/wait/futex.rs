//! A word on which threads can sleep in the kernel (a futex). In models of the protocol
//! ([loom](https://docs.rs/loom)), a model of it.

#[cfg(not(all(test, loom)))]
pub(crate) use kernel::Futex;
#[cfg(all(test, loom))]
pub(crate) use model::Futex;

/// The kernel's futex.
#[cfg(not(all(test, loom)))]
mod kernel {
    use std::ops::Deref;
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use rustix::thread::futex;

    /// The word.
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub(crate) struct Futex(AtomicU32);

    impl Deref for Futex {
        type Target = AtomicU32;

        #[inline(always)]
        fn deref(&self) -> &AtomicU32 {
            &self.0
        }
    }

    impl Futex {
        /// Sleeps while the word is `value`, at most for `nap` (below a second).
        pub(crate) fn wait(&self, value: u32, nap: Duration) {
            let nap = futex::Timespec { tv_sec: 0, tv_nsec: nap.subsec_nanos().into() };
            // The result does not matter: the caller reads the word.
            let _ = futex::wait(&self.0, futex::Flags::PRIVATE, value, Some(&nap));
        }

        /// Wakes a sleeping thread.
        pub(crate) fn wake(&self) {
            // There may be no sleeper any more, which does no harm.
            let _ = futex::wake(&self.0, futex::Flags::PRIVATE, 1);
        }
    }
}

/// Like the kernel's futex, but without a time limit: a thread that is not woken sleeps forever,
/// which loom reports.
#[cfg(all(test, loom))]
mod model {
    use std::ops::Deref;
    use std::sync::PoisonError;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use loom::sync::atomic::AtomicU32;
    use loom::sync::{Condvar, Mutex};

    /// The word, and the kernel's lock on its list of sleepers.
    #[derive(Debug, Default)]
    pub(crate) struct Futex {
        word: AtomicU32,
        queue: Mutex<()>,
        sleepers: Condvar,
    }

    impl Deref for Futex {
        type Target = AtomicU32;

        fn deref(&self) -> &AtomicU32 {
            &self.word
        }
    }

    impl Futex {
        pub(crate) fn wait(&self, value: u32, _nap: Duration) {
            let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            // Ordering: as the kernel, which compares after a full barrier.
            if self.word.load(Ordering::SeqCst) == value {
                drop(self.sleepers.wait(queue));
            }
        }

        pub(crate) fn wake(&self) {
            let _queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            self.sleepers.notify_one();
        }
    }
}
