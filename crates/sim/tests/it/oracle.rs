//! The oracle is a bound: no other governor that lets code run at its levels does the work sooner,
//! whatever a governor's acts cost.

use dimmer_processor::model::Model;
use dimmer_sim::scenario::Outcome;
use dimmer_sim::{Costs, Governor, Moving, Settings};

use crate::drawn::{Code, Draws, Length, Step, Thread, Work, certain, shipped};
use dimmer_processor::class::InstructionClass;

/// Scenarios for each of three models; `DIMMER_SIM_SCENARIOS` sets another number.
const SCENARIOS: u64 = 1000;

fn settings(model: &Model, work: &Work, governor: Governor, costs: Costs) -> Settings {
    let settings = work.scenario().settings(model, governor, Moving::None, 7).unwrap();
    Settings { costs, ..settings }
}

fn run(model: &Model, work: &Work, governor: Governor, costs: Costs) -> Outcome {
    let settings = settings(model, work, governor, costs);
    work.scenario().run_on(model, settings, (), &|_| false).unwrap().0
}

#[test]
fn no_other_governor_does_the_work_sooner_than_the_oracle() {
    let scenarios = std::env::var("DIMMER_SIM_SCENARIOS").ok();
    let scenarios = scenarios.and_then(|number| number.parse().ok()).unwrap_or(SCENARIOS);
    let models = [shipped("i9-7940x"), certain(shipped("i9-7940x")), shipped("xeon-gold-6130")];
    let mut ways = Vec::new();
    for number in 1..=scenarios {
        let mut draws = Draws::new(1_000_000 + number);
        let work = Work::draw(&mut draws);
        let costs = Costs {
            call_ns: draws.size(10.0, 20_000.0),
            look_ns: draws.size(10.0, 5000.0),
            ..Costs::default()
        };
        for (index, model) in models.iter().enumerate() {
            let others = Governor::ALL.into_iter().filter(|governor| *governor != Governor::Oracle);
            let others: Vec<(Governor, Outcome)> =
                others.map(|governor| (governor, run(model, &work, governor, costs))).collect();
            let oracle = run(model, &work, Governor::Oracle, costs);
            let hardware = &others[0].1;
            let speed = oracle.speed_over(hardware);
            for (governor, other) in &others {
                let other_speed = other.speed_over(hardware);
                let is_worse = speed < other_speed && other.is_at_its_levels();
                let name = governor.name();
                assert!(
                    !is_worse,
                    "scenario {number}, model {index}: {name}: {other_speed}, {speed}"
                );
            }
            assert!(oracle.is_at_its_levels(), "scenario {number}, model {index}");
            ways.push(oracle.oracle_way.unwrap());
        }
    }
    // It is no other governor in disguise.
    for way in [Governor::Hardware, Governor::Oracle] {
        assert!(ways.contains(&way), "{}: {ways:?}", way.name());
    }
}

/// Bursts of heavy code with this much scalar code after each, on the i9-7940X.
fn bursts(gap_us: f64, instructions: f64) -> Work {
    let heavy = Code { class: InstructionClass::Heavy512, per_cycle: 2.0, ..Code::SCALAR };
    // At the clock of L0, the gap takes as long as it says.
    let gap = Length::Instructions(gap_us * 4300.0);
    let steps = vec![
        Step::Run { code: 1, length: Length::Instructions(instructions) },
        Step::Run { code: 0, length: gap },
    ];
    let thread = Thread::new(0, 0.001, 200, steps);
    Work::new(1, vec![Code::SCALAR, heavy], vec![thread])
}

/// L2 costs 4.3 / 2.8 - 1 = 0.536 of a gap, and a release and a request two standstills of 10 us
/// and two calls of 1 us. The release is granted after half of 500 us on average. The break-even is
/// 22 us / 0.536 + 250 us = 291 us.
#[test]
fn a_level_is_released_where_the_gap_costs_more_than_the_changes() {
    let model = certain(shipped("i9-7940x"));
    let changes = |gap_us| {
        let work = bursts(gap_us, 100_000.0);
        let scenario = work.scenario();
        let settings = settings(&model, &work, Governor::Oracle, Costs::default());
        let (mut machine, end) = scenario.machine_of(&model, settings, ()).unwrap();
        machine.run(end).unwrap();
        machine.cores().next().unwrap().changes
    };
    assert!(changes(290.0) < 5, "{}", changes(290.0));
    assert!(changes(292.0) > 390, "{}", changes(292.0));
}

#[test]
fn the_oracle_leaves_requests_to_the_processor_where_that_is_best() {
    let model = certain(shipped("i9-7940x"));
    let way = |gap_us, instructions| {
        let work = bursts(gap_us, instructions);
        run(&model, &work, Governor::Oracle, Costs::default()).oracle_way.unwrap()
    };
    // Calls and standstills cost more than the lower clock.
    assert_eq!(way(20.0, 1000.0), Governor::Hardware);
    assert_ne!(way(600.0, 100_000.0), Governor::Hardware);
}

#[test]
fn an_interrupt_while_the_oracle_tries_leaves_a_partial_outcome() {
    let model = certain(shipped("i9-7940x"));
    let work = bursts(100.0, 100_000.0);
    let settings = settings(&model, &work, Governor::Oracle, Costs::default());
    let (outcome, ()) = work.scenario().run_on(&model, settings, (), &|_| true).unwrap();
    assert!(outcome.is_partial && outcome.threads[0].finished.is_none());
}
