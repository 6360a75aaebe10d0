//! Switches turbo off by each of the switches, and back on.

use dimmer_host::journal::Journal;
use dimmer_host::root::Root;
use dimmer_host::turbo::{Turbo, TurboError};

use crate::fixture::Machine;

#[track_caller]
fn check(machine: &str, files: &[(&str, &str)]) {
    let machine = Machine::new(machine);
    let root = &machine.root;
    let content = |root: &Root| -> Vec<String> {
        files.iter().map(|(file, _)| root.text(file).expect("a file")).collect()
    };
    let before = content(root);
    let switch = Turbo::find(root).expect("a switch");
    assert!(switch.is_on(root).expect("readable"));

    let (mut journal, _) = Journal::open(root).expect("a journal");
    Turbo::off(&mut journal).expect("off");
    let wanted: Vec<&str> = files.iter().map(|(_, off)| *off).collect();
    assert_eq!(content(root), wanted);
    assert!(!switch.is_on(root).expect("readable"));

    drop(journal);
    assert_eq!(content(root), before);
}

#[test]
fn uses_the_switch_of_intel_pstate_first() {
    check(
        "//- /sys/devices/system/cpu/intel_pstate/no_turbo\n0\n\
         //- /sys/devices/system/cpu/cpufreq/boost\n1\n",
        &[
            ("/sys/devices/system/cpu/intel_pstate/no_turbo", "1"),
            ("/sys/devices/system/cpu/cpufreq/boost", "1"),
        ],
    );
}

#[test]
fn uses_the_switch_for_all_policies() {
    check(
        "//- /sys/devices/system/cpu/cpufreq/boost\n1\n",
        &[("/sys/devices/system/cpu/cpufreq/boost", "0")],
    );
}

#[test]
fn uses_the_switch_of_each_policy() {
    check(
        "//- /sys/devices/system/cpu/cpufreq/policy0/boost\n1\n\
         //- /sys/devices/system/cpu/cpufreq/policy1/boost\n0\n\
         //- /sys/devices/system/cpu/cpufreq/policy2/boost\n1\n",
        &[
            ("/sys/devices/system/cpu/cpufreq/policy0/boost", "0"),
            ("/sys/devices/system/cpu/cpufreq/policy1/boost", "0"),
            ("/sys/devices/system/cpu/cpufreq/policy2/boost", "0"),
        ],
    );
}

#[track_caller]
fn refuses(machine: &str, why: &str) {
    let machine = Machine::new(machine);
    let (mut journal, _) = Journal::open(&machine.root).expect("a journal");
    match Turbo::off(&mut journal) {
        Err(TurboError::Unavailable(missing)) => assert!(missing.why.contains(why), "{missing}"),
        other => panic!("expected a refusal, found {other:?}"),
    }
    assert!(!machine.root.exists("/run/dimmer"), "nothing is written for a refusal");
}

#[test]
fn says_that_there_is_no_switch() {
    refuses("//- /proc/stat\n", "neither");
}

#[test]
fn says_that_the_switch_may_not_be_thrown() {
    refuses(
        "//- /sys/devices/system/cpu/intel_pstate/no_turbo mode=0444\n0\n",
        "no permission to write",
    );
}

/// As the kernel does with drivers that have a `boost`.
#[test]
fn limits_that_the_switch_of_a_driver_writes_come_back() {
    let limit = "/sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq";
    for (switch, is_given_back) in [("cpufreq/boost\n1", true), ("cpufreq/boost\n0", false)] {
        let machine =
            Machine::new(&format!("//- /sys/devices/system/cpu/{switch}\n//- {limit}\n2400000\n"));
        let root = &machine.root;
        let (mut journal, _) = Journal::open(root).expect("a journal");
        Turbo::off(&mut journal).expect("off");
        root.write(limit, "3000000").expect("written");
        assert!(journal.undo().expect("undone").is_complete());
        let found = root.text(limit).expect("the limit");
        assert_eq!(found, if is_given_back { "2400000" } else { "3000000" }, "{switch}");
    }
}

/// As the kernel does with `no_turbo`, which it does not undo when turbo is switched on again.
#[test]
fn a_lower_limit_that_intel_pstate_lowers_with_the_switch_comes_back() {
    let least = "/sys/devices/system/cpu/intel_pstate/min_perf_pct";
    let switch = "/sys/devices/system/cpu/intel_pstate/no_turbo";
    let machine = Machine::new(&format!("//- {switch}\n0\n//- {least}\n100\n"));
    let root = &machine.root;
    let (mut journal, _) = Journal::open(root).expect("a journal");
    Turbo::off(&mut journal).expect("off");
    root.write(least, "81").expect("written");
    assert!(journal.undo().expect("undone").is_complete());
    let found = [least, switch].map(|file| root.text(file).expect("a file"));
    assert_eq!(found, ["100", "0"]);
}
