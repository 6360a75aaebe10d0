//! Input that cannot be used gives exit status 2, and a message with what would be accepted.

use std::sync::PoisonError;

use crate::migrate::SHARED;
use crate::{command, dimmer, stderr};

#[track_caller]
fn check(arguments: &[&str], status: i32, says: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let output = dimmer(directory.path(), arguments);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(status), "{message}");
    for part in says {
        assert!(message.contains(part), "`{part}` is not in:\n{message}");
    }
    assert!(output.stdout.is_empty());
}

#[test]
fn unknown_kernel_lists_the_accepted_ones() {
    let says = ["unknown kernel `nonsense`", "vfmadd231pd-512-unrolled", "tdpbssd-tile-unrolled"];
    check(&["probe", "--mode", "episode", "--kernel", "nonsense"], 2, &says);
}

#[test]
fn unknown_mode_lists_the_accepted_ones() {
    check(&["probe", "--mode", "sideways"], 2, &["'sideways'", "episode, recurrence"]);
}

#[test]
fn cpu_that_does_not_exist_lists_the_allowed_ones() {
    check(&["probe", "--cpu", "9999"], 2, &["9999", "0"]);
}

#[test]
fn too_many_threads_says_how_many_there_are() {
    check(&["probe", "--threads", "100000"], 2, &["--threads 100000", "1 to "]);
}

#[test]
fn numbers_of_threads_for_locks_are_named() {
    check(&["bench", "dev", "lock", "--threads", "0"], 2, &["'0'", "--threads", "1 to 4294967295"]);
    check(&["bench", "dev", "lock", "--threads", "100000"], 2, &["--threads 100000", "1 to "]);
    let to = "--json=/proc/no/such/place";
    check(&["bench", "dev", "lock", to], 1, &["/proc/no/such/place"]);
}

#[test]
fn share_of_a_mixture_that_is_missing_is_named() {
    let mixture = "vfmadd231pd-512-unrolled+add-scalar-unrolled:3";
    check(&["probe", "--kernel", mixture], 2, &["vfmadd231pd-512-unrolled", "share from 1 to"]);
}

#[test]
fn output_that_cannot_be_written_is_found_before_measuring() {
    let begin = std::time::Instant::now();
    for option in ["--json", "--report", "--csv", "--emit-model"] {
        let to = format!("{option}=/proc/no/such/place");
        check(&["probe", &to], 1, &["/proc/no/such/place"]);
    }
    // Even a quick probe measures for seconds: none of the four did.
    assert!(begin.elapsed().as_secs() < 4);
}

#[test]
fn no_input_and_no_other_output_is_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let input = path("input");
    std::fs::copy("/bin/true", &input).unwrap();
    let (json, new) = (format!("--json={input}"), path("new"));
    check(&["scan", &input, &json], 2, &[&input, "names this file twice"]);
    assert_eq!(std::fs::read(&input).unwrap(), std::fs::read("/bin/true").unwrap());
    let outputs = [format!("--json={new}"), format!("--report={new}")];
    let says = [&*new, "names this file twice"];
    check(&["probe", "--quick", &outputs[0], &outputs[1]], 2, &says);
}

#[test]
fn what_is_no_file_or_too_long_is_refused_at_once() {
    // Without a free core, `dimmer run --migrate` says so before it reads the model.
    let _shared = SHARED.read().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let fifo = path("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    // The file is sparse, so it takes no room on the disk.
    let long = path("long");
    std::fs::File::create(&long).unwrap().set_len(20 << 30).unwrap();
    let scenario = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/video-encoder.toml");
    let of_kind = |file: &str, is: &str| {
        for arguments in [
            &["sim", "model", "check", file][..],
            &["sim", "run", file],
            &["sim", "run", scenario, "--model", file],
            &["sim", "compare", file],
            &["daemon", "replay", file],
            &["scan", file],
            &["scan", "/bin/true", "--model", file],
            &["observe", "--model", file, "--", "true"],
            &["run", "--migrate", "--model", file, "--", "true"],
        ] {
            let output = dimmer(directory.path(), arguments);
            let message = stderr(&output);
            assert!(matches!(output.status.code(), Some(1 | 2 | 125)), "{arguments:?}: {message}");
            assert!(message.contains(file), "{arguments:?}: {message}");
            assert!(is.split('|').any(|is| message.contains(is)), "{arguments:?}: {message}");
        }
    };
    of_kind(&fifo, "a FIFO|no regular file");
    of_kind("/dev/zero", "a character device|no regular file");
    of_kind(directory.path().to_str().unwrap(), "a directory|no regular file");
    of_kind(&long, "is longer than");
    // The same for what a scenario includes.
    let including = path("including.toml");
    for (name, is) in [("fifo", "a FIFO"), ("/dev/zero", "a character device"), ("long", "longer")]
    {
        std::fs::write(&including, format!("include = [\"{name}\"]\n")).unwrap();
        let output = dimmer(directory.path(), &["sim", "run", &including]);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{message}");
        let place = format!("{including}: line 1: `include`: \"{name}\"");
        assert!(message.contains(&place) && message.contains(is), "{message}");
    }
}

#[test]
fn commands_are_listed_without_any() {
    check(&[], 2, &["doctor", "probe", "scan", "sim", "daemon", "restore"]);
}

#[test]
fn bench_refuses_what_gives_no_interval_and_no_load() {
    check(&["bench"], 2, &["nginx"]);
    check(&["bench", "nginx", "--rounds", "0"], 2, &["--rounds", "3 to 1000"]);
    check(&["bench", "nginx", "--rounds", "2"], 2, &["--rounds", "3 to 1000"]);
    check(&["bench", "nginx", "--duration", "0s"], 2, &["--duration", "more than 0 s"]);
    check(&["bench", "nginx", "--json=/proc/no/such/place"], 1, &["/proc/no/such/place"]);
}

#[test]
fn a_reader_that_has_gone_ends_a_command_quietly() {
    let directory = tempfile::tempdir().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command(directory.path(), &["doctor"]).stdout(writer).output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(141), ""));
}

/// 2^64 ps are 213 days.
#[test]
fn a_scenario_that_lasts_longer_than_can_be_simulated_names_the_thread() {
    let directory = tempfile::tempdir().unwrap();
    let scenario = directory.path().join("long.toml");
    let text = r#"
schema = "dimmer/scenario/1"
name = "Months"
source = "made up for a test"
model = "i9-7940x"
cores = 1
[[code]]
name = "scalar"
class = "scalar"
per_cycle = 1.0
[[thread]]
name = "sleeper"
times = 300
steps = [{ run = "scalar", instructions = 1_000 }, { sleep_us = 86_400_000_000 }]
"#;
    std::fs::write(&scenario, text).unwrap();
    let scenario = scenario.to_str().unwrap();
    check(&["sim", "run", scenario], 2, &["thread sleeper has not finished", "`end_us`"]);
}

#[test]
fn what_only_the_simulation_finds_is_said_with_the_scenarios_file() {
    let directory = tempfile::tempdir().unwrap();
    let wrong = |from: &str, to: &str, says: &str| {
        let scenario = directory.path().join("wrong.toml");
        std::fs::write(&scenario, crate::interrupt::FOR_EVER.replace(from, to)).unwrap();
        let scenario = scenario.to_str().unwrap();
        for command in ["run", "compare"] {
            check(&["sim", command, scenario], 2, &[&format!("error: {scenario}: {says}")]);
        }
    };
    let step = r#"{ run = "scalar", us = 1 }]"#;
    let unlock = r#"{ run = "scalar", us = 1 }, { unlock = 1 }]"#;
    wrong(step, unlock, "thread short gives back lock 1 at ");
    wrong("cores = 1", "cores = 1\npstate = \"P77\"", "the model of ");
    wrong("cores = 1", "cores = 1000", "1000 cores were asked for");
    wrong("model = \"i9-7940x\"", "model = \"no-such\"", "line 5: `model`: ");
}

#[test]
fn places_that_do_not_exist_are_refused() {
    for command in ["doctor", "restore", "ps"] {
        let says = "--root /no/such: expected a directory like `/`";
        check(&["--root", "/no/such", command], 2, &[says]);
    }
    check(&["sim", "model", "check", "nope"], 2, &["cannot read nope"]);
    check(&["phases", "nope"], 2, &["cannot read nope"]);
    check(&["scan", "--perf", "nope"], 2, &["cannot read nope"]);
}

#[test]
fn what_another_option_needs_is_not_ignored() {
    for option in ["--folded", "--perf-maps"] {
        check(&["scan", "/bin/true", option, "x"], 2, &[option, "cannot be used with"]);
        check(&["scan", "-p", "1", option, "x"], 2, &[option, "cannot be used with"]);
    }
}

#[test]
fn a_version_that_cannot_be_printed_is_a_failure() {
    let directory = tempfile::tempdir().unwrap();
    for option in ["--version", "--help"] {
        let full = std::fs::File::create("/dev/full").unwrap();
        let output = command(directory.path(), &[option]).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{option}");
        assert!(stderr(&output).contains("No space left on device"), "{}", stderr(&output));
    }
}

#[test]
fn what_an_input_names_is_not_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let [outer, inner] = [path("outer.toml"), path("inner.toml")];
    std::fs::write(&outer, "schema = 'dimmer/scenario/1'\ninclude = ['inner.toml']\n").unwrap();
    std::fs::copy(
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/multiphase-worst-case.toml"),
        &inner,
    )
    .unwrap();
    let before = std::fs::read(&inner).unwrap();
    check(
        &["sim", "compare", &outer, "--repeat=1", "-o", &inner],
        2,
        &[&inner, "was read as well"],
    );
    assert_eq!(std::fs::read(&inner).unwrap(), before);
}

#[test]
fn bad_input_leaves_no_file_for_results() {
    let directory = tempfile::tempdir().unwrap();
    let to = directory.path().join("new");
    let json = format!("--json={}", to.display());
    check(&["sim", "run", "no-such", &json], 2, &["no scenario or file"]);
    assert!(!to.exists());
}

#[test]
fn an_argument_may_be_no_text() {
    use std::os::unix::ffi::OsStrExt as _;
    crate::victims::library();
    let directory = tempfile::tempdir().unwrap();
    let mut observe = command(directory.path(), &["observe", "--", "sh", "-c", "exit 3"]);
    let observe = observe.env("HOME", directory.path());
    let output = observe.arg(std::ffi::OsStr::from_bytes(b"\xff")).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
}
