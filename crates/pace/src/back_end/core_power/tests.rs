//! Requests on made-up machines: which class each core is in, also if others change classes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use dimmer_host::journal::{DIRECTORY, OfLive, restore};
use tempfile::TempDir;

use super::*;
use crate::Request;
use crate::back_end::{BackEnd as _, Refused, Thread, lost};

/// Two power domains: one with the CPUs 0 and 4 of core 0, and 1 of core 1; another with the CPUs 2
/// and 3, each of a core.
const DEVICE_TEXT: &str = "\
version: 2
cpu 0: 0x0
cpu 4: 0x1
cpu 1: 0x8
cpu 2: 0x800
cpu 3: 0x838
package 0 domain 0 supported: 1
package 0 domain 0 state: 0x0
package 0 domain 0 class 0: 0xff0000
package 0 domain 0 class 1: 0xff0000
package 0 domain 0 class 2: 0xff0000
package 0 domain 0 class 3: 0xff0000
package 0 domain 0 core 0: 0x0
package 0 domain 0 core 1: 0x0
package 0 domain 1 supported: 1
package 0 domain 1 state: 0x2
package 0 domain 1 class 0: 0xff0000
package 0 domain 1 class 1: 0xff0000
package 0 domain 1 class 2: 0xff0000
package 0 domain 1 class 3: 0xff0000
package 0 domain 1 core 0: 0x1
package 0 domain 1 core 7: 0x0
";

/// The machine, with clocks from 800 to 3800 MHz, and CPU 1 to 3900 MHz.
fn machine(base: Option<&str>) -> (TempDir, Root) {
    let directory = tempfile::tempdir().unwrap();
    let root = Root::new(directory.path());
    put(&root, DEVICE, DEVICE_TEXT);
    put(&root, "/sys/devices/system/cpu/online", "0-4\n");
    for cpu in 0..5 {
        put(&root, &format!("/sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"), "0");
        let policy = |name: &str, content: &str| {
            put(&root, &format!("{POLICIES}/policy{cpu}/{name}"), content);
        };
        policy("affected_cpus", &cpu.to_string());
        policy("cpuinfo_min_freq", "800000");
        policy("cpuinfo_max_freq", if cpu == 1 { "3900000" } else { "3800000" });
        policy("scaling_cur_freq", "2500000");
        base.into_iter().for_each(|base| policy("base_frequency", base));
    }
    (directory, root)
}

fn put(root: &Root, path: &str, content: &str) {
    let path = root.path(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// Another program changes the device.
fn change(root: &Root, from: &str, to: &str) {
    let text = root.text(DEVICE).unwrap();
    assert!(text.contains(from), "{from} in {text}");
    put(root, DEVICE, &text.replacen(from, to, 1));
}

fn on(id: u32, cpu: u32) -> Thread {
    Thread { id, cpu: CpuId::new(cpu) }
}

fn percent(percent: u8) -> Request {
    Request::percent(percent).unwrap()
}

/// The classes of the four cores: 0 and 1 of the first domain, 0 and 7 of the second.
fn classes(root: &Root) -> Vec<u8> {
    let domains = core_power::read(root).unwrap();
    domains.iter().flat_map(|domain| &domain.cores).map(|core| core.class).collect()
}

#[track_caller]
fn check_changed(root: &Root, expected: &[&str]) {
    let now = root.text(DEVICE).unwrap();
    let changed = now.lines().zip(DEVICE_TEXT.lines()).filter(|(now, before)| now != before);
    let changed: Vec<&str> = changed.map(|(now, _)| now).collect();
    assert_eq!(changed, expected);
}

#[track_caller]
fn check_has(root: &Root, line: &str) {
    let now = root.text(DEVICE).unwrap();
    assert!(now.lines().any(|known| known == line), "{line} in {now}");
}

#[test]
fn the_first_request_of_a_domain_gives_classes_their_meaning() {
    let (_directory, root) = machine(Some("2100000"));
    let back_end = open(&root).unwrap();
    assert_eq!(root.text(DEVICE).unwrap(), DEVICE_TEXT.trim_end());
    back_end.request(on(7, 4), Some(Request::TURBO)).unwrap();
    // Classes 0 to 3: at least the base clock; any; the base clock; the slowest. Core 0 of CPU 4
    // stays in class 0, in which it was.
    let changed = [
        "package 0 domain 0 state: 0x3",
        "package 0 domain 0 class 0: 0xff1500",
        "package 0 domain 0 class 2: 0x151500",
        "package 0 domain 0 class 3: 0x80000",
        "package 0 domain 0 core 1: 0x1",
    ];
    check_changed(&root, &changed);
    assert_eq!(classes(&root), [0, 1, 1, 0]);
    back_end.request(on(7, 4), None).unwrap();
    assert_eq!(classes(&root), [1, 1, 1, 0]);
    assert!(back_end.end().unwrap().is_complete());
    assert_eq!(root.text(DEVICE).unwrap(), DEVICE_TEXT.trim_end());
    assert_eq!(root.list(DIRECTORY).unwrap(), ["lock"]);
}

#[test]
fn a_request_is_for_the_slowest_class_that_is_as_fast() {
    #[track_caller]
    fn check(base: Option<&str>, requests: &[(Request, Option<u8>)]) {
        let (_directory, root) = machine(base);
        let back_end = open(&root).unwrap();
        for (request, class) in requests {
            let result = back_end.request(on(7, 3), Some(*request));
            match class {
                Some(class) => {
                    assert_eq!((result, classes(&root)[3]), (Ok(()), *class), "{request:?}")
                }
                None => assert_eq!(result, Err(Refused::Unknown), "{request:?}"),
            }
        }
    }
    let [fast, base, slow] = [FAST, BASE, SLOW].map(Some);
    check(
        Some("2100000"),
        &[
            (Request::TURBO, fast),
            (Request::BASE, base),
            (Request::SLOW, slow),
            (percent(100), fast),
            (percent(56), fast),
            (percent(55), base),
            (percent(22), base),
            (percent(21), slow),
        ],
    );
    // Without a base clock there are the fastest and the slowest class.
    check(None, &[(Request::BASE, None), (percent(22), fast), (Request::SLOW, slow)]);
    // Turbo is off: the base clock is the fastest, and a request for that is for power, too.
    check(Some("3800000"), &[(Request::TURBO, fast), (Request::BASE, fast), (percent(99), base)]);
}

#[test]
fn the_fastest_request_for_a_core_counts_and_cores_of_other_domains_stay() {
    let (_directory, root) = machine(Some("2100000"));
    let back_end = open(&root).unwrap();
    assert_eq!(back_end.domain_of(CpuId::new(4)), [0, 4].map(CpuId::new));
    assert_eq!(back_end.clock(CpuId::new(4)), Some(KiloHertz::from_mhz(2500)));
    assert!(!back_end.follows_threads());
    back_end.request(on(1, 0), Some(Request::SLOW)).unwrap();
    back_end.request(on(2, 4), Some(Request::BASE)).unwrap();
    assert_eq!(classes(&root), [2, 1, 1, 0]);
    back_end.request(on(2, 4), None).unwrap();
    assert_eq!(classes(&root), [3, 1, 1, 0]);
    // The thread moves to a core of the other domain, whose cores get the ordinary class then.
    back_end.follow(on(1, 3)).unwrap();
    assert_eq!(classes(&root), [1, 1, 1, 3]);
}

#[test]
fn what_others_change_is_named_and_left() {
    for (from, to, part) in [
        ("domain 0 state: 0x3", "domain 0 state: 0x1", "state held 0x3 and now holds 0x1"),
        ("class 2: 0x151500", "class 2: 0x191500", "class 2 held 0x151500 and now holds 0x191500"),
        ("domain 0 core 0: 0x0", "domain 0 core 0: 0x2", "core 0 held 0x0 and now holds 0x2"),
    ] {
        let (_directory, root) = machine(Some("2100000"));
        let back_end = open(&root).unwrap();
        back_end.request(on(1, 0), Some(Request::TURBO)).unwrap();
        back_end.request(on(2, 1), Some(Request::SLOW)).unwrap();
        change(&root, from, to);
        let theirs = root.text(DEVICE).unwrap();
        let why = lost(back_end.request(on(1, 0), Some(Request::SLOW)));
        assert!(why.contains(&format!("{DEVICE} package 0 domain 0 {part}")), "{why}");
        assert_eq!(root.text(DEVICE).unwrap(), theirs);
        // What belongs to all cores of the domain is lost for all; a core's class for that core.
        let of_other = back_end.request(on(2, 1), Some(Request::BASE));
        if part.starts_with("core") {
            assert_eq!(of_other, Ok(()));
        } else {
            assert_eq!(lost(of_other), why);
        }
        // The other domain is not theirs.
        assert_eq!(back_end.request(on(3, 2), Some(Request::SLOW)), Ok(()));
        let report = back_end.end().unwrap();
        let mut left: Vec<&str> = report.left.iter().map(|left| left.path.as_str()).collect();
        left.sort_unstable();
        let [name, word] = to.trim_start_matches("domain 0 ").split(": ").collect::<Vec<_>>()[..]
        else {
            panic!("{to}")
        };
        let theirs = format!("package 0 domain 0 {name}: {word}");
        let mut expected = vec![theirs.as_str()];
        if name == "state" {
            assert_eq!(left, [format!("{DEVICE} package 0 domain 0 state")]);
        } else {
            // They use the domain: it stays on.
            let state = report.left.iter().find(|left| left.path.ends_with("state")).unwrap();
            assert!(state.why.as_ref().unwrap().contains("core-power disable"), "{state:?}");
            let of = |name| format!("{DEVICE} package 0 domain 0 {name}");
            assert_eq!(left, [of(name), of("state")]);
            expected.insert(0, "package 0 domain 0 state: 0x3");
        }
        check_changed(&root, &expected);
        assert_eq!(root.list(DIRECTORY).unwrap(), ["lock"]);
    }
}

#[test]
fn a_class_that_was_theirs_before_a_change_counts_too() {
    let (_directory, root) = machine(Some("2100000"));
    let back_end = open(&root).unwrap();
    back_end.request(on(1, 0), Some(Request::TURBO)).unwrap();
    // Class 1 means what it meant before.
    change(&root, "class 1: 0xff0000", "class 1: 0x150000");
    let report = back_end.end().unwrap();
    assert_eq!(report.left.len(), 2, "{report:?}");
    let changed = ["package 0 domain 0 state: 0x3", "package 0 domain 0 class 1: 0x150000"];
    check_changed(&root, &changed);
}

#[test]
fn nothing_is_changed_where_a_core_is_anothers() {
    let (_directory, root) = machine(Some("2100000"));
    let back_end = open(&root).unwrap();
    change(&root, "domain 0 core 1: 0x0", "domain 0 core 1: 0x2");
    let why = lost(back_end.request(on(1, 0), Some(Request::TURBO)));
    assert!(why.contains("package 0 domain 0 core 1 held 0x0 and now holds 0x2"), "{why}");
    check_changed(&root, &["package 0 domain 0 core 1: 0x2"]);
    let report = back_end.end().unwrap();
    assert!(report.is_empty(), "{report:?}");
}

/// The state that is read follows the one that is written, in time or not.
#[test]
fn a_switch_that_takes_time_is_awaited() {
    for (lag, is_in_time) in [(3, true), (1000, false)] {
        let (_directory, root) = machine(Some("2100000"));
        put(&root, DEVICE, &format!("{DEVICE_TEXT}lag: {lag}\n"));
        let back_end = open(&root).unwrap();
        let result = back_end.request(on(1, 0), Some(Request::SLOW));
        if is_in_time {
            assert_eq!(result, Ok(()));
            check_has(&root, "package 0 domain 0 state: 0x3");
        } else {
            let why = lost(result);
            assert!(why.contains("state, which still holds `0x0`"), "{why}");
        }
        let report = back_end.end().unwrap();
        assert!(report.is_complete() && report.left.is_empty(), "{report:?}");
        // Nothing comes later, either.
        assert_eq!(root.text(DEVICE).unwrap(), format!("{DEVICE_TEXT}lag: {lag}"));
    }
}

#[test]
fn a_device_that_vanishes_is_reported() {
    let (_directory, root) = machine(Some("2100000"));
    let back_end = open(&root).unwrap();
    back_end.request(on(1, 0), Some(Request::TURBO)).unwrap();
    let there = root.text(DEVICE).unwrap();
    fs::remove_file(root.path(DEVICE)).unwrap();
    let why = lost(back_end.request(on(1, 0), Some(Request::SLOW)));
    assert!(why.contains("isst_interface") && why.contains("No such file"), "{why}");
    assert!(open(&root).is_err());
    // The processor keeps what was set: the journal stays until the device is there again.
    let report = back_end.end().unwrap();
    assert!(!report.is_complete(), "{report:?}");
    put(&root, DEVICE, &there);
    let report = restore(&root, OfLive::Leave).unwrap();
    assert!(report.is_complete() && report.left.is_empty(), "{report:?}");
    assert_eq!(root.text(DEVICE).unwrap(), DEVICE_TEXT.trim_end());
}

#[test]
fn a_kernel_that_refuses_changes_is_reported_and_nothing_is_left() {
    for (code, text) in [(1, "Operation not permitted"), (22, "Invalid argument"), (25, "ioctl")] {
        let (_directory, root) = machine(Some("2100000"));
        let device = format!("{DEVICE_TEXT}writes: error {code}\n");
        put(&root, DEVICE, &device);
        let back_end = open(&root).unwrap();
        let why = lost(back_end.request(on(1, 0), Some(Request::TURBO)));
        assert!(why.contains(text) && why.contains("package 0 domain 0 class 0"), "{why}");
        // The same reason for another core of the domain, although it may seem to be changed.
        assert_eq!(lost(back_end.request(on(2, 1), Some(Request::TURBO))), why);
        assert!(back_end.end().unwrap().is_complete());
        assert_eq!(root.text(DEVICE).unwrap(), device.trim_end());
        assert_eq!(root.list(DIRECTORY).unwrap(), ["lock"]);
    }
}

#[test]
fn what_is_missing_is_named_before_anything_is_changed() {
    #[track_caller]
    fn check(prepare: impl FnOnce(&Root), part: &str) {
        let (_directory, root) = machine(Some("2100000"));
        prepare(&root);
        let before = root.text(DEVICE);
        let why = open(&root).unwrap_err().why;
        assert!(why.contains(part), "{why}");
        assert_eq!(root.text(DEVICE).ok(), before.ok());
    }
    check(|root| fs::remove_file(root.path(DEVICE)).unwrap(), "no /dev/isst_interface");
    check(|root| change(root, "version: 2", "version: 1"), "no TPMI, no mailbox");
    check(
        |root| change(root, "supported: 1", "supported: 0"),
        "no core power in package 0 domain 0",
    );
    check(|root| change(root, "state: 0x0", "state: 0x1"), "domain 0 has it on already");
    check(|root| change(root, "version: 2", "version: error 25"), "Inappropriate ioctl");
    let file = format!("{POLICIES}/policy3/cpuinfo_max_freq");
    check(|root| fs::remove_file(root.path(&file)).unwrap(), "has the clocks of CPU 3");
    let mode = |root: &Root| {
        fs::set_permissions(root.path(DEVICE), fs::Permissions::from_mode(0o444)).unwrap();
    };
    check(mode, "no permission to write /dev/isst_interface");
}

#[test]
fn what_another_process_uses_is_left_alone() {
    let (_directory, root) = machine(Some("2100000"));
    let first = open(&root).unwrap();
    let second = open(&root).unwrap();
    first.request(on(1, 0), Some(Request::TURBO)).unwrap();
    // Opened before, as by a process that asks later; and after.
    let why = lost(second.request(on(2, 1), Some(Request::SLOW)));
    assert!(why.contains("now holds"), "{why}");
    let why = open(&root).unwrap_err().why;
    assert!(why.starts_with("process ") && why.contains("not yet restored"), "{why}");
    assert_eq!(classes(&root), [0, 1, 1, 0]);
    drop((first, second));
    assert_eq!(root.text(DEVICE).unwrap(), DEVICE_TEXT.trim_end());
}

fn mailbox_text() -> String {
    let mut device = "version: 1\nmailbox: 1\nregisters: 1\n".to_owned();
    for cpu in 0..5 {
        device += &format!("cpu {cpu}: {:#x}\n", cpu << 1);
        device += &format!("cpu 0 register {:#x}: 0x0\n", 0x20 + 4 * cpu);
    }
    for class in 0..4 {
        device += &format!("cpu 0 register {:#x}: 0x2ff0003\n", 0x8 + 4 * class);
    }
    device + "cpu 0 mailbox 0x94 0x3: 0x1\ncpu 0 mailbox 0xd0 0x2: 0x0\n"
}

/// Some processors refuse it or ignore it, and have classes all the same.
#[test]
fn a_feature_that_cannot_be_switched_on_is_ignored() {
    for answer in ["error 6", "ignored"] {
        let (_directory, root) = machine(Some("2100000"));
        let device = mailbox_text() + &format!("cpu 0 mailbox 0x95 0x3: {answer}\n");
        put(&root, DEVICE, &device);
        let back_end = open(&root).unwrap();
        back_end.request(on(1, 3), Some(Request::SLOW)).unwrap();
        back_end.request(on(2, 0), Some(Request::TURBO)).unwrap();
        check_has(&root, "cpu 0 mailbox 0x94 0x3: 0x1");
        check_has(&root, "cpu 0 mailbox 0xd0 0x2: 0x6");
        assert!(back_end.end().unwrap().is_complete());
        assert_eq!(root.text(DEVICE).unwrap(), device.trim_end());
    }
}

#[test]
fn before_tpmi_the_feature_is_switched_on_first_and_off_again() {
    let (_directory, root) = machine(Some("2100000"));
    let device = mailbox_text();
    put(&root, DEVICE, &device);
    let back_end = open(&root).unwrap();
    back_end.request(on(1, 3), Some(Request::SLOW)).unwrap();
    back_end.request(on(2, 0), Some(Request::TURBO)).unwrap();
    for line in [
        // Bits that are not the class's stay.
        "cpu 0 register 0x8: 0x2ff1503",
        "cpu 0 register 0x10: 0x2151503",
        "cpu 0 register 0x14: 0x2080003",
        "cpu 0 register 0x20: 0x0",
        "cpu 0 register 0x24: 0x10000",
        "cpu 0 register 0x2c: 0x30000",
        "cpu 0 mailbox 0x94 0x3: 0x10001",
        "cpu 0 mailbox 0xd0 0x2: 0x6",
    ] {
        check_has(&root, line);
    }
    change(&root, "0x94 0x3: 0x10001", "0x94 0x3: 0x1");
    let why = lost(back_end.request(on(2, 0), Some(Request::BASE)));
    assert!(why.contains("package 0 domain 0 feature held 0x1 and now holds 0x0"), "{why}");
    assert!(back_end.end().unwrap().is_complete());
    assert_eq!(root.text(DEVICE).unwrap(), device.trim_end());
}
