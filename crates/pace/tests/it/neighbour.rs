//! Requests that the process's agent makes for threads.

use std::thread;
use std::time::{Duration, Instant};

use dimmer_pace::{
    Decision, Holder, Request, at, hold_by_neighbour, in_force, release, request,
    request_by_neighbour, withdraw,
};

use crate::machine::{BEFORE, Machine};
use crate::threads::machine;

/// Waits until the agent has made a request: it takes a moment.
#[track_caller]
fn until(machine: &Machine, mhz: u64) {
    let begin = Instant::now();
    while machine.now() != Some([mhz, mhz]) {
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", machine.now());
        thread::yield_now();
    }
}

#[test]
fn the_agent_makes_the_request_and_it_ends_with_the_thread() {
    let (_turn, machine) = machine();
    let asked = thread::spawn(|| {
        assert_eq!(request_by_neighbour(Request::TURBO), Decision::Requested);
        until(machine, 4000);
        assert_eq!(request_by_neighbour(Request::TURBO), Decision::Requested);
        assert_eq!(in_force(), Some(Request::TURBO));
        assert_eq!(request_by_neighbour(Request::SLOW), Decision::Requested);
        until(machine, 800);
    });
    asked.join().expect("a thread");
    assert_eq!(machine.limits(0), BEFORE);
}

#[test]
fn a_thread_that_ends_at_once_leaves_nothing() {
    let (_turn, machine) = machine();
    for _ in 0..100 {
        let asked = thread::spawn(|| request_by_neighbour(Request::TURBO));
        assert_eq!(asked.join().expect("a thread"), Decision::Requested);
        assert_eq!(machine.limits(0), BEFORE);
    }
}

/// A request of the thread's own counts from then on, whatever the agent was about to do.
#[test]
fn of_a_thousand_requests_the_last_one_counts() {
    const SEED: u64 = 28;
    let (_turn, machine) = machine();
    let mut random = fastrand::Rng::with_seed(SEED);
    for round in 0..1000 {
        for _ in 0..random.u32(0..4) {
            let wanted = Request::of_number(random.u8(1..=103)).expect("a request");
            request_by_neighbour(wanted);
            assert_eq!(in_force(), Some(wanted));
        }
        if random.bool() {
            request(Request::SLOW);
            assert_eq!(machine.limits(0), [800, 800], "round {round}");
        } else {
            withdraw();
            assert_eq!(machine.limits(0), BEFORE, "round {round}");
        }
    }
    withdraw();
    assert_eq!((machine.limits(0), in_force()), (BEFORE, None));
}

/// Sections whose requests the agent makes, within and beside scopes of the thread's own requests.
#[test]
fn requests_of_the_agent_and_of_the_thread_end_in_any_order() {
    let (_turn, machine) = machine();
    let section = Holder::Section(1);
    let scope = at(Request::SLOW);
    hold_by_neighbour(section, Request::TURBO);
    until(machine, 4000);
    drop(scope);
    until(machine, 4000);
    assert_eq!(in_force(), Some(Request::TURBO));
    let scope = at(Request::BASE);
    assert_eq!(machine.limits(0), [3000, 3000]);
    release(section);
    assert_eq!(machine.limits(0), [3000, 3000]);
    hold_by_neighbour(Holder::Between(1), Request::SLOW);
    drop(scope);
    until(machine, 800);
    withdraw();
    assert_eq!((machine.limits(0), in_force()), (BEFORE, None));
}

#[test]
fn several_threads_have_the_fastest_of_theirs() {
    let (_turn, machine) = machine();
    thread::scope(|scope| {
        request_by_neighbour(Request::SLOW);
        until(machine, 800);
        let other = scope.spawn(|| {
            request_by_neighbour(Request::BASE);
            until(machine, 3000);
        });
        other.join().expect("a thread");
        until(machine, 800);
    });
    withdraw();
    assert_eq!(machine.limits(0), BEFORE);
}
