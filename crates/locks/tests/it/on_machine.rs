//! The acts of `mgrt` and `dlgt` on this machine: threads go to a dedicated CPU and come home, and
//! have their requests made by another thread.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

use dimmer_locks::lock_api::Mutex;
use dimmer_locks::{Decorated, Paced, RawMutex, Strategy};
use dimmer_pace::{Request, dedicate_fast, in_force, prepare_under};
use dimmer_processor::units::CpuId;
use dimmer_runtime::Root;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::{SECTIONS, THREADS, in_threads};

/// No request of the test changes a clock. One thread at a time: what the process's `OnceLock`
/// orders is not seen by ThreadSanitizer, what this lock orders is.
fn without_back_end() {
    static ONE: parking_lot::Mutex<()> = parking_lot::Mutex::new(());
    let _one = ONE.lock();
    assert!(prepare_under(&Root::new("/nowhere/at/all")).is_err());
}

/// The CPUs that this thread may run on, ascending.
pub(crate) fn allowed() -> Vec<CpuId> {
    let set = sched_getaffinity(None).expect("an affinity");
    (0..1024).filter(|cpu| set.is_set(*cpu as usize)).map(CpuId::new).collect()
}

pub(crate) fn allow(cpus: &[CpuId]) {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(cpu.index() as usize));
    sched_setaffinity(None, &set).expect("its own CPUs");
}

fn last() -> CpuId {
    *allowed().last().expect("a CPU")
}

type Lock<T> = Mutex<Decorated<RawMutex, Paced>, T>;

fn lock<T>(strategy: Strategy, data: T) -> Lock<T> {
    Mutex::from_raw(Decorated::new(strategy, Paced), data)
}

/// Threads add under the lock, and are where the strategy says. `mgrt` is the only test here that
/// dedicates CPUs, since a process has one set of them.
#[test]
fn the_owner_goes_to_the_fast_core_and_comes_home() {
    without_back_end();
    let all = allowed();
    let cpu = last();
    // Without a dedicated CPU, the owner stays.
    let sum = lock(Strategy::Migrate, 0);
    {
        let _guard = sum.lock();
        assert_eq!(allowed(), all);
    }
    let early = lock(Strategy::Migrate, ());
    let stayed = early.lock();
    let fast = dedicate_fast(&[cpu]).expect("it may run there");
    // A lock that was taken before has no way home, and keeps no other one's.
    drop(lock(Strategy::Migrate, ()).lock());
    assert_eq!(allowed(), all);
    drop(stayed);
    assert_eq!(allowed(), all);
    in_threads(THREADS, |number| {
        let home = [all[number as usize % all.len()]];
        allow(&home);
        // SAFETY: nothing is locked or unlocked by it.
        unsafe { sum.raw() }.start();
        for section in 0..SECTIONS / 10 {
            let add = || {
                let mut sum = sum.lock();
                assert_eq!(allowed(), [cpu]);
                *sum += 1;
                if section % 7 == 0 {
                    resume_unwind(Box::new(()));
                }
            };
            let _ = catch_unwind(AssertUnwindSafe(add));
            assert_eq!(allowed(), home);
        }
    });
    assert_eq!(sum.into_inner(), THREADS * (SECTIONS / 10));
    // Two locks at a time, released in any order.
    let [first, second] = [(); 2].map(|()| lock(Strategy::Migrate, ()));
    thread::scope(|scope| {
        let both = scope.spawn(|| {
            let (one, other) = (first.lock(), second.lock());
            drop(one);
            assert_eq!(allowed(), [cpu]);
            drop(other);
            assert_eq!(allowed(), all);
        });
        both.join().expect("a thread");
    });
    drop(fast);
}

#[test]
fn the_neighbour_makes_the_requests_and_the_sum_is_the_same() {
    without_back_end();
    let sum = lock(Strategy::Delegate, 0);
    in_threads(THREADS, |_| {
        // SAFETY: nothing is locked or unlocked by it.
        unsafe { sum.raw() }.start();
        assert_eq!(in_force(), Some(Request::SLOW));
        for _ in 0..SECTIONS {
            let mut sum = sum.lock();
            assert_eq!(in_force(), Some(Request::TURBO));
            *sum += 1;
        }
        assert_eq!(in_force(), Some(Request::SLOW));
    });
    assert_eq!(sum.into_inner(), THREADS * SECTIONS);
}
