//! Figures 4 and 5 of paper 002 as curves, and its observations 1, 2, 4 and 5 as what-ifs: how much
//! sooner would boosts pay on hardware as the paper wishes for?

use dimmer_policy::boost::{Speed, Strategy};
use dimmer_processor::model::{Domain, Model};
use dimmer_processor::units::whole;
use dimmer_sim::SimError;

use super::lock::{Contended, Locks, boosts, by_driver};
use super::{BASE, at_a_lock, crossing, first, second, studies};
use crate::causes::set;
use crate::{Follower, ValidateError, taken};

/// The curves of a strategy.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// The strategy's name in the paper.
    pub strategy: &'static str,
    /// By the length of a section.
    pub points: Vec<Point>,
}

/// A strategy at a length of sections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The length of a section: cycles of the time-stamp counter at the base clock.
    pub cycles: f64,
    /// Cycles of sections a nanosecond (GHz).
    pub ghz: f64,
    /// Energy of a cycle of a section (nJ), if the model has the power.
    pub nj: Option<f64>,
}

/// Where one strategy becomes faster than another.
#[derive(Clone, Debug, PartialEq)]
pub struct Crossing {
    /// The strategies.
    pub what: &'static str,
    /// By the paper (1000 cycles).
    pub paper: f64,
    /// By the simulator (1000 cycles): 0 if it is so from the shortest sections on, not a number if
    /// at none.
    pub ours: f64,
}

/// A figure of the paper, or a part of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawn {
    /// What it shows.
    pub title: &'static str,
    /// Its curves.
    pub curves: Vec<Curve>,
    /// Where they cross.
    pub crossings: Vec<Crossing>,
}

/// What a change of the hardware brings.
#[derive(Clone, Debug, PartialEq)]
pub struct WhatIf {
    /// The change.
    pub what: &'static str,
    /// The observation that asks for it; 0 for none.
    pub observation: u8,
    /// The shortest section that gains by `ownr`, by the formula of §4.4 (µs at the base clock).
    pub formula_us: f64,
    /// The same for eight threads at a lock, by the simulator (1000 executed cycles): 0 if the
    /// shortest sections gain, not a number if none does.
    pub lock_kcycles: f64,
    /// The same if modules take turns at the lock, rather than threads in the order of their cores.
    pub lock_by_turns_kcycles: f64,
    /// How much faster sections of 100 000 cycles are by `ownr` than one thread at the base (%).
    pub faster_pct: f64,
    /// How the time of memcached's first resize changes, 100 items at a time, if the resizer asks
    /// for P0 in each bulk (%).
    pub resize_pct: f64,
}

/// The figures and the what-ifs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// The figures.
    pub drawn: Vec<Drawn>,
    /// The what-ifs, the hardware as it is first.
    pub what_ifs: Vec<WhatIf>,
}

/// Number of figures.
pub const FIGURES: usize = 3;
/// Number of what-ifs.
pub const WHAT_IFS: usize = CHANGES.len();

/// Points of a curve for each power of ten, and the powers.
const PER_POWER: i32 = 6;
const POWERS: [i32; 2] = [3, 7];

/// A change of the model, or of how a lock is used.
struct Change {
    what: &'static str,
    observation: u8,
    change: fn(&mut Model, &mut Locks),
}

/// The changes. Times are those of the instruction that requests a P-state, which is what a request
/// without privilege would take; a driver's system call comes on top.
const CHANGES: [Change; 7] = [
    Change {
        what: "as it is, requests by a driver (an ioctl of 230 ns each)",
        observation: 0,
        change: |_, locks| locks.call_ns = Locks::PAPER.call_ns,
    },
    Change { what: "requests without privilege", observation: 1, change: |_, _| {} },
    Change {
        what: "the same, and requests do not block",
        observation: 2,
        change: |model, _| without_blocking(model),
    },
    Change {
        what: "requests without privilege by the thread that had the lock before",
        observation: 5,
        change: |_, locks| locks.asks_remotely = true,
    },
    Change {
        what: "requests without privilege, and one-cycle switching",
        observation: 4,
        change: |model, _| one_cycle(model),
    },
    Change {
        what: "requests without privilege, and a clock for each core",
        observation: 5,
        change: |model, _| set(&mut model.clock.domain, Domain::Core),
    },
    Change {
        what: "all of them",
        observation: 0,
        change: |model, locks| {
            one_cycle(model);
            set(&mut model.clock.domain, Domain::Core);
            locks.asks_remotely = true;
        },
    },
];

fn without_blocking(model: &mut Model) {
    for one in &mut model.transitions {
        set(&mut one.request_ns, 0);
    }
}

fn one_cycle(model: &mut Model) {
    without_blocking(model);
    for one in &mut model.transitions {
        set(&mut one.total_ns, 0);
    }
}

/// Computes the figures and the what-ifs. Takes seconds.
///
/// * `follower`: if it stops the work, only what is complete is returned.
///
/// # Errors
/// If a model lacks what an experiment needs.
pub fn figures(follower: &dyn Follower) -> Result<Figures, ValidateError> {
    let (amd, intel) = (first()?, second()?);
    let rise_ns = whole(taken::value("R002-08"));
    let lock = at_a_lock(&amd, rise_ns, Locks::PAPER.call_ns);
    let locks = Locks::default();
    let [amd_lock, intel_lock] = [&amd, &intel].map(|model| Contended { model, locks });
    let manual = Contended { model: &lock, locks: Locks::PAPER };
    let mut figures = Figures::default();
    let (spin, mwait, futex) = (Strategy::Spin, Strategy::Mwait, Strategy::Futex);
    let one = [Speed::Slow, Speed::Base, Speed::Turbo].map(Strategy::One);
    let own = [Strategy::Owner, Strategy::Wait, Strategy::Delegate, Strategy::Migrate];
    let all = [&one[..], &own].concat();
    let parts: [(_, _, &[Strategy], &[_]); FIGURES] = [
        (
            "Figure 4, FX-8120: ways to wait under the processor's own boost",
            amd_lock,
            &[spin, mwait, futex],
            &[
                ("mwait over spin", mwait, spin, 4.0),
                ("futex over spin", futex, spin, 1500.0),
                ("futex over mwait", futex, mwait, 1500.0),
            ],
        ),
        (
            "Figure 4, i7-4770: ways to wait under the processor's own boost",
            intel_lock,
            &[spin, futex],
            &[("futex over spin", futex, spin, 4000.0)],
        ),
        (
            "Figure 5, FX-8120: requests and migrations at a lock",
            manual,
            &all,
            &[
                ("ownr over one at P2", Strategy::Owner, BASE, 600.0),
                ("wait over one at P2", Strategy::Wait, BASE, 600.0),
                ("dlgt over one at P2", Strategy::Delegate, BASE, 200.0),
                ("mgrt over one at P2", Strategy::Migrate, BASE, 400.0),
            ],
        ),
    ];
    for (title, on, strategies, crossings) in parts {
        if follower.stops() {
            return Ok(figures);
        }
        follower.begins(title);
        let drawn = draw(title, on, strategies, crossings);
        figures.drawn.push(drawn.map_err(|error| ValidateError::Sim { experiment: title, error })?);
    }
    for change in &CHANGES {
        if follower.stops() {
            return Ok(figures);
        }
        follower.begins(change.what);
        let what_if = change.what_if(&amd);
        let named = |error| ValidateError::Sim { experiment: change.what, error };
        figures.what_ifs.push(what_if.map_err(named)?);
    }
    Ok(figures)
}

/// The curves of these strategies, and where they cross.
fn draw(
    title: &'static str,
    on: Contended<'_>,
    strategies: &[Strategy],
    crossings: &[(&'static str, Strategy, Strategy, f64)],
) -> Result<Drawn, SimError> {
    let lengths = (POWERS[0] * PER_POWER..=POWERS[1] * PER_POWER)
        .map(|step| 10_f64.powf(f64::from(step) / f64::from(PER_POWER)));
    let curve = |strategy: &Strategy| {
        let point = |cycles: f64| {
            let found = on.run(*strategy, cycles)?;
            let nj = Some(found.nj()).filter(|nj| nj.is_finite());
            Ok(Point { cycles: on.shown(cycles), ghz: found.ghz, nj })
        };
        let points: Result<Vec<Point>, SimError> = lengths.clone().map(point).collect();
        Ok(Curve { strategy: shown(*strategy), points: points? })
    };
    let curves: Result<Vec<Curve>, SimError> = strategies.iter().map(curve).collect();
    let cross = |(what, of, over, paper): &(&'static str, Strategy, Strategy, f64)| {
        Ok(Crossing { what, paper: *paper, ours: crossing(on, *of, *over)? })
    };
    let crossings: Result<Vec<Crossing>, SimError> = crossings.iter().map(cross).collect();
    Ok(Drawn { title, curves: curves?, crossings: crossings? })
}

/// A strategy's name; of one thread, with its P-state on the FX-8120.
fn shown(strategy: Strategy) -> &'static str {
    match strategy {
        Strategy::One(Speed::Slow) => "one, P6",
        Strategy::One(Speed::Base) => "one, P2",
        Strategy::One(Speed::Turbo) => "one, P0",
        other => other.name(),
    }
}

impl Change {
    fn what_if(&self, model: &Model) -> Result<WhatIf, SimError> {
        const SECTION: f64 = 1e5;
        let (mut model, mut locks) = (model.clone(), Locks::default());
        (self.change)(&mut model, &mut locks);
        let model = by_driver(&model, locks.call_ns);
        let on = Contended { model: &model, locks };
        let by_turns =
            Contended { model: &model, locks: Locks { modules_take_turns: true, ..locks } };
        let formula = boosts(&model)?.owner.shortest(0.0);
        let faster = on.ghz(Strategy::Owner, SECTION)? / on.ghz(BASE, SECTION)?;
        Ok(WhatIf {
            what: self.what,
            observation: self.observation,
            formula_us: formula.map_or(f64::NAN, |shortest| shortest.ns() / 1e3),
            lock_kcycles: crossing(on, Strategy::Owner, BASE)?,
            lock_by_turns_kcycles: crossing(by_turns, Strategy::Owner, BASE)?,
            faster_pct: 100.0 * (faster - 1.0),
            resize_pct: 100.0 * (studies::resize_ratio(&model)? - 1.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Paper;

    /// By the formula, each change lets boosts pay no later than a driver's requests. At a lock
    /// with threads in the order of their cores, a clock for each core does not: the second thread
    /// of a module no longer finds it high. If modules take turns, it never does.
    #[test]
    fn changes_of_the_hardware_let_shorter_sections_gain_but_for_a_clock_for_each_core() {
        let model = Paper::Turbo.model().unwrap();
        let found: Vec<WhatIf> =
            CHANGES.iter().map(|change| change.what_if(&model).unwrap()).collect();
        let [first, .., last] = &found[..] else { unreachable!() };
        for one in &found {
            assert!(one.formula_us <= first.formula_us, "{one:?}");
            assert!(one.faster_pct <= last.faster_pct + 0.1, "{one:?}");
            assert!(one.resize_pct <= first.resize_pct, "{one:?}");
            assert!(one.lock_by_turns_kcycles <= 1.01 * first.lock_by_turns_kcycles, "{one:?}");
            let is_later = one.lock_kcycles > first.lock_kcycles;
            assert_eq!(is_later, one.what.ends_with("a clock for each core"), "{one:?}");
        }
        assert!(found[1].resize_pct < first.resize_pct, "{first:?} {:?}", found[1]);
    }
}
