//! The locks that the calling thread holds: a short stack of its own.
//!
//! A signal handler may interrupt any of these functions and take locks, which it gives back before
//! it ends. So a place is taken before it is filled in, and emptied before it is given up.

use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering, compiler_fence};

use crate::ledger::Site;
use crate::own;

/// Maximum number of locks that are observed at once in a thread. The oldest one beyond that is
/// given up: it may have been released by another thread.
pub const MOST: usize = 32;

#[repr(C)]
struct Held {
    depth: AtomicUsize,
    places: [Place; MOST],
}

/// A lock that is held.
#[repr(C)]
struct Place {
    /// Its address; 0 while this is not filled in.
    lock: AtomicUsize,
    /// Where it was taken.
    site: AtomicPtr<Site>,
    /// Since when (ticks); 0 while the thread waits for a condition with it.
    since: AtomicU64,
}

dimmer_runtime::of_thread! {
    /// What the calling thread holds.
    fn of_thread() -> Held, "dimmer_contention_held";
}

/// The calling thread holds `lock` since `now`, taken at `site`.
pub fn begin(lock: usize, site: &'static Site, now: u64) {
    let held = of_thread();
    let mut depth = held.depth.load(Ordering::Relaxed);
    if depth >= MOST {
        held.remove(0);
        own::count_unended();
        depth = MOST - 1;
    }
    held.depth.store(depth + 1, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    held.places[depth].fill(site, now);
    held.places[depth].lock.store(lock, Ordering::Relaxed);
}

/// The calling thread has released `lock`, at `now`. Does nothing if it is not known to hold it.
pub fn end(lock: usize, now: u64) {
    let held = of_thread();
    if let Some(index) = held.find(lock) {
        held.places[index].count(now);
        held.remove(index);
    }
}

/// The calling thread will release `lock` to wait for a condition, and have it again afterwards. If
/// it is cancelled meanwhile, it has the lock without [`resume`]: such a hold is not counted.
pub fn suspend(lock: usize, now: u64) {
    let held = of_thread();
    if let Some(index) = held.find(lock) {
        held.places[index].count(now);
        held.places[index].since.store(0, Ordering::Relaxed);
    }
}

/// The calling thread has `lock` again, after a wait at `site`.
pub fn resume(lock: usize, site: &'static Site, now: u64) {
    let held = of_thread();
    match held.find(lock) {
        Some(index) => held.places[index].fill(site, now),
        None => begin(lock, site, now),
    }
}

/// The calling thread is the only one of a new process, whose ledger has no sites yet.
pub(crate) fn forget() {
    let held = of_thread();
    held.places.iter().for_each(|place| place.lock.store(0, Ordering::Relaxed));
    held.depth.store(0, Ordering::Relaxed);
}

impl Held {
    /// The place of `lock`: the last one, if it was taken several times.
    fn find(&self, lock: usize) -> Option<usize> {
        let depth = self.depth.load(Ordering::Relaxed).min(MOST);
        let places = &self.places[..depth];
        places.iter().rposition(|place| place.lock.load(Ordering::Relaxed) == lock)
    }

    fn remove(&self, index: usize) {
        let last = self.depth.load(Ordering::Relaxed).min(MOST) - 1;
        for (place, next) in self.places[index..last].iter().zip(&self.places[index + 1..]) {
            place.lock.store(next.lock.load(Ordering::Relaxed), Ordering::Relaxed);
            place.site.store(next.site.load(Ordering::Relaxed), Ordering::Relaxed);
            place.since.store(next.since.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.places[last].lock.store(0, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        self.depth.store(last, Ordering::Relaxed);
    }
}

impl Place {
    fn fill(&self, site: &'static Site, now: u64) {
        self.site.store(std::ptr::from_ref(site).cast_mut(), Ordering::Relaxed);
        self.since.store(now, Ordering::Relaxed);
    }

    /// Counts the hold that ends now.
    fn count(&self, now: u64) {
        let since = self.since.load(Ordering::Relaxed);
        if since == 0 {
            return;
        }
        // SAFETY: sites stay mapped as long as the process lives, and this was filled in.
        let site = unsafe { &*self.site.load(Ordering::Relaxed) };
        site.released(now.saturating_sub(since));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A site as in a ledger, which stays.
    fn site() -> &'static Site {
        Box::leak(Box::default())
    }

    /// Its holds: how many, how long, the longest.
    #[track_caller]
    fn check(site: &Site, expected: [u64; 3]) {
        let found = [&site.holds, &site.held, &site.longest];
        assert_eq!(found.map(|sum| sum.load(Ordering::Relaxed)), expected);
    }

    #[test]
    fn locks_are_released_in_any_order_and_as_often_as_they_were_taken() {
        let (outer, inner) = (site(), site());
        begin(1, outer, 100);
        begin(2, inner, 110);
        begin(1, inner, 120);
        end(1, 125);
        end(2, 130);
        end(1, 150);
        check(outer, [1, 50, 50]);
        check(inner, [2, 25, 20]);
        // Not held any more.
        end(1, 200);
        check(outer, [1, 50, 50]);
    }

    #[test]
    fn a_wait_for_a_condition_ends_a_hold_and_begins_another_one() {
        let (lock, wait) = (site(), site());
        begin(1, lock, 100);
        suspend(1, 130);
        resume(1, wait, 500);
        end(1, 510);
        check(lock, [1, 30, 30]);
        check(wait, [1, 10, 10]);
        // The thread is cancelled while it waits, and its handler releases the mutex.
        begin(1, lock, 600);
        suspend(1, 601);
        end(1, 900);
        check(lock, [2, 31, 30]);
        check(wait, [1, 10, 10]);
        // What was not seen to be taken.
        suspend(7, 1000);
        resume(7, wait, 1010);
        end(7, 1030);
        check(wait, [2, 30, 20]);
    }

    #[test]
    fn the_oldest_of_too_many_is_given_up() {
        let sites: Vec<&'static Site> = (0..=MOST).map(|_| site()).collect();
        for (index, site) in sites.iter().enumerate() {
            begin(index + 1, site, 10);
        }
        (0..=MOST).for_each(|index| end(index + 1, 20));
        check(sites[0], [0, 0, 0]);
        sites[1..].iter().for_each(|site| check(site, [1, 10, 10]));
    }
}
