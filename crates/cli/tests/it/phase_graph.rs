//! `dimmer phases`: what it writes where, and which input it refuses.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use rustix::fs::{CWD, Mode, mkfifoat};
use serde_json::Value;

use crate::{command, dimmer, stderr, stdout};

/// Run 2017-11-30-2 of paper 004, and listing 5.2, sorted.
const MYSQL: &str = include_str!("../../../policy/src/phases/tests/mysql.txt");
const LISTING: &str = include_str!("../../../policy/src/phases/tests/listing.txt");

fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("graph"), MYSQL).unwrap();
    directory
}

#[track_caller]
fn refused(directory: &Path, arguments: &[&str], says: &str) {
    let output = dimmer(directory, arguments);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains(says), "`{says}` is not in:\n{message}");
    assert!(output.stdout.is_empty());
}

#[test]
fn the_profile_is_the_papers_to_the_digit() {
    let directory = directory();
    let output = dimmer(directory.path(), &["phases", "graph", "--profile"]);
    assert_eq!(stdout(&output), LISTING, "{}", stderr(&output));
}

#[test]
fn a_profile_without_counts_is_empty_and_says_so() {
    let directory = directory();
    let timed = "a -> b\n        calls = 2\n        time = 70 ns\n";
    fs::write(directory.path().join("timed"), timed).unwrap();
    let arguments = ["phases", "timed", "--migration", "2us", "--profile"];
    let output = dimmer(directory.path(), &arguments);
    let told = stderr(&output);
    assert_eq!((output.status.code(), &*stdout(&output)), (Some(0), ""), "{told}");
    assert!(told.contains("the profile is empty"), "{told}");
}

#[test]
fn standard_input_and_files_are_one_graph() {
    let directory = directory();
    let arguments = ["phases", "-", "graph", "--json", "--threshold", "0.01", "--profile=profile"];
    let mut child = command(directory.path(), &arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(MYSQL.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["edges"][0]["calls"], 2 * 62_742);
    assert_eq!(
        document["threshold"],
        serde_json::json!({ "value": 0.01, "by": "hand", "energy": null })
    );
    // Means stay what they are if all is there twice.
    assert_eq!(fs::read_to_string(directory.path().join("profile")).unwrap(), LISTING);
}

#[test]
fn files_are_written_beside_the_text() {
    let directory = directory();
    let outputs = ["--dot=dot", "--svg=svg", "--page=page", "--json=json"];
    let output = dimmer(directory.path(), &[&["phases", "graph"], &outputs[..]].concat());
    assert!(stdout(&output).contains("0.022687  slow"), "{}", stderr(&output));
    for (file, start) in
        [("dot", "digraph"), ("svg", "<svg"), ("page", "<!DOCTYPE html>"), ("json", "{")]
    {
        let text = fs::read_to_string(directory.path().join(file)).unwrap();
        assert!(text.starts_with(start), "{file}: {text}");
    }
}

#[test]
fn an_edge_shorter_than_the_given_migration_is_too_short() {
    let directory = tempfile::tempdir().unwrap();
    let edge = "a -> b\n  calls = 2\n  time = 10,000 ns\n";
    fs::write(directory.path().join("graph"), edge).unwrap();
    for (migration, is_short) in [("4.9us", false), ("5.1us", true)] {
        let output = dimmer(directory.path(), &["phases", "graph", "--migration", migration]);
        assert_eq!(stdout(&output).contains("`a` -> `b` is too short"), is_short);
    }
}

#[test]
fn input_that_is_no_graph_is_refused_with_file_and_line() {
    let directory = directory();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("empty"), "\n").unwrap();
    fs::write(at("other"), format!("{MYSQL}ready for connections\n")).unwrap();
    fs::write(at("bytes"), b"a -> b\n\xff").unwrap();
    mkfifoat(CWD, at("fifo"), Mode::RUSR | Mode::WUSR).unwrap();
    for (file, says) in [
        ("empty", "empty has no edge, expected some, each as `START -> END`"),
        ("other", "other: line 56: found `ready for connections`, expected `START -> END`"),
        ("bytes", "is not text: byte 7 is not UTF-8"),
        ("fifo", "is a FIFO; expected a regular file"),
        (".", "is a directory; expected a regular file"),
    ] {
        refused(directory.path(), &["phases", file], says);
        refused(directory.path(), &["phases", "graph", file], says);
    }
    refused(directory.path(), &["phases", "-"], "standard input has no edge");
}

#[test]
fn the_threshold_for_least_energy_is_that_of_a_model() {
    let directory = directory();
    let found = |more: &[&str]| {
        let arguments = ["phases", "graph", "--json", "--threshold=energy", "--model=ryzen-1600x"];
        let output = dimmer(directory.path(), &[&arguments, more].concat());
        let document: Value = serde_json::from_str(&stdout(&output)).unwrap();
        document["threshold"].clone()
    };
    let threshold = found(&["--migration=1us"]);
    assert_eq!((&threshold["by"], &threshold["energy"]["slow"]), (&"energy".into(), &"P2".into()));
    let ratio = |threshold: &Value, key| threshold["energy"][key].as_f64().unwrap();
    assert!(ratio(&threshold, "energy_ratio") < 1.0 && ratio(&threshold, "time_ratio") > 1.0);
    // With no time to lose, nothing is slow.
    let threshold = found(&["--migration=1us", "--slower=0"]);
    assert_eq!(ratio(&threshold, "energy_ratio"), 1.0);
    // Migrations take longer than is allowed.
    let threshold = found(&["--migration=1s"]);
    assert_eq!(ratio(&threshold, "energy_ratio"), 1.0);
}

#[test]
fn an_energy_that_cannot_be_solved_for_is_refused_with_what_is_missing() {
    let directory = directory();
    for (options, says) in [
        (&[][..], "needs the processor: `--model MODEL`"),
        (&["--model=fx-8120"], "does not say `supply`"),
        (&["--model=ryzen-1600x", "--slow=P9"], "expected a slower P-state than P0: P1, P2"),
        (&["--model=ryzen-1600x", "--slow=P0"], "expected a slower P-state than P0: P1, P2"),
        (&["--model=ryzen-1600x", "--deadline=1ms"], "--deadline: the time is too short"),
        (&["--model=ryzen-1600x", "--deadline=1"], "as in `90s`"),
        (&["--model=ryzen-1600x", "--slower=-1"], "expected a number from 0 to 9900"),
    ] {
        let energy = ["phases", "graph", "--threshold=energy", "--migration=1us"];
        refused(directory.path(), &[&energy, options].concat(), says);
    }
    let timed = ["phases", "timed", "--threshold=energy", "--model=ryzen-1600x", "--migration=1us"];
    fs::write(directory.path().join("timed"), "a -> b\n  calls = 2\n  time = 10 ns\n").unwrap();
    refused(directory.path(), &timed, "the graph has no counts of L3 misses");
}

#[test]
fn wrong_options_are_refused_with_what_is_accepted() {
    let directory = directory();
    for (option, says) in [
        (
            "--threshold=big",
            "accepted are finite numbers, such as 0.01, and the words `gap` and `energy`",
        ),
        ("--migration=5", "with its unit (ns, us, ms, s)"),
        ("--metric=l1", "[possible values: l3-misses, l2, cpi]"),
        ("--model=fx-8120", "--model is for `--threshold energy`"),
        ("--slower=5", "--slower is for `--threshold energy`"),
        ("--miss=90ns", "--miss is for `--threshold energy`"),
    ] {
        refused(directory.path(), &["phases", "graph", option], says);
    }
    // Also where no edge has a time, so that no migration is measured.
    refused(directory.path(), &["phases", "graph", "--cpus=x"], "expected a list of CPUs");
    let both = ["phases", "graph", "--json", "--dot"];
    refused(directory.path(), &both, "at most one can go to standard output");
}
