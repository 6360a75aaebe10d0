//! Divided clocks, power by voltage and activity, and migration at marks (paper 004).

use std::path::Path;

use super::*;
use crate::scenario::{Outcome, Scenario};

fn ryzen() -> Model {
    Model::parse(Path::new("ryzen-1600x"), builtin("ryzen-1600x").unwrap()).unwrap()
}

/// Two phases of a millisecond, ten times; the second one waits for memory half of its time at
/// 3600 MHz.
const PHASES: &str = r#"
schema = "dimmer/scenario/1"
name = "n"
source = "s"
model = "ryzen-1600x"
cores = 6
core_pstates = ["P0", "P2", "P2", "P2", "P2", "P2"]
mwait_cores = [0, 1]
[phases]
fast_cpu = 0
slow_cpu = 1
threshold = 0.01
profile = [["cpu", 0.0], ["memory", 0.4]]
[[code]]
name = "cpu"
class = "scalar"
per_cycle = 1.0
[[code]]
name = "memory"
class = "scalar"
per_cycle = 1.0
memory_ns = 0.2777777
[[thread]]
name = "t"
cpu = 0
times = 10
steps = [
    { mark = "cpu" },
    { run = "cpu", instructions = 3_600_000 },
    { mark = "memory" },
    { run = "memory", instructions = 1_800_000 },
]
"#;

fn run(text: &str, moving: Moving) -> Outcome {
    let scenario = Scenario::parse(Path::new("s.toml"), text).unwrap();
    let model = ryzen();
    let settings = scenario.settings(&model, Governor::Hardware, moving, 1).unwrap();
    scenario.run_on(&model, settings, (), &|_| false).unwrap().0
}

fn us(outcome: &Outcome) -> f64 {
    outcome.end.since_start().ns() / 1000.0
}

#[track_caller]
fn close(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 1e-4, "{found}, expected {expected}");
}

/// Table 5.1: 833 MHz requested is 1440 beside 3600, and 833 on the other CCX.
#[test]
fn a_slow_core_is_raised_by_a_fast_one_of_its_ccx() {
    let on = |cpu: usize| PHASES.replace("cpu = 0\ntimes", &format!("cpu = {cpu}\ntimes"));
    let memory_us = 10.0 * 500.0;
    for (cpu, ghz) in [(0, 3.6), (1, 1.44), (2, 1.44), (3, 0.833)] {
        close(us(&run(&on(cpu), Moving::None)), memory_us + 10.0 * 5400.0 / ghz);
    }
    // The fastest core's clock is divided by steps of 1/4: 2500 MHz is 3600 / 1.5.
    let between = on(1).replace("[\"P0\", \"P2\"", "[\"P0\", \"P1\"");
    close(us(&run(&between, Moving::None)), memory_us + 10.0 * 5400.0 / 2.4);
}

#[test]
fn a_request_of_one_core_changes_the_clock_of_its_neighbours() {
    let mut model = ryzen();
    model.transitions.push(dimmer_processor::model::Transition {
        from: "P0".to_owned(),
        to: "P2".to_owned(),
        request_ns: None,
        total_ns: None,
    });
    let settings = Settings {
        cores: 3,
        core_pstates: ["P0", "P2", "P2"].map(str::to_owned).into(),
        ..Settings::default()
    };
    let mut machine = Machine::new(&model, settings, ()).unwrap();
    let code = |span| Step::Run(scalar(Extent::Time(span)));
    machine.spawn("slow", Box::new(Script::once([code(2 * MS)])), Some(1));
    machine.spawn("fast", Box::new(Script::once([code(MS), Step::Ask(2), code(MS)])), Some(0));
    machine.run(at(2 * MS)).unwrap();
    let slow = machine.threads().next().unwrap().instructions[0];
    assert!((slow / (1440.0 + 833.0) / 1000.0 - 1.0).abs() < 2e-3, "{slow}");
}

#[test]
fn threads_migrate_at_marks_by_profile_and_threshold() {
    let moved = run(PHASES, Moving::Phases(Guided::Profile));
    assert_eq!(moved.threads[0].migrations, 19);
    let memory_us = 10.0 * (500.0 + 1800.0 / 1.44);
    close(us(&moved), 10.0 * 1000.0 + memory_us + 19.0 * 0.557);
    // The other CCX is further away, and slower.
    let across = PHASES.replace("slow_cpu = 1", "slow_cpu = 3");
    let memory_us = 10.0 * (500.0 + 1800.0 / 0.833);
    close(
        us(&run(&across, Moving::Phases(Guided::Profile))),
        10.0 * 1000.0 + memory_us + 19.0 * 1.5,
    );
    // All marks want the fast core, and marks are ignored without the loop.
    let all_fast = PHASES.replace("threshold = 0.01", "threshold = 0.5");
    assert_eq!(run(&all_fast, Moving::Phases(Guided::Profile)).threads[0].migrations, 0);
    assert_eq!(run(PHASES, Moving::None).threads[0].migrations, 0);
}

#[test]
fn threads_learn_where_each_part_belongs() {
    // On the slow core, the first part keeps 0.4 of its speed, and the second one 0.57.
    let text = PHASES.replace("times = 10", "times = 20000");
    let keeps = |keeps: f64| text.replace("threshold", &format!("keeps = {keeps}\nthreshold"));
    let slow = 500.0 + 1800.0 / 1.44;
    let ms_each = |text: &str| us(&run(text, Moving::Phases(Guided::Learning))) / 20_000.0 / 1000.0;
    let near = |found: f64, expected_us: f64| {
        let ratio = found * 1000.0 / expected_us;
        assert!((0.985..1.015).contains(&ratio), "{found}, expected {expected_us} us");
    };
    near(ms_each(&keeps(0.5)), 1000.0 + slow + 2.0 * 0.557);
    near(ms_each(&keeps(0.3)), 1000.0 / 0.4 + slow);
    near(ms_each(&keeps(0.8)), 2000.0);
    // Left out: nine tenths.
    near(ms_each(&text), 2000.0);
    let error = Scenario::parse(Path::new("s.toml"), &keeps(1.5)).unwrap_err();
    assert!(error.message.contains("`keeps`") && error.message.contains("from 0 to 1"), "{error}");
}

#[test]
fn power_depends_on_voltage_activity_and_waiting() {
    let watts = |text: &str| {
        let outcome = run(text, Moving::None);
        outcome.energy.as_ref().unwrap().packages[0].joules / (us(&outcome) * 1e-6)
    };
    let alone = PHASES.replace("mwait_cores = [0, 1]", "mwait_cores = []");
    let only = |code: &str| {
        let other = if code == "cpu" { "memory" } else { "cpu" };
        alone.replace(&format!("    {{ run = \"{other}\""), &format!("#    {{ run = \"{other}\""))
    };
    let square = 1.2_f64.powi(2);
    let cpu = square * (2.891 + 1.251 * 3.6);
    close(watts(&only("cpu")), cpu);
    let half = 0.5 + 0.5 * 0.346;
    close(watts(&only("memory")), square * (2.891 + 1.251 * 3.6 * half));
    let active = only("cpu").replace(
        "per_cycle = 1.0\n[[code]]",
        "per_cycle = 1.0\nactivity = 2\ntraffic_nj = 1.5\n[[code]]",
    );
    close(watts(&active), cpu + square * 1.251 * 3.6 + 1.5 * 3.6);
    let waits = only("cpu").replace("mwait_cores = []", "mwait_cores = [2]");
    close(watts(&waits), cpu + square * 0.938);
    // No core is fast: all have less voltage.
    let slow = only("cpu").replace("[\"P0\", ", "[\"P2\", ");
    close(watts(&slow), 0.64 * (2.891 + 1.251 * 0.833));
}

#[test]
fn small_cores_do_less_per_cycle() {
    let mut model = ryzen();
    let capacity = dimmer_processor::model::Sourced {
        value: 0.5,
        source: "made up".to_owned(),
        guess: true,
        ci95: None,
    };
    model.clusters[1].capacity_ratio = Some(capacity);
    let mut machine =
        Machine::new(&model, Settings { cores: 6, ..Settings::default() }, ()).unwrap();
    for core in [0, 3] {
        let code = Step::Run(scalar(Extent::Time(MS)));
        machine.spawn("a", Box::new(Script::once([code])), Some(core));
    }
    machine.run(at(MS)).unwrap();
    let done: Vec<f64> = machine.threads().map(|thread| thread.instructions[0]).collect();
    close(done[0], 2.0 * done[1]);
}

#[test]
fn what_is_wrong_with_phases_is_said() {
    let check = |from: &str, to: &str, expected: &str| {
        assert!(PHASES.contains(from), "{from}");
        let text = PHASES.replacen(from, to, 1);
        let error = Scenario::parse(Path::new("s.toml"), &text).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check("fast_cpu = 0", "fast_cpu = 6", "line 10: `fast_cpu` is 6, expected 0 to 5");
    check("slow_cpu = 1", "slow_cpu = 0", "are the same, expected two CPUs");
    check("[\"memory\", 0.4]", "[\"disk\", 0.4]", "no step passes `disk`, expected cpu, memory");
    check("[\"memory\", 0.4]", "[\"cpu\", 0.4]", "mark `cpu` twice");
    check("0.4]", "-0.4]", "`profile` is -0.4, expected a number from 0 to");
    check("{ mark = \"cpu\" }", "{ mark = \"a -> b\" }", "`a -> b` is no name of a mark");
    check("{ mark = \"cpu\" }", "{ mark = \"cpu\", us = 1 }", "expected { run = CODE");
    check("[\"P0\", ", "[", "`core_pstates` has 5 P-states, expected one for each of 6 cores");
    check("[0, 1]", "[0, 6]", "`mwait_cores`: expected cores from 0 to 5");
    let without = PHASES.split_once("[phases]").unwrap();
    let rest = without.1.split_once("[[code]]").unwrap().1;
    let text = format!("{}[[code]]{rest}", without.0);
    let scenario = Scenario::parse(Path::new("s.toml"), &text).unwrap();
    let error = scenario
        .settings(&ryzen(), Governor::Hardware, Moving::Phases(Guided::Profile), 1)
        .unwrap_err();
    assert_eq!(error.to_string(), "migrating at marks needs `[phases]` in the scenario");
    let mut model = ryzen();
    model.moves.clear();
    let scenario = Scenario::parse(Path::new("s.toml"), PHASES).unwrap();
    let error = scenario
        .settings(&model, Governor::Hardware, Moving::Phases(Guided::Profile), 1)
        .unwrap_err();
    assert!(error.to_string().contains("`move (thread in user mode)`"), "{error}");
}
