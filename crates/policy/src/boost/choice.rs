//! Which strategy a contended lock should have, by what it has sampled of itself.
//!
//! Applies the break-evens of paper 002, section 4.4 ([`Boost`]), to the lock's own sections and
//! waits. The lock samples, and this decides: no clock is read here.

use dimmer_processor::units::Picos;

use super::Strategy;
use crate::break_even::Boost;

/// What a lock has seen of its use, lately.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// The median length of a section, from acquisition to release.
    pub section: Picos,
    /// The median wait of those that found the lock taken.
    pub wait: Picos,
    /// The part of the acquisitions that found the lock taken; from 0 to 1.
    pub contended: f64,
    /// The part of a section in which it waits for memory, whatever the clock; from 0 to 1. It is
    /// 0 where it was not measured, as in the paper's cost model.
    pub stalled: f64,
}

/// What a machine offers to locks, and the costs. `None`: it does not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offers {
    /// A clock that a thread requests for its own core (`ownr`, `wait`).
    pub own: Option<Boost>,
    /// The same by the neighbour core, with what is left of the costs for the owner (`dlgt`).
    pub neighbour: Option<Boost>,
    /// Migration to a core that is fast already: `request` is the way there, `back` the way home
    /// (`mgrt`).
    pub fast_core: Option<Boost>,
    /// What it takes to wait by MONITOR and MWAIT, and to return.
    pub monitor: Option<Picos>,
    /// What it takes to sleep in the kernel, and to be woken.
    pub block: Picos,
}

/// From this part of contended acquisitions on, a section counts as a sequential bottleneck. A
/// guess: below it, most threads find the lock free, and a faster section shortens no wait.
const BOTTLENECK: f64 = 0.5;

/// The strategy for a lock of this use on this machine.
///
/// A boost is for sequential bottlenecks. All boosts lead to the same clocks, so the one with the
/// shortest break-even gains most: a section of `t` gains `(t - shortest) (1 - f_B / f_T)`. Between
/// the two strategies that request by themselves, `wait` hides its request for the slow clock in
/// the wait, if that is long enough, and else `ownr` requests it after the section (section 4.3).
/// `one` is never chosen: it is the paper's baseline.
///
/// Without a boost, threads spin where the wait is shorter than what another way to wait costs, and
/// wait by the cheapest way that it outlasts otherwise, up to blocking: then waiting takes at most
/// twice as long as by the better choice.
///
/// # Cost
/// Some microseconds; no allocation.
#[must_use]
pub fn choose(sample: &Sample, offers: &Offers) -> Strategy {
    boosted(sample, offers).unwrap_or_else(|| waiting(sample, offers))
}

/// The strategy with the shortest break-even, if the section is as long and a bottleneck.
fn boosted(sample: &Sample, offers: &Offers) -> Option<Strategy> {
    if sample.contended < BOTTLENECK {
        return None;
    }
    let own = |boost: &Boost| {
        if sample.wait < boost.least_wait() { Strategy::Owner } else { Strategy::Wait }
    };
    let boosts = [
        (offers.neighbour, Strategy::Delegate),
        (offers.fast_core, Strategy::Migrate),
        (offers.own, offers.own.as_ref().map_or(Strategy::Owner, own)),
    ];
    let shortest = |(boost, strategy): (Option<Boost>, Strategy)| {
        Some((boost?.shortest(sample.stalled)?, strategy))
    };
    let (shortest, strategy) =
        boosts.into_iter().filter_map(shortest).min_by_key(|(shortest, _)| *shortest)?;
    (sample.section >= shortest).then_some(strategy)
}

/// The way to wait.
fn waiting(sample: &Sample, offers: &Offers) -> Strategy {
    if sample.wait >= offers.block {
        Strategy::Futex
    } else if offers.monitor.is_some_and(|monitor| sample.wait >= monitor) {
        Strategy::Mwait
    } else {
        Strategy::Spin
    }
}

#[cfg(test)]
mod tests {
    use dimmer_processor::model::{Model, builtin};
    use dimmer_processor::units::{KiloHertz, Nanos};

    use super::*;
    use crate::break_even::{Boosts, Costs};

    fn ns(ns: u64) -> Picos {
        Nanos::from_ns(ns).picos()
    }

    /// From 3 to 4 GHz, with these times of both requests, the ramp, and the request while waiting.
    fn boost(requests: u64, ramp: u64, down: u64) -> Boost {
        let [base, turbo] = [3000, 4000].map(KiloHertz::from_mhz);
        let [request, ramp, down] = [requests / 2, ramp, down].map(ns);
        Boost::new(base, base, turbo, Costs { request, ramp, back: request, down }).unwrap()
    }

    const NOTHING: Offers =
        Offers { own: None, neighbour: None, fast_core: None, monitor: None, block: Picos::ZERO };

    fn sample(section: u64, wait: u64) -> Sample {
        Sample { section: ns(section), wait: ns(wait), contended: 0.9, stalled: 0.0 }
    }

    #[track_caller]
    fn check(sample: Sample, offers: &Offers, expected: &str) {
        assert_eq!(choose(&sample, offers).name(), expected);
    }

    #[test]
    fn without_a_boost_the_wait_decides_how_to_wait() {
        let offers = Offers { block: ns(5000), ..NOTHING };
        check(sample(100, 4999), &offers, "spin");
        check(sample(100, 5000), &offers, "futex");
        let offers = Offers { monitor: Some(ns(450)), ..offers };
        check(sample(100, 449), &offers, "spin");
        check(sample(100, 450), &offers, "mwait");
        check(sample(100, 5000), &offers, "futex");
    }

    /// Requests of 10 us in all cost 4 times that at 3 to 4 GHz, and half of the ramp.
    #[test]
    fn a_section_beyond_the_break_even_is_boosted() {
        let offers = Offers { own: Some(boost(10_000, 20_000, 7000)), ..NOTHING };
        check(sample(49_999, 7000), &offers, "futex");
        check(sample(50_000, 7000), &offers, "wait");
        check(sample(50_000, 6999), &offers, "ownr");
    }

    #[test]
    fn a_lock_that_is_mostly_free_is_not_boosted() {
        let offers = Offers { own: Some(boost(10_000, 20_000, 7000)), ..NOTHING };
        check(Sample { contended: 0.1, ..sample(90_000, 9000) }, &offers, "futex");
        check(Sample { contended: 0.5, ..sample(90_000, 9000) }, &offers, "wait");
    }

    #[test]
    fn a_section_that_memory_stalls_needs_to_be_longer() {
        let offers = Offers { own: Some(boost(10_000, 20_000, 7000)), ..NOTHING };
        check(Sample { stalled: 0.5, ..sample(60_000, 9000) }, &offers, "futex");
        check(Sample { stalled: 1.0, ..sample(60_000, 9000) }, &offers, "futex");
    }

    /// Paper 002, section 4.4: a section pays from some 109 us on (its Table 4 has the costs).
    #[test]
    fn the_costs_of_the_papers_processor_boost_the_papers_sections() {
        let text = builtin("fx-8120").unwrap();
        let model = Model::parse(std::path::Path::new("fx-8120"), text).unwrap();
        let own = Some(Boosts::new(&model).unwrap().owner);
        let offers = Offers { own, block: ns(5000), ..NOTHING };
        check(sample(100_000, 700_000), &offers, "futex");
        check(sample(120_000, 840_000), &offers, "wait");
        check(sample(120_000, 7000), &offers, "ownr");
    }

    #[test]
    fn the_shortest_break_even_gains_most() {
        let own = Offers { own: Some(boost(10_000, 20_000, 7000)), ..NOTHING };
        let moved = Offers { fast_core: Some(boost(12_000, 0, 0)), ..own };
        check(sample(90_000, 9000), &moved, "mgrt");
        check(sample(47_999, 9000), &moved, "futex");
        let asked = Offers { neighbour: Some(boost(1000, 20_000, 0)), ..moved };
        check(sample(14_000, 9000), &asked, "dlgt");
        check(sample(90_000, 9000), &asked, "dlgt");
        let slow = Offers { fast_core: Some(boost(99_000, 0, 0)), ..own };
        check(sample(90_000, 9000), &slow, "wait");
    }
}
