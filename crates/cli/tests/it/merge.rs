//! `dimmer merge` and `dimmer probe --baseline` on files of made-up probes.

use std::path::Path;

use serde_json::{Value, json};

use crate::{dimmer, stderr, stdout};

/// A probe of one kernel, whose burst costs so much (ns).
fn write(directory: &Path, name: &str, ns: f64) {
    let document = json!({
        "schema": "dimmer/probe/2",
        "verdict": { "effect": "yes" },
        "machine": {
            "brand": "Made-up", "microarchitecture": "m", "microcode": "0x1", "hypervisor": null,
            "kernel": "6.1", "cpus": 2, "time": "2026-11-27T00:00:00Z",
        },
        "results": [{
            "mode": "episode", "kernel": "add-scalar-unrolled", "threads": 1,
            "burst_instructions": 800, "effect": true,
            "mean_extra_ns": { "median": ns, "ci95": [ns - 1.0, ns + 1.0] },
        }],
        "interrupted": false,
    });
    std::fs::write(directory.join(name), document.to_string()).unwrap();
}

#[test]
fn probes_side_by_side_and_files_that_are_none() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path();
    [("a.json", 100.0), ("b.json", 101.0), ("c.json", 300.0)]
        .into_iter()
        .for_each(|(name, ns)| write(home, name, ns));
    let files = ["merge", "a.json", "b.json", "c.json"];
    let output = dimmer(home, &[&files[..], &["--json=m.json", "--csv", "m.csv"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).starts_with("Not as others with the same processor:\nc.json: "));
    let text = std::fs::read_to_string(home.join("m.json")).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    let documented = include_str!("../../../../docs/merge-json.md");
    let mut keys = Vec::new();
    crate::doctor::collect(&document, &mut keys);
    for key in keys.iter().filter(|key| *key != "burst") {
        assert!(documented.contains(&format!("`{key}`")), "docs/merge-json.md lacks `{key}`");
    }
    let csv = std::fs::read_to_string(home.join("m.csv")).unwrap();
    assert_eq!(csv.lines().count(), 4, "{csv}");
    parquet(home, &files, &csv);
    std::fs::write(home.join("other.json"), r#"{"schema": "dimmer/scan/1"}"#).unwrap();
    let output = dimmer(home, &["merge", "a.json", "other.json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("warning: left out: other.json: its `schema`"));
    assert!(stdout(&output).contains("Made-up"));
    let twice = dimmer(home, &["merge", "a.json", "./a.json", "--csv=-"]);
    assert_eq!(stdout(&twice).lines().filter(|line| line.contains("a.json")).count(), 1);
    for files in [&["other.json"][..], &["other.json", "none.json"]] {
        let output = dimmer(home, &[&["merge"], files].concat());
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    }
}

/// Parquet has the same rows as the CSV, by another reader than the crate that wrote it.
fn parquet(home: &Path, files: &[&str], csv: &str) {
    let output = dimmer(home, &[files, &["--parquet", "m.parquet"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let script = "import csv, sys, pyarrow.parquet as parquet
table = parquet.read_table('m.parquet')
writer = csv.writer(sys.stdout, lineterminator='\\n')
writer.writerow(table.column_names)
for row in table.to_pylist():
    writer.writerow('' if value is None else str(value).lower() if value is True or value is False
                    else format(value, 'g') if isinstance(value, float) else value
                    for value in row.values())
types = {field.name: str(field.type) for field in table.schema}
assert types['median'] == 'double' and types['threads'] == 'int64', types
assert types['has_effect'] == 'bool' and types['microcode'] == 'string', types";
    let mut python = std::process::Command::new("python3");
    let output = python.args(["-c", script]).current_dir(home).output();
    match output {
        Ok(output) if output.status.success() => assert_eq!(stdout(&output), csv),
        Ok(output) if !stderr(&output).contains("No module named") => {
            panic!("{}", stderr(&output));
        }
        _ => println!("SKIPPED: no python3 with pyarrow reads Parquet here"),
    }
}

/// A baseline that cannot be used is refused before anything is measured.
#[test]
fn a_baseline_is_read_first() {
    let directory = tempfile::tempdir().unwrap();
    let probe = ["probe", "--mode", "episode", "--kernel", "add-scalar-unrolled"];
    let output = dimmer(directory.path(), &[&probe[..], &["--baseline", "none.json"]].concat());
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("cannot read none.json"), "{}", stderr(&output));
}

/// The baseline is so expensive or so cheap that no measurement here comes near it.
#[test]
fn a_probe_is_compared_with_its_baseline() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path();
    write(home, "old.json", 1e12);
    let probe = [
        "probe",
        "--mode",
        "episode",
        "--kernel",
        "add-scalar-unrolled",
        "--repetitions",
        "4",
        "--burst",
        "800",
        "--baseline",
        "old.json",
    ];
    let output = dimmer(home, &probe);
    if output.status.code() == Some(1) && !stderr(&output).contains("panicked") {
        println!("SKIPPED: this machine cannot be probed: {}", stderr(&output));
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(
        text.contains("Compared with old.json: 1 cost measured in both, 0 worse, 1 better."),
        "{text}"
    );
    assert!(text.contains("kernel: 6.1 before, "), "{text}");
}
