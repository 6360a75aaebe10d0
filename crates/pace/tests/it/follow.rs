//! Requests follow threads that move, on a machine whose even and odd CPUs have a clock each.

use std::process::Stdio;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use dimmer_host::affinity;
use dimmer_host::root::Root;
use dimmer_pace::{
    MoveError, Request, dedicate_fast, domain, move_to, on_fast_core, prepare_under, register,
    registered, request, withdraw,
};
use dimmer_processor::units::CpuId;

use crate::machine::{BEFORE, Machine, child_root};

const FAST: [u64; 2] = [4000, 4000];
const SLOW: [u64; 2] = [800, 800];

/// Runs this test in a process of its own on a machine of two policies: `body` gets the machine's
/// directory, and two CPUs, one of each policy.
fn check(test: &str, body: impl FnOnce(&Limits, [CpuId; 2])) {
    if let Some(root) = child_root() {
        prepare_under(&root).expect("a back end");
        let allowed = affinity::allowed().expect("CPUs");
        let of = |rest| allowed.iter().copied().find(|cpu| cpu.index() % 2 == rest);
        body(&Limits(root), [0, 1].map(|rest| of(rest).expect("a CPU")));
        std::process::exit(17);
    }
    let allowed = affinity::allowed().expect("CPUs");
    if [0, 1].iter().any(|rest| allowed.iter().all(|cpu| cpu.index() % 2 != *rest)) {
        println!("SKIPPED: {test}: needs an even CPU and an odd one");
        return;
    }
    let machine = Machine::new(2);
    let before = machine.files();
    let output = machine.command(test).stderr(Stdio::piped()).output().expect("a process");
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(17), "{printed}");
    assert_eq!(machine.files(), before);
}

/// The clocks in force on the machine of the process.
struct Limits(Root);

impl Limits {
    fn of(&self, policy: u32) -> Option<[u64; 2]> {
        let folder = crate::machine::policy_folder(policy);
        let khz = |name| self.0.integer(&format!("{folder}/{name}")).ok();
        let limits = [khz("scaling_min_freq")?, khz("scaling_max_freq")?];
        Some(limits.map(|khz| khz.unsigned_abs() / 1000))
    }

    /// Waits until both policies have these clocks: without a limit, so that load decides nothing.
    fn await_both(&self, wanted: [[u64; 2]; 2]) {
        while [0, 1].map(|policy| self.of(policy)) != wanted.map(Some) {
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[track_caller]
    fn are(&self, wanted: [[u64; 2]; 2]) {
        assert_eq!([0, 1].map(|policy| self.of(policy)), wanted.map(Some));
    }
}

/// A thread that requests the slowest clock on the CPU, and waits until the result is dropped.
fn slow_thread(cpu: CpuId) -> (u32, Sender<()>, thread::JoinHandle<()>) {
    let (tell, told) = channel();
    let (end, ended): (_, Receiver<()>) = channel();
    let thread = thread::spawn(move || {
        affinity::move_thread(None, cpu).expect("a CPU to be on");
        request(Request::SLOW);
        tell.send(register()).expect("the test");
        while ended.try_recv() != Err(std::sync::mpsc::TryRecvError::Disconnected) {
            thread::yield_now();
        }
    });
    (told.recv().expect("its number"), end, thread)
}

/// As the kernel's scheduler moves it, or another program.
#[test]
fn a_request_follows_a_thread_that_others_move_and_ends_with_it() {
    let test = "follow::a_request_follows_a_thread_that_others_move_and_ends_with_it";
    check(test, |limits, [even, odd]| {
        let (number, end, thread) = slow_thread(even);
        limits.are([SLOW, BEFORE]);
        for _ in 0..3 {
            affinity::allow_thread(Some(number), &[odd]).expect("moved");
            limits.await_both([BEFORE, SLOW]);
            affinity::allow_thread(Some(number), &[even]).expect("moved");
            limits.await_both([SLOW, BEFORE]);
        }
        drop(end);
        thread.join().expect("a thread");
        limits.are([BEFORE, BEFORE]);
    });
}

#[test]
fn a_registered_thread_takes_its_request_along_at_once() {
    let test = "follow::a_registered_thread_takes_its_request_along_at_once";
    check(test, |limits, [even, odd]| {
        let (number, end, thread) = slow_thread(even);
        move_to(number, odd).expect("moved");
        limits.are([BEFORE, SLOW]);
        let found = registered();
        let found = found.iter().find(|one| one.thread == number).expect("registered");
        assert_eq!(found.cpu, odd);
        // The calling thread itself, whose request is faster.
        affinity::move_thread(None, even).expect("a CPU");
        request(Request::TURBO);
        limits.are([FAST, SLOW]);
        move_to(register(), odd).expect("moved");
        limits.are([BEFORE, FAST]);
        withdraw();
        limits.are([BEFORE, SLOW]);
        drop(end);
        thread.join().expect("a thread");
        limits.are([BEFORE, BEFORE]);
        assert!(!registered().iter().any(|one| one.thread == number));
    });
}

#[test]
fn a_visit_to_a_fast_core_takes_the_request_along_and_back() {
    let test = "follow::a_visit_to_a_fast_core_takes_the_request_along_and_back";
    check(test, |limits, [even, odd]| {
        let fast = dedicate_fast(&[odd]).expect("dedicated");
        affinity::move_thread(None, even).expect("a CPU");
        request(Request::SLOW);
        limits.are([SLOW, FAST]);
        {
            let _there = on_fast_core().expect("there");
            limits.are([BEFORE, FAST]);
        }
        limits.are([SLOW, FAST]);
        drop(fast);
        withdraw();
        limits.are([BEFORE, BEFORE]);
        let (_, cpus) = domain(odd).expect("a domain");
        assert!(cpus.contains(&odd) && !cpus.contains(&even));
    });
}

#[test]
fn a_thread_that_is_not_registered_is_refused_and_stays() {
    let own = register();
    let allowed = affinity::allowed().expect("CPUs");
    let first = *allowed.first().expect("a CPU");
    // A thread of this process that has made no request; one that has ended; no thread at all.
    let (tell, told) = channel();
    let (end, ended) = channel::<()>();
    let other = thread::spawn(move || {
        tell.send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()).expect("sent");
        let _ = ended.recv();
        affinity::allowed().expect("CPUs")
    });
    let unregistered = told.recv().expect("a number");
    let gone = thread::spawn(register).join().expect("a thread");
    for number in [unregistered, gone, 0, u32::MAX] {
        match move_to(number, first) {
            Err(MoveError::NotRegistered { thread, registered }) => {
                assert_eq!(thread, number);
                assert!(registered.contains(&own));
            }
            other => panic!("{other:?}"),
        }
    }
    let message = move_to(0, first).expect_err("no thread").to_string();
    assert!(
        message.starts_with("thread 0 is not registered: it must call register()"),
        "{message}"
    );
    drop(end);
    assert_eq!(other.join().expect("a thread"), allowed);
    // A CPU that does not exist.
    let message = move_to(own, CpuId::new(100_000)).expect_err("no such CPU").to_string();
    assert!(message.starts_with("cpu 100000 does not exist"), "{message}");
    assert_eq!(affinity::allowed().expect("CPUs"), allowed);
}
