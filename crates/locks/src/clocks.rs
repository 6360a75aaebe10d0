//! What a decorated lock asks of the calling thread's clock and core.

use std::cell::Cell;
use std::thread::ThreadId;

use dimmer_pace::Request;
use dimmer_policy::boost::{Act, Speed};
use lock_api::Mutex;

use crate::raw::RawMutex;

/// What executes the acts of a strategy for the calling thread.
///
/// A request that is in force already should cost nothing: locks repeat them. No function may
/// panic, or use the lock that calls it. What the machine cannot do is left out.
pub trait Clocks {
    /// The initial value, for locks that are constants.
    const INIT: Self;

    /// Requests this speed for the thread's core.
    fn request(&self, speed: Speed);
    /// Asks the thread on the neighbour core to request this speed for their module. Does nothing
    /// unless an implementation does it, as the next two.
    #[inline]
    fn request_by_neighbour(&self, _speed: Speed) {}
    /// Migrates the thread to a core that is always fast.
    #[inline]
    fn go_to_fast_core(&self) {}
    /// Migrates the thread back.
    #[inline]
    fn go_home(&self) {}
    /// Ends the requests that locks have made for the thread: what the program has requested counts
    /// again, or else the processor chooses the clock. A lock that chooses its strategy itself
    /// calls this at each use once it has chosen one without requests.
    fn end_requests(&self);
}

/// Leaves clocks and cores as they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unchanged;

impl Clocks for Unchanged {
    const INIT: Self = Self;

    #[inline]
    fn request(&self, _: Speed) {}
    #[inline]
    fn end_requests(&self) {}
}

/// Requests clocks of the machine, as far as it takes requests, and goes to the CPUs that the
/// program has dedicated ([`dimmer_pace::dedicate_fast`]). Without such CPUs, threads stay where
/// they are.
///
/// Requests by the neighbour core are made by a thread of the process's own, on any other core
/// ([`dimmer_pace::request_by_neighbour`]).
#[derive(Clone, Copy, Debug, Default)]
pub struct Paced;

/// A request that a lock has made, and what the program had requested before.
#[derive(Clone, Copy)]
struct OfLock {
    request: Request,
    outer: Option<Request>,
}

thread_local! {
    static OF_LOCK: Cell<Option<OfLock>> = const { Cell::new(None) };
    /// How often locks have had the thread go to a fast core, and not home yet. Where none is
    /// dedicated, it stays, and has no way home.
    static WENT: Cell<u32> = const { Cell::new(0) };
}

/// Keeps what the program had requested before a lock requests this.
#[inline]
fn keep(request: Request) {
    if dimmer_pace::in_force() != Some(request) {
        let outer = in_force_of_lock().map_or_else(dimmer_pace::in_force, |own| own.outer);
        OF_LOCK.set(Some(OfLock { request, outer }));
    }
}

/// The thread's last request, if a lock has made it. Since then the program may have requested
/// something else.
fn in_force_of_lock() -> Option<OfLock> {
    OF_LOCK.get().filter(|of_lock| dimmer_pace::in_force() == Some(of_lock.request))
}

impl Clocks for Paced {
    const INIT: Self = Self;

    #[inline]
    fn request(&self, speed: Speed) {
        keep(speed.into());
        // Where the machine takes no request, the lock is one without.
        let _ = dimmer_pace::request(speed.into());
    }
    #[inline]
    fn request_by_neighbour(&self, speed: Speed) {
        keep(speed.into());
        let _ = dimmer_pace::request_by_neighbour(speed.into());
    }
    #[inline]
    fn go_to_fast_core(&self) {
        if dimmer_pace::go_to_fast_core().is_ok() {
            WENT.set(WENT.get() + 1);
        }
    }
    #[inline]
    fn go_home(&self) {
        if let Some(rest) = WENT.get().checked_sub(1) {
            WENT.set(rest);
            dimmer_pace::go_home();
        }
    }
    #[inline]
    fn end_requests(&self) {
        let own = in_force_of_lock();
        OF_LOCK.set(None);
        match own {
            Some(OfLock { outer: Some(outer), .. }) => {
                let _ = dimmer_pace::request(outer);
            }
            Some(OfLock { outer: None, .. }) => dimmer_pace::withdraw(),
            None => {}
        }
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

    fn request(&self, speed: Speed) {
        self.record(Some(Act::Request(speed)));
    }
    fn request_by_neighbour(&self, speed: Speed) {
        self.record(Some(Act::RequestByNeighbour(speed)));
    }
    fn go_to_fast_core(&self) {
        self.record(Some(Act::GoToFastCore));
    }
    fn go_home(&self) {
        self.record(Some(Act::GoHome));
    }
    fn end_requests(&self) {
        self.record(None);
    }
}

#[cfg(test)]
mod tests {
    use dimmer_pace::{at, in_force, prepare_under, request, withdraw};
    use dimmer_runtime::Root;

    use super::*;

    /// Without a back end, threads have requests, too, which change no clock.
    fn without_back_end() {
        let missing = prepare_under(&Root::new("/nowhere/at/all"));
        assert!(missing.is_err());
    }

    #[test]
    fn the_program_s_own_request_does_not_end_with_those_of_locks() {
        without_back_end();
        let scope = at(Request::TURBO);
        Paced.end_requests();
        assert_eq!(in_force(), Some(Request::TURBO), "no lock has requested anything");
        Paced.request(Speed::Turbo);
        Paced.end_requests();
        assert_eq!(in_force(), Some(Request::TURBO), "it was in force already");
        Paced.request(Speed::Slow);
        Paced.request(Speed::Base);
        Paced.end_requests();
        assert_eq!(in_force(), Some(Request::TURBO));
        drop(scope);
        assert_eq!(in_force(), None);
    }

    #[test]
    fn what_locks_have_requested_ends_unless_the_program_has_requested_since() {
        without_back_end();
        Paced.request(Speed::Slow);
        assert_eq!(in_force(), Some(Request::SLOW));
        Paced.end_requests();
        assert_eq!(in_force(), None);
        Paced.request(Speed::Slow);
        request(Request::BASE);
        Paced.end_requests();
        assert_eq!(in_force(), Some(Request::BASE));
        withdraw();
    }
}
