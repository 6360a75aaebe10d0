//! Tests of the choice of marks, on made-up programs.

use super::*;
use crate::phases::any::Any;
use crate::phases::{Counters, Counts, Flow, MarkId};

/// What one passes, in order: the mark, and what runs until the next one: time (ns), L3 misses in a
/// million of instructions.
type Step = (&'static str, u64, u64);

/// The graph of a thread that passes these marks, with or without counters.
fn graph(steps: &[Step], are_counted: bool) -> Graph {
    let mut names: Vec<&str> = steps.iter().map(|step| step.0).collect();
    names.sort_unstable();
    names.dedup();
    let mut flow = Flow::new(Counters::ZERO);
    let (mut time, mut misses) = (0, 0);
    for (name, ns, rate) in steps {
        let number = names.iter().position(|other| other == name).unwrap();
        let counted = |count: u64| are_counted.then_some(count);
        let reading = Counters {
            time: Some(Nanos::from_ns(time)),
            instructions: counted(time * 3),
            cycles: counted(time * 4),
            l2_latency: None,
            l3_misses: counted(misses),
        };
        flow.pass(MarkId::new(u32::try_from(number).unwrap()), reading);
        time += ns;
        misses += ns * 3 * rate / 1_000_000;
    }
    let marks: Vec<Mark> = names.iter().map(|name| Mark::new(name).unwrap()).collect();
    flow.graph(&marks)
}

fn choose(graph: &Graph) -> Choice {
    Choosing { shortest: Nanos::from_us(2), most: 16 }.of(graph, |_| None)
}

fn names(choice: &Choice) -> Vec<&str> {
    let mut names: Vec<&str> = choice.marks.iter().map(|one| one.mark.name()).collect();
    names.sort_unstable();
    names
}

/// A program that reads and then solves, a hundred times. Each calls small functions all the time,
/// and is called by one that does nothing else.
fn two_phases() -> Vec<Step> {
    let mut steps = vec![("main", 100, 0)];
    for _ in 0..100 {
        steps.extend([("turn", 50, 0), ("read", 80, 0)]);
        steps.extend([("get", 100, 9000)].repeat(500));
        steps.push(("solve", 80, 0));
        steps.extend([("add", 60, 10), ("put", 90, 10)].repeat(2000));
    }
    steps.push(("end", 0, 0));
    steps
}

#[test]
fn phases_are_chosen_and_what_they_call_all_the_time_is_not() {
    let choice = choose(&graph(&two_phases(), false));
    assert_eq!(choice.measure, Measure::Time);
    assert_eq!(names(&choice), ["read", "solve"]);
    assert_eq!((choice.unmeasured, choice.short, choice.alike), (0, 5, 1));
    let solve = &choice.marks[0];
    assert_eq!((solve.mark.name(), solve.passed), ("solve", 100));
    assert!(solve.share > 0.8 && solve.share < 0.9, "{solve:?}");
    // 500 calls take 50 us, 4000 take 300 us.
    let us = |value: Option<f64>| (value.unwrap() / 1000.0).round();
    assert_eq!((us(solve.before), us(solve.after)), (50.0, 300.0));
    let [read, solve] = ["read", "solve"].map(|name| Mark::new(name).unwrap());
    assert_eq!(choice.graph.edge(&read, &solve).unwrap().calls, 100);
    assert_eq!(choice.graph.edge(&solve, &read).unwrap().calls, 99);
}

#[test]
fn with_counters_the_misses_decide() {
    let mut steps = Vec::new();
    // As long as each other; the third is like the second.
    for _ in 0..50 {
        steps.extend([
            ("fast", 10_000, 10),
            ("slow", 10_000, 20_000),
            ("slow_too", 10_000, 20_100),
        ]);
    }
    let choice = choose(&graph(&steps, true));
    assert_eq!(choice.measure, Measure::Metric(Metric::L3MissRate));
    assert_eq!(names(&choice), ["fast", "slow"]);
    let rates: Vec<f64> = choice.marks.iter().map(|one| one.after.unwrap()).collect();
    assert!((rates[0] - 0.02).abs() < 1e-3 && rates[1] < 1e-4, "{rates:?}");
    // Without misses, by cycles per instruction, which are the same everywhere.
    let mut all = Graph::default();
    for (start, end, counts) in graph(&steps, true).edges() {
        let spent = Counters { l3_misses: None, ..counts.spent };
        all.add(start, end, &Counts { spent, ..*counts });
    }
    assert_eq!(choose(&all).measure, Measure::Metric(Metric::Cpi));
}

#[test]
fn no_more_marks_than_wanted_are_chosen() {
    const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
    let mut steps = Vec::new();
    for turn in 0..200_u64 {
        for (number, name) in NAMES.into_iter().enumerate() {
            steps.push((name, 10_000, (number as u64 + 1) * 1000 + turn % 3));
        }
    }
    let graph = graph(&steps, true);
    let of = |most| Choosing { shortest: Nanos::from_us(2), most }.of(&graph, |_| None);
    assert_eq!(of(16).marks.len(), NAMES.len());
    for most in 1..NAMES.len() {
        let choice = of(most);
        assert_eq!((choice.marks.len(), choice.alike), (most, NAMES.len() - most));
        // All of the time but that before the first and after the last of them.
        let share: f64 = choice.marks.iter().map(|one| one.share).sum();
        assert!((share - 1.0).abs() < 1e-9);
    }
}

#[test]
fn marks_that_were_mostly_not_passed_are_not_chosen() {
    let steps = [("a", 10_000, 0), ("b", 90_000, 0), ("c", 50_000, 0)].repeat(10);
    let graph = graph(&steps, false);
    let calls = |mark: &Mark| Some(if mark.name() == "b" { 21 } else { 10 });
    let choice = Choosing { shortest: Nanos::from_us(2), most: 16 }.of(&graph, calls);
    assert_eq!((names(&choice), choice.unmeasured), (vec!["a", "c"], 1));
}

#[test]
fn the_last_phase_of_a_program_keeps_the_mark_that_ends_it() {
    let steps = [("load", 3_000_000, 0), ("solve", 5_000_000, 0), ("print", 0, 0)];
    let choice = choose(&graph(&steps, false));
    assert_eq!(names(&choice), ["load", "print", "solve"]);
    assert_eq!(choice.graph.edges().count(), 2);
}

#[test]
fn any_graph_gives_a_choice_of_its_own_marks() {
    let mut any = Any::new(5);
    assert_eq!(choose(&Graph::default()).marks, []);
    for round in 0..500 {
        let graph = if round % 2 == 0 { any.graph() } else { any.flow().graph(&any.marks()) };
        let most = usize::try_from(any.below(5)).unwrap();
        let choosing = Choosing { shortest: Nanos::from_ns(any.below(50_000)), most };
        let choice = choosing.of(&graph, |_| None);
        assert!(choice.marks.len() <= most);
        let chosen = names(&choice);
        assert!(choice.graph.marks().iter().all(|mark| chosen.contains(&mark.name())));
        let left_out = choice.unmeasured + choice.short + choice.alike;
        assert_eq!(chosen.len() + left_out, graph.marks().len());
    }
}

#[test]
fn the_marks_passed_most_are_too_many_until_the_rest_is_few() {
    let of = |passed: &[u32], us| too_often(passed, Nanos::from_us(us), Nanos::from_us(2));
    assert_eq!(of(&[10, 0, 4000, 90, 6], 8212), []);
    assert_eq!(of(&[10, 0, 4000, 90, 6], 220), [2]);
    assert_eq!(of(&[10, 0, 4000, 90, 6], 200), [2, 3]);
    assert_eq!(of(&[10, 0, 4000, 90, 6], 0), [2, 3, 0, 4]);
}
