//! Operating points of made-up machines: found, requested, refused, and undone.

use std::collections::BTreeMap;

use dimmer_host::cpuid::Cpuid;
use dimmer_host::journal::{self, Journal, OfLive};
use dimmer_host::operating_points::OperatingPoints;
use dimmer_host::pstate::SetError;
use dimmer_host::root::Root;
use dimmer_processor::units::CpuId;

use crate::fixture::Machine;

const POLICY: &str = "/sys/devices/system/cpu/cpufreq/policy";

/// Two cores of two CPUs, each CPU with its own policy from 0.8 to 3.9 GHz.
fn machine(governors: &str, table: &str) -> Machine {
    let mut text = "//- /sys/devices/system/cpu/{present,online}\n0-3\n\
         //- /sys/devices/system/cpu/cpu{0,1}/topology/core_cpus_list\n0-1\n\
         //- /sys/devices/system/cpu/cpu{2,3}/topology/core_cpus_list\n2-3\n"
        .to_owned();
    for cpu in 0..4 {
        let mut add = |name: &str, content: &str| {
            text += &format!("//- {POLICY}{cpu}/{name}\n{content}\n");
        };
        add("affected_cpus", &cpu.to_string());
        add("cpuinfo_min_freq", "800000");
        add("cpuinfo_max_freq", "3900000");
        add("scaling_min_freq", "800000");
        add("scaling_max_freq", "3900000");
        add("scaling_governor", "schedutil");
        add("scaling_setspeed", "<unsupported>");
        add("scaling_available_governors", governors);
        if !table.is_empty() {
            add("scaling_available_frequencies", table);
        }
    }
    Machine::new(&text)
}

/// All files of all policies.
fn files(root: &Root) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    for cpu in 0..4 {
        for name in root.list(&format!("{POLICY}{cpu}")).unwrap() {
            let path = format!("{POLICY}{cpu}/{name}");
            files.insert(path.clone(), root.text(&path).unwrap());
        }
    }
    files
}

fn open(journal: &mut Journal, most: usize) -> Result<OperatingPoints, SetError> {
    let bare = Cpuid::parse("0x0 0x0: eax=0x0 ebx=0x0 ecx=0x0 edx=0x0\n").unwrap();
    OperatingPoints::open(journal, &bare, CpuId::new(2), most)
}

fn journal(machine: &Machine) -> Journal {
    Journal::open(&machine.root).unwrap().0
}

fn mhz(points: &OperatingPoints) -> Vec<u64> {
    points.clocks().iter().map(|clock| clock.khz() / 1000).collect()
}

#[test]
fn requests_the_speed_of_the_governor_userspace() {
    let machine = machine("schedutil userspace", "3900000 3400000 2000000 800000");
    let before = files(&machine.root);
    let mut journal = journal(&machine);
    let mut points = open(&mut journal, 8).unwrap();
    assert_eq!(mhz(&points), [800, 2000, 3400, 3900]);
    assert_eq!(points.by(), "scaling_setspeed");
    for (index, khz) in ["800000", "2000000", "3400000", "3900000"].into_iter().enumerate().rev() {
        points.request(index).unwrap();
        assert_eq!(machine.root.text(&format!("{POLICY}2/scaling_setspeed")).unwrap(), khz);
    }
    let held = files(&machine.root);
    assert_eq!(held[&format!("{POLICY}2/scaling_governor")], "userspace");
    assert_eq!(held[&format!("{POLICY}3/scaling_max_freq")], "800000", "the sibling");
    assert_eq!(held[&format!("{POLICY}0/scaling_max_freq")], "3900000", "another core");
    assert!(journal.undo().unwrap().is_complete());
    assert_eq!(files(&machine.root), before);
}

/// As `acpi-cpufreq` has it on AMD's processors: clocks with turbo are apart, and within the limits
/// only while turbo is on.
#[test]
fn clocks_with_turbo_that_are_listed_apart_are_points_too() {
    let machine = machine("schedutil userspace", "3400000 800000");
    let path = |name: &str| machine.root.path(&format!("{POLICY}2/{name}"));
    std::fs::write(path("scaling_boost_frequencies"), "3900000 4100000\n").unwrap();
    let points = open(&mut journal(&machine), 8).unwrap();
    assert_eq!(mhz(&points), [800, 3400, 3900]);
    std::fs::write(path("scaling_max_freq"), "3400000\n").unwrap();
    assert_eq!(mhz(&open(&mut journal(&machine), 8).unwrap()), [800, 3400]);
}

#[test]
fn requests_both_limits_where_there_is_no_such_governor() {
    let machine = machine("performance powersave", "");
    let before = files(&machine.root);
    let mut journal = journal(&machine);
    let mut points = open(&mut journal, 3).unwrap();
    assert_eq!(mhz(&points), [800, 2300, 3900]);
    for (index, khz) in [(2, "3900000"), (0, "800000"), (1, "2300000"), (1, "2300000")] {
        points.request(index).unwrap();
        for name in ["scaling_min_freq", "scaling_max_freq"] {
            assert_eq!(machine.root.text(&format!("{POLICY}2/{name}")).unwrap(), khz, "{name}");
        }
    }
    drop(journal);
    assert_eq!(files(&machine.root), before);
}

/// As after SIGKILL: the journal stays, with all that may have been written since.
#[test]
fn what_a_killed_process_has_requested_is_undone_whichever_it_was() {
    for last in 0..3 {
        let machine = machine("schedutil userspace", "3900000 2000000 800000");
        let before = files(&machine.root);
        let mut journal = journal(&machine);
        open(&mut journal, 8).unwrap().request(last).unwrap();
        std::mem::forget(journal);
        assert_ne!(files(&machine.root), before);
        let report = journal::restore(&machine.root, OfLive::Restore).unwrap();
        assert!(report.is_complete() && report.left.is_empty(), "{report:?}");
        assert_eq!(files(&machine.root), before, "point {last}");
    }
}

#[track_caller]
fn refuses(machine: &Machine, expected: [&str; 3]) {
    let error = open(&mut journal(machine), 8).unwrap_err();
    let SetError::Unavailable(missing) = &error else { panic!("{error:?}") };
    let text = format!("{missing}");
    for part in expected {
        assert!(text.contains(part), "no `{part}` in: {text}");
    }
    assert!(!machine.root.exists("/run/dimmer"), "nothing is written for a refusal");
}

#[test]
fn names_what_is_missing_and_what_would_help() {
    let bare = Machine::new("//- /sys/devices/system/cpu/{present,online}\n0-3\n");
    refuses(&bare, ["no policy under", "P-states: the registers of", "bare metal"]);
    let one = machine("schedutil userspace", "2000000");
    refuses(&one, ["policy2 allows one clock alone", "800000 to 3900000 kHz", "set scaling_min"]);
}

/// A made-up machine may have any number there.
#[test]
fn limits_beyond_all_processors_are_no_reason_to_end() {
    let machine = machine("performance powersave", "");
    let path = |name: &str| machine.root.path(&format!("{POLICY}2/{name}"));
    for name in ["cpuinfo_max_freq", "scaling_max_freq"] {
        std::fs::write(path(name), "9223372036854775807\n").unwrap();
    }
    let points = open(&mut journal(&machine), 3).unwrap();
    assert_eq!(mhz(&points), [800, 4_611_686_018_427_700, 9_223_372_036_854_700]);
}
