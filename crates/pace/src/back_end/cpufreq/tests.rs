//! Requests on made-up machines: what is in the files, also if others write them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use dimmer_host::journal::DIRECTORY;
use dimmer_processor::units::CpuId;
use tempfile::TempDir;

use super::*;
use crate::Request;
use crate::back_end::{BackEnd as _, Refused, Thread, lost};

/// Two policies of two CPUs each, from 800 to 4000 MHz, with the base at 3000 MHz.
struct Machine {
    directory: TempDir,
    root: Root,
}

impl Machine {
    fn new(governor: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let machine = Self { root: Root::new(directory.path()), directory };
        for (policy, cpus) in [(0, "0 1"), (2, "2 3")] {
            for (name, content) in [
                ("affected_cpus", cpus),
                ("base_frequency", "3000000"),
                ("cpuinfo_max_freq", "4000000"),
                ("cpuinfo_min_freq", "800000"),
                ("scaling_cur_freq", "1500000"),
                ("scaling_governor", governor),
                ("scaling_max_freq", "3600000"),
                ("scaling_min_freq", "1000000"),
                ("scaling_setspeed", "<unsupported>"),
            ] {
                machine.put(policy, name, content);
            }
        }
        machine
    }

    fn path(policy: u32, name: &str) -> String {
        format!("{POLICIES}/policy{policy}/{name}")
    }

    fn put(&self, policy: u32, name: &str, content: &str) {
        let path = self.root.path(&Self::path(policy, name));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{content}\n")).unwrap();
    }

    fn get(&self, policy: u32, name: &str) -> String {
        self.root.text(&Self::path(policy, name)).unwrap()
    }

    /// Both limits of a policy (MHz).
    fn limits(&self, policy: u32) -> [u64; 2] {
        ["scaling_min_freq", "scaling_max_freq"]
            .map(|name| self.get(policy, name).parse::<u64>().unwrap() / 1000)
    }

    fn open(&self) -> Cores<Files> {
        open(&self.root).unwrap()
    }
}

const BEFORE: [u64; 2] = [1000, 3600];

fn on(id: u32, cpu: u32) -> Thread {
    Thread { id, cpu: CpuId::new(cpu) }
}

fn percent(percent: u8) -> Option<Request> {
    Some(Request::percent(percent).unwrap())
}

#[test]
fn both_limits_are_the_clock_and_come_back() {
    let machine = Machine::new("powersave");
    let back_end = machine.open();
    for (request, mhz) in [
        (Some(Request::TURBO), 4000),
        (Some(Request::BASE), 3000),
        (Some(Request::SLOW), 800),
        (percent(50), 2000),
        (percent(1), 800),
        (percent(100), 4000),
    ] {
        back_end.request(on(7, 1), request).unwrap();
        assert_eq!((machine.limits(0), machine.limits(2)), ([mhz, mhz], BEFORE), "{request:?}");
    }
    back_end.request(on(7, 1), None).unwrap();
    assert_eq!(machine.limits(0), BEFORE);
}

/// The kernel refuses a lower limit above the upper one.
#[test]
fn the_lower_limit_never_passes_the_upper_one() {
    let machine = Machine::new("powersave");
    let back_end = machine.open();
    for request in [percent(90), percent(50), percent(60), Some(Request::TURBO), None] {
        back_end.request(on(7, 0), request).unwrap();
    }
    // Values that are written again need no second record, which keeps journals short.
    let journal = machine.root.list(DIRECTORY).unwrap();
    let journal = journal.iter().find(|name| name.starts_with("journal.")).unwrap();
    let text = machine.root.text(&format!("{DIRECTORY}/{journal}")).unwrap();
    let written = text.lines().map(|line| {
        let fields: Vec<&str> = line.split('\t').collect();
        (&fields[1][fields[1].len() - 8..fields[1].len() - 5], fields[3])
    });
    let mut limits = [1_000_000, 3_600_000];
    for (which, khz) in written {
        limits[usize::from(which == "max")] = khz.parse().unwrap();
        assert!(limits[0] <= limits[1], "{text}");
    }
    assert_eq!(limits, [1_000_000, 3_600_000], "{text}");
}

#[test]
fn the_governor_userspace_gets_the_clock_itself() {
    let machine = Machine::new("userspace");
    machine.put(2, "scaling_setspeed", "1200000");
    let back_end = machine.open();
    back_end.request(on(7, 3), Some(Request::SLOW)).unwrap();
    assert_eq!(machine.get(2, "scaling_setspeed"), "800000");
    assert_eq!(machine.limits(2), BEFORE);
    back_end.request(on(7, 3), None).unwrap();
    assert_eq!(machine.get(2, "scaling_setspeed"), "1200000");
}

/// Linux 6.12 with such a table rounds the lower limit up and the upper one down.
#[test]
fn a_driver_with_few_clocks_gets_one_of_them() {
    let machine = Machine::new("performance");
    machine.put(0, "scaling_available_frequencies", "3000000 2400000 1600000 800000");
    let back_end = machine.open();
    for (request, mhz) in [
        (percent(40), 1600),
        (percent(41), 2400),
        (Some(Request::BASE), 3000),
        // Clocks with turbo are not in the table.
        (Some(Request::TURBO), 4000),
    ] {
        back_end.request(on(7, 1), request).unwrap();
        assert_eq!(machine.limits(0), [mhz, mhz], "{request:?}");
    }
}

#[test]
fn of_several_threads_the_fastest_counts() {
    let machine = Machine::new("powersave");
    let back_end = machine.open();
    let ask = |thread, request| {
        back_end.request(thread, request).unwrap();
        machine.limits(0)[1]
    };
    assert_eq!(ask(on(1, 0), Some(Request::SLOW)), 800);
    assert_eq!(ask(on(2, 1), percent(75)), 3000);
    assert_eq!(ask(on(1, 0), percent(50)), 3000);
    assert_eq!(ask(on(2, 1), None), 2000);
    assert_eq!(ask(on(1, 0), None), 3600);
}

#[test]
fn a_thread_that_has_moved_asks_its_new_core_alone() {
    let machine = Machine::new("powersave");
    let back_end = machine.open();
    back_end.request(on(1, 0), Some(Request::TURBO)).unwrap();
    back_end.request(on(1, 2), Some(Request::TURBO)).unwrap();
    assert_eq!((machine.limits(0), machine.limits(2)), (BEFORE, [4000, 4000]));
}

#[test]
fn an_unknown_base_clock_leaves_the_machine_to_decide() {
    let machine = Machine::new("powersave");
    machine.put(0, "base_frequency", "");
    let back_end = machine.open();
    back_end.request(on(1, 0), Some(Request::SLOW)).unwrap();
    assert_eq!(back_end.request(on(1, 0), Some(Request::BASE)), Err(Refused::Unknown));
    assert_eq!(machine.limits(0), BEFORE);
    assert_eq!(back_end.request(on(1, 9), Some(Request::SLOW)), Err(Refused::Unknown));
}

#[test]
fn a_governor_that_changes_is_left_alone_with_its_limits() {
    let machine = Machine::new("schedutil");
    let back_end = machine.open();
    back_end.request(on(1, 0), Some(Request::SLOW)).unwrap();
    machine.put(0, "scaling_governor", "performance");
    let why = lost(back_end.request(on(1, 0), Some(Request::TURBO)));
    let file = Machine::path(0, "scaling_governor");
    assert_eq!(why, format!("{file} held `schedutil` and now holds `performance`"));
    assert_eq!(machine.limits(0), [800, 800]);
    // Not even if it is as before: the reason stays.
    machine.put(0, "scaling_governor", "schedutil");
    assert_eq!(lost(back_end.request(on(1, 0), Some(Request::TURBO))), why);
    // What this back end has written is undone at the end.
    back_end.end().unwrap();
    assert_eq!(machine.limits(0), BEFORE);
}

#[test]
fn a_limit_that_others_set_is_theirs() {
    let machine = Machine::new("schedutil");
    let back_end = machine.open();
    back_end.request(on(1, 0), Some(Request::SLOW)).unwrap();
    machine.put(0, "scaling_max_freq", "2500000");
    let why = lost(back_end.request(on(1, 0), Some(Request::TURBO)));
    let file = Machine::path(0, "scaling_max_freq");
    assert_eq!(why, format!("{file} held `800000` and now holds `2500000`"));
    back_end.request(on(2, 2), Some(Request::TURBO)).unwrap();
    assert_eq!(machine.limits(2), [4000, 4000], "other policies go on");
    back_end.end().unwrap();
    assert_eq!((machine.limits(0), machine.limits(2)), ([1000, 2500], BEFORE));
}

#[test]
fn a_file_that_vanishes_is_reported() {
    let machine = Machine::new("schedutil");
    let back_end = machine.open();
    let path = Machine::path(0, "scaling_min_freq");
    fs::remove_file(machine.root.path(&path)).unwrap();
    let why = lost(back_end.request(on(1, 0), Some(Request::SLOW)));
    assert!(
        why.contains(&path) && why.ends_with("No such file or directory (os error 2)"),
        "{why}"
    );
    assert_eq!(machine.get(0, "scaling_max_freq"), "3600000");
}

#[test]
fn files_without_permission_are_no_back_end() {
    let machine = Machine::new("schedutil");
    let path = machine.root.path(&Machine::path(2, "scaling_max_freq"));
    fs::set_permissions(path, fs::Permissions::from_mode(0o444)).unwrap();
    let missing = open(&machine.root).unwrap_err();
    assert_eq!(missing.why, "no permission to write scaling_max_freq of policy2");
    assert_eq!(missing.remedy, "run as root");
    assert!(!machine.directory.path().join("run").exists(), "nothing was written");
}

#[test]
fn a_second_process_does_not_touch_what_the_first_has_changed() {
    let machine = Machine::new("schedutil");
    let (first, second) = (machine.open(), machine.open());
    first.request(on(1, 0), Some(Request::SLOW)).unwrap();
    // It finds other values than at its start, or those of the first one's journal.
    let why = lost(second.request(on(2, 0), Some(Request::TURBO)));
    assert!(why.contains("now holds `800000`"), "{why}");
    let third = machine.open();
    let why = lost(third.request(on(3, 0), Some(Request::TURBO)));
    assert!(why.ends_with("and not yet restored it"), "{why}");
    assert_eq!(machine.limits(0), [800, 800]);
    third.request(on(4, 2), Some(Request::TURBO)).unwrap();
    second.end().unwrap();
    first.end().unwrap();
    assert_eq!(machine.limits(0), BEFORE);
    // What it found at its start was the first one's, also if another program sets it again.
    machine.put(0, "scaling_min_freq", "800000");
    machine.put(0, "scaling_max_freq", "800000");
    assert_eq!(lost(third.request(on(3, 0), Some(Request::TURBO))), why);
    third.end().unwrap();
    assert_eq!((machine.limits(0), machine.limits(2)), ([800, 800], BEFORE));
}

#[test]
fn after_the_end_there_are_no_requests() {
    let machine = Machine::new("schedutil");
    let back_end = machine.open();
    back_end.request(on(1, 0), Some(Request::SLOW)).unwrap();
    back_end.end().unwrap();
    assert_eq!(machine.limits(0), BEFORE);
    assert_eq!(back_end.request(on(1, 0), Some(Request::TURBO)), Err(Refused::Unknown));
    assert_eq!(machine.limits(0), BEFORE);
    assert_eq!(machine.root.list(DIRECTORY).unwrap(), ["lock"]);
}

#[test]
fn reports_the_clock_of_the_kernel() {
    let machine = Machine::new("schedutil");
    let back_end = machine.open();
    assert_eq!(back_end.clock(CpuId::new(3)), Some(KiloHertz::from_mhz(1500)));
    assert_eq!(back_end.clock(CpuId::new(9)), None);
}

/// A speed is there under the governor `userspace` alone; limits stay.
#[test]
fn a_governor_that_another_process_sets_matters_for_speeds_alone() {
    for (before, meanwhile, is_lost) in
        [("schedutil", "performance", false), ("schedutil", "userspace", true)]
    {
        let machine = Machine::new(before);
        let (mut other, _) = Journal::open(&machine.root).unwrap();
        other.change(&Machine::path(0, "scaling_governor"), meanwhile).unwrap();
        let result = machine.open().request(on(1, 0), Some(Request::SLOW));
        assert_eq!(result.is_err(), is_lost, "{meanwhile}: {result:?}");
    }
}

/// What a request at least leaves of both limits.
#[test]
fn a_clock_that_is_wanted_at_least_lowers_no_limit() {
    #[track_caller]
    fn check(before: [u64; 2], asked: u8, limits: [u64; 2]) {
        let machine = Machine::new("schedutil");
        for (name, mhz) in ["scaling_min_freq", "scaling_max_freq"].iter().zip(before) {
            machine.put(0, name, &format!("{mhz}000"));
        }
        let cores = machine.open();
        let request = Request::of_number(asked).expect("a request");
        assert_eq!(cores.at_least_for(on(7, 0), request), Ok(()));
        assert_eq!(machine.limits(0), limits);
        assert_eq!(cores.request_for(on(7, 0), None), Ok(()));
        assert_eq!(machine.limits(0), before);
    }
    let clocks = Machine::new("schedutil").open().clocks(CpuId::new(0)).expect("clocks");
    assert_eq!([clocks.slowest, clocks.fastest].map(KiloHertz::khz), [800_000, 4_000_000]);
    let turbo = Request::TURBO.number();
    check([800, 4000], turbo, [4000, 4000]);
    check([800, 4000], 50, [2000, 4000]);
    check([800, 2000], turbo, [4000, 4000]);
    check([800, 1000], 50, [2000, 2000]);
    check([2000, 4000], Request::SLOW.number(), [2000, 4000]);
    check([4000, 4000], 50, [4000, 4000]);
}

#[test]
fn a_speed_that_is_wanted_at_least_is_not_less_than_before() {
    let machine = Machine::new("userspace");
    machine.put(0, "scaling_setspeed", "2000000");
    let before = machine.get(0, "scaling_setspeed");
    let cores = machine.open();
    let unknown = lost(cores.at_least_for(on(9, 2), Request::TURBO));
    assert!(unknown.contains("held `<unsupported>`, which is no clock"), "{unknown}");
    assert_eq!(machine.get(2, "scaling_setspeed"), "<unsupported>");
    assert_eq!(cores.at_least_for(on(7, 0), Request::SLOW), Ok(()));
    assert_eq!(machine.get(0, "scaling_setspeed"), before);
    assert_eq!(cores.at_least_for(on(7, 0), Request::TURBO), Ok(()));
    assert_ne!(machine.get(0, "scaling_setspeed"), before);
}

/// The one may have its clock exactly, the other must not be slowed.
#[test]
fn one_request_at_least_lifts_the_upper_limit_for_all() {
    let machine = Machine::new("schedutil");
    let cores = machine.open();
    assert_eq!(cores.request_for(on(7, 0), percent(50)), Ok(()));
    assert_eq!(machine.limits(0), [2000; 2]);
    assert_eq!(cores.at_least_for(on(8, 0), Request::SLOW), Ok(()));
    assert_eq!(machine.limits(0), [2000, 3600]);
}
