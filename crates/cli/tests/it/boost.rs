//! `dimmer run --boost`: locks are observed, and the program stays as it is.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;

use crate::victims::Victims;
use crate::{command, stderr, stdout};

/// Builds the library that is preloaded, once.
fn build_library() {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        crate::built(&["--package", "dimmer-boost"]);
    });
}

/// Runs a command with its locks observed. Returns what came out, and the document.
fn observed(directory: &Path, options: &[&str], program: &[&str]) -> (Output, Value) {
    build_library();
    let mut observed = command(directory, &["run", "--boost", "--json=locks.json"]);
    let output = observed.args(options).arg("--").args(program).output().unwrap();
    let document = std::fs::read_to_string(directory.join("locks.json"));
    let document = document.unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)));
    (output, serde_json::from_str(&document).unwrap())
}

/// The sum over the sites of this kind in a function.
fn sum(document: &Value, function: &str, kind: &str, key: &str) -> u64 {
    let sites = document["sites"].as_array().unwrap().iter();
    let of_it = sites.filter(|site| site["function"] == function && site["kind"] == kind);
    of_it.map(|site| site[key].as_u64().unwrap()).sum()
}

#[test]
fn locks_are_counted_where_they_are_taken_and_the_program_does_the_same() {
    let Some(victims) = Victims::compile(&["locks"]) else { return };
    let program = victims.path("locks");
    let plain = Command::new(&program).output().unwrap();
    assert_eq!(plain.status.code(), Some(3), "{}", stderr(&plain));
    let model = ["--model", "fx-8120"];
    let (output, document) = observed(victims.directory.path(), &model, &[&program]);
    assert_eq!(output.status, plain.status);
    assert_eq!(stdout(&output), stdout(&plain));
    // Acquisitions and holds are exact, and so are waits: the holder waits until others sleep.
    #[track_caller]
    fn check(document: &Value, function: &str, kind: &str, expected: [u64; 3]) {
        let keys = ["acquisitions", "contended", "holds"];
        assert_eq!(keys.map(|key| sum(document, function, kind, key)), expected, "{document:#}");
    }
    // The parent's and its child's.
    check(&document, "take_short", "mutex", [2000, 0, 2000]);
    check(&document, "hold_long", "mutex", [1, 0, 1]);
    check(&document, "take_contended", "mutex", [2, 2, 2]);
    check(&document, "take_rwlock", "read", [10, 0, 10]);
    check(&document, "take_rwlock", "write", [1, 0, 1]);
    check(&document, "wait_for_condition", "mutex", [1, 0, 1]);
    check(&document, "wait_for_condition", "condition", [1, 1, 1]);
    check(&document, "signal_condition", "condition", [1, 1, 1]);
    // The hold ends at the wait; that in which the thread is cancelled does not count.
    check(&document, "wait_forever", "mutex", [1, 0, 1]);
    check(&document, "wait_forever", "condition", [0, 0, 0]);
    check(&document, "cancel_waiter", "mutex", [1, 0, 1]);
    check(&document, "pass_barrier", "barrier", [10, 10, 0]);
    check(&document, "lock_while_cancelled", "mutex", [1, 0, 1]);
    // Three times the recursive one, once the checked one, once the robust one.
    check(&document, "take_special", "mutex", [5, 0, 5]);
    check(&document, "die_with_it", "mutex", [1, 0, 0]);
    check(&document, "fork_with_lock", "mutex", [1, 0, 1]);
    assert_eq!(document["processes"], 2);
    assert_eq!(document["problems"], Value::Array(Vec::new()));
    assert!(sum(&document, "hold_long", "mutex", "held_ns") > 0);
    assert!(sum(&document, "take_contended", "mutex", "waited_ns") > 0);
    let told = stderr(&output);
    assert!(told.contains("take_contended") && told.contains("AMD FX-8120"), "{told}");
}

#[test]
fn python_does_the_same_and_its_sites_are_found() {
    const SCRIPT: &str = "
import threading
done = []
def work(number):
    for _ in range(20000):
        number = (number * 7 + 1) % 1000003
    done.append(number)
threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(sorted(done))
";
    let program = ["python3", "-c", SCRIPT];
    let Ok(plain) = Command::new(program[0]).args(&program[1..]).output() else {
        println!("SKIPPED: there is no python3");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let (output, document) = observed(directory.path(), &[], &program);
    assert_eq!((stdout(&output), output.status), (stdout(&plain), plain.status));
    let sites = document["sites"].as_array().unwrap();
    assert!(sites.iter().any(|site| site["kind"] == "mutex"), "{document:#}");
    assert!(stderr(&output).contains("--model MODEL"), "{}", stderr(&output));
}

#[test]
fn a_program_without_locks_has_no_sites() {
    let directory = tempfile::tempdir().unwrap();
    let (output, document) = observed(directory.path(), &[], &["sh", "-c", "exit 7"]);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(document["sites"], Value::Array(Vec::new()));
    assert!(stderr(&output).contains("at 0 sites"), "{}", stderr(&output));
}

#[test]
fn what_does_not_go_with_it_is_refused_with_the_reason() {
    build_library();
    let directory = tempfile::tempdir().unwrap();
    for (options, expected) in [
        (&["--narrow"][..], "--boost goes without other mechanisms: expected it without --narrow"),
        (&["--migrate"], "expected it without --migrate"),
        (&["--cpus", "1"], "--cpus is for --migrate"),
        (&["--model", "nothing"], "no model or file `nothing`"),
        (&["--model", "zen-5"], "lacks"),
    ] {
        let arguments = [&["run", "--boost"], options, &["--", "true"]].concat();
        let output = command(directory.path(), &arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{options:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{options:?}: {}", stderr(&output));
    }
}
