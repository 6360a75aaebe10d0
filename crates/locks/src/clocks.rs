//! What a decorated lock asks of the calling thread's clock and core.

use std::thread::ThreadId;

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
    /// Asks the thread on the neighbour core to request this speed for their module.
    fn request_by_neighbour(&self, speed: Speed);
    /// Migrates the thread to a core that is always fast.
    fn go_to_fast_core(&self);
    /// Migrates the thread back.
    fn go_home(&self);
    /// Ends the thread's requests: the processor chooses the clock again. A lock that chooses its
    /// strategy itself calls this once it has chosen one without requests.
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
    fn request_by_neighbour(&self, _: Speed) {}
    #[inline]
    fn go_to_fast_core(&self) {}
    #[inline]
    fn go_home(&self) {}
    #[inline]
    fn end_requests(&self) {}
}

/// Requests clocks of the machine, as far as it takes requests ([`dimmer_pace`]).
///
/// Requests by the neighbour core and migrations are left out: no interface of Linux takes the
/// former, and the machine's fast core is not known here.
#[derive(Clone, Copy, Debug, Default)]
pub struct Paced;

impl Clocks for Paced {
    const INIT: Self = Self;

    #[inline]
    fn request(&self, speed: Speed) {
        // Where the machine takes no request, the lock is one without.
        let _ = dimmer_pace::request(speed.into());
    }
    #[inline]
    fn request_by_neighbour(&self, _: Speed) {}
    #[inline]
    fn go_to_fast_core(&self) {}
    #[inline]
    fn go_home(&self) {}
    #[inline]
    fn end_requests(&self) {
        dimmer_pace::withdraw();
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
