//! Requests on made-up machines: what is in the files, also if others write them.

use std::fs;

use dimmer_host::journal::{DIRECTORY, restore};
use dimmer_processor::units::CpuId;
use tempfile::TempDir;

use super::*;
use crate::Request;
use crate::back_end::{BackEnd as _, Thread, lost};

/// A machine with a policy of CPUs 0 and 1, from 1000 to 4000 MHz, with the base at 3000 MHz.
fn machine(before: &str, offered: &str) -> (TempDir, Root) {
    let directory = tempfile::tempdir().unwrap();
    let root = Root::new(directory.path());
    for (name, content) in [
        ("affected_cpus", "0 1"),
        ("base_frequency", "3000000"),
        ("cpuinfo_max_freq", "4000000"),
        ("cpuinfo_min_freq", "1000000"),
        ("energy_performance_available_preferences", offered),
        ("energy_performance_preference", before),
        ("scaling_cur_freq", "1500000"),
        ("scaling_governor", "powersave"),
    ] {
        put(&root, name, content);
    }
    (directory, root)
}

const ALL: &str = "default performance balance_performance balance_power power";

fn put(root: &Root, name: &str, content: &str) {
    let path = root.path(&format!("{POLICIES}/policy0/{name}"));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("{content}\n")).unwrap();
}

fn now(root: &Root) -> String {
    root.text(&format!("{POLICIES}/policy0/energy_performance_preference")).unwrap()
}

fn on(id: u32) -> Thread {
    Thread { id, cpu: CpuId::new(1) }
}

fn percent(percent: u8) -> Request {
    Request::percent(percent).unwrap()
}

#[test]
fn the_preference_stands_for_the_clock_and_comes_back() {
    #[track_caller]
    fn check(offered: &str, expected: [&str; 5]) {
        let (_directory, root) = machine("default", offered);
        let back_end = open(&root).unwrap();
        let requests = [Request::TURBO, Request::BASE, percent(50), percent(26), Request::SLOW];
        for (request, name) in requests.into_iter().zip(expected) {
            back_end.request(on(7), Some(request)).unwrap();
            assert_eq!(now(&root), name, "{request:?}");
        }
        back_end.request(on(7), None).unwrap();
        assert_eq!(now(&root), "default");
    }
    let [fast, fair, thrifty, slow] =
        ["performance", "balance_performance", "balance_power", "power"];
    check(ALL, [fast, fair, thrifty, thrifty, slow]);
    check("performance power", [fast, slow, slow, slow, slow]);
    check("performance balance_power power", [fast, thrifty, thrifty, thrifty, slow]);
}

#[test]
fn the_fastest_request_counts_and_all_end() {
    let (_directory, root) = machine("balance_power", ALL);
    let back_end = open(&root).unwrap();
    back_end.request(on(1), Some(Request::SLOW)).unwrap();
    back_end.request(on(2), Some(Request::TURBO)).unwrap();
    assert_eq!(now(&root), "performance");
    back_end.request(on(2), None).unwrap();
    assert_eq!(now(&root), "power");
    assert_eq!(back_end.clock(CpuId::new(0)), Some(KiloHertz::from_mhz(1500)));
    back_end.end().unwrap();
    assert_eq!(now(&root), "balance_power");
    assert_eq!(root.list(DIRECTORY).unwrap(), ["lock"]);
}

#[test]
fn what_others_change_is_theirs() {
    for (name, theirs) in
        [("energy_performance_preference", "balance_power"), ("scaling_governor", "performance")]
    {
        let (_directory, root) = machine("default", ALL);
        let back_end = open(&root).unwrap();
        back_end.request(on(1), Some(Request::SLOW)).unwrap();
        put(&root, name, theirs);
        let why = lost(back_end.request(on(1), Some(Request::TURBO)));
        assert!(why.contains(name) && why.ends_with(&format!("now holds `{theirs}`")), "{why}");
        back_end.end().unwrap();
        let is_theirs = name == "energy_performance_preference";
        assert_eq!(now(&root), if is_theirs { theirs } else { "default" });
    }
}

#[test]
fn a_file_that_vanishes_is_reported() {
    let (_directory, root) = machine("default", ALL);
    let back_end = open(&root).unwrap();
    let path = format!("{POLICIES}/policy0/energy_performance_preference");
    fs::remove_file(root.path(&path)).unwrap();
    let why = lost(back_end.request(on(1), Some(Request::SLOW)));
    assert!(why.contains(&path) && why.contains("No such file"), "{why}");
    assert!(open(&root).is_err());
}

/// As if the process was killed.
#[test]
fn what_is_left_is_restored_by_its_journal() {
    let (_directory, root) = machine("default", ALL);
    let back_end = open(&root).unwrap();
    back_end.request(on(1), Some(Request::SLOW)).unwrap();
    let journal = root.list(DIRECTORY).unwrap();
    let journal = journal.iter().find(|name| name.starts_with("journal.")).unwrap();
    let kept = fs::read(root.path(&format!("{DIRECTORY}/{journal}"))).unwrap();
    back_end.end().unwrap();
    put(&root, "energy_performance_preference", "power");
    fs::write(root.path(&format!("{DIRECTORY}/journal.1.0")), kept).unwrap();
    let report = restore(&root, dimmer_host::journal::OfLive::Leave).unwrap();
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(now(&root), "default");
}
