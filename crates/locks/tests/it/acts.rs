//! Decorated locks execute the acts of their strategy, in order; how a strategy is chosen.

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use dimmer_locks::lock_api::{GuardNoSend, Mutex, RawMutex, RawRwLock, RwLock};
use dimmer_locks::{
    Act, Barrier, Clocks, Decorated, Offers, Place, Point, RawMutex as Plain, Recorder, Speed,
    Strategy, Waiting, WaitingLock, auto,
};
use dimmer_policy::break_even::{Boost, Costs};
use dimmer_processor::units::{KiloHertz, Picos};

use crate::{SECTIONS, THREADS, in_threads};

/// What happened on this thread.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    Did(Act),
    EndedRequests,
    Waited(Waiting),
    Unlocked,
}

thread_local! {
    static EVENTS: RefCell<Vec<Event>> = const { RefCell::new(Vec::new()) };
}

fn note(event: Event) {
    EVENTS.with_borrow_mut(|events| events.push(event));
}

/// The events since the last call.
fn events() -> Vec<Event> {
    EVENTS.take()
}

/// A lock that another thread seems to have, until this one has waited for it.
struct Taken {
    is_free: AtomicBool,
}

// SAFETY: not a lock: the tests use it on one thread.
unsafe impl RawMutex for Taken {
    const INIT: Self = Self { is_free: AtomicBool::new(false) };
    type GuardMarker = GuardNoSend;

    fn lock(&self) {}
    fn try_lock(&self) -> bool {
        self.is_free.load(Ordering::Relaxed)
    }
    unsafe fn unlock(&self) {
        note(Event::Unlocked);
    }
}

impl WaitingLock for Taken {
    fn lock_by(&self, waiting: Waiting) {
        note(Event::Waited(waiting));
    }
}

/// Notes all acts.
struct Noting;

impl Clocks for Noting {
    const INIT: Self = Self;
    fn request(&self, _: Place, speed: Speed) {
        note(Event::Did(Act::Request(speed)));
    }
    fn request_by_neighbour(&self, _: Place, speed: Speed) {
        note(Event::Did(Act::RequestByNeighbour(speed)));
    }
    fn go_to_fast_core(&self, _: Place) {
        note(Event::Did(Act::GoToFastCore));
    }
    fn go_home(&self, _: Place) {
        note(Event::Did(Act::GoHome));
    }
    fn end_requests(&self, _: usize) {
        note(Event::EndedRequests);
    }
}

thread_local! {
    /// The lock that its next release frees.
    static FREED: Cell<Option<*mut Decorated<Freed, Noting>>> = const { Cell::new(None) };
}

/// A lock that another thread frees as soon as it is released: its memory is overwritten.
struct Freed {
    _is_shared: AtomicBool,
}

// SAFETY: not a lock: the tests use it on one thread.
unsafe impl RawMutex for Freed {
    const INIT: Self = Self { _is_shared: AtomicBool::new(false) };
    type GuardMarker = GuardNoSend;

    fn lock(&self) {}
    fn try_lock(&self) -> bool {
        true
    }
    unsafe fn unlock(&self) {
        if let Some(freed) = FREED.take() {
            // SAFETY: the memory belongs to the test, which reads it no more.
            unsafe { freed.write_bytes(0x55, 1) };
        }
    }
}

impl WaitingLock for Freed {
    fn lock_by(&self, _: Waiting) {}
}

/// Another thread may acquire the lock, find that it has the last reference, and free it, while the
/// thread that has released it is still in `unlock`.
#[test]
fn a_lock_may_be_freed_as_soon_as_it_is_released() {
    let mut memory = MaybeUninit::new(Decorated::<Freed, _>::new(Strategy::Owner, Noting));
    FREED.set(Some(memory.as_mut_ptr()));
    // SAFETY: it is initialised, and nothing is to read it once it is released.
    let lock = unsafe { &*memory.as_mut_ptr() };
    lock.lock();
    // SAFETY: it was locked.
    unsafe { lock.unlock() };
    let [turbo, slow] = [Speed::Turbo, Speed::Slow].map(|to| Event::Did(Act::Request(to)));
    assert_eq!(events(), [turbo, slow]);
}

#[track_caller]
fn check(strategy: Strategy, expected: &[Event]) {
    let raw = Decorated::<Taken, _>::new(strategy, Noting);
    raw.start();
    let lock = Mutex::from_raw(raw, ());
    drop(lock.lock());
    assert_eq!(events(), expected, "{}", strategy.name());
}

#[test]
fn each_strategy_acts_in_order_and_waits_in_its_way() {
    use Event::{Did, Unlocked, Waited};
    let (slow, base, turbo) =
        (Act::Request(Speed::Slow), Act::Request(Speed::Base), Act::Request(Speed::Turbo));
    let by_neighbour = |speed| Did(Act::RequestByNeighbour(speed));
    let spun = Waited(Waiting::Spin);
    check(Strategy::Spin, &[spun, Unlocked]);
    check(Strategy::Mwait, &[Waited(Waiting::Monitor), Unlocked]);
    check(Strategy::Futex, &[Waited(Waiting::Block), Unlocked]);
    check(Strategy::One(Speed::Base), &[Did(base), spun, Unlocked]);
    check(Strategy::Owner, &[Did(slow), spun, Did(turbo), Unlocked, Did(slow)]);
    check(Strategy::Wait, &[Did(turbo), Did(slow), spun, Did(turbo), Unlocked]);
    let (neighbour_slow, neighbour_turbo) = (by_neighbour(Speed::Slow), by_neighbour(Speed::Turbo));
    check(Strategy::Delegate, &[neighbour_slow, spun, neighbour_turbo, Unlocked, neighbour_slow]);
    let (go, home) = (Did(Act::GoToFastCore), Did(Act::GoHome));
    check(Strategy::Migrate, &[Did(slow), spun, go, Unlocked, home]);
}

#[test]
fn a_lock_that_is_free_makes_no_thread_wait_and_a_failed_try_acts_on_nothing() {
    for strategy in Strategy::ALL {
        let lock = Mutex::from_raw(Decorated::<Plain, _>::new(strategy, Noting), ());
        let acts = |point| strategy.acts(point).iter().map(|act| Event::Did(*act));
        let guard = lock.lock();
        assert_eq!(events(), acts(Point::Acquires).collect::<Vec<_>>());
        assert!(lock.try_lock().is_none());
        assert_eq!(events(), []);
        drop(guard);
        assert_eq!(events(), acts(Point::Releases).collect::<Vec<_>>());
    }
}

/// Every thread's acts are those of whole rounds, with a wait or without.
#[test]
fn under_contention_each_thread_acts_in_rounds() {
    for strategy in Strategy::ALL {
        let raw = Decorated::<Plain, _>::new(strategy, Recorder::default());
        let lock = Mutex::from_raw(raw, ());
        let acts = |point| {
            let waits = |act: &&Act| !matches!(act, Act::Spin | Act::Monitor | Act::Block);
            strategy.acts(point).iter().filter(waits).copied().collect::<Vec<Act>>()
        };
        in_threads(THREADS, |_| {
            for _ in 0..SECTIONS / 20 {
                drop(lock.lock());
            }
            // SAFETY: `raw` is used for its recorder alone.
            let recorder = unsafe { lock.raw() }.clocks();
            let all: Vec<Act> = recorder.take().into_iter().flatten().collect();
            let mut rest = &all[..];
            for _ in 0..SECTIONS / 20 {
                rest = rest.strip_prefix(&*acts(Point::Waits)).unwrap_or(rest);
                for point in [Point::Acquires, Point::Releases] {
                    rest = rest.strip_prefix(&*acts(point)).expect("acts of this point");
                }
            }
            assert_eq!(rest, []);
        });
    }
}

#[test]
fn a_barrier_makes_threads_slow_while_they_wait() {
    let barrier = Decorated::around(Barrier::new(2), Strategy::Wait, Recorder::default());
    in_threads(2, |_| {
        barrier.start();
        let is_last = barrier.wait_for_all();
        let speeds: Vec<Option<Act>> = barrier.clocks().take();
        let [slow, turbo] = [Speed::Slow, Speed::Turbo].map(|to| Some(Act::Request(to)));
        let expected = if is_last { vec![turbo] } else { vec![turbo, slow, turbo] };
        assert_eq!(speeds, expected);
    });
}

/// A reader-writer lock that readers seem to have, one after another: no attempt succeeds, and only
/// its own way to wait has an end.
struct Overlapping(Taken);

// SAFETY: not a lock: the tests use it on one thread.
unsafe impl RawRwLock for Overlapping {
    const INIT: Self = Self(Taken::INIT);
    type GuardMarker = GuardNoSend;

    fn lock_shared(&self) {
        note(Event::Waited(Waiting::Block));
    }
    fn try_lock_shared(&self) -> bool {
        self.0.try_lock()
    }
    unsafe fn unlock_shared(&self) {
        note(Event::Unlocked);
    }
    fn lock_exclusive(&self) {
        note(Event::Waited(Waiting::Block));
    }
    fn try_lock_exclusive(&self) -> bool {
        self.0.try_lock()
    }
    unsafe fn unlock_exclusive(&self) {
        note(Event::Unlocked);
    }
}

#[test]
fn readers_that_overlap_keep_no_thread_out_that_spins() {
    for strategy in Strategy::ALL {
        let raw = Decorated::around(Overlapping::INIT, strategy, Noting);
        let lock = RwLock::from_raw(raw, ());
        drop(lock.write());
        let written = events();
        assert!(written.contains(&Event::Waited(Waiting::Block)), "{}", strategy.name());
        drop(lock.read());
        assert_eq!(events(), written, "readers and writers act alike: {}", strategy.name());
    }
}

/// Readers do not decide: several may have the lock at a time.
#[test]
fn a_reader_writer_lock_chooses_its_strategy_by_its_writers() {
    let offers = Offers { block: Picos::ZERO, ..auto::offers_without_clocks() };
    let lock = RwLock::from_raw(Decorated::auto_around(Overlapping::INIT, offers, Noting), ());
    // SAFETY: nothing is locked or unlocked by it.
    let strategy = || unsafe { lock.raw() }.strategy();
    (0..MANY).for_each(|_| drop(lock.read()));
    assert_eq!(strategy(), Strategy::Spin);
    (0..MANY).for_each(|_| drop(lock.write()));
    assert_eq!(strategy(), Strategy::Futex);
}

/// More than the acquisitions by which a strategy is chosen.
const MANY: u32 = 1000;

/// Acquires a lock often, with or without waiting.
fn use_often(lock: &Mutex<Decorated<Taken, Noting>, ()>, is_free: bool) -> Strategy {
    // SAFETY: nothing is locked or unlocked by it.
    let raw = unsafe { lock.raw() };
    raw.raw().is_free.store(is_free, Ordering::Relaxed);
    for _ in 0..MANY {
        drop(lock.lock());
    }
    raw.strategy()
}

/// With costs of zero, all waits are long enough, and all sections.
#[test]
fn the_strategy_follows_the_use_of_the_lock() {
    let [base, turbo] = [3000, 4000].map(KiloHertz::from_mhz);
    let zero = Picos::ZERO;
    let costs = Costs { request: zero, ramp: zero, back: zero, down: zero };
    let free = Boost::new(base, base, turbo, costs).unwrap();
    let offers = Offers { own: Some(free), block: zero, ..auto::offers_without_clocks() };
    let lock = Mutex::from_raw(Decorated::<Taken, _>::auto(offers, Noting), ());
    // SAFETY: nothing is locked or unlocked by it.
    assert_eq!(unsafe { lock.raw() }.strategy(), Strategy::Spin);
    assert_eq!(use_often(&lock, true), Strategy::Futex);
    assert!(!events().contains(&Event::EndedRequests));
    assert_eq!(use_often(&lock, false), Strategy::Wait);
    assert!(events().contains(&Event::Did(Act::Request(Speed::Slow))));
    assert_eq!(use_often(&lock, true), Strategy::Futex);
    // The last request was ended, and no other one follows.
    let after: Vec<Event> = events().into_iter().rev().take(3).collect();
    assert_eq!(after, [Event::EndedRequests, Event::Unlocked, Event::EndedRequests]);
}

/// Set for the process that a test starts.
const CHILD: &str = "DIMMER_TEST_CHILD";

/// A stack larger than the address space is refused, as a thread too many is.
#[test]
fn a_lock_chooses_its_strategy_where_no_thread_can_be_made() {
    if std::env::var_os(CHILD).is_some() {
        assert!(std::thread::Builder::new().spawn(|| {}).is_err());
        let raw = Decorated::<Plain, _>::auto(auto::offers_without_clocks(), Noting);
        drop(Mutex::from_raw(raw, ()).lock());
        std::process::exit(17);
    }
    let test = "acts::a_lock_chooses_its_strategy_where_no_thread_can_be_made";
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .envs([(CHILD, "1"), ("RUST_MIN_STACK", "140737488355328")])
        .output()
        .expect("a process");
    assert_eq!(output.status.code(), Some(17), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn without_clocks_a_machine_offers_only_ways_to_wait() {
    let offers = auto::offers_without_clocks();
    assert!(offers.own.is_none() && offers.neighbour.is_none() && offers.fast_core.is_none());
    assert!(offers.block > Picos::ZERO);
}
