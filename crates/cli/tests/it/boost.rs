//! `dimmer run --boost`: locks are observed, and the program stays as it is.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;

use crate::victims::Victims;
use crate::{command, stderr, stdout};

/// Builds the library that is preloaded, once.
pub(crate) fn build_library() {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        crate::built(&["--package", "dimmer-boost"]);
    });
}

/// Runs a command with its locks observed. Returns what came out, and the document.
pub(crate) fn observed(directory: &Path, options: &[&str], program: &[&str]) -> (Output, Value) {
    build_library();
    let mut observed = command(directory, &["run", "--boost", "--json=locks.json"]);
    let output = observed.args(options).arg("--").args(program).output().unwrap();
    let document = std::fs::read_to_string(directory.join("locks.json"));
    let document = document.unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)));
    (output, serde_json::from_str(&document).unwrap())
}

/// A made-up machine whose clocks can be requested: all CPUs have one policy, from 0.8 to 4 GHz.
pub(crate) struct Machine(tempfile::TempDir);

const POLICY: &str = "sys/devices/system/cpu/cpufreq/policy0";

impl Machine {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let policy = directory.path().join(POLICY);
        std::fs::create_dir_all(&policy).unwrap();
        let cpus: Vec<String> = (0..8192).map(|cpu| cpu.to_string()).collect();
        for (name, content) in [
            ("affected_cpus", cpus.join(" ").as_str()),
            ("base_frequency", "3000000"),
            ("cpuinfo_max_freq", "4000000"),
            ("cpuinfo_min_freq", "800000"),
            ("cpuinfo_transition_latency", "10000"),
            ("scaling_cur_freq", "3000000"),
            ("scaling_governor", "schedutil"),
            ("scaling_max_freq", "3600000"),
            ("scaling_min_freq", "1000000"),
        ] {
            std::fs::write(policy.join(name), format!("{content}\n")).unwrap();
        }
        Self(directory)
    }

    pub(crate) fn root(&self) -> String {
        self.0.path().to_str().unwrap().to_owned()
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.0.path().join(POLICY).join(name).to_str().unwrap().to_owned()
    }

    /// Both limits, which requests change.
    #[track_caller]
    pub(crate) fn check(&self, expected: [&str; 2]) {
        let limit = |name| std::fs::read_to_string(self.file(name)).unwrap().trim().to_owned();
        assert_eq!(["scaling_min_freq", "scaling_max_freq"].map(limit), expected);
    }

    /// Runs a program with this strategy. Returns what came out, and the document.
    fn run(&self, strategy: &str, program: &[&str]) -> (Output, Value) {
        self.run_with(strategy, &[], program)
    }

    /// Likewise, with more options.
    pub(crate) fn run_with(
        &self,
        strategy: &str,
        more: &[&str],
        program: &[&str],
    ) -> (Output, Value) {
        build_library();
        let directory = tempfile::tempdir().unwrap();
        let boost = format!("--boost={strategy}");
        let root = self.root();
        let options = [&["--root", &root, "run", &boost, "--json=locks.json"], more, &["--"]];
        let output = command(directory.path(), &options.concat()).args(program).output().unwrap();
        let document = std::fs::read_to_string(directory.path().join("locks.json"));
        let document = document.unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)));
        (output, serde_json::from_str(&document).unwrap())
    }
}

/// The sum over the sites of this kind in a function.
pub(crate) fn sum(document: &Value, function: &str, kind: &str, key: &str) -> u64 {
    let sites = document["sites"].as_array().unwrap().iter();
    let of_it = sites.filter(|site| site["function"] == function && site["kind"] == kind);
    of_it.map(|site| site[key].as_u64().unwrap()).sum()
}

#[test]
fn locks_are_counted_where_they_are_taken_and_the_program_does_the_same() {
    let Some(victims) = Victims::compile(&["locks"]) else { return };
    let program = victims.path("locks");
    let plain = Command::new(&program).output().unwrap();
    assert_eq!(plain.status.code(), Some(3), "{}", stderr(&plain));
    let model = ["--model", "fx-8120"];
    let (output, document) = observed(victims.directory.path(), &model, &[&program]);
    assert_eq!(output.status, plain.status);
    assert_eq!(stdout(&output), stdout(&plain));
    // Acquisitions and holds are exact, and so are waits: the holder waits until others sleep.
    #[track_caller]
    fn check(document: &Value, function: &str, kind: &str, expected: [u64; 3]) {
        let keys = ["acquisitions", "contended", "holds"];
        assert_eq!(keys.map(|key| sum(document, function, kind, key)), expected, "{document:#}");
    }
    // The parent's and its child's.
    check(&document, "take_short", "mutex", [2000, 0, 2000]);
    check(&document, "hold_long", "mutex", [1, 0, 1]);
    check(&document, "take_contended", "mutex", [2, 2, 2]);
    check(&document, "take_rwlock", "read", [10, 0, 10]);
    check(&document, "take_rwlock", "write", [1, 0, 1]);
    check(&document, "wait_for_condition", "mutex", [1, 0, 1]);
    check(&document, "wait_for_condition", "condition", [1, 1, 1]);
    check(&document, "signal_condition", "condition", [1, 1, 1]);
    check(&document, "refuse_wait", "mutex", [1, 0, 1]);
    check(&document, "refuse_wait", "condition", [0, 0, 0]);
    // The hold ends at the wait; that in which the thread is cancelled does not count.
    check(&document, "wait_forever", "mutex", [1, 0, 1]);
    check(&document, "wait_forever", "condition", [0, 0, 0]);
    check(&document, "cancel_waiter", "mutex", [1, 0, 1]);
    check(&document, "pass_barrier", "barrier", [10, 10, 0]);
    check(&document, "lock_while_cancelled", "mutex", [1, 0, 1]);
    // Three times the recursive one, once the checked one, once the robust one.
    check(&document, "take_special", "mutex", [5, 0, 5]);
    check(&document, "die_with_it", "mutex", [1, 0, 0]);
    check(&document, "fork_with_lock", "mutex", [1, 0, 1]);
    assert_eq!(document["processes"], 2);
    assert_eq!(document["problems"], Value::Array(Vec::new()));
    assert!(sum(&document, "hold_long", "mutex", "held_ns") > 0);
    assert!(sum(&document, "take_contended", "mutex", "waited_ns") > 0);
    let told = stderr(&output);
    assert!(told.contains("take_contended") && told.contains("AMD FX-8120"), "{told}");
}

/// Two threads in Python that take turns with the interpreter's lock.
pub(crate) const PYTHON: &str = "
import threading
done = []
def work(number):
    for _ in range(20000):
        number = (number * 7 + 1) % 1000003
    done.append(number)
threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(sorted(done))
";

#[test]
fn python_does_the_same_and_its_sites_are_found() {
    let program = ["python3", "-c", PYTHON];
    let Ok(plain) = Command::new(program[0]).args(&program[1..]).output() else {
        println!("SKIPPED: there is no python3");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let (output, document) = observed(directory.path(), &[], &program);
    assert_eq!((stdout(&output), output.status), (stdout(&plain), plain.status));
    let sites = document["sites"].as_array().unwrap();
    assert!(sites.iter().any(|site| site["kind"] == "mutex"), "{document:#}");
    assert!(stderr(&output).contains("--model MODEL"), "{}", stderr(&output));
}

#[test]
fn a_program_without_locks_has_no_sites() {
    let directory = tempfile::tempdir().unwrap();
    let (output, document) = observed(directory.path(), &[], &["sh", "-c", "exit 7"]);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(document["sites"], Value::Array(Vec::new()));
    assert!(stderr(&output).contains("at 0 sites"), "{}", stderr(&output));
}

#[test]
fn what_does_not_go_with_it_is_refused_with_the_reason() {
    build_library();
    let directory = tempfile::tempdir().unwrap();
    for (options, expected) in [
        (&["--narrow"][..], "--boost goes without other mechanisms: expected it without --narrow"),
        (&["--migrate"], "expected it without --migrate"),
        (&["--cpus", "1"], "--cpus is for --migrate"),
        (&["--model", "nothing"], "no model or file `nothing`"),
        (&["--model", "zen-5"], "lacks"),
        (&["--boost=spin"], "expected observe, auto, one, ownr or wait"),
    ] {
        let boost: &[&str] = if options[0].starts_with("--boost") { &[] } else { &["--boost"] };
        let arguments = [&["run"], boost, options, &["--", "true"]].concat();
        let output = command(directory.path(), &arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{options:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{options:?}: {}", stderr(&output));
    }
}

#[test]
fn clocks_are_requested_at_locks_waits_and_unlocks_as_the_strategy_says() {
    const ONE: [[u64; 3]; 7] =
        [[0, 10, 10], [0; 3], [0, 1, 1], [0, 1, 1], [0; 3], [0, 1, 1], [0, 1, 1]];
    const OWNER: [[u64; 3]; 7] =
        [[0, 10, 10], [0; 3], [0, 1, 1], [0, 1, 1], [1, 0, 1], [1, 1, 1], [0, 1, 0]];
    let Some(victims) = Victims::compile(&["boosted"]) else { return };
    let program = victims.path("boosted");
    let plain = Command::new(&program).output().unwrap();
    assert_eq!(plain.status.code(), Some(3), "{}", stderr(&plain));
    let machine = Machine::new();
    // A lock around another one is fast once; a wait for a condition releases the lock.
    for (strategy, expected, of_condition) in [("one", ONE, [0, 1, 1]), ("ownr", OWNER, [1, 1, 1])]
    {
        let (output, document) = machine.run(strategy, &[&program]);
        assert_eq!((stdout(&output), output.status), (stdout(&plain), plain.status));
        let keys = ["slow_requests", "fast_requests", "ended_requests"];
        let of = |function, kind| keys.map(|key| sum(&document, function, kind, key));
        let functions = [
            "take_outer",
            "take_inner",
            "hold",
            "try_lock",
            "lock_until_past",
            "wait_for_lock",
            "lock_to_wait",
        ];
        assert_eq!(functions.map(|one| of(one, "mutex")), expected, "{strategy} {document:#}");
        assert_eq!(of("wait_for_condition", "condition"), of_condition, "{document:#}");
        assert_eq!(document["requests"]["back_end"], "cpufreq");
        assert_eq!(document["requests"]["refused"], 0);
        assert_eq!(sum(&document, "take_inner", "mutex", "boosted"), 10);
        machine.check(["1000000", "3600000"]);
    }
    // Such a thread is fast from its first section on.
    let (output, document) = machine.run("wait", &[&program]);
    assert_eq!((stdout(&output), output.status), (stdout(&plain), plain.status));
    assert_eq!(sum(&document, "take_outer", "mutex", "fast_requests"), 1);
    assert_eq!(sum(&document, "wait_for_lock", "mutex", "slow_requests"), 1);
    machine.check(["1000000", "3600000"]);
}

/// The program itself looks whether its section has the fast clock, and the code after it has not.
#[test]
fn the_machine_has_the_clock_during_the_section_and_not_afterwards() {
    let Some(victims) = Victims::compile(&["boosted"]) else { return };
    let (program, machine) = (victims.path("boosted"), Machine::new());
    let file = machine.file("scaling_min_freq");
    let (output, document) = machine.run("one", &[&program, &file, "4000000", "1000000"]);
    assert_eq!(stdout(&output), "4000000\n1000000\n", "{}", stderr(&output));
    assert_eq!(sum(&document, "main", "mutex", "boosted_in_time"), 1, "{document:#}");
    assert!(document["requests"]["fast_ns"].as_u64().unwrap() > 0);
    let told = stderr(&output);
    assert!(told.contains("Boost sections longer than") && told.contains("cpufreq"), "{told}");
    machine.check(["1000000", "3600000"]);
}

#[test]
fn a_long_section_that_others_wait_for_is_boosted_once_that_is_learnt() {
    let Some(victims) = Victims::compile(&["boosted"]) else { return };
    let (program, machine) = (victims.path("boosted"), Machine::new());
    let file = machine.file("scaling_min_freq");
    let (output, document) = machine.run("auto", &[&program, &file, "4000000"]);
    assert_eq!(stdout(&output), "4000000\n", "{}", stderr(&output));
    let sites = document["sites"].as_array().unwrap().iter();
    let boosted: Vec<_> = sites.filter(|site| site["strategy"] == "one").collect();
    assert_eq!(boosted.len(), 1, "{document:#}");
    assert_eq!(boosted[0]["function"], "hold_until");
    machine.check(["1000000", "3600000"]);
}

#[test]
fn a_program_that_is_killed_in_a_section_leaves_no_request() {
    let Some(victims) = Victims::compile(&["boosted"]) else { return };
    let (program, machine) = (victims.path("boosted"), Machine::new());
    let file = machine.file("scaling_min_freq");
    let (output, _) = machine.run("one", &[&program, &file, "4000000", "1000000", "killed"]);
    assert_eq!(stdout(&output), "4000000\n");
    machine.check(["1000000", "3600000"]);
}

/// Time stamps fault then, and system calls end the process: neither is used any more.
#[test]
fn a_program_that_gives_up_time_stamps_or_system_calls_goes_on() {
    let Some(victims) = Victims::compile(&["gives_up"]) else { return };
    let (program, machine) = (victims.path("gives_up"), Machine::new());
    let file = machine.file("scaling_min_freq");
    for (how, stopped, seen) in [
        ("time", 1, false),
        ("others", 1, false),
        ("calls", 1, false),
        ("calls-by-number", 1, false),
        ("time-by-number", 1, false),
        ("listener", 1, false),
        ("refused", 0, true),
    ] {
        if how == "listener" && Command::new(&program).arg(how).status().unwrap().code() != Some(7)
        {
            println!("SKIPPED: the kernel gives no listener, or there is one already");
            continue;
        }
        let program = [program.as_str(), how, &file, "4000000", "1000000"];
        let (output, document) = machine.run("one", &program);
        assert_eq!(output.status.code(), Some(7), "{how}: {}", stderr(&output));
        assert_eq!(document["stopped"], stopped, "{how}: {document:#}");
        assert_eq!(sum(&document, "take_before", "mutex", "acquisitions"), 1, "{how}");
        let after = sum(&document, "take_after", "mutex", "acquisitions");
        assert_eq!(after, if seen { 10 } else { 0 }, "{how}");
        assert_eq!(stdout(&output), "", "{how}");
        machine.check(["1000000", "3600000"]);
        if how != "time" && how != "others" {
            let (output, _) = observed(victims.directory.path(), &["--counters"], &program);
            assert_eq!(output.status.code(), Some(7), "{how}: {}", stderr(&output));
            let told = stderr(&output).contains("gave up time stamps or system calls");
            assert_eq!(told, stopped == 1, "{how}: {}", stderr(&output));
        }
    }
}

/// The filter ends processes that make files, as this library would at their first lock.
#[test]
fn what_a_program_executes_under_its_own_filter_is_not_observed() {
    let Some(victims) = Victims::compile(&["filtered"]) else { return };
    let program = victims.path("filtered");
    for how in ["exec", "spawn", "raw"] {
        let plain = Command::new(&program).arg(how).output().unwrap();
        if stdout(&plain) != "worked\n" {
            println!("SKIPPED: {how}: no filter is taken, or the loader makes other calls");
            continue;
        }
        let (output, document) = observed(victims.directory.path(), &[], &[&program, how]);
        assert_eq!(output.status.code(), Some(7), "{how}: {}", stderr(&output));
        assert_eq!(stdout(&output), "worked\n", "{how}: {}", stderr(&output));
        assert_eq!(sum(&document, "main", "mutex", "acquisitions"), 0, "{how}");
    }
}

/// The program lives on, and looks itself whether the clock is that of before.
#[test]
fn what_part_of_a_program_leaves_behind_ends_while_the_rest_goes_on() {
    let Some(victims) = Victims::compile(&["boosted"]) else { return };
    let (program, machine) = (victims.path("boosted"), Machine::new());
    let file = machine.file("scaling_min_freq");
    for how in ["child-killed", "child-executes", "child-left", "main-ends"] {
        let (output, _) = machine.run("one", &[&program, &file, "4000000", "1000000", how]);
        assert_eq!(stdout(&output), "4000000\n1000000\n", "{how}: {}", stderr(&output));
        assert!(output.status.success(), "{how}");
        machine.check(["1000000", "3600000"]);
    }
}

#[test]
fn threads_that_have_ended_without_a_word_leave_room_for_others() {
    let Some(victims) = Victims::compile(&["boosted"]) else { return };
    let (program, machine) = (victims.path("boosted"), Machine::new());
    let file = machine.file("scaling_min_freq");
    let (output, _) = machine.run("one", &[&program, &file, "4000000", "1000000", "threads"]);
    assert_eq!(stdout(&output), "4000000\n", "{}", stderr(&output));
    machine.check(["1000000", "3600000"]);
}

#[test]
fn what_a_killed_run_has_requested_is_restored_and_the_program_goes_on() {
    let Some(victims) = Victims::compile(&["boosted"]) else { return };
    build_library();
    let (program, machine) = (victims.path("boosted"), Machine::new());
    let directory = tempfile::tempdir().unwrap();
    let file = machine.file("scaling_min_freq");
    let options = ["--root", &machine.root(), "run", "--boost=one", "--"];
    let words = [&program, &file, "4000000", "1000000", "parent"];
    // The program kills the run in its section, and waits for the clock of before then.
    let mut run = command(directory.path(), &options);
    let mut run = run.args(words).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    let mut from = std::io::BufReader::new(run.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut from, &mut said).unwrap();
    assert_eq!(said, "4000000\n");
    run.wait().unwrap();
    machine.check(["4000000", "4000000"]);
    let restored = ["--root", &machine.root(), "restore"];
    let output = command(directory.path(), &restored).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    machine.check(["1000000", "3600000"]);
    said.clear();
    std::io::BufRead::read_line(&mut from, &mut said).unwrap();
    assert_eq!(said, "1000000\n");
}

#[test]
fn a_machine_without_clocks_is_only_observed_and_that_is_said_once() {
    build_library();
    let machine = tempfile::tempdir().unwrap();
    let options = [
        "--root",
        machine.path().to_str().unwrap(),
        "run",
        "--boost=one",
        "--json=locks.json",
        "--",
    ];
    let output = command(machine.path(), &options).args(["sh", "-c", "exit 7"]).output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    let told = stderr(&output);
    assert_eq!(told.matches("takes no requests of clocks").count(), 1, "{told}");
    let document = std::fs::read_to_string(machine.path().join("locks.json")).unwrap();
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(document["requests"], Value::Null);
}

/// The program itself makes a file unusable: root's rights do not help then.
#[test]
fn clocks_that_cannot_be_given_back_are_told_with_what_does_it_and_the_status_stays() {
    let Some(victims) = Victims::compile(&["boosted"]) else { return };
    let (program, machine) = (victims.path("boosted"), Machine::new());
    let file = machine.file("scaling_min_freq");
    let script = format!("{program} >/dev/null; rm {file}; mkdir {file}; exit 5");
    let (output, _) = machine.run("one", &["sh", "-c", &script]);
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    let told = stderr(&output);
    let cannot = format!("cannot set /{POLICY}/scaling_min_freq to 1000000");
    assert!(told.contains(&cannot) && told.contains("`dimmer restore`"), "{told}");
    // With a file again that holds what the run had left there.
    std::fs::remove_dir(&file).unwrap();
    std::fs::write(&file, "4000000\n").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let restored = ["--root", &machine.root(), "restore"];
    let output = command(directory.path(), &restored).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    machine.check(["1000000", "3600000"]);
    // Nothing is said otherwise.
    let (output, _) = Machine::new().run("one", &[&program]);
    assert!(!stderr(&output).contains("dimmer restore"), "{}", stderr(&output));
}

/// The program itself enters idle states, by what it writes.
#[test]
fn the_monitor_has_what_the_cpus_did_while_the_program_ran() {
    build_library();
    let machine = Machine::new();
    let cpus = machine.root() + "/sys/devices/system/cpu";
    let states: Vec<String> =
        (0..512).map(|cpu| format!("{cpus}/cpu{cpu}/cpuidle/state1")).collect();
    for state in &states {
        std::fs::create_dir_all(state).unwrap();
        for (file, content) in [("name", "C1"), ("usage", "10"), ("time", "1000")] {
            std::fs::write(format!("{state}/{file}"), content).unwrap();
        }
    }
    let script = format!(
        "cd {cpus}; for cpu in cpu*/cpuidle/state1; do echo 15 >$cpu/new; mv $cpu/new $cpu/usage; done"
    );
    let (output, document) = machine.run("one", &["sh", "-c", &script]);
    assert!(output.status.success(), "{}", stderr(&output));
    let monitor = &document["monitor"];
    let intervals = monitor["intervals"].as_array().unwrap();
    let entries = intervals.iter().map(|one| one["idle"]["C1"]["entries"].as_u64().unwrap());
    // Five for each CPU that the program may run on.
    let entries: u64 = entries.sum();
    let cpus = monitor["cpus"].as_str().unwrap();
    let cpus = dimmer_host::root::parse_cpu_list(cpus).unwrap().len() as u64;
    assert_eq!(entries, 5 * cpus, "{monitor:#}");
    assert_eq!(monitor["missing"]["idle"], Value::Null);
    assert!(monitor["missing"]["energy"].as_str().unwrap().contains("no intel-rapl zone"));
    let told = stderr(&output);
    assert!(told.contains("Not available: energy: no intel-rapl zone"), "{told}");
}
