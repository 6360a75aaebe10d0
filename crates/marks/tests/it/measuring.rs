//! What `libswp` measures, and that `libswp_dummy` changes nothing.

use dimmer_policy::phases::{Graph, Mark};

use super::*;

/// The lines that a program prints itself, and the graph that follows them.
#[track_caller]
fn parts(printed: &str, own: &str) -> Graph {
    let graph = printed.strip_prefix(own).unwrap_or_else(|| panic!("{printed}"));
    Graph::from_text(graph).unwrap()
}

/// Number of calls from one mark to another, by the starts of their names.
fn calls(graph: &Graph, start: &str, end: &str) -> u64 {
    let is = |mark: &Mark, name: &str| mark.function() == name;
    let edges = graph.edges().filter(|edge| is(edge.0, start) && is(edge.1, end));
    edges.map(|edge| edge.2.calls).sum()
}

#[test]
fn a_program_does_the_same_with_each_library_and_is_measured() {
    let Some(program) = Program::new("phases") else { return };
    let expected = program.run("swp_dummy", &[], &[]).out;
    assert_eq!(expected.lines().count(), 4);
    for by in [By::Preload, By::Path] {
        for library in ["swp", "swp_migrate", "swp_dummy"] {
            let printed = program.run_in_place("swp", (library, by), &[], &[]);
            if library != "swp" {
                assert_eq!(printed.out, expected, "{library} by {by:?}: {}", printed.err);
                continue;
            }
            let graph = parts(&printed.out, &expected);
            assert_eq!(calls(&graph, "swp_init", "compute"), 1);
            assert_eq!(calls(&graph, "compute", "chase"), 2);
            assert_eq!(calls(&graph, "chase", "compute"), 1);
            assert_eq!(calls(&graph, "chase", "swp_deinit"), 1);
            assert_eq!(graph.edges().count(), 4);
            assert!(graph.edges().all(|edge| edge.2.spent.time.is_some()));
            let position = graph.marks()[0].position().unwrap();
            assert!(position.contains("examples/phases.c:"), "{position}");
        }
    }
}

#[test]
fn what_cannot_be_counted_is_left_out_and_said_once() {
    let Some(program) = Program::new("phases") else { return };
    let printed = program.run("swp", &[], &[]);
    let said = printed.err.lines().filter(|line| line.starts_with("libswp: ")).count();
    let has_counts = printed.out.contains("instr = ");
    assert_eq!(said, usize::from(!has_counts), "{}", printed.err);
}

#[test]
fn the_graphs_of_all_threads_are_summed_up() {
    let Some(program) = Program::new("threads") else { return };
    let printed = program.run("swp", &[], &[]);
    let graph = Graph::from_text(printed.out.strip_suffix("done\n").unwrap()).unwrap();
    assert_eq!(calls(&graph, "first", "second"), 8000);
    assert_eq!(calls(&graph, "second", "first"), 8 * 999);
    assert_eq!(graph.edges().count(), 3);
    assert!(printed.err.contains("libswp: the mark `first [a]` is before swp_init() or after"));
}

/// Runs a case; returns the graph and the messages about anything but counters.
#[track_caller]
fn run(case: &str) -> (Graph, Vec<String>) {
    let program = Program::new("cases").unwrap();
    let printed = program.run("swp", &[case], &[]);
    let graph: String = printed
        .out
        .lines()
        .filter(|line| *line != "done")
        .map(|line| format!("{line}\n"))
        .collect();
    let messages = printed.err.lines().filter(|line| !line.contains("calls and time alone"));
    (Graph::from_text(&graph).unwrap(), messages.map(str::to_owned).collect())
}

#[test]
fn marks_outside_of_a_session_do_not_count() {
    if !has("cc") {
        return;
    }
    for (case, mark) in [("before", "fast"), ("after", "fast")] {
        let (graph, messages) = run(case);
        assert_eq!(graph.edges().map(|edge| edge.2.calls).sum::<u64>(), 4, "{case}");
        let expected = format!(
            "libswp: the mark `{mark}` is before swp_init() or after swp_deinit(): such marks do \
             nothing"
        );
        assert_eq!(messages, [expected], "{case}");
    }
}

#[test]
fn a_program_that_ends_without_a_word_has_its_graph() {
    if !has("cc") {
        return;
    }
    let (graph, messages) = run("exit");
    assert_eq!(calls(&graph, "slow", "fast"), 1);
    assert_eq!(graph.edges().count(), 3);
    assert_eq!(messages, [""; 0]);
}

#[test]
fn a_text_that_changes_is_another_mark() {
    if !has("cc") {
        return;
    }
    let (graph, _) = run("change");
    assert_eq!((calls(&graph, "text a", "text b"), calls(&graph, "text b", "text a")), (2, 1));
}

#[test]
fn a_second_start_ends_the_first() {
    let Some(program) = Program::new("cases") else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("graph");
    let printed = program.run("swp", &["twice"], &[("DIMMER_MARKS", file.to_str().unwrap())]);
    assert_eq!(printed.out, "done\n");
    let graph = Graph::from_text(&std::fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(calls(&graph, "swp_init", "fast"), 2);
    assert_eq!(calls(&graph, "fast", "swp_deinit"), 1);
}

#[test]
fn processes_add_to_one_file_or_have_their_own() {
    let Some(program) = Program::new("cases") else { return };
    let folder = tempfile::tempdir().unwrap();
    let read = |name: &str| {
        let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
        Graph::from_text(&text).unwrap()
    };
    let file = |name: &str| folder.path().join(name).display().to_string();
    let printed = program.run("swp", &["fork"], &[("DIMMER_MARKS", &file("all"))]);
    assert_eq!(printed.out, "child\ndone\n");
    // The parent passes them three times, and the child twice.
    assert_eq!(calls(&read("all"), "slow", "fast"), 3 + 1 + 2);
    program.run("swp", &["fork"], &[("DIMMER_MARKS", &file("own-%p"))]);
    let own: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(Result::unwrap).collect();
    assert_eq!(own.len(), 3, "{own:?}");
}

/// Passes marks of Rust; in a process of its own, as the environment is read once.
#[test]
fn rust_has_marks_with_the_function_and_the_line() {
    fn parse() {
        dimmer_marks::mark!();
    }
    let test = "measuring::rust_has_marks_with_the_function_and_the_line";
    if std::env::var_os("DIMMER_MARKS").is_some() {
        (0..5).for_each(|_| parse());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("graph");
    let mut own = Command::new(std::env::current_exe().unwrap());
    succeed(own.args(["--exact", test]).env("DIMMER_MARKS", &file));
    let graph = Graph::from_text(&std::fs::read_to_string(file).unwrap()).unwrap();
    let [mark] = graph.marks()[..] else { panic!("{graph:?}") };
    assert!(mark.function().ends_with("::parse"), "{mark}");
    assert!(mark.position().unwrap().contains("tests/it/measuring.rs:"), "{mark}");
    assert_eq!(graph.edge(mark, mark).unwrap().calls, 4);
}
