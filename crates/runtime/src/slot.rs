//! Which lane of every worker is the calling thread's, and where the thread is.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

/// Threads that can have lanes at the same time. The others run their work where they are.
pub(crate) const SLOTS: usize = 64;

/// Slots that are taken, one bit each.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Where a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// At home; it may use its lanes.
    Home,
    /// At home, with a hand-over or a journey under way: what else it would hand over, also in a signal's handler, runs
    /// where it is.
    Busy,
    /// On a dedicated core, as a traveller.
    Away,
    /// It is a worker.
    Worker,
}

/// A slot, the calling thread's until it ends.
struct Slot(usize);

impl Drop for Slot {
    fn drop(&mut self) {
        MINE.set(None);
        if place() == Place::Home {
            free(self.0);
        } else {
            // The thread ends while it is away, or on a journey: its lane is in use until that has ended.
            LEFT.set(Some(self.0));
        }
    }
}

thread_local! {
    static OWN: Option<Slot> = take();
    static PLACE: Cell<Place> = const { Cell::new(Place::Home) };
    /// The slot in [`OWN`], for who must not take one.
    static MINE: Cell<Option<usize>> = const { Cell::new(None) };
    /// The slot of a thread that has ended but for its journey.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
}

fn take() -> Option<Slot> {
    let mut taken = TAKEN.load(Ordering::Relaxed);
    loop {
        let free = (!taken).trailing_zeros() as usize;
        if free >= SLOTS {
            return None;
        }
        let with = taken | 1 << free;
        match TAKEN.compare_exchange_weak(taken, with, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => {
                MINE.set(Some(free));
                return Some(Slot(free));
            }
            Err(now) => taken = now,
        }
    }
}

fn free(slot: usize) {
    TAKEN.fetch_and(!(1 << slot), Ordering::Release);
}

/// The slots that threads have, one bit each.
pub(crate) fn taken() -> u64 {
    TAKEN.load(Ordering::Relaxed)
}

/// Gives back the slots of all threads but the calling one: in a child of fork(2) there are no others.
pub(crate) fn keep_own() {
    let own = MINE.get().or(LEFT.get());
    TAKEN.store(own.map_or(0, |slot| 1 << slot), Ordering::Relaxed);
}

/// The calling thread's; `None` where there are too many threads, anywhere but at home, and while the thread ends.
pub(crate) fn own() -> Option<usize> {
    if place() != Place::Home {
        return None;
    }
    OWN.try_with(|slot| slot.as_ref().map(|slot| slot.0)).ok().flatten()
}

/// Where the calling thread is.
pub(crate) fn place() -> Place {
    PLACE.get()
}

/// Says where the calling thread is from now on. A signal's handler finds it so before whatever follows, and after
/// whatever came before.
#[inline]
pub(crate) fn set_place(place: Place) {
    compiler_fence(Ordering::SeqCst);
    PLACE.set(place);
    compiler_fence(Ordering::SeqCst);
    if place == Place::Home
        && let Some(slot) = LEFT.take()
    {
        free(slot);
    }
}

/// The calling thread uses its lane, until this is dropped.
#[derive(Debug)]
pub(crate) struct HandOver(());

impl HandOver {
    /// To be called where [`own`] gives a slot.
    pub(crate) fn begin() -> Self {
        set_place(Place::Busy);
        Self(())
    }
}

impl Drop for HandOver {
    fn drop(&mut self) {
        set_place(Place::Home);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks, at the very end of a thread, whether its slot is still taken, and comes home then.
    struct AtTheEnd;

    impl Drop for AtTheEnd {
        fn drop(&mut self) {
            if let Some(slot) = LEFT.get() {
                assert!(TAKEN.load(Ordering::Relaxed) & 1 << slot != 0);
                set_place(Place::Home);
                SEEN.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    thread_local! {
        static AT_THE_END: AtTheEnd = const { AtTheEnd };
    }

    static SEEN: AtomicU64 = AtomicU64::new(0);

    #[test]
    fn a_thread_that_ends_away_keeps_its_slot_until_it_is_home() {
        let thread = std::thread::spawn(|| {
            // What is used first is dropped last.
            AT_THE_END.with(|_| ());
            assert!(own().is_some());
            set_place(Place::Away);
            assert_eq!(own(), None);
        });
        thread.join().unwrap();
        assert_eq!(SEEN.load(Ordering::Relaxed), 1);
    }
}
