//! Sections that other threads execute: a worker, or the owner of the lock.

use std::panic::{AssertUnwindSafe, catch_unwind};

use dimmer_locks::{Combining, Delegated};
use dimmer_runtime::{Cores, CpuId, Root};

use crate::{SECTIONS, THREADS, in_threads};

/// A worker on the last CPU; none, with the reason printed, where there is just one.
fn cores() -> Option<Cores> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let last = u32::try_from(cpus - 1).unwrap();
    Cores::start(&Root::live(), &[CpuId::new(last)])
        .inspect_err(|error| println!("SKIPPED: no worker: {error}"))
        .ok()
}

/// Sections that a worker may leave to their caller, one after the other: a guess, far more than a
/// busy machine makes it leave.
const MOST_TRIES: u32 = 100_000;

/// Runs `section` in all threads; it returns what the counter was before.
fn count(run: impl Fn(u32) -> u32 + Sync) {
    in_threads(THREADS, |thread| {
        let mut before = None;
        for _ in 0..SECTIONS {
            let now = Some(run(thread));
            assert!(now > before, "a thread's sections run in their order");
            before = now;
        }
    });
}

fn add(sum: &mut u32) -> u32 {
    *sum += 1;
    *sum - 1
}

#[test]
fn delegated_sections_run_once_each_without_a_worker() {
    let sum = Delegated::new(None, 0);
    count(|_| sum.run(add));
    assert_eq!(sum.into_inner(), THREADS * SECTIONS);
}

#[test]
fn delegated_sections_run_once_each_on_a_worker() {
    let Some(cores) = cores() else { return };
    let sum = Delegated::new(Some(&cores), 0);
    count(|_| sum.run(add));
    assert_eq!(sum.into_inner(), THREADS * SECTIONS);
}

/// Sections on a worker, and of callers that cannot be moved: those of sections of another lock.
#[test]
fn sections_of_the_worker_and_of_callers_exclude_each_other() {
    let Some(cores) = cores() else { return };
    let (outer, inner) = (Delegated::new(Some(&cores), ()), Delegated::new(Some(&cores), 0));
    count(|thread| if thread % 2 == 0 { inner.run(add) } else { outer.run(|()| inner.run(add)) });
    assert_eq!(inner.into_inner(), THREADS * SECTIONS);
}

#[test]
fn sections_run_on_the_worker() {
    let Some(cores) = cores() else { return };
    let names = Delegated::new(Some(&cores), ());
    // A worker that gets no time for long leaves a section to its caller.
    let own = std::thread::current().id();
    let mut runs = (0..MOST_TRIES).map(|_| names.run(|()| std::thread::current().id()));
    assert!(runs.any(|thread| thread != own), "no section ran on the worker");
    // Larger than a cache line, both ways.
    let numbers = [7_u64; 40];
    assert_eq!(names.run(|()| numbers.map(|number| number + 1)), [8; 40]);
}

#[track_caller]
fn check_panic(run: impl Fn(bool) -> u32) {
    let panic = catch_unwind(AssertUnwindSafe(|| run(true))).unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"in the section"));
    assert_eq!(run(false), 2, "the data are as the section left them, and the lock is free");
}

fn add_or_panic(sum: &mut u32, is_to_panic: bool) -> u32 {
    *sum += 1;
    if is_to_panic {
        std::panic::resume_unwind(Box::new("in the section"));
    }
    *sum
}

#[test]
fn a_panic_comes_back_to_its_caller() {
    let here = Delegated::new(None, 0);
    check_panic(|is_to_panic| here.run(|sum| add_or_panic(sum, is_to_panic)));
    let combining = Combining::new(0);
    check_panic(|is_to_panic| combining.run(|sum| add_or_panic(sum, is_to_panic)));
    let Some(cores) = cores() else { return };
    let there = Delegated::new(Some(&cores), 0);
    check_panic(|is_to_panic| there.run(|sum| add_or_panic(sum, is_to_panic)));
}

#[test]
fn combined_sections_run_once_each() {
    let sum = Combining::new(0);
    count(|_| sum.run(add));
    assert_eq!(sum.into_inner(), THREADS * SECTIONS);
}

#[test]
fn combined_sections_bring_back_what_they_own() {
    let list = Combining::new(None::<String>);
    in_threads(THREADS, |thread| {
        for turn in 0..SECTIONS {
            let text = format!("{thread} {turn}");
            let last = list.run(|list| list.replace(text));
            assert!(last.is_none_or(|last| last.contains(' ')));
        }
    });
    assert!(list.into_inner().is_some_and(|last| last.ends_with(&format!(" {}", SECTIONS - 1))));
}
