//! `dimmer run --boost --counters`: some of the sections are measured, each at its own site, and
//! the program stays as it is.

use std::process::Command;

use serde_json::Value;

use crate::boost::observed;
use crate::victims::Victims;
use crate::{command, stderr, stdout};

/// What was measured in a function at sites of this kind: one site has it.
fn measured<'a>(document: &'a Value, function: &str, kind: &str) -> &'a Value {
    let mut sites = document["sites"].as_array().unwrap().iter();
    let site = sites.find(|site| site["function"] == function && site["kind"] == kind);
    &site.unwrap_or_else(|| panic!("{function}: {document:#}"))["measured"]
}

#[test]
fn what_sections_do_is_measured_where_they_are_and_the_program_does_the_same() {
    let Some(victims) = Victims::compile(&["counted"]) else { return };
    let program = victims.path("counted");
    let plain = Command::new(&program).output().unwrap();
    assert_eq!(plain.status.code(), Some(5), "{}", stderr(&plain));
    let (output, document) = observed(victims.directory.path(), &["--counters"], &[&program]);
    assert_eq!(stdout(&output), stdout(&plain));
    assert_eq!(output.status, plain.status);
    let told = stderr(&output);
    assert_eq!(document["problems"], Value::Array(Vec::new()));
    let check = |function: &str, kind: &str, expected: [f64; 2]| {
        let found = measured(&document, function, kind);
        assert!(found["sampled"].as_u64() > Some(0), "{function}: {found:#}");
        assert_eq!(found["is_too_short"], false, "{function}: {found:#}");
        let means = ["page_faults", "sleeps"].map(|key| found[key].as_f64().unwrap());
        assert_eq!(means, expected, "{function}: {found:#}");
    };
    check("touch_fresh", "mutex", [8.0, 0.0]);
    check("sleep_inside", "mutex", [0.0, 1.0]);
    check("spin_inside", "mutex", [0.0, 0.0]);
    check("take_inner", "mutex", [0.0, 0.0]);
    check("take_outer", "mutex", [0.0, 0.0]);
    check("wait_inside", "condition", [0.0, 0.0]);
    // What takes less time than it takes to read the counters has no numbers.
    let short = measured(&document, "take_short", "mutex");
    assert_eq!((&short["is_too_short"], &short["page_faults"]), (&true.into(), &Value::Null));
    assert!(short["sampled"].as_u64() > Some(0), "{short:#}");
    assert!(told.contains("too short"), "{told}");
    // The processor's events are counted, or it is said why they are not.
    let counters = &document["counters"];
    assert!(counters["reading_ns"].as_u64() > Some(0), "{counters:#}");
    for (event, key) in [("cycles", "cycles"), ("cache-misses", "cache_misses")] {
        let why = counters["missing"][event].as_str();
        let found = measured(&document, "spin_inside", "mutex");
        let is_counted = found[key].is_number();
        assert!(why.is_none() || !is_counted && told.contains(why.unwrap()), "{found:#}\n{told}");
    }
}

#[test]
fn without_the_option_nothing_is_measured_and_with_it_boost_is_expected() {
    let directory = tempfile::tempdir().unwrap();
    let (_, document) = observed(directory.path(), &[], &["true"]);
    assert_eq!(document["counters"], Value::Null);
    let (output, document) = observed(directory.path(), &["--counters"], &["true"]);
    assert_eq!(document["counters"]["reading_ns"], Value::Null);
    assert!(stderr(&output).contains("no section was measured"), "{}", stderr(&output));
    let arguments = ["run", "--narrow", "--counters", "--", "true"];
    let refused = command(directory.path(), &arguments).output().unwrap();
    assert!(!refused.status.success() && stderr(&refused).contains("--boost"), "{refused:?}");
}
