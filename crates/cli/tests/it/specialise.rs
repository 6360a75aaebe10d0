//! `dimmer run --specialise`: threads of programs that the test compiles go to a wide CPU and come
//! back, and the programs notice nothing.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use dimmer_host::affinity;
use serde_json::Value;

use crate::migrate::{PROGRAMS, away, early_ms};
use crate::victims::{self, Victims};
use crate::{command, stderr, stdout};

/// How often a program runs at most until its threads have gone and come back: on a busy machine
/// one may wait long for a CPU, and a run ends in time.
const RUNS: usize = 10;

/// Likewise, for each of many programs: some of them may go nowhere.
const FEW_RUNS: usize = 4;

fn specialise(victims: &Victims, arguments: &[&str]) -> Output {
    at_home(victims, arguments).output().unwrap()
}

fn at_home(victims: &Victims, arguments: &[&str]) -> Command {
    victims::library();
    let home = victims.directory.path();
    let mut command = command(home, &["run"]);
    command.env("HOME", home).env_remove("XDG_CACHE_HOME").env_remove("XDG_STATE_HOME");
    command.args(arguments);
    command
}

/// Reads what `--json=FILE` has written.
fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn threads_go_and_come_back_and_the_program_does_the_same() {
    let Some(cpu) = away() else { return };
    let Some(victims) = Victims::compile(&["specialised"]) else { return };
    let program = victims.path("specialised");
    let plain = Command::new(&program).args([&cpu, "-"]).output().unwrap();
    let [seen, report] = ["seen", "report"].map(|name| victims.path(name));
    let json_to = format!("--json={report}");
    let run = |_: usize| {
        let output = specialise(
            &victims,
            &[
                "--specialise=wide,wide_around",
                "--cpus",
                &cpu,
                &json_to,
                "--",
                &program,
                &cpu,
                &seen,
            ],
        );
        let told = stderr(&output);
        // Whatever the times, the program does the same.
        assert_eq!((stdout(&output), output.status.code()), (stdout(&plain), Some(7)), "{told}");
        assert!(told.contains(&format!("threads that call 2 functions go to cpu {}; ", &*cpu)));
        let noted = std::fs::read_to_string(&seen).unwrap();
        let report = json(Path::new(&report));
        let threads = report["threads"].as_array().unwrap();
        let is_pinned = |thread: &Value| thread["stays"][0] == "pinned" && thread["to_wide"] == 0;
        assert!(threads.iter().any(is_pinned), "one has pinned itself: {report}\n{told}");
        assert_eq!(report["schema"], "dimmer/specialise/1");
        assert!(told.contains("as the program has pinned it"), "{told}");
        let has_moved = report["to_wide"].as_u64() > Some(0) && report["back"].as_u64() > Some(0);
        noted.lines().count() > 4 && noted.lines().all(|line| line.ends_with(" 1")) && has_moved
    };
    assert!((0..RUNS).any(run), "threads go and come back");
}

/// The functions of a program that a thread can become wide at, by name.
pub(crate) fn functions(program: &str) -> String {
    let scan = dimmer_scan::scan(&std::fs::read(program).unwrap()).unwrap();
    let can = |function: &&dimmer_scan::Function| {
        function.name.as_deref() != Some("main") && function.hook.is_ok()
    };
    let names: Vec<&str> =
        scan.functions.iter().filter(can).filter_map(|one| one.name.as_deref()).collect();
    names.join(",")
}

#[test]
fn programs_do_the_same_with_every_function_wide() {
    let Some(cpu) = away() else { return };
    let Some(victims) = Victims::compile(&PROGRAMS) else { return };
    let report = victims.path("report");
    let json_to = format!("--json={report}");
    let mut moved = 0;
    for name in PROGRAMS {
        let program = victims.path(name);
        let plain = Command::new(&program).output().unwrap();
        let mechanism = format!("--specialise={}", functions(&program));
        let goes = |run: usize| {
            let mut specialised = at_home(
                &victims,
                &[&mechanism, "--cpus", &*cpu, &json_to, "-o", "/dev/null", "--", &program],
            );
            let output = specialised.env("EARLY_MS", early_ms(run)).output().unwrap();
            let told = stderr(&output);
            assert_eq!(stdout(&output), stdout(&plain), "{name}: {told}");
            assert_eq!(output.status.code(), plain.status.code(), "{name}: {told}");
            json(Path::new(&report))["to_wide"].as_u64() > Some(0)
        };
        // Some end before anybody has looked at them.
        moved += usize::from((0..FEW_RUNS).any(goes));
    }
    assert!(moved > 0, "threads of some went to the wide CPU");
}

#[test]
fn an_allocator_that_is_in_the_middle_of_its_work_is_not_entered() {
    let Some(cpu) = away() else { return };
    let Some(victims) = Victims::compile(&["allocates"]) else { return };
    let program = victims.path("allocates");
    let plain = Command::new(&program).output().unwrap();
    let report = victims.path("report");
    let json_to = format!("--json={report}");
    let goes = |run: usize| {
        let arguments = ["--specialise=take_time", "--cpus", &cpu, &json_to, "--", &program];
        let output = at_home(&victims, &arguments).env("EARLY_MS", early_ms(run)).output().unwrap();
        let told = stderr(&output);
        assert_eq!((stdout(&output), output.status.code()), (stdout(&plain), Some(5)), "{told}");
        json(Path::new(&report))["to_wide"].as_u64() > Some(0)
    };
    assert!((0..RUNS).any(goes));
}

#[test]
fn a_program_that_was_started_on_narrow_cpus_alone_stays_there() {
    let Some(cpu) = away() else { return };
    if Command::new("taskset").arg("--version").output().is_err() {
        println!("SKIPPED: there is no taskset");
        return;
    }
    let Some(victims) = Victims::compile(&["specialised"]) else { return };
    let program = victims.path("specialised");
    let scan = dimmer_scan::scan(&std::fs::read(&program).unwrap()).unwrap();
    let is_wide = |function: &&dimmer_scan::Function| function.name.as_deref() == Some("wide");
    let wide = scan.functions.iter().find(is_wide).unwrap().addresses.start;
    let report = victims.path("report");
    let all = affinity::allowed().unwrap();
    let rest: Vec<String> =
        all[..all.len() - 1].iter().map(|cpu| cpu.index().to_string()).collect();
    let (mechanism, json_to) =
        (format!("--specialise={program}:{wide:#x}"), format!("--json={report}"));
    let arguments = [&mechanism, "--cpus", &*cpu, &json_to, "--", "taskset", "-c"];
    let output = specialise(&victims, &[&arguments[..], &[&rest.join(","), &program]].concat());
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    let report = json(Path::new(&report));
    assert!(report["functions"][0]["calls"].as_u64() > Some(0), "{report}");
    assert_eq!(report["to_wide"], 0, "{report}");
}

/// The CPUs that the kernel lets a process's first thread run on.
pub(crate) fn affinity_of(process: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.unwrap_or_default().trim().to_owned()
}

/// Waits for a condition, for up to half a minute.
pub(crate) fn wait_for(mut is_so: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(30);
    while Instant::now() < end {
        if is_so() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

#[test]
fn threads_get_their_affinity_back_once_who_decides_was_killed() {
    let Some(cpu) = away() else { return };
    let Some(victims) = Victims::compile(&["orphan"]) else { return };
    let own = affinity_of("self");
    let program = victims.path("orphan");
    let arguments = ["--specialise=kept", "--cpus", &*cpu, "--", &program];
    let mut decides = at_home(&victims, &arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut number = String::new();
    BufReader::new(decides.stdout.take().unwrap()).read_line(&mut number).unwrap();
    let number = number.trim();
    assert!(wait_for(|| affinity_of(number) == *cpu), "it goes there and stays");
    // While the wide CPUs change, it may be taken for one of those that are kept off them.
    let mut narrow = affinity::allowed().unwrap();
    narrow.retain(|one| one.to_string() != *cpu);
    affinity::allow_thread(Some(number.parse().unwrap()), &narrow).unwrap();
    assert!(wait_for(|| affinity_of(number) == *cpu), "{} is not {}", affinity_of(number), &*cpu);
    decides.kill().unwrap();
    // It goes on, where it may run.
    let stays = || {
        let is_own = |_| {
            std::thread::sleep(Duration::from_millis(5));
            affinity_of(number) == own
        };
        (0..10).all(is_own)
    };
    assert!(wait_for(stays), "{} is not {own}", affinity_of(number));
    drop(decides.stdin.take());
    decides.wait().unwrap();
    assert!(wait_for(|| is_dead(number)), "it ends at the signal");
}

fn is_dead(process: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.is_empty() || stat.contains(") Z ")
}

#[test]
fn what_cannot_be_wide_is_refused_with_what_could() {
    let Some(cpu) = away() else { return };
    let Some(victims) = Victims::compile(&["calls"]) else { return };
    let program = victims.path("calls");
    let refused = |arguments: &[&str]| {
        let output = specialise(&victims, &[arguments, &["--", &program]].concat());
        assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
        assert_eq!(stdout(&output), "");
        stderr(&output)
    };
    let told = refused(&["--specialise=manny", "--cpus", &cpu]);
    assert!(told.contains("no function `manny`") && told.contains("`many`"), "{told}");
    let told = refused(&["--specialise=many", "--cpus", "4095"]);
    assert!(told.contains("cpu 4095 does not exist, allowed are"), "{told}");
    let all: Vec<String> =
        affinity::allowed().unwrap().iter().map(|cpu| cpu.index().to_string()).collect();
    let told = refused(&["--specialise=many", "--cpus", &all.join(",")]);
    assert!(told.contains("no other is left for narrow code"), "{told}");
    let told = refused(&["--specialise=many", "--migrate", "--cpus", &cpu]);
    assert!(told.contains("--specialise does not go with --migrate"), "{told}");
    let told = refused(&["--specialise=many", "--auto"]);
    assert!(told.contains("--specialise does not go with --auto"), "{told}");
    let told = refused(&["--specialise=many", "--dedicate", "--cpus", &cpu]);
    assert!(told.contains("--dedicate is not for --specialise"), "{told}");
    let told = refused(&["--specialise=many", "--model", "fx-8120", "--cpus", &cpu]);
    assert!(told.contains("--model chooses functions"), "{told}");
    // No probe has stored a model in this home directory.
    let told = refused(&["--specialise", "--cpus", &cpu]);
    assert!(told.contains("no processor model") && told.contains("--specialise=FN"), "{told}");
    let output = specialise(
        &victims,
        &["--specialise", "--model", "fx-8120", "--cpus", &cpu, "--", &program],
    );
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("Specialise: nothing to move: by fx-8120, no code"),
        "{}",
        stderr(&output)
    );
}
