//! Determines which bursts of a series ran at full speed because the license was kept since the
//! previous one, and which series can show it because no other code kept the license.
//!
//! Other hardware threads of the core share the license. On a shared Emerald Rapids host, bursts at
//! gaps of 300 to 1500 us ran at full speed in 0.6 % of the cases while the other thread, which
//! other users' code ran on, was idle (185 series), and in 19 to 29 % while it was busy (411
//! series).
//!
//! After long gaps any code is fetched again, and is slow for that reason. On a shared Zen 5 host,
//! bursts took ten times as long from 2 ms on, and so did bursts of 128 bit and scalar stand-ins.
//! Where stand-ins are slow too, bursts show nothing.

use super::gap::{Run, Timed};
use crate::stats::Samples;
use crate::surroundings;

/// Minimum number of conclusive series for which the others are left out.
const FEWEST: usize = 2;

/// Criterion for series during which other hardware threads of the core were idle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alone {
    /// Largest ratio of issue to clock windows of a run that was alone on the core.
    most: f64,
}

impl Alone {
    /// The criterion from all runs of the mode.
    pub(super) fn of<'a>(runs: impl Iterator<Item = &'a Run>) -> Self {
        let issues: Samples = runs.map(|run| run.issue).collect();
        Self { most: surroundings::alone(&issues).unwrap_or(f64::INFINITY) }
    }

    pub(super) fn is_alone(self, run: &Run) -> bool {
        run.issue <= self.most
    }
}

/// Smallest factor over full speed at which an isolated burst counts as throttled. The cost of
/// isolation to a scalar stand-in is subtracted first: code that has not run for a while is fetched
/// again.
const THROTTLED: f64 = 2.0;

/// Smallest factor over the stand-ins of the quickest gap at which a stand-in counts as fetched
/// from far: from the second-level cache, code comes at half its speed or better.
const COLD: f64 = 3.0;

/// Share of warm stand-ins below which bursts show nothing either.
const WARM: f64 = 0.9;

/// Criterion that separates bursts at full speed from throttled ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct FullSpeed {
    /// Bursts that take less time ran at full speed (ns).
    threshold_ns: f64,
    /// Stand-ins that take less time were in the caches (ns).
    warm_ns: f64,
}

impl FullSpeed {
    /// The criterion from the series of all gaps: half way, as a factor, from full speed to the
    /// first burst of a series, which is isolated. `None` if isolated bursts are not throttled,
    /// because their times then show nothing. Back to back they take `full_speed_ns`, if nothing
    /// else slows them.
    pub(super) fn of(sweep: &[Vec<Run>], full_speed_ns: f64) -> Option<Self> {
        let median =
            |times: &mut dyn Iterator<Item = f64>| times.collect::<Samples>().quantile(0.5);
        let median_of_first = |of: fn(&Run) -> &[Timed]| {
            median(&mut sweep.iter().flatten().filter_map(|run| Some(of(run).first()?.ns)))
        };
        // The median at the gap where they are quickest.
        let quickest = |of: fn(&Run) -> &[Timed]| {
            let gap = |runs: &Vec<Run>| median(&mut runs.iter().flat_map(of).map(|one| one.ns));
            sweep.iter().filter_map(gap).reduce(f64::min)
        };
        let stand_in_ns = quickest(|run| &run.stand_ins)?;
        let cold_ns = median_of_first(|run| &run.stand_ins)? - stand_in_ns;
        let isolated_ns = median_of_first(|run| &run.bursts)? - cold_ns;
        let full_speed_ns = full_speed_ns.min(quickest(|run| &run.bursts)?);
        let is_throttled = isolated_ns >= THROTTLED * full_speed_ns;
        is_throttled.then(|| Self {
            threshold_ns: (full_speed_ns * isolated_ns).sqrt(),
            warm_ns: COLD * stand_in_ns,
        })
    }

    /// Share of the bursts of one series that were kept after the memory was filled; NaN without
    /// bursts, or if too many stand-ins were cold.
    pub(super) fn share(self, run: &Run) -> f64 {
        if self.is_cold(std::slice::from_ref(run)) {
            return f64::NAN;
        }
        let learned = run.bursts.get(run.learn..).unwrap_or_default();
        share_below(learned.iter(), self.threshold_ns)
    }

    /// Whether too many stand-ins of these series were cold. The share of caches that a series gets
    /// depends on chance, and series of long gaps have few stand-ins: all series of a gap together
    /// are more reliable.
    fn is_cold(self, runs: &[Run]) -> bool {
        // The first stand-in of a series is cold at any gap.
        let stand_ins = || runs.iter().flat_map(|run| run.stand_ins.iter().skip(1));
        share_below(stand_ins(), self.warm_ns) < WARM
    }
}

/// Share of the times below `most_ns`; NaN without times.
fn share_below<'t>(timed: impl Iterator<Item = &'t Timed>, most_ns: f64) -> f64 {
    let times: Vec<f64> = timed.map(|one| one.ns).filter(|ns| ns.is_finite()).collect();
    times.iter().filter(|ns| **ns < most_ns).count() as f64 / times.len() as f64
}

/// Result of the series of one gap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keeping {
    /// Mean share of the bursts that are kept after the memory is filled.
    pub(super) share: f64,
    /// Median time from the first burst of a series to the first kept one (ns); `None` if most
    /// series have no kept burst.
    pub(super) after_ns: Option<f64>,
}

impl Keeping {
    /// From the series that were alone, if there are [`FEWEST`], otherwise from all. `None` without
    /// a conclusive series: if even the first, isolated burst is not throttled, other code holds
    /// the license.
    pub(super) fn of(runs: &[Run], full_speed: FullSpeed, alone: Alone) -> Option<Self> {
        if full_speed.is_cold(runs) {
            return None;
        }
        let is_kept = |ns: f64| ns < full_speed.threshold_ns;
        let are_alone = runs.iter().filter(|run| alone.is_alone(run)).count() >= FEWEST;
        let tells = |run: &&Run| {
            (alone.is_alone(run) || !are_alone)
                && run.bursts.first().is_some_and(|first| !is_kept(first.ns))
        };
        let shares: Vec<f64> = runs
            .iter()
            .filter(tells)
            .map(|run| full_speed.share(run))
            .filter(|share| share.is_finite())
            .collect();
        if shares.is_empty() {
            return None;
        }
        let first = |run: &Run| Some(run.bursts.iter().find(|burst| is_kept(burst.ns))?.at_ns);
        let firsts: Samples = runs.iter().filter(tells).filter_map(first).collect();
        let after_ns = firsts.quantile(0.5).filter(|_| 2 * firsts.len() >= shares.len());
        Some(Self { share: shares.iter().sum::<f64>() / shares.len() as f64, after_ns })
    }
}

#[cfg(test)]
mod tests {
    use super::super::gap::run_of;
    use super::*;

    /// A series of bursts 1 us apart: 500 ns if throttled, otherwise 125 ns; the first two do not
    /// count.
    fn series(throttled: [bool; 4]) -> Run {
        let timed = |(index, throttled): (usize, bool)| Timed {
            at_ns: index as f64 * 1000.0,
            ns: if throttled { 500.0 } else { 125.0 },
        };
        run_of(throttled.into_iter().enumerate().map(timed).collect(), 2)
    }

    #[test]
    fn series_that_begin_with_somebody_elses_license_say_nothing() {
        let own = || series([true, true, true, true]);
        let kept = series([true, true, false, false]);
        let others = series([false, false, false, false]);
        let all = [vec![own(), own(), own(), kept, others]];
        let full_speed = FullSpeed::of(&all, 125.0).unwrap();
        let keeping = Keeping::of(&all[0], full_speed, Alone::of(all[0].iter())).unwrap();
        assert_eq!(keeping.share, 0.25);
        assert!(keeping.after_ns.is_none());
    }

    #[test]
    fn series_in_company_say_nothing() {
        let own = || series([true, true, true, true]);
        let in_company = || {
            let mut run = series([true, false, false, false]);
            run.issue = 1.6;
            run
        };
        let all = [vec![own(), own(), in_company(), in_company(), in_company()]];
        let full_speed = FullSpeed::of(&all, 125.0).unwrap();
        let alone = Alone::of(all[0].iter());
        let share = |runs| Keeping::of(runs, full_speed, alone).unwrap().share;
        assert_eq!(share(&all[0]), 0.0);
        assert_eq!(share(&all[0][2..]), 1.0);
    }

    #[test]
    fn bursts_that_are_slow_like_any_cold_code_tell_nothing() {
        let mut cold = series([true, false, false, false]);
        assert!(FullSpeed::of(&[vec![cold.clone()]], 125.0).is_some());
        let stand_in = |at_ns, ns| Timed { at_ns, ns };
        cold.stand_ins = vec![stand_in(0.0, 360.0), stand_in(1.0, 60.0), stand_in(2.0, 60.0)];
        assert!(FullSpeed::of(&[vec![cold]], 125.0).is_none());
    }

    #[test]
    fn bursts_at_gaps_after_which_any_code_is_cold_tell_nothing() {
        let warm = series([true, true, false, false]);
        let mut cold = series([true, true, true, true]);
        cold.stand_ins.iter_mut().for_each(|one| one.ns = 360.0);
        let all = [vec![warm], vec![cold]];
        let full_speed = FullSpeed::of(&all, 125.0).unwrap();
        let alone = Alone::of(all.iter().flatten());
        assert!(full_speed.share(&all[1][0]).is_nan());
        assert!(Keeping::of(&all[0], full_speed, alone).is_some());
        assert!(Keeping::of(&all[1], full_speed, alone).is_none());
    }

    #[test]
    fn bursts_that_are_never_throttled_tell_nothing() {
        assert!(FullSpeed::of(&[vec![series([false; 4])]], 125.0).is_none());
    }
}
