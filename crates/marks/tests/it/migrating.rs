//! What `libswp_migrate` and `libultmigration` do.

use dimmer_policy::phases::{Graph, Profile};

use super::*;

/// A folder with a profile.
struct Given(TempDir);

impl Given {
    fn new(profile: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("profile"), profile).unwrap();
        Self(folder)
    }

    /// Runs a program with the profile, after the settings in `others`.
    #[track_caller]
    fn run(&self, program: &Program, case: &str, others: &[(&str, &str)]) -> Printed {
        let path = self.0.path().join("profile").display().to_string();
        let settings = [&[("SWP_CFG", path.as_str()), ("SWP_THRESHOLD", "0.01")], others].concat();
        program.run("swp_migrate", &[case], &settings)
    }
}

const MARKS: &str = "\"slow\" 0.02\n\"fast\" 0.005\n";

/// Whether threads can migrate here. Prints why not.
fn can_migrate() -> bool {
    let why = dimmer_runtime::check_migration().err();
    why.inspect(|why| println!("SKIPPED: {why}")).is_none()
}

#[test]
fn slow_phases_run_on_the_slow_cpu() {
    let (Some(program), Some([fast, slow])) = (Program::new("phases"), two_cpus()) else { return };
    if !can_migrate() {
        return;
    }
    let measured = program.run("swp", &[], &[]).out;
    let graph: String = measured.lines().skip(4).map(|line| format!("{line}\n")).collect();
    let graph = Graph::from_text(&graph).unwrap();
    let mut profile = Profile::default();
    for mark in graph.marks() {
        profile.insert(mark.clone(), if mark.function() == "chase" { 0.03 } else { 0.002 });
    }
    let given = Given::new(&profile.to_text());
    let cpus = [("FAST_CPU", fast.as_str()), ("SLOW_CPU", slow.as_str())];
    let printed = given.run(&program, "", &cpus);
    let round = format!("compute on cpu {fast}\nchase on cpu {slow}\n");
    let went: Vec<&str> = printed.err.lines().filter(|line| line.contains(" on cpu ")).collect();
    assert_eq!(went[..4].join("\n") + "\n", round.repeat(2));
    assert!(went[4].starts_with("end on cpu "));
    // The mark of the end is none that the program passes.
    let others: Vec<&str> = printed.err.lines().filter(|line| !line.contains(" on cpu ")).collect();
    let expected = "libswp_migrate: the program passed no `swp_deinit`: 1 of the profile's 4 marks \
                    were not passed";
    assert_eq!(others, [expected]);
    assert_eq!(printed.out, program.run("swp_dummy", &[], &[]).out);
}

#[test]
fn many_threads_migrate() {
    let (Some(program), Some([fast, slow])) = (Program::new("threads"), two_cpus()) else { return };
    let given = Given::new("\"first [a]\" 0.02\n\"second\" 0.005\n");
    let printed = given.run(&program, "", &[("FAST_CPU", &fast), ("SLOW_CPU", &slow)]);
    assert_eq!(printed.out, "done\n");
    assert!(printed.err.contains("the mark `first [a]` is before swp_init() or after"));
}

#[test]
fn unusual_programs_end_as_they_should() {
    let (Some(program), Some([fast, slow])) = (Program::new("cases"), two_cpus()) else { return };
    let given = Given::new(MARKS);
    for (case, out) in [
        ("", "done\n"),
        ("before", "done\n"),
        ("after", "done\n"),
        ("twice", "done\n"),
        ("exit", "done\n"),
        ("change", "done\n"),
        ("away", "done\n"),
        ("fork", "child\ndone\n"),
    ] {
        let printed = given.run(&program, case, &[("FAST_CPU", &fast), ("SLOW_CPU", &slow)]);
        assert_eq!(printed.out, out, "{case}: {}", printed.err);
        let is_outside = matches!(case, "before" | "after");
        assert_eq!(printed.err.lines().count(), usize::from(is_outside), "{case}: {}", printed.err);
    }
}

/// Checks that a program with bad settings does the same, and gets one message.
#[track_caller]
fn check(profile: &str, settings: &[(&str, &str)], message: &str) {
    let Some(program) = Program::new("cases") else { return };
    let printed = Given::new(profile).run(&program, "", settings);
    assert_eq!(printed.out, "done\n");
    let lines: Vec<&str> = printed.err.lines().collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains(message), "{lines:?}");
}

#[test]
fn bad_settings_leave_threads_where_they_are() {
    let cpus = [("FAST_CPU", "0"), ("SLOW_CPU", "1")];
    check("\"slow\" -0.5\n", &cpus, "line 1: `value` is `-0.5`, expected a finite number");
    check("\"slow\"\n", &cpus, "line 1: ");
    check("slow 0.5\n", &cpus, "line 1: ");
    check("\"slow\" 1\n\"slow\" 2\n", &cpus, "line 2: `slow` occurs twice");
    check(MARKS, &[("SWP_THRESHOLD", "high")], "`high` is no number: accepted are finite numbers");
    check(MARKS, &[("SWP_CFG", "/no/such")], "SWP_CFG: /no/such: No such file");
    check(MARKS, &[], "FAST_CPU is not set: expected a list of CPUs");
    check(MARKS, &[("FAST_CPU", "0"), ("SLOW_CPU", "1023")], "SLOW_CPU: ");
    check(MARKS, &[("FAST_CPU", "0"), ("SLOW_CPU", "-1")], "SLOW_CPU is `-1`: expected a list");
}

#[test]
fn marks_that_the_program_does_not_have_are_named() {
    let Some([fast, slow]) = two_cpus() else { return };
    let cpus = [("FAST_CPU", fast.as_str()), ("SLOW_CPU", slow.as_str())];
    let profile = "\"other\" 0.5\n\"slow\" 0.5\n";
    check(profile, &cpus, "the program passed no `other`: 1 of the profile's 2 marks");
}

#[test]
fn a_program_migrates_by_itself() {
    if !has("cc") {
        return;
    }
    let Some([fast, slow]) = two_cpus() else { return };
    let program = Program::compile("migrate", "cc", &["ultmigration"]);
    let cpus = [("FAST_CPU", fast.as_str()), ("SLOW_CPU", slow.as_str())];
    let expected = "registered: 0\nregistered: 1\na new thread: SIGTERM arrives\nregistered: 0\n";
    for by in [By::Path, By::Preload] {
        let printed = program.run_in_place("ultmigration", ("ultmigration", by), &[], &cpus);
        assert_eq!(printed.out, expected);
        if can_migrate() {
            let started = format!("started on cpu {fast}");
            let [fast, slow] = [format!("fast on cpu {fast}"), format!("slow on cpu {slow}")];
            let round = [fast.as_str(), &slow, &slow].repeat(2);
            let round = [&round[..], &[started.as_str(), &slow]].concat();
            let mut lines: Vec<&str> = printed.err.lines().collect();
            let last = lines.pop().unwrap();
            assert_eq!(lines, round);
            assert!(last.ends_with("accepted are ULT_FAST and ULT_SLOW"), "{last}");
        }
        let dummy = ("ultmigration_dummy", by);
        let printed = program.run_in_place("ultmigration", dummy, &[], &[]);
        assert_eq!(printed.out, expected);
    }
}

#[test]
fn libswp_migrate_uses_the_libultmigration_that_is_loaded() {
    let Some([fast, slow]) = two_cpus() else { return };
    if !has("cc") {
        return;
    }
    let given = Given::new(MARKS);
    let program = Program::compile("cases", "cc", &["swp", "ultmigration"]);
    let printed = given.run(&program, "", &[("FAST_CPU", &fast), ("SLOW_CPU", &slow)]);
    assert_eq!((printed.out.as_str(), printed.err.as_str()), ("done\n", ""));
    // Its dummy needs no CPUs.
    let program = Program::compile("cases", "cc", &["swp", "ultmigration_dummy"]);
    let printed = given.run(&program, "", &[]);
    assert_eq!((printed.out.as_str(), printed.err.as_str()), ("done\n", ""));
}

#[test]
fn cxx_takes_the_headers() {
    if !has("c++") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source.cc");
    let text = "#include <swp.h>\n#include <ultmigration.h>\nstruct P { void operator->() \
                { SWP_MARK; ult_migrate(ULT_FAST); } };\nint main() { swp_init(); swp_deinit(); }\n";
    std::fs::write(&source, text).unwrap();
    let mut compile = Command::new("c++");
    compile.args(STRICT).args(["-std=c++11", "-fsyntax-only"]).arg(format!("-I{FOLDER}/include"));
    succeed(compile.arg(&source));
}

#[test]
fn the_costs_of_marks_and_of_a_round_trip_are_measured() {
    let (Some(program), Some([fast, slow])) = (Program::new("cost"), two_cpus()) else { return };
    // They differ from machine to machine.
    for library in ["swp", "swp_migrate", "swp_dummy"] {
        let printed = program.run(library, &[], &[]).err;
        let cost = printed.lines().find_map(|line| line.strip_suffix(" ns")).unwrap();
        assert!(cost.parse::<f64>().is_ok(), "{printed}");
    }
    let program = Program::compile("trips", "cc", &["ultmigration"]);
    let cpus = [("FAST_CPU", fast.as_str()), ("SLOW_CPU", slow.as_str())];
    let printed = program.run_in_place("ultmigration", ("ultmigration", By::Path), &[], &cpus);
    assert!(printed.out.starts_with("line ") && printed.out.contains(", ratio "), "{printed:?}");
}
