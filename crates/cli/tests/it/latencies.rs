//! `dimmer probe --mode latency,pstate` and `dimmer pstate tune`: on this machine, and on made-up
//! ones with cpufreq.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::thread;
use std::time::Duration;

use dimmer_host::cpuid::{Cpuid, Feature};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::interrupt::catches_signals;
use crate::{dimmer, heeding, stderr, stdout};

const POLICY: &str = "sys/devices/system/cpu/cpufreq/policy0";

/// Every CPU that this machine can have is in one policy. A made-up machine has no clock: the real
/// one stays as it is.
fn made_up_machine() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let put = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    };
    let cpus: Vec<String> = (0..8192).map(|cpu| cpu.to_string()).collect();
    for (name, text) in [
        ("affected_cpus", cpus.join(" ").as_str()),
        ("base_frequency", "3100000"),
        ("cpuinfo_min_freq", "1400000"),
        ("cpuinfo_max_freq", "4000000"),
        ("scaling_min_freq", "1400000"),
        ("scaling_max_freq", "4000000"),
        ("scaling_governor", "schedutil"),
        ("scaling_available_governors", "performance userspace schedutil"),
        ("scaling_available_frequencies", "4000000 3100000 1400000"),
        ("scaling_setspeed", "<unsupported>"),
    ] {
        put(&format!("{POLICY}/{name}"), text);
    }
    put("sys/devices/system/cpu/cpufreq/boost", "1");
    put("dev/cpu_dma_latency", "");
    root
}

/// Whether this machine's counter tells time, as the mode `latency` needs.
fn has_clock() -> bool {
    let is_invariant = Cpuid::instruction().has(Feature::InvariantTsc);
    if !is_invariant {
        println!("SKIPPED: the time-stamp counter is not invariant");
    }
    is_invariant
}

fn files(root: &Path) -> BTreeMap<String, String> {
    let folders = ["sys/devices/system/cpu/cpufreq", POLICY, "dev"];
    let paths = folders.iter().flat_map(|folder| fs::read_dir(root.join(folder)).unwrap());
    let paths = paths.map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    paths
        .map(|path| (path.display().to_string(), fs::read_to_string(path).unwrap().trim().into()))
        .collect()
}

fn run(root: &Path, arguments: &[&str]) -> Output {
    dimmer(root, &[&["--root", root.to_str().unwrap()], arguments].concat())
}

#[test]
fn a_dash_after_json_is_standard_output() {
    if !has_clock() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["probe", "--mode", "latency", "--quick", "--repetitions", "4", "--json", "-"];
    let output = dimmer(directory.path(), &arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    let document: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(document["schema"], "dimmer/probe-latency/1");
    let latencies = document["latencies"].as_array().unwrap();
    let call = latencies.iter().find(|one| one["what"] == "getppid").unwrap();
    assert!(call["samples"].as_u64() >= Some(20), "{call}");
    assert!(call["latency_ns"]["ci95"].is_array(), "{call}");
    assert_eq!(document["transitions"], Value::Null);
    assert_eq!(document["interrupted"], false);
}

#[test]
fn measures_requests_of_a_machine_whose_clock_stays_and_undoes_them() {
    let root = made_up_machine();
    let before = files(root.path());
    let arguments = ["probe", "--mode", "pstate", "--quick", "--repetitions", "20", "--json"];
    let output = run(root.path(), &arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    let document: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let transitions = &document["transitions"];
    assert_eq!(transitions["requested_by"], "scaling_setspeed");
    let points = transitions["points"].as_array().unwrap();
    let clocks: Vec<_> = points.iter().map(|point| point["clock_khz"].as_u64()).collect();
    assert_eq!(clocks, [1_400_000, 3_100_000, 4_000_000].map(Some));
    let pairs = transitions["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 6);
    // On a loaded machine the clock may look changed before each request of a pair.
    let is_timed = |pair: &Value| pair["request_ns"]["median"].as_f64() > Some(0.0);
    let is_unseen = |pair: &Value| pair["unseen"].as_u64() > Some(0);
    assert!(pairs.iter().all(|pair| is_timed(pair) || is_unseen(pair)), "{pairs:?}");
    assert_eq!(files(root.path()), before);
}

#[test]
fn a_machine_without_clocks_to_set_is_told_what_is_missing() {
    let root = tempfile::tempdir().unwrap();
    let output = run(root.path(), &["probe", "--mode", "pstate"]);
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(said.contains("operating points not available"), "{said}");
    assert!(said.contains("no policy under /sys/devices/system/cpu/cpufreq"), "{said}");
    assert!(said.contains("use bare metal, with a driver for cpufreq; or "), "{said}");
    if has_clock() {
        let both = ["probe", "--mode", "pstate,latency", "--quick", "--repetitions", "4", "--json"];
        let output = run(root.path(), &both);
        assert!(output.status.success(), "{}", stderr(&output));
        let document: Value = serde_json::from_str(&stdout(&output)).unwrap();
        let skipped = document["skipped"].as_array().unwrap();
        assert!(skipped.iter().any(|one| one["what"] == "operating points"), "{skipped:?}");
    }
    assert!(!root.path().join("run/dimmer").exists());
}

#[test]
fn options_of_kernels_do_not_go_with_latencies() {
    let directory = tempfile::tempdir().unwrap();
    for (arguments, named) in [
        (["--mode", "latency,episode"].as_slice(), "episode"),
        (&["--mode", "latency", "--kernel", "vpaddd-512-unrolled"], "--kernel"),
        (&["--mode", "pstate", "--turbo-off"], "--turbo-off"),
        (&["--mode", "latency", "--report", "page.html"], "--report"),
        (&["--mode", "latency", "-"], "--json"),
        (&["--mode", "latency", "--json=page.html", "-"], "--json=FILE"),
        (&["--json=page.html", "-"], "--json=FILE"),
    ] {
        let output = dimmer(directory.path(), &[&["probe"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(named), "{arguments:?}: {}", stderr(&output));
        assert!(!directory.path().join("page.html").exists());
    }
}

#[test]
fn a_program_runs_on_a_machine_that_is_set_up() {
    let root = made_up_machine();
    let before = files(root.path());
    let listed = run(root.path(), &["pstate", "tune", "--list"]);
    assert!(listed.status.success(), "{}", stderr(&listed));
    let expected = "\
/sys/devices/system/cpu/cpufreq/boost: 1 -> 0
scaling_governor of policy0: schedutil -> performance
scaling_min_freq of policy0: 1400000 -> 3100000
scaling_max_freq of policy0: 4000000 -> 3100000
/dev/cpu_dma_latency: 0, so that no core sleeps
";
    assert_eq!(stdout(&listed), expected);
    assert_eq!(files(root.path()), before);
    let script = format!("cat {POLICY}/scaling_min_freq {POLICY}/scaling_governor; exit 7");
    let output = run(root.path(), &["pstate", "tune", "--", "sh", "-c", &script]);
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert_eq!(stdout(&output), "3100000performance");
    assert_eq!(stderr(&output), expected);
    assert_eq!(files(root.path()), before);
}

/// A list changes nothing, not even what a killed process has left.
#[test]
fn a_list_needs_no_journal() {
    let root = made_up_machine();
    fs::create_dir_all(root.path().join("run/dimmer/lock")).unwrap();
    fs::write(root.path().join("run/dimmer/journal.1.0"), "left\n").unwrap();
    let listed = run(root.path(), &["pstate", "tune", "--list"]);
    assert!(listed.status.success(), "{}", stderr(&listed));
    assert!(stdout(&listed).contains("boost: 1 -> 0"), "{}", stdout(&listed));
    assert_eq!(fs::read_to_string(root.path().join("run/dimmer/journal.1.0")).unwrap(), "left\n");
    let both = run(root.path(), &["pstate", "tune", "--list", "--", "true"]);
    assert_eq!(both.status.code(), Some(125), "{}", stderr(&both));
}

/// The set-up waits for the lock of the journals; the signal comes meanwhile.
#[test]
fn a_signal_during_the_set_up_keeps_the_program_from_running() {
    let root = made_up_machine();
    let before = files(root.path());
    fs::create_dir_all(root.path().join("run/dimmer")).unwrap();
    let lock = fs::File::create(root.path().join("run/dimmer/lock")).unwrap();
    lock.lock().unwrap();
    let arguments =
        ["--root", root.path().to_str().unwrap(), "pstate", "tune", "--", "touch", "ran"];
    let mut child = heeding("--default-signal=TERM", root.path(), &arguments).spawn().unwrap();
    while !catches_signals(child.id()) {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        thread::sleep(Duration::from_millis(1));
    }
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    lock.unlock().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert!(!root.path().join("ran").exists());
    assert_eq!(files(root.path()), before);
}

/// The program has ended, and the journal waits for its lock; then signals come, as from a sender
/// that loses patience.
#[test]
fn signals_while_all_is_undone_leave_nothing_changed() {
    let root = made_up_machine();
    let before = files(root.path());
    let script = "echo $$ > pid.new; mv pid.new pid; exec sleep 600";
    let place = root.path().to_str().unwrap();
    let arguments = ["--root", place, "pstate", "tune", "--", "sh", "-c", script];
    let mut child = heeding("--default-signal=TERM", root.path(), &arguments).spawn().unwrap();
    let pid = || fs::read_to_string(root.path().join("pid")).ok();
    while pid().is_none() {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        thread::sleep(Duration::from_millis(1));
    }
    let program = format!("/proc/{}", pid().unwrap().trim());
    let lock = fs::File::open(root.path().join("run/dimmer/lock")).unwrap();
    lock.lock().unwrap();
    let end = || kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    end();
    while Path::new(&program).exists() {
        thread::sleep(Duration::from_millis(1));
    }
    for _ in 0..20 {
        end();
        thread::sleep(Duration::from_millis(2));
    }
    assert!(child.try_wait().unwrap().is_none(), "it has not waited for the lock");
    lock.unlock().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
    fs::remove_file(root.path().join("pid")).unwrap();
    assert_eq!(files(root.path()), before);
}

/// Signals come twice at any moment, from the start on. Either the program is not started, or it
/// gets one.
#[test]
fn signals_at_any_moment_leave_nothing_changed_and_end_the_program() {
    let root = made_up_machine();
    let before = files(root.path());
    let place = root.path().to_str().unwrap();
    let arguments = ["--root", place, "pstate", "tune", "--", "sleep", "600"];
    for round in 0..40 {
        let mut child = heeding("--default-signal=TERM", root.path(), &arguments).spawn().unwrap();
        thread::sleep(Duration::from_micros(500 * round));
        for _ in 0..2 {
            kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        }
        let status = child.wait().unwrap();
        let by_default = status.signal() == Some(Signal::TERM.as_raw());
        assert!(status.code() == Some(143) || by_default, "round {round}: {status}");
        assert_eq!(files(root.path()), before, "round {round}: {status}");
    }
}

#[test]
fn a_set_up_without_a_program_reports_where_it_is_told_to() {
    let root = made_up_machine();
    let before = files(root.path());
    let at = root.path().join("report");
    let arguments = ["-o", at.to_str().unwrap(), "pstate", "tune"];
    let arguments = [&["--root", root.path().to_str().unwrap()], arguments.as_slice()].concat();
    let child = heeding("--default-signal=TERM", root.path(), &arguments).spawn().unwrap();
    let output = ended_once(root.path(), "performance", child, || ());
    assert!(output.status.success(), "{output:?}");
    let report = fs::read_to_string(&at).unwrap();
    assert!(report.contains("boost: 1 -> 0"), "{report}");
    assert_eq!(files(root.path()), before);
}

/// Waits until the governor is this one and what is written after it too, acts, ends the process by
/// SIGTERM, and waits for that.
fn ended_once(root: &Path, governor: &str, mut child: Child, act: impl FnOnce()) -> Output {
    let holds = |name: &str, content: &str| {
        fs::read_to_string(root.join(POLICY).join(name)).unwrap().trim() == content
    };
    let is_set_up = || {
        let is_limited = holds("scaling_max_freq", "3100000");
        holds("scaling_governor", governor)
            && (is_limited || !holds("scaling_setspeed", "<unsupported>"))
    };
    while !is_set_up() {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        thread::sleep(Duration::from_millis(1));
    }
    act();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn what_cannot_be_undone_is_a_failure() {
    for (arguments, governor) in [
        (["probe", "--mode", "pstate", "--repetitions", "100000"].as_slice(), "userspace"),
        (&["probe", "--mode", "latency,pstate", "--repetitions", "100000"], "userspace"),
        (&["pstate", "tune"], "performance"),
    ] {
        if arguments.contains(&"latency,pstate") && !has_clock() {
            continue;
        }
        let root = made_up_machine();
        let file = root.path().join(POLICY).join("scaling_governor");
        let arguments = [&["--root", root.path().to_str().unwrap()], arguments].concat();
        let mut command = heeding("--default-signal=TERM", root.path(), &arguments);
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let output = ended_once(root.path(), governor, child, || {
            fs::remove_file(&file).unwrap();
            fs::create_dir(&file).unwrap();
        });
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains("scaling_governor to schedutil"), "{arguments:?}: {said}");
        fs::remove_dir(&file).unwrap();
        fs::write(&file, format!("{governor}\n")).unwrap();
        assert!(run(root.path(), &["restore"]).status.success());
        assert_eq!(fs::read_to_string(&file).unwrap().trim(), "schedutil");
    }
}

/// What is in the way of clocks is not in the way of the rest.
#[test]
fn what_is_wrong_with_clocks_leaves_the_rest_to_measure() {
    let spoilt_processor = |root: &Path| fs::write(root.join("cpuid.txt"), "nonsense\n").unwrap();
    let spoilt_journals = |root: &Path| {
        fs::create_dir_all(root.join("run/dimmer/lock")).unwrap();
        fs::write(root.join("run/dimmer/journal.1.0"), "left\n").unwrap();
    };
    for (spoil, reason) in [
        (&spoilt_processor as &dyn Fn(&Path), "cpuid table, line 1"),
        (&spoilt_journals, "cannot open the journal"),
    ] {
        let root = made_up_machine();
        spoil(root.path());
        let alone = run(root.path(), &["probe", "--mode", "pstate"]);
        assert_eq!(alone.status.code(), Some(1), "{reason}");
        assert!(stderr(&alone).contains(reason), "{}", stderr(&alone));
        if !has_clock() {
            continue;
        }
        let both = ["probe", "--mode", "pstate,latency", "--quick", "--repetitions", "4", "--json"];
        let output = run(root.path(), &both);
        assert!(output.status.success(), "{}", stderr(&output));
        let document: Value = serde_json::from_str(&stdout(&output)).unwrap();
        let skipped = document["skipped"].as_array().unwrap();
        let skip = skipped.iter().find(|one| one["what"] == "operating points").unwrap();
        assert!(skip["reason"].as_str().unwrap().contains(reason), "{skip}");
    }
}

#[test]
fn a_set_up_that_fails_has_the_statuses_of_wrappers() {
    let root = made_up_machine();
    let before = files(root.path());
    let status = |arguments: &[&str]| run(root.path(), arguments).status.code();
    assert_eq!(status(&["pstate", "tune", "--", "no-such-program-at-all"]), Some(127));
    assert_eq!(status(&["pstate", "tune", "--", "/dev/null"]), Some(126));
    assert_eq!(status(&["pstate", "tune", "--", "sh", "-c", "kill -9 $$"]), Some(137));
    assert_eq!(files(root.path()), before);
    let bare = tempfile::tempdir().unwrap();
    let output = run(bare.path(), &["pstate", "tune", "--", "true"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("no /dev/cpu_dma_latency"), "{}", stderr(&output));
    assert_eq!(run(bare.path(), &["pstate", "tune"]).status.code(), Some(1));
}
