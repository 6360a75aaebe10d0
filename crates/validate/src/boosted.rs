//! Paper 002, "The TURBO Diaries", on the FX-8120: locks whose owners ask for a faster clock
//! (§4.3, §4.4).
//!
//! What is put in: the P-states of table 2 with their power, the times of table 4, and the
//! strategies of `policy`. A lock costs nothing here, nor does a request beyond its `wrmsr`.

use dimmer_policy::boost::{Act, Point, Speed, Strategy};
use dimmer_policy::break_even::{Boost, Boosts, Lacks, cycles};
use dimmer_processor::model::{Missing, PState};
use dimmer_processor::units::{KiloHertz, LicenseLevel};
use dimmer_sim::{Extent, Machine, Moment, Picos, Script, Segment, Settings, SimError, Step};

use crate::inputs::Inputs;
use crate::row::Draft;
use crate::{Class, Experiment, Left, Row};

/// The results that are not recreated.
pub(crate) const LEFT: &[Left] = &[
    Left { id: "R002-01", what: "mwait against spinning, AMD: from which section on", why: MWAIT },
    Left { id: "R002-02", what: "futex against both, AMD", why: FUTEX },
    Left { id: "R002-03", what: "futex against spinning, Intel", why: INTEL },
    Left { id: "R002-04", what: "power of futex, AMD", why: FUTEX },
    Left { id: "R002-05", what: "energy of futex against spinning, AMD", why: FUTEX },
    Left { id: "R002-06", what: "energy of futex against spinning, Intel", why: INTEL },
    Left {
        id: "R002-08",
        what: "dlgt against one thread at the base",
        why: "simulated threads request P-states for their own cores alone",
    },
    Left {
        id: "R002-09",
        what: "mgrt against one thread at the base",
        why: "simulated threads migrate at marks and regions, not yet at a lock",
    },
    Left { id: "R002-12", what: "where requests beat idle states", why: FUTEX },
    Left {
        id: "R002-22",
        what: "the shortest wait",
        why: "a value of the model, of which nothing is computed that could come out otherwise",
    },
    Left { id: "R002-23", what: "assumptions of the formulas", why: "no result of a machine" },
];

const MWAIT: &str =
    "the simulator has no wait for a lock by MONITOR and MWAIT, whose costs decide this";
const FUTEX: &str = "the model of the FX-8120 has no wake-up times of idle states, and which of them the kernel chooses is not simulated";

const INTEL: &str = "which idle state the kernel chooses is not simulated, nor are locks under the i7-4770's own boost";

/// The experiments of the paper that are recreated.
pub(crate) const EXPERIMENTS: &[Experiment] = &[
    Experiment { name: "requests at a lock (§4.3)", rows: locks },
    Experiment { name: "one thread at each P-state (§4.3)", rows: fixed },
    Experiment { name: "the cost model (§4.4)", rows: formulas },
];

/// The cores of the FX-8120, each with a thread.
const CORES: usize = 8;

/// Sections of each thread in a run.
const ROUNDS: u64 = 20;

/// The sections between which the break-even is searched (cycles), and how near it is found.
const SECTIONS: [f64; 2] = [1e3, 4e6];
const NEAR: f64 = 100.0;

/// A run's speed: cycles of sections a nanosecond, which is the effective clock of the paper (GHz);
/// and what the package takes (W).
struct Found {
    ghz: f64,
    watts: f64,
}

/// The P-state of a speed.
fn state<'a>(speed: Speed, boosts: &Boosts<'a>) -> &'a PState {
    match speed {
        Speed::Slow => boosts.slow,
        Speed::Base => boosts.base,
        Speed::Turbo => boosts.turbo,
    }
}

/// The indices of P-states on the way to a speed. The change from P0 to P6 was not measured, so it
/// is made in two steps, by the base.
fn requests(speed: Speed, boosts: &Boosts<'_>, inputs: &Inputs<'_>) -> Vec<Step> {
    let by_base = (speed == Speed::Slow).then_some(boosts.base);
    let states = by_base.into_iter().chain([state(speed, boosts)]);
    let place = |name: &str| inputs.model.pstates.iter().position(|state| state.name == name);
    states.filter_map(|state| place(&state.name)).map(Step::Ask).collect()
}

/// Scalar code of one instruction a cycle.
fn code(extent: Extent) -> Step {
    Step::Run(Segment { extent, ..Segment::SCALAR })
}

/// A thread's steps for one section of this many cycles, under a strategy without a halt or a
/// migration.
fn round(strategy: Strategy, section: f64, boosts: &Boosts<'_>, inputs: &Inputs<'_>) -> Vec<Step> {
    const LOCK: usize = 0;
    let steps = |point| {
        let acts = strategy.acts(point).iter();
        acts.flat_map(|act| match act {
            Act::Request(speed) => requests(*speed, boosts, inputs),
            Act::Spin => vec![Step::Spin(LOCK, Segment { counter: 1, ..Segment::SCALAR })],
            _ => Vec::new(),
        })
    };
    let section = code(Extent::Instructions(section));
    let mut round: Vec<Step> = steps(Point::Waits).chain(steps(Point::Acquires)).collect();
    round.extend([section, Step::Unlock(LOCK)]);
    round.extend(steps(Point::Releases));
    round
}

/// Sections of this many cycles, one after the other: of all threads under a strategy, or of one
/// thread while the others execute at the slowest P-state.
fn run(strategy: Strategy, section: f64, inputs: &Inputs<'_>) -> Result<Found, SimError> {
    let boosts = boosts(inputs)?;
    let at = match strategy.acts(Point::Starts).first() {
        Some(Act::Request(speed)) => state(*speed, &boosts),
        _ => boosts.base,
    };
    let is_alone = matches!(strategy, Strategy::One(_));
    let others = if is_alone { boosts.slow } else { at };
    let mut core_pstates = vec![others.name.clone(); CORES];
    core_pstates[0].clone_from(&at.name);
    let cores = u32::try_from(CORES).unwrap_or(u32::MAX);
    let settings = Settings { cores, core_pstates, ..Settings::default() };
    let mut machine = Machine::new(&inputs.model, settings, ())?;
    let working = if is_alone { 1 } else { CORES };
    for core in 0..CORES {
        let steps = if core < working {
            round(strategy, section, &boosts, inputs)
        } else {
            vec![code(Extent::Time(Picos::MAX))]
        };
        let steps = steps.into_iter().map(|step| (step, LicenseLevel::new(0))).collect();
        machine.spawn("thread", Box::new(Script::new(steps, ROUNDS)), Some(core));
    }
    // Those that only execute have no end, and no event.
    machine.run(Moment::MAX)?;
    let ns = machine.now().since_start().ns();
    let joules = machine.energy().map_or(f64::NAN, |energy| {
        energy.packages.iter().map(|package| package.joules).sum::<f64>()
    });
    let done = section * (ROUNDS * working as u64) as f64;
    Ok(Found { ghz: done / ns, watts: 1e9 * joules / ns })
}

/// The boosts of the model, which is one of ours: it lacks nothing.
fn boosts<'a>(inputs: &'a Inputs<'_>) -> Result<Boosts<'a>, SimError> {
    Boosts::new(&inputs.model).map_err(|lacks| {
        let Lacks { model, .. } = lacks;
        Missing { model, key: "transition", needed_for: "a boost" }.into()
    })
}

/// The shortest section (cycles) that `gains`; not a number if the shortest one of [`SECTIONS`]
/// gains, or the longest does not.
fn shortest(gains: impl Fn(f64) -> Result<bool, SimError>) -> Result<f64, SimError> {
    let [mut low, mut high] = SECTIONS;
    if gains(low)? || !gains(high)? {
        return Ok(f64::NAN);
    }
    while high - low > NEAR {
        let middle = f64::midpoint(low, high);
        if gains(middle)? {
            high = middle;
        } else {
            low = middle;
        }
    }
    Ok(high)
}

fn locks(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    let from = |strategy| {
        let gains = |section| {
            let base = run(Strategy::One(Speed::Base), section, inputs)?;
            Ok(run(strategy, section, inputs)?.ghz >= base.ghz)
        };
        Ok::<f64, SimError>(shortest(gains)? / 1e3)
    };
    Ok(vec![
        Draft::new("R002-07", Class::Predicted, "Fig. 5, §4.3", "from which section on requests at a lock gain over one thread at the base", "kcycles")
            .value("ownr", 600.0, from(Strategy::Owner)?)
            .value("wait", 600.0, from(Strategy::Wait)?)
            .row("not tested. Threads come in the order of their cores, which the paper does not give: of the two of a module, the second finds its clock high and waits for no ramp. \
                By arithmetic, break-evens would be about twice as long if modules took turns. Besides, a core that slows down after its section delays no other here; and the times are those of \
                table 4 for the instruction `wrmsr`, without system calls, which by that table take less than 0.5 µs each. The paper does not say of which clock its cycles are: these are executed ones"),
    ])
}

fn fixed(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    let at = |speed| run(Strategy::One(speed), 1e6, inputs);
    let (slow, base, turbo) = (at(Speed::Slow)?, at(Speed::Base)?, at(Speed::Turbo)?);
    let more = |turbo: f64, base: f64| 100.0 * (turbo / base - 1.0);
    let energy = |found: &Found| found.watts / found.ghz / (base.watts / base.ghz);
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
        .value("P6", 1.0, energy(&slow))
        .value("P0", 1.0, energy(&turbo))
        .row("power over clock, both of them values of the model (table 2)"),
    ])
}

fn formulas(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    let boosts = boosts(inputs)?;
    let tsc = KiloHertz::from_mhz(boosts.turbo.mhz.value);
    let formula = |boost: &Boost| {
        boost.shortest(0.0).map_or(f64::NAN, |shortest| cycles(shortest, tsc) as f64 / 1e3)
    };
    let base_ghz = boosts.base.mhz.value as f64 / 1e3;
    let simulated = shortest(|section| {
        let normal_ns = section / base_ghz;
        Ok(boosted_ns(section, &boosts, inputs)? <= normal_ns)
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
    let mut steps = requests(Speed::Turbo, boosts, inputs);
    steps.push(code(Extent::Instructions(section)));
    steps.extend(requests(Speed::Base, boosts, inputs));
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
    use crate::Paper;

    #[test]
    fn short_sections_lose_and_long_ones_gain_by_each_strategy() {
        let inputs = Inputs::new(Paper::Turbo.model().unwrap(), &|| false);
        let ghz = |strategy, section| run(strategy, section, &inputs).unwrap().ghz;
        for strategy in [Strategy::Owner, Strategy::Wait] {
            assert!(ghz(strategy, 2e4) < 3.0, "{}", strategy.name());
            let long = ghz(strategy, 1e8);
            assert!((3.99..4.0).contains(&long), "{} {long}", strategy.name());
        }
        // Nothing is requested: all threads run at the base.
        assert!((ghz(Strategy::Spin, 1e5) - 3.1).abs() < 1e-6);
    }
}
