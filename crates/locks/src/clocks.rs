//! What a decorated lock asks of the calling thread's clock and core.

use std::cell::RefCell;
use std::thread::ThreadId;

use dimmer_pace::Holder;
use dimmer_policy::boost::{Act, Point, Speed};
use lock_api::Mutex;

use crate::raw::RawMutex;

/// Where in a thread's use of a lock an act belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The lock's address. It may be freed by then ([`Point::Releases`]).
    pub lock: usize,
    /// The point.
    pub point: Point,
}

/// What executes the acts of a strategy for the calling thread.
///
/// A request that is in force already should cost nothing: locks repeat them. No function may
/// panic, or use the lock that calls it. What the machine cannot do is left out.
///
/// A request at [`Point::Waits`] counts until [`Clocks::end_wait`], and one at [`Point::Acquires`]
/// until one at [`Point::Releases`], or [`Clocks::end_section`]. Others count when the thread is in
/// no section of a lock.
pub trait Clocks {
    /// The initial value, for locks that are constants.
    const INIT: Self;

    /// Requests this speed for the thread's core.
    fn request(&self, place: Place, speed: Speed);
    /// Asks the thread on the neighbour core to request this speed for their module. Does nothing
    /// unless an implementation does it, as the next four.
    #[inline]
    fn request_by_neighbour(&self, _place: Place, _speed: Speed) {}
    /// Migrates the thread to a core that is always fast.
    #[inline]
    fn go_to_fast_core(&self, _place: Place) {}
    /// Migrates the thread back, if it went there for this lock.
    #[inline]
    fn go_home(&self, _place: Place) {}
    /// Ends the request of [`Point::Waits`], after the acts of [`Point::Acquires`].
    #[inline]
    fn end_wait(&self) {}
    /// The thread's last section of this lock has ended, and the strategy has no request for what
    /// comes then: that of the section counts on.
    #[inline]
    fn end_section(&self, _lock: usize) {}
    /// Ends the request that this lock has made for the thread for the time outside of sections, if
    /// it was the last to make one: what the program has requested counts again, or else the
    /// processor chooses the clock. A lock that chooses its strategy itself calls this at each use
    /// once it has chosen one without requests.
    fn end_requests(&self, lock: usize);
}

/// Leaves clocks and cores as they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unchanged;

impl Clocks for Unchanged {
    const INIT: Self = Self;

    #[inline]
    fn request(&self, _: Place, _: Speed) {}
    #[inline]
    fn end_requests(&self, _: usize) {}
}

/// Requests clocks of the machine, as far as it takes requests, and goes to the CPUs that the
/// program has dedicated ([`dimmer_pace::dedicate_fast`]). Without such CPUs, threads stay where
/// they are.
///
/// Requests by the neighbour core are made by a thread of the process's own, on any other core
/// ([`dimmer_pace::request_by_neighbour`]). Each section has its own request and way to a fast
/// core, so locks may be released in any order, and what the program itself requests stays
/// ([`dimmer_pace::hold`]).
#[derive(Clone, Copy, Debug, Default)]
pub struct Paced;

thread_local! {
    /// The locks for whose sections the thread went to a fast core, and not home yet. Where none is
    /// dedicated, it stays, and has no way home.
    static WENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

impl From<Place> for Holder {
    fn from(Place { lock, point }: Place) -> Self {
        match point {
            Point::Waits => Self::Wait,
            Point::Acquires => Self::Section(lock),
            Point::Starts | Point::Releases => Self::Between(lock),
        }
    }
}

impl Clocks for Paced {
    const INIT: Self = Self;

    #[inline]
    fn request(&self, place: Place, speed: Speed) {
        // Where the machine takes no request, the lock is one without.
        let _ = dimmer_pace::hold(place.into(), speed.into());
    }
    #[inline]
    fn request_by_neighbour(&self, place: Place, speed: Speed) {
        let _ = dimmer_pace::hold_by_neighbour(place.into(), speed.into());
    }
    #[inline]
    fn go_to_fast_core(&self, place: Place) {
        let go = |went: &RefCell<Vec<usize>>| {
            if let Ok(mut went) = went.try_borrow_mut()
                && dimmer_pace::go_to_fast_core().is_ok()
            {
                went.push(place.lock);
            }
        };
        // In the last destructors of a thread it stays.
        let _ = WENT.try_with(go);
    }
    #[inline]
    fn go_home(&self, place: Place) {
        let _ = WENT.try_with(|went| {
            let Ok(mut went) = went.try_borrow_mut() else { return };
            if let Some(of_lock) = went.iter().rposition(|lock| *lock == place.lock) {
                went.remove(of_lock);
                dimmer_pace::go_home();
            }
        });
    }
    #[inline]
    fn end_wait(&self) {
        dimmer_pace::release(Holder::Wait);
    }
    #[inline]
    fn end_section(&self, lock: usize) {
        dimmer_pace::stay(lock);
    }
    #[inline]
    fn end_requests(&self, lock: usize) {
        dimmer_pace::release(Holder::Between(lock));
    }
}

/// Records the acts of all threads, for tests. `None` stands for the end of requests.
#[derive(Debug, Default)]
pub struct Recorder(Mutex<RawMutex, Vec<(ThreadId, Option<Act>)>>);

impl Recorder {
    fn record(&self, act: Option<Act>) {
        self.0.lock().push((std::thread::current().id(), act));
    }

    /// The acts of the calling thread since the last call, in order.
    pub fn take(&self) -> Vec<Option<Act>> {
        let own = std::thread::current().id();
        let mut acts = self.0.lock();
        acts.extract_if(.., |(thread, _)| *thread == own).map(|(_, act)| act).collect()
    }
}

impl Clocks for Recorder {
    const INIT: Self = Self(Mutex::new(Vec::new()));

    fn request(&self, _: Place, speed: Speed) {
        self.record(Some(Act::Request(speed)));
    }
    fn request_by_neighbour(&self, _: Place, speed: Speed) {
        self.record(Some(Act::RequestByNeighbour(speed)));
    }
    fn go_to_fast_core(&self, _: Place) {
        self.record(Some(Act::GoToFastCore));
    }
    fn go_home(&self, _: Place) {
        self.record(Some(Act::GoHome));
    }
    fn end_requests(&self, _: usize) {
        self.record(None);
    }
}

#[cfg(test)]
mod tests {
    use dimmer_pace::{Request, at, in_force, prepare_under, request, withdraw};
    use dimmer_runtime::Root;

    use super::*;

    /// Without a back end, threads have requests, too, which change no clock.
    fn without_back_end() {
        let missing = prepare_under(&Root::new("/nowhere/at/all"));
        assert!(missing.is_err());
    }

    const LOCK: usize = 1;
    const OTHER: usize = 2;

    fn ask(lock: usize, point: Point, speed: Speed) {
        Paced.request(Place { lock, point }, speed);
    }

    #[test]
    fn the_program_s_own_request_does_not_end_with_those_of_locks() {
        without_back_end();
        let scope = at(Request::TURBO);
        Paced.end_requests(LOCK);
        assert_eq!(in_force(), Some(Request::TURBO), "no lock has requested anything");
        ask(LOCK, Point::Acquires, Speed::Turbo);
        ask(LOCK, Point::Releases, Speed::Slow);
        assert_eq!(in_force(), Some(Request::TURBO), "it was in force already");
        ask(LOCK, Point::Acquires, Speed::Slow);
        assert_eq!(in_force(), Some(Request::SLOW));
        ask(LOCK, Point::Releases, Speed::Base);
        assert_eq!(in_force(), Some(Request::TURBO), "the scope is still open");
        drop(scope);
        assert_eq!(in_force(), Some(Request::BASE), "no scope is open");
        Paced.end_requests(OTHER);
        assert_eq!(in_force(), Some(Request::BASE), "it is the request of another lock");
        Paced.end_requests(LOCK);
        assert_eq!(in_force(), None);
    }

    #[test]
    fn what_locks_have_requested_ends_unless_the_program_has_requested_since() {
        without_back_end();
        ask(LOCK, Point::Releases, Speed::Slow);
        request(Request::BASE);
        Paced.end_requests(LOCK);
        assert_eq!(in_force(), Some(Request::BASE));
        ask(LOCK, Point::Releases, Speed::Slow);
        assert_eq!(in_force(), Some(Request::SLOW));
        ask(OTHER, Point::Acquires, Speed::Turbo);
        withdraw();
        assert_eq!(in_force(), Some(Request::TURBO), "the section is open");
        Paced.end_section(OTHER);
        assert_eq!(in_force(), Some(Request::TURBO), "it counts on");
        Paced.end_requests(OTHER);
        assert_eq!(in_force(), None);
    }
}
