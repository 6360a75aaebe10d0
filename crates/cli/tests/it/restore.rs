//! The machine is restored to its previous state, whatever happens to a run. The tests use a
//! made-up machine under `--root`, with a turbo switch.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::{dimmer, heeding, stderr, stdout};

const SWITCH: &str = "sys/devices/system/cpu/intel_pstate/no_turbo";

fn made_up_machine() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join(SWITCH);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, "0\n").unwrap();
    root
}

fn switch(root: &Path) -> String {
    fs::read_to_string(root.join(SWITCH)).unwrap().trim().to_owned()
}

/// Starts a probe with turbo off and waits until it is off.
fn probe_with_turbo_off(root: &Path) -> Option<Child> {
    let arguments = ["--root", root.to_str().unwrap(), "probe", "--turbo-off", "--mode", "episode"];
    let mut probe = heeding("--default-signal=INT", root, &arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let patience = Instant::now() + Duration::from_secs(60);
    while switch(root) != "1" && Instant::now() < patience {
        if let Some(status) = probe.try_wait().unwrap() {
            let output = probe.wait_with_output().unwrap();
            // On a machine without an invariant counter, the probe refuses before it changes
            // anything.
            println!("SKIPPED: the probe does not run here ({status}): {}", stderr(&output));
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(switch(root), "1");
    Some(probe)
}

#[test]
fn a_killed_run_is_undone_by_restore() {
    let root = made_up_machine();
    let Some(mut probe) = probe_with_turbo_off(root.path()) else { return };
    probe.kill().unwrap();
    probe.wait().unwrap();
    assert_eq!(switch(root.path()), "1");
    let output = dimmer(root.path(), &["--root", root.path().to_str().unwrap(), "restore"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        stdout(&output).contains("restored /sys/devices/system/cpu/intel_pstate/no_turbo: 1 -> 0")
    );
    assert_eq!(switch(root.path()), "0");
    let again = dimmer(root.path(), &["--root", root.path().to_str().unwrap(), "restore"]);
    assert!(stdout(&again).contains("Nothing to restore"));
}

#[test]
fn an_interrupted_run_undoes_its_change_and_exits_130() {
    let root = made_up_machine();
    let Some(probe) = probe_with_turbo_off(root.path()) else { return };
    let killed =
        std::process::Command::new("kill").args(["-INT", &probe.id().to_string()]).status();
    assert!(killed.unwrap().success());
    let output = probe.wait_with_output().unwrap();
    assert_eq!(switch(root.path()), "0");
    if stderr(&output).contains("cannot measure by timing here") {
        println!("SKIPPED: the clock did not settle, so the run ended before it was interrupted");
        return;
    }
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
}

#[test]
fn a_living_run_is_left_alone() {
    let root = made_up_machine();
    let Some(mut probe) = probe_with_turbo_off(root.path()) else { return };
    let output = dimmer(root.path(), &["--root", root.path().to_str().unwrap(), "restore"]);
    assert!(stdout(&output).contains("still running"), "{}", stdout(&output));
    assert_eq!(switch(root.path()), "1");
    probe.kill().unwrap();
    probe.wait().unwrap();
}
