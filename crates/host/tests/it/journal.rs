//! Changes are always undone: at the end, on a signal, after a crash.

use std::fs;
use std::path::{Path, PathBuf};
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

/// Set for the process that a test starts, which then runs the other part of the test.
const CHILD_ROOT: &str = "DIMMER_TEST_CHILD_ROOT";

/// Starts the test named `test` again, as a separate process under `root`, and waits until it has
/// changed [`SWITCH`].
#[track_caller]
fn start_child(test: &str, root: &Root) -> Child {
    // Under `nohup`, this program ignores SIGHUP, in the background of a shell also SIGINT and
    // SIGQUIT; what it starts would, too.
    let mut child = Command::new("env")
        .arg("--default-signal=HUP,INT,QUIT,TERM")
        .arg(std::env::current_exe().expect("this program"))
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
    for (number, status) in
        [(Signal::INT, 130), (Signal::QUIT, 131), (Signal::TERM, 143), (Signal::HUP, 129)]
    {
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

/// The journal of a process that ends before it undoes its change.
fn left_behind(machine: &Machine) -> (PathBuf, String) {
    let (mut journal, _) = Journal::open(&machine.root).expect("a journal");
    journal.change(SWITCH, "1").expect("changed");
    let names = machine.root.list("/run/dimmer").expect("the directory");
    let name = names.iter().find(|name| name.starts_with("journal.")).expect("a journal");
    let path = machine.root.path("/run/dimmer").join(name);
    let text = fs::read_to_string(&path).expect("its text");
    drop(journal);
    machine.root.write(SWITCH, "1").expect("as a crashed process left it");
    (machine.root.path("/run/dimmer/journal.1.0"), text)
}

#[test]
fn tolerates_a_torn_last_line_and_reports_damage_before_it() {
    let machine = machine();
    let root = &machine.root;
    let (path, good) = left_behind(&machine);
    fs::write(&path, format!("{good}v2\t{OTHER}\t1")).expect("a torn journal");
    restored(&restore(root, OfLive::Leave).expect("restored"), &[SWITCH]);
    nothing_is_left(root);

    root.write(SWITCH, "1").expect("again");
    for damage in ["garbage\n".to_owned(), good.replace("\t0\t", "\t7\t")] {
        fs::write(&path, format!("{damage}{good}")).expect("a damaged journal");
        let report = restore(root, OfLive::Leave).expect("restored");
        assert_eq!((report.damaged.len(), report.restored.len()), (1, 1), "{report:?}");
        assert!(report.damaged[0].why.starts_with("line 1 "), "{report:?}");
        assert_eq!(root.text(SWITCH).expect("the switch"), "0", "what the sound line says");
        assert!(path.exists(), "a damaged journal is kept to be looked at");
        root.write(SWITCH, "1").expect("again");
    }
}

#[test]
fn says_of_a_file_cut_short_that_it_is_and_keeps_the_journal() {
    let machine = machine();
    let root = &machine.root;
    let (path, good) = left_behind(&machine);
    fs::write(&path, good).expect("a journal");
    fs::write(root.path(SWITCH), "").expect("cut, not written");
    let report = restore(root, OfLive::Leave).expect("looked");
    assert_eq!((report.failed.len(), report.left.len()), (1, 0), "{report:?}");
    assert!(report.failed[0].why.contains("cut short"), "{report:?}");
    assert!(!report.is_complete() && path.exists(), "kept, and told by the exit status");

    fs::write(root.path(SWITCH), "0\n").expect("as it says");
    assert!(restore(root, OfLive::Leave).expect("looked").is_complete());
    nothing_is_left(root);
}

#[test]
fn a_write_that_fails_leaves_what_was_there() {
    if let Some(root) = child_root() {
        // SAFETY: this test is alone in its process, so no other code handles this signal.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
        rustix::process::setrlimit(rustix::process::Resource::Fsize, none).expect("a limit");
        assert!(root.write(SWITCH, "1").is_err(), "nothing can be written");
        return;
    }
    let machine = machine();
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "journal::a_write_that_fails_leaves_what_was_there"])
        .env(CHILD_ROOT, machine.root.path("/"))
        .stdout(Stdio::null())
        .spawn()
        .expect("a child");
    assert!(child.wait().is_ok_and(|status| status.code().is_some()), "it ended by itself");
    assert_eq!(machine.root.text(SWITCH).expect("the switch"), "0");
}

#[test]
fn a_shorter_value_leaves_nothing_of_the_longer_one() {
    let machine = machine();
    for value in ["powersave and more", "on", "", "performance"] {
        machine.root.write(SWITCH, value).expect("written");
        let found = fs::read_to_string(machine.root.path(SWITCH)).expect("the switch");
        assert_eq!(found, if value.is_empty() { "\n" } else { value });
    }
}

/// A file that replaces a journal but is not one: how it is made, and what the report says of it.
type Impostor = (fn(&Path), &'static str);

#[test]
fn follows_no_journal_that_is_none_of_its_own_and_does_not_wait_for_it() {
    let impostors: [Impostor; 4] = [
        (|path| fs::create_dir(path).expect("a directory"), "no regular file"),
        (
            |path| {
                let kind = rustix::fs::FileType::Fifo;
                let mode = rustix::fs::Mode::from_raw_mode(0o600);
                rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).expect("a FIFO");
            },
            "no regular file",
        ),
        (
            |path| {
                let aside = path.with_file_name("aside");
                fs::rename(path.with_file_name("real"), &aside).expect("a journal elsewhere");
                std::os::unix::fs::symlink("aside", path).expect("a link");
            },
            "no regular file",
        ),
        (
            |path| {
                let file = fs::File::create(path).expect("a file");
                file.set_len((1 << 20) + 1).expect("a length");
            },
            "at most 1 MiB",
        ),
    ];
    for (make, expected) in impostors {
        let machine = machine();
        let (path, good) = left_behind(&machine);
        fs::write(path.with_file_name("real"), good).expect("a journal");
        make(&path);
        let report = restore(&machine.root, OfLive::Leave).expect("looked");
        assert_eq!(report.damaged.len(), 1, "{report:?}");
        assert!(report.damaged[0].why.contains(expected), "{report:?}");
        assert!(report.restored.is_empty() && !report.is_complete(), "{report:?}");
        assert!(fs::symlink_metadata(&path).is_ok(), "it is left");
        assert_eq!(machine.root.text(SWITCH).expect("the switch"), "1");
        let (mut journal, _) = Journal::open(&machine.root).expect("a journal");
        journal.change(SWITCH, "2").expect("nobody is kept from anything");
        drop(journal);
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "a test that cannot run here says so")]
fn follows_no_journal_of_another_user() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root can give a file to another user");
        return;
    }
    let machine = machine();
    let (path, good) = left_behind(&machine);
    fs::write(&path, good).expect("a journal");
    std::os::unix::fs::chown(&path, Some(65_534), None).expect("another owner");
    let report = restore(&machine.root, OfLive::Leave).expect("looked");
    assert_eq!(report.damaged.len(), 1, "{report:?}");
    assert!(report.damaged[0].why.contains("user 65534"), "{report:?}");
    assert_eq!(machine.root.text(SWITCH).expect("the switch"), "1");
    assert!(path.exists());
}

#[test]
fn nothing_leads_out_of_a_made_up_machine() {
    let machine = machine();
    let root = &machine.root;
    let outside = tempfile::TempDir::new().expect("a directory");
    let victim = outside.path().join("victim");
    fs::write(&victim, "1").expect("a file of the real machine");
    std::os::unix::fs::symlink(outside.path(), root.path("/link")).expect("a link out");
    std::os::unix::fs::symlink(&victim, root.path("/direct")).expect("a link out");
    let up = "/..".repeat(30);
    let named = victim.to_str().expect("a name");
    let ways = [format!("{up}{named}"), "/link/victim".to_owned(), "/direct".to_owned()];
    for way in &ways {
        assert!(root.text(way).is_err() && !root.exists(way), "{way}");
        assert!(root.write(way, "0").is_err(), "{way}");
        let (mut journal, _) = Journal::open(root).expect("a journal");
        assert!(matches!(journal.change(way, "0"), Err(JournalError::Before(_))), "{way}");
    }
    assert_eq!(fs::read_to_string(&victim).expect("the file"), "1");
    // Links that stay within the root lead to the same file as on the real machine.
    std::os::unix::fs::symlink(SWITCH, root.path("/switch")).expect("a link within");
    assert_eq!(root.text("/switch").expect("the switch"), "0");
    assert_eq!(root.text(&format!("{up}{SWITCH}")).expect("the switch"), "0");
}

#[test]
#[expect(clippy::print_stdout, reason = "a test that cannot run here says so")]
fn says_so_where_the_kernel_refuses_or_ignores_a_value() {
    let machine = Machine::new(&format!("//- {SWITCH}\n0\n"));
    // A directory in place of the file cannot be read; a null device ignores what is written.
    let root = &machine.root;
    let (mut journal, _) = Journal::open(root).expect("a journal");
    assert!(matches!(journal.change("/sys", "1"), Err(JournalError::Before(_))));
    assert!(matches!(journal.change("/missing", "1"), Err(JournalError::Before(_))));
    let (kind, mode) =
        (rustix::fs::FileType::CharacterDevice, rustix::fs::Mode::from_raw_mode(0o600));
    let null = rustix::fs::makedev(1, 3);
    let made = rustix::fs::mknodat(rustix::fs::CWD, root.path("/ignores"), kind, mode, null);
    if made.is_err() || root.text("/ignores").is_err() {
        println!("SKIPPED: no device can be made here");
        return;
    }
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
#[expect(clippy::print_stdout, reason = "a test that cannot run here says so")]
fn a_register_is_on_record_before_it_is_written() {
    // Both devices read as zeros; one refuses what is written, the other ignores it.
    let machine = Machine::new("//- /run/.keep\n");
    let root = &machine.root;
    let (kind, mode) =
        (rustix::fs::FileType::CharacterDevice, rustix::fs::Mode::from_raw_mode(0o600));
    for (path, minor) in [("/full", 7), ("/zero", 5)] {
        let device = rustix::fs::makedev(1, minor);
        let made = rustix::fs::mknodat(rustix::fs::CWD, root.path(path), kind, mode, device);
        if made.is_err() || root.read_at(path, 0, &mut [0]).is_err() {
            println!("SKIPPED: no device can be made here");
            return;
        }
    }
    let (mut journal, _) = Journal::open(root).expect("a journal");
    let refused = journal.change_register("/full", 0x199, 1);
    assert!(matches!(refused, Err(JournalError::Change(_))), "{refused:?}");
    assert_eq!(pending(root)[0].paths, ["/full 0x199"]);
    match journal.change_register("/zero", 0x199, 0x2200) {
        Err(JournalError::NotTaken { path, written, found }) => {
            assert_eq!([&*path, &*written, &*found], ["/zero 0x199", "0x2200", "0x0"]);
        }
        other => panic!("expected a refusal, found {other:?}"),
    }
    drop(journal);
    assert_eq!(root.list("/run/dimmer").expect("the directory"), ["lock"]);
}

#[test]
fn needs_no_permission_where_nothing_is_on_record() {
    let machine = Machine::new("//- /run/.keep\n");
    assert!(restore(&machine.root, OfLive::Leave).expect("looked").is_empty());
    assert!(!machine.root.exists("/run/dimmer"), "looking creates nothing");
}

#[test]
fn has_each_change_on_record_before_it_is_made() {
    // Writing to a FIFO without a reader fails, so the change fails, but is still on record.
    let machine = Machine::new("//- /run/.keep\n");
    let root = &machine.root;
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600));
    rustix::fs::mknodat(rustix::fs::CWD, root.path("/unwritable"), kind, mode, 0).expect("a FIFO");
    let (mut journal, _) = Journal::open(root).expect("a journal");
    assert!(matches!(journal.change("/unwritable", "1"), Err(JournalError::Change(_))));
    assert_eq!(pending(root)[0].paths, ["/unwritable"]);
}

#[test]
fn a_file_that_another_program_writes_gets_its_value_at_rest_whatever_it_holds() {
    if let Some(root) = child_root() {
        let (mut journal, _) = Journal::open(&root).expect("a journal");
        journal.change_by_other(OTHER).expect("recorded");
        root.write(OTHER, "7").expect("written");
        journal.change(SWITCH, "1").expect("changed");
        loop {
            thread::park();
        }
    }
    let machine = machine();
    let root = &machine.root;
    let test =
        "journal::a_file_that_another_program_writes_gets_its_value_at_rest_whatever_it_holds";
    let mut child = start_child(test, root);
    let (mut journal, _) = Journal::open(root).expect("a journal");
    let busy = journal.change_by_other(OTHER);
    assert!(matches!(busy, Err(JournalError::Busy { process, .. }) if process == child.id()));
    signal(&child, Signal::KILL);
    child.wait().expect("an end");
    root.write(OTHER, "9").expect("written");
    restored(&restore(root, OfLive::Leave).expect("restored"), &[SWITCH, OTHER]);
    assert_eq!(root.text(OTHER).expect("the file"), "1");
    nothing_is_left(root);

    // A program that ends in order gives the value back itself.
    journal.change_by_other(OTHER).expect("recorded");
    root.write(OTHER, "7").expect("written");
    root.write(OTHER, "1").expect("written");
    assert!(journal.undo().expect("undone").is_empty());
    nothing_is_left(root);
}

#[test]
fn a_file_that_changes_often_between_few_values_does_not_fill_the_journal() {
    let machine = machine();
    let root = &machine.root;
    let (mut journal, _) = Journal::open(root).expect("a journal");
    for round in 0..1000 {
        journal.change(SWITCH, ["1", "2", "0"][round % 3]).expect("changed");
    }
    let name = root.list("/run/dimmer").expect("the directory").remove(0);
    let lines = root.text(&format!("/run/dimmer/{name}")).expect("the journal").lines().count();
    assert_eq!(lines, 3);
    // The last value is on record, although its line is not the last one.
    assert_eq!(root.text(SWITCH).expect("the switch"), "1");
    restored(&journal.undo().expect("undone"), &[SWITCH]);
    nothing_is_left(root);
}
