//! `dimmer specialise` on a made-up machine: two NUMA nodes with two cores each, the files of the
//! module and of sched_ext, and a shell script in the place of the loader.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::{dimmer, heeding, stderr, stdout};

const PATIENCE: Duration = Duration::from_secs(60);
const MODULE: &str = "sys/kernel/dimmer_xcr0";
const COUNTS: [&str; 11] = [
    "faults",
    "moves",
    "move_ns",
    "returns",
    "ended_by_calls",
    "ended_by_time",
    "allowed",
    "limits",
    "without_scheduler",
    "switches",
    "missed",
];

struct Machine {
    directory: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let machine = Self { directory: tempfile::tempdir().unwrap() };
        machine.write("proc/self/status", "CapEff:\t000001ffffffffff\nCpus_allowed_list:\t0-7\n");
        machine.write("proc/self/mounts", "bpf /sys/fs/bpf bpf rw 0 0\n");
        machine.write("sys/devices/system/cpu/present", "0-7\n");
        machine.write("sys/devices/system/cpu/online", "0-7\n");
        for cpu in 0..8 {
            let siblings = format!("{},{}\n", cpu % 4, cpu % 4 + 4);
            let file = format!("sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list");
            machine.write(&file, &siblings);
        }
        machine.write("sys/devices/system/node/node0/cpulist", "0-1,4-5\n");
        machine.write("sys/devices/system/node/node1/cpulist", "2-3,6-7\n");
        machine.write("sys/kernel/sched_ext/state", "disabled\n");
        machine.write(&format!("{MODULE}/narrow"), "\n");
        machine.write(&format!("{MODULE}/wide"), "0-7\n");
        for (count, name) in COUNTS.iter().enumerate() {
            machine.write(&format!("{MODULE}/{name}"), &format!("{count}\n"));
        }
        fs::create_dir_all(machine.path("run")).unwrap();
        fs::create_dir(machine.path("bin")).unwrap();
        let loader = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/loader.sh");
        symlink(loader, machine.path("bin/dimmer-specialise")).unwrap();
        machine
    }

    fn path(&self, file: &str) -> std::path::PathBuf {
        self.directory.path().join(file)
    }

    fn write(&self, file: &str, content: &str) {
        let path = self.path(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn remove(&self, file: &str) {
        let path = self.path(file);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
    }

    fn narrow(&self) -> String {
        let text = fs::read_to_string(self.path(&format!("{MODULE}/narrow")));
        text.unwrap_or_default().trim().to_owned()
    }

    fn root(&self) -> &str {
        self.directory.path().to_str().unwrap()
    }

    fn specialise(&self, arguments: &[&str]) -> Command {
        let arguments = [&["--root", self.root(), "specialise"], arguments].concat();
        let mut command =
            heeding("--default-signal=INT,TERM,HUP", self.directory.path(), &arguments);
        command.env("PATH", "/bin:/usr/bin").stdin(Stdio::null());
        command
    }

    /// Starts it, and waits until CPUs are narrow.
    #[track_caller]
    fn start(&self, arguments: &[&str]) -> Child {
        let mut command = self.specialise(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let begin = Instant::now();
        while self.narrow() != "2-3,6-7" {
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none() && begin.elapsed() < PATIENCE, "{ended:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        child
    }

    fn loader(&self) -> Pid {
        let id = fs::read_to_string(self.path("loader")).unwrap();
        Pid::from_raw(id.trim().parse().unwrap()).unwrap()
    }

    #[track_caller]
    fn wait_until_all_are_wide(&self) {
        let begin = Instant::now();
        while !self.narrow().is_empty() {
            assert!(begin.elapsed() < PATIENCE, "{}", self.narrow());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Nothing is narrow, and no journal is left.
    #[track_caller]
    fn is_as_before(&self) {
        assert_eq!(self.narrow(), "");
        let journals = fs::read_dir(self.path("run/dimmer")).into_iter().flatten();
        let names: Vec<_> = journals.map(|entry| entry.unwrap().file_name()).collect();
        assert!(names.iter().all(|name| name == "lock"), "{names:?}");
    }

    fn restore(&self) -> Output {
        dimmer(self.directory.path(), &["--root", self.root(), "restore"])
    }
}

#[track_caller]
fn ended(child: Child, signal: Signal) -> Output {
    kill_process(Pid::from_child(&child), signal).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn runs_the_scheduler_until_a_signal_and_widens_all_cpus() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let machine = Machine::new();
        let child = machine.start(&["--wide", "0-1,4-5"]);
        let output = ended(child, signal);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(fs::read_to_string(machine.path("asked")).unwrap(), "run --wide 0-1,4-5\n");
        assert_eq!(stdout(&output), "began 5\n");
        let notes = stderr(&output);
        assert!(notes.contains("NUMA node 1") && notes.ends_with("wide again.\n"), "{notes}");
        machine.is_as_before();
    }
}

#[test]
fn the_module_alone_makes_cpus_narrow_until_a_signal() {
    let machine = Machine::new();
    machine.remove("sys/kernel/sched_ext");
    machine.remove("bin/dimmer-specialise");
    let child = machine.start(&["--wide", "0-1,4-5", "--affinity"]);
    let output = ended(child, Signal::TERM);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    machine.is_as_before();
}

#[test]
fn a_scheduler_that_ends_by_itself_is_an_error_and_leaves_nothing_narrow() {
    let machine = Machine::new();
    let child = machine.start(&["--wide", "0-1,4-5"]);
    kill_process(machine.loader(), Signal::KILL).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told = "error: dimmer-specialise ended (signal: 9 (SIGKILL)): all CPUs are wide\n";
    assert!(stderr(&output).ends_with(told), "{}", stderr(&output));
    machine.is_as_before();

    let machine = Machine::new();
    machine.write("fails", "");
    let output = machine.specialise(&["--wide", "0,2,4,6"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told = "dimmer-specialise: the kernel refuses the scheduler\n\
                error: dimmer-specialise ended (exit status: 1): all CPUs are wide\n";
    assert_eq!(stderr(&output), told);
    machine.is_as_before();
}

#[test]
fn the_scheduler_does_not_outlive_a_killed_command() {
    let machine = Machine::new();
    let child = machine.start(&["--wide", "0-1,4-5"]);
    ended(child, Signal::KILL);
    machine.wait_until_all_are_wide();
    let output = machine.restore();
    assert!(output.status.success(), "{}", stderr(&output));
    machine.is_as_before();
}

#[test]
fn restore_widens_all_cpus_after_both_were_killed() {
    let machine = Machine::new();
    let child = machine.start(&["--wide", "0-1,4-5"]);
    let again = machine.specialise(&["--wide", "0-1,4-5"]).output().unwrap();
    let told = format!("process {} has made CPUs 2-3,6-7 narrow", child.id());
    assert!(stderr(&again).contains(&told), "{}", stderr(&again));
    // The command is stopped first, so that it cannot notice the scheduler's end.
    kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
    kill_process(machine.loader(), Signal::KILL).unwrap();
    ended(child, Signal::KILL);
    assert_eq!(machine.narrow(), "2-3,6-7");
    // Other CPUs may have been made narrow by then (`dimmer-specialise wide`).
    machine.write(&format!("{MODULE}/narrow"), "3,7\n");
    let output = machine.restore();
    assert_eq!(
        stdout(&output),
        "restored /sys/kernel/dimmer_xcr0/narrow: 3,7 -> (empty)\n",
        "{}",
        stderr(&output)
    );
    machine.is_as_before();
}

/// The command refuses, with these words, before it starts or changes anything.
#[track_caller]
fn refuses(change: impl Fn(&Machine), wide: &str, status: i32, says: &[&str]) {
    let machine = Machine::new();
    change(&machine);
    let before = machine.narrow();
    let output = machine.specialise(&["--wide", wide]).output().unwrap();
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(status), "{message}");
    for part in says {
        assert!(message.contains(part), "`{part}` is not in:\n{message}");
    }
    let journals = machine.path("run/dimmer");
    assert!(machine.narrow() == before && !machine.path("asked").exists() && !journals.exists());
}

#[test]
fn cpus_that_cannot_be_wide_are_refused_with_what_can() {
    let as_it_is = |_: &Machine| {};
    refuses(as_it_is, "x", 2, &["--wide `x`: it is no list of CPUs as in `0-3,8`"]);
    refuses(as_it_is, "3-1", 2, &["`3-1`: it is no list"]);
    refuses(as_it_is, "", 2, &["no CPU is named", "0-7"]);
    refuses(as_it_is, "0,4,8", 2, &["`0,4,8`: CPU 8 does not exist; online are 0-7"]);
    refuses(as_it_is, "0-7", 2, &["all CPUs that are online would be wide (0-7): leave out"]);
    refuses(as_it_is, "0-1,4", 2, &["CPUs 1,5 are one core", "with whole cores it is 0-1,4-5"]);
    let without_7 = |machine: &Machine| {
        machine.write("sys/devices/system/cpu/online", "0-6\n");
        machine.remove("sys/devices/system/cpu/cpu7/topology");
        machine.write("sys/devices/system/cpu/cpu3/topology/core_cpus_list", "3\n");
    };
    refuses(without_7, "3,7", 2, &["CPU 7 is offline; online are 0-6"]);
}

#[test]
fn what_is_missing_is_said_with_the_way_to_get_it() {
    let refuses = |change: &dyn Fn(&Machine), says: &[&str]| {
        refuses(change, "0,2,4,6", 1, says);
    };
    refuses(&|machine| machine.remove(MODULE), &["no /sys/kernel/dimmer_xcr0", "insmod"]);
    let protect = |machine: &Machine| {
        let narrow = machine.path(&format!("{MODULE}/narrow"));
        fs::set_permissions(narrow, fs::Permissions::from_mode(0o444)).unwrap();
    };
    refuses(&protect, &["no permission to write /sys/kernel/dimmer_xcr0/narrow (run as root)"]);
    let narrow = |machine: &Machine| machine.write(&format!("{MODULE}/narrow"), "4-5\n");
    refuses(&narrow, &["CPUs 4-5 are narrow already", "echo > /sys/kernel/dimmer_xcr0/narrow"]);
    let none = |machine: &Machine| machine.remove("sys/kernel/sched_ext");
    refuses(&none, &["no /sys/kernel/sched_ext", "CONFIG_SCHED_CLASS_EXT", "--affinity"]);
    let loads = |name: &'static str| {
        move |machine: &Machine| {
            machine.write("sys/kernel/sched_ext/state", "enabled\n");
            machine.write("sys/kernel/sched_ext/root/ops", &format!("{name}\n"));
        }
    };
    refuses(&loads("lavd"), &["another one is loaded (lavd)", "end the program"]);
    refuses(&loads("dimmer"), &["Dimmer's scheduler is loaded already", "`dimmer-specialise wide"]);
    let powerless = |machine: &Machine| machine.write("proc/self/status", "CapEff:\t0\n");
    refuses(&powerless, &["CAP_BPF and CAP_PERFMON (run as root)"]);
    let unmounted = |machine: &Machine| machine.write("proc/self/mounts", "");
    refuses(&unmounted, &["no file system of type bpf at /sys/fs/bpf", "mount -t bpf"]);
    let without = |machine: &Machine| machine.remove("bin/dimmer-specialise");
    refuses(&without, &["no program dimmer-specialise beside dimmer", "ci/kernel.sh"]);
}

#[test]
fn doctor_says_how_far_it_works() {
    let check = |change: &dyn Fn(&Machine), expected: &str| {
        let machine = Machine::new();
        change(&machine);
        let mut command = Command::new(env!("CARGO_BIN_EXE_dimmer"));
        command.args(["--root", machine.root(), "doctor"]).env("PATH", "/bin");
        let output = command.output().unwrap();
        let text = stdout(&output);
        let line = text.lines().find(|line| line.starts_with("  specialise"));
        assert_eq!(line.unwrap_or(&text), expected, "{}", stderr(&output));
    };
    check(&|_| {}, "  specialise works   experimental; by the module and its scheduler");
    check(
        &|machine| machine.remove("bin/dimmer-specialise"),
        "  specialise partly  experimental; by the module alone (--affinity): no program dimmer-specialise",
    );
    check(
        &|machine| machine.remove(MODULE),
        "  specialise no      no /sys/kernel/dimmer_xcr0: it is not loaded, so no wide code faults on narrow",
    );
}
