//! Locks, barriers and reader-writer locks whose threads execute a strategy's acts.
//!
//! Implements the decorations of paper 002, sections 3.2, 4.2 and 4.3, around any lock of this
//! crate. Which acts a strategy has is in `policy::boost`.

use std::sync::atomic::AtomicU32;
use std::time::Instant;

use dimmer_policy::boost::{Act, Offers, Point, Strategy};
use lock_api::{GuardNoSend, RawMutex, RawRwLock};

use crate::auto::Auto;
use crate::barrier::Barrier;
use crate::clocks::{Clocks, Place};
use crate::waiting::{Wait, Waiting, WaitingLock};

/// A lock with a strategy. Its threads execute the strategy's acts when they wait for it, when they
/// have acquired it, and when they have released it.
///
/// Each thread calls [`Decorated::start`] once before it uses the lock, if the strategy has acts
/// for the start (`one`, `ownr`, `wait`, `dlgt`, `mgrt`).
///
/// The guard stays on the thread that acquired the lock, since that thread has made the requests.
#[derive(Debug)]
pub struct Decorated<R, C> {
    raw: R,
    clocks: C,
    /// The strategy, unless the lock chooses it.
    fixed: Strategy,
    auto: Option<Box<Auto>>,
}

impl<R, C: Clocks> Decorated<R, C> {
    /// A lock around this one, with a strategy that stays.
    #[must_use]
    pub const fn around(raw: R, strategy: Strategy, clocks: C) -> Self {
        Self { raw, clocks, fixed: strategy, auto: None }
    }

    /// A lock around this one that chooses its strategy by its use, and by what the machine offers.
    /// See [`crate::auto`]. Of a reader-writer lock, the writers' sections and waits decide.
    #[must_use]
    pub fn auto_around(raw: R, offers: Offers, clocks: C) -> Self {
        let auto = Some(Box::new(Auto::new(offers)));
        Self { auto, ..Self::around(raw, Strategy::Spin, clocks) }
    }

    /// Executes the acts of a thread that starts.
    pub fn start(&self) {
        self.execute(self.strategy(), Point::Starts);
    }

    /// The strategy now.
    #[must_use]
    #[inline]
    pub fn strategy(&self) -> Strategy {
        self.auto.as_ref().map_or(self.fixed, |auto| auto.strategy())
    }

    /// The lock without its decoration.
    #[must_use]
    pub const fn raw(&self) -> &R {
        &self.raw
    }

    /// What executes the acts.
    #[must_use]
    pub const fn clocks(&self) -> &C {
        &self.clocks
    }

    /// Notes that this thread has the lock for itself, and executes its acts.
    #[inline]
    fn acquired(&self, waited: Option<Waited>) {
        if let Some(auto) = &self.auto {
            // SAFETY: this thread has the lock.
            unsafe { auto.acquired(waited.and_then(|waited| waited.since)) };
        }
        self.acquire(waited.map(|waited| waited.strategy));
    }

    /// Releases a lock that this thread has for itself.
    #[inline]
    fn release_own(&self, unlock: impl FnOnce(&R)) {
        // The strategy with which the lock was acquired: it changes under the lock alone.
        let strategy = self.strategy();
        if let Some(auto) = &self.auto {
            // SAFETY: this thread has the lock.
            unsafe { auto.releases() };
        }
        self.release(strategy, unlock);
    }

    /// Waits for the lock in a way that depends on the acts of a thread that waits.
    fn wait_by(&self, wait: impl FnOnce(Waiting)) -> Waited {
        let since = self.auto.as_ref().map(|_| Instant::now());
        let strategy = self.strategy();
        wait(self.execute(strategy, Point::Waits));
        Waited { since, strategy }
    }

    /// Executes the acts of a thread that has got the lock, after a wait under a strategy.
    #[inline]
    fn acquire(&self, waited: Option<Strategy>) {
        self.execute(self.strategy(), Point::Acquires);
        if waited.is_some_and(|strategy| requests(strategy.acts(Point::Waits))) {
            self.clocks.end_wait();
        }
    }

    /// Executes the acts of this point. Returns the way to wait, if they have one.
    #[inline]
    fn execute(&self, strategy: Strategy, point: Point) -> Waiting {
        self.acts(strategy, point).execute(&self.clocks)
    }

    #[inline]
    fn acts(&self, strategy: Strategy, point: Point) -> Acts {
        let has_left_requests = |auto: &Auto| auto.has_left_requests(strategy);
        let ends_requests = self.auto.as_deref().is_some_and(has_left_requests);
        let place = Place { lock: std::ptr::from_ref(self).addr(), point };
        Acts { ends_requests, place, acts: strategy.acts(point) }
    }

    /// Releases the lock and executes the acts of a thread that has. Afterwards it uses nothing of
    /// the lock but `clocks`: another thread may acquire the lock and free it, as POSIX and C++
    /// allow of mutexes. `parking_lot`'s reader-writer lock may not be freed before all threads
    /// have returned from it. Clocks of such a lock have no data (`Paced`). In Rust, no lock in use
    /// is freed.
    #[inline]
    fn release(&self, strategy: Strategy, unlock: impl FnOnce(&R)) {
        let acts = self.acts(strategy, Point::Releases);
        unlock(&self.raw);
        acts.execute(&self.clocks);
        if !requests(acts.acts) {
            acts.end_section(strategy, &self.clocks);
        }
    }
}

/// A wait that has ended.
#[derive(Clone, Copy)]
struct Waited {
    /// Its start, if the lock chooses its strategy.
    since: Option<Instant>,
    strategy: Strategy,
}

/// What a thread does at a point.
#[derive(Clone, Copy)]
struct Acts {
    ends_requests: bool,
    place: Place,
    acts: &'static [Act],
}

impl Acts {
    #[inline]
    fn execute(self, clocks: &impl Clocks) -> Waiting {
        if self.ends_requests {
            clocks.end_requests(self.place.lock);
        }
        for act in self.acts {
            match act {
                Act::Request(speed) => clocks.request(self.place, *speed),
                Act::RequestByNeighbour(speed) => clocks.request_by_neighbour(self.place, *speed),
                Act::GoToFastCore => clocks.go_to_fast_core(self.place),
                Act::GoHome => clocks.go_home(self.place),
                Act::Spin | Act::Monitor | Act::Block => {}
            }
        }
        Waiting::of(self.acts)
    }

    /// Ends a section with a request, which no act has ended.
    #[inline]
    fn end_section(self, strategy: Strategy, clocks: &impl Clocks) {
        if requests(strategy.acts(Point::Acquires)) {
            clocks.end_section(self.place.lock);
        }
    }
}

fn requests(acts: &[Act]) -> bool {
    acts.iter().any(|act| matches!(act, Act::Request(_) | Act::RequestByNeighbour(_)))
}

impl<R: WaitingLock, C: Clocks> Decorated<R, C> {
    /// A lock with a strategy that stays.
    #[must_use]
    pub const fn new(strategy: Strategy, clocks: C) -> Self {
        Self::around(R::INIT, strategy, clocks)
    }

    /// A lock that chooses its strategy by its use: [`Self::auto_around`] a new one.
    #[must_use]
    pub fn auto(offers: Offers, clocks: C) -> Self {
        Self::auto_around(R::INIT, offers, clocks)
    }

    #[cold]
    fn wait(&self) {
        let waited = self.wait_by(|waiting| self.raw.lock_by(waiting));
        self.acquired(Some(waited));
    }
}

// SAFETY: the lock is that of `raw`.
unsafe impl<R: WaitingLock, C: Clocks> RawMutex for Decorated<R, C> {
    const INIT: Self = Self::new(Strategy::Futex, C::INIT);

    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock(&self) {
        if self.raw.try_lock() {
            self.acquired(None);
        } else {
            self.wait();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        let is_acquired = self.raw.try_lock();
        if is_acquired {
            self.acquired(None);
        }
        is_acquired
    }

    #[inline]
    unsafe fn unlock(&self) {
        // SAFETY: the caller has the lock.
        self.release_own(|raw| unsafe { raw.unlock() });
    }

    #[inline]
    fn is_locked(&self) -> bool {
        self.raw.is_locked()
    }
}

impl<R: RawRwLock, C: Clocks> Decorated<R, C> {
    /// Acquires the lock by one of its functions, after the acts of a thread that waits. A thread
    /// that should spin tries for some microseconds first. It does not go on with that: readers
    /// that overlap would keep a writer out for ever.
    #[cold]
    fn wait_to_share(&self, attempt: impl Fn(&R) -> bool, lock: impl Fn(&R)) -> Waited {
        self.wait_by(|waiting| {
            if waiting == Waiting::Spin {
                let word = AtomicU32::new(0);
                let mut wait = Wait::on_shared_line(Waiting::SpinThenBlock);
                while wait.pause(&word, 0) {
                    if attempt(&self.raw) {
                        return;
                    }
                }
            }
            lock(&self.raw);
        })
    }
}

// SAFETY: the lock is that of `raw`.
unsafe impl<R: RawRwLock, C: Clocks> RawRwLock for Decorated<R, C> {
    const INIT: Self = Self::around(R::INIT, Strategy::Futex, C::INIT);

    type GuardMarker = GuardNoSend;

    fn lock_shared(&self) {
        let wait = || self.wait_to_share(R::try_lock_shared, R::lock_shared).strategy;
        let waited = (!self.raw.try_lock_shared()).then(wait);
        self.acquire(waited);
    }

    fn try_lock_shared(&self) -> bool {
        let is_acquired = self.raw.try_lock_shared();
        if is_acquired {
            self.acquire(None);
        }
        is_acquired
    }

    unsafe fn unlock_shared(&self) {
        // SAFETY: the caller has the lock. Its strategy is that of the acquisition: only a thread
        // that has the lock for itself changes it.
        self.release(self.strategy(), |raw| unsafe { raw.unlock_shared() });
    }

    fn lock_exclusive(&self) {
        let wait = || self.wait_to_share(R::try_lock_exclusive, R::lock_exclusive);
        let waited = (!self.raw.try_lock_exclusive()).then(wait);
        self.acquired(waited);
    }

    fn try_lock_exclusive(&self) -> bool {
        let is_acquired = self.raw.try_lock_exclusive();
        if is_acquired {
            self.acquired(None);
        }
        is_acquired
    }

    unsafe fn unlock_exclusive(&self) {
        // SAFETY: the caller has the lock.
        self.release_own(|raw| unsafe { raw.unlock_exclusive() });
    }

    fn is_locked(&self) -> bool {
        self.raw.is_locked()
    }
}

impl<C: Clocks> Decorated<Barrier, C> {
    /// Waits until all threads have arrived. Returns true to the last of them. Threads execute the
    /// acts of one that waits, and then those of one that has acquired the lock: a barrier has no
    /// owner, so `spin`, `mwait`, `futex` and `wait` are its strategies.
    pub fn wait_for_all(&self) -> bool {
        let Some(round) = self.raw.arrive() else { return true };
        let waiting = self.execute(self.fixed, Point::Waits);
        self.raw.wait_for(round, waiting);
        self.acquire(Some(self.fixed));
        self.acts(self.fixed, Point::Acquires).end_section(self.fixed, &self.clocks);
        false
    }
}
