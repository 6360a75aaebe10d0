//! No two threads are in a section at a time, and none waits forever.

use std::sync::atomic::{AtomicU32, Ordering};

use dimmer_locks::lock_api::{self, RawMutex as _, RawRwLock as _};
use dimmer_locks::pthread::RawPthread;
use dimmer_locks::{
    Barrier, Condvar, Decorated, DecoratedRwLock, Mutex, RawMcs, RawMutex, RawRwLock, Recorder,
    RwLock, Strategy, Unchanged, Waiting, WaitingLock, auto,
};

use crate::{SECTIONS, THREADS, in_threads};

const WAYS: [Waiting; 4] =
    [Waiting::Spin, Waiting::Monitor, Waiting::Block, Waiting::SpinThenBlock];

/// Counts in all threads by a load and a store, which `section` surrounds by a lock. Without one,
/// counts are lost.
#[track_caller]
fn check(section: impl Fn(u32, &mut dyn FnMut()) + Sync) {
    let counter = AtomicU32::new(0);
    in_threads(THREADS, |thread| {
        for turn in 0..SECTIONS {
            section(thread + turn, &mut || {
                let before = counter.load(Ordering::Relaxed);
                std::hint::spin_loop();
                counter.store(before + 1, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(counter.into_inner(), THREADS * SECTIONS);
}

fn check_waiting<R: WaitingLock + Sync>(way: impl Fn(u32) -> Waiting + Sync) {
    let lock = R::INIT;
    check(|number, work| {
        lock.lock_by(way(number));
        work();
        // SAFETY: this thread has the lock.
        unsafe { lock.unlock() };
    });
    assert!(!lock.is_locked());
}

#[test]
fn threads_that_wait_in_one_way_are_kept_apart_and_woken() {
    for way in WAYS {
        check_waiting::<RawMutex>(|_| way);
        check_waiting::<RawMcs>(|_| way);
    }
}

#[test]
fn threads_that_wait_in_different_ways_are_kept_apart_and_woken() {
    let any = |number| WAYS[number as usize % WAYS.len()];
    check_waiting::<RawMutex>(any);
    check_waiting::<RawMcs>(any);
}

#[test]
fn guards_keep_threads_apart() {
    fn check_guard<R: lock_api::RawMutex + Sync>(raw: R) {
        let lock = lock_api::Mutex::from_raw(raw, ());
        check(|number, work| {
            let guard = match number % 3 {
                0 => lock.try_lock(),
                _ => None,
            };
            let _guard = guard.unwrap_or_else(|| lock.lock());
            work();
        });
        assert!(lock.try_lock().is_some());
    }
    check_guard(RawMutex::INIT);
    check_guard(RawMcs::INIT);
    check_guard(RawPthread::INIT);
    for strategy in Strategy::ALL {
        check_guard(Decorated::<RawMutex, _>::new(strategy, Unchanged));
        check_guard(Decorated::<RawMcs, _>::new(strategy, Unchanged));
    }
}

#[test]
fn readers_share_and_writers_do_not() {
    let plain = RwLock::new(());
    check(|number, work| {
        if number % 4 == 0 {
            drop(plain.read());
        }
        let _guard = plain.write();
        work();
    });
    let fixed = |strategy| Decorated::around(RawRwLock::INIT, strategy, Unchanged);
    let auto = Decorated::auto_around(RawRwLock::INIT, auto::offers_without_clocks(), Unchanged);
    for raw in Strategy::ALL.map(fixed).into_iter().chain([auto]) {
        let lock: DecoratedRwLock<_, _> = lock_api::RwLock::from_raw(raw, ());
        check(|number, work| {
            if number % 4 == 0 {
                drop(lock.read());
            }
            let _guard = lock.write();
            work();
        });
        let first = lock.read();
        assert!(lock.try_read().is_some() && lock.try_write().is_none());
        drop(first);
        assert!(lock.try_write().is_some());
    }
}

/// Threads take turns, each woken by the one before it.
#[test]
fn conditions_wake_threads() {
    fn take_turns<R: lock_api::RawMutex + Sync>(raw: R) {
        let (turn, changed) = (lock_api::Mutex::from_raw(raw, 0), Condvar::new());
        in_threads(THREADS, |thread| {
            for round in 0..SECTIONS / 4 {
                let mut now = turn.lock();
                let own = round * THREADS + thread;
                changed.wait_while(&mut now, |now| *now != own);
                *now += 1;
                changed.notify_all();
            }
        });
        assert_eq!(turn.into_inner(), THREADS * (SECTIONS / 4));
    }
    take_turns(RawMutex::INIT);
    take_turns(RawMcs::INIT);
    take_turns(Decorated::<RawMutex, _>::new(Strategy::Owner, Unchanged));
}

/// One thread puts items in, two take them out; each notification wakes one.
#[test]
fn a_notification_of_one_thread_is_not_lost() {
    let (items, changed) = (Mutex::new(0_u32), Condvar::new());
    in_threads(3, |thread| match thread {
        0 => {
            for _ in 0..2 * SECTIONS {
                *items.lock() += 1;
                changed.notify_one();
            }
        }
        _ => {
            for _ in 0..SECTIONS {
                let mut items = items.lock();
                changed.wait_while(&mut items, |items| *items == 0);
                *items -= 1;
            }
        }
    });
    assert_eq!(items.into_inner(), 0);
}

#[test]
fn a_barrier_keeps_rounds_apart() {
    fn check_rounds(wait: impl Fn() -> bool + Sync) {
        let (arrived, last) = (AtomicU32::new(0), AtomicU32::new(0));
        in_threads(THREADS, |_| {
            for round in 0..200 {
                arrived.fetch_add(1, Ordering::Relaxed);
                last.fetch_add(wait().into(), Ordering::Relaxed);
                assert!(arrived.load(Ordering::Relaxed) >= (round + 1) * THREADS);
                wait();
            }
        });
        assert_eq!(last.into_inner(), 200);
    }
    let barrier = Barrier::new(THREADS);
    check_rounds(|| barrier.wait());
    for strategy in Strategy::ALL {
        let barrier = Decorated::around(Barrier::new(THREADS), strategy, Recorder::default());
        check_rounds(|| barrier.wait_for_all());
    }
    assert!(Barrier::new(1).wait());
}

/// No thread of a pair goes on before both have arrived, whichever threads these are.
#[test]
fn a_barrier_keeps_rounds_apart_that_more_threads_use() {
    const WAITS: u32 = 10_000;
    let (barrier, last) = (Barrier::new(2), AtomicU32::new(0));
    let [begun, arrived, gone] = [const { AtomicU32::new(0) }; 3];
    in_threads(3, |_| {
        while begun.fetch_add(1, Ordering::Relaxed) < WAITS {
            arrived.fetch_add(1, Ordering::SeqCst);
            last.fetch_add(barrier.wait().into(), Ordering::Relaxed);
            let gone = gone.fetch_add(1, Ordering::SeqCst) + 1;
            assert!(arrived.load(Ordering::SeqCst) >= gone.next_multiple_of(2));
        }
    });
    assert_eq!(last.into_inner(), WAITS / 2);
}
