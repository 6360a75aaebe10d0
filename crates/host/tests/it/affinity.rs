//! Pinning threads, and the errors when that is impossible.

use std::thread;

use dimmer_host::affinity;
use dimmer_host::root::Root;
use dimmer_processor::units::CpuId;

use crate::fixture::Machine;

/// A CPU number larger than any x86 kernel is built for.
const NOWHERE: CpuId = CpuId::new(100_000);

#[test]
fn pins_until_dropped() {
    let moved = thread::spawn(|| {
        let before = affinity::allowed().expect("a list");
        let last = *before.last().expect("one at least");
        let pinned = affinity::pin(&Root::live(), last).expect("pinned");
        assert_eq!(affinity::allowed().expect("a list"), [last]);
        drop(pinned);
        assert_eq!(affinity::allowed().expect("a list"), before);
    });
    moved.join().expect("no panic");
}

#[track_caller]
fn check(machine: &str, expected: &str) {
    let machine = Machine::new(machine);
    let error = affinity::check(&machine.root, NOWHERE).expect_err("a refusal");
    let message = error.to_string();
    let (message, allowed) = message.split_once(", allowed are ").expect("what is allowed");
    assert_eq!(message, expected);
    assert!(!allowed.is_empty());
}

#[test]
fn lists_the_allowed_where_a_thread_does_not_exist() {
    check("//- /sys/devices/system/cpu/present\n0-1\n", "cpu 100000 does not exist");
}

#[test]
fn refuses_the_same_where_nothing_is_known() {
    check("", "cpu 100000 is not allowed for this process");
}

#[test]
fn lists_the_allowed_where_a_thread_is_offline() {
    // The highest number on a made-up machine; no test machine has it.
    let machine = Machine::new(
        "//- /sys/devices/system/cpu/present\n0-8191\n//- /sys/devices/system/cpu/online\n0-1\n",
    );
    let error = affinity::check(&machine.root, CpuId::new(8191)).expect_err("a refusal");
    assert!(error.to_string().starts_with("cpu 8191 is offline, allowed are "), "{error}");
}
