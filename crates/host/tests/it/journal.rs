//! Changes that are always undone: at the end, on a signal, after a crash.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use dimmer_host::interrupt::Interrupt;
use dimmer_host::journal::{Journal, JournalError, OfLive, Owner, Report, pending, restore};
use dimmer_host::root::Root;
use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::Machine;

const SWITCH: &str = "/sys/devices/system/cpu/intel_pstate/no_turbo";
const OTHER: &str = "/sys/devices/system/cpu/cpufreq/boost";

fn machine() -> Machine {
    Machine::new(&format!("//- {SWITCH}\n0\n//- {OTHER}\n1\n"))
}

/// Set for the process that a test starts, which then plays the other part of the test.
const CHILD_ROOT: &str = "DIMMER_TEST_CHILD_ROOT";

/// Starts the test named `test` again, as a process of its own that works under `root`, and waits
/// until it has changed [`SWITCH`].
#[track_caller]
fn start_child(test: &str, root: &Root) -> Child {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD_ROOT, root.path("/"))
        .stdout(Stdio::null())
        .spawn()
        .expect("a child");
    let started = Instant::now();
    while root.text(SWITCH).expect("the switch") != "1" {
        assert!(started.elapsed() < Duration::from_secs(60), "the child has not changed anything");
        assert_eq!(child.try_wait().expect("a child"), None, "the child has ended");
        thread::sleep(Duration::from_millis(2));
    }
    child
}

fn child_root() -> Option<Root> {
    std::env::var_os(CHILD_ROOT).map(|directory| Root::new(Path::new(&directory)))
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("a signal");
}

#[track_caller]
fn restored(report: &Report, paths: &[&str]) {
    let found: Vec<&str> = report.restored.iter().map(|one| one.path.as_str()).collect();
    assert_eq!(found, paths, "{report:?}");
    assert!(report.is_complete() && report.left.is_empty() && report.live.is_empty(), "{report:?}");
}

#[track_caller]
fn nothing_is_left(root: &Root) {
    assert_eq!(root.text(SWITCH).expect("the switch"), "0");
    assert_eq!(root.list("/run/dimmer").expect("the directory"), ["lock"]);
    assert!(restore(root, OfLive::Leave).expect("restored").is_empty());
}

#[test]
fn restores_what_a_killed_process_left() {
    if let Some(root) = child_root() {
        let (mut journal, _) = Journal::open(&root).expect("a journal");
        journal.change(OTHER, "0").expect("changed");
        journal.change(SWITCH, "1").expect("changed");
        loop {
            thread::park();
        }
    }
    let machine = machine();
    let root = &machine.root;
    let mut child = start_child("journal::restores_what_a_killed_process_left", root);

    let report = restore(root, OfLive::Leave).expect("restored");
    assert_eq!(report.live.len(), 1, "{report:?}");
    assert_eq!(report.live[0].process, child.id());
    assert_eq!(root.text(SWITCH).expect("the switch"), "1", "a living process is left alone");
    assert_eq!(pending(root)[0].owner, Owner::Lives);

    signal(&child, Signal::KILL);
    child.wait().expect("an end");
    assert_eq!(pending(root)[0].paths, [OTHER, SWITCH]);
    assert_eq!(pending(root)[0].owner, Owner::Gone);
    restored(&restore(root, OfLive::Leave).expect("restored"), &[SWITCH, OTHER]);
    assert_eq!(root.text(OTHER).expect("the switch"), "1");
    nothing_is_left(root);
}

#[test]
fn restores_at_the_next_start_after_a_crash() {
    if let Some(root) = child_root() {
        let (mut journal, _) = Journal::open(&root).expect("a journal");
        journal.change(SWITCH, "1").expect("changed");
        std::process::abort();
    }
    let machine = machine();
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "journal::restores_at_the_next_start_after_a_crash"])
        .env(CHILD_ROOT, machine.root.path("/"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a child");
    assert!(!child.wait().expect("an end").success());
    assert_eq!(machine.root.text(SWITCH).expect("the switch"), "1");

    let (journal, report) = Journal::open(&machine.root).expect("a journal");
    restored(&report, &[SWITCH]);
    drop(journal);
    nothing_is_left(&machine.root);
}

#[test]
fn undoes_on_an_interrupt_and_says_so_in_the_exit_status() {
    if let Some(root) = child_root() {
        let interrupt = Interrupt::install().expect("handlers");
        let (mut journal, _) = Journal::open(&root).expect("a journal");
        journal.change(SWITCH, "1").expect("changed");
        loop {
            if let Some(status) = interrupt.exit_status() {
                drop(journal);
                std::process::exit(i32::from(status));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
    for (number, status) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let machine = machine();
        let test = "journal::undoes_on_an_interrupt_and_says_so_in_the_exit_status";
        let mut child = start_child(test, &machine.root);
        signal(&child, number);
        assert_eq!(child.wait().expect("an end").code(), Some(status));
        nothing_is_left(&machine.root);
    }
}

#[test]
fn dies_of_the_second_interrupt_and_leaves_a_journal() {
    if let Some(root) = child_root() {
        let interrupt = Interrupt::install().expect("handlers");
        let (mut journal, _) = Journal::open(&root).expect("a journal");
        journal.change(SWITCH, "1").expect("changed");
        while !interrupt.is_set() {
            thread::sleep(Duration::from_millis(1));
        }
        fs::write(root.path("/seen"), "").expect("a sign");
        loop {
            thread::park();
        }
    }
    let machine = machine();
    let root = &machine.root;
    let mut child = start_child("journal::dies_of_the_second_interrupt_and_leaves_a_journal", root);
    signal(&child, Signal::INT);
    let started = Instant::now();
    while !root.exists("/seen") {
        assert!(started.elapsed() < Duration::from_secs(60), "the child has seen no signal");
        thread::sleep(Duration::from_millis(2));
    }
    signal(&child, Signal::INT);
    assert_eq!(child.wait().expect("an end").code(), None, "killed, not exited");
    restored(&restore(root, OfLive::Leave).expect("restored"), &[SWITCH]);
    nothing_is_left(root);
}

#[test]
fn undoes_when_dropped_latest_first_and_several_changes_of_one_file_once() {
    let machine = machine();
    let (mut journal, _) = Journal::open(&machine.root).expect("a journal");
    for (path, value) in [(SWITCH, "1"), (OTHER, "0"), (SWITCH, "2"), (SWITCH, "1")] {
        journal.change(path, value).expect("changed");
    }
    restored(&journal.undo().expect("undone"), &[SWITCH, OTHER]);
    nothing_is_left(&machine.root);
}

#[test]
fn writes_nothing_where_nothing_is_to_change() {
    let machine = machine();
    let (mut journal, _) = Journal::open(&machine.root).expect("a journal");
    journal.change(SWITCH, "0").expect("as it is");
    drop(journal);
    nothing_is_left(&machine.root);
}

#[test]
fn leaves_alone_what_somebody_else_has_changed() {
    let machine = machine();
    let (mut journal, _) = Journal::open(&machine.root).expect("a journal");
    journal.change(SWITCH, "1").expect("changed");
    machine.root.write(SWITCH, "7").expect("somebody else");
    let report = journal.undo().expect("undone");
    assert_eq!((report.left.len(), report.restored.len()), (1, 0), "{report:?}");
    assert_eq!((report.left[0].before.as_str(), report.left[0].found.as_str()), ("0", "7"));
    assert_eq!(machine.root.text(SWITCH).expect("the switch"), "7");
}

#[test]
fn refuses_a_file_that_another_journal_holds() {
    let machine = machine();
    let (mut first, _) = Journal::open(&machine.root).expect("a journal");
    let (mut second, _) = Journal::open(&machine.root).expect("another");
    first.change(SWITCH, "1").expect("changed");
    match second.change(SWITCH, "1") {
        Err(JournalError::Busy { path, process }) => {
            assert_eq!((path.as_str(), process), (SWITCH, std::process::id()));
        }
        other => panic!("expected a refusal, found {other:?}"),
    }
    second.change(OTHER, "0").expect("another file is free");
    drop(first);
    second.change(SWITCH, "1").expect("free again");
    drop(second);
    nothing_is_left(&machine.root);
}

#[test]
fn forces_a_living_process_only_when_told() {
    let machine = machine();
    let (mut journal, _) = Journal::open(&machine.root).expect("a journal");
    journal.change(SWITCH, "1").expect("changed");
    assert_eq!(restore(&machine.root, OfLive::Leave).expect("looked").live.len(), 1);
    restored(&restore(&machine.root, OfLive::Restore).expect("restored"), &[SWITCH]);
    assert_eq!(machine.root.text(SWITCH).expect("the switch"), "0");
}

#[test]
fn keeps_the_journal_where_something_cannot_be_put_back() {
    let machine = machine();
    let root = &machine.root;
    let (mut journal, _) = Journal::open(root).expect("a journal");
    journal.change(SWITCH, "1").expect("changed");
    journal.change(OTHER, "0").expect("changed");
    fs::rename(root.path(SWITCH), root.path("/aside")).expect("gone");
    let report = journal.undo().expect("undone");
    assert_eq!((report.failed.len(), report.restored.len()), (1, 1), "{report:?}");
    assert!(!report.is_complete());

    fs::rename(root.path("/aside"), root.path(SWITCH)).expect("back");
    restored(&restore(root, OfLive::Leave).expect("restored"), &[SWITCH]);
    nothing_is_left(root);
}

#[test]
fn tolerates_a_torn_last_line_and_reports_damage_before_it() {
    let machine = machine();
    let root = &machine.root;
    root.write(SWITCH, "1").expect("as a crashed process left it");
    fs::create_dir_all(root.path("/run/dimmer")).expect("a directory");
    let path = root.path("/run/dimmer/journal.1.0");
    let good = format!("v1\t{SWITCH}\t0\t1\n");
    fs::write(&path, format!("{good}v1\t{OTHER}\t1")).expect("a torn journal");
    restored(&restore(root, OfLive::Leave).expect("restored"), &[SWITCH]);
    nothing_is_left(root);

    root.write(SWITCH, "1").expect("again");
    fs::write(&path, format!("garbage\n{good}")).expect("a damaged journal");
    let report = restore(root, OfLive::Leave).expect("restored");
    assert_eq!((report.damaged.len(), report.restored.len()), (1, 1), "{report:?}");
    assert_eq!(report.damaged[0].line, 1);
    assert!(path.exists(), "a damaged journal is kept to be looked at");
}

#[test]
fn says_so_where_the_kernel_refuses_or_ignores_a_value() {
    let machine = Machine::new(&format!("//- {SWITCH}\n0\n"));
    // A directory in place of the file refuses to be read; /dev/null ignores what is written.
    let root = &machine.root;
    std::os::unix::fs::symlink("/dev/null", root.path("/ignores")).expect("a link");
    let (mut journal, _) = Journal::open(root).expect("a journal");
    assert!(matches!(journal.change("/sys", "1"), Err(JournalError::Before(_))));
    assert!(matches!(journal.change("/missing", "1"), Err(JournalError::Before(_))));
    match journal.change("/ignores", "1") {
        Err(JournalError::NotTaken { path, written, found }) => {
            assert_eq!((path.as_str(), written.as_str(), found.as_str()), ("/ignores", "1", ""));
        }
        other => panic!("expected a refusal, found {other:?}"),
    }
    drop(journal);
    nothing_is_left(root);
}

#[test]
fn needs_no_permission_where_nothing_is_on_record() {
    let machine = Machine::new("//- /run/.keep\n");
    assert!(restore(&machine.root, OfLive::Leave).expect("looked").is_empty());
    assert!(!machine.root.exists("/run/dimmer"), "looking creates nothing");
}

#[test]
fn has_each_change_on_record_before_it_is_made() {
    // A switch that cannot be written: the change fails, and was on record all the same.
    let machine = Machine::new("//- /run/.keep\n");
    let root = &machine.root;
    std::os::unix::fs::symlink("/proc/self/limits", root.path("/unwritable")).expect("a link");
    let (mut journal, _) = Journal::open(root).expect("a journal");
    assert!(matches!(journal.change("/unwritable", "1"), Err(JournalError::Change(_))));
    assert_eq!(pending(root)[0].paths, ["/unwritable"]);
}
