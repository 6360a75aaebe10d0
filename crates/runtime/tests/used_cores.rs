//! A process that sets the number of cores in use by `use_cores`.
#![expect(clippy::print_stdout, reason = "tests that cannot run here say so")]

use std::process::Command;

use dimmer_host::affinity;

/// Whether the calling thread's work goes to a dedicated core.
fn goes() -> bool {
    let has_left = dimmer_runtime::calls::begin_migration().is_some();
    if has_left {
        let _ = dimmer_runtime::calls::end_migration();
    }
    has_left
}

#[test]
fn as_many_of_the_named_cores_are_used_as_somebody_says() {
    const INNER: &str = "DIMMER_TEST_USED_CORES";
    let allowed = affinity::allowed().unwrap();
    if std::env::var_os(INNER).is_some() {
        for (count, expected) in [(0, false), (1, true), (0, false), (1, true)] {
            dimmer_runtime::calls::use_cores(count);
            assert_eq!(goes(), expected, "{count}");
        }
        // `use_cores` leaves it to its caller to keep the process off the cores.
        assert_eq!(affinity::allowed().unwrap(), allowed);
        return;
    }
    if let Err(why) = dimmer_runtime::check_migration() {
        println!("SKIPPED: {why}");
        return;
    }
    let Some(last) = allowed.last().filter(|_| allowed.len() > 1) else {
        println!("SKIPPED: moving work takes two CPUs, and this process may run on one");
        return;
    };
    // In a separate process, since a process reads its cores only once.
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "as_many_of_the_named_cores_are_used_as_somebody_says"]);
    again.env(INNER, "").env(dimmer_runtime::CORES, last.to_string());
    let output = again.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
