//! Cores of which somebody else says how many are used.
#![expect(clippy::print_stdout, reason = "tests that cannot run here say so")]

use std::process::Command;

use dimmer_host::affinity;

/// Whether the calling thread's work goes to a dedicated core.
fn goes() -> bool {
    let has_left = dimmer_runtime::calls::leave_home().is_some();
    if has_left {
        let _ = dimmer_runtime::calls::come_home_quietly();
    }
    has_left
}

#[test]
fn as_many_of_the_named_cores_are_used_as_somebody_says() {
    const INNER: &str = "DIMMER_TEST_EMPLOYED";
    let allowed = affinity::allowed().unwrap();
    if std::env::var_os(INNER).is_some() {
        for (count, expected) in [(0, false), (1, true), (0, false), (1, true)] {
            dimmer_runtime::calls::employ(count);
            assert_eq!(goes(), expected, "{count}");
        }
        // Whoever says so keeps it off them.
        assert_eq!(affinity::allowed().unwrap(), allowed);
        return;
    }
    if let Err(why) = dimmer_runtime::check_travel() {
        println!("SKIPPED: {why}");
        return;
    }
    let Some(last) = allowed.last().filter(|_| allowed.len() > 1) else {
        println!("SKIPPED: moving work takes two CPUs, and this process may run on one");
        return;
    };
    // In a process of its own, as processes are told once which cores there are.
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "as_many_of_the_named_cores_are_used_as_somebody_says"]);
    again.env(INNER, "").env(dimmer_runtime::CORES, last.to_string());
    let output = again.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
