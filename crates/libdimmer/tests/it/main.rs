//! C and C++ programs, compiled against the library as it is installed: they do the same wherever
//! their regions run.
#![expect(clippy::print_stdout, reason = "tests that cannot run here say so")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

/// What every program is compiled with: whoever includes the header must get no warnings from it.
const STRICT: [&str; 7] =
    ["-O2", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"];

fn has(tool: &str) -> bool {
    let mut ask = Command::new(tool);
    let asked = ask.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    asked.is_ok_and(|status| status.success())
}

/// Whether all of these tools are there; else it is said which is not.
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

/// Make, as users call it.
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

/// Where the library is installed, for all tests.
fn installed() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    let install = || {
        let own = std::env::current_exe().unwrap();
        let built = own.parent().unwrap().parent().unwrap();
        let release: &[&str] = if built.ends_with("release") { &["--release"] } else { &[] };
        // Cargo builds libraries of this kind for nobody but who asks for them.
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--package", "dimmer-c", "--offline"]).args(release);
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

/// How a program gets the library.
#[derive(Clone, Copy, PartialEq)]
enum Link {
    Shared,
    Static,
    /// Not at all: its macros do nothing.
    Disabled,
}

/// Compiles an example.
fn compile(source: &str, link: Link) -> Program {
    compile_as(source, link, &[])
}

/// Compiles an example with these arguments besides.
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
    /// What it prints and what it says of where it ran, under these settings.
    fn run(&self, settings: &[(&str, &str)]) -> (String, String) {
        self.run_on(&[], settings)
    }

    /// The same, with these arguments.
    #[track_caller]
    fn run_on(&self, arguments: &[&Path], settings: &[(&str, &str)]) -> (String, String) {
        // So that a program that hangs ends, and fails.
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

/// Checks that a program prints `expected` wherever its regions run, and runs on the dedicated core
/// where it is told to.
#[track_caller]
fn check(source: &str, link: Link, compilers: &[&str], expected: &str) {
    if !have(compilers) {
        return;
    }
    let program = compile(source, link);
    assert_eq!(program.run(&[]).0, expected);
    let Some(there) = last_cpu() else { return };
    for policy in ["borrow", "offload"] {
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
    let expected = "calls 1.5 2.5 43 3\nerrno -1 1\nleft 1 2 3 2\nborrowed 43 44 1\noffloaded 1 7 1\n\
                    statistics 1 1\nversion 1\n";
    check("services.c", Link::Shared, &["make", "cc"], expected);
}

#[test]
fn exceptions_pass_regions_and_come_home() {
    let expected = "region: thrown 1\nguard: thrown 2\ncall: thrown 3\nreference: 5\nown: 112\n\
                    offload: thrown 4\nborrow: thrown 5\nborrow in C: thrown 7\nrun: thrown 6\nvalue: moved\n\
                    through a reference: assigned\n";
    check("exceptions.cpp", Link::Shared, &["make", "c++"], expected);
}

#[test]
fn threads_may_enter_and_end_in_regions_of_any_function() {
    check("threads.cpp", Link::Shared, &["make", "c++"], "8 6 3 4\n");
}

/// All policies that there are on this machine, with the cores that they take.
fn policies() -> Vec<Vec<(&'static str, String)>> {
    let mut policies = vec![vec![], vec![("DIMMER_POLICY", "stay".to_owned())]];
    if let Some(there) = last_cpu() {
        policies.extend(["borrow", "offload"].map(|policy| {
            vec![("DIMMER_POLICY", policy.to_owned()), ("DIMMER_CORES", there.clone())]
        }));
    }
    policies
}

/// Checks that a program prints what it should for so many cores, so often under each policy.
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
    // How a signal comes differs from run to run.
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
        let offloaded = if moves { "lost" } else { "ended" };
        let expected = format!(
            "run: ended\nrun, cancelled: ended\nrun in C: ended\nborrow: ended\nborrow, cancelled: ended\n\
             borrow in C: ended\noffload: {offloaded}\noffload again: ended\nafter: 3, moves {}\n",
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
        let ended = "borrow: ended\nregion: ended\n".repeat(4);
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
    assert_eq!(said.matches("none of `server`, `stay`, `offload`, `borrow`").count(), 1, "{said}");
}

#[test]
fn a_policy_knows_a_call_by_its_function() {
    if !have(&["make", "cc"]) {
        return;
    }
    let Some(there) = last_cpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("policy.toml");
    std::fs::write(&policy, "[sites]\ntransform = \"borrow\"\n").unwrap();
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
    // How much it is differs from machine to machine.
    let printed = compile("cost.c", Link::Shared).run(&[]).0;
    assert!(printed.trim_end().strip_suffix(" ns").unwrap().parse::<f64>().is_ok(), "{printed}");
}

/// What pkg-config says.
fn pkg_config(arguments: &[&str]) -> String {
    let mut ask = Command::new("pkg-config");
    ask.args(arguments).arg("dimmer");
    ask.env("PKG_CONFIG_PATH", installed().join("lib/pkgconfig"));
    String::from_utf8(succeed(&mut ask).stdout).unwrap().trim().to_owned()
}

#[test]
fn pkg_config_finds_the_library() {
    if !have(&["make", "cc", "pkg-config"]) {
        return;
    }
    let prefix = installed().display();
    let told = pkg_config(&["--cflags", "--libs"]);
    assert_eq!(told, format!("-I{prefix}/include -L{prefix}/lib -ldimmer"));
}

#[test]
fn a_static_program_is_linked_as_pkg_config_says_and_does_the_same() {
    if !have(&["make", "cc", "pkg-config"]) {
        return;
    }
    let found = Command::new("cc").arg("-print-file-name=libc.a").output().unwrap().stdout;
    if !Path::new(String::from_utf8(found).unwrap().trim()).is_absolute() {
        println!("SKIPPED: the C library is not here to be linked statically");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    let mut compile = Command::new("cc");
    compile.arg("-static").arg("-o").arg(&program).arg(format!("{FOLDER}/examples/signals.c"));
    compile.args(pkg_config(&["--static", "--cflags", "--libs"]).split_whitespace());
    succeed(&mut compile);
    let program = Program { path: program, _folder: folder };
    check_policies(&program, &[], 1, signals_printed);
}

#[test]
fn a_shared_object_exports_nothing_of_the_static_library_that_it_holds() {
    if !have(&["make", "cc", "pkg-config", "nm"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let object = folder.path().join("plugin.so");
    let library = installed().join("lib/libdimmer.a").display().to_string();
    let flags = pkg_config(&["--static", "--cflags", "--libs"]).replace("-ldimmer", &library);
    let mut compile = Command::new("cc");
    compile.args(["-shared", "-fPIC", "-Wl,-z,nodelete", "-o"]).arg(&object);
    compile.arg(format!("{FOLDER}/examples/plugin.c")).args(flags.split_whitespace());
    succeed(&mut compile);
    let mut list = Command::new("nm");
    let listed = succeed(list.args(["-D", "--defined-only", "-f", "posix"]).arg(&object)).stdout;
    let listed = String::from_utf8(listed).unwrap();
    let names: Vec<&str> = listed.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(names, ["plugin_work"]);
    // It may be loaded, used and unloaded as that with the shared library.
    let program = compile_as("loader.c", Link::Disabled, &["-pthread", "-ldl"]);
    check_policies(&program, &[&object], 1, loader_printed);
}

#[test]
fn every_standard_takes_the_macros() {
    let (include, library) = (installed().join("include"), installed().join("lib"));
    for (compiler, language, standards) in [
        ("gcc", "c", ["c99", "c11", "gnu17"]),
        ("clang", "c", ["c99", "c11", "gnu17"]),
        ("g++", "c++", ["c++11", "c++14", "c++20"]),
        ("clang++", "c++", ["c++11", "c++14", "c++20"]),
    ] {
        if !have(&["make", compiler]) {
            continue;
        }
        for standard in standards {
            for disable in [false, true] {
                let folder = tempfile::tempdir().unwrap();
                let program = folder.path().join("program");
                let mut compile = Command::new(compiler);
                compile.args(STRICT).arg(format!("-std={standard}")).arg("-I").arg(&include);
                compile.args(["-x", language]).arg(format!("{FOLDER}/examples/macros.c"));
                compile.arg("-o").arg(&program);
                if disable {
                    compile.arg("-DDIMMER_DISABLE");
                } else {
                    compile.arg("-L").arg(&library).arg("-ldimmer");
                    compile.arg(format!("-Wl,-rpath,{}", library.display()));
                }
                succeed(&mut compile);
                succeed(&mut Command::new(&program));
            }
        }
    }
}

#[test]
fn a_name_that_is_no_literal_is_refused_with_that_word() {
    let include = installed().join("include");
    for (compiler, language) in [("gcc", "c"), ("g++", "c++"), ("clang", "c"), ("clang++", "c++")] {
        if !have(&["make", compiler]) {
            continue;
        }
        for name in ["const char *name", "const char *const name = \"parse\""] {
            let folder = tempfile::tempdir().unwrap();
            let source = folder.path().join("source");
            let text = format!(
                "#include <dimmer.h>\nextern {name};\nint main(void) {{ DIMMER_REGION(name); }}\n"
            );
            std::fs::write(&source, text).unwrap();
            let mut compile = Command::new(compiler);
            compile.arg("-I").arg(&include).args(["-fsyntax-only", "-x", language]).arg(&source);
            let output = compile.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).replace('_', " ");
            assert!(!output.status.success(), "{compiler}: {name}");
            assert!(said.contains("name must be a string literal"), "{compiler}: {said}");
        }
    }
}

/// All files below a directory, from there.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                open.push(entry.path());
            } else {
                found.push(entry.path().strip_prefix(directory).unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

#[test]
fn what_is_installed_lies_below_the_prefix_and_can_be_removed() {
    if !have(&["make"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // What is installed need not be what it is called.
    let built = folder.path().join("built");
    std::fs::create_dir(&built).unwrap();
    let names = ["dimmer", "dimmerd", "libdimmer_preload.so", "libdimmer.so", "libdimmer.a"];
    for name in names {
        std::fs::write(built.join(name), "").unwrap();
    }
    let file = |variable: &str, name: &str| format!("{variable}={}", built.join(name).display());
    let run = |goals: &[&str], directories: &[String]| {
        let mut run = make();
        run.args(goals).args(directories);
        run.args([file("DIMMER", names[0]), file("DAEMON", names[1]), file("PRELOAD", names[2])]);
        succeed(run.arg(file("LIBRARIES", "")));
    };
    let goals = ["install-dimmer", "install-library", "install-daemon"];
    let home = folder.path().join("home/.local");
    let own = [prefix_argument(&home)];
    run(&goals, &own);
    let installed = files(&home);
    let has = |installed: &[PathBuf], name: &str| installed.contains(&name.into());
    for name in ["bin/dimmer", "include/dimmer.h", "etc/dimmer/dimmerd.toml"] {
        assert!(has(&installed, name), "{name}: {installed:?}");
    }
    let unit = std::fs::read_to_string(home.join("lib/systemd/system/dimmerd.service")).unwrap();
    let configuration = home.join("etc/dimmer/dimmerd.toml");
    assert!(unit.contains(&format!("--config {}\n", configuration.display())), "{unit}");
    // What somebody has changed stays, both times.
    std::fs::write(&configuration, "# mine\n").unwrap();
    run(&goals, &own);
    assert_eq!(std::fs::read_to_string(&configuration).unwrap(), "# mine\n");
    run(&["uninstall"], &own);
    assert_eq!(files(&home), [PathBuf::from("etc/dimmer/dimmerd.toml")]);
    // The machine's.
    let staged = folder.path().join("staged");
    let machine = ["PREFIX=/usr".to_owned(), format!("DESTDIR={}", staged.display())];
    run(&goals, &machine);
    let installed = files(&staged);
    assert!(has(&installed, "etc/dimmer/dimmerd.toml"), "{installed:?}");
    let others = installed.iter().filter(|name| !name.starts_with("usr"));
    assert_eq!(others.count(), 1, "{installed:?}");
    run(&["uninstall"], &machine);
    assert!(files(&staged).is_empty());
}

#[test]
fn cmake_takes_the_versions_that_the_librarys_name_stands_for() {
    if !have(&["make", "cc", "cmake"]) {
        return;
    }
    let template = Path::new(FOLDER).join("package/dimmer-config-version.cmake.in");
    let template = std::fs::read_to_string(template).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (rule, script) = (folder.path().join("rule.cmake"), folder.path().join("ask.cmake"));
    for (version, wanted, expected) in [
        ("0.3.1", "0.3", "TRUE"),
        ("0.3.1", "0.3.1", "TRUE"),
        ("0.3.1", "0.2", "FALSE"),
        ("0.3.1", "0.4", "FALSE"),
        ("1.3.1", "1.0", "TRUE"),
        ("1.3.1", "1.4", "FALSE"),
        ("1.3.1", "0.3", "FALSE"),
        ("2.0.0", "1.9", "FALSE"),
        ("10.0.0", "1.0", "FALSE"),
    ] {
        std::fs::write(&rule, template.replace("@VERSION@", version)).unwrap();
        let (major, minor) = wanted.split_once('.').unwrap();
        let minor = minor.split('.').next().unwrap();
        let text = format!(
            "set(PACKAGE_FIND_VERSION {wanted})\nset(PACKAGE_FIND_VERSION_MAJOR {major})\n\
             set(PACKAGE_FIND_VERSION_MINOR {minor})\ninclude({})\n\
             message(\"${{PACKAGE_VERSION_COMPATIBLE}}\")\n",
            rule.display()
        );
        std::fs::write(&script, text).unwrap();
        let said = succeed(Command::new("cmake").arg("-P").arg(&script)).stderr;
        assert_eq!(String::from_utf8(said).unwrap().trim(), expected, "{version} for {wanted}");
    }
    // The library's name says the same of the version at hand.
    let version = env!("CARGO_PKG_VERSION");
    let (series, _) = version.rsplit_once('.').unwrap();
    let series =
        if version.starts_with("0.") { series } else { &series[..series.find('.').unwrap()] };
    assert!(installed().join(format!("lib/libdimmer.so.{series}")).exists());
}

#[test]
fn cmake_finds_the_library() {
    if !have(&["make", "cc", "cmake"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let project = format!(
        "cmake_minimum_required(VERSION 3.10)\nproject(example C)\nfind_package(dimmer {} REQUIRED)\n\
         add_executable(shared {FOLDER}/examples/transform.c)\n\
         target_link_libraries(shared dimmer::dimmer)\n\
         add_executable(whole {FOLDER}/examples/transform.c)\n\
         target_link_libraries(whole dimmer::static)\n",
        env!("CARGO_PKG_VERSION")
    );
    std::fs::write(folder.path().join("CMakeLists.txt"), project).unwrap();
    let at = || {
        let mut command = Command::new("cmake");
        command.current_dir(folder.path());
        command
    };
    succeed(at().args(["-S", ".", "-B", "built"]).env("CMAKE_PREFIX_PATH", installed()));
    succeed(at().args(["--build", "built"]));
    for name in ["shared", "whole"] {
        let printed = succeed(&mut Command::new(folder.path().join("built").join(name))).stdout;
        assert_eq!(String::from_utf8(printed).unwrap(), TRANSFORMED);
    }
}
