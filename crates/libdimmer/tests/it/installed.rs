//! What `make install` installs is found by pkg-config and CMake, and `make uninstall` removes it.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use super::*;

/// The output of pkg-config.
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

/// Programs that are linked with a release look these up: one goes only with another series of
/// versions, by which the library has another name.
const PROMISED: &str = "\
dimmer_can_migrate dimmer_decide dimmer_dedicated_cores dimmer_delegate dimmer_enter dimmer_exit
dimmer_mark_at dimmer_metric dimmer_migrate dimmer_mutex_destroy dimmer_mutex_init dimmer_mutex_lock
dimmer_mutex_start dimmer_mutex_strategies dimmer_mutex_trylock dimmer_mutex_unlock
dimmer_pace_begin dimmer_pace_dedicate_fast dimmer_pace_end dimmer_pace_go_home
dimmer_pace_go_to_fast_core dimmer_pace_in_force dimmer_pace_release_fast dimmer_pace_request
dimmer_pace_request_by_neighbour dimmer_pace_sleep_again dimmer_pace_stay_awake dimmer_policy
dimmer_run dimmer_site_statistics dimmer_version";

#[test]
fn series_0_2_exports_what_it_promises_and_nothing_that_is_not_dimmers() {
    if !have(&["make", "cc", "nm"]) {
        return;
    }
    assert!(env!("CARGO_PKG_VERSION").starts_with("0.2."), "a new series: see PROMISED");
    let library = installed().join("lib/libdimmer.so");
    let mut list = Command::new("nm");
    let listed = succeed(list.args(["-D", "--defined-only", "-f", "posix"]).arg(library)).stdout;
    let listed = String::from_utf8(listed).unwrap();
    let exported: Vec<&str> =
        listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    for promised in PROMISED.split_whitespace() {
        assert!(exported.contains(&promised), "{promised} is not exported");
    }
    let foreign = exported.iter().find(|name| !name.starts_with("dimmer_"));
    assert_eq!(foreign, None);
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
    // It can be loaded, used and unloaded like the one with the shared library.
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

/// All files below a directory, relative to it.
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
    // Empty files will do: only names matter here.
    let built = folder.path().join("built");
    std::fs::create_dir(&built).unwrap();
    let names = [
        "dimmer",
        "dimmerd",
        "libdimmer_preload.so",
        "libdimmer_boost.so",
        "libdimmer.so",
        "libdimmer.a",
    ];
    for name in names {
        std::fs::write(built.join(name), "").unwrap();
    }
    // But this one is asked for the man pages and completions.
    let dimmer = built.join(names[0]);
    std::fs::write(&dimmer, "#!/bin/sh\n[ $1 = completions ] || : >$2/dimmer.1\n").unwrap();
    // And this one for its own.
    let daemon = built.join(names[1]);
    std::fs::write(&daemon, "#!/bin/sh\n[ $1 = --manual ]\n").unwrap();
    for program in [dimmer, daemon] {
        std::fs::set_permissions(program, Permissions::from_mode(0o755)).unwrap();
    }
    for package in MARKS {
        let name = package.replace("dimmer-", "lib").replace('-', "_");
        std::fs::write(built.join(format!("{name}.so")), "").unwrap();
    }
    let file = |variable: &str, name: &str| format!("{variable}={}", built.join(name).display());
    let run = |goals: &[&str], directories: &[String]| {
        let mut run = make();
        run.args(goals).args(directories);
        run.args([file("DIMMER", names[0]), file("DAEMON", names[1]), file("PRELOAD", names[2])]);
        run.arg(file("BOOST", names[3]));
        succeed(run.arg(file("LIBRARIES", "")));
    };
    let goals = ["install-dimmer", "install-library", "install-daemon"];
    let home = folder.path().join("home/.local");
    let own = [prefix_argument(&home)];
    run(&goals, &own);
    let installed = files(&home);
    let has = |installed: &[PathBuf], name: &str| installed.contains(&name.into());
    for name in [
        "bin/dimmer",
        "include/dimmer.h",
        "include/swp.h",
        "lib/libultmigration.so",
        "lib/dimmer/swp-migrate/libswp.so",
        "etc/dimmer/dimmerd.toml",
        "share/man/man1/dimmer.1",
        "share/man/man8/dimmerd.8",
        "share/bash-completion/completions/dimmer",
    ] {
        assert!(has(&installed, name), "{name}: {installed:?}");
    }
    let unit = std::fs::read_to_string(home.join("lib/systemd/system/dimmerd.service")).unwrap();
    let configuration = home.join("etc/dimmer/dimmerd.toml");
    assert!(unit.contains(&format!("--config {}\n", configuration.display())), "{unit}");
    // A file that a user has changed stays, both times.
    std::fs::write(&configuration, "# mine\n").unwrap();
    run(&goals, &own);
    assert_eq!(std::fs::read_to_string(&configuration).unwrap(), "# mine\n");
    run(&["uninstall"], &own);
    assert_eq!(files(&home), [PathBuf::from("etc/dimmer/dimmerd.toml")]);
    // An installation for the whole machine.
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
    // The library's name follows the same rule for this version.
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
