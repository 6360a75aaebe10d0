//! `dimmer bench` with ways that do not work, and interrupted.

use std::process::Stdio;

use serde_json::Value;

use crate::{dimmer, heeding, stderr, stdout, victims};

#[test]
fn a_way_that_dimmer_refuses_is_no_result() {
    let directory = tempfile::tempdir().unwrap();
    victims::library();
    let options = ["bench", "program", "--rounds", "3", "--boost=no-such-strategy", "--", "true"];
    let output = dimmer(directory.path(), &options);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), ""));
    let said = stderr(&output);
    assert!(said.contains("round 1, boost: Dimmer failed (status 125)"), "{said}");
    assert!(said.contains(" run --boost=no-such-strategy -- ..."), "{said}");
}

#[test]
fn an_interrupt_keeps_the_rounds_that_are_done() {
    let directory = tempfile::tempdir().unwrap();
    victims::library();
    // The third run, the first one of round 2, interrupts Dimmer.
    let script = "echo >>runs; test $(wc -l <runs) -lt 3 && exit; \
                  until test -s pid; do sleep 0.01; done; kill -INT $(cat pid); sleep 100";
    let arguments = ["bench", "dev", "auto", "--json", "--", "sh", "-c", script];
    let mut command = heeding("--default-signal=INT", directory.path(), &arguments);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::fs::write(directory.path().join("new"), child.id().to_string()).unwrap();
    std::fs::rename(directory.path().join("new"), directory.path().join("pid")).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(128 + 2), "{}", stderr(&output));
    let json: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((&json["partial"], &json["rounds"]), (&true.into(), &1.into()));
}
