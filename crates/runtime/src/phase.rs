//! The progress of something that one thread at a time carries on, and that starts again in each
//! child of fork(2): no thread waits, as the others go without meanwhile.

use std::sync::atomic::Ordering;

use crate::primitive::AtomicU64;

/// Number of lower bits that hold the phase; the upper ones hold the number of forks.
const PHASE_BITS: u32 = 2;

/// The first phase. Those of a parent do not count for its child, which is in this one.
pub(crate) const FIRST: u64 = 0;

/// The phase: one of four, of which one says that a thread is at it.
#[derive(Debug)]
pub(crate) struct Phase(AtomicU64);

/// A thread carries it on until [`Self::end`].
#[derive(Debug)]
#[must_use = "no other thread goes on before it has ended"]
pub(crate) struct Carrying<'a> {
    phase: &'a Phase,
    generation: u64,
    /// The phase before.
    pub(crate) before: u64,
}

impl Phase {
    #[cfg(not(all(test, loom)))]
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(FIRST))
    }

    #[cfg(all(test, loom))]
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(FIRST))
    }

    /// The phase, in a process that was forked `forks` times.
    pub(crate) fn get(&self, forks: u32) -> u64 {
        phase_in(self.0.load(Ordering::Relaxed), generation_of(forks))
    }

    /// Begins to carry it on, with the phase `carrying` meanwhile. `None` if another thread does,
    /// or if the phase is none that `from` accepts.
    pub(crate) fn begin(
        &self,
        forks: u32,
        carrying: u64,
        from: impl FnOnce(u64) -> bool,
    ) -> Option<Carrying<'_>> {
        let generation = generation_of(forks);
        let word = self.0.load(Ordering::Relaxed);
        let before = phase_in(word, generation);
        if before == carrying || !from(before) {
            return None;
        }
        // Ordering: Acquire pairs with the store in `end`: this thread sees what the one before it
        // did.
        self.0
            .compare_exchange(word, generation | carrying, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        Some(Carrying { phase: self, generation, before })
    }
}

impl Carrying<'_> {
    /// Ends, with the next phase.
    pub(crate) fn end(self, next: u64) {
        // Ordering: pairs with the exchange in `begin` of the next thread.
        self.phase.0.store(self.generation | next, Ordering::Release);
    }
}

fn generation_of(forks: u32) -> u64 {
    u64::from(forks) << PHASE_BITS
}

fn phase_in(word: u64, generation: u64) -> u64 {
    let is_own = word >> PHASE_BITS << PHASE_BITS == generation;
    if is_own { word & ((1 << PHASE_BITS) - 1) } else { FIRST }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const BUSY: u64 = 3;

    #[test]
    fn one_at_a_time_and_a_child_begins_anew() {
        let phase = Phase::new();
        let carrying = phase.begin(0, BUSY, |phase| phase == FIRST).unwrap();
        assert!(phase.begin(0, BUSY, |_| true).is_none());
        assert_eq!((phase.get(0), phase.get(1)), (BUSY, FIRST));
        carrying.end(2);
        assert_eq!(phase.get(0), 2);
        assert!(phase.begin(0, BUSY, |phase| phase == FIRST).is_none());
        let again = phase.begin(0, BUSY, |phase| phase == 2).unwrap();
        assert_eq!(again.before, 2);
        // What its parent was at does not keep a child.
        let of_child = phase.begin(1, BUSY, |phase| phase == FIRST).unwrap();
        of_child.end(1);
        assert_eq!((phase.get(1), phase.get(2)), (1, FIRST));
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    use super::*;

    /// Fails if `begin` does not acquire, if `end` does not release, or if `begin` stores without a
    /// comparison: then two threads have the data at once, which loom reports.
    #[test]
    fn loom_one_thread_at_a_time_has_the_data_of_the_last() {
        loom::model(|| {
            let shared = Arc::new((Phase::new(), UnsafeCell::new(0)));
            let carry = |shared: &(Phase, UnsafeCell<u32>)| {
                let Some(carrying) = shared.0.begin(0, 3, |_| true) else { return 0 };
                // SAFETY: this thread alone is at it.
                shared.1.with_mut(|data| unsafe { *data += 1 });
                carrying.end(1);
                1
            };
            let other = Arc::clone(&shared);
            let thread = loom::thread::spawn(move || carry(&other) + carry(&other));
            let carried = carry(&shared) + thread.join().unwrap();
            // SAFETY: the other thread has ended.
            assert_eq!(shared.1.with(|data| unsafe { *data }), carried);
        });
    }
}
