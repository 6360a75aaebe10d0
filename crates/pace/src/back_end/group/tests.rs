//! Requests on made-up machines: what is in the files, also if others write them.

use std::fs;

use dimmer_host::cpufreq::POLICIES;
use dimmer_host::journal::DIRECTORY;
use dimmer_processor::units::CpuId;
use tempfile::TempDir;

use super::*;
use crate::Request;
use crate::back_end::{BackEnd as _, Thread, lost};

const GROUP: &str = "/sys/fs/cgroup/app.scope";

/// Two policies, from 800 to 4000 MHz and to 2000 MHz, and a group of this process.
fn machine() -> (TempDir, Root) {
    let directory = tempfile::tempdir().unwrap();
    let root = Root::new(directory.path());
    put(&root, "/proc/self/cgroup", "0::/app.scope");
    put(&root, "/proc/self/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0");
    put(&root, &format!("{GROUP}/cgroup.procs"), &std::process::id().to_string());
    put(&root, &format!("{GROUP}/cpu.uclamp.min"), "10.00");
    put(&root, &format!("{GROUP}/cpu.uclamp.max"), "max");
    for (policy, fastest) in [(0, "4000000"), (1, "2000000")] {
        for (name, content) in [
            ("affected_cpus", policy.to_string().as_str()),
            ("cpuinfo_max_freq", fastest),
            ("cpuinfo_min_freq", "800000"),
            ("scaling_governor", "schedutil"),
        ] {
            put(&root, &format!("{POLICIES}/policy{policy}/{name}"), content);
        }
    }
    (directory, root)
}

fn put(root: &Root, path: &str, content: &str) {
    let path = root.path(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("{content}\n")).unwrap();
}

fn now(root: &Root) -> [String; 2] {
    ["min", "max"].map(|end| root.text(&format!("{GROUP}/cpu.uclamp.{end}")).unwrap())
}

fn on(id: u32, cpu: u32) -> Thread {
    Thread { id, cpu: CpuId::new(cpu) }
}

#[test]
fn both_clamps_are_the_share_of_the_fastest_request_and_come_back() {
    let (_directory, root) = machine();
    let back_end = open(&root).unwrap();
    back_end.request(on(1, 0), Some(Request::SLOW)).unwrap();
    assert_eq!(now(&root), ["19.92", "19.92"]);
    back_end.request(on(2, 1), Request::percent(50)).unwrap();
    assert_eq!(now(&root), ["50.00", "50.00"]);
    back_end.request(on(1, 0), Some(Request::TURBO)).unwrap();
    assert_eq!(now(&root), ["max", "max"]);
    assert_eq!(back_end.domain_of(CpuId::new(0)), [0, 1].map(CpuId::new));
    // The group's clamps are the same wherever a thread is.
    assert_eq!(back_end.is_for(on(1, 1)), Some(true));
    back_end.request(on(1, 0), None).unwrap();
    back_end.request(on(2, 1), None).unwrap();
    assert_eq!(now(&root), ["10.00", "max"]);
    back_end.end().unwrap();
    assert_eq!(root.list(DIRECTORY).unwrap(), ["lock"]);
}

#[test]
fn what_others_change_is_theirs_and_what_vanishes_is_reported() {
    let (_directory, root) = machine();
    let back_end = open(&root).unwrap();
    back_end.request(on(1, 0), Some(Request::SLOW)).unwrap();
    put(&root, &format!("{GROUP}/cpu.uclamp.max"), "70.00");
    let why = lost(back_end.request(on(1, 0), Some(Request::TURBO)));
    assert!(why.ends_with("cpu.uclamp.max held `19.92` and now holds `70.00`"), "{why}");
    back_end.end().unwrap();
    assert_eq!(now(&root), ["10.00", "70.00"]);
    let back_end = open(&root).unwrap();
    fs::remove_dir_all(root.path(GROUP)).unwrap();
    let why = lost(back_end.request(on(1, 0), Some(Request::SLOW)));
    assert!(why.contains("cpu.uclamp.min") && why.contains("No such file"), "{why}");
}

#[test]
fn a_group_that_others_share_is_left_alone() {
    let (_directory, root) = machine();
    put(&root, &format!("{GROUP}/cgroup.procs"), &format!("{}\n1", std::process::id()));
    let why = open(&root).unwrap_err().why;
    assert!(why.ends_with("has process 1, which this program has not started"), "{why}");
    assert_eq!(now(&root), ["10.00", "max"]);
}
