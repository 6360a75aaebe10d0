//! `dimmer stat` of programs that do little. What is counted is this machine's; the form is not.

use serde_json::Value;

use crate::{dimmer, stderr, stdout};

#[test]
fn counts_a_program_and_ends_with_its_status() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["stat", "--json=stat.json", "--", "sh", "-c", "echo its own; exit 7"];
    let output = dimmer(directory.path(), &arguments);
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert_eq!(stdout(&output), "its own\n");
    let text = stderr(&output);
    assert!(text.starts_with("sh -c echo its own; exit 7, for "), "{text}");
    let document = std::fs::read_to_string(directory.path().join("stat.json")).unwrap();
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!((&document["schema"], &document["status"]), (&"dimmer/stat/1".into(), &7.into()));
    let counts = document["counts"].as_array().unwrap();
    for count in counts {
        assert_ne!(count["count"].is_null(), count["unavailable"].is_null(), "{count}");
    }
    // Without counters of cycles there is the clock by timing, or why not.
    let cycles = counts.iter().find(|count| count["event"] == "cycles").unwrap();
    let clock = [&document["clock"], &document["clock_unknown"]];
    let is_known = clock.iter().filter(|clock| !clock.is_null()).count();
    assert_eq!(is_known, usize::from(cycles["count"].is_null()), "{document}");
    let documentation = include_str!("../../../../docs/stat-json.md");
    let mut keys = Vec::new();
    crate::doctor::collect(&document, &mut keys);
    for key in keys {
        assert!(documentation.contains(&format!("`{key}`")), "docs/stat-json.md lacks `{key}`");
    }
}

#[test]
fn a_process_is_counted_for_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let mut sleeper = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let pid = sleeper.id().to_string();
    let output = dimmer(directory.path(), &["stat", "-p", &pid, "--duration", "200ms"]);
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).starts_with(&format!("process {pid}, for ")), "{}", stdout(&output));
}

/// A process that has ended, but that its parent has not waited for.
#[test]
fn a_process_is_counted_until_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let mut sleeper = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    sleeper.kill().unwrap();
    let pid = sleeper.id().to_string();
    let arguments = ["stat", "-p", &pid, "--duration", "600s", "--json"];
    let output = dimmer(directory.path(), &arguments);
    sleeper.wait().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let document: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(document["lasted_s"].as_f64() < Some(500.0), "{document}");
}

/// The command raises its own limit for counters, which are files.
#[test]
fn a_program_keeps_its_limit_of_open_files() {
    let directory = tempfile::tempdir().unwrap();
    let dimmer = env!("CARGO_BIN_EXE_dimmer");
    let script = format!("ulimit -Sn 64; '{dimmer}' stat -- sh -c 'ulimit -Sn'");
    let mut shell = std::process::Command::new("sh");
    let output = shell.args(["-c", &script]).current_dir(directory.path()).output().unwrap();
    assert_eq!(stdout(&output), "64\n", "{}", stderr(&output));
}

#[test]
fn what_cannot_be_counted_is_refused_with_the_status_of_its_kind() {
    let directory = tempfile::tempdir().unwrap();
    let status = |arguments: &[&str]| dimmer(directory.path(), arguments).status.code();
    assert_eq!(status(&["stat", "--", "no-such-program"]), Some(127));
    assert_eq!(status(&["stat", "--wrong", "--", "true"]), Some(125));
    assert_eq!(status(&["stat"]), Some(2));
    let output = dimmer(directory.path(), &["stat", "-p", "4000000000"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("4000000000"), "{}", stderr(&output));
}
