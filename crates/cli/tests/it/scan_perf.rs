//! `dimmer scan --perf` of a recording of a small program (see `crates/profile/tests/it/main.rs`).

use std::path::Path;

use serde_json::Value;

use crate::{dimmer, stderr, stdout};

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../profile/tests/data");

/// Runs `dimmer scan --perf` on a made-up machine that has the program.
fn scanned(root: &Path, arguments: &[&str]) -> std::process::Output {
    let place = root.join("usr/local/bin");
    std::fs::create_dir_all(&place).unwrap();
    std::fs::copy(format!("{DATA}/wide-example"), place.join("wide-example")).unwrap();
    let recording = format!("{DATA}/wide-example.perf.data");
    let options = ["--root", ".", "scan", "--perf", &recording, "--model", "i9-7940x"];
    dimmer(root, &[&options, arguments].concat())
}

#[test]
fn shows_the_share_of_samples_in_wide_code() {
    let directory = tempfile::tempdir().unwrap();
    let output = scanned(directory.path(), &["--folded", "stacks.txt"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(
        text.starts_with("189 samples of cpu-clock: 21.2 % in code of more than 128"),
        "{text}"
    );
    assert!(text.contains("(L2 21.2 %). 1.1 % in the kernel"), "{text}");
    let line = text.lines().find(|line| line.starts_with("multiply_512")).unwrap();
    for part in ["21.2 %", "heavy-512", "L2", "wide-example", "heavy (100.0 %)"] {
        assert!(line.contains(part), "{line}");
    }
    let stacks = std::fs::read_to_string(directory.path().join("stacks.txt")).unwrap();
    assert!(stacks.contains(";heavy;multiply_512;[heavy-512 L2] 40\n"), "{stacks}");
}

#[test]
fn every_key_of_the_json_is_documented() {
    let directory = tempfile::tempdir().unwrap();
    let output = scanned(directory.path(), &["--json"]);
    let document: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(
        (&document["schema"], &document["samples"]),
        (&"dimmer/scan-perf/1".into(), &189.into())
    );
    assert_eq!(document["functions"][0]["name"], "multiply_512");
    let documentation = include_str!("../../../../docs/scan-perf-json.md");
    let mut keys = Vec::new();
    crate::doctor::collect(&document, &mut keys);
    let others = ["source", "levels", "heavy-512", "L2"];
    for key in keys.iter().filter(|key| !others.contains(&key.as_str())) {
        assert!(
            documentation.contains(&format!("`{key}`")),
            "docs/scan-perf-json.md lacks `{key}`"
        );
    }
}

#[test]
fn fails_on_classes_and_levels_that_have_samples() {
    let directory = tempfile::tempdir().unwrap();
    let status = |limit: &str| scanned(directory.path(), &["--fail-on", limit]).status.code();
    assert_eq!([status("heavy-512"), status("L2"), status("tile")], [Some(3), Some(3), Some(0)]);
    assert_eq!(status("L9"), Some(2));
}

#[test]
fn what_is_no_profile_is_bad_input() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("text"), "no profile\n").unwrap();
    std::fs::write(directory.path().join("cut"), "PERFILE2").unwrap();
    for (file, why) in
        [("text", "no profile: expected"), ("cut", "damaged at byte 8"), ("none", "none")]
    {
        let output = dimmer(directory.path(), &["scan", "--perf", file]);
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
        assert_ne!(output.status.code(), Some(0));
    }
    let both = dimmer(directory.path(), &["scan", "--perf", "cut", "/bin/sh"]);
    assert_eq!(both.status.code(), Some(2));
}
