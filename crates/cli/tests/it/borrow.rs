//! `dimmer run --mechanism borrow`: programs whose calls are moved to another core do what they do
//! without.

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

/// The hardware thread that calls are moved to, as long as this lives.
pub(crate) struct Cpu {
    name: String,
    // Dropped with it.
    _shared: RwLockReadGuard<'static, ()>,
}

impl Deref for Cpu {
    type Target = str;

    fn deref(&self) -> &str {
        &self.name
    }
}

/// Tests share hardware threads, but for the one that dedicates some.
pub(crate) static SHARED: RwLock<()> = RwLock::new(());

/// The hardware thread to move calls to; `None`, and a word about it, where they cannot be moved.
pub(crate) fn away() -> Option<Cpu> {
    let name = last_cpu()?;
    Some(Cpu { name, _shared: SHARED.read().unwrap_or_else(PoisonError::into_inner) })
}

/// As [`away`], without a word to the others.
pub(crate) fn last_cpu() -> Option<String> {
    let allowed = affinity::allowed().unwrap();
    if let Err(why) = dimmer_runtime::check_travel() {
        println!("SKIPPED: {why}");
        return None;
    }
    let [_, .., last] = allowed.as_slice() else {
        println!("SKIPPED: moving calls takes two CPUs, and this process may run on one");
        return None;
    };
    Some(last.index().to_string())
}

/// Runs a program with the calls of all its functions moved but those of `main`, within which all
/// others are. How many were moved.
fn move_all(victims: &Victims, cpu: &str, arguments: &[&str]) -> u64 {
    let directory = victims.directory.path();
    let plans = tempfile::tempdir_in(directory).unwrap();
    let ledgers = tempfile::tempdir_in(directory).unwrap();
    let program = Path::new(arguments[0]);
    let scan = dimmer_scan::scan(&std::fs::read(program).unwrap()).unwrap();
    let functions =
        scan.functions.iter().filter(|function| function.name.as_deref() != Some("main"));
    let entry = |function: &dimmer_scan::Function| {
        Some(PlannedEntry::new(function.addresses.start, function.hook.ok()?))
    };
    dimmer_hook::keep_plan(program, functions.filter_map(entry).collect(), plans.path()).unwrap();
    let plain = Command::new(arguments[0]).args(&arguments[1..]).output().unwrap();
    let mut moving = Command::new(arguments[0]);
    moving.args(&arguments[1..]).env("LD_PRELOAD", victims::library());
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

#[test]
fn programs_do_the_same_with_every_call_moved() {
    let Some(cpu) = away() else { return };
    let names = [
        "allocates",
        "borrowed",
        "calls",
        "cancelled",
        "coroutines",
        "faults",
        "forks",
        "inner",
        "jumps",
        "mutexes",
        "old_conditions",
        "unrecoverable",
        "signals",
        "exceptions",
        "loads",
        "plugin",
    ];
    let Some(victims) = Victims::compile(&names) else { return };
    // How many move depends on what else the machine does.
    for name in names.into_iter().filter(|name| !["loads", "plugin"].contains(name)) {
        assert!(move_all(&victims, &cpu, &[&victims.path(name)]) > 0, "{name}");
    }
    let plugin = victims.path("plugin");
    assert!(move_all(&victims, &cpu, &[&victims.path("loads"), &plugin]) > 0);
}

fn borrow(victims: &Victims, arguments: &[&str]) -> Output {
    victims::library();
    let home = victims.directory.path();
    let mut command = command(home, &["run", "--mechanism", "borrow"]);
    command.env("HOME", home).env_remove("XDG_CACHE_HOME").env_remove("XDG_STATE_HOME");
    command.args(arguments).output().unwrap()
}

#[test]
fn what_becomes_of_named_functions_is_told() {
    let Some(cpu) = away() else { return };
    let Some(victims) = Victims::compile(&["borrowed", "calls"]) else { return };
    let program = victims.path("borrowed");
    let plain = Command::new(&program).output().unwrap();
    let output = borrow(&victims, &["--hook", "integers,vector", "--cores", &cpu, "--", &program]);
    assert_eq!(stdout(&output), stdout(&plain), "{}", stderr(&output));
    let told = stderr(&output);
    assert!(
        told.contains(&format!(
            "calls of 2 functions may move to cpu {}; there and back takes ",
            &*cpu
        )),
        "{told}"
    );
    // Whether they are moved depends on what the way takes now.
    let is_told = |name| told.lines().any(|line| line.starts_with(&format!("    {name} ")));
    assert!(is_told("integers") && is_told("vector"), "{told}");
    // These take some nanoseconds.
    let output =
        borrow(&victims, &["--hook", "many", "--cores", &cpu, "--", &victims.path("calls")]);
    assert_eq!(output.status.code(), Some(7));
    let told = stderr(&output);
    assert!(told.contains("Borrow: 0 of 100 calls were moved."), "{told}");
}

/// Waits for something, for half a minute.
fn wait_for(mut is_so: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(30);
    while Instant::now() < end {
        if is_so() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

#[test]
fn calls_stay_once_who_decides_has_been_killed() {
    let Some(cpu) = away() else { return };
    let Some(victims) = Victims::compile(&["orphan"]) else { return };
    victims::library();
    let home = victims.directory.path();
    let mut command = command(home, &["run", "--mechanism", "borrow"]);
    command.env("HOME", home).env_remove("XDG_CACHE_HOME").env_remove("XDG_STATE_HOME");
    command.args(["--hook", "kept", "--cores", &cpu, "--", &victims.path("orphan")]);
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
    // Half a second is for a thousand calls.
    let rests = || {
        let before = moved();
        std::thread::sleep(Duration::from_millis(500));
        moved() == before
    };
    assert!(wait_for(rests));
    drop(decides.stdin.take());
    decides.wait().unwrap();
    // What it has left is removed by the next run, which may be that of another test.
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
    let hook = format!("{program}:{many:#x}");
    let arguments = ["--hook", &hook, "--cores", &cpu, "--", "valgrind", "--quiet", &program];
    let output = borrow(&victims, &arguments);
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
        let output = borrow(&victims, &[arguments, &["--", &program]].concat());
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert_eq!(stdout(&output), "");
        stderr(&output)
    };
    let told = refused(&["--hook", "manny"]);
    assert!(told.contains("no function `manny`") && told.contains("`many`"), "{told}");
    let told = refused(&["--hook", "calls:0x3"]);
    assert!(
        told.contains("0x3 is no entry of a function") && told.contains("nearest are 0x"),
        "{told}"
    );
    let told = refused(&["--hook", "libnone.so:0x10"]);
    assert!(told.contains("`libnone.so` is neither a file nor loaded"), "{told}");
    let told = refused(&["--hook", "many", "--cores", "4095"]);
    assert!(told.contains("cpu 4095 does not exist, allowed are"), "{told}");
    let told = refused(&["--hook", "many", "--cores", "x"]);
    assert!(told.contains("`x` is no list of hardware threads"), "{told}");
    let allowed: BTreeSet<String> =
        affinity::allowed().unwrap().iter().map(|cpu| cpu.index().to_string()).collect();
    let all: Vec<String> = allowed.into_iter().collect();
    let told = refused(&["--hook", "many", "--cores", &all.join(",")]);
    assert!(told.contains("no core would be left for the program itself"), "{told}");
    let told = refused(&["--hook", "auto,many"]);
    assert!(told.contains("--hook auto goes without names"), "{told}");
    let told = refused(&["--hook", "many", "--model", "fx-8120"]);
    assert!(told.contains("--model is for --hook auto"), "{told}");
    // No probe has left a model in this home.
    let told = refused(&[]);
    assert!(told.contains("has to know what wide-vector code costs here"), "{told}");
    let output = borrow(&victims, &["--model", "fx-8120", "--", &program]);
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert!(stderr(&output).contains("nothing to move: by fx-8120"), "{}", stderr(&output));
    let output = dimmer(
        victims.directory.path(),
        &["run", "--mechanism", "narrow", "--hook", "many", "--", "true"],
    );
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains(
        "--hook, --cores, --dedicate, --model and --json are for --mechanism borrow, offload and auto"
    ));
}
