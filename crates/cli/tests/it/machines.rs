//! `dimmer machines` on the project's records, and on made-up ones in a directory.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::{command, dimmer, stderr, stdout};

const KIND: &str = "epyc-zen5-vm-linux-6.18";

/// Writes a record with a survey and the cost of a timed call (ns).
fn write(database: &Path, name: &str, timed: f64) {
    let record = database.join(name);
    fs::create_dir_all(&record).unwrap();
    let quantity = |median: f64| json!({ "median": median, "ci95": [median - 1.0, median + 1.0] });
    let doctor = json!({
        "schema": "dimmer/doctor/2",
        "machine": {
            "vendor": "AuthenticAMD", "brand": "AMD EPYC", "microarchitecture": "Zen 5",
            "microcode": "0x1", "hypervisor": "KVM", "kernel_release": "6.18.44",
        },
        "commands": [{ "command": "probe", "verdict": "works", "remark": "" },
                     { "command": "observe", "verdict": "works", "remark": "" }],
        "capabilities": [],
    });
    fs::write(record.join("doctor.json"), doctor.to_string()).unwrap();
    let hook = json!({
        "schema": "dimmer/bench-hook/1", "rounds": 31, "calls": 1000, "plain_ns": quantity(1.0),
        "call_ns": quantity(0.5), "counted_ns": 0.4, "timed_ns": quantity(timed),
    });
    fs::write(record.join("bench-hook.json"), hook.to_string()).unwrap();
}

/// Runs an action on a database, and returns its status and what it prints.
#[track_caller]
fn run(database: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = dimmer(database, &[&["machines"], arguments, &["--database", "."]].concat());
    (output.status.code(), stdout(&output), stderr(&output))
}

#[test]
fn the_projects_own_records_are_right_and_refute_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let output = dimmer(directory.path(), &["machines", "check"]);
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    let output = dimmer(directory.path(), &["machines", "list", "--report", "page.html"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("epyc-zen4-vm-linux-6.18: AMD EPYC, Zen 4; KVM;"));
    let page = fs::read_to_string(directory.path().join("page.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("epyc-zen4-vm-linux-6.18"));
}

#[test]
fn days_and_hosts_are_kept_apart() {
    let database = tempfile::tempdir().unwrap();
    let home = database.path();
    write(home, &format!("{KIND}-2026-11-26"), 60.0);
    write(home, &format!("{KIND}-2026-11-27"), 61.0);
    write(home, &format!("{KIND}-host2-2026-11-27"), 80.0);
    let (status, text, said) = run(home, &["list"]);
    assert_eq!((status, &*said), (Some(0), ""));
    assert!(text.contains("  2026-11-27  wide SIMD code was not measured"), "{text}");
    let (status, text, _) = run(home, &["compare", KIND]);
    assert_eq!(status, Some(0));
    assert!(text.starts_with(&format!("{KIND}: of 3 figures in several of 2 records, 3 agree")));
    let (_, text, _) = run(home, &["compare"]);
    assert!(text.contains("of 3 figures in several of 3 records, 2 agree"), "{text}");
    let (status, text, _) = run(home, &["show", &format!("{KIND}-host2-2026-11-27")]);
    assert_eq!(status, Some(0));
    assert!(text.contains("80 ns  [79, 81]"), "{text}");
    let (status, _, said) = run(home, &["show", "epyc-zen9"]);
    assert_eq!(status, Some(2));
    let accepted = format!("{KIND}-2026-11-26, {KIND}-2026-11-27, {KIND}-host2-2026-11-27");
    assert!(said.contains(&format!("no machine is named `epyc-zen9`: expected one of {accepted}")));
    let (status, _, said) = run(home, &["compare", &format!("{KIND}-2026-11-26")]);
    assert_eq!(status, Some(2));
    assert!(said.contains("name two records at least"), "{said}");
}

#[test]
fn every_key_is_documented() {
    let database = tempfile::tempdir().unwrap();
    let home = database.path();
    write(home, &format!("{KIND}-2026-11-26"), 60.0);
    write(home, &format!("{KIND}-2026-11-27"), 61.0);
    let documented = include_str!("../../../../docs/machines-json.md");
    for action in ["list", "show", "compare", "check"] {
        let (_, text, said) = run(home, &[action, "--json"]);
        let document: Value = serde_json::from_str(&text).expect(&said);
        let mut keys = Vec::new();
        crate::doctor::collect(&document, &mut keys);
        for key in keys {
            assert!(documented.contains(&format!("`{key}`")), "{action}: `{key}`");
        }
    }
}

#[test]
fn a_record_that_is_wrong_is_reported_and_the_others_are_shown() {
    let database = tempfile::tempdir().unwrap();
    let home = database.path();
    write(home, &format!("{KIND}-2026-11-26"), 60.0);
    let file = home.join(format!("{KIND}-2026-11-26/bench-hook.json"));
    let whole = fs::read_to_string(&file).unwrap();
    for (damaged, what) in [
        (whole[..60].to_owned(), "bench-hook.json: line 1, column 60: the text ends too early"),
        (whole.replace("\"timed_ns\"", "\"timed\""), "`timed_ns` is missing"),
        (whole.replace("hook/1", "hook/9"), "expected `dimmer/bench-hook/1`"),
    ] {
        fs::write(&file, damaged).unwrap();
        let (status, text, said) = run(home, &["list"]);
        assert_eq!(status, Some(1));
        assert!(said.contains("warning: left out: ") && said.contains(what), "{said}");
        assert!(text.contains("2026-11-26"), "{text}");
        let (status, text, _) = run(home, &["check"]);
        assert_eq!(status, Some(3));
        let text = text.replace('\n', " ");
        assert!(text.contains("wrong: ") && text.contains(what), "{text}");
    }
    let host = "\"rounds\": 31, \"on\": \"/home/eve/x on db1.corp.internal\"";
    fs::write(&file, whole.replace("\"rounds\":31", host)).unwrap();
    let (status, text, _) = run(home, &["check"]);
    assert_eq!(status, Some(3));
    let text = text.replace('\n', " ");
    assert!(text.contains("has a path of a user: `/home/eve/x`"), "{text}");
    assert!(text.contains("has the name of a host: `db1.corp.internal`"), "{text}");
    let empty = tempfile::tempdir().unwrap();
    let (status, _, said) = run(empty.path(), &["list"]);
    assert_eq!(status, Some(2));
    assert!(said.contains("has no records: expected directories named"), "{said}");
}

#[test]
fn a_claim_is_confirmed_or_refuted() {
    let database = tempfile::tempdir().unwrap();
    let home = database.path();
    write(home, &format!("{KIND}-2026-11-26"), 60.0);
    let claim = |most: &str| {
        let text = format!(
            "[[claim]]\nid = 'a'\nfile = 'a.md'\nquote = 'a timed call is fast'\n\
             documents = ['bench-hook']\nquantity = 'timed_ns'\nunit = 'ns'\nmost = {most}\n"
        );
        fs::write(home.join("claims.toml"), text).unwrap();
        run(home, &["check"])
    };
    let (status, text, _) = claim("70");
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("confirmed  60 ns [59, 61]  at most 70 ns"), "{text}");
    let (status, text, _) = claim("50");
    assert_eq!(status, Some(3));
    assert!(text.contains("1 claim by 1 record: 0 confirmed, 1 refuted, 0 cannot say"), "{text}");
    let (status, _, said) = claim("'x'");
    assert_eq!(status, Some(2));
    assert!(said.contains("claims.toml: line 8: `most`: found"), "{said}");
}

#[test]
fn a_record_is_never_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let output = dimmer(directory.path(), &["machines", "record"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("expected --database DIR"), "{}", stderr(&output));
    let record = || {
        let mut command = command(directory.path(), &["machines", "record", "--database", "."]);
        command.stdout(std::process::Stdio::null()).spawn().unwrap()
    };
    let names = || -> Vec<String> {
        let entries = fs::read_dir(directory.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let is_surveyed =
        || names().iter().any(|name| directory.path().join(name).join("doctor.json").exists());
    let mut child = record();
    // The probe after the survey takes seconds, and is interrupted.
    while !is_surveyed() {
        assert!(child.try_wait().unwrap().is_none(), "it ended without a survey");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    let made = names();
    assert_eq!(made.len(), 1, "{made:?}");
    let evidence = fs::read_to_string(directory.path().join(&made[0]).join("evidence.json"));
    let evidence: Value = serde_json::from_str(&evidence.unwrap()).unwrap();
    assert_eq!(evidence["interrupted"], true);
    let documented = include_str!("../../../../docs/machines-json.md");
    let mut keys = Vec::new();
    crate::doctor::collect(&evidence, &mut keys);
    assert!(keys.iter().all(|key| documented.contains(&format!("`{key}`"))), "{keys:?}");
    assert_eq!(record().wait().unwrap().code(), Some(2));
}
