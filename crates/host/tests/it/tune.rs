//! Made-up machines that are set up for measurements, and as before afterwards.

use dimmer_host::journal::{self, Journal, OfLive};
use dimmer_host::root::Root;
use dimmer_host::tune::{Plan, TuneError, WAKE_UP};

use crate::fixture::Machine;

const CPUS: &str = "/sys/devices/system/cpu";

/// A policy with all of `intel_pstate`'s files.
const INTEL: &str = "//- /dev/cpu_dma_latency\n\
    //- /sys/devices/system/cpu/intel_pstate/no_turbo\n0\n\
    //- /sys/devices/system/cpu/intel_pstate/max_perf_pct\n100\n\
    //- /sys/devices/system/cpu/intel_pstate/min_perf_pct\n20\n\
    //- /sys/devices/system/cpu/cpufreq/policy0/affected_cpus\n0 1\n\
    //- /sys/devices/system/cpu/cpufreq/policy0/base_frequency\n3400000\n\
    //- /sys/devices/system/cpu/cpufreq/policy0/cpuinfo_min_freq\n800000\n\
    //- /sys/devices/system/cpu/cpufreq/policy0/cpuinfo_max_freq\n3900000\n\
    //- /sys/devices/system/cpu/cpufreq/policy0/scaling_min_freq\n800000\n\
    //- /sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq\n3900000\n\
    //- /sys/devices/system/cpu/cpufreq/policy0/scaling_governor\npowersave\n\
    //- /sys/devices/system/cpu/cpufreq/policy0/scaling_available_governors\n\
    performance powersave\n\
    //- /sys/devices/system/cpu/cpufreq/policy0/energy_performance_preference\n\
    balance_performance\n\
    //- /sys/devices/system/cpu/cpufreq/policy0/energy_performance_available_preferences\n\
    default performance balance_performance power\n";

/// What is planned: the end of each path, before and after.
fn planned(plan: &Plan) -> Vec<String> {
    let name = |path: &str| path.trim_start_matches(CPUS).trim_start_matches('/').to_owned();
    let changes = plan.changes.iter();
    changes.map(|one| format!("{}: {} -> {}", name(&one.path), one.before, one.after)).collect()
}

fn contents(root: &Root, plan: &Plan) -> Vec<String> {
    plan.changes.iter().map(|change| root.text(&change.path).unwrap()).collect()
}

#[test]
fn fixes_the_clock_by_all_that_there_is_and_undoes_it() {
    let machine = Machine::new(INTEL);
    let root = &machine.root;
    let plan = Plan::new(root);
    assert_eq!(
        planned(&plan),
        [
            "intel_pstate/no_turbo: 0 -> 1",
            "cpufreq/policy0/energy_performance_preference: balance_performance -> performance",
            "cpufreq/policy0/scaling_governor: powersave -> performance",
            "cpufreq/policy0/scaling_min_freq: 800000 -> 3400000",
            "cpufreq/policy0/scaling_max_freq: 3900000 -> 3400000",
            "intel_pstate/min_perf_pct: 20 -> 100",
        ]
    );
    assert!(plan.is_awake && plan.missing.is_empty(), "{plan:?}");
    let before = contents(root, &plan);
    let (mut journal, _) = Journal::open(root).unwrap();
    let tuned = plan.apply(&mut journal).unwrap();
    assert_eq!(tuned.refused, [""; 0]);
    let wanted: Vec<String> = plan.changes.iter().map(|change| change.after.clone()).collect();
    assert_eq!(contents(root, &plan), wanted);
    let again = Plan::new(root);
    assert_eq!(planned(&again), [""; 0]);
    assert!(journal.undo().unwrap().is_complete());
    assert_eq!(contents(root, &plan), before);
}

#[test]
fn a_killed_set_up_is_undone() {
    let machine = Machine::new(INTEL);
    let root = &machine.root;
    let plan = Plan::new(root);
    let before = contents(root, &plan);
    let (mut journal, _) = Journal::open(root).unwrap();
    plan.apply(&mut journal).unwrap();
    std::mem::forget(journal);
    assert_ne!(contents(root, &plan), before);
    let report = journal::restore(root, OfLive::Restore).unwrap();
    assert!(report.is_complete() && report.left.is_empty(), "{report:?}");
    assert_eq!(contents(root, &plan), before);
}

/// The upper limit rises first, so that the lower one never passes it.
#[test]
fn the_limits_are_written_in_an_order_that_the_kernel_takes() {
    let limit = format!("{CPUS}/cpufreq/policy0/scaling_max_freq\n");
    let capped = INTEL.replace(&format!("{limit}3900000"), &format!("{limit}2000000"));
    let plan = Plan::new(&Machine::new(&capped).root);
    assert_eq!(
        planned(&plan)[3..5],
        [
            "cpufreq/policy0/scaling_max_freq: 2000000 -> 3400000",
            "cpufreq/policy0/scaling_min_freq: 800000 -> 3400000",
        ]
    );
}

/// A driver's switch of turbo writes the upper limits, which are the user's at the end again; also
/// one that is at the base clock already.
#[test]
fn limits_that_the_switch_of_turbo_writes_come_back() {
    let limit = format!("{CPUS}/cpufreq/policy0/scaling_max_freq");
    for user in ["2400000", "3400000", "3900000"] {
        let machine = INTEL.replace(&format!("{limit}\n3900000"), &format!("{limit}\n{user}"));
        let machine = machine.replace("intel_pstate/no_turbo\n0", "cpufreq/boost\n1");
        let machine = Machine::new(&machine);
        let root = &machine.root;
        let (mut journal, _) = Journal::open(root).unwrap();
        let plan = Plan::new(root);
        assert!(plan.changes.first().unwrap().path.ends_with("/boost"), "{plan:?}");
        plan.apply(&mut journal).unwrap();
        assert_eq!(root.text(&limit).unwrap(), "3400000");
        root.write(&limit, "3900000").unwrap();
        assert!(journal.undo().unwrap().is_complete());
        assert_eq!(root.text(&limit).unwrap(), user);
    }
}

#[track_caller]
fn lacks(machine: &str, expected: &[&str]) -> Plan {
    let machine = Machine::new(machine);
    let plan = Plan::new(&machine.root);
    let missing: Vec<&str> = plan.missing.iter().map(|one| one.what.as_str()).collect();
    assert_eq!(missing, expected, "{plan:?}");
    plan
}

#[test]
fn names_what_the_machine_lacks_once() {
    let policies = "//- /sys/devices/system/cpu/cpufreq/policy{0,1}/affected_cpus\n0\n\
         //- /sys/devices/system/cpu/cpufreq/policy{0,1}/scaling_governor\nondemand\n";
    let all = ["turbo switch", "a governor that keeps the clock", "limits at the base clock"];
    lacks(&format!("{policies}//- {WAKE_UP}\n"), &all);
    let plan = lacks(
        "//- /proc/stat\n",
        &["turbo switch", "governors and limits of clocks (cpufreq)", "cores that stay awake"],
    );
    let machine = Machine::new("//- /proc/stat\n");
    let (mut journal, _) = Journal::open(&machine.root).unwrap();
    match plan.apply(&mut journal) {
        Err(TuneError::Unavailable(missing)) => {
            assert!(missing.why.contains("no /dev/cpu_dma_latency"), "{missing}");
        }
        other => panic!("expected a refusal, found {other:?}"),
    }
    assert!(!machine.root.exists("/run/dimmer"), "nothing is written for a refusal");
}

#[test]
fn files_that_may_not_be_written_are_left_out() {
    let closed = INTEL.replace("scaling_governor\n", "scaling_governor mode=0444\n");
    let plan = lacks(&closed, &["settings of clocks"]);
    assert!(plan.missing[0].why.ends_with("policy0/scaling_governor"), "{plan:?}");
    assert!(planned(&plan).iter().all(|line| !line.contains("scaling_governor")));
}
