//! Threads on CPUs that always run fastest: they come home with the affinity that they had.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

use dimmer_host::affinity::{allow, allowed};
use dimmer_pace::{
    Decision, FastCoreError, Request, at, dedicate_fast, fastest_cpus, go_home, go_to_fast_core,
    in_force, on_fast_core, trouble,
};
use dimmer_processor::units::CpuId;

use crate::machine::BEFORE;
use crate::threads::machine;

/// The last CPU that this thread may run on.
fn last() -> CpuId {
    *allowed().expect("an affinity").last().expect("a CPU")
}

/// Runs this on a thread of its own, whose affinity does not matter to others.
fn on_thread(work: impl FnOnce() + Send) {
    thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| resume_unwind(panic));
}

#[test]
fn a_dedicated_cpu_is_fast_until_it_is_dropped() {
    let (_turn, machine) = machine();
    let fast = dedicate_fast(&[last(), last()]).expect("it may run there");
    assert_eq!((fast.cpus(), fast.decision()), (vec![last()], Decision::Requested));
    assert_eq!(machine.limits(0), [4000, 4000]);
    on_thread(|| {
        let _slow = at(Request::SLOW);
        assert_eq!(machine.limits(0), [4000, 4000], "CPUs of a domain have the fastest clock");
    });
    drop(fast);
    assert_eq!(machine.limits(0), BEFORE);
}

#[test]
fn what_cannot_be_is_refused_and_the_thread_stays() {
    let (_turn, machine) = machine();
    let home = allowed().expect("an affinity");
    assert!(matches!(dedicate_fast(&[]), Err(FastCoreError::Empty)));
    assert!(matches!(on_fast_core(), Err(FastCoreError::NotDedicated)));
    for number in [1023, 1 << 20] {
        let cpu = CpuId::new(number);
        if home.contains(&cpu) {
            continue;
        }
        let error = dedicate_fast(&[last(), cpu]).expect_err("no such CPU");
        let says = format!("cpu {number} does not exist, allowed are ");
        assert!(error.to_string().starts_with(&says), "{error}");
    }
    assert_eq!((allowed().expect("an affinity"), machine.limits(0)), (home, BEFORE));
    let fast = dedicate_fast(&[last()]).expect("it may run there");
    let error = dedicate_fast(&[last()]).expect_err("a second time");
    let says = format!("this process has dedicated cpu {} already: drop that first", last());
    assert_eq!(error.to_string(), says);
    drop(fast);
    // All CPUs of the made-up machine are alike.
    let missing = fastest_cpus().expect_err("none is faster");
    assert!(missing.why.ends_with("have the same fastest clock"), "{missing}");
}

#[test]
fn a_thread_that_was_pinned_elsewhere_is_pinned_there_again() {
    let (_turn, _machine) = machine();
    let all = allowed().expect("an affinity");
    let _fast = dedicate_fast(&[last()]).expect("it may run there");
    on_thread(|| {
        allow(&all[..1]).expect("its first CPU");
        {
            let _there = on_fast_core().expect("the cpuset has it");
            assert_eq!(allowed().expect("an affinity"), [*all.last().expect("a CPU")]);
        }
        assert_eq!(allowed().expect("an affinity"), all[..1]);
        go_home();
        assert_eq!(allowed().expect("an affinity"), all[..1], "without a way there, none back");
    });
}

/// Goes and comes back at random, in scopes and by hand, and is left by panics at random.
fn wander(random: &mut fastrand::Rng, depth: u32, fast: CpuId) {
    let _there = on_fast_core().expect("it is dedicated");
    assert_eq!(allowed().expect("an affinity"), [fast]);
    let _clock = at(Request::of_number(random.u8(1..=103)).expect("a request"));
    for _ in 0..random.u32(0..3) {
        if depth < 4 {
            let inner = AssertUnwindSafe(|| wander(random, depth + 1, fast));
            let _ = catch_unwind(inner);
            assert_eq!(allowed().expect("an affinity"), [fast]);
        }
    }
    match random.u32(0..4) {
        0 => resume_unwind(Box::new(())),
        1 => {
            go_to_fast_core().expect("it is there");
            go_home();
        }
        _ => {}
    }
}

#[test]
fn a_thousand_random_nestings_end_at_home() {
    const SEED: u64 = 27;
    let (_turn, machine) = machine();
    let (all, cpu) = (allowed().expect("an affinity"), last());
    let fast = dedicate_fast(&[cpu]).expect("it may run there");
    on_thread(|| {
        let mut random = fastrand::Rng::with_seed(SEED);
        for round in 0..1000 {
            let home = &all[random.usize(0..all.len())..];
            allow(home).expect("its own CPUs");
            let _ = catch_unwind(AssertUnwindSafe(|| wander(&mut random, 0, cpu)));
            assert_eq!(allowed().expect("an affinity"), home, "round {round}");
            assert_eq!(in_force(), None, "round {round}");
        }
    });
    drop(fast);
    assert_eq!(machine.limits(0), BEFORE);
}

#[test]
fn a_thread_that_never_comes_home_ends_all_the_same() {
    let (_turn, machine) = machine();
    let fast = dedicate_fast(&[last()]).expect("it may run there");
    on_thread(|| std::mem::forget(on_fast_core().expect("it is dedicated")));
    on_thread(|| go_to_fast_core().expect("it is dedicated"));
    drop(fast);
    assert_eq!(machine.limits(0), BEFORE);
}

#[test]
fn a_thread_comes_home_after_the_cpus_are_no_longer_dedicated() {
    let (_turn, _machine) = machine();
    let all = allowed().expect("an affinity");
    on_thread(|| {
        let fast = dedicate_fast(&[last()]).expect("it may run there");
        let there = on_fast_core().expect("it is dedicated");
        drop(fast);
        assert!(on_fast_core().is_ok(), "it is there already");
        drop(there);
        assert_eq!(allowed().expect("an affinity"), all);
        assert!(matches!(on_fast_core(), Err(FastCoreError::NotDedicated)));
    });
}

#[test]
fn an_affinity_that_others_have_changed_is_theirs() {
    let (_turn, _machine) = machine();
    let all = allowed().expect("an affinity");
    if all.len() < 2 {
        println!("skipped: one CPU has one affinity");
        return;
    }
    let _fast = dedicate_fast(&[last()]).expect("it may run there");
    on_thread(|| {
        let there = on_fast_core().expect("it is dedicated");
        allow(&all[..1]).expect("its first CPU");
        drop(there);
        assert_eq!(allowed().expect("an affinity"), all[..1]);
        assert!(trouble().is_some());
    });
}
