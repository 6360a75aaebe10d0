//! `dimmer pstate` on a made-up machine: the processor of paper 004, whose registers are files.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{dimmer, heeding, stderr, stdout};

/// Family 17h, model 1, "AMD Ryzen".
const CPUID: &str = "\
0x00000000 0x00: eax=0x00000001 ebx=0x68747541 ecx=0x444d4163 edx=0x69746e65
0x00000001 0x00: eax=0x00800f11 ebx=0x00000000 ecx=0x00000000 edx=0x00000000
0x80000000 0x00: eax=0x80000004 ebx=0x00000000 ecx=0x00000000 edx=0x00000000
0x80000002 0x00: eax=0x20444d41 ebx=0x657a7952 ecx=0x0000006e edx=0x00000000
";

const BOOST: &str = "sys/devices/system/cpu/cpufreq/boost";
const REQUESTED: u64 = 0xC001_0062;
const P2: u64 = 0xC001_0066;

/// A definition of family 17h.
const fn definition(fid: u64, dfs: u64, vid: u64) -> u64 {
    1 << 63 | vid << 14 | dfs << 8 | fid
}

const P2_BEFORE: u64 = definition(132, 12, 120);
/// 833 MHz at 800 mV.
const P2_SLOW: u64 = definition(50, 12, 120);

fn made_up_machine() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let text = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    text("cpuid.txt", CPUID);
    text("sys/devices/system/cpu/online", "0-1\n");
    text(BOOST, "1\n");
    for cpu in [0, 1] {
        let policy = format!("sys/devices/system/cpu/cpufreq/policy{cpu}");
        text(&format!("{policy}/scaling_driver"), "acpi-cpufreq\n");
        text(&format!("{policy}/scaling_governor"), "ondemand\n");
        text(&format!("{policy}/scaling_available_governors"), "ondemand userspace\n");
        text(&format!("{policy}/affected_cpus"), &format!("{cpu}\n"));
        text(&format!("dev/cpu/{cpu}/msr"), "");
        let registers = [
            (0xC001_0061, 0x20),
            (REQUESTED, 1),
            (0xC001_0063, 1),
            (0xC001_0064, definition(144, 8, 56)),
            (0xC001_0065, definition(100, 8, 88)),
            (P2, P2_BEFORE),
            (0xC001_006B, 0),
        ];
        let path = root.path().join(format!("dev/cpu/{cpu}/msr"));
        let file = OpenOptions::new().write(true).open(path).unwrap();
        for (register, value) in registers {
            file.write_all_at(&value.to_le_bytes(), 8 * register).unwrap();
        }
    }
    root
}

/// A register of both CPUs.
fn registers(root: &Path, register: u64) -> [u64; 2] {
    [0, 1].map(|cpu| {
        let mut bytes = [0; 8];
        let file = File::open(root.join(format!("dev/cpu/{cpu}/msr"))).unwrap();
        file.read_exact_at(&mut bytes, 8 * register).unwrap();
        u64::from_le_bytes(bytes)
    })
}

fn governors(root: &Path) -> [String; 2] {
    [0, 1].map(|cpu| {
        let policy = format!("sys/devices/system/cpu/cpufreq/policy{cpu}/scaling_governor");
        fs::read_to_string(root.join(policy)).unwrap().trim().to_owned()
    })
}

fn run(root: &Path, arguments: &[&str]) -> Output {
    dimmer(root, &[&["--root", root.to_str().unwrap()], arguments].concat())
}

/// Starts the set-up of table 5.1, and waits until it is there.
fn table_5_1(root: &Path) -> Child {
    let arguments = ["--root", root.to_str().unwrap(), "pstate", "set", "--fast", "0"];
    let arguments = [&arguments[..], &["--define", "P2=833MHz", "--turbo-off"]].concat();
    let mut command = heeding("--default-signal=INT,TERM", root, &arguments);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let patience = Instant::now() + Duration::from_secs(60);
    while registers(root, REQUESTED) != [0, 2] && Instant::now() < patience {
        assert_eq!(child.try_wait().unwrap(), None, "it ended");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(registers(root, P2), [P2_SLOW; 2]);
    assert_eq!(governors(root), ["userspace", "userspace"]);
    assert_eq!(fs::read_to_string(root.join(BOOST)).unwrap().trim(), "0");
    child
}

#[track_caller]
fn is_as_before(root: &Path) {
    assert_eq!(registers(root, REQUESTED), [1, 1]);
    assert_eq!(registers(root, P2), [P2_BEFORE; 2]);
    assert_eq!(governors(root), ["ondemand", "ondemand"]);
    assert_eq!(fs::read_to_string(root.join(BOOST)).unwrap().trim(), "1");
}

#[test]
fn shows_p_states_as_text_and_as_json() {
    let root = made_up_machine();
    let output = run(root.path(), &["pstate", "show"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let expected = "\
AMD Ryzen (Zen)

P-state  in use  MHz   mV
P0       yes     3600  1200
P1       yes     2500  1000
P2       yes     2200   800
P3       no         -     -
P4       no         -     -
P5       no         -     -
P6       no         -     -
P7       no         -     -

P0 to P2 can be requested.

CPUs  requested  current
0-1   P1         P1
";
    assert_eq!(stdout(&output), expected);
    let output = run(root.path(), &["pstate", "show", "--json"]);
    let document: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(document["schema"], "dimmer/pstate/1");
    assert_eq!((&document["fastest"], &document["slowest"]), (&0.into(), &2.into()));
    assert_eq!(document["states"][2]["frequency_khz"], 2_200_000);
    assert_eq!(document["states"][2]["voltage_uv"], 800_000);
    assert_eq!(document["states"][3]["enabled"], false);
    assert_eq!(document["cpus"][1]["requested"], 1);
}

#[test]
fn a_signal_sets_back_what_was_set() {
    for signal in [Signal::INT, Signal::TERM] {
        let root = made_up_machine();
        let child = table_5_1(root.path());
        kill_process(Pid::from_child(&child), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(0), "{said}");
        let expected = "\
P2 is defined as 833 MHz, 800 mV.
CPUs 0 request P0 (3600 MHz, 1200 mV).
CPUs 1 request P2 (833 MHz, 800 mV).
This lasts until a signal ends it (Ctrl-C).
P-states are set back.
";
        assert_eq!(said, expected);
        is_as_before(root.path());
    }
}

#[test]
fn restore_sets_back_what_a_killed_run_has_set() {
    let root = made_up_machine();
    let mut child = table_5_1(root.path());
    let output = run(root.path(), &["restore"]);
    assert!(stdout(&output).contains("still running"), "{}", stdout(&output));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(registers(root.path(), REQUESTED), [0, 2]);
    let output = run(root.path(), &["restore"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let said = stdout(&output);
    assert!(said.contains("restored /dev/cpu/1/msr 0xc0010062: 0x2 -> 0x1\n"), "{said}");
    is_as_before(root.path());
}

#[test]
fn kept_p_states_stay_until_restore() {
    let root = made_up_machine();
    let output = run(root.path(), &["pstate", "set", "--slow", "0-1", "--keep"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).ends_with("`dimmer restore` undoes this.\n"), "{}", stderr(&output));
    assert_eq!(registers(root.path(), REQUESTED), [2, 2]);
    let output = run(root.path(), &["pstate", "set", "--fast", "0-1", "--keep"]);
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(said.contains("change that was to be kept; `dimmer restore` undoes it"), "{said}");
    assert_eq!(registers(root.path(), REQUESTED), [2, 2]);
    let doctor = stdout(&run(root.path(), &["doctor"]));
    assert!(!doctor.contains("A run that was killed"), "{doctor}");
    assert!(run(root.path(), &["restore"]).status.success());
    is_as_before(root.path());
}

#[test]
fn what_is_impossible_is_bad_input_and_changes_nothing() {
    let root = made_up_machine();
    let check = |arguments: &[&str], why: &str| {
        let output = run(root.path(), &[&["pstate", "set"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    };
    check(&[], "nothing to set");
    check(&["--fast", "7"], "CPU 7 does not exist; online are 0-1");
    check(&["--request", "0=P3"], "P3 cannot be requested; the fastest is P0, the slowest P2");
    check(&["--request", "0-P1"], "as in `0-3,8=P2`");
    check(&["--define", "P2=833"], "as in `P2=833MHz`");
    check(&["--define", "P1=4000MHz"], "4000 MHz is outside of this processor's");
    check(&["--define", "P1=2000MHz@1300mV"], "1300 mV is outside of 800 mV to 1200 mV");
    check(&["--define", "P0=1800MHz"], "the time-stamp counter counts at it");
    is_as_before(root.path());
    assert!(!root.path().join("run").exists());
}

#[test]
fn a_machine_without_the_registers_is_no_bad_input() {
    let root = made_up_machine();
    fs::remove_dir_all(root.path().join("dev")).unwrap();
    for arguments in [["pstate", "show"].as_slice(), &["pstate", "set", "--fast", "0"]] {
        let output = run(root.path(), arguments);
        assert_eq!(output.status.code(), Some(1));
        let said = stderr(&output);
        assert!(said.contains("no /dev/cpu/0/msr") && said.contains("modprobe msr"), "{said}");
    }
}
