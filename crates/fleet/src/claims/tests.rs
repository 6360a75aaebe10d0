//! Tests of claims: made-up ones, and those of the documentation by its machines.

use super::*;
use crate::database::tests::{database, hook};

fn claims(condition: &str) -> Vec<Claim> {
    let text = format!(
        "[[claim]]\nid = 'a'\nfile = 'docs/a.md'\nquote = 'q'\ndocuments = ['bench-hook']\n\
         quantity = 'timed_ns'\nunit = 'ns'\n{condition}\n"
    );
    parse(Path::new("claims.toml"), &text).unwrap()
}

fn judge(condition: &str, timed: [f64; 3]) -> Judgement {
    let database = database(&[("epyc-zen5-vm-linux-6.18-2026-11-26", hook(timed))]);
    claims(condition)[0].judge(&database.records[0])
}

#[test]
fn the_whole_interval_decides() {
    let check = |condition: &str, timed: [f64; 3], expected: Verdict| {
        assert_eq!(judge(condition, timed).verdict, expected, "{condition} {timed:?}");
    };
    check("most = 70", [60.0, 59.0, 61.0], Verdict::Confirmed);
    check("most = 60", [60.0, 59.0, 61.0], Verdict::CannotSay);
    check("most = 50", [60.0, 59.0, 61.0], Verdict::Refuted);
    check("least = 50\nmost = 70", [60.0, 59.0, 61.0], Verdict::Confirmed);
    check("least = 65", [60.0, 59.0, 61.0], Verdict::Refuted);
    // A call without a hook takes 1.1 ns [1.0, 1.2].
    check("below = 'plain_ns'", [0.9, 0.8, 0.95], Verdict::Confirmed);
    check("below = 'plain_ns'", [1.0, 0.9, 1.1], Verdict::CannotSay);
    check("below = 'plain_ns'", [60.0, 59.0, 61.0], Verdict::Refuted);
    check("is = ['dimmer/bench-hook/1']", [60.0, 59.0, 61.0], Verdict::Refuted);
}

#[test]
fn without_a_figure_nothing_is_said() {
    let database = database(&[("epyc-zen5-vm-linux-6.18-2026-11-26", hook([60.0; 3]))]);
    let check = |condition: &str, change: (&str, &str), expected: &str| {
        let text = format!(
            "[[claim]]\nid = 'a'\nfile = 'docs/a.md'\nquote = 'q'\n\
             documents = ['bench-hook']\nquantity = 'timed_ns'\n{condition}\n"
        );
        let text = text.replace(change.0, change.1);
        let judged = parse(Path::new("c"), &text).unwrap()[0].judge(&database.records[0]);
        assert_eq!((judged.verdict, &*judged.reason), (Verdict::CannotSay, expected));
    };
    check("most = 1", ("'bench-hook'", "'bench-phases'"), "no bench-phases.json");
    let missing = "bench-hook.json: `timed_us` is missing, expected a value or null";
    check("most = 1", ("timed_ns", "timed_us"), missing);
    let when = "most = 1\nwhen = { document = 'doctor', place = 'machine.vendor', is = ['X'] }";
    check(when, ("", ""), "it is about other machines");
    let when = "most = 1\nwhen = { document = 'probe', place = 'machine.vendor', is = ['X'] }";
    check(when, ("", ""), "no probe.json");
}

#[test]
fn what_makes_no_sense_is_refused_with_what_is_accepted() {
    let check = |change: (&str, &str), expected: &str| {
        let text = "[[claim]]\nid = 'a'\nfile = 'f'\nquote = 'q'\ndocuments = ['bench-hook']\n\
                    quantity = 'timed_ns'\nmost = 1\n";
        let said = parse(Path::new("c.toml"), &text.replace(change.0, change.1)).unwrap_err();
        assert!(said.to_string().contains(expected), "{said}");
    };
    check(("['bench-hook']", "[]"), "claim `a`: `documents`: expected at least one name");
    check(("'q'", "' '"), "claim `a`: `quote`: expected the words of a sentence");
    check(("most = 1", "is = []"), "one condition");
    check(("most = 1", "most = 'x'"), "c.toml: line 7: `most`: found string \"x\"");
    check(("most = 1", "most = 1\nquiet = 1"), "`quiet`: found integer `1`, expected a boolean");
    check(("most = 1", ""), "claim `a`: expected `least`, `most` or both");
    check(("most = 1", "most = 1\nleast = 2"), "one condition");
    check(("most = 1", "most = 1\nis = ['x']"), "one condition");
    check(("bench-hook", "bench-hooks"), "unknown document `bench-hooks`: expected one of doctor,");
    check(("timed_ns", "a[b"), "`a[b` is no place");
    check(("quote", "quotation"), "unknown field `quotation`");
    check(("id = 'a'", "id = 7"), "c.toml: line 2: `id`: found integer");
}

#[test]
fn a_name_is_given_once() {
    let one = "[[claim]]\nid = 'a'\nfile = 'f'\nquote = 'q'\ndocuments = ['doctor']\n\
               quantity = 'schema'\nis = ['x']\n";
    let said = parse(Path::new("c.toml"), &[one, one].concat()).unwrap_err();
    assert_eq!(said.to_string(), "c.toml: claim `a`: a second claim has this name");
}

/// Documents and claims do not part.
#[test]
fn claims_quote_the_documentation() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let claims = builtin().unwrap();
    assert!(claims.len() >= 10);
    for claim in claims {
        let text = std::fs::read_to_string(root.join(&claim.file)).unwrap();
        // Lines may break anywhere.
        let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(plain(&text).contains(&plain(&claim.quote)), "{}: {}", claim.file, claim.quote);
    }
}

/// No document of the project's own machines lacks the place that a claim names, but for earlier
/// versions of schemas.
#[test]
fn places_of_claims_are_in_the_documents() {
    let database = crate::database::Database::builtin();
    for claim in builtin().unwrap() {
        for record in &database.records {
            for entry in claim.documents.iter().filter_map(|name| record.document(name)) {
                let versions = kinds::of(entry.name).unwrap().versions;
                let is_last = plain(&entry.value["schema"])
                    .ends_with(&format!("/{}", versions.last().unwrap()));
                let found = claim.judge_entry(entry);
                assert!(found.is_ok() || !is_last, "{}: {found:?}", claim.id);
            }
        }
    }
}

/// What a machine refutes is changed, as long as the machine's record is there.
#[test]
fn no_record_of_the_project_refutes_a_sentence() {
    let database = crate::database::Database::builtin();
    for claim in builtin().unwrap() {
        for record in &database.records {
            let judged = claim.judge(record);
            assert_ne!(
                judged.verdict,
                Verdict::Refuted,
                "{}: {}: {judged:?}",
                record.name,
                claim.id
            );
        }
    }
}

#[test]
fn programs_that_compete_are_judged_on_quiet_machines_alone() {
    let mut documents = hook([60.0; 3]);
    let evidence = |others: f64| {
        serde_json::json!({
            "schema": "dimmer/evidence/1", "dimmer_version": "0.1.0", "begun": "2026-11-26",
            "ended": "2026-11-26", "load_begin": [1, 1, 1], "load_end": [1, 1, 1], "cpus": 2,
            "others_cpu_pct": others, "steal_pct": 0, "interrupted": false, "commands": [],
        })
    };
    documents.push(("evidence", evidence(60.0)));
    let judge = |documents: &[(&'static str, Value)], condition: &str| {
        let name = "epyc-zen5-vm-linux-6.18-2026-11-26";
        let database = database(&[(name, documents.to_vec())]);
        claims(condition)[0].judge(&database.records[0])
    };
    assert_eq!(judge(&documents, "most = 70\nquiet = true").reason, "the machine was busy");
    assert_eq!(judge(&documents, "most = 70").verdict, Verdict::Confirmed);
    documents[2].1 = evidence(1.0);
    assert_eq!(judge(&documents, "most = 70\nquiet = true").verdict, Verdict::Confirmed);
}

/// A mean near zero says nothing where a large cost would stay unseen; scalar code has none.
#[test]
fn nothing_was_found_above_the_bound_of_wide_code() {
    let claims = builtin().unwrap();
    let claim = claims.iter().find(|claim| claim.id == "zen-5-nothing-found").unwrap();
    let check = |class: &str, bound: f64, expected: Verdict| {
        let result = serde_json::json!({
            "mode": "episode", "kernel": "k", "class": class, "threads": 1, "effect": false,
            "burst_instructions": 800, "bound_ns": bound,
            "mean_extra_ns": { "median": 1.0, "ci95": [1.0 - bound, bound] },
        });
        let probe = serde_json::json!({
            "schema": "dimmer/probe/2", "verdict": { "effect": "no" }, "interrupted": false,
            "machine": {
                "brand": "AMD EPYC", "microarchitecture": "Zen 5", "microcode": "0x1",
                "hypervisor": "KVM", "kernel": "6.18.44", "cpus": 2,
                "time": "2026-11-26T00:00:00Z",
            },
            "results": [result],
        });
        let mut documents = hook([60.0; 3]);
        documents.push(("probe-quick", probe));
        let database = database(&[("epyc-zen5-vm-linux-6.18-2026-11-26", documents)]);
        assert_eq!(claim.judge(&database.records[0]).verdict, expected, "{class} {bound}");
    };
    check("heavy-512", 90.0, Verdict::Confirmed);
    check("light-256", 300.0, Verdict::Refuted);
    check("scalar", 300.0, Verdict::CannotSay);
}
