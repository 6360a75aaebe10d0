//! `dimmer phases`: what it writes where, and which input it refuses.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use rustix::fs::{CWD, Mode, mkfifoat};

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
    assert_eq!(document["threshold"], serde_json::json!({ "value": 0.01, "by": "hand" }));
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
fn wrong_options_are_refused_with_what_is_accepted() {
    let directory = directory();
    for (option, says) in [
        ("--threshold=big", "accepted are finite numbers, such as 0.01, or `gap`"),
        ("--migration=5", "with its unit (ns, us, ms, s)"),
        ("--metric=l1", "[possible values: l3-misses, l2, cpi]"),
    ] {
        refused(directory.path(), &["phases", "graph", option], says);
    }
    fs::write(directory.path().join("timed"), "a -> b\n  calls = 2\n  time = 10 ns\n").unwrap();
    refused(directory.path(), &["phases", "timed", "--cpus=x"], "`x` is no list of CPUs");
    let both = ["phases", "graph", "--json", "--dot"];
    refused(directory.path(), &both, "at most one can go to standard output");
}
