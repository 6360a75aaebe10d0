//! Marks without source code: `dimmer observe --marks` and `dimmer run --phases`, with programs
//! that the test compiles.

use std::process::{Command, Output, Stdio};

use dimmer_policy::phases::{Graph, Mark};

use crate::migrate::{PROGRAMS, RUNS, away, early_ms};
use crate::specialise::functions;
use crate::victims::{self, Victims};
use crate::{command, stderr, stdout};

/// The functions of the victim `marks`.
const FUNCTIONS: &str = "compute,chase,finish,in_handler";

/// What the victims `marks` and `phases` end with.
const MARKS_STATUS: i32 = 7;
const PHASES_STATUS: i32 = 9;

fn at_home(victims: &Victims, arguments: &[&str]) -> Command {
    victims::library();
    let home = victims.directory.path();
    let mut command = command(home, arguments);
    command.env("HOME", home).env_remove("XDG_CACHE_HOME").env_remove("XDG_STATE_HOME");
    command
}

fn run(victims: &Victims, arguments: &[&str]) -> Output {
    at_home(victims, arguments).output().unwrap()
}

/// The calls from one function to another.
fn calls(graph: &Graph, start: &str, end: &str) -> u64 {
    let [start, end] = [start, end].map(|name| Mark::new(name).unwrap());
    graph.edge(&start, &end).map_or(0, |counts| counts.calls)
}

#[test]
fn each_edge_is_counted_in_all_threads_and_processes() {
    let Some(victims) = Victims::compile(&["marks"]) else { return };
    let program = victims.path("marks");
    let plain = Command::new(&program).arg("1000").output().unwrap();
    let observed = run(&victims, &["observe", "--marks", FUNCTIONS, "--", &program, "1000"]);
    let told = stderr(&observed);
    assert_eq!(observed.status.code(), Some(MARKS_STATUS), "{told}");
    let printed = stdout(&observed);
    let graph = printed.strip_prefix(&stdout(&plain));
    let graph = graph.unwrap_or_else(|| panic!("first what the program prints: {printed}{told}"));
    let graph = Graph::from_text(graph).unwrap();
    // The first thread, three others, a child, and the program that takes this one's place.
    assert_eq!(calls(&graph, "compute", "chase"), 6000);
    assert_eq!(calls(&graph, "chase", "compute"), 5994);
    assert_eq!(calls(&graph, "chase", "finish"), 6);
    assert_eq!(calls(&graph, "finish", "in_handler"), 1);
    assert_eq!(calls(&graph, "in_handler", "in_handler"), 999);
    assert_eq!(graph.edges().count(), 5);
    assert!(graph.edges().all(|(_, _, counts)| counts.spent.time.is_some()));
    assert!(told.contains("Hooked: 4 functions by name."), "{told}");
}

#[test]
fn the_graph_goes_to_a_file() {
    let Some(victims) = Victims::compile(&["marks"]) else { return };
    let [program, file] = ["marks", "graph"].map(|name| victims.path(name));
    let plain = Command::new(&program).args(["10", "again"]).output().unwrap();
    // Named twice, a function is one mark.
    let arguments = ["observe", "--marks", "chase,compute,chase", "--graph", &file, "--"];
    let observed = run(&victims, &[&arguments[..], &[&program, "10", "again"]].concat());
    assert_eq!(stdout(&observed), stdout(&plain), "{}", stderr(&observed));
    let graph = Graph::from_text(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!((calls(&graph, "compute", "chase"), calls(&graph, "chase", "compute")), (10, 9));
    // A thread that passes one mark takes no edge.
    let arguments = ["observe", "--marks", "finish", "--graph", &file, "--", &program];
    let observed = run(&victims, &[&arguments[..], &["10", "again"]].concat());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "");
    assert!(stderr(&observed).contains("no thread passed two marks"), "{}", stderr(&observed));
}

#[test]
fn programs_do_the_same_with_every_function_a_mark() {
    let Some(victims) = Victims::compile(&PROGRAMS) else { return };
    let graph = victims.path("graph");
    let mut edges = 0;
    for name in PROGRAMS {
        let program = victims.path(name);
        let plain = Command::new(&program).output().unwrap();
        let marks = functions(&program);
        let arguments = ["observe", "--marks", &marks, "--graph", &graph, "--", &program];
        let observed = run(&victims, &arguments);
        let told = stderr(&observed);
        assert_eq!(stdout(&observed), stdout(&plain), "{name}: {told}");
        assert_eq!(observed.status.code(), plain.status.code(), "{name}: {told}");
        let text = std::fs::read_to_string(&graph).unwrap();
        edges += Graph::from_text(&text).unwrap().edges().count();
    }
    assert!(edges > PROGRAMS.len(), "{edges}");
}

/// Writes a profile in which every second function is slow.
fn write_profile(victims: &Victims, functions: &str) -> String {
    let path = victims.path("profile");
    let functions = functions.split(',').enumerate();
    let lines: String =
        functions.map(|(number, name)| format!("\"{name}\"\t{}\n", number % 2)).collect();
    std::fs::write(&path, lines).unwrap();
    path
}

#[test]
fn slow_phases_run_on_the_slow_cpu_and_the_program_does_the_same() {
    let Some(cpu) = away() else { return };
    let Some(victims) = Victims::compile(&["phases"]) else { return };
    let [program, seen] = ["phases", "seen"].map(|name| victims.path(name));
    let plain = Command::new(&program).output().unwrap();
    let phases = format!("--phases={}", write_profile(&victims, "fast,slow"));
    let arguments = ["run", &phases, "--cpus", &cpu, "--", &program, &seen];
    let run = |run: usize| {
        let output = at_home(&victims, &arguments).env("EARLY_MS", early_ms(run)).output().unwrap();
        let told = stderr(&output);
        assert_eq!(stdout(&output), stdout(&plain), "{told}");
        assert_eq!(output.status.code(), Some(PHASES_STATUS), "{told}");
        let at = format!("at 1 of 2 functions (above 0.5) threads migrate to cpu {}", &*cpu);
        assert!(told.replace('\u{a0}', " ").contains(&at), "{told}");
        let seen = std::fs::read_to_string(&seen).unwrap();
        let there = seen.lines().find_map(|line| line.strip_prefix(&format!("{} ", &*cpu)));
        let there: u64 = there.map_or(0, |count| count.parse().unwrap());
        let migrated = told.contains(" of 6 threads migrated to cpu ");
        // All but those before the CPU was free, and those that would not have paid.
        migrated && there > 1000
    };
    assert!((0..RUNS).any(run), "slow phases run there");
}

#[test]
fn programs_do_the_same_while_they_migrate_at_every_function() {
    let Some(cpu) = away() else { return };
    let Some(victims) = Victims::compile(&PROGRAMS) else { return };
    let mut migrated = 0;
    // Of these, one ends its thread in a handler, and one computes until a handler has run: both
    // are limits that docs/phases.md names.
    for name in PROGRAMS.iter().filter(|name| !["faults", "signals"].contains(*name)) {
        let program = victims.path(name);
        let plain = Command::new(&program).output().unwrap();
        let phases = format!("--phases={}", write_profile(&victims, &functions(&program)));
        let threshold = if functions(&program).contains(',') { "0.5" } else { "-1" };
        let arguments = ["run", &phases, "--threshold", threshold, "--cpus", &cpu, "--", &program];
        let output = run(&victims, &arguments);
        let told = stderr(&output);
        assert_eq!(stdout(&output), stdout(&plain), "{name}: {told}");
        assert_eq!(output.status.code(), plain.status.code(), "{name}: {told}");
        migrated += usize::from(!told.contains("Phases: 0 of"));
    }
    assert!(migrated > 0, "threads of some migrated");
}

/// Some pass few marks; whether threads migrate is in the next test.
#[test]
fn programs_do_the_same_while_they_learn_where_their_functions_belong() {
    let Some(cpu) = away() else { return };
    let Some(victims) = Victims::compile(&PROGRAMS) else { return };
    let json = victims.path("json");
    for name in PROGRAMS.iter().filter(|name| !["faults", "signals"].contains(*name)) {
        let program = victims.path(name);
        let plain = Command::new(&program).output().unwrap();
        let output_to = format!("--json={json}");
        let arguments =
            ["run", "--phases", "--slower", "100", "--cpus", &cpu, &output_to, "--", &program];
        let output = run(&victims, &arguments);
        let told = stderr(&output);
        assert_eq!(stdout(&output), stdout(&plain), "{name}: {told}");
        assert_eq!(output.status.code(), plain.status.code(), "{name}: {told}");
        let json: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
        assert_eq!(json["schema"], "dimmer/phases-run/1");
        assert!(json["keeps"] == 0.5 || told.contains("no function can be a mark"), "{told}");
    }
}

/// Code may take twice as long on the CPU that is called slow, so that trying it pays.
#[test]
fn a_slow_cpu_is_tried_and_what_was_learned_is_reported() {
    let Some(cpu) = away() else { return };
    let Some(victims) = Victims::compile(&["phases"]) else { return };
    let [program, json] = ["phases", "json"].map(|name| victims.path(name));
    let output_to = format!("--json={json}");
    let arguments =
        ["run", "--phases", "--slower", "100", "--cpus", &cpu, &output_to, "--", &program];
    let tried = |run: usize| {
        let output = at_home(&victims, &arguments).env("EARLY_MS", early_ms(run)).output().unwrap();
        let told = stderr(&output).replace('\u{a0}', " ");
        assert_eq!(output.status.code(), Some(PHASES_STATUS), "{told}");
        assert!(told.contains("Phases: threads find out at which of "), "{told}");
        assert!(told.contains("lose at most 50.0 % of their speed on cpu"), "{told}");
        assert!(told.contains("loses at most 50.0 %"), "{told}");
        let json: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
        let learned = json["learned"].as_array().unwrap();
        let knows = |name: &str| learned.iter().any(|entry| entry["name"] == name);
        json["left"].as_u64().unwrap() > 0 && knows("fast") && knows("slow")
    };
    assert!((0..RUNS).any(tried), "the slow CPU is tried");
}

#[test]
fn what_is_no_mark_is_refused_before_the_program_starts() {
    let Some(victims) = Victims::compile(&["marks"]) else { return };
    let program = victims.path("marks");
    let refused = |arguments: &[&str]| {
        let output = run(&victims, &[arguments, &["--", &program, "1"]].concat());
        assert!(matches!(output.status.code(), Some(125)), "{}", stderr(&output));
        assert_eq!(stdout(&output), "");
        stderr(&output)
    };
    let told = refused(&["observe", "--marks", "compute,chasse"]);
    assert!(told.contains("no function `chasse`") && told.contains("`chase`"), "{told}");
    let told = refused(&["observe", "--marks", "memcpy"]);
    assert!(told.contains("cannot hook `memcpy`"), "{told}");
    let told = refused(&["observe", "--marks=auto,compute"]);
    assert!(told.contains("expected either `auto` alone, or names of functions"), "{told}");
    let told = refused(&["observe", "--marks=auto", "--json"]);
    assert!(told.contains("both go to standard output: expected --graph FILE"), "{told}");
    let told = refused(&["observe", "--marks", "compute", "--json"]);
    assert!(told.contains("both go to standard output: expected --graph FILE"), "{told}");
    let profile = victims.path("profile");
    let phases = format!("--phases={profile}");
    let bad = |text: &str, options: &[&str]| {
        std::fs::write(&profile, text).unwrap();
        refused(&[&["run", &phases, "--cpus", "0"][..], options].concat())
    };
    let at = |line| format!("{profile}: line {line}: ");
    let told = bad("\"compute\"\t0\n\"chasse\"\t1\n", &[]);
    assert!(told.contains(&at(2)) && told.contains("no function `chasse`"), "{told}");
    assert!(told.contains("accepted are functions"), "{told}");
    let told = bad("\"compute\"\t0\n\"chase [marks.c:31]\"\t1\n", &[]);
    assert!(told.contains(&at(2)) && told.contains("the nearest are `chase`"), "{told}");
    for value in ["-1", "much", "nan"] {
        let told = bad(&format!("\"compute\"\t{value}\n"), &[]);
        assert!(told.contains(&at(1)) && told.contains("expected a finite number"), "{told}");
    }
    for threshold in ["nan", "high"] {
        let told = bad("\"compute\"\t1\n", &["--threshold", threshold]);
        assert!(told.contains("--threshold: ") && told.contains("accepted are finite"), "{told}");
    }
    let told = bad("\"compute\"\t0\n\"chase\"\t1\n", &["--migrate"]);
    assert!(told.contains("--phases does not go with --migrate"), "{told}");
    let told = bad("\"compute\"\t0\n\"chase\"\t1\n", &["--model", "i9-7940x"]);
    assert!(told.contains("--model is not for --phases"), "{told}");
    let told = bad("\"compute\"\t0\n\"chase\"\t1\n", &["--slower", "5"]);
    assert!(told.contains("--slower is for --phases without a profile"), "{told}");
    let told = refused(&["run", "--phases", "--threshold", "1", "--cpus", "0"]);
    assert!(told.contains("--threshold is for --phases=PROFILE"), "{told}");
}

/// The names in the option that the report of chosen marks ends with.
fn chosen(told: &str) -> Vec<&str> {
    let list = told.lines().find_map(|line| line.split_once("--marks=")).map(|found| found.1);
    list.unwrap_or_else(|| panic!("{told}")).split(',').collect()
}

#[test]
fn functions_that_begin_phases_are_chosen_and_frequent_ones_are_not() {
    let Some(victims) = Victims::compile(&["turns"]) else { return };
    let [program, graph, profile] = ["turns", "graph", "profile"].map(|name| victims.path(name));
    let document = victims.path("json");
    let json = format!("--json={document}");
    let plain = Command::new(&program).output().unwrap();
    let observe = |marks: &str| {
        let arguments = ["observe", marks, "--graph", &graph, &json, "--", &program];
        let observed = run(&victims, &arguments);
        let told = stderr(&observed);
        assert_eq!(stdout(&observed), stdout(&plain), "{told}");
        assert_eq!(observed.status.code(), plain.status.code(), "{told}");
        let text = std::fs::read_to_string(&graph).unwrap();
        (told, Graph::from_text(&text).unwrap())
    };
    let (told, estimated) = observe("--marks=auto");
    let names = chosen(&told);
    assert!(names.contains(&"fill") && names.contains(&"follow"), "{told}");
    assert!(!names.contains(&"mix"), "{told}");
    let document: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&document).unwrap()).unwrap();
    let in_document = document["chosen_marks"].as_array().unwrap();
    let in_document: Vec<_> = in_document.iter().filter_map(|mark| mark["name"].as_str()).collect();
    assert_eq!(in_document, names, "{told}");
    // It is called a million times, so its mark is switched off.
    let words: Vec<&str> = told.split_whitespace().collect();
    assert!(words.join(" ").contains("Left out: 1 called too often"), "{told}");
    let marks: Vec<String> = estimated.marks().iter().map(ToString::to_string).collect();
    assert!(marks.iter().all(|mark| names.contains(&&**mark)), "{marks:?} {told}");
    assert_eq!(calls(&estimated, "fill", "follow"), 128, "{told}");
    assert_eq!(calls(&estimated, "follow", "fill"), 127, "{told}");
    // The list names the same marks.
    let (told, exact) = observe(&format!("--marks={}", names.join(",")));
    assert_eq!(exact.marks(), estimated.marks(), "{told}");
    assert_eq!(calls(&exact, "fill", "follow"), 128, "{told}");
    // And a profile of them may be used.
    let Some(cpu) = away() else { return };
    let lines: String =
        names.iter().map(|name| format!("\"{name}\"\t{}\n", u8::from(*name == "fill"))).collect();
    std::fs::write(&profile, lines).unwrap();
    let phases = format!("--phases={profile}");
    let moved = run(&victims, &["run", &phases, "--cpus", &cpu, "--", &program]);
    assert_eq!(stdout(&moved), stdout(&plain), "{}", stderr(&moved));
    assert_eq!(moved.status.code(), plain.status.code(), "{}", stderr(&moved));
}

#[test]
fn programs_do_the_same_while_marks_are_chosen() {
    let Some(victims) = Victims::compile(&PROGRAMS) else { return };
    let graph = victims.path("graph");
    for name in PROGRAMS {
        let program = victims.path(name);
        let plain = Command::new(&program).output().unwrap();
        let observed =
            run(&victims, &["observe", "--marks=auto", "--graph", &graph, "--", &program]);
        let told = stderr(&observed);
        // Its own functions cannot be marks, and it may have no libraries with others.
        if name == "allocates" && told.contains("a file with an allocator of its own") {
            assert_eq!(observed.status.code(), Some(125), "{told}");
            continue;
        }
        assert_eq!(stdout(&observed), stdout(&plain), "{name}: {told}");
        assert_eq!(observed.status.code(), plain.status.code(), "{name}: {told}");
    }
}

#[test]
fn functions_of_cpp_are_named_without_their_arguments() {
    let Some(victims) = Victims::compile(&["overloads"]) else { return };
    let [program, graph] = ["overloads", "graph"].map(|name| victims.path(name));
    let plain = Command::new(&program).output().unwrap();
    let observe =
        |option: &str, name: &str| run(&victims, &["observe", option, name, "--", &program]);
    let observed = run(
        &victims,
        &["observe", "--marks", "ns::Class::once,main", "--graph", &graph, "--", &program],
    );
    assert_eq!(stdout(&observed), stdout(&plain), "{}", stderr(&observed));
    let measured = Graph::from_text(&std::fs::read_to_string(&graph).unwrap()).unwrap();
    assert_eq!(calls(&measured, "ns::Class::once", "ns::Class::once"), 99);
    let observed = observe("--function", "ns::Class::once");
    let told = stderr(&observed);
    assert_eq!(observed.status.code(), plain.status.code(), "{told}");
    assert!(told.contains("Hooked: 1 function by name."), "{told}");
    // Two functions have this name: the error has both symbols, which are names, too.
    for option in ["--marks", "--function"] {
        let refused = observe(option, "ns::Class::twice");
        let told = stderr(&refused);
        assert_eq!((refused.status.code(), &*stdout(&refused)), (Some(125), ""), "{told}");
        let lists = |name: &str| told.contains(name);
        assert!(lists("`_ZN2ns5Class5twiceEd` (ns::Class::twice(double))"), "{told}");
        assert!(lists("`_ZN2ns5Class5twiceEi` (ns::Class::twice(int))"), "{told}");
        let observed = observe(option, "_ZN2ns5Class5twiceEd");
        assert!(stderr(&observed).contains("Hooked: 1 function by name."), "{}", stderr(&observed));
    }
}

/// `None`, with the reason printed, if the program is not installed.
fn installed(name: &str) -> Option<()> {
    let found = Command::new(name).arg("--version").stdin(Stdio::null()).output();
    if found.is_err() {
        println!("SKIPPED: {name} is not installed");
    }
    found.ok().map(drop)
}

#[test]
fn sqlite_does_the_same_at_marks() {
    let Some(cpu) = away() else { return };
    let Some(()) = installed("sqlite3") else { return };
    let Some(victims) = Victims::compile(&[]) else { return };
    let statements = "create table t(a); with recursive n(i) as (select 1 union all select i + 1 \
                      from n where i < 20000) insert into t select i from n; select sum(a) from t;";
    let plain = Command::new("sqlite3").args([":memory:", statements]).output().unwrap();
    let [graph, profile] = ["graph", "profile"].map(|name| victims.path(name));
    let marks = "sqlite3_prepare_v2,sqlite3_step,sqlite3_finalize";
    let command = ["--", "sqlite3", ":memory:", statements];
    let observe = ["observe", "--marks", marks, "--graph", &graph];
    let observed = run(&victims, &[&observe[..], &command].concat());
    if stderr(&observed).contains("no function `sqlite3_step`") {
        println!("SKIPPED: sqlite3 has no symbols of its library");
        return;
    }
    assert_eq!(stdout(&observed), stdout(&plain), "{}", stderr(&observed));
    let measured = Graph::from_text(&std::fs::read_to_string(&graph).unwrap()).unwrap();
    assert!(calls(&measured, "sqlite3_prepare_v2", "sqlite3_step") > 0, "{measured:?}");
    std::fs::write(&profile, "\"sqlite3_prepare_v2\" 0\n\"sqlite3_step\" 1\n").unwrap();
    let phases = format!("--phases={profile}");
    let moved = run(&victims, &[&["run", &phases, "--cpus", &cpu][..], &command].concat());
    assert_eq!(stdout(&moved), stdout(&plain), "{}", stderr(&moved));
    assert_eq!(moved.status.code(), plain.status.code());
}

#[test]
fn redis_does_the_same_at_marks() {
    let Some(()) = installed("redis-server").and(installed("redis-cli")) else { return };
    let Some(victims) = Victims::compile(&[]) else { return };
    let [graph, socket] = ["graph", "socket"].map(|name| victims.path(name));
    let marks = "processCommand,call,aeProcessEvents";
    let arguments = ["observe", "--marks", marks, "--graph", &graph, "--", "redis-server"];
    let options = ["--port", "0", "--save", "", "--unixsocket", &socket];
    let mut observe = at_home(&victims, &[&arguments[..], &options].concat());
    let mut server = observe.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let client = |words: &[&str]| {
        let output = Command::new("redis-cli").args(["-s", &socket]).args(words).output().unwrap();
        stdout(&output)
    };
    while server.try_wait().unwrap().is_none() && client(&["ping"]) != "PONG\n" {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    for number in 0..100 {
        client(&["incrby", "sum", &number.to_string()]);
    }
    let sum = client(&["get", "sum"]);
    client(&["shutdown"]);
    let output = server.wait_with_output().unwrap();
    let told = stderr(&output);
    if told.contains("no function `processCommand`") {
        println!("SKIPPED: redis-server has no symbols");
        return;
    }
    assert_eq!((&*sum, output.status.code()), ("4950\n", Some(0)), "{told}");
    assert!(told.contains("Hooked: 3 functions by name."), "{told}");
    // Its threads may be cancelled anywhere, so they pass no marks.
    assert_eq!(std::fs::read_to_string(&graph).unwrap(), "", "{told}");
}
