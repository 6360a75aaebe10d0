//! The locks that the calling thread holds: a short stack of its own.
//!
//! A signal handler may interrupt any of these functions and take locks, which it gives back before
//! it ends. So a place is taken before it is filled in, and emptied before it is given up. What a
//! handler ends that it has not begun itself would change places under the function that it
//! interrupts: sections leave all as it is while `is_busy`.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, compiler_fence};

use dimmer_policy::boost::Point;
use dimmer_policy::boost::site::{AtSite, requested};

use crate::ledger::Site;
use crate::{counters, own, requests, stop};

/// Maximum number of locks that are observed at once in a thread. The oldest one beyond that is
/// given up: it may have been released by another thread.
pub const MOST: usize = 32;

#[repr(C)]
struct Held {
    depth: AtomicUsize,
    /// Whether a [`Busy`] is there.
    is_busy: AtomicBool,
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
    /// Whether the lock itself shows that other threads wait for it.
    shows_waits: AtomicBool,
}

dimmer_runtime::of_thread! {
    /// What the calling thread holds.
    fn of_thread() -> Held, "dimmer_contention_held";
}

/// The calling thread changes what is kept for it, until this is dropped.
#[derive(Debug)]
#[must_use = "it marks the changes until it is dropped"]
pub(crate) struct Busy {
    /// Whether it did before: this is in a signal handler, or in a function that another one calls.
    was: bool,
}

impl Busy {
    pub(crate) fn begin() -> Self {
        let was = is_busy();
        of_thread().is_busy.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        Self { was }
    }

    /// Whether the thread changed nothing before.
    const fn is_first(&self) -> bool {
        !self.was
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        of_thread().is_busy.store(self.was, Ordering::Relaxed);
    }
}

/// Whether the calling thread changes what is kept for it: if so, this is a signal handler.
pub(crate) fn is_busy() -> bool {
    of_thread().is_busy.load(Ordering::Relaxed)
}

/// The calling thread holds `lock` since `now`, taken at `site`. `shows_waits`: whether the lock
/// itself shows that other threads wait for it.
pub fn begin(lock: usize, site: &'static Site, now: u64, shows_waits: bool) {
    let busy = Busy::begin();
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
    held.places[depth].shows_waits.store(shows_waits, Ordering::Relaxed);
    held.places[depth].lock.store(lock, Ordering::Relaxed);
    held.request(site, Point::Acquires, AtSite::Nothing);
    held.measure(depth, now, &busy);
}

/// The calling thread is about to release `lock`: what is measured of the hold ends. [`end`]
/// follows if it has released it.
#[inline]
pub fn ends(lock: usize) {
    if counters::is_measuring() {
        ends_measured(lock);
    }
}

#[cold]
fn ends_measured(lock: usize) {
    let _busy = Busy::begin();
    let held = of_thread();
    if held.find(lock).is_some_and(|index| held.places[index].is_measured()) {
        counters::read_end();
    }
}

/// The calling thread has released `lock`, at `now`, for which another thread waited, as the lock
/// itself shows it, if it `was_wanted`. Does nothing if it is not known to hold it.
pub fn end(lock: usize, now: u64, was_wanted: bool) {
    if stop::has_stopped() {
        requests::end_own();
    }
    let busy = Busy::begin();
    let held = of_thread();
    if let Some(index) = held.find(lock) {
        let ended = held.places[index].count(now, was_wanted);
        held.remove(index);
        if let Some(ended) = ended {
            held.request(ended.site, Point::Releases, AtSite::Nothing);
            if busy.is_first() {
                counters::open_if_new();
            }
        }
    }
}

/// The calling thread does not hold `lock` any more, in a way that is not counted.
pub(crate) fn drop_uncounted(lock: usize) {
    let _busy = Busy::begin();
    let held = of_thread();
    if let Some(index) = held.find(lock) {
        held.remove(index);
    }
}

/// Whether the calling thread is known to hold `lock`.
pub(crate) fn is_held(lock: usize) -> bool {
    of_thread().find(lock).is_some()
}

/// The calling thread waits for a lock at `site`. If it does not get it, [`has_given_up`] follows.
pub fn waits(site: &Site) {
    of_thread().request(site, Point::Waits, site.strategy());
}

/// The calling thread does not wait any more, and has no lock by that.
pub fn has_given_up(site: &Site) {
    of_thread().request(site, Point::Releases, AtSite::Nothing);
}

/// A hold that a wait for a condition ends.
#[derive(Debug)]
#[must_use = "the hold goes on, or another one begins"]
pub struct Suspended {
    lock: usize,
    ended: Option<Ended>,
}

/// A hold that was counted.
#[derive(Debug)]
struct Ended {
    site: &'static Site,
    since: u64,
    /// How long it lasted (ticks).
    held: u64,
    /// For how long the fast clock was in force, if that was requested, as in
    /// [`Site::was_boosted`].
    boosted: Option<Option<u64>>,
}

/// The calling thread will release `lock` to wait for a condition, and have it again afterwards. If
/// it is cancelled meanwhile, it has the lock without [`resume`]: such a hold is not counted. It
/// waits at `site`, if that is known.
pub fn suspend(lock: usize, now: u64, site: Option<&Site>) -> Suspended {
    let _busy = Busy::begin();
    let held = of_thread();
    let mut ended = None;
    if let Some(index) = held.find(lock) {
        ended = held.places[index].count(now, false);
        held.places[index].since.store(0, Ordering::Relaxed);
    }
    let waiting = site.map_or(AtSite::Nothing, Site::strategy);
    let is_waiting = waiting.speed(Point::Waits).is_some();
    match (site, &ended) {
        (Some(site), _) if is_waiting => held.request(site, Point::Waits, waiting),
        (_, Some(ended)) => held.request(ended.site, Point::Releases, AtSite::Nothing),
        _ => {}
    }
    Suspended { lock, ended }
}

/// The wait was refused: the calling thread has never released the lock.
pub fn goes_on(suspended: Suspended) {
    let Suspended { lock, ended: Some(ended) } = suspended else { return };
    let _busy = Busy::begin();
    let held = of_thread();
    if let Some(index) = held.find(lock) {
        ended.site.goes_on(ended.held, ended.boosted);
        held.places[index].fill(ended.site, ended.since);
        held.request(ended.site, Point::Acquires, AtSite::Nothing);
    }
}

/// The calling thread did not get the lock again: its owner has left it in a state that cannot be
/// recovered.
pub fn lose(suspended: &Suspended) {
    let _busy = Busy::begin();
    let held = of_thread();
    if let Some(index) = held.find(suspended.lock) {
        held.remove(index);
    }
}

/// The calling thread has `lock` again, after a wait at `site`. The C library leaves a mutex marked
/// then as if others waited for it.
pub fn resume(lock: usize, site: &'static Site, now: u64) {
    let busy = Busy::begin();
    let held = of_thread();
    match held.find(lock) {
        Some(index) => {
            held.places[index].fill(site, now);
            held.places[index].shows_waits.store(false, Ordering::Relaxed);
            held.request(site, Point::Acquires, AtSite::Nothing);
            held.measure(index, now, &busy);
        }
        None => begin(lock, site, now, false),
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

    /// The thread is at this point of `site`, where it waits as `waiting` says: it requests what
    /// follows from that and from the locks that it holds.
    fn request(&self, site: &Site, point: Point, waiting: AtSite) {
        if !requests::concerns(site) {
            return;
        }
        let depth = self.depth.load(Ordering::Relaxed).min(MOST);
        let held = self.places[..depth].iter().filter_map(Place::site_if_held);
        let rest = match site.strategy().speed(point) {
            rest @ Some(_) if point == Point::Releases => rest,
            _ => requests::rest(),
        };
        requests::request(site, point, requested(waiting, held.map(Site::strategy), rest));
    }

    /// Begins to measure a hold that begins now, if it is its turn.
    fn measure(&self, index: usize, now: u64, busy: &Busy) {
        if busy.is_first() && counters::is_due(now) {
            self.places[index].since.store(counters::read_begin(), Ordering::Relaxed);
        }
    }

    fn remove(&self, index: usize) {
        if self.places[index].is_measured() {
            counters::give_up();
        }
        let depth = self.depth.load(Ordering::Relaxed).min(MOST);
        // A signal handler may have left fewer.
        let Some(last) = depth.checked_sub(1).filter(|last| index <= *last) else { return };
        for (place, next) in self.places[index..last].iter().zip(&self.places[index + 1..]) {
            place.lock.store(next.lock.load(Ordering::Relaxed), Ordering::Relaxed);
            place.site.store(next.site.load(Ordering::Relaxed), Ordering::Relaxed);
            place.since.store(next.since.load(Ordering::Relaxed), Ordering::Relaxed);
            place.shows_waits.store(next.shows_waits.load(Ordering::Relaxed), Ordering::Relaxed);
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

    /// Whether counters measure the hold: each has its own moment.
    fn is_measured(&self) -> bool {
        counters::measures(self.since.load(Ordering::Relaxed))
    }

    /// The site where the lock was taken; `None` while it is not held.
    fn site_if_held(&self) -> Option<&'static Site> {
        let is_held =
            self.lock.load(Ordering::Relaxed) != 0 && self.since.load(Ordering::Relaxed) != 0;
        // SAFETY: sites stay mapped as long as the process lives, and this was filled in.
        is_held.then(|| unsafe { &*self.site.load(Ordering::Relaxed) })
    }

    /// Counts the hold that ends now; `None` if the lock is not held.
    fn count(&self, now: u64, was_wanted: bool) -> Option<Ended> {
        let since = self.since.load(Ordering::Relaxed);
        let site = self.site_if_held().filter(|_| !stop::has_stopped())?;
        let held = now.saturating_sub(since);
        if self.is_measured() {
            counters::count(site);
        }
        site.released(held, was_wanted && self.shows_waits.load(Ordering::Relaxed));
        let is_boosted = site.strategy() != AtSite::Nothing;
        let fast = is_boosted.then(requests::fast_since).flatten();
        let boosted = fast.map(|fast| fast.map(|fast| now.saturating_sub(fast.max(since))));
        if let Some(fast) = boosted {
            site.was_boosted(fast);
        }
        Some(Ended { site, since, held, boosted })
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
        begin(1, outer, 100, true);
        begin(2, inner, 110, true);
        begin(1, inner, 120, true);
        end(1, 125, false);
        end(2, 130, false);
        end(1, 150, true);
        check(outer, [1, 50, 50]);
        check(inner, [2, 25, 20]);
        assert_eq!([outer, inner].map(|site| site.wanted.load(Ordering::Relaxed)), [1, 0]);
        // Not held any more.
        end(1, 200, false);
        check(outer, [1, 50, 50]);
    }

    #[test]
    fn a_wait_for_a_condition_ends_a_hold_and_begins_another_one() {
        let (lock, wait) = (site(), site());
        begin(1, lock, 100, true);
        let _ = suspend(1, 130, None);
        resume(1, wait, 500);
        end(1, 510, false);
        check(lock, [1, 30, 30]);
        check(wait, [1, 10, 10]);
        // The thread is cancelled while it waits, and its handler releases the mutex.
        begin(1, lock, 600, true);
        let _ = suspend(1, 601, None);
        end(1, 900, false);
        check(lock, [2, 31, 30]);
        check(wait, [1, 10, 10]);
        // What was not seen to be taken.
        let _ = suspend(7, 1000, None);
        resume(7, wait, 1010);
        end(7, 1030, false);
        check(wait, [2, 30, 20]);
    }

    #[test]
    fn a_wait_that_is_refused_ends_no_hold() {
        let lock = site();
        begin(1, lock, 100, true);
        let suspended = suspend(1, 130, None);
        goes_on(suspended);
        check(lock, [0, 0, 30]);
        end(1, 150, false);
        check(lock, [1, 50, 50]);
        // A lock that was not seen to be taken.
        let suspended = suspend(7, 200, None);
        goes_on(suspended);
        end(7, 210, false);
        // The lock is lost.
        begin(1, lock, 300, true);
        let suspended = suspend(1, 310, None);
        lose(&suspended);
        end(1, 320, false);
        check(lock, [2, 60, 50]);
    }

    #[test]
    fn a_mark_of_waiting_threads_that_the_thread_itself_may_have_left_does_not_count() {
        let (lock, wait) = (site(), site());
        let wanted = |site: &Site| site.wanted.load(Ordering::Relaxed);
        begin(1, lock, 100, false);
        end(1, 110, true);
        assert_eq!(wanted(lock), 0);
        begin(1, lock, 100, true);
        let _ = suspend(1, 130, None);
        resume(1, wait, 500);
        end(1, 510, true);
        assert_eq!([lock, wait].map(wanted), [0, 0]);
        // The first of two is released, and the second takes its place.
        begin(1, lock, 600, false);
        begin(2, wait, 600, true);
        end(1, 610, true);
        end(2, 610, true);
        assert_eq!([lock, wait].map(wanted), [0, 1]);
    }

    #[test]
    fn a_place_that_is_gone_is_not_removed_again() {
        let lock = site();
        begin(1, lock, 100, true);
        assert!(!is_busy());
        let held = of_thread();
        (0..3).for_each(|index| held.remove(index));
        held.remove(0);
        assert!(!is_held(1));
        begin(1, lock, 200, true);
        end(1, 210, false);
        check(lock, [1, 10, 10]);
    }

    #[test]
    fn the_oldest_of_too_many_is_given_up() {
        let sites: Vec<&'static Site> = (0..=MOST).map(|_| site()).collect();
        for (index, site) in sites.iter().enumerate() {
            begin(index + 1, site, 10, true);
        }
        (0..=MOST).for_each(|index| end(index + 1, 20, false));
        check(sites[0], [0, 0, 0]);
        sites[1..].iter().for_each(|site| check(site, [1, 10, 10]));
    }
}
