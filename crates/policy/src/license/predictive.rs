//! The governor that learns what will run (the future work of paper 000, §4 and §5.3).
//!
//! For each region it remembers the lengths of the gaps after it. When a region ends, the governor
//! chooses how long to hold the level: the time that would have cost least over the remembered
//! gaps. To release it at once (raise the clock early), to hold it for a while and to keep it until
//! the next region are the same choice at 0, in between, and beyond all gaps. The governor departs
//! from what the processor would do only if that would have been clearly better, and only after
//! enough gaps.

use std::collections::{BTreeMap, VecDeque};

use dimmer_processor::units::{LicenseLevel, Nanos, Time};

use super::Change;
use super::oracle::{Gap, Prices};

const L0: LicenseLevel = LicenseLevel::new(0);

/// Number of gaps remembered for each region: enough for two kinds that alternate, few enough to
/// forget within some dozen bursts. A guess.
const REMEMBERED: usize = 32;

/// The smallest number of gaps to learn from. A guess.
const FEWEST: usize = 8;

/// A choice must have cost less than this part of the processor's cost, so that chance does not
/// decide. A guess.
const CLEARLY: f64 = 0.9;

/// Code that asks for a level: its thread, and which piece of code it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Region {
    /// The thread.
    pub thread: usize,
    /// The code, as any number that distinguishes it from other code.
    pub code: usize,
}

/// What ran since the last region ended.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ran {
    /// How long code whose speed depends on the clock would have taken at the clock of L0 (ns).
    pub scaled_ns: f64,
    /// The time by which all of it took longer than at the clock of L0 (ns).
    pub lost_ns: f64,
}

/// What the governor does when other code runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing: the level stays, and is released when it would have been.
    Keep,
    /// The level stays until other code runs.
    Hold,
    /// Sets this level.
    Set(LicenseLevel),
    /// Releases the level, to L0, after this time in which no other code has asked for one.
    ReleaseAfter(Nanos),
}

/// The governor of one core.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Predictive {
    gaps: BTreeMap<Region, VecDeque<Gap>>,
    /// The region that runs, or ran last.
    region: Region,
    /// When it ended, if it has ended.
    ended: Option<Time>,
}

impl Predictive {
    /// Other code runs on the core.
    ///
    /// * `region`: the code that asks for a level, if it does;
    /// * `ran`: what has run since the last region ended;
    /// * `prices`: of changes between L0 and the highest of the levels in `change`;
    /// * `usual`: how long the processor would hold the level.
    pub fn runs(
        &mut self,
        now: Time,
        change: &Change,
        (region, ran): (Region, Ran),
        prices: &Prices,
        usual: Nanos,
    ) -> Decision {
        let Change { asked, had, held } = *change;
        if asked == L0 {
            return if had > L0 {
                Decision::ReleaseAfter(self.ends(now, prices, usual))
            } else {
                Decision::Keep
            };
        }
        if had == L0 {
            self.begins(now, region, ran);
        }
        if asked > held { Decision::Set(asked) } else { Decision::Hold }
    }

    /// A region starts: the length of the gap is known now, and what ran in it.
    fn begins(&mut self, now: Time, region: Region, ran: Ran) {
        let before = std::mem::replace(&mut self.region, region);
        if let Some(ended) = self.ended.take() {
            let gaps = self.gaps.entry(before).or_default();
            if gaps.len() == REMEMBERED {
                gaps.pop_front();
            }
            let ns = ((now - ended).as_f64() - ran.lost_ns).max(0.0);
            gaps.push_back(Gap { ns, scaled_ns: ran.scaled_ns });
        }
    }

    /// The region ends. Returns how long to hold the level. `usual` is how long the
    /// processor would hold it.
    fn ends(&mut self, now: Time, prices: &Prices, usual: Nanos) -> Nanos {
        self.ended = Some(now);
        let Some(gaps) = self.gaps.get(&self.region).filter(|gaps| gaps.len() >= FEWEST) else {
            return usual;
        };
        let cost = |hold_ns: f64| -> f64 {
            gaps.iter().map(|gap| prices.of_gap(gap, hold_ns)).sum::<f64>()
        };
        // The cost falls only just beyond a gap, as long as it takes at the level. A tenth more,
        // because gaps are not equal to the nanosecond.
        let kept_ns = |gap: &Gap| gap.ns + gap.scaled_ns * prices.slower;
        let choices = gaps.iter().map(|gap| 1.1 * kept_ns(gap)).chain([0.0]);
        let usually = cost(usual.as_f64());
        let best =
            choices.map(|hold_ns| (hold_ns, cost(hold_ns))).min_by(|a, b| a.1.total_cmp(&b.1));
        best.filter(|(_, cost)| *cost < CLEARLY * usually)
            .map_or(usual, |(hold_ns, _)| Nanos::rounded(hold_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRICES: Prices = Prices { changes_ns: 35_000.0, slower: 0.35 };
    const USUAL: Nanos = Nanos::from_us(674);

    /// Code that would have run for this long at the clock of L0 (ns), at which it ran.
    fn ran(scaled_ns: f64) -> Ran {
        Ran { scaled_ns, lost_ns: 0.0 }
    }

    fn at(ns: u64) -> Time {
        Time::from_ns(ns)
    }

    /// The hold time that it chooses after bursts of 10 us at these gaps (ns), in which all code
    /// depends on the clock.
    fn chosen(gaps: &[u64]) -> u64 {
        let (mut governor, mut now, mut hold, mut before) = (Predictive::default(), 0, 0, 0.0);
        for gap in gaps {
            governor.begins(at(now), Region::default(), ran(before));
            hold = governor.ends(at(now + 10_000), &PRICES, USUAL).ns();
            now += 10_000 + gap;
            before = *gap as f64;
        }
        hold
    }

    #[test]
    fn long_gaps_get_the_clock_back_at_once() {
        assert_eq!(chosen(&[5_000_000; 12]), 0);
    }

    #[test]
    fn short_gaps_keep_the_level() {
        // The processor keeps it as well.
        assert_eq!(chosen(&[50_000; 12]), USUAL.ns());
        // Here the processor would release it just before the next burst.
        let prices = Prices { changes_ns: 1e6, ..PRICES };
        let mut governor = Predictive::default();
        for index in 0..12 {
            governor.begins(at(index * 810_000), Region::default(), ran(800_000.0));
            let hold = governor.ends(at(index * 810_000 + 10_000), &prices, USUAL);
            assert_eq!(hold, if index >= 8 { Nanos::from_us(1188) } else { USUAL }, "{index}");
        }
    }

    #[test]
    fn two_kinds_of_gaps_are_held_through_the_short_ones() {
        let gaps: Vec<u64> =
            (0..40).map(|index| if index % 2 == 0 { 20_000 } else { 3_000_000 }).collect();
        // 20 us at the clock of L0 take 27 at the level.
        assert_eq!(chosen(&gaps), 29_700);
    }

    #[test]
    fn nothing_learned_is_what_the_processor_does() {
        assert_eq!(chosen(&[5_000_000; 3]), USUAL.ns());
        let mut governor = Predictive::default();
        assert_eq!(governor.ends(at(5), &PRICES, USUAL), USUAL);
    }

    /// A processor with three levels: the level is asked for, held from one kind of wide code to
    /// the other, and released.
    #[test]
    fn a_level_is_set_held_and_given_back() {
        let [l1, l2] = [1, 2].map(LicenseLevel::new);
        let mut governor = Predictive::default();
        let mut runs = |now, asked, had, held| {
            let heard = (Region::default(), Ran::default());
            governor.runs(at(now), &Change { asked, had, held }, heard, &PRICES, USUAL)
        };
        assert_eq!(runs(0, l2, L0, L0), Decision::Set(l2));
        assert_eq!(runs(10_000, l1, l2, l2), Decision::Hold);
        assert_eq!(runs(20_000, L0, l1, l2), Decision::ReleaseAfter(USUAL));
        // Scalar code of another kind.
        assert_eq!(runs(30_000, L0, L0, l2), Decision::Keep);
        assert_eq!(runs(40_000, l1, L0, l2), Decision::Hold);
    }

    #[test]
    fn code_that_waits_for_memory_keeps_the_level() {
        let mut governor = Predictive::default();
        for index in 0..20 {
            governor.begins(at(index * 300_000), Region::default(), ran(60_000.0));
            assert_eq!(governor.ends(at(index * 300_000 + 10_000), &PRICES, USUAL), USUAL);
        }
    }

    #[test]
    fn regions_are_learned_apart_and_old_gaps_forgotten() {
        let (mut governor, mut now, mut before) = (Predictive::default(), 0, 0_u32);
        let mut hold = [Nanos::ZERO; 2];
        for _ in 0..2 * REMEMBERED {
            for (code, gap) in [(0, 5_000_000), (1, 20_000)] {
                governor.begins(at(now), Region { thread: 3, code }, ran(f64::from(before)));
                hold[code] = governor.ends(at(now + 1000), &PRICES, USUAL);
                now += 1000 + u64::from(gap);
                before = gap;
            }
        }
        assert_eq!(hold, [Nanos::ZERO, USUAL]);
        assert!(governor.gaps.values().all(|gaps| gaps.len() <= REMEMBERED));
    }
}
