//! `dimmer run --delegate`: programs whose calls of leaf functions run on another core
//! behave as they do without it.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use dimmer_hook::{Ledger, PlannedEntry};
use dimmer_processor::class::InstructionClass;
use dimmer_scan::{Code, Leaves};

use crate::migrate::{RUNS, away, early_ms};
use crate::victims::{self, Victims};
use crate::{command, stderr, stdout};

/// The signal of a memory fault, signal(7).
const SIGSEGV: i32 = 11;

/// The hookable leaf functions of a file.
fn leaf_entries(file: &Path) -> Vec<PlannedEntry> {
    let bytes = std::fs::read(file).unwrap();
    let scan = dimmer_scan::scan(&bytes).unwrap();
    let code = Code::read(&bytes).unwrap();
    let mut leaves = Leaves::read(&bytes, &code, &scan).unwrap();
    let entries = scan.functions.iter().flat_map(|function| function.hookable_entries());
    let leaf = |(address, displaced)| {
        let leaf = Some(leaves.at(address).ok()?);
        Some(PlannedEntry { leaf, ..PlannedEntry::new(address, displaced) })
    };
    entries.filter_map(leaf).collect()
}

/// Runs a program with all calls of a file's leaf functions delegated, for the `run`th time.
/// Returns the number of delegated calls, the output without moving, and the output with it.
fn run_all(
    file: &Path,
    entries: &[PlannedEntry],
    cpu: &str,
    arguments: &[&str],
    run: usize,
) -> (u64, Output, Output) {
    let directory = tempfile::tempdir().unwrap();
    let plans = tempfile::tempdir_in(directory.path()).unwrap();
    let ledgers = tempfile::tempdir_in(directory.path()).unwrap();
    dimmer_hook::keep_plan(file, entries.to_vec(), plans.path()).unwrap();
    let program = |early_ms| {
        let mut program = Command::new(arguments[0]);
        program.args(&arguments[1..]).env("EARLY_MS", early_ms).stdin(Stdio::null());
        program
    };
    let plain = program("0".to_owned()).output();
    let mut moving = program(early_ms(run));
    moving.env("LD_PRELOAD", victims::library());
    moving.env(dimmer_hook::DIRECTORY, ledgers.path()).env(dimmer_hook::PLANS, plans.path());
    // No other file has tile instructions.
    moving.env(dimmer_hook::CLASSES, InstructionClass::Tile.name()).env(dimmer_hook::MOVE, "all");
    let moved = moving.env(dimmer_runtime::CORES, cpu).output().unwrap();
    let ledgers = Ledger::all_in(ledgers.path()).unwrap();
    let ledgers = ledgers.iter().map(|path| Ledger::open(path).unwrap());
    let number = ledgers.map(|ledger| ledger.threads().map(|thread| thread.moved()).sum::<u64>());
    (number.sum(), plain.unwrap(), moved)
}

/// Does the same, and checks that the program behaves the same; again, as long as fewer than
/// `least` calls have been delegated in all.
#[track_caller]
fn delegate_all(file: &Path, entries: &[PlannedEntry], cpu: &str, arguments: &[&str], least: u64) {
    let mut number = 0;
    for run in 0..RUNS {
        let (delegated, plain, moved) = run_all(file, entries, cpu, arguments, run);
        let ends = |output: &Output| (stdout(output), stderr(output), output.status);
        assert_eq!(ends(&moved), ends(&plain));
        number += delegated;
        if number >= least {
            return;
        }
    }
    panic!("{arguments:?}: {number} calls delegated in {RUNS} runs, at least {least} expected");
}

#[test]
fn programs_do_the_same_with_every_call_of_a_leaf_function_delegated() {
    let Some(cpu) = away() else { return };
    let names = ["delegated", "migrated", "calls", "faults", "forks", "inner", "jumps", "signals"];
    let Some(victims) = Victims::compile(&names) else { return };
    // In programs with `least` 0, no call need be of a leaf function.
    for (name, least) in [
        ("delegated", 1),
        ("migrated", 0),
        ("calls", 0),
        // It handles faults itself.
        ("faults", 0),
        ("forks", 1),
        ("inner", 0),
        ("jumps", 0),
        ("signals", 1),
    ] {
        let program = victims.path(name);
        let file = Path::new(&program);
        delegate_all(file, &leaf_entries(file), &cpu, &[&program], least);
    }
}

#[test]
fn faults_of_delegated_calls_end_the_program_by_their_signal() {
    let Some(cpu) = away() else { return };
    let Some(victims) = Victims::compile(&["delegated_fault"]) else { return };
    let program = victims.path("delegated_fault");
    let (file, entries) = (Path::new(&program), leaf_entries(Path::new(&program)));
    let (_, plain, _) = run_all(file, &entries, &cpu, &[&program], 0);
    assert_eq!(plain.status.signal(), Some(SIGSEGV));
    delegate_all(file, &entries, &cpu, &[&program], 1);
    // From the handler on, calls stay.
    delegate_all(file, &entries, &cpu, &[&program, "handles"], 1);
}

/// The path of the library with this name that a program needs.
fn library_of(program: &str, name: &str) -> Option<PathBuf> {
    // The loader lists the libraries, as it does for `ldd`.
    let output = Command::new(program).env("LD_TRACE_LOADED_OBJECTS", "1").output().ok()?;
    let text = stdout(&output);
    let line = text.lines().find(|line| line.trim_start().starts_with(name))?;
    Path::new(line.split_whitespace().nth(2)?).canonicalize().ok()
}

#[test]
fn ciphers_and_digests_are_the_same_with_every_leaf_function_delegated() {
    let Some(cpu) = away() else { return };
    let found = Command::new("sh").args(["-c", "command -v openssl"]).output().unwrap();
    let openssl = stdout(&found).trim().to_owned();
    let Some(crypto) = library_of(&openssl, "libcrypto.so") else {
        println!("SKIPPED: there is no openssl with libcrypto");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let input = directory.path().join("input");
    let bytes: Vec<u8> = (0..300_001_u32).flat_map(|i| (i.wrapping_mul(i)).to_le_bytes()).collect();
    std::fs::write(&input, bytes).unwrap();
    let input = input.to_str().unwrap();
    let key = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    let iv = "000102030405060708090a0b0c0d0e0f";
    let entries = leaf_entries(&crypto);
    for cipher in ["-chacha20", "-aes-256-ctr"] {
        let run = [&openssl, "enc", cipher, "-K", key, "-iv", iv, "-a", "-in", input];
        delegate_all(&crypto, &entries, &cpu, &run, 100);
    }
    for digest in ["-sha1", "-sha256", "-sha512", "-sha3-256"] {
        delegate_all(&crypto, &entries, &cpu, &[&openssl, "dgst", digest, input], 0);
    }
}

/// Writes a video clip of noise.
fn clip(path: &Path) {
    const WIDTH: usize = 128;
    const HEIGHT: usize = 64;
    let mut bytes = format!("YUV4MPEG2 W{WIDTH} H{HEIGHT} F25:1 Ip C420jpeg\n").into_bytes();
    let mut noise = 1_u32;
    for _ in 0..4 {
        bytes.extend(b"FRAME\n");
        for place in 0..WIDTH * HEIGHT * 3 / 2 {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            bytes.push((noise >> 28).to_le_bytes()[0].wrapping_add(place.to_le_bytes()[0]));
        }
    }
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn films_are_the_same_with_every_leaf_function_delegated() {
    let Some(cpu) = away() else { return };
    let found = Command::new("sh").args(["-c", "command -v x265"]).output().unwrap();
    let encoder = stdout(&found).trim().to_owned();
    let Some(library) = library_of(&encoder, "libx265.so") else {
        println!("SKIPPED: there is no x265 with libx265");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let [film, plain, moved] =
        ["film.y4m", "plain.hevc", "moved.hevc"].map(|name| directory.path().join(name));
    clip(&film);
    let encode = |to: &Path| {
        let arguments = ["--preset", "fast", "--pools", "2", "--log-level", "none", "-o"];
        let mut command = vec![encoder.clone()];
        command.extend(arguments.map(str::to_owned));
        command.extend([to, &film].map(|path| path.to_str().unwrap().to_owned()));
        command
    };
    let status = Command::new(&encoder).args(&encode(&plain)[1..]).output().unwrap();
    assert!(status.status.success(), "{}", stderr(&status));
    let command = encode(&moved);
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    let (number, _, output) = run_all(&library, &leaf_entries(&library), &cpu, &command, 0);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(std::fs::read(&moved).unwrap(), std::fs::read(&plain).unwrap());
    assert!(number > 0, "{number}");
}

fn delegate(victims: &Victims, arguments: &[&str]) -> Output {
    victims::library();
    let home = victims.directory.path();
    let mut command = command(home, &["run"]);
    command.env("HOME", home).env_remove("XDG_CACHE_HOME").env_remove("XDG_STATE_HOME");
    command.args(arguments).output().unwrap()
}

#[test]
fn what_becomes_of_leaf_functions_and_others_is_told() {
    let Some(cpu) = away() else { return };
    let Some(victims) = Victims::compile(&["delegated"]) else { return };
    let program = victims.path("delegated");
    let run = |mechanisms: &[&str]| {
        let others = ["--cpus", &cpu, "--", &program];
        let output = delegate(&victims, &[mechanisms, &others].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    };
    let told = run(&["--delegate=sums,nine"]);
    assert!(
        told.contains(&format!("Delegate: calls of 1 function may move to cpu {};", &*cpu)),
        "{told}"
    );
    assert!(told.contains("stayed, as it is not known to be a leaf function:"), "{told}");
    let nine = told.lines().find(|line| line.starts_with("    nine ")).expect("a line for it");
    assert!(nine.contains("arguments on the stack"), "{told}");
    assert!(!told.contains("Migrate"), "{told}");
    let told = run(&["--delegate=sums,nine", "--migrate"]);
    assert!(told.contains("Delegate: calls of 1 function may move"), "{told}");
    assert!(told.contains("Migrate: calls of 1 function may move"), "{told}");
    assert!(!told.contains("leaf function:"), "{told}");
}

/// Scanning large libraries takes a second. So a choice is used again if it can be read and nothing
/// has changed.
#[test]
fn what_was_chosen_is_kept() {
    let Some(cpu) = away() else { return };
    let Some(victims) = Victims::compile(&["delegated"]) else { return };
    let kept = victims.directory.path().join(".cache/dimmer/run");
    let run = |hook: &str| {
        let program = victims.path("delegated");
        let mechanism = format!("--delegate={hook}");
        let arguments = [&mechanism, "--cpus", &cpu, "--", &program];
        let output = delegate(&victims, &arguments);
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    };
    let told = run("sums,nine");
    assert!(told.contains("    sums "), "{told}");
    let files = || std::fs::read_dir(&kept).unwrap().map(|file| file.unwrap().path());
    let [file] = files().collect::<Vec<_>>().try_into().unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    let other = text.replace("\"title\":\"sums\"", "\"title\":\"as it was kept\"");
    assert_ne!(other, text);
    std::fs::write(&file, other).unwrap();
    assert!(run("sums,nine").contains("    as it was kept "));
    let no_entry = text.replace("\"entries\":[\"", "\"entries\":[\"x");
    for damaged in ["", "{}", &text[..text.len() / 2], &no_entry] {
        std::fs::write(&file, damaged).unwrap();
        assert!(run("sums,nine").contains("    sums "), "{damaged}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    }
    assert!(!run("nine").contains("    sums "), "something else was asked for");
    assert_eq!(files().count(), 2);
}

/// A function of a library that is loaded later, named by its place there; and a library that is
/// changed except for its build id and length.
#[test]
fn what_was_chosen_of_a_file_is_not_used_of_another() {
    let Some(cpu) = away() else { return };
    let Some(victims) = Victims::compile(&["loads", "plugin"]) else { return };
    let (program, plugin) = (victims.path("loads"), victims.path("plugin"));
    let bytes = std::fs::read(&plugin).unwrap();
    let scan = dimmer_scan::scan(&bytes).unwrap();
    let plugged = scan.functions.iter().find(|one| one.name.as_deref() == Some("plugged"));
    let address = plugged.unwrap().addresses.start;
    let mechanism = format!("--delegate={plugin}:{address:#x}");
    let run = || {
        let arguments = [&mechanism, "--cpus", &cpu, "--", &program, &plugin];
        stderr(&delegate(&victims, &arguments))
    };
    for _ in 0..2 {
        let told = run();
        assert!(told.contains("calls of 1 function may move"), "{told}");
    }
    // No leaf function any more: it has HLT, which programs may not execute.
    let mut changed = bytes;
    changed[usize::try_from(address).unwrap()] = 0xf4;
    std::fs::write(&plugin, changed).unwrap();
    let told = run();
    assert!(told.contains("not known to be a leaf function"), "{told}");
}
