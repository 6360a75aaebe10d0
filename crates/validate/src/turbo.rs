//! Paper 002, "The TURBO Diaries", on the FX-8120 and the i7-4770: how threads wait for a lock
//! under the processor's own boost (§4.2), requests for P-states at a lock (§4.3), the cost model
//! (§4.4), and the case studies (§5).

mod interpreter;
mod lock;
mod power;
mod studies;
mod what_if;

use std::path::Path;

use dimmer_policy::boost::{Speed, Strategy};
use dimmer_policy::break_even::{Boost, Boosts, cycles};
use dimmer_processor::model::{Assumed, Model, ModelError, builtin};
use dimmer_processor::units::{KiloHertz, whole};
use dimmer_sim::{Extent, Machine, Moment, Script, Settings, SimError, Step};

pub(crate) use self::interpreter::rows as interpreter;
pub(crate) use self::lock::Locks;
use self::lock::{Contended, boosts, by_driver, code, requests, shortest};
pub(crate) use self::studies::{resizes, server, transactions};
pub use self::what_if::{
    Crossing, Curve, Drawn, FIGURES, Figures, Point, WHAT_IFS, WhatIf, figures,
};
use crate::causes::set;
use crate::inputs::Inputs;
use crate::row::Draft;
use crate::{Class, Experiment, Left, Paper, Row, taken};

/// The results that are not recreated.
pub(crate) const LEFT: &[Left] = &[
    Left {
        id: "R002-06",
        what: "energy of futex against spinning, Intel",
        why: "the paper gives no power of arithmetic above the base clock (table 3), where spinning threads run",
    },
    Left {
        id: "R002-12",
        what: "up to which section requests are more effective than idle states",
        why: "the same number as R002-02: that requests gain from shorter sections on is R002-07 to R002-09 beside it",
    },
    Left {
        id: "R002-22",
        what: "the shortest wait",
        why: "a value of the model, of which nothing is computed that could come out otherwise",
    },
    Left { id: "R002-23", what: "assumptions of the formulas", why: "no result of a machine" },
    Left {
        id: "R002-40",
        what: "FastLane: commits of the master with all threads at the base",
        why: "depends on conflicts in data structures whose sizes and update rates the paper does not give; put in for R002-41",
    },
    Left {
        id: "R002-42",
        what: "throughput and power of FastLane's linked list",
        why: "the number of threads is not given, and the gain beyond that of the clocks comes from conflicts",
    },
    Left { id: "R002-50", what: "memcached, 10k at a time: all at the base", why: PUT_IN },
    Left {
        id: "R002-53",
        what: "memcached, 10k at a time: workers slow while waiting",
        why: WORKERS,
    },
    Left { id: "R002-54", what: "memcached, 100 at a time: all at the base", why: PUT_IN },
    Left {
        id: "R002-57",
        what: "memcached, 100 at a time: workers slow while waiting",
        why: WORKERS,
    },
    Left { id: "R002-58", what: "memcached, 1 at a time: all at the base", why: PUT_IN },
    Left {
        id: "R002-61",
        what: "memcached, 1 at a time: workers slow while waiting",
        why: WORKERS,
    },
    Left {
        id: "R002-70",
        what: "SPLASH-2 and BerkeleyDB with a boosted server of sections",
        why: "only in a figure, and the part of the time in sections is not given",
    },
    Left {
        id: "R002-71",
        what: "the most frequent length of a section",
        why: "a property of the programs",
    },
];

const PUT_IN: &str = "put in: what the strategies are compared with";
const WORKERS: &str = "how often workers wait, and how long, is not given";

/// The experiments of the paper that are recreated.
pub(crate) const EXPERIMENTS: &[Experiment] = &[
    Experiment { name: "ways to wait (§4.2)", rows: waits },
    Experiment { name: "requests at a lock (§4.3)", rows: locks },
    Experiment { name: "one thread at each P-state (§4.3)", rows: fixed },
    Experiment { name: "the cost model (§4.4)", rows: formulas },
    Experiment { name: "the interpreter lock (§5.1)", rows: interpreter },
    Experiment { name: "transactions (§5.2)", rows: transactions },
    Experiment { name: "a table that grows (§5.3)", rows: resizes },
    Experiment { name: "a server of sections (§5.4)", rows: server },
];

/// The processor of the experiments, with what is taken from the paper.
pub(crate) fn first() -> Result<Model, ModelError> {
    let [mwait, deep] = ["R002-01", "R002-02"].map(taken::value);
    Ok(with_exits(Paper::Turbo.model()?, mwait, deep))
}

/// The other processor of the paper.
pub(crate) fn second() -> Result<Model, ModelError> {
    let name = "i7-4770";
    Model::parse(Path::new(name), builtin(name).unwrap_or_default())
}

/// What is used in the place of values that the model lacks.
pub(crate) fn assumed() -> Vec<Assumed> {
    vec![
        Assumed::new(
            "power in the deep idle state (R002-04, R002-05)",
            "none of a module; of one with a core at work, that of one with two (table 2)",
        ),
        Assumed::new(
            "stalled instructions (table 8)",
            "the part of the time in which memory stalls the code",
        ),
        Assumed::new(
            "clock.tdp_mw (table 9)",
            "none: power is known of modules at P6 beside a faster one, not of other mixtures",
        ),
        Assumed::new(
            "round trips in proportion to clocks (table 9)",
            "half of that at the worker's, half at the server's",
        ),
    ]
}

/// The least or the most of values; not a number if one of them is none.
fn among(values: &[f64], of: fn(f64, f64) -> f64) -> f64 {
    let both =
        |one: f64, other: f64| if (one + other).is_nan() { f64::NAN } else { of(one, other) };
    values.iter().copied().reduce(both).unwrap_or(f64::NAN)
}

/// The first section (cycles) from which on one strategy is as fast as another on this processor.
fn crossing(on: Contended<'_>, of: Strategy, over: Strategy) -> Result<f64, SimError> {
    let gains = |section| Ok(on.ghz(of, section)? - on.ghz(over, section)?);
    shortest(gains).map(|section| on.shown(section) / 1e3)
}

/// What requests and migrations are compared with: one thread takes the lock, at the base.
const BASE: Strategy = Strategy::One(Speed::Base);

pub(crate) fn waits(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    let amd = waiting(&inputs.model, inputs);
    let intel = waiting(inputs.second()?, inputs);
    let (spin, mwait, futex) = (Strategy::Spin, Strategy::Mwait, Strategy::Futex);
    let mut watts = Vec::new();
    for exponent in 12..=28_i32 {
        watts.push(amd.run(futex, 10_f64.powf(f64::from(exponent) / 4.0))?.watts);
    }
    let least = among(&watts, f64::min);
    let most = among(&watts, f64::max);
    let saves = |section| {
        let others = [amd.run(spin, section)?.nj(), amd.run(mwait, section)?.nj()];
        Ok(among(&others, f64::min) - amd.run(futex, section)?.nj())
    };
    let saves_from = shortest(saves).map(|section| amd.shown(section) / 1e3)?;
    Ok(vec![
        Draft::new("R002-01", Class::SeenAgain, "Fig. 4, §4.2", "FX-8120: from which section on waiting by mwait is faster than spinning", "kcycles")
            .value("", 4.0, crossing(amd, mwait, spin)?)
            .row("clocks follow from the power of table 2: all at P2 while all spin, P1 while others wait. What it takes to leave mwait is taken from it (below)"),
        Draft::new("R002-02", Class::SeenAgain, "§4.2", "FX-8120: from which section on futex is faster than spinning", "kcycles")
            .value("", 1500.0, crossing(amd, futex, spin)?)
            .row("what it takes to leave the deep idle state that P0 needs is taken from it (below), with what a kernel takes to choose the state and to schedule. The paper has one number for this crossing and that with mwait (R002-02b)"),
        Draft::new("R002-02b", Class::Predicted, "§4.2", "FX-8120: from which section on futex is faster than mwait", "kcycles")
            .value("", 1500.0, crossing(amd, futex, mwait)?)
            .row("the paper's number is that of R002-02: it has one for both crossings, which cannot both be there, as mwait is faster than spinning from 4000 cycles on. futex gains over spinning 0.9 GHz of 4, and over mwait 0.6"),
        Draft::new("R002-03", Class::Predicted, "§4.2", "i7-4770: from which section on futex is faster than spinning", "kcycles")
            .value("", 4000.0, crossing(intel, futex, spin)?)
            .row("wake-up times of table 5 are those of threads that are woken at once, and a kernel takes time to choose the state and to schedule, which is not simulated. A thermal budget, which is not simulated, would change nothing: 51 W of four cores at 3.4 GHz (table 3) are 77 W at 3.9 GHz if power grows as the cube of the clock, of 84 W. Four spinning threads run at 3.6 GHz, \
                two steps of 100 MHz above the base, which the paper says"),
        Draft::new("R002-04", Class::Mixed, "§4.2", "FX-8120: power with futex, over sections from 1000 to 10 million cycles", "W")
            .value("least", 55.0, least)
            .value("most", 124.0, most)
            .row("least: in long sections, the northbridge's 14.24 W and a module at P0, by P = V² f C with the C of arithmetic (§2.1, table 2), beside modules in the deep idle state, which take nothing (assumed, below). \
                most: in sections just too short for that state; threads that wait take as much as by mwait. If cores are in it later, that is a hit as well (below)"),
        Draft::new("R002-05", Class::Predicted, "§4.2", "FX-8120: from which section on futex takes less energy than spinning and mwait", "kcycles")
            .value("", 1000.0, saves_from)
            .row("threads are in the deep idle state as soon as they wait for as long as it takes to leave it, and then take nothing: that saves from shorter sections on than in the paper, also if it takes longer to leave or is entered later (below)"),
    ])
}

/// The lock under the processor's own boost, where the time-stamp counter counts at the base clock
/// (§3.1).
fn waiting<'a>(model: &'a Model, inputs: &Inputs<'_>) -> Contended<'a> {
    Contended { model, locks: Locks { in_tsc_cycles: false, ..inputs.locks } }
}

/// The model with the times to leave idle states that are taken from the paper.
pub(crate) fn with_exits(mut model: Model, mwait_ns: f64, deep_ns: f64) -> Model {
    for state in &mut model.cstates {
        state.exit_ns.value = whole(if state.name == "C1" { mwait_ns } else { deep_ns });
    }
    model
}

/// The model with the way from P6 to P0 as long as at the lock, and with requests by system calls.
fn at_a_lock(model: &Model, rise_ns: u64, call_ns: f64) -> Model {
    let mut model = model.clone();
    let ways = model.transitions.iter_mut().filter(|one| one.from == "P6" && one.to == "P0");
    ways.for_each(|way| set(&mut way.total_ns, rise_ns));
    by_driver(&model, call_ns)
}

/// The figures of R002-01, R002-02 and R002-08 (1000 cycles).
pub(crate) fn mwait_over_spinning(inputs: &Inputs<'_>) -> Result<f64, SimError> {
    let amd = waiting(&inputs.model, inputs);
    crossing(amd, Strategy::Mwait, Strategy::Spin)
}

pub(crate) fn futex_over_spinning(inputs: &Inputs<'_>) -> Result<f64, SimError> {
    let amd = waiting(&inputs.model, inputs);
    crossing(amd, Strategy::Futex, Strategy::Spin)
}

pub(crate) fn delegation_over_base(inputs: &Inputs<'_>) -> Result<f64, SimError> {
    let model = at_a_lock(&inputs.model, inputs.rise_ns, inputs.locks.call_ns);
    crossing(Contended { model: &model, locks: inputs.locks }, Strategy::Delegate, BASE)
}

pub(crate) fn locks(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    let model = at_a_lock(&inputs.model, inputs.rise_ns, inputs.locks.call_ns);
    let on = Contended { model: &model, locks: inputs.locks };
    let from = |strategy| crossing(on, strategy, BASE);
    let draft = |id, what| Draft::new(id, Class::Predicted, "Fig. 5, §4.3", what, "kcycles");
    Ok(vec![
        draft("R002-07", "from which section on requests at a lock gain over one thread at the base")
            .value("ownr", 600.0, from(Strategy::Owner)?)
            .value("wait", 600.0, from(Strategy::Wait)?)
            .row("the order of threads, which the paper does not give, matters: by that of their cores, the second of a module finds its clock high. The others wait until the last owner's module is at P6 (§4.3), and then rise as fast as in R002-08. \
                If modules take turns and that takes as long as in table 4, the boost gains from four fifths of the paper's length on (below)"),
        Draft::new("R002-08", Class::SeenAgain, "Fig. 5, §4.3", "the same for requests by the neighbour core, one thread a module", "kcycles")
            .value("", 200.0, from(Strategy::Delegate)?)
            .row("how long the way to P0 takes is taken from it (below): the neighbour is asked in no time and acts at once. The way begins when the last owner's module is at P6"),
        draft("R002-09", "the same for a migration to a fast core")
            .value("", 400.0, from(Strategy::Migrate)?)
            .row("a migration takes the 6682 ns of table 4 at the base clock, longer at a slow one (§4.3). The way home delays no other thread"),
    ])
}

fn fixed(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    let on = Contended { model: &inputs.model, locks: inputs.locks };
    let at = |speed| on.run(Strategy::One(speed), 1e6);
    let (slow, base, turbo) = (at(Speed::Slow)?, at(Speed::Base)?, at(Speed::Turbo)?);
    let more = |turbo: f64, base: f64| 100.0 * (turbo / base - 1.0);
    Ok(vec![
        Draft::new(
            "R002-10",
            Class::SeenAgain,
            "§4.3",
            "one thread at P0 over P2, all others at P6",
            "%",
        )
        .value("speed", 29.0, more(turbo.ghz, base.ghz))
        .value("power", 25.0, more(turbo.watts, base.watts))
        .row("clocks and power are values of the model (table 2)"),
        Draft::new(
            "R002-11",
            Class::SeenAgain,
            "§4.3",
            "energy of one thread's sections at P6 and P0, over P2 (\"almost identical\")",
            "",
        )
        .value("P6", 1.0, slow.nj() / base.nj())
        .value("P0", 1.0, turbo.nj() / base.nj())
        .row("power over clock, both of them values of the model (table 2)"),
    ])
}

fn formulas(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    let boosts = boosts(&inputs.model)?;
    let tsc = KiloHertz::from_mhz(boosts.turbo.mhz.value);
    let formula = |boost: &Boost| {
        boost.shortest(0.0).map_or(f64::NAN, |shortest| cycles(shortest, tsc) as f64 / 1e3)
    };
    let base_ghz = boosts.base.mhz.value as f64 / 1e3;
    let simulated = shortest(|section| {
        let normal_ns = section / base_ghz;
        Ok(normal_ns - boosted_ns(section, &boosts, inputs)?)
    })?;
    Ok(vec![
        Draft::new(
            "R002-20",
            Class::SeenAgain,
            "§4.4",
            "the shortest section that gains by ownr, in cycles of 4 GHz",
            "kcycles",
        )
        .value("by the formula", 436.648, formula(&boosts.owner))
        .value("by the simulator", 436.648, simulated / base_ghz * tsc.ghz() / 1e3)
        .row("the formula and the simulator have the same assumptions, and the paper's values"),
        Draft::new(
            "R002-21",
            Class::SeenAgain,
            "§4.4",
            "the shortest section that gains by one step, in cycles of 4 GHz",
            "kcycles",
        )
        .value("by the formula", 336.072, formula(&boosts.one_step))
        .row("a formula of the model's values, which are the paper's"),
    ])
}

/// What a section of this many cycles takes with the owner's boost and the request for the base
/// after it (ns).
fn boosted_ns(section: f64, boosts: &Boosts<'_>, inputs: &Inputs<'_>) -> Result<f64, SimError> {
    let pstate = Some(boosts.slow.name.clone());
    let settings = Settings { pstate, ..Settings::default() };
    let mut machine = Machine::new(&inputs.model, settings, ())?;
    let asks = |speed| requests(speed, boosts, &inputs.model).into_iter().map(Step::Ask);
    let mut steps: Vec<Step> = asks(Speed::Turbo).collect();
    steps.push(code(Extent::Instructions(section)));
    steps.extend(asks(Speed::Base));
    // The request at the end occupies the core: a cycle after it shows when it is over.
    steps.push(code(Extent::Instructions(1.0)));
    machine.spawn("owner", Box::new(Script::once(steps)), Some(0));
    machine.run(Moment::MAX)?;
    let finished = machine.threads().next().and_then(|thread| thread.finished);
    Ok(finished.map_or(f64::NAN, |at| at.since_start().ns()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_sections_lose_and_long_ones_gain_by_each_strategy() {
        let model = Paper::Turbo.model().unwrap();
        let on = Contended { model: &model, locks: Locks::default() };
        let ghz = |strategy, section| on.ghz(strategy, section).unwrap();
        for strategy in [Strategy::Owner, Strategy::Wait, Strategy::Delegate, Strategy::Migrate] {
            assert!(ghz(strategy, 2e4) < 3.0, "{}", strategy.name());
            let long = ghz(strategy, 1e8);
            assert!((3.99..4.0).contains(&long), "{} {long}", strategy.name());
        }
    }

    #[test]
    fn a_crossing_is_where_all_longer_sections_gain() {
        let found = |gain: &dyn Fn(f64) -> f64| shortest(|section| Ok(gain(section))).unwrap();
        assert!((found(&|section| section - 5e4) / 5e4 - 1.0).abs() < 1e-3);
        // Sections of 2000 to 20 000 cycles gain, too.
        let twice = |section: f64| -(section - 2e3) * (section - 2e4) * (5e5 - section);
        assert!((found(&twice) / 5e5 - 1.0).abs() < 1e-3, "{}", found(&twice));
        assert_eq!(found(&|_| 1.0), 0.0);
        assert!(found(&|_| -1.0).is_nan());
        // What is not known of one section is not known of the crossing.
        assert!(found(&|section| if section < 1e7 { -1.0 } else { f64::NAN }).is_nan());
        assert!(among(&[1.0, f64::NAN, 2.0], f64::min).is_nan());
        assert_eq!(among(&[1.0, 3.0, 2.0], f64::max), 3.0);
    }

    /// §4.2: all spin at P2; by mwait one core runs at P1, by futex at P0 if sections are long.
    #[test]
    fn how_threads_wait_decides_about_the_boost() {
        let model = Paper::Turbo.model().unwrap();
        let on = Contended { model: &model, locks: Locks::default() };
        let ghz = |strategy| on.ghz(strategy, 1e8).unwrap();
        assert!((ghz(Strategy::Spin) - 3.1).abs() < 1e-3, "{}", ghz(Strategy::Spin));
        assert!((ghz(Strategy::Mwait) - 3.4).abs() < 1e-3, "{}", ghz(Strategy::Mwait));
        assert!((ghz(Strategy::Futex) - 4.0).abs() < 1e-2, "{}", ghz(Strategy::Futex));
        let other = second().unwrap();
        let on = Contended { model: &other, locks: Locks::default() };
        let [spin, futex] = [Strategy::Spin, Strategy::Futex].map(|way| on.ghz(way, 1e8).unwrap());
        assert!((spin - 3.6).abs() < 1e-3 && (futex - 3.9).abs() < 1e-2, "{spin} {futex}");
    }
}
