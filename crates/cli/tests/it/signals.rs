//! Signals reach a program under `dimmer` as they would without it.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::victims::{self, Victims};
use crate::{heeding, stderr, stdout};

/// Ways to run a program.
const WAYS: [&[&str]; 2] = [&["observe"], &["run", "--narrow"]];

/// Whether this way does nothing here; prints the reason if so.
fn is_skipped(message: &str) -> bool {
    let is_nothing_to_do = message.contains("error: ");
    if is_nothing_to_do {
        println!("SKIPPED: {message}");
    }
    is_nothing_to_do
}

#[test]
fn what_is_ignored_or_blocked_is_so_in_the_program_and_nothing_else_is() {
    victims::library();
    let home = tempfile::tempdir().unwrap();
    let look = ["grep", "-E", "SigBlk|SigIgn", "/proc/self/status"];
    for given in [
        "--default-signal",
        "--ignore-signal=HUP,INT,PIPE",
        "--ignore-signal=PIPE",
        "--ignore-signal=CHLD",
        "--block-signal=USR1,TERM",
    ] {
        let plain = Command::new("env").arg(given).args(look).output().unwrap();
        for way in WAYS {
            let arguments = [way, &["--"], &look].concat();
            let mut command = heeding(given, home.path(), &arguments);
            let output = command.env("HOME", home.path()).output().unwrap();
            let message = stderr(&output);
            if is_skipped(&message) {
                continue;
            }
            assert_eq!(stdout(&output), stdout(&plain), "{given} {way:?}: {message}");
        }
    }
}

/// A program that prints the signals that it receives.
const SAYS: &str = "trap 'echo reloaded' HUP; trap 'echo asked' USR1; trap 'echo interrupted' INT
    trap 'echo rang' ALRM; trap 'echo told; exit 3' TERM
    echo ready; while :; do sleep 0.01; done";

fn send(to: &Child, signal: &str) {
    let sent = Command::new("kill").args([signal, &to.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// Starts the program with the signal settings `given`; `None` if that is not possible here.
fn start(
    given: &str,
    home: &Path,
    way: &[&str],
) -> Option<(Child, impl FnMut() -> String + use<>)> {
    started(given, home, &[way, &["--", "sh", "-c", SAYS]].concat())
}

/// As [`start`], with any program that prints `ready`.
fn started(
    given: &str,
    home: &Path,
    arguments: &[&str],
) -> Option<(Child, impl FnMut() -> String + use<>)> {
    let mut command = heeding(given, home, arguments);
    command.env("HOME", home).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut line = move || lines.next().map(Result::unwrap).unwrap_or_default();
    if line() != "ready" {
        assert!(is_skipped(&stderr(&child.wait_with_output().unwrap())));
        return None;
    }
    Some((child, line))
}

#[test]
fn a_signal_for_the_program_reaches_it_and_ends_nothing_else() {
    victims::library();
    let home = tempfile::tempdir().unwrap();
    for way in WAYS {
        let Some((child, mut line)) = start("--default-signal", home.path(), way) else { continue };
        for _ in 0..3 {
            send(&child, "-HUP");
            assert_eq!(line(), "reloaded");
            send(&child, "-INT");
            assert_eq!(line(), "interrupted");
            send(&child, "-USR1");
            assert_eq!(line(), "asked");
            send(&child, "-ALRM");
            assert_eq!(line(), "rang");
        }
        send(&child, "-TERM");
        assert_eq!(line(), "told");
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    }
}

#[test]
fn a_signal_for_the_programs_parent_reaches_the_parent() {
    victims::library();
    let home = tempfile::tempdir().unwrap();
    let script = "trap 'echo parent' USR1; \"$0\" \"$@\"; echo ended $?";
    let sends = ["sh", "-c", "trap 'echo back; exit 1' USR1; kill -USR1 $PPID; sleep 0.1; exit 4"];
    let run = |words: &[&str]| {
        let mut shell = Command::new("env");
        shell.args(["--default-signal", "sh", "-c", script]).args(words).env("HOME", home.path());
        shell.output().unwrap()
    };
    let plain = stdout(&run(&sends));
    assert_eq!(plain, "parent\nended 4\n");
    for way in WAYS {
        let output = run(&[&[env!("CARGO_BIN_EXE_dimmer")], way, &["--"], &sends].concat());
        if !is_skipped(&stderr(&output)) {
            assert_eq!(stdout(&output), plain, "{way:?}");
        }
    }
}

#[test]
fn a_program_that_stops_is_seen_as_stopped_until_it_is_continued() {
    victims::library();
    let home = tempfile::tempdir().unwrap();
    // As at Ctrl-Z. This process then continues `dimmer` alone.
    let stops = "kill -TSTP 0; echo on; kill -TSTP 0; echo on; exit 5";
    for way in WAYS {
        let arguments = [way, &["--", "sh", "-c", stops]].concat();
        let mut command = heeding("--default-signal", home.path(), &arguments);
        // In an orphaned process group, which that of a test may be, SIGTSTP stops nothing.
        command.env("HOME", home.path()).process_group(0);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let process = Pid::from_child(&child);
        let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let mut stops = Vec::new();
        while let Some(stop) =
            waitid(WaitId::Pid(process), options).unwrap().unwrap().stopping_signal()
        {
            stops.push(stop);
            // Takes the stop out.
            waitid(WaitId::Pid(process), WaitIdOptions::STOPPED).unwrap();
            kill_process(process, Signal::CONT).unwrap();
        }
        let output = child.wait_with_output().unwrap();
        if !is_skipped(&stderr(&output)) {
            assert_eq!(stops, [Signal::TSTP; 2].map(Signal::as_raw), "{way:?}");
            assert_eq!((&*stdout(&output), output.status.code()), ("on\non\n", Some(5)));
        }
    }
}

/// Those that start it see no difference: such signals are for the program alone, or for a group
/// that its parent is not in.
#[test]
fn what_a_program_does_to_its_own_group_stays_there() {
    victims::library();
    let home = tempfile::tempdir().unwrap();
    let stopped_by = |signal| {
        let continues = "(while kill -CONT $$ 2>/dev/null; do sleep 0.1; done)";
        format!("{continues} & kill -{signal} $$; echo on; exit 4")
    };
    let ended = "trap 'echo on' TERM; kill -TERM 0; exit 4".to_owned();
    for script in [stopped_by("STOP"), stopped_by("TSTP"), ended] {
        for way in WAYS {
            let arguments = [way, &["--", "sh", "-c", &script]].concat();
            let mut command = heeding("--default-signal", home.path(), &arguments);
            let output = command.env("HOME", home.path()).process_group(0).output().unwrap();
            if !is_skipped(&stderr(&output)) {
                let found = (stdout(&output), output.status.code());
                assert_eq!(found, ("on\n".to_owned(), Some(4)), "{script} {}", stderr(&output));
            }
        }
    }
}

#[test]
fn real_time_signals_arrive_with_their_values_and_senders() {
    let Some(victims) = Victims::compile(&["queued"]) else { return };
    victims::library();
    let queued = victims.directory.path().join("queued");
    for way in WAYS {
        let arguments = [way, &["--", queued.to_str().unwrap()]].concat();
        let Some((child, mut line)) =
            started("--default-signal", queued.parent().unwrap(), &arguments)
        else {
            continue;
        };
        for _ in 0..3 {
            let sent = Command::new(&queued).arg(child.id().to_string()).status().unwrap();
            assert!(sent.success());
            assert_eq!(line(), "its own");
        }
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    }
}

#[test]
fn a_program_that_is_not_to_be_hung_up_goes_on() {
    victims::library();
    let home = tempfile::tempdir().unwrap();
    for way in WAYS {
        // A shell cannot trap a signal that was ignored when the shell was started.
        let start = start("--ignore-signal=HUP", home.path(), way);
        let Some((child, mut line)) = start else { continue };
        send(&child, "-HUP");
        send(&child, "-USR1");
        assert_eq!(line(), "asked");
        send(&child, "-TERM");
        assert_eq!(line(), "told");
        assert_eq!(child.wait_with_output().unwrap().status.code(), Some(3));
    }
}

/// The kernel keeps no exit status for a process that ignores the ends of its children.
#[test]
fn an_exit_status_is_passed_on_although_ends_of_children_are_ignored() {
    victims::library();
    let home = tempfile::tempdir().unwrap();
    let arguments = ["observe", "--", "sh", "-c", "exit 3"];
    let mut command = heeding("--ignore-signal=CHLD", home.path(), &arguments);
    let output = command.env("HOME", home.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
}

#[test]
fn descriptors_that_are_closed_are_closed_in_the_program() {
    victims::library();
    let home = tempfile::tempdir().unwrap();
    let seen = home.path().join("seen");
    let look = format!("ls /proc/$$/fd > {}", seen.display());
    let run = |closed: &str, words: &[&str]| {
        let script = format!("exec \"$0\" \"$@\" {closed}");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).args(words).env("HOME", home.path());
        assert!(shell.output().unwrap().status.success(), "{closed} {words:?}");
        std::fs::read_to_string(&seen).unwrap()
    };
    let plain = ["sh", "-c", &look];
    for closed in ["", "<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
        let expected = run(closed, &plain);
        let observe = [env!("CARGO_BIN_EXE_dimmer"), "observe", "--"];
        assert_eq!(run(closed, &[&observe[..], &plain].concat()), expected, "{closed}");
    }
}
