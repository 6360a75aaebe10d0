//! Slots: which lane of every worker belongs to the calling thread. Also where that thread is.

use std::cell::Cell;
use std::sync::atomic::{Ordering, compiler_fence};

use crate::arch::of_thread;
use crate::end::{self, AT_END, GIVES_BACK_SLOT};
use crate::primitive::AtomicU64;

/// Maximum number of threads that have lanes at the same time. Work of further threads is not
/// moved.
pub(crate) const SLOTS: usize = 64;

/// Slots in use, one bit each.
#[derive(Debug)]
struct Taken(AtomicU64);

#[cfg(not(all(test, loom)))]
static TAKEN: Taken = Taken::new();
#[cfg(all(test, loom))]
static TAKEN: std::sync::LazyLock<Taken> = std::sync::LazyLock::new(Taken::new);

impl Taken {
    #[cfg(not(all(test, loom)))]
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    #[cfg(all(test, loom))]
    fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Takes a free slot, if there is one.
    fn take(&self) -> Option<u32> {
        let mut taken = self.0.load(Ordering::Relaxed);
        loop {
            let free = (!taken).trailing_zeros();
            if free as usize >= SLOTS {
                return None;
            }
            let with = taken | 1 << free;
            // Ordering: Acquire pairs with the Release in `free`: the lanes of the slot are as its
            // last owner left them.
            match self.0.compare_exchange_weak(taken, with, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(free),
                Err(now) => taken = now,
            }
        }
    }

    fn free(&self, slot: usize) {
        // Ordering: pairs with the Acquire in `take`.
        self.0.fetch_and(!(1 << slot), Ordering::Release);
    }

    fn all(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Where a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Place {
    /// At home; it may use its lanes.
    Home = 0,
    /// At home, with a hand-off or a migration in progress. Further work that it would hand over
    /// runs where it is, also in a signal handler.
    Busy,
    /// On a dedicated core: it has migrated there.
    Migrated,
    /// The thread is a worker.
    Worker,
}

/// A thread's own.
#[derive(Debug)]
struct Own {
    place: Cell<Place>,
    /// Whether it is taking a slot.
    is_taking: Cell<bool>,
    /// Its slot plus 1; 0 without a slot.
    slot: Cell<u32>,
    /// The slot plus 1 of a thread that has ended while it was still away or busy.
    left: Cell<u32>,
}

of_thread! {
    fn of_thread() -> Own, "dimmer_runtime_slot";
}

/// The slot that is stored as `number`, which is the slot plus 1.
fn kept(number: u32) -> Option<usize> {
    number.checked_sub(1).map(|slot| slot as usize)
}

/// Takes a slot for the calling thread. The end of the thread gives it back. `None` if there are
/// too many threads, or in a signal handler that has interrupted this function.
#[cold]
fn take() -> Option<usize> {
    let is_taking = &of_thread().is_taking;
    if is_taking.replace(true) {
        return None;
    }
    compiler_fence(Ordering::SeqCst);
    AT_END.set::<GIVES_BACK_SLOT>(give_back);
    let taken = if end::watch() { TAKEN.take() } else { None };
    if let Some(slot) = taken {
        of_thread().slot.set(slot + 1);
    }
    compiler_fence(Ordering::SeqCst);
    is_taking.set(false);
    taken.map(|slot| slot as usize)
}

/// Gives back the slot of the calling thread, which ends.
fn give_back() {
    let own = of_thread();
    let Some(slot) = kept(own.slot.take()) else { return };
    if place() == Place::Home {
        TAKEN.free(slot);
    } else {
        // The thread ends while it is away, or during a migration: its lane is in use until that
        // has ended.
        own.left.set(u32::try_from(slot + 1).unwrap_or(0));
    }
}

/// Slots in use, one bit each.
pub(crate) fn taken() -> u64 {
    TAKEN.all()
}

/// Frees the slots of all threads except the calling one: a child of fork(2) has no other threads.
pub(crate) fn keep_own() {
    let own = of_thread();
    let slot = kept(own.slot.get()).or(kept(own.left.get()));
    TAKEN.0.store(slot.map_or(0, |slot| 1 << slot), Ordering::Relaxed);
}

/// The calling thread's slot. `None` if there are too many threads, or if the thread is not at
/// home.
#[inline]
pub(crate) fn own() -> Option<usize> {
    if place() != Place::Home {
        return None;
    }
    kept(of_thread().slot.get()).or_else(take)
}

/// Where the calling thread is.
pub(crate) fn place() -> Place {
    of_thread().place.get()
}

/// Sets where the calling thread is. A signal handler sees it in program order, neither earlier nor
/// later than the surrounding code.
#[inline]
pub(crate) fn set_place(place: Place) {
    compiler_fence(Ordering::SeqCst);
    let own = of_thread();
    own.place.set(place);
    compiler_fence(Ordering::SeqCst);
    if place == Place::Home
        && let Some(slot) = kept(own.left.take())
    {
        TAKEN.free(slot);
    }
}

/// The calling thread uses its lane until this is dropped.
#[derive(Debug)]
pub(crate) struct HandOver(());

impl HandOver {
    /// Call it after [`own`] has returned a slot.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::ffi::c_void;
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// Called at the end of a thread, after the cleanup of [`end`].
    extern "C" fn come_home_last(_: *mut c_void) {
        let left = kept(of_thread().left.get());
        assert!(left.is_some_and(|slot| TAKEN.all() & 1 << slot != 0));
        set_place(Place::Home);
        assert_eq!(of_thread().left.get(), 0);
        SEEN.fetch_add(1, Ordering::Relaxed);
    }

    static SEEN: AtomicU64 = AtomicU64::new(0);

    #[test]
    fn a_thread_that_ends_away_keeps_its_slot_until_it_is_home() {
        end::prepare();
        let mut later = 0;
        // SAFETY: writes to `later` only. The destructors of earlier keys are called first.
        assert_eq!(unsafe { libc::pthread_key_create(&raw mut later, Some(come_home_last)) }, 0);
        let thread = std::thread::spawn(move || {
            // SAFETY: the value is never dereferenced.
            let set = unsafe { libc::pthread_setspecific(later, std::ptr::without_provenance(1)) };
            assert_eq!(set, 0);
            assert!(own().is_some());
            set_place(Place::Migrated);
            assert_eq!(own(), None);
        });
        thread.join().unwrap();
        assert_eq!(SEEN.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_thread_gives_its_slot_back_at_its_end() {
        end::prepare();
        // More threads than there are slots, one after the other.
        for _ in 0..=SLOTS {
            std::thread::spawn(|| assert!(own().is_some())).join().unwrap();
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    use super::*;

    /// Fails if `take` does not acquire, or if `free` does not release: then two owners use a lane
    /// at once, which loom reports.
    #[test]
    fn loom_a_slot_has_one_owner_who_finds_what_the_last_one_left() {
        loom::model(|| {
            let lanes = [const { () }; 2].map(|()| UnsafeCell::new(0_u32));
            let shared = Arc::new((Taken::new(), lanes));
            let use_one = |shared: &(Taken, [UnsafeCell<u32>; 2])| {
                let slot = shared.0.take().unwrap() as usize;
                // SAFETY: the slot belongs to this thread.
                shared.1[slot].with_mut(|lane| unsafe { *lane += 1 });
                shared.0.free(slot);
            };
            let other = Arc::clone(&shared);
            let thread = loom::thread::spawn(move || use_one(&other));
            use_one(&shared);
            thread.join().unwrap();
            // SAFETY: the other thread has ended.
            let used = shared.1.each_ref().map(|lane| lane.with(|lane| unsafe { *lane }));
            assert!(matches!(used, [2, 0] | [1, 1]), "{used:?}");
            assert_eq!(shared.0.all(), 0);
        });
    }
}
