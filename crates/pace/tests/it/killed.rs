//! A process is killed a thousand times while it asks for clocks, and the machine is as before.

use std::fmt::Debug;
use std::time::Duration;
use std::{panic, thread};

use dimmer_host::affinity;
use dimmer_host::journal::Journal;
use dimmer_pace::{Decision, Request, at, back_end, move_to, prepare_under, register, request};

use crate::machine::{Machine, child_root};

const ROUNDS: u32 = 1000;
/// Set for a process that is to end by itself, with this status.
const ENDS: &str = "DIMMER_TEST_ENDS";
const ENDED: i32 = 42;
/// The seed of all moments.
const SEED: u64 = 2;
/// The longest time from the first change to the end: some dozens of requests.
const LONGEST_US: u64 = 1000;

/// Asks until it is killed: from one thread, which moves, and from others that end at once.
fn ask_all_the_time() -> ! {
    let mut random = fastrand::Rng::new();
    let allowed = affinity::allowed().expect("CPUs");
    loop {
        let wanted = Request::of_number(random.u8(1..=103)).expect("a request");
        let _scope = at(wanted);
        move_to(register(), allowed[random.usize(0..allowed.len())]).expect("a CPU");
        for _ in 0..random.u32(0..4) {
            request(Request::of_number(random.u8(1..=103)).expect("a request"));
        }
        let _ = thread::spawn(move || request(wanted)).join();
    }
}

/// Kills processes that run this test on the machine, at any moment. `state` is what must be as
/// before after each; most are killed once it is no longer `is_untouched`.
fn kill_at_any_moment<T: PartialEq + Debug>(
    machine: &Machine,
    test: &str,
    is_untouched: impl Fn() -> bool,
    state: impl Fn() -> T,
) {
    let before = state();
    let mut random = fastrand::Rng::with_seed(SEED);
    for round in 0..ROUNDS {
        let mut child = machine.command(test).spawn().expect("a process");
        // Some are killed while they start, the others while they ask.
        if random.u32(0..4) != 0 {
            while is_untouched() {
                assert_eq!(child.try_wait().expect("a process"), None, "round {round}");
                thread::sleep(Duration::from_micros(100));
            }
        }
        thread::sleep(Duration::from_micros(random.u64(0..LONGEST_US)));
        child.kill().expect("a process to kill");
        child.wait().expect("its end");
        let (journal, report) = Journal::open(&machine.root).expect("a journal");
        assert!(report.is_complete() && report.left.is_empty(), "round {round}: {report:?}");
        drop(journal);
        assert_eq!(state(), before, "round {round}");
    }
    assert_eq!(machine.root.list("/run/dimmer").expect("the directory"), ["lock"]);
}

#[test]
fn a_kill_at_any_moment_is_undone_by_the_next_start() {
    if let Some(root) = child_root() {
        panic::set_hook(Box::new(|_| ()));
        prepare_under(&root).expect("a back end");
        ask_all_the_time();
    }
    let machine = Machine::new(2);
    let test = "killed::a_kill_at_any_moment_is_undone_by_the_next_start";
    kill_at_any_moment(&machine, test, || machine.is_untouched(), || machine.files());
}

/// The same by the classes of Intel Speed Select core power, and a process that ends by itself.
#[test]
fn classes_of_core_power_come_back_whenever_a_process_ends() {
    if let Some(root) = child_root() {
        panic::set_hook(Box::new(|_| ()));
        prepare_under(&root).expect("a back end");
        assert_eq!(back_end(), Ok("core power"));
        if std::env::var_os(ENDS).is_none() {
            ask_all_the_time();
        }
        assert_eq!(request(Request::TURBO), Decision::Requested);
        // The C library's exit, without destructors of this thread.
        std::process::exit(ENDED);
    }
    let machine = Machine::with_core_power();
    let before = machine.core_power();
    let test = "killed::classes_of_core_power_come_back_whenever_a_process_ends";
    let is_untouched = || machine.core_power() == before;
    kill_at_any_moment(&machine, test, is_untouched, || machine.core_power());
    let ended = machine.command(test).env(ENDS, "1").status().expect("a process");
    assert_eq!(ended.code(), Some(ENDED));
    assert_eq!(machine.core_power(), before);
    assert_eq!(machine.root.list("/run/dimmer").expect("the directory"), ["lock"]);
}
