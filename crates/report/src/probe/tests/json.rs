//! The JSON: its shape, its bytes, and that its documentation describes every key.

use std::collections::{BTreeMap, BTreeSet};

use dimmer_probe::outcome::{Detail, Findings};
use expect_test::expect_file;
use serde_json::Value;

use super::fixtures::{Fixture, skylake, xeon_6, zen_5};
use crate::probe::document;

const DOCUMENTATION: &str = include_str!("../../../../../docs/probe-json.md");

fn json(fixture: &Fixture) -> String {
    serde_json::to_string_pretty(&document(&fixture.findings, &fixture.machine)).unwrap()
}

/// The first outcome of each mode, with lists cut to two entries.
fn short(findings: &Findings) -> Findings {
    let mut short = findings.clone();
    let mut seen = BTreeSet::new();
    short.outcomes.retain(|outcome| seen.insert(outcome.mode));
    for outcome in &mut short.outcomes {
        match &mut outcome.detail {
            Detail::Episode(episode) => episode.curve.truncate(2),
            Detail::Downclock(downclock) => {
                downclock.curve.truncate(2);
                downclock.throughput.truncate(2);
            }
            Detail::Throttle(throttle) => throttle.throughput.truncate(2),
            Detail::Instructions(instructions) => instructions.response.truncate(2),
            Detail::Recurrence(recurrence) => recurrence.gaps.truncate(2),
            Detail::Levels(_) => {}
        }
    }
    short
}

#[track_caller]
fn check(fixture: Fixture, expected: expect_test::ExpectFile) {
    let findings = short(&fixture.findings);
    expected.assert_eq(&(json(&Fixture { findings, ..fixture }) + "\n"));
}

#[test]
fn machine_with_brief_effects() {
    check(xeon_6(), expect_file!["testdata/xeon-6.json"]);
}

#[test]
fn machine_with_lasting_effects() {
    check(skylake(), expect_file!["testdata/skylake.json"]);
}

#[test]
fn machine_without_effects() {
    check(zen_5(), expect_file!["testdata/zen-5.json"]);
}

#[test]
fn same_findings_give_the_same_bytes() {
    assert_eq!(json(&xeon_6()), json(&xeon_6()));
}

#[test]
fn number_that_is_not_finite_is_null() {
    let mut fixture = zen_5();
    fixture.findings.outcomes[0].bound_ns = f64::NAN;
    let value: Value = serde_json::from_str(&json(&fixture)).unwrap();
    assert_eq!(value["results"][0]["bound_ns"], Value::Null);
}

/// The keys that each section of the documentation describes, by the section's heading.
fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let mut sections: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut heading = "top".to_owned();
    for line in DOCUMENTATION.lines() {
        if line == "# CSV of `dimmer probe`" {
            break;
        } else if let Some(text) = line.strip_prefix("##") {
            heading = text.trim_start_matches('#').trim().replace('`', "");
        } else if let Some(cells) = line.strip_prefix("| `") {
            let keys = cells.split(" | ").next().unwrap().split(", ");
            let keys = keys.map(|key| key.trim_matches('`').to_owned());
            sections.entry(heading.clone()).or_default().extend(keys);
        }
    }
    sections
}

/// Adds the keys of `value` under the heading of the section that describes it.
fn collect(value: &Value, heading: &str, found: &mut BTreeMap<String, BTreeSet<String>>) {
    match value {
        Value::Array(entries) => entries.iter().for_each(|entry| collect(entry, heading, found)),
        Value::Object(entries) => {
            for (key, value) in entries {
                let section = match (heading, key.as_str()) {
                    ("episode" | "upclock", _) => "episode and upclock",
                    (other, _) => other,
                };
                found.entry(section.to_owned()).or_default().insert(key.clone());
                match key.as_str() {
                    // Its keys are names of events.
                    "events" => {}
                    "throughput" => collect(value, &format!("throughput of {heading}"), found),
                    "machine" | "verdict" | "break_even" | "instrument" | "surroundings"
                    | "skipped" | "pmu" | "neighbours" | "curve" | "steps" | "quantiles"
                    | "response" | "gaps" => collect(value, key, found),
                    "results" => value.as_array().unwrap().iter().for_each(|result| {
                        collect(result, result["mode"].as_str().unwrap(), found);
                    }),
                    _ => collect(value, "Measured quantities", found),
                }
            }
        }
        _ => {}
    }
}

#[test]
fn documentation_describes_every_key_and_no_other() {
    let mut documented = documented();
    let every = documented.remove("Every result").unwrap();
    let mut found = BTreeMap::new();
    for fixture in [xeon_6(), skylake(), zen_5()] {
        let value: Value = serde_json::from_str(&json(&fixture)).unwrap();
        collect(&value, "top", &mut found);
    }
    for mode in
        ["episode and upclock", "downclock", "throttle", "instructions", "recurrence", "levels"]
    {
        documented.get_mut(mode).unwrap().extend(every.clone());
    }
    assert_eq!(found, documented);
}
