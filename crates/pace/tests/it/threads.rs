//! Threads of one process: scopes, threads that come and go, and the end of the process.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use dimmer_pace::{
    Answer, Decision, Holder, Request, Wish, ask, at, back_end, begin, finish, hold, in_force,
    prepare_under, release, request, trouble, withdraw,
};
use dimmer_processor::units::KiloHertz;

use crate::machine::{BEFORE, Machine, child_root};

/// The process's machine, for one test at a time.
pub(crate) fn machine() -> (MutexGuard<'static, ()>, &'static Machine) {
    static MACHINE: OnceLock<Machine> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let machine = MACHINE.get_or_init(|| {
        let machine = Machine::new(1);
        prepare_under(&machine.root).expect("a back end");
        machine
    });
    assert_eq!(machine.limits(0), BEFORE);
    (turn, machine)
}

fn percent(percent: u8) -> Request {
    Request::percent(percent).expect("percent")
}

#[test]
fn scopes_nest_and_end_with_what_was_before() {
    let (_turn, machine) = machine();
    assert_eq!(back_end(), Ok("cpufreq"));
    {
        let _fast = at(Request::TURBO);
        assert_eq!((machine.limits(0), in_force()), ([4000, 4000], Some(Request::TURBO)));
        {
            let _half = at(percent(50));
            let _again = at(percent(50));
            assert_eq!(machine.limits(0), [2000, 2000]);
            // A request inside counts until the scope around it ends.
            assert_eq!(request(Request::SLOW), Decision::Requested);
            assert_eq!(machine.limits(0), [800, 800]);
        }
        assert_eq!((machine.limits(0), in_force()), ([4000, 4000], Some(Request::TURBO)));
    }
    assert_eq!((machine.limits(0), in_force()), (BEFORE, None));
}

#[test]
fn a_scope_that_a_panic_leaves_ends() {
    let (_turn, machine) = machine();
    let panicked = thread::spawn(|| {
        let _fast = at(Request::TURBO);
        std::panic::resume_unwind(Box::new(()));
    });
    assert!(panicked.join().is_err());
    assert_eq!(machine.limits(0), BEFORE);
}

#[test]
fn scopes_that_end_out_of_order_leave_nothing() {
    let (_turn, machine) = machine();
    let outer = at(Request::TURBO);
    let inner = at(percent(50));
    drop(outer);
    assert_eq!((machine.limits(0), in_force()), ([2000, 2000], Some(percent(50))));
    let last = at(Request::SLOW);
    drop(inner);
    assert_eq!(machine.limits(0), [800, 800]);
    drop(last);
    assert_eq!((machine.limits(0), in_force()), (BEFORE, None));
}

/// Scopes that are kept in one value end in the order of its fields, also when a panic drops it.
#[test]
fn a_panic_that_ends_scopes_out_of_order_leaves_nothing() {
    let (_turn, machine) = machine();
    let panicked = thread::spawn(|| {
        let _both = (at(Request::TURBO), at(percent(50)));
        std::panic::resume_unwind(Box::new(()));
    });
    assert!(panicked.join().is_err());
    assert_eq!(machine.limits(0), BEFORE);
}

/// What a scope has asked for ends with the thread, also if its own end never comes.
#[test]
fn requests_of_all_holders_end_with_the_thread() {
    let (_turn, machine) = machine();
    let ended = thread::spawn(|| {
        request(Request::SLOW);
        std::mem::forget(at(Request::TURBO));
        hold(Holder::Between(1), Request::BASE);
        hold(Holder::Section(1), percent(50));
        assert_eq!(machine.limits(0), [2000, 2000]);
        release(Holder::Section(1));
        assert_eq!(machine.limits(0), [4000, 4000]);
    });
    ended.join().expect("a thread");
    assert_eq!(machine.limits(0), BEFORE);
}

#[test]
fn a_scope_of_another_thread_is_not_ended() {
    let (_turn, machine) = machine();
    let scope = begin(Some(Request::TURBO)).expect("a scope");
    thread::spawn(move || finish(scope)).join().expect("a thread");
    assert_eq!(machine.limits(0), [4000, 4000]);
    finish(scope);
    finish(scope);
    assert_eq!((machine.limits(0), in_force()), (BEFORE, None));
}

/// The request of a scope that is in force already is one of its own.
#[test]
fn the_same_request_twice_ends_twice() {
    let (_turn, machine) = machine();
    hold(Holder::Section(1), Request::TURBO);
    assert_eq!(request(Request::TURBO), Decision::Requested);
    release(Holder::Section(1));
    assert_eq!((machine.limits(0), in_force()), ([4000, 4000], Some(Request::TURBO)));
    withdraw();
    assert_eq!(machine.limits(0), BEFORE);
}

#[test]
fn any_thread_may_ask_and_its_request_ends_with_it() {
    let (_turn, machine) = machine();
    let seen = thread::spawn(|| {
        assert_eq!(in_force(), None);
        assert_eq!(request(Request::BASE), Decision::Requested);
        machine.limits(0)
    });
    assert_eq!(seen.join().expect("a thread"), [3000, 3000]);
    assert_eq!(machine.limits(0), BEFORE);
}

/// Asks when the thread's variables are destroyed: the variable made first is the last one.
struct Late;

impl Drop for Late {
    fn drop(&mut self) {
        *LATE.lock().unwrap_or_else(PoisonError::into_inner) = Some(request(Request::TURBO));
    }
}

thread_local! {
    static LATER: Late = const { Late };
}

static LATE: Mutex<Option<Decision>> = Mutex::new(None);

#[test]
fn a_request_in_the_last_destructors_of_a_thread_is_refused() {
    let (_turn, machine) = machine();
    let ended = thread::spawn(|| {
        LATER.with(|_| ());
        assert_eq!(request(Request::SLOW), Decision::Requested);
    });
    ended.join().expect("a thread");
    assert_eq!(*LATE.lock().expect("what it got"), Some(Decision::Unavailable));
    assert_eq!(machine.limits(0), BEFORE);
}

#[test]
fn withdrawing_without_a_request_does_nothing() {
    let (_turn, machine) = machine();
    withdraw();
    assert_eq!(request(Request::SLOW), Decision::Requested);
    withdraw();
    withdraw();
    assert_eq!((machine.limits(0), in_force()), (BEFORE, None));
}

/// The made-up kernel reports 3950 MHz whatever is asked for.
#[test]
fn the_caller_learns_the_clock_that_the_kernel_reports() {
    let (_turn, _machine) = machine();
    let check = |wanted, wish, clock: Option<u64>, is_granted| {
        let clock = clock.map(KiloHertz::from_mhz);
        let expected = Answer { decision: Decision::Requested, clock, is_granted };
        assert_eq!(ask(wanted, wish), expected, "{wanted:?}");
    };
    check(Request::TURBO, Wish::BestEffort, None, false);
    check(Request::TURBO, Wish::Decided, Some(3950), true);
    check(Request::SLOW, Wish::Decided, Some(3950), false);
    let within = Duration::from_millis(1);
    check(Request::TURBO, Wish::Granted { within }, Some(3950), true);
    check(Request::SLOW, Wish::Granted { within }, Some(3950), false);
    withdraw();
}

#[test]
fn a_process_that_ends_leaves_the_machine_as_it_was() {
    if let Some(root) = child_root() {
        prepare_under(&root).expect("a back end");
        assert_eq!(request(Request::TURBO), Decision::Requested);
        // Ends while this thread and its request live.
        std::process::exit(17);
    }
    let machine = Machine::new(2);
    let before = machine.files();
    let test = "threads::a_process_that_ends_leaves_the_machine_as_it_was";
    let status = machine.command(test).status().expect("a process");
    assert_eq!(status.code(), Some(17));
    assert_eq!(machine.files(), before);
    assert_eq!(machine.root.list("/run/dimmer").expect("the directory"), ["lock"]);
}

#[test]
fn without_a_back_end_requests_do_nothing() {
    if let Some(root) = child_root() {
        let missing = prepare_under(&root).expect_err("no back end");
        let expected = "uclamp: no /proc/sys/kernel/sched_util_clamp_min; cpufreq: no policy under \
                        /sys/devices/system/cpu/cpufreq; group clamps: no control groups of version \
                        2 for this process; preferences: no policy under \
                        /sys/devices/system/cpu/cpufreq; dimmer_pstate: no /dev/dimmer_pstate: the \
                        module is not loaded; P-states: ";
        assert!(missing.why.starts_with(expected), "{missing}");
        for _ in 0..2 {
            let _fast = at(Request::TURBO);
            assert_eq!(request(Request::SLOW), Decision::Unavailable);
            assert_eq!(ask(Request::SLOW, Wish::Decided).decision, Decision::Unavailable);
            assert_eq!(in_force(), Some(Request::SLOW));
        }
        assert_eq!((in_force(), trouble()), (None, None));
        std::process::exit(17);
    }
    let machine = Machine::new(0);
    let test = "threads::without_a_back_end_requests_do_nothing";
    let status = machine.command(test).status().expect("a process");
    assert_eq!(status.code(), Some(17));
}

#[test]
fn trouble_is_reported_once() {
    if let Some(root) = child_root() {
        prepare_under(&root).expect("a back end");
        assert_eq!((request(Request::TURBO), trouble()), (Decision::Requested, None));
        let governor = format!("{}/scaling_governor", crate::machine::policy_folder(0));
        root.write(&governor, "performance").expect("a governor");
        for wanted in [Request::SLOW, Request::BASE, Request::SLOW] {
            assert_eq!(request(wanted), Decision::Unavailable);
        }
        assert!(trouble().is_some_and(|trouble| trouble.why.contains(&governor)));
        std::process::exit(17);
    }
    let machine = Machine::new(1);
    let mut command = machine.command("threads::trouble_is_reported_once");
    let output = command.stderr(std::process::Stdio::piped()).output().expect("a process");
    assert_eq!(output.status.code(), Some(17));
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(printed.matches("dimmer: requests of clocks by files").count(), 1, "{printed}");
    assert_eq!(machine.limits(0), BEFORE);
}
