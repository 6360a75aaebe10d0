//! C and C++ programs, compiled with the installed library, do the same wherever regions run.
#![expect(clippy::print_stdout, reason = "tests that cannot run here say so")]

mod installed;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

/// The libraries for marks, which are installed with this one.
const MARKS: [&str; 5] = [
    "dimmer-swp",
    "dimmer-swp-migrate",
    "dimmer-swp-dummy",
    "dimmer-ultmigration",
    "dimmer-ultmigration-dummy",
];

/// Options for every program: one that includes the header must get no warnings from it.
const STRICT: [&str; 7] =
    ["-O2", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"];

fn has(tool: &str) -> bool {
    let mut ask = Command::new(tool);
    let asked = ask.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    asked.is_ok_and(|status| status.success())
}

/// Whether all of these tools are there. Prints the first that is missing.
fn have(tools: &[&str]) -> bool {
    let missing = tools.iter().find(|tool| !has(tool));
    missing.inspect(|tool| println!("SKIPPED: there is no `{tool}` here")).is_none()
}

#[track_caller]
fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// The command `make`, as users call it.
fn make() -> Command {
    let mut make = Command::new("make");
    make.arg("--no-print-directory").current_dir(format!("{FOLDER}/../.."));
    for name in ["MAKEFLAGS", "DESTDIR", "PREFIX", "SYSCONFDIR"] {
        make.env_remove(name);
    }
    make
}

fn prefix_argument(prefix: &Path) -> String {
    format!("PREFIX={}", prefix.display())
}

/// The prefix under which the library is installed, for all tests.
fn installed() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    let install = || {
        let own = std::env::current_exe().unwrap();
        let built = own.parent().unwrap().parent().unwrap();
        let release: &[&str] = if built.ends_with("release") { &["--release"] } else { &[] };
        // Cargo builds libraries of this kind only on request.
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--package", "dimmer-c", "--offline"]).args(release);
        build.args(MARKS.iter().flat_map(|package| ["--package", package]));
        build.arg("--target-dir").arg(built.parent().unwrap());
        succeed(build.current_dir(FOLDER));
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed");
        let libraries = format!("LIBRARIES={}", built.display());
        succeed(make().arg("install-library").arg(prefix_argument(&prefix)).arg(libraries));
        prefix
    };
    PREFIX.get_or_init(install)
}

/// A compiled example.
struct Program {
    path: PathBuf,
    _folder: TempDir,
}

/// How a program is linked with the library.
#[derive(Clone, Copy, PartialEq)]
enum Link {
    Shared,
    Static,
    /// Not linked: the macros do nothing.
    Disabled,
}

/// Compiles an example.
fn compile(source: &str, link: Link) -> Program {
    compile_as(source, link, &[])
}

/// Compiles an example with additional arguments.
fn compile_as(source: &str, link: Link, arguments: &[&str]) -> Program {
    let (prefix, folder) = (installed(), tempfile::tempdir().unwrap());
    let (include, library) = (prefix.join("include"), prefix.join("lib"));
    let path = folder.path().join("program");
    let (compiler, standard) =
        if source.ends_with(".cpp") { ("c++", "-std=c++14") } else { ("cc", "-std=gnu11") };
    let mut compile = Command::new(compiler);
    compile.arg(standard).args(STRICT).arg("-I").arg(include).arg("-o").arg(&path);
    compile.arg(format!("{FOLDER}/examples/{source}")).args(arguments);
    match link {
        Link::Shared => {
            compile.arg("-L").arg(&library).arg("-ldimmer");
            compile.arg(format!("-Wl,-rpath,{}", library.display()));
        }
        Link::Static => {
            compile.arg(library.join("libdimmer.a"));
            compile.args(["-lpthread", "-ldl", "-lm"]);
        }
        Link::Disabled => {
            compile.arg("-DDIMMER_DISABLE");
        }
    }
    succeed(&mut compile);
    Program { path, _folder: folder }
}

impl Program {
    /// Returns its output and its report of where it ran, under these settings.
    fn run(&self, settings: &[(&str, &str)]) -> (String, String) {
        self.run_on(&[], settings)
    }

    /// The same, with these arguments.
    #[track_caller]
    fn run_on(&self, arguments: &[&Path], settings: &[(&str, &str)]) -> (String, String) {
        // Ends a program that hangs, which then fails.
        let mut command = Command::new("timeout");
        command.arg("60").arg(&self.path).args(arguments);
        command.env_remove("DIMMER_POLICY").env_remove("DIMMER_CORES");
        let output = succeed(command.envs(settings.iter().copied()));
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (text(output.stdout), text(output.stderr))
    }
}

/// The last CPU that this process may run on, if it is not the only one.
fn last_cpu() -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    let last = list.trim().rsplit([',', '-']).next().unwrap();
    if last == list.trim() {
        println!("SKIPPED: moving work takes two CPUs, and this process may run on one");
        return None;
    }
    Some(last.to_owned())
}

/// Checks that a program prints `expected` wherever its regions run, and that they run there.
#[track_caller]
fn check(source: &str, link: Link, compilers: &[&str], expected: &str) {
    if !have(compilers) {
        return;
    }
    let program = compile(source, link);
    assert_eq!(program.run(&[]).0, expected);
    for policy in ["migrate", "delegate"] {
        let Some(there) = last_cpu() else { return };
        let (printed, said) = program.run(&[("DIMMER_POLICY", policy), ("DIMMER_CORES", &there)]);
        assert_eq!(printed, expected, "{policy}");
        let places: Vec<&str> =
            said.lines().filter_map(|line| Some(line.split_once("ran on ")?.1)).collect();
        assert!(!places.is_empty(), "{said}");
        assert!(places.iter().all(|place| *place == there), "{policy}: {said}");
        assert!(!said.contains("dimmer: "), "{said}");
    }
}

const TRANSFORMED: &str = "sum 2000.000000000\n";

#[test]
fn a_program_that_differs_by_one_macro_does_the_same_elsewhere() {
    check("transform.c", Link::Shared, &["make", "cc"], TRANSFORMED);
}

#[test]
fn a_static_library_does_the_same() {
    check("transform.c", Link::Static, &["make", "cc"], TRANSFORMED);
}

#[test]
fn without_the_macros_the_program_is_the_plain_one() {
    if have(&["make", "cc"]) {
        assert_eq!(compile("transform.c", Link::Disabled).run(&[]).0, TRANSFORMED);
    }
}

#[test]
fn calls_of_every_kind_keep_values_errno_and_thread_locals() {
    let expected = "calls 1.5 2.5 43 3\nerrno -1 1\nleft 1 2 3 2\nmigrated 43 44 1\ndelegated 1 7 1\n\
                    statistics 1 1\nversion 1\n";
    check("services.c", Link::Shared, &["make", "cc"], expected);
}

#[test]
fn exceptions_pass_regions_and_come_home() {
    let expected = "region: thrown 1\nguard: thrown 2\ncall: thrown 3\nreference: 5\nown: 112\n\
                    delegate: thrown 4\nmigrate: thrown 5\nmigrate in C: thrown 7\nrun: thrown 6\nvalue: moved\n\
                    through a reference: assigned\n";
    check("exceptions.cpp", Link::Shared, &["make", "c++"], expected);
}

#[test]
fn threads_may_enter_and_end_in_regions_of_any_function() {
    check("threads.cpp", Link::Shared, &["make", "c++"], "8 6 3 4\n");
}

#[test]
fn marks_are_measured_if_a_file_is_named() {
    if !have(&["make", "cc", "c++"]) {
        return;
    }
    for (source, link) in
        [("marks.c", Link::Shared), ("marks.c", Link::Static), ("marks.cpp", Link::Shared)]
    {
        let program = compile_as(source, link, &["-pthread"]);
        assert_eq!(program.run(&[]), ("served\n".to_owned(), String::new()));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("graph");
        let printed = program.run(&[("DIMMER_MARKS", file.to_str().unwrap())]).0;
        assert_eq!(printed, "served\n");
        let graph = std::fs::read_to_string(file).unwrap();
        let edges: Vec<&str> = graph.lines().filter(|line| line.contains(" -> ")).collect();
        assert_eq!(edges.len(), 2, "{graph}");
        assert!(edges[0].starts_with("parse ["), "{graph}");
        assert!(edges[0].contains("examples/marks.c:10] -> serve ["), "{graph}");
        assert!(graph.contains("calls = 30\n") && graph.contains("calls = 27\n"), "{graph}");
    }
}

#[test]
fn a_mutex_of_each_strategy_keeps_threads_apart_and_refuses_what_is_no_use_of_it() {
    if !have(&["make", "cc"]) {
        return;
    }
    let names = ["auto", "spin", "mwait", "futex", "one", "ownr", "wait", "dlgt", "mgrt"];
    let expected: String = names.map(|name| format!("{name} 4000\n")).concat();
    for link in [Link::Shared, Link::Static] {
        let program = compile_as("mutex.c", link, &["-pthread"]);
        assert_eq!(program.run(&[]), (expected.clone(), String::new()));
    }
}

#[test]
fn a_mutex_works_with_the_guards_and_conditions_of_cpp() {
    if !have(&["make", "c++"]) {
        return;
    }
    let expected = "auto 1000\nfutex 1000\nwait 1000\n\
                    dimmer::mutex: unknown strategy `owner`, expected one of auto, spin, mwait, futex, \
                    one, ownr, wait, dlgt, mgrt\nlocked twice: 1\n";
    for standard in ["-std=c++11", "-std=c++17"] {
        let program = compile_as("mutex.cpp", Link::Shared, &["-pthread", standard]);
        assert_eq!(program.run(&[]), (expected.to_owned(), String::new()), "{standard}");
    }
}

#[test]
fn locks_of_each_strategy_keep_threads_apart_and_refuse_what_is_no_use_of_them() {
    if !have(&["make", "cc"]) {
        return;
    }
    let names = ["auto", "spin", "mwait", "futex", "one", "ownr", "wait", "dlgt", "mgrt"];
    let of_barriers = ["auto", "spin", "mwait", "futex", "one", "wait"];
    let expected = names.map(|name| format!("{name} 2000 500\n")).concat()
        + &of_barriers.map(|name| format!("barrier {name} 200 50\n")).concat();
    for (link, standard) in
        [(Link::Shared, "-std=gnu11"), (Link::Shared, "-std=gnu17"), (Link::Static, "-std=gnu11")]
    {
        let program = compile_as("locks.c", link, &["-pthread", standard]);
        assert_eq!(program.run(&[]), (expected.clone(), String::new()), "{standard}");
    }
}

#[test]
fn locks_work_with_the_guards_and_conditions_of_cpp() {
    if !have(&["make", "c++"]) {
        return;
    }
    let expected = "auto 400 400 300\nfutex 400 400 300\nownr 400 400 300\nwait 400 400 300\n\
                    dimmer::mcs_mutex: unknown strategy `owner`, expected one of auto, spin, mwait, \
                    futex, one, ownr, wait, dlgt, mgrt\n\
                    dimmer::shared_mutex: unknown strategy `owner`, expected one of auto, spin, \
                    mwait, futex, one, ownr, wait, dlgt, mgrt\n\
                    dimmer::barrier: unknown strategy `ownr`, expected one of auto, spin, mwait, \
                    futex, one, wait\n\
                    dimmer::barrier: 0 threads, expected at least 1\n\
                    refused: 1 1 1 1\nbarrier auto 80 20\nbarrier wait 80 20\n";
    for standard in ["-std=c++14", "-std=c++17"] {
        let program = compile_as("locks.cpp", Link::Shared, &["-pthread", standard]);
        assert_eq!(program.run(&[]), (expected.to_owned(), String::new()), "{standard}");
    }
}

#[test]
fn threads_ask_for_clocks_whether_or_not_there_is_a_way() {
    if !have(&["make", "cc", "c++"]) {
        return;
    }
    let in_c = "at first 0\nerrno is 77\nnow 50\nstill 50\nanother thread asks for 101\n\
                moved 0, not registered 1 1, no such CPU 1, errno is 77\n\
                at last 0, each time alike\n";
    let in_cpp = "half 50\nin the block 101\noutside 103\nthe second 60\nfast again 103\n";
    for (source, link, expected) in [
        ("pace.c", Link::Shared, in_c),
        ("pace.c", Link::Static, in_c),
        ("pace.cpp", Link::Shared, in_cpp),
    ] {
        let program = compile_as(source, link, &["-pthread"]);
        assert_eq!(program.run(&[]), (expected.to_owned(), String::new()), "{source}");
    }
}

#[test]
fn threads_go_to_a_dedicated_cpu_and_come_home() {
    if !have(&["make", "cc", "c++"]) {
        return;
    }
    let in_c = "none is dedicated: 1\nno CPU: 1\nno such CPU: 1\ndedicated: 1\ntwice: 1\n\
                the owner is there: 1\nstill: 1\nhome: 1\nasks for 101\nwrong: 0\nasks for 0\n\
                errno is 77\n";
    let in_cpp = "there: 0, home: 1\nthere: 1\nhome: 1\n";
    for (source, expected) in [("fast_core.c", in_c), ("fast_core.cpp", in_cpp)] {
        let program = compile_as(source, Link::Shared, &["-pthread"]);
        assert_eq!(program.run(&[]), (expected.to_owned(), String::new()), "{source}");
    }
}

/// All policies that this machine allows, with the cores that they take.
fn policies() -> Vec<Vec<(&'static str, String)>> {
    let mut policies = vec![vec![], vec![("DIMMER_POLICY", "stay".to_owned())]];
    if let Some(there) = last_cpu() {
        policies.extend(["migrate", "delegate"].map(|policy| {
            vec![("DIMMER_POLICY", policy.to_owned()), ("DIMMER_CORES", there.clone())]
        }));
    }
    policies
}

/// Checks `times` runs under each policy: `expected` gives the output for a number of cores.
#[track_caller]
fn check_policies(
    program: &Program,
    arguments: &[&Path],
    times: u32,
    expected: fn(usize) -> String,
) {
    for policy in policies() {
        let settings: Vec<(&str, &str)> =
            policy.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let cores = usize::from(policy.len() > 1);
        for _ in 0..times {
            let (printed, said) = program.run_on(arguments, &settings);
            assert_eq!((printed, said.as_str()), (expected(cores), ""), "{policy:?}");
        }
    }
}

fn signals_printed(_: usize) -> String {
    "begin 1, threads 16, deep 1, handled 1, children 5\nended\n".to_owned()
}

fn loader_printed(_: usize) -> String {
    "round 0: right\nround 1: right\nround 2: right\n".to_owned()
}

#[test]
fn regions_may_be_in_handlers_of_signals_and_everywhere_else() {
    if !have(&["make", "cc"]) {
        return;
    }
    let program = compile_as("signals.c", Link::Shared, &["-pthread"]);
    // The timing of signals differs from run to run.
    check_policies(&program, &[], 2, signals_printed);
}

#[test]
fn nothing_is_allocated_on_the_way_into_a_region() {
    if !have(&["make", "cc"]) {
        return;
    }
    for link in [Link::Shared, Link::Static] {
        let program = compile_as("allocator.c", link, &["-pthread"]);
        check_policies(&program, &[], 1, |cores| {
            format!("cores {cores}, threads 8, allocations counted, regions counted\n")
        });
    }
}

#[test]
fn a_library_with_regions_may_be_loaded_and_unloaded_at_any_time() {
    if !have(&["make", "cc"]) {
        return;
    }
    let program = compile_as("loader.c", Link::Disabled, &["-pthread", "-ldl"]);
    let plugin = compile_as("plugin.c", Link::Shared, &["-shared", "-fPIC"]);
    check_policies(&program, &[&plugin.path], 1, loader_printed);
}

#[test]
fn threads_may_end_and_be_cancelled_in_what_they_call() {
    if !have(&["make", "c++"]) {
        return;
    }
    let program = compile_as("ends.cpp", Link::Shared, &["-pthread"]);
    for policy in policies() {
        let settings: Vec<(&str, &str)> =
            policy.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let moves = policy.len() > 1;
        let delegated = if moves { "lost" } else { "ended" };
        let expected = format!(
            "run: ended\nrun, cancelled: ended\nrun in C: ended\nmigrate: ended\nmigrate, cancelled: ended\n\
             migrate in C: ended\ndelegate: {delegated}\ndelegate again: ended\nafter: 3, moves {}\n",
            u8::from(moves)
        );
        assert_eq!(program.run(&settings).0, expected, "{policy:?}");
    }
}

#[test]
fn threads_that_wait_away_can_be_cancelled() {
    if !have(&["make", "c++"]) {
        return;
    }
    let program = compile_as("waits.cpp", Link::Shared, &["-pthread"]);
    check_policies(&program, &[], 1, |cores| {
        let ended = "migrate: ended\nregion: ended\n".repeat(4);
        format!("begin: ended, 2\n{ended}after: moves {cores}\n")
    });
}

#[test]
fn wrong_settings_are_said_once_and_everything_stays() {
    if !have(&["make", "cc"]) {
        return;
    }
    let (printed, said) = compile("transform.c", Link::Shared)
        .run(&[("DIMMER_POLICY", "far"), ("DIMMER_CORES", "1")]);
    assert_eq!(printed, TRANSFORMED);
    assert_eq!(
        said.matches("none of `server`, `stay`, `delegate`, `migrate`").count(),
        1,
        "{said}"
    );
}

#[test]
fn a_policy_knows_a_call_by_its_function() {
    if !have(&["make", "cc"]) {
        return;
    }
    let Some(there) = last_cpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("policy.toml");
    std::fs::write(&policy, "[sites]\ntransform = \"migrate\"\n").unwrap();
    let policy = format!("file:{}", policy.display());
    let settings = [("DIMMER_POLICY", policy.as_str()), ("DIMMER_CORES", &there)];
    let said = compile("transform.c", Link::Shared).run(&settings).1;
    assert_eq!(said, format!("ran on {there}\n"));
}

#[test]
fn the_cost_of_a_region_that_stays_is_told() {
    if !have(&["make", "cc"]) {
        return;
    }
    // The cost differs from machine to machine.
    let printed = compile("cost.c", Link::Shared).run(&[]).0;
    assert!(printed.trim_end().strip_suffix(" ns").unwrap().parse::<f64>().is_ok(), "{printed}");
}
