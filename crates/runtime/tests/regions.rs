//! Marked regions run where the environment says, and the program's results are the same
//! everywhere.
#![expect(clippy::print_stdout, reason = "tests that cannot run here say so")]

use std::ffi::CString;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use dimmer_host::affinity;
use dimmer_runtime::{Decision, Site};

/// The example's executable file.
fn example() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.parent().unwrap().parent().unwrap().join("examples/regions")
}

/// Runs the example. Returns its output.
fn run(settings: &[(&str, &str)]) -> Output {
    run_by(Command::new(example()), settings)
}

fn run_by(mut command: Command, settings: &[(&str, &str)]) -> Output {
    command.env_remove("DIMMER_POLICY").env_remove("DIMMER_CORES");
    // A policy server on this machine must not decide here.
    command.env("DIMMER_SOCKET", "/nonexistent");
    command.envs(settings.iter().copied()).output().unwrap()
}

/// The standard output of a successful run.
fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn calls(text: &str) -> &str {
    text.lines().find(|line| line.starts_with("calls ")).unwrap()
}

/// The last CPU that this process may run on, to move work there. If it may run on only one, prints
/// the reason and returns `None`.
fn other_cpu() -> Option<String> {
    match affinity::allowed().unwrap().as_slice() {
        [_, .., last] => Some(last.index().to_string()),
        _ => {
            println!("SKIPPED: moving work takes two CPUs, and this process may run on one");
            None
        }
    }
}

/// Checks where the example's regions, its closure and its main thread ran, under each policy.
/// Threads that cannot migrate stay at home with their regions. Then only closures are moved, by
/// moving.
#[track_caller]
fn check_places(program: impl Fn() -> Command, can_migrate: bool, there: &str) {
    let plain = text(&run(&[]));
    for (policy, moves_closures) in [("migrate", can_migrate), ("delegate", true)] {
        let settings = [("DIMMER_POLICY", policy), ("DIMMER_CORES", there)];
        let output = run_by(program(), &settings);
        let found = text(&output);
        assert_eq!(output.stderr, b"");
        assert_eq!(calls(&found), calls(&plain));
        let place = |moves| if moves { format!("Cpu({there})") } else { "Home".to_owned() };
        let (region, closure) = (place(can_migrate), place(moves_closures));
        let expected = format!(
            "ran at [[{region}, {region}]], the closure at {closure}, the main thread at Home"
        );
        assert_eq!(found.lines().next(), Some(&*expected), "{policy}");
    }
}

#[test]
fn regions_run_where_the_environment_says_and_give_the_same() {
    let Some(there) = other_cpu() else { return };
    check_places(|| Command::new(example()), dimmer_runtime::check_migration().is_ok(), &there);
}

/// Whether programs in this directory can get their owner's rights.
fn gives_rights(directory: &Path) -> bool {
    let path = CString::new(directory.as_os_str().as_bytes()).unwrap();
    let mut told = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: reads a path that ends with zero, and writes to `told`.
    assert_eq!(unsafe { libc::statvfs(path.as_ptr(), told.as_mut_ptr()) }, 0);
    // SAFETY: all fields may be zero.
    unsafe { told.assume_init() }.f_flag & libc::ST_NOSUID == 0
}

#[test]
fn a_program_with_more_rights_than_its_user_does_not_heed_the_environment() {
    const NOBODY: u32 = 65534;
    let directory = std::env::temp_dir().join(format!("dimmer-rights.{}", std::process::id()));
    // SAFETY: has no preconditions.
    if unsafe { libc::geteuid() } != 0 || !gives_rights(&std::env::temp_dir()) {
        println!(
            "SKIPPED: a program with its owner's rights takes root, and a place where it may lie"
        );
        return;
    }
    fs::create_dir(&directory).unwrap();
    let (program, roots) = (directory.join("regions"), directory.join("roots"));
    // A separate process copies it. A file that is open for writing cannot be executed, and each
    // process that another test starts meanwhile would have it open, too.
    let copied = Command::new("cp").arg(example()).arg(&program).status().unwrap();
    assert!(copied.success());
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    fs::write(&roots, "root's").unwrap();
    fs::set_permissions(&roots, fs::Permissions::from_mode(0o600)).unwrap();
    let last = affinity::allowed().unwrap().last().unwrap().index().to_string();
    let mut command = Command::new(&program);
    command.uid(NOBODY).gid(NOBODY).current_dir("/");
    let entrance = roots.to_str().unwrap();
    let settings =
        [("DIMMER_POLICY", "migrate"), ("DIMMER_CORES", &last), ("DIMMER_ENTRANCE", entrance)];
    let output = run_by(command, &settings);
    let found = fs::read_to_string(&roots).unwrap();
    fs::remove_dir_all(&directory).unwrap();
    assert_eq!((found.as_str(), output.stderr.as_slice()), ("root's", &b""[..]));
    assert_eq!(calls(&text(&output)), calls(&text(&run(&[]))));
}

#[test]
fn under_valgrind_threads_stay_and_closures_move() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("SKIPPED: there is no valgrind");
        return;
    }
    let Some(there) = other_cpu() else { return };
    // Some versions of Valgrind fail on newer debug information.
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("regions-for-valgrind");
    let mut strip = Command::new("strip");
    strip.arg("--strip-debug").arg("-o").arg(&program).arg(example());
    match strip.status() {
        Ok(status) => assert!(status.success()),
        Err(_) => {
            println!("SKIPPED: there is no strip");
            return;
        }
    }
    let valgrind = || {
        let mut valgrind = Command::new("valgrind");
        // Valgrind's errors set the exit status.
        valgrind.args(["--quiet", "--error-exitcode=9"]).arg(&program);
        valgrind
    };
    check_places(valgrind, false, &there);
}

#[test]
fn a_thread_whose_regions_follow_each_other_stays_away_for_the_minimum() {
    if let Err(why) = dimmer_runtime::check_migration() {
        println!("SKIPPED: {why}");
        return;
    }
    let Some(there) = other_cpu() else { return };
    let plain = text(&run(&[]));
    in_empty_directory("stay", |directory| {
        let file = directory.join("policy.toml");
        let policy = format!("file:{}", file.display());
        // The program does almost nothing between its regions.
        let away = format!("Cpu({there})");
        for (stay_us, place) in [(0, "Home"), (1_000_000, &*away)] {
            let settings = format!("default = \"migrate\"\nminimum_stay_us = {stay_us}\n");
            std::fs::write(&file, settings).unwrap();
            let output = run(&[("DIMMER_POLICY", &policy), ("DIMMER_CORES", &there)]);
            let moved = text(&output);
            assert_eq!(calls(&moved), calls(&plain));
            assert!(moved.contains(&format!("the main thread at {place}\n")), "{moved}");
        }
        std::fs::remove_file(&file).unwrap();
    });
}

#[test]
fn calls_are_counted_by_samples() {
    let text = text(&run(&[]));
    let line = text.lines().find(|line| line.starts_with("transform: about ")).unwrap();
    let about: u64 = line.split_whitespace().nth(2).unwrap().parse().unwrap();
    // A thousand calls, two sites: a sample stands for up to 511 entries.
    assert!((200..=2200).contains(&about), "{line}");
}

#[test]
fn wrong_settings_are_said_once_and_everything_stays() {
    for (settings, said) in [
        (
            [("DIMMER_POLICY", "far"), ("DIMMER_CORES", "1")],
            "none of `server`, `stay`, `delegate`, `migrate`",
        ),
        ([("DIMMER_POLICY", "migrate"), ("DIMMER_CORES", "")], "names no core"),
        ([("DIMMER_POLICY", "migrate"), ("DIMMER_CORES", "1000")], "allowed are"),
    ] {
        let output = run(&settings);
        let errors = String::from_utf8(output.stderr.clone()).unwrap();
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(errors.contains(said), "{errors}");
        assert_eq!(calls(&text(&output)), calls(&text(&run(&[]))));
    }
}

#[test]
fn a_site_knows_its_name_and_place_and_takes_decisions() {
    static NAMED: Site = Site::new("named", "a.rs", 3);
    static BARE: Site = Site::new("", "a.rs", 4);
    assert_eq!((NAMED.name(), BARE.name()), ("named".to_owned(), "a.rs:4".to_owned()));
    NAMED.decide(Decision::Stay);
    assert_eq!(NAMED.run(|| 3), 3);
    assert_eq!(NAMED.place(), ("a.rs".into(), 3));
    assert!(dimmer_runtime::sites().iter().any(|site| std::ptr::eq(*site, &NAMED)));
}

/// The example that mixes all ways of moving, with regions borrowed, in its own directory.
fn mixture(arguments: &[&str], directory: &Path) -> Option<Command> {
    let there = other_cpu()?;
    let own = std::env::current_exe().unwrap();
    let mut command =
        Command::new(own.parent().unwrap().parent().unwrap().join("examples/mixture"));
    command.args(arguments).current_dir(directory).env("TMPDIR", directory);
    command.env("DIMMER_POLICY", "migrate").env("DIMMER_CORES", there);
    Some(command)
}

/// Runs a test in a new directory, which the test must leave empty.
fn in_empty_directory(name: &str, test: impl FnOnce(&Path)) {
    let directory = std::env::temp_dir().join(format!("dimmer-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    test(&directory);
    // Fails if the directory is not empty.
    std::fs::remove_dir(&directory).unwrap();
}

#[test]
fn threads_that_do_everything_at_once_do_it_once() {
    in_empty_directory("mixture", |directory| {
        let Some(mut command) = mixture(&["600"], directory) else { return };
        let output = command.output().unwrap();
        // Four threads take 600 turns of five pieces of work, with a sixth in every third turn.
        assert_eq!(text(&output), "ready\ndone 12800\n");
        assert_eq!(output.stderr, b"");
    });
}

#[test]
fn nothing_is_left_of_a_process_that_ends_in_a_fault_anywhere() {
    in_empty_directory("fault", |directory| {
        for () in rounds() {
            let fatal = fastrand::u32(0..400).to_string();
            let Some(mut command) = mixture(&["200", &fatal], directory) else { return };
            let child = command.stdout(Stdio::null()).spawn().unwrap();
            gone(child, libc::SIGSEGV);
        }
    });
}

#[test]
fn nothing_is_left_of_a_process_that_is_killed_at_any_time() {
    in_empty_directory("kill", |directory| {
        for () in rounds() {
            let Some(mut command) = mixture(&["forever"], directory) else { return };
            let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
            let mut said = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
            assert_eq!(said, "ready\n");
            std::thread::sleep(Duration::from_micros(fastrand::u64(0..5000)));
            child.kill().unwrap();
            gone(child, libc::SIGKILL);
        }
    });
}

/// Ten rounds, or as many as fit into `DIMMER_KILL_SECONDS`.
fn rounds() -> impl Iterator<Item = ()> {
    let seconds = std::env::var("DIMMER_KILL_SECONDS").ok().and_then(|text| text.parse().ok());
    let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    (0_u32..)
        .take_while(move |round| until.map_or(*round < 10, |until| Instant::now() < until))
        .map(|_| ())
}

/// Waits for a child that a signal ends, and checks that none of its threads is left.
#[track_caller]
fn gone(mut child: Child, signal: i32) {
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(signal), "{status:?}");
    assert!(!Path::new(&format!("/proc/{}", child.id())).exists());
}
