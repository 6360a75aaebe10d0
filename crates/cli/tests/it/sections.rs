//! `dimmer run --boost --section`: sections that begin and end with functions.

use std::process::Command;

use serde_json::Value;

use crate::boost::{Machine, PYTHON, build_library, observed, sum};
use crate::victims::{Victims, library};
use crate::{command, stderr, stdout};

/// The kind of a section.
fn kind(section: &str) -> &'static str {
    if section.contains("..") { "section" } else { "function" }
}

/// How often each section began, how often another thread was inside then, how often it ended, and
/// how often another thread waited then.
#[track_caller]
fn check(document: &Value, section: &str, expected: [u64; 4]) {
    let keys = ["acquisitions", "contended", "holds", "wanted"];
    let found = keys.map(|key| sum(document, section, kind(section), key));
    assert_eq!(found, expected, "{section}: {document:#}");
}

/// Both libraries.
fn build() {
    build_library();
    library();
}

#[test]
fn sections_are_counted_however_they_are_left_and_the_program_does_the_same() {
    let Some(victims) = Victims::compile(&["sections"]) else { return };
    build();
    let program = victims.path("sections");
    let plain = Command::new(&program).output().unwrap();
    assert_eq!(plain.status.code(), Some(3), "{}", stderr(&plain));
    let sections = [
        "take..give",
        "recurse",
        "maybe_jump",
        "be_interrupted",
        "wait_forever",
        "fork_inside",
        "take_and_give",
        "take_and_end",
        "give..take",
    ];
    let options: Vec<&str> = sections.iter().flat_map(|section| ["--section", section]).collect();
    let (output, document) = observed(victims.directory.path(), &options, &[&program]);
    assert_eq!((stdout(&output), output.status), (stdout(&plain), plain.status));
    assert_eq!(document["problems"], Value::Array(Vec::new()));
    assert_eq!((document["unended"].as_u64(), document["processes"].as_u64()), (Some(0), Some(2)));
    // Alone, by the holder and the thread that waits for it, by the thread that ends, and by the
    // one that forks and its child. The thread that ends does not give it, and the child gives only
    // what it has taken itself.
    check(&document, "take..give", [105, 1, 104, 1]);
    // Twice by itself, twice by handlers.
    check(&document, "recurse", [4, 0, 4, 0]);
    check(&document, "maybe_jump", [4, 0, 2, 0]);
    check(&document, "be_interrupted", [2, 0, 2, 0]);
    check(&document, "wait_forever", [1, 0, 1, 0]);
    check(&document, "fork_inside", [1, 0, 1, 0]);
    check(&document, "take_and_give", [102, 0, 102, 0]);
    check(&document, "take_and_end", [1, 0, 1, 0]);
    let told = stderr(&output);
    assert!(told.contains("take..give: threads waited for it for"), "{told}");
    let of = |key| sum(&document, "take..give", "section", key);
    assert!(of("waited_ns") > 0 && of("held_ns") > 0 && of("outside_ns") > 0, "{document:#}");
}

#[test]
fn what_is_no_section_of_the_program_is_refused_before_it_starts() {
    let Some(victims) = Victims::compile(&["sections", "overloads"]) else { return };
    build();
    let (program, overloads) = (victims.path("sections"), victims.path("overloads"));
    for (sections, program, expected) in [
        (&["tak..give"][..], &program, &["--section tak..give", "no function `tak`", "`take`"][..]),
        (&["take..giv"], &program, &["no function `giv`", "looked at sections, libc.so.6"]),
        (&["take.."], &program, &["`take..` is no section", "FIRST..LAST", "LIBRARY:0xADDRESS"]),
        (&["malloc"], &program, &["cannot hook `malloc`", "hooks themselves run on this library"]),
        (&["libnone.so:0x10"], &program, &["`libnone.so` is neither a file nor loaded"]),
        (&["take"; 17], &program, &["17 sections: expected at most 16"]),
        (
            &["ns::Class::twice"],
            &overloads,
            &["`ns::Class::twice` is the name of several functions", "twice(double)"],
        ),
    ] {
        let mut options = vec!["run", "--boost"];
        options.extend(sections.iter().flat_map(|section| ["--section", section]));
        options.extend(["--", program]);
        let output = command(victims.directory.path(), &options).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{sections:?}: {}", stderr(&output));
        assert_eq!(stdout(&output), "");
        for part in expected {
            assert!(stderr(&output).contains(part), "{part}: {}", stderr(&output));
        }
    }
    let alone = ["run", "--narrow", "--section", "take", "--", "true"];
    let output = command(victims.directory.path(), &alone).output().unwrap();
    assert!(stderr(&output).contains("--section is for --boost"), "{}", stderr(&output));
}

#[test]
fn clocks_are_requested_at_sections_as_at_locks() {
    let Some(victims) = Victims::compile(&["sections"]) else { return };
    build();
    let (program, machine) = (victims.path("sections"), Machine::new());
    let plain = Command::new(&program).output().unwrap();
    let keys = ["slow_requests", "fast_requests", "ended_requests"];
    // The thread that waits asks for the slow clock, and then for the fast one. The locks within
    // the first function come before that.
    for (strategy, slow) in [("one", 0), ("ownr", 1)] {
        let options = ["--section", "take..give", "--section", "take_and_give"];
        let (output, document) = machine.run_with(strategy, &options, &[&program]);
        assert_eq!((stdout(&output), output.status), (stdout(&plain), plain.status));
        let of = |key| sum(&document, "take..give", "section", key);
        assert_eq!(of(keys[0]), slow, "{strategy}: {document:#}");
        assert_eq!(sum(&document, "take_and_give", "function", keys[1]), 102, "{document:#}");
        assert_eq!(sum(&document, "take_and_give", "function", "boosted"), 102, "{document:#}");
        assert_eq!(of("boosted"), 104, "{document:#}");
        assert_eq!(document["requests"]["refused"], 0, "{document:#}");
        machine.check(["1000000", "3600000"]);
    }
}

/// The program itself looks whether its section has the fast clock, and the code after it has not.
#[test]
fn the_machine_has_the_clock_during_a_section_by_functions() {
    let Some(victims) = Victims::compile(&["sections"]) else { return };
    build();
    let (program, machine) = (victims.path("sections"), Machine::new());
    let file = machine.file("scaling_min_freq");
    for (section, more) in [("take..give", &[][..]), ("await_inside", &["function"])] {
        let words = [&[&*program, &file, "4000000", "1000000"], more].concat();
        let options = ["--section", section];
        let (output, document) = machine.run_with("one", &options, &words);
        assert_eq!(stdout(&output), "4000000\n1000000\n", "{}", stderr(&output));
        assert_eq!(sum(&document, section, kind(section), "boosted_in_time"), 1, "{document:#}");
        machine.check(["1000000", "3600000"]);
    }
}

#[test]
fn the_lock_of_python_is_seen_by_its_functions() {
    build();
    // `python3` may be a script that starts it, which has no such function.
    let own = ["-c", "import sys; print(sys.executable)"];
    let Ok(interpreter) = Command::new("python3").args(own).output() else {
        println!("SKIPPED: there is no python3");
        return;
    };
    let interpreter = stdout(&interpreter);
    let program = [interpreter.trim(), "-c", PYTHON];
    let Ok(plain) = Command::new(program[0]).args(&program[1..]).output() else {
        println!("SKIPPED: python3 does not say where it is");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let options = ["run", "--boost", "--section", "take_gil..drop_gil", "--json=s.json", "--"];
    let output = command(directory.path(), &options).args(program).output().unwrap();
    // Distributions may strip it of these names.
    if stderr(&output).contains("no function `take_gil`") {
        println!("SKIPPED: {}", stderr(&output));
        return;
    }
    assert_eq!((stdout(&output), output.status), (stdout(&plain), plain.status));
    let document = std::fs::read_to_string(directory.path().join("s.json")).unwrap();
    let document: Value = serde_json::from_str(&document).unwrap();
    let of = |key| sum(&document, "take_gil..drop_gil", "section", key);
    // Each thread has it at least once, and the main one to the end.
    assert!(of("acquisitions") > 2 && of("holds") + 1 >= of("acquisitions"), "{document:#}");
    assert!(of("held_ns") > 0 && of("outside_ns") > 0, "{document:#}");
}
