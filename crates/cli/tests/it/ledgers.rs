//! Problems with ledgers cost observations, but never harm the program: problems with their
//! directory, with the limits of the process, or with their content. And ledgers are removed in the
//! end.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use dimmer_hook::{Ledger, OwnLedger};
use serde_json::Value;

use crate::victims::{self, Victims};
use crate::{command, dimmer, stderr, stdout};

const SHARED_MEMORY: &str = "/dev/shm";

/// `dimmer observe` with a home directory of its own.
fn observe(home: &Path, arguments: &[&str]) -> Command {
    victims::library();
    let mut command = command(home, &["observe"]);
    command.env("HOME", home).env_remove("XDG_CACHE_HOME").env_remove("XDG_STATE_HOME");
    command.args(arguments);
    command
}

/// Runs a shell line in which `$0` is `dimmer`, on a program that exits with 7. The program must
/// print the same as without `dimmer`.
#[track_caller]
fn in_shell(victims: &Victims, before: &[&str], line: &str) -> Output {
    let observing = observe(victims.directory.path(), &[]);
    let mut shell = Command::new(before.first().copied().unwrap_or("sh"));
    shell.args(before.get(1..).unwrap_or_default());
    if !before.is_empty() {
        shell.arg("sh");
    }
    shell.arg("-c").arg(line).arg(observing.get_program()).arg(victims.path("calls"));
    for (name, value) in observing.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.env_remove("XDG_RUNTIME_DIR").env_remove("TMPDIR").output().unwrap()
}

#[track_caller]
fn check_unharmed(victims: &Victims, output: &Output) {
    let plain = Command::new(victims.path("calls")).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", stderr(output));
    assert_eq!(stdout(output), stdout(&plain));
}

const OBSERVE: &str = r#""$0" observe --classes scalar -- "$1""#;

#[test]
fn a_limit_of_file_lengths_is_no_signal() {
    let Some(victims) = Victims::compile(&["calls"]) else { return };
    for blocks in [0, 1, 200, 1400] {
        let output = in_shell(&victims, &[], &format!("ulimit -f {blocks}; {OBSERVE}"));
        check_unharmed(&victims, &output);
        let told = stderr(&output);
        // The largest limit has room for the process, but not for all of its threads.
        let is_told = told.contains("(ulimit -f)") || told.contains("Some threads were not seen");
        assert!(is_told, "{blocks}: {told}");
    }
}

#[test]
fn a_full_or_missing_place_costs_observation_alone() {
    let Some(victims) = Victims::compile(&["calls"]) else { return };
    let alone = ["unshare", "--map-root-user", "--mount"];
    let can = Command::new(alone[0]).args(&alone[1..]).arg("true").output();
    if !can.is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: this user cannot mount file systems in a namespace of its own");
        return;
    }
    for (mount, told) in [
        ("-o size=8k,nr_inodes=100", "a quarter of the file system of ledgers"),
        ("-o size=4k,nr_inodes=100", "no room in their ledgers"),
        ("-o size=9m,nr_inodes=2", "there could be no file"),
        ("-o ro", "/dev/shm: Read-only file system"),
    ] {
        let line = format!("mount -t tmpfs {mount} tmpfs {SHARED_MEMORY} && {OBSERVE}");
        let output = in_shell(&victims, &alone, &line);
        check_unharmed(&victims, &output);
        assert!(stderr(&output).contains(told), "{mount}: {}", stderr(&output));
    }
    // Other processes fill the file system during the run.
    let filled = r#"
        mount -t tmpfs -o size=300k tmpfs /dev/shm
        "$0" observe --classes scalar -- sh -c 'dd if=/dev/zero of=/dev/shm/fill status=none 2>&- & wait
            for i in 1 2 3; do "$1"; done >&-; exec "$1"' sh "$1""#;
    check_unharmed(&victims, &in_shell(&victims, &alone, filled));
}

#[test]
fn what_is_mapped_of_a_ledger_is_small() {
    let Some(victims) = Victims::compile(&["calls"]) else { return };
    let home = victims.directory.path();
    let mapped = |classes: &str| {
        let output = observe(home, &["--classes", classes, "--", "cat", "/proc/self/maps"]);
        let output = { output }.output().unwrap();
        assert!(stderr(&output).contains("in 1 process"), "{}", stderr(&output));
        let maps = stdout(&output);
        let ledger = maps.lines().filter(|line| line.contains(".ledger"));
        let bytes = ledger.map(|line| {
            let (range, _) = line.split_once(' ').unwrap();
            let (begin, end) = range.split_once('-').unwrap();
            let address = |text| u64::from_str_radix(text, 16).unwrap();
            address(end) - address(begin)
        });
        (bytes.sum::<u64>(), maps)
    };
    let (bytes, maps) = mapped("scalar");
    assert!(bytes > 0 && bytes < 256 << 10, "{bytes} bytes\n{maps}");
    // Only the header, and nothing that the program would not load itself.
    let (bytes, maps) = mapped("tile");
    assert_eq!(bytes, 4096, "{maps}");
    assert!(!maps.contains("libgcc_s"), "{maps}");
}

#[test]
fn whatever_a_program_does_with_its_ledgers_dimmer_goes_on() {
    let Some(victims) = Victims::compile(&["calls"]) else { return };
    let spoil = |how: &str| {
        let line = format!(
            r#""$0" observe --classes scalar -- sh -c '
                "$1" | grep -v nothing; unset LD_PRELOAD; cd "$DIMMER_LEDGERS"; sleep 0.1; {how}
                sleep 0.1; exec "$1" >&-' sh "$1""#
        );
        let output = in_shell(&victims, &[], &line);
        assert_eq!(output.status.code(), Some(7), "{how}: {}", stderr(&output));
        assert!(!stderr(&output).contains('\u{1b}'), "{how}: {}", stderr(&output));
        assert!(stderr(&output).contains("Observed for"), "{how}: {}", stderr(&output));
    };
    // The shell's own ledger is left intact, because damage to it would affect the shell.
    spoil("cp *.ledger 9-9.ledger; : > 9-9.ledger");
    spoil("for f in *.ledger; do cp $f 9-$f; head -c 5000 $f > 9-$f; done");
    spoil(
        "for f in *.ledger; do cp $f 9-$f; head -c 900000 /dev/urandom | dd of=9-$f bs=4 seek=3 conv=notrunc status=none; done",
    );
    spoil(
        "mkfifo 9-9.ledger; ln -s /dev/zero 9-8.ledger; mkdir 9-7.ledger; echo text > 9-6.ledger",
    );
    spoil("rm -r \"$DIMMER_LEDGERS\"");
}

#[test]
fn names_from_programs_reach_no_terminal_as_they_are() {
    let Some(victims) = Victims::compile(&["calls"]) else { return };
    let home = victims.directory.path();
    let odd = home.join("\u{1b}[31mred\u{7}");
    fs::create_dir(&odd).unwrap();
    let program = fs::read(victims.path("calls")).unwrap();
    victims::write_executable(&odd.join("calls\u{1b}[2J"), &program);
    let json = home.join("observed.json");
    let program = odd.join("calls\u{1b}[2J").to_str().unwrap().to_owned();
    let to = format!("--json={}", json.display());
    let arguments = ["--classes", "scalar", &to, "--", &program];
    let output = observe(home, &arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    let told = stderr(&output);
    assert!(told.contains("calls\u{fffd}[2J") && !told.contains(['\u{1b}', '\u{7}']), "{told}");
    let json: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let files = json["files"].as_array().unwrap();
    assert!(files.iter().any(|file| file["path"] == program.as_str()), "{files:?}");
}

#[test]
fn all_threads_and_children_that_start_at_once_are_seen() {
    let Some(victims) = Victims::compile(&["crowd"]) else { return };
    let home = victims.directory.path();
    let json = home.join("observed.json");
    let program = victims.path("crowd");
    let to = format!("--json={}", json.display());
    let arguments = ["--classes", "scalar", &to, "--", &program];
    let output = observe(home, &arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert_eq!(stdout(&output), "20 children\n");
    let json: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(json["threads_left_out"], 0);
    let functions = json["functions"].as_array().unwrap().iter();
    let named = |function: &Value| Some((function["name"].as_str()?.to_owned(), function.clone()));
    let functions: BTreeMap<String, Value> = functions.filter_map(named).collect();
    assert_eq!(
        (&functions["work"]["calls"], &functions["work"]["threads"]),
        (&1200.into(), &120.into())
    );
}

#[test]
fn a_program_that_restricts_its_system_calls_may_start_threads() {
    let Some(victims) = Victims::compile(&["confined"]) else { return };
    let program = victims.path("confined");
    let plain = Command::new(&program).output().unwrap();
    if stdout(&plain) != "worked\n" {
        println!("SKIPPED: the kernel takes no filter of system calls");
        return;
    }
    let home = victims.directory.path();
    let output = observe(home, &["--classes", "scalar", "--", &program]).output().unwrap();
    assert_eq!((output.status.code(), stdout(&output)), (Some(7), "worked\n".to_owned()));
    assert!(stderr(&output).contains("Some threads were not seen"), "{}", stderr(&output));
}

#[test]
fn a_program_that_only_asks_for_filters_or_fails_is_seen_as_before() {
    let Some(victims) = Victims::compile(&["probes"]) else { return };
    let program = victims.path("probes");
    let plain = Command::new(&program).output().unwrap();
    if stdout(&plain) != "worked\n" {
        println!("SKIPPED: the kernel has other calls for filters: {:?}", plain.status);
        return;
    }
    let home = victims.directory.path();
    let json = home.join("observed.json");
    let to = format!("--json={}", json.display());
    let output = observe(home, &["--classes", "scalar", &to, "--", &program]).output().unwrap();
    assert_eq!((output.status.code(), stdout(&output)), (Some(9), "worked\n".to_owned()));
    let json: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(json["threads_left_out"], 0, "{}", stderr(&output));
    let mut functions = json["functions"].as_array().unwrap().iter();
    let work = functions.find(|function| function["name"] == "work").unwrap();
    assert_eq!((&work["calls"], &work["threads"]), (&31.into(), &4.into()));
}

#[test]
fn what_a_program_executes_under_its_own_filter_runs_without_the_library() {
    let Some(victims) = Victims::compile(&["filtered"]) else { return };
    let (program, home) = (victims.path("filtered"), victims.directory.path());
    for how in ["exec", "spawn", "raw"] {
        let plain = Command::new(&program).arg(how).output().unwrap();
        if stdout(&plain) != "worked\n" {
            println!("SKIPPED: {how}: no filter is taken, or the loader makes other calls");
            continue;
        }
        let arguments = ["--classes", "scalar", "--", &program, how];
        let output = observe(home, &arguments).output().unwrap();
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(7), "{how}: {told}");
        assert_eq!(stdout(&output), "worked\n", "{how}: {told}");
    }
}

#[test]
fn ledgers_of_processes_that_ended_are_given_back() {
    let Some(victims) = Victims::compile(&["calls"]) else { return };
    let probe = tempfile::tempdir_in(SHARED_MEMORY).unwrap();
    let own = OwnLedger::create(probe.path()).unwrap();
    let ledger = Ledger::open(own.path()).unwrap();
    drop(own);
    if !ledger.is_abandoned() {
        println!("SKIPPED: this kernel gives no leases for files in memory");
        return;
    }
    let line = r#""$0" observe --classes scalar -- sh -c '
        for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do "$1" >&-; done
        unset LD_PRELOAD
        for i in $(seq 3000); do
            set -- "$1" $(ls "$DIMMER_LEDGERS"); [ $# -le 2 ] && break; sleep 0.01
        done
        echo $(($# - 1)) left; exit 7' sh "$1""#;
    let output = in_shell(&victims, &[], line);
    // The shell's own ledger.
    assert_eq!(stdout(&output), "1 left\n", "{}", stderr(&output));
    assert!(stderr(&output).contains("in 21 processes with"), "{}", stderr(&output));
}

#[test]
fn directories_of_killed_runs_are_removed_and_no_others() {
    let Some(victims) = Victims::compile(&["calls"]) else { return };
    let home = victims.directory.path();
    let mut observing =
        observe(home, &["--classes", "scalar", "--", "sh", "-c", "echo $DIMMER_LEDGERS; read end"]);
    let mut running = observing.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut told = std::io::BufReader::new(running.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut told, &mut line).unwrap();
    let directory = PathBuf::from(line.trim());
    assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);
    // Another run does not remove it while its own run lives.
    assert!(
        observe(home, &["--classes", "scalar", "--", "true"]).output().unwrap().status.success()
    );
    assert!(directory.exists());
    running.kill().unwrap();
    running.wait().unwrap();
    // The program goes on, and a run that starts meanwhile removes the directory.
    let patience = Instant::now() + Duration::from_secs(30);
    while directory.exists() && Instant::now() < patience {
        let next = observe(home, &["--classes", "scalar", "--", "true"]).output().unwrap();
        assert!(next.status.success());
    }
    assert!(!directory.exists());
    drop(running.stdin.take());
}

#[test]
fn restore_removes_what_a_killed_run_has_left_in_memory() {
    let machine = tempfile::tempdir().unwrap();
    let root = machine.path();
    let left = root.join("dev/shm/dimmer-run-left");
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join("7-0.ledger"), "").unwrap();
    let restore = || dimmer(root, &["--root", root.to_str().unwrap(), "restore"]);
    let first = restore();
    assert!(first.status.success(), "{}", stderr(&first));
    let told = format!("removed {}: a killed run has left it\n", left.display());
    assert_eq!(stdout(&first), told);
    assert!(!left.exists());
    assert!(stdout(&restore()).contains("Nothing to restore"));
    // The target of the link belongs to another machine.
    fs::create_dir_all(&left).unwrap();
    let other = tempfile::tempdir().unwrap();
    fs::create_dir(other.path().join("dev")).unwrap();
    std::os::unix::fs::symlink(root.join("dev/shm"), other.path().join("dev/shm")).unwrap();
    let outside = dimmer(root, &["--root", other.path().to_str().unwrap(), "restore"]);
    assert!(outside.status.success() && left.exists(), "{}", stdout(&outside));
}
