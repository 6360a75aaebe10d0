//! Which lane of every worker is the calling thread's.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Threads that can have lanes at the same time. The others run their work where they are.
pub(crate) const SLOTS: usize = 64;

/// Slots that are taken, one bit each.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// A slot, the calling thread's until it ends.
struct Slot(usize);

impl Drop for Slot {
    fn drop(&mut self) {
        TAKEN.fetch_and(!(1 << self.0), Ordering::Release);
    }
}

thread_local! {
    static OWN: Option<Slot> = take();
    /// The thread is a worker, or on a journey.
    static IN_PLACE: Cell<bool> = const { Cell::new(false) };
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
            Ok(_) => return Some(Slot(free)),
            Err(now) => taken = now,
        }
    }
}

/// The calling thread's; `None` where there are too many threads, on a worker, and while the thread ends.
pub(crate) fn own() -> Option<usize> {
    if IN_PLACE.try_with(Cell::get).unwrap_or(true) {
        return None;
    }
    OWN.try_with(|slot| slot.as_ref().map(|slot| slot.0)).ok().flatten()
}

/// Whether what the calling thread hands over runs where it is from now on.
pub(crate) fn runs_in_place(in_place: bool) {
    let _ = IN_PLACE.try_with(|cell| cell.set(in_place));
}
