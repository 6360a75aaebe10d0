//! A word in shared memory that one thread changes and another waits for.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::futex::Futex;

/// The waiter sleeps: the thread that changes the word wakes it.
const ASLEEP: u32 = 1 << 31;

/// Maximum time of a sleep before the waiter checks the other side.
const NAP: Duration = Duration::from_millis(100);

/// The word: a value below 2^31, and a bit for a waiter that sleeps.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Word(Futex);

impl Word {
    /// A word that lies in a program's own memory. Its value is below 2^31.
    #[cfg(not(all(test, loom)))]
    pub(super) fn of(word: &std::sync::atomic::AtomicU32) -> &Self {
        // SAFETY: both types are transparent, down to the atomic word.
        unsafe { &*std::ptr::from_ref(word).cast::<Self>() }
    }

    /// The value. All writes before its posting are visible.
    pub(crate) fn value(&self) -> u32 {
        // Ordering: pairs with `set`, `put`, `change` and `post` of the other side, which hand the
        // payload over.
        self.0.load(Ordering::Acquire) & !ASLEEP
    }

    /// Changes the value while no thread waits for it yet. The change is ordered before all later
    /// loads, since the caller checks next whether the other side sleeps.
    pub(crate) fn set(&self, value: u32) {
        // Ordering: SeqCst, as the caller looks next whether the other side sleeps, and that side
        // whether there is work: at least one of them sees the other (Dekker). Also Release, for
        // `value`.
        self.0.swap(value, Ordering::SeqCst);
        // On x86-64 the exchange is a fence; the model needs an explicit one.
        #[cfg(all(test, loom))]
        loom::sync::atomic::fence(Ordering::SeqCst);
    }

    /// Changes the value. The only ordering: earlier writes become visible with it.
    pub(crate) fn put(&self, value: u32) {
        // Ordering: pairs with the load in `value`.
        self.0.store(value, Ordering::Release);
    }

    /// Changes the value if it is `from`, and returns whether it was. Ordered before all later
    /// loads.
    pub(crate) fn change(&self, from: u32, to: u32) -> bool {
        // Ordering: SeqCst pairs with the position that the worker stores and the word that it
        // reads again: see `give_back`. Acquire on failure, as in `value`.
        let change = |now| (now & !ASLEEP == from).then_some(to);
        self.0.fetch_update(Ordering::SeqCst, Ordering::Acquire, change).is_ok()
    }

    /// Changes the value, and wakes the waiter if it sleeps.
    pub(crate) fn post(&self, value: u32) {
        // Ordering: Release pairs with the load in `value`; Acquire with the exchange in
        // `sleep_while`, so that the wake-up comes after the sleeper has said that it sleeps.
        if self.0.swap(value, Ordering::AcqRel) & ASLEEP != 0 {
            self.0.wake();
        }
    }

    /// Sleeps while the value is `value`, for a nap at most. Returns the value if it is another
    /// one by then. `None` also if a signal or an earlier wake-up cut the nap short.
    pub(super) fn sleep_while(&self, value: u32) -> Option<u32> {
        let asleep = value | ASLEEP;
        // Ordering: Release pairs with the swap in `post`, which sees the bit or comes first;
        // Acquire as in `value`.
        let told = self.0.compare_exchange(value, asleep, Ordering::AcqRel, Ordering::Acquire);
        if told.is_err_and(|now| now != asleep) {
            return Some(self.value());
        }
        self.0.wait(asleep, NAP);
        let now = self.value();
        (now != value).then_some(now)
    }

    /// Wakes a sleeper without a change.
    #[cfg(all(test, not(loom)))]
    pub(super) fn wake(&self) {
        self.0.wake();
    }
}
