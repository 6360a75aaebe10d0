//! Programs whose loaders do not take the library to preload: `dimmer` refuses them, or, as
//! children, they run untouched.

use std::path::Path;
use std::process::{Command, Output};

use crate::victims::{self, Victims};
use crate::{command, stderr, stdout};

const GLIBC: &str = "/lib64/ld-linux-x86-64.so.2";

/// Writes a copy of a program that uses glibc's loader under another name; the copy runs like the
/// program. `None` if there is no room for the name.
fn with_loader(program: &Path, copy: &Path, loader: &Path) -> Option<()> {
    let mut bytes = std::fs::read(program).unwrap();
    let at = bytes.windows(GLIBC.len()).position(|part| part == GLIBC.as_bytes())?;
    let name = loader.to_str()?;
    if name.len() > GLIBC.len() {
        return None;
    }
    std::os::unix::fs::symlink(GLIBC, loader).unwrap();
    bytes[at..at + GLIBC.len()].fill(0);
    bytes[at..at + name.len()].copy_from_slice(name.as_bytes());
    victims::write_executable(copy, &bytes);
    Some(())
}

/// Two programs, one of them with another loader, and a script with the latter as interpreter.
fn programs() -> Option<Victims> {
    let victims = Victims::compile(&["starts"])?;
    let [starts, other, loader] =
        ["starts", "other", "ld-m"].map(|name| victims.directory.path().join(name));
    if with_loader(&starts, &other, &loader).is_none() {
        println!(
            "SKIPPED: the directory for temporary files has too long a name, or the loader another one"
        );
        return None;
    }
    victims::library();
    Some(victims)
}

fn observe(home: &Path, before: &[(&str, &str)], arguments: &[&str]) -> Output {
    let mut command = command(home, &["observe", "--classes", "heavy-512", "--"]);
    command.env("HOME", home).env_remove("XDG_CACHE_HOME").envs(before.iter().copied());
    command.args(arguments).output().unwrap()
}

#[test]
fn children_with_another_loader_run_untouched_however_they_are_started() {
    let Some(victims) = programs() else { return };
    let directory = victims.directory.path();
    let path = directory.to_str().unwrap();
    for (variables, before) in
        [("0", None), ("700", None), ("0", Some(("LD_PRELOAD", "libm.so.6")))]
    {
        let words = [&victims.path("starts"), variables, path, "other", "not-there"];
        let plain = Command::new(words[0]).args(&words[1..]).envs(before).output().unwrap();
        let said = stdout(&plain);
        assert_eq!(said.lines().count(), 27, "{said}");
        assert_eq!(said.matches("Bad address").count(), 5, "{said}");
        let observed = observe(directory, before.as_slice(), &words);
        assert_eq!(stdout(&observed), said, "{}", stderr(&observed));
        assert_eq!(observed.status.code(), Some(0));
        let report = stderr(&observed).split_whitespace().collect::<Vec<_>>().join(" ");
        let told = "Nothing was seen of 11 processes: its program has another loader than glibc's";
        assert!(report.contains(told), "{report}");
    }
}

#[test]
fn children_with_glibcs_loader_are_hooked_however_they_are_started() {
    let Some(victims) = programs() else { return };
    let directory = victims.directory.path();
    let path = directory.to_str().unwrap();
    let observed = observe(directory, &[], &[&victims.path("starts"), "0", path, "starts"]);
    let (said, library) = (stdout(&observed), victims::library().display().to_string());
    let lines: Vec<&str> = said.lines().filter(|line| !line.ends_with("Bad address")).collect();
    assert_eq!(lines.len(), 11, "{said}");
    assert!(lines.iter().all(|line| line.contains(&library)), "{said}");
}

#[test]
fn programs_that_cannot_take_the_library_are_refused_with_the_reason() {
    let Some(victims) = programs() else { return };
    let directory = victims.directory.path();
    let refused = |arguments: &[&str]| {
        let output = command(directory, arguments).env("HOME", directory).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
        stderr(&output)
    };
    let other = victims.path("other");
    let script = directory.join("script");
    victims::write_executable(&script, format!("#! {other} word\n").as_bytes());
    let script = script.to_str().unwrap();
    for program in [&other, script] {
        for way in [&["observe"][..], &["run", "--narrow"]] {
            let said = refused(&[way, &["--", program]].concat());
            assert!(said.contains("has the loader"), "{said}");
            assert!(said.contains("ld-linux-x86-64.so.2"), "{said}");
        }
    }
    // The machine's number, and the class.
    for (at, value) in [(18, 3), (4, 1)] {
        let mut bytes = std::fs::read(victims.path("starts")).unwrap();
        bytes[at] = value;
        std::fs::write(&other, bytes).unwrap();
        let said = refused(&["observe", "--", &other]);
        assert!(said.contains("32 bits, or for another kind of processor"), "{said}");
    }
}

#[test]
fn programs_with_a_sanitizer_are_refused_and_run_untouched_as_children() {
    let Some(victims) = programs() else { return };
    let directory = victims.directory.path();
    let source = directory.join("source.c");
    std::fs::write(&source, "#include <stdio.h>\nint main(void) { puts(\"ran\"); return 0; }")
        .unwrap();
    let program = victims.path("sanitized");
    let mut compile = Command::new("cc");
    compile.args(["-fsanitize=address", "-o", &program]).arg(&source);
    if !compile.output().is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: no compiler with AddressSanitizer");
        return;
    }
    let said = stderr(&observe(directory, &[], &[&program]));
    assert!(said.contains("was built with AddressSanitizer"), "{said}");
    let script = format!("{program}; {program}");
    let observed = observe(directory, &[], &["sh", "-c", &script]);
    assert_eq!(stdout(&observed), "ran\nran\n", "{}", stderr(&observed));
    let report = stderr(&observed).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(report.contains("was built with a sanitizer"), "{report}");
    assert!(!report.contains("ASan runtime"), "{report}");
}

#[test]
fn errno_is_0_at_the_start_of_a_program() {
    let Some(victims) = Victims::compile(&["fresh"]) else { return };
    victims::library();
    let output = observe(victims.directory.path(), &[], &[&victims.path("fresh")]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

/// A process whose root directory is another one cannot open the library there.
#[test]
fn a_program_in_another_root_directory_runs_without_the_library() {
    let Some(victims) = Victims::compile(&["fresh"]) else { return };
    // The same root directory, but for the directory with the library.
    let at = victims::library().parent().unwrap();
    let hides = format!("mount -t tmpfs none {} && {}", at.display(), victims.path("fresh"));
    let plain = Command::new("unshare").args(["-rm", "sh", "-c", &hides]).output();
    if !plain.is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: this process may not mount anything (unshare -rm)");
        return;
    }
    let home = victims.directory.path();
    let output = observe(home, &[], &["unshare", "-rm", "sh", "-c", &hides]);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{message}");
    assert!(!message.contains("cannot be preloaded"), "{message}");
}

#[test]
fn a_program_with_a_thread_before_the_library_is_not_hooked_and_the_report_says_so() {
    let Some(victims) = Victims::compile(&["calls", "early_thread"]) else { return };
    victims::library();
    let home = victims.directory.path();
    let early = victims.path("early_thread");
    let run = |before: &[(&str, &str)]| {
        let mut command = command(home, &["observe", "--classes", "scalar", "--"]);
        command.env("HOME", home).env_remove("XDG_CACHE_HOME").envs(before.iter().copied());
        command.arg(victims.path("calls")).output().unwrap()
    };
    let [without, with] = [run(&[]), run(&[("LD_PRELOAD", &early)])];
    assert_eq!((stdout(&with), with.status.code()), (stdout(&without), without.status.code()));
    let why = "is not hooked: a thread ran before Dimmer";
    assert!(!stderr(&without).contains(why), "{}", stderr(&without));
    assert!(stderr(&with).contains(why), "{}", stderr(&with));
}
