//! The simulator against the one that was written from the documents alone.
//!
//! Governors in software are drawn only for models without P-states: the documents do not say
//! enough of the two together. Rated power, regions, idle states and the other governors are not
//! drawn, as the second simulator lacks them.
//!
//! Of 10,000 scenarios none differs, none of 10,000 in which threads share CPUs, which are drawn
//! apart, and one of 10,000 of these whose times are multiples of 10 µs (5854: a
//! core is below its level for 0.1 % less).

use dimmer_policy::license::Chance as _;
use dimmer_processor::model::Model;
use dimmer_sim::scenario::Outcome;
use dimmer_sim::{Governor, Random};

use crate::drawn::{Draws, Step, Work, draw_all, draw_at_once, draw_crowded};
use crate::reference::{Result, Simulator};

/// Scenarios that are compared; `DIMMER_SIM_SCENARIOS` sets another number.
const SCENARIOS: u64 = 2500;

/// Scenarios that are compared in which threads share CPUs.
const CROWDED_SCENARIOS: u64 = 1000;

/// The same with much that falls on one moment.
const AT_ONCE_SCENARIOS: u64 = 500;

/// What differs by less is equal: the processor's rules know whole nanoseconds, and steps end at
/// whole picoseconds. A nanosecond each for some hundred events.
const LEAST_NS: f64 = 300.0;

/// The part of a quantity that may differ.
const LEAST_PART: f64 = 1e-4;

pub(crate) fn simulate(model: &Model, work: &Work, governor: Governor, seed: u64) -> Outcome {
    work.scenario().run(model, governor, seed, (), &|_| false).unwrap().0
}

/// The quantities in which two outcomes differ.
fn differences(work: &Work, real: &Outcome, reference: &Result) -> Vec<String> {
    let mut found = Vec::new();
    let mut compare = |what: String, real: f64, reference: f64| {
        if (real - reference).abs() > LEAST_NS + LEAST_PART * reference.abs() {
            found.push(format!("{what}: {real}, by the documents {reference}"));
        }
    };
    compare("end".to_owned(), real.end.since_start().ns(), reference.end_ns);
    for (index, (real, reference)) in real.cores.iter().zip(&reference.cores).enumerate() {
        let levels = real.level.iter().zip(&reference.level_ns);
        for (level, (real, reference)) in levels.enumerate() {
            compare(format!("core {index}, L{level}"), real.ns(), *reference);
        }
        let states = [
            ("throttled", real.throttled, reference.throttled_ns),
            ("still", real.still, reference.still_ns),
            ("governor", real.stolen, reference.governor_ns),
            ("delayed", real.delayed, reference.delayed_ns),
            ("idle", real.idle, reference.idle_ns),
            ("below", real.below, reference.below_ns),
        ];
        for (state, real, reference) in states {
            compare(format!("core {index}, {state}"), real.ns(), reference);
        }
        // A difference of one counts.
        let counts = [
            ("changes", real.changes, reference.changes),
            ("interrupts", real.interrupts, reference.interrupts),
        ];
        for (what, real, reference) in counts {
            let what = format!("core {index}, 1000 {what}");
            compare(what, 1e3 * real as f64, 1e3 * reference as f64);
        }
    }
    for (index, (real, reference)) in real.threads.iter().zip(&reference.threads).enumerate() {
        let finished = real.finished.map_or(-1e9, |at| at.since_start().ns());
        compare(format!("thread {index}, end"), finished, reference.finished_ns.unwrap_or(-1e9));
        // Outcomes have the steps that run code.
        let steps = Step::single(&work.threads[index].steps).into_iter().zip(&reference.steps);
        let runs = steps.filter(|(step, _)| matches!(step, Step::Run { .. }));
        for (phase, (_, (instructions, time))) in real.phases.iter().zip(runs) {
            compare(format!("thread {index}, time of {}", phase.code), phase.time.ns(), *time);
            let what = format!("thread {index}, instructions of {}", phase.code);
            compare(what, phase.instructions, *instructions);
        }
    }
    found
}

/// What the documents say of a scenario. What the seed decides is drawn as the simulator does.
fn by_the_documents(model: &Model, work: &Work, governor: Governor, seed: u64) -> Result {
    let period = model.clock.raise_period_ns.as_ref().map_or(0, |period| period.value);
    let mut chance = Random::new(!seed);
    let raises = (0..work.cores).map(|_| (period as f64 * chance.uniform() * 1e3).round() / 1e3);
    Simulator::run(model, work, governor, raises.collect())
}

/// Compares this number of scenarios, if `DIMMER_SIM_SCENARIOS` sets no other.
fn none_differs(usual: u64, draw: fn(&mut Draws) -> (Model, Work, Governor)) {
    let scenarios = std::env::var("DIMMER_SIM_SCENARIOS").ok();
    let scenarios = scenarios.and_then(|number| number.parse().ok()).unwrap_or(usual);
    let mut differing = Vec::new();
    for number in 1..=scenarios {
        let mut draws = Draws::new(number);
        let (model, work, governor) = draw(&mut draws);
        let real = simulate(&model, &work, governor, 1);
        let found = differences(&work, &real, &by_the_documents(&model, &work, governor, 1));
        if !found.is_empty() {
            differing.push(format!("scenario {number}:\n  {}", found.join("\n  ")));
        }
    }
    let count = differing.len();
    differing.truncate(3);
    assert!(count == 0, "{count} of {scenarios} differ:\n{}", differing.join("\n"));
}

#[test]
fn the_simulator_does_what_its_documents_say() {
    none_differs(SCENARIOS, draw_all);
}

/// Several threads of a CPU, and threads that change it, under both schedulers.
#[test]
fn threads_run_where_the_documents_say() {
    none_differs(CROWDED_SCENARIOS, draw_crowded);
}

/// The order of what falls on one moment.
#[test]
fn what_falls_on_one_moment_comes_in_the_order_of_the_documents() {
    none_differs(AT_ONCE_SCENARIOS, draw_at_once);
}

/// The comparison finds a rule that one of the two does not follow.
#[test]
fn a_simulator_that_does_something_else_is_found() {
    let (mut found, scenarios) = (0, 20);
    for number in 1..=scenarios {
        let mut draws = Draws::new(number);
        let (model, work, governor) = draw_all(&mut draws);
        let real = simulate(&model, &work, governor, 1);
        let mut other = model.clone();
        for rule in &mut other.rules {
            if let Some(ns) = &mut rule.grant_ns {
                ns.value += ns.value / 50;
            }
        }
        found += usize::from(
            !differences(&work, &real, &by_the_documents(&other, &work, governor, 1)).is_empty(),
        );
    }
    assert!(found > 10, "{found} of {scenarios}");
}
