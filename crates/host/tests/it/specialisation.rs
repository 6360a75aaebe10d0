//! Core specialisation in the kernel: the module's files, and which CPUs can be wide.

use dimmer_host::root::{RootError, format_cpu_list};
use dimmer_host::specialisation::sets::{Sets, SetsError};
use dimmer_host::specialisation::{Counts, Module};

use crate::fixture::Machine;

const FILES: &str = "\
//- /sys/kernel/dimmer_xcr0/narrow
2-3
//- /sys/kernel/dimmer_xcr0/wide
0-1
//- /sys/kernel/dimmer_xcr0/{faults,moves,returns,ended_by_calls,ended_by_time,allowed,limits}
7
//- /sys/kernel/dimmer_xcr0/{without_scheduler,switches,missed}
0
//- /sys/kernel/dimmer_xcr0/move_ns
18446744073709551615
//- /sys/kernel/sched_ext/state
enabled
//- /sys/kernel/sched_ext/root/ops
dimmer
";

#[test]
fn reads_the_files_of_the_module() {
    let machine = Machine::new(FILES);
    let module = Module::read(&machine.root).expect("readable").expect("loaded");
    assert_eq!([&module.narrow, &module.wide].map(|cpus| format_cpu_list(cpus)), ["2-3", "0-1"]);
    assert!(module.is_scheduled);
    let counts = Counts {
        faults: 7,
        moves: 7,
        move_ns: u64::MAX,
        returns: 7,
        ended_by_calls: 7,
        ended_by_time: 7,
        allowed: 7,
        limits: 7,
        ..Counts::default()
    };
    assert_eq!(module.counts, counts);
    machine.root.write("/sys/kernel/sched_ext/state", "disabled").expect("written");
    assert!(!Module::read(&machine.root).expect("readable").expect("loaded").is_scheduled);
}

#[test]
fn no_module_is_none_and_a_count_that_is_none_is_an_error() {
    assert_eq!(Module::read(&Machine::new("").root).expect("readable"), None);
    let machine = Machine::new(&FILES.replace("\n7\n", "\n-7\n"));
    let error = Module::read(&machine.root).expect_err("no count");
    assert!(matches!(error, RootError::Malformed { .. }), "{error}");
    assert!(error.to_string().contains("faults holds `-7`, expected a decimal number"), "{error}");
}

/// Four CPUs on two cores in two nodes; CPU 4 is offline.
const CPUS: &str = "\
//- /sys/devices/system/cpu/present
0-4
//- /sys/devices/system/cpu/online
0-3
//- /sys/devices/system/cpu/cpu{0,1}/topology/core_cpus_list
0-1
//- /sys/devices/system/cpu/cpu{2,3}/topology/core_cpus_list
2-3
//- /sys/devices/system/node/node0/cpulist
0-1
//- /sys/devices/system/node/node1/cpulist
2-3
";

#[test]
fn sets_are_whole_cores_of_cpus_that_are_online() {
    let machine = Machine::new(CPUS);
    let check = |wide: &str, expected: &str| {
        let found = match Sets::read(&machine.root, wide, false) {
            Ok(sets) => format!("{} {:?}", format_cpu_list(&sets.narrow), sets.nodes_without_wide),
            Err(error) => error.to_string(),
        };
        assert_eq!(found, expected);
    };
    check("0-1", "2-3 [NodeId(1)]");
    check("", "no CPU is named: at least one has to be wide, of 0-3");
    check("0-3", "all CPUs that are online would be wide (0-3): leave out at least one core");
    check("4", "CPU 4 is offline; online are 0-3");
    check("0-1,5", "CPU 5 does not exist; online are 0-3");
    check("0-", "it is no list of CPUs as in `0-3,8`");
    check(
        "1-3",
        "CPUs 0-1 are one core, which wide code slows down as a whole: name all of them or none; \
         with whole cores it is 0-3",
    );
}

#[test]
fn affinity_knows_more_cpus_than_the_scheduler() {
    let cpus = "//- /sys/devices/system/cpu/{present,online}\n0-299\n";
    let machine = Machine::new(cpus);
    let refused = Sets::read(&machine.root, "255-257", false).expect_err("beyond it");
    assert!(matches!(refused, SetsError::BeyondScheduler { .. }), "{refused}");
    let told = "the scheduler knows CPUs 0-255, not CPU 256; --affinity knows all";
    assert_eq!(refused.to_string(), told);
    assert!(Sets::read(&machine.root, "255", false).is_ok());
    assert!(Sets::read(&machine.root, "255-257", true).is_ok());
}

#[test]
fn a_machine_without_a_list_of_cpus_has_no_sets() {
    let refused = Sets::read(&Machine::new("").root, "0", false).expect_err("no CPUs");
    assert!(matches!(refused, SetsError::Topology(_)), "{refused}");
}
