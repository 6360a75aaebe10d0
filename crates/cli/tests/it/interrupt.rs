//! Commands that a signal ends: they report what is complete, and that it is only a part.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::{stderr, stdout};

/// Threads that alternate every microsecond for 400 s: no processor finishes this before the signal
/// comes.
pub(crate) const FOR_EVER: &str = r#"
schema = "dimmer/scenario/1"
name = "For ever"
source = "made up"
model = "i9-7940x"
cores = 1
end_us = 400_000_000
[[code]]
name = "scalar"
class = "scalar"
per_cycle = 1.0
[[thread]]
name = "short"
times = 1
steps = [{ run = "scalar", us = 1 }]
[[thread]]
name = "long"
times = 0
steps = [{ run = "scalar", us = 1 }, { sleep_us = 1 }]
"#;

/// Runs the command in `directory` and sends `signal` once the command catches it. Returns the
/// output as an error if the command ends by itself before.
pub(crate) fn interrupted(
    directory: &Path,
    arguments: &[&str],
    signal: i32,
) -> Result<Output, Output> {
    let mut command = crate::heeding("--default-signal=HUP,INT,TERM", directory, arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // Before the command catches signals, one would end it in another way.
    while !catches_signals(child.id()) {
        if child.try_wait().unwrap().is_some() {
            return Err(child.wait_with_output().unwrap());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let pid = child.id().to_string();
    assert!(Command::new("kill").args([format!("-{signal}"), pid]).status().unwrap().success());
    Ok(child.wait_with_output().unwrap())
}

/// Whether the process catches SIGTERM (bit 14 of the mask), the last of the signals that the
/// command starts to catch.
pub(crate) fn catches_signals(process: u32) -> bool {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let mask = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0");
    u64::from_str_radix(mask.trim(), 16).unwrap() >> 14 & 1 > 0
}

/// The JSON on standard output of a scenario's command that is interrupted.
#[track_caller]
fn check(arguments: &[&str], signal: i32) -> Value {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("for-ever.toml"), FOR_EVER).unwrap();
    let output = interrupted(directory.path(), arguments, signal).unwrap();
    assert_eq!(output.status.code(), Some(128 + signal), "{}", stderr(&output));
    assert_eq!(stderr(&output), "interrupted: what is complete has been written\n");
    let found: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(found["partial"], true);
    found
}

#[test]
fn a_simulation_tells_how_far_it_got() {
    let found = check(&["sim", "run", "for-ever.toml", "--json"], 2);
    assert_eq!(found["asked_us"], 400_000_000.0);
    let end_us = found["end_us"].as_f64().unwrap();
    assert!((0.0..400_000_000.0).contains(&end_us), "{end_us}");
    // The report covers all of the time until then.
    let core = &found["cores"][0];
    let levels = core["levels"].as_array().unwrap().iter();
    let parts = ["throttled_us", "still_us", "governor_us", "delayed_us", "idle_us"];
    let parts = parts.iter().map(|part| &core[*part]);
    let all = levels.map(|level| &level["time_us"]).chain(parts);
    let sum: f64 = all.map(|time| time.as_f64().unwrap()).sum();
    assert!((sum - end_us).abs() <= 1e-9 * end_us, "{sum} {end_us}");
    check(&["sim", "run", "for-ever.toml", "--governor", "avxfreq", "--json"], 15);
}

#[test]
fn a_simulation_in_words_says_that_it_is_partial() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("for-ever.toml"), FOR_EVER).unwrap();
    let output = interrupted(directory.path(), &["sim", "run", "for-ever.toml"], 2).unwrap();
    assert_eq!(output.status.code(), Some(130));
    let text = stdout(&output);
    let line = text.lines().find(|line| line.starts_with("PARTIAL: interrupted when ")).unwrap();
    assert!(line.ends_with(" of 400.000 s were simulated."), "{line}");
}

#[test]
fn a_comparison_has_only_runs_that_are_complete() {
    let found = check(&["sim", "compare", "for-ever.toml", "--json", "--report", "page.html"], 2);
    assert_eq!((&found["runs"], &found["asked_runs"]), (&0.into(), &30.into()));
    assert_eq!(found["governors"].as_array().unwrap().len(), 5);
    // Some of these runs may be complete.
    let directory = tempfile::tempdir().unwrap();
    let short = FOR_EVER.replace("end_us = 400_000_000", "end_us = 10_000");
    std::fs::write(directory.path().join("short.toml"), short).unwrap();
    let arguments =
        ["sim", "compare", "short.toml", "--repeat", "100000", "--governors", "avxfreq"];
    let output = interrupted(directory.path(), &arguments, 15).unwrap();
    assert_eq!(output.status.code(), Some(143), "{}", stderr(&output));
    let text = stdout(&output);
    let line = text.lines().find(|line| line.starts_with("PARTIAL: interrupted when ")).unwrap();
    assert!(line.ends_with(" of 100000 runs of each governor were complete."), "{line}");
}

/// Benches of Dimmer's own parts, some of which change clocks: none ends but by the way that undoes
/// that.
#[test]
fn a_bench_of_a_part_ends_in_order_without_a_result() {
    let directory = tempfile::tempdir().unwrap();
    let parts: [&[&str]; 6] = [
        &["dev", "lock", "--threads", "1"],
        &["dev", "region"],
        &["dev", "migrate"],
        &["dev", "delegate"],
        &["dev", "migrate-call"],
        &["phases"],
    ];
    for part in parts {
        let arguments = [&["bench"], part, &["--rounds", "1000", "--json=found.json"]].concat();
        let output = match interrupted(directory.path(), &arguments, 2) {
            // One CPU, or a machine on which threads do not migrate.
            Ok(output) | Err(output) if output.status.code() == Some(1) => {
                println!("SKIPPED: {part:?}: {}", stderr(&output));
                continue;
            }
            output => output.unwrap(),
        };
        assert_eq!(output.status.code(), Some(130), "{part:?}: {}", stderr(&output));
        let said = "interrupted: nothing was measured to its end\n";
        assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("", said), "{part:?}");
        assert!(!directory.path().join("found.json").exists(), "{part:?}");
    }
}

#[test]
fn phases_on_a_model_have_only_runs_that_are_complete() {
    let directory = tempfile::tempdir().unwrap();
    // Three simulated hours with very frequent reads of the counter.
    let arguments = [
        "sim",
        "phases",
        "3600000000",
        "3600000000",
        "3600000000",
        "--model",
        "i9-7940x",
        "--governor",
        "avxfreq",
        "--repeat",
        "100000",
        "--csv",
        "phases.csv",
    ];
    let output = interrupted(directory.path(), &arguments, 2).unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    let text = stdout(&output);
    let line = text.lines().find(|line| line.starts_with("PARTIAL: interrupted when ")).unwrap();
    let complete = line.split(' ').nth(3).unwrap().parse::<usize>().unwrap();
    assert!(line.ends_with(" of 100000 runs were complete."), "{line}");
    let csv = std::fs::read_to_string(directory.path().join("phases.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + 3 * complete);
}

#[test]
fn phases_on_this_machine_that_are_interrupted_are_partial() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["sim", "phases", "0", "0", "20000", "--repeat", "100000"];
    let output = match interrupted(directory.path(), &arguments, 2) {
        Ok(output) => output,
        Err(refused) => {
            println!("SKIPPED: {}", stderr(&refused));
            return;
        }
    };
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    let text = stdout(&output);
    let is_partial = |line: &str| {
        line.starts_with("PARTIAL: interrupted when ")
            && line.ends_with(" of 100000 runs were complete.")
    };
    let has_none = text.is_empty() && stderr(&output).contains("nothing was complete yet");
    assert!(has_none || text.lines().any(is_partial), "{text}{}", stderr(&output));
}

/// A validation takes only a second: the signal may come when all of it, or nothing, is complete.
#[test]
fn a_validation_has_only_experiments_that_are_complete() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["sim", "validate", "--paper", "000", "--json"];
    let output = interrupted(directory.path(), &arguments, 2).unwrap_or_else(|output| output);
    let found: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let whole = stdout(&crate::dimmer(directory.path(), &arguments));
    let whole: Value = serde_json::from_str(&whole).unwrap();
    assert_eq!(whole["partial"], false);
    let [found_rows, rows] = [&found, &whole].map(|found| found["rows"].as_array().unwrap());
    assert_eq!(found["partial"], found_rows.len() < rows.len());
    let status = output.status.code();
    assert!(status == Some(130) || status == Some(0) && found["partial"] == false, "{status:?}");
    assert!(found_rows.iter().all(|row| rows.contains(row)));
}

#[test]
fn phases_on_this_machine_end_and_tell_what_is_complete() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["sim", "phases", "0", "0", "100000", "--repeat", "1000"];
    let output = match interrupted(directory.path(), &arguments, 2) {
        Ok(output) => output,
        Err(output) => {
            let message = stderr(&output);
            assert!(message.contains("cannot measure by timing"), "{message}");
            println!("SKIPPED: {message}");
            return;
        }
    };
    assert_eq!(output.status.code(), Some(130));
    let message = stderr(&output);
    assert!(message.starts_with("interrupted: "), "{message}");
}
