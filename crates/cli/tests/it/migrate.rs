//! `dimmer run --migrate`: programs whose calls are moved to another core behave as they
//! do without it.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::ops::Deref;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use dimmer_hook::{Ledger, PlannedEntry};
use dimmer_host::affinity;
use dimmer_processor::class::InstructionClass;

use crate::victims::{self, Victims};
use crate::{command, dimmer, stderr, stdout};

/// The CPU that calls are moved to, while this exists.
pub(crate) struct Cpu {
    name: String,
    // Released when this is dropped.
    _shared: RwLockReadGuard<'static, ()>,
}

impl Deref for Cpu {
    type Target = str;

    fn deref(&self) -> &str {
        &self.name
    }
}

/// Tests share CPUs, except the test that dedicates some.
pub(crate) static SHARED: RwLock<()> = RwLock::new(());

/// The CPU to move calls to. If calls cannot be moved, prints the reason and returns `None`.
pub(crate) fn away() -> Option<Cpu> {
    let name = last_cpu()?;
    Some(Cpu { name, _shared: SHARED.read().unwrap_or_else(PoisonError::into_inner) })
}

/// Like [`away`], but without the lock that tests share.
pub(crate) fn last_cpu() -> Option<String> {
    let allowed = affinity::allowed().unwrap();
    if let Err(why) = dimmer_runtime::check_migration() {
        println!("SKIPPED: {why}");
        return None;
    }
    let [_, .., last] = allowed.as_slice() else {
        println!("SKIPPED: moving calls takes two CPUs, and this process may run on one");
        return None;
    };
    Some(last.index().to_string())
}

/// How often a program runs at most until calls of it have moved: on a busy machine, a run may end
/// before its worker has begun to look for calls.
pub(crate) const RUNS: usize = 30;

/// How long some programs wait before they begin (ms; victims/early.h): longer from run to run, so
/// that on any machine the worker has begun to look for calls in the end.
pub(crate) fn early_ms(run: usize) -> String {
    (100 << run.min(5)).to_string()
}

/// Runs a program in which calls of all functions except `main` are moved, the `run`th time; all
/// other calls are made within `main`. Returns the number of moved calls.
fn move_all(victims: &Victims, cpu: &str, arguments: &[&str], run: usize) -> u64 {
    move_calls(victims, cpu, arguments, run, |name| name != Some("main"))
}

/// Likewise, of the functions whose names `is_moved` accepts.
fn move_calls(
    victims: &Victims,
    cpu: &str,
    arguments: &[&str],
    run: usize,
    is_moved: impl Fn(Option<&str>) -> bool,
) -> u64 {
    let directory = victims.directory.path();
    let plans = tempfile::tempdir_in(directory).unwrap();
    let ledgers = tempfile::tempdir_in(directory).unwrap();
    let program = Path::new(arguments[0]);
    let scan = dimmer_scan::scan(&std::fs::read(program).unwrap()).unwrap();
    let functions = scan.functions.iter().filter(|function| is_moved(function.name.as_deref()));
    let entry = |function: &dimmer_scan::Function| {
        Some(PlannedEntry::new(function.addresses.start, function.hook.ok()?))
    };
    dimmer_hook::keep_plan(program, functions.filter_map(entry).collect(), plans.path()).unwrap();
    let program = |early_ms| {
        let mut program = Command::new(arguments[0]);
        program.args(&arguments[1..]).env("EARLY_MS", early_ms);
        program
    };
    let plain = program("0".to_owned()).output().unwrap();
    let mut moving = program(early_ms(run));
    moving.env("LD_PRELOAD", victims::library());
    moving.env(dimmer_hook::DIRECTORY, ledgers.path()).env(dimmer_hook::PLANS, plans.path());
    moving.env(dimmer_hook::CLASSES, InstructionClass::Scalar.name()).env(dimmer_hook::MOVE, "all");
    let moved = moving.env(dimmer_runtime::CORES, cpu).output().unwrap();
    assert_eq!(stdout(&moved), stdout(&plain), "{}", stderr(&moved));
    assert_eq!(stderr(&moved), stderr(&plain));
    assert_eq!(moved.status.code(), plain.status.code());
    let ledgers = Ledger::all_in(ledgers.path()).unwrap();
    let ledgers = ledgers.iter().map(|path| Ledger::open(path).unwrap());
    ledgers.map(|ledger| ledger.threads().map(|thread| thread.moved()).sum::<u64>()).sum()
}

/// Programs without arguments that do the same whatever moves.
pub(crate) const PROGRAMS: [&str; 15] = [
    "allocates",
    "migrated",
    "calls",
    "cancelled",
    "coroutines",
    "faults",
    "forks",
    "inner",
    "jumps",
    "last_thread",
    "mutexes",
    "old_conditions",
    "sandboxed",
    "signals",
    "exceptions",
];

#[test]
fn programs_do_the_same_with_every_call_moved() {
    let Some(cpu) = away() else { return };
    let names = [&PROGRAMS[..], &["unrecoverable"]].concat();
    let Some(victims) = Victims::compile(&[&names[..], &["loads", "plugin"]].concat()) else {
        return;
    };
    let moves =
        |arguments: &[&str]| (0..RUNS).any(|run| move_all(&victims, &cpu, arguments, run) > 0);
    for name in names {
        assert!(moves(&[&victims.path(name)]), "{name}");
    }
    assert!(moves(&[&victims.path("loads"), &victims.path("plugin")]));
}

#[test]
fn an_allocator_that_is_in_the_middle_of_its_work_is_not_entered() {
    let Some(cpu) = away() else { return };
    let Some(victims) = Victims::compile(&["allocates"]) else { return };
    let arguments = [&*victims.path("allocates")];
    let moves = |run| move_calls(&victims, &cpu, &arguments, run, |name| name == Some("take_time"));
    assert!((0..RUNS).any(|run| moves(run) > 0));
}

fn migrate(victims: &Victims, arguments: &[&str]) -> Output {
    victims::library();
    let home = victims.directory.path();
    let mut command = command(home, &["run"]);
    command.env("HOME", home).env_remove("XDG_CACHE_HOME").env_remove("XDG_STATE_HOME");
    command.args(arguments).output().unwrap()
}

#[test]
fn what_becomes_of_named_functions_is_told() {
    let Some(cpu) = away() else { return };
    let Some(victims) = Victims::compile(&["migrated", "calls"]) else { return };
    let program = victims.path("migrated");
    let plain = Command::new(&program).output().unwrap();
    let output = migrate(&victims, &["--migrate=integers,vector", "--cpus", &cpu, "--", &program]);
    assert_eq!(stdout(&output), stdout(&plain), "{}", stderr(&output));
    let told = stderr(&output);
    assert!(
        told.contains(&format!(
            "calls of 2 functions may move to cpu {}; there and back takes ",
            &*cpu
        )),
        "{told}"
    );
    // Whether these calls are moved depends on the present time of a move.
    let is_told = |name| told.lines().any(|line| line.starts_with(&format!("    {name} ")));
    assert!(is_told("integers") && is_told("vector"), "{told}");
    // These calls take some nanoseconds.
    let output =
        migrate(&victims, &["--migrate=many", "--cpus", &cpu, "--", &victims.path("calls")]);
    assert_eq!(output.status.code(), Some(7));
    let told = stderr(&output);
    assert!(told.contains("Migrate: 0 of 100 calls were moved."), "{told}");
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
fn calls_stay_once_who_decides_has_been_killed() {
    let Some(cpu) = away() else { return };
    let Some(victims) = Victims::compile(&["orphan"]) else { return };
    victims::library();
    let home = victims.directory.path();
    let mut command = command(home, &["run"]);
    command.env("HOME", home).env_remove("XDG_CACHE_HOME").env_remove("XDG_STATE_HOME");
    command.args(["--migrate=kept", "--cpus", &cpu, "--", &victims.path("orphan")]);
    let mut decides =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut number = String::new();
    BufReader::new(decides.stdout.take().unwrap()).read_line(&mut number).unwrap();
    let environment = std::fs::read(format!("/proc/{}/environ", number.trim())).unwrap();
    let named = format!("{}=", dimmer_hook::DIRECTORY);
    let environment = String::from_utf8(environment).unwrap();
    let directory =
        environment.split('\0').find_map(|word| word.strip_prefix(&named)).unwrap().to_owned();
    let ledger = Ledger::open(&Ledger::all_in(Path::new(&directory)).unwrap()[0]).unwrap();
    let moved = || ledger.threads().map(|thread| thread.moved()).sum::<u64>();
    assert!(wait_for(|| moved() > 0));
    decides.kill().unwrap();
    // Half a second is enough for a thousand calls.
    let rests = || {
        let before = moved();
        std::thread::sleep(Duration::from_millis(500));
        moved() == before
    };
    assert!(wait_for(rests));
    drop(decides.stdin.take());
    decides.wait().unwrap();
    // The next run, possibly in another test, also removes what this one has left.
    let _ = std::fs::remove_dir_all(directory);
}

#[test]
fn under_valgrind_nothing_is_hooked_and_the_report_says_so() {
    let Some(cpu) = away() else { return };
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("SKIPPED: there is no valgrind");
        return;
    }
    let Some(victims) = Victims::compile(&["calls"]) else { return };
    let program = victims.path("calls");
    let plain = Command::new(&program).output().unwrap();
    let scan = dimmer_scan::scan(&std::fs::read(&program).unwrap()).unwrap();
    let is_many = |function: &&dimmer_scan::Function| function.name.as_deref() == Some("many");
    let many = scan.functions.iter().find(is_many).unwrap().addresses.start;
    let mechanism = format!("--migrate={program}:{many:#x}");
    let arguments = [&mechanism, "--cpus", &cpu, "--", "valgrind", "--quiet", &program];
    let output = migrate(&victims, &arguments);
    assert_eq!((stdout(&output), output.status.code()), (stdout(&plain), plain.status.code()));
    let told = stderr(&output);
    assert!(told.contains("calls: is not hooked: Valgrind runs the process"), "{told}");
}

#[test]
fn what_cannot_be_moved_is_refused_with_what_could() {
    let Some(_) = away() else { return };
    let Some(victims) = Victims::compile(&["calls"]) else { return };
    let program = victims.path("calls");
    let refused = |arguments: &[&str]| {
        let output = migrate(&victims, &[arguments, &["--", &program]].concat());
        assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
        assert_eq!(stdout(&output), "");
        stderr(&output)
    };
    let told = refused(&["--migrate=manny"]);
    assert!(told.contains("no function `manny`") && told.contains("`many`"), "{told}");
    let told = refused(&["--migrate=calls:0x3"]);
    assert!(
        told.contains("0x3 is no entry of a function") && told.contains("nearest are 0x"),
        "{told}"
    );
    let told = refused(&["--migrate=libnone.so:0x10"]);
    assert!(told.contains("`libnone.so` is neither a file nor loaded"), "{told}");
    let told = refused(&["--migrate=many", "--cpus", "4095"]);
    assert!(told.contains("cpu 4095 does not exist, allowed are"), "{told}");
    let told = refused(&["--migrate=many", "--cpus", "x"]);
    assert!(told.contains("expected a list of CPUs as in `0-3,8`"), "{told}");
    let allowed: BTreeSet<String> =
        affinity::allowed().unwrap().iter().map(|cpu| cpu.index().to_string()).collect();
    let all: Vec<String> = allowed.into_iter().collect();
    let told = refused(&["--migrate=many", "--cpus", &all.join(",")]);
    assert!(told.contains("no core would be left for the program itself"), "{told}");
    let told = refused(&["--migrate=many", "--model", "fx-8120"]);
    assert!(told.contains("--model chooses functions"), "{told}");
    // No probe has stored a model in this home directory.
    let told = refused(&["--migrate"]);
    assert!(told.contains("no processor model says what wide SIMD code costs here"), "{told}");
    let output = migrate(&victims, &["--migrate", "--model", "fx-8120", "--", &program]);
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert!(stderr(&output).contains("nothing to move: by fx-8120"), "{}", stderr(&output));
    let output =
        dimmer(victims.directory.path(), &["run", "--narrow", "--cpus", "1", "--", "true"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(
        stderr(&output).contains("--cpus is for --migrate[=FN,...], --delegate[=FN,...], --auto")
    );
}
