//! Where the regime changes.
//!
//! The share of bursts that are kept falls from one level to another over a range of gaps, and both
//! levels depend on what else runs on the core: other programs' wide code keeps licenses too, now
//! and then for seconds. So no single gap can be judged by itself, nor one after the other, as a
//! bisection would. Instead gaps from below the change to above it are measured in turn, pass by
//! pass, and the change is where the shares of all series that were alone on the core part best.
//! Every pass takes other gaps, so that their spacing cancels.
//!
//! What else goes on may still move the change for seconds. So its interval is not that of a mean,
//! which ten times the passes would make three times as narrow, but the range over consecutive
//! stretches of the measurement.

use std::time::Duration;

use super::gap::{Burst, Observed, Run, Series};
use super::keeping::{Alone, FullSpeed};
use crate::epoch::dither;
use crate::lab::{Deadline, Lab, ModeError};
use crate::stats::{Estimate, Samples};

/// Gaps in a pass. A power of two, for [`TURN`].
const RUNGS: usize = 16;

/// Coprime to [`RUNGS`]: gaps of a pass follow each other in no order.
const TURN: usize = 7;

/// How far below the two gaps that part the regimes a pass begins, as a factor.
const BELOW: f64 = 2.0;

/// How far above them it ends: farther, as the share falls slowly where there is chance.
const ABOVE: f64 = 3.0;

/// Passes in any case.
const FEWEST: usize = 3;

/// Passes at most: more would not tell more of how the change wanders.
const MOST: usize = 100;

/// How long to go on for series alone on the core, while there are few.
const PATIENCE: Duration = Duration::from_secs(90);

/// How many standard errors the two levels must differ by. The best of many partings of chance
/// reaches three.
const CERTAINTY: f64 = 4.5;

/// Stretches that give the interval, at least and at most: the range of five stretches misses what
/// they have in common one time in sixteen, that of ten hardly ever.
const STRETCHES: std::ops::RangeInclusive<usize> = 5..=10;

/// Series that a stretch must have, for its fall to be more than chance.
const STRETCH: usize = 8;

/// Series alone on the core that are needed.
const ENOUGH: usize = *STRETCHES.start() * STRETCH;

/// By how much the share of kept bursts must fall at least.
const SMALLEST_FALL: f64 = 0.2;

/// By how much the clock's ratio must rise at least: less than one of its steps.
const SMALLEST_RISE: f64 = 0.004;

/// What tells one regime from the other.
#[derive(Clone, Copy, Debug)]
pub(super) enum Signal {
    /// Bursts at full speed: the license was kept since the last one.
    Bursts(FullSpeed),
    /// The clock just before the next burst: lowered while the license is kept.
    Clock,
}

impl Signal {
    /// What differs between shorter and longer gaps (`ascending`), and the range of gaps (us) in
    /// which it surely changes; `None` if nothing does. Bursts come first: their times differ by
    /// factors, and do not wander with the clock.
    pub(super) fn of(
        ascending: &[Observed],
        full_speed: Option<FullSpeed>,
    ) -> Option<(Self, (f64, f64))> {
        let parted = |scores: Vec<(f64, f64)>, least: f64| {
            let values: Vec<f64> = scores.iter().map(|(_, score)| *score).collect();
            let at = last_of_step(&values, parting(&values, least)?);
            let longest = scores.last()?.0;
            Some((scores[at - 1].0 / BELOW, (scores[at].0 * ABOVE).min(longest)))
        };
        if let Some(full_speed) = full_speed {
            let score = |one: &Observed| Some((one.gap.gap_us, one.gap.kept_share?));
            let shares = ascending.iter().filter_map(score).collect();
            if let Some(range) = parted(shares, SMALLEST_FALL) {
                return Some((Self::Bursts(full_speed), range));
            }
        }
        if !ascending.iter().any(|one| one.has_effect) {
            return None;
        }
        let score = |one: &Observed| (one.gap.gap_us, 1.0 - one.gap.clock_ratio);
        Some((Self::Clock, parted(ascending.iter().map(score).collect(), SMALLEST_RISE)?))
    }

    /// By how much the score must fall at least.
    fn least(self) -> f64 {
        match self {
            Self::Bursts(_) => SMALLEST_FALL,
            Self::Clock => SMALLEST_RISE,
        }
    }

    /// How much of the license one run kept, on a scale of its own.
    fn score(self, run: &Run) -> f64 {
        match self {
            Self::Bursts(full_speed) => full_speed.share(run),
            Self::Clock => 1.0 - run.clock_ratio,
        }
    }
}

/// The index of the first of the lower values, by the division into two parts that leaves least
/// variance in them; `None` if no two means differ by `least`.
fn parting(values: &[f64], least: f64) -> Option<usize> {
    // The variance between the parts.
    let between = |at: usize| fall(values, at).powi(2) * (at * (values.len() - at)) as f64;
    (1..values.len())
        .filter(|at| fall(values, *at) >= least)
        .max_by(|a, b| between(*a).total_cmp(&between(*b)))
}

/// By how much the mean falls from before the index to after it.
fn fall(values: &[f64], at: usize) -> f64 {
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    mean(&values[..at]) - mean(&values[at..])
}

/// Goes on from a parting as long as values are not yet low: above the lower part's mean by a
/// quarter of the difference. The license's own hold may make a step before the memory's.
fn last_of_step(values: &[f64], parting: usize) -> usize {
    let later = &values[parting..];
    let low = later.iter().sum::<f64>() / later.len() as f64 + fall(values, parting) / 4.0;
    let last = values.len() - 1;
    (parting..last).find(|at| values[*at] < low).unwrap_or(last)
}

/// Gaps around a change, all of them once a pass.
#[derive(Debug)]
pub(super) struct Passes {
    /// Half of what gaps are multiples of (us).
    rounding_us: f64,
    /// Runs, by pass and rung.
    runs: Vec<Vec<Run>>,
}

/// Measures gaps from one to another (us), pass by pass, until the time is over.
pub(super) fn passes(
    lab: &mut Lab<'_>,
    burst: Burst,
    (from_us, to_us): (f64, f64),
    alone: Alone,
    deadline: Deadline,
) -> Result<Passes, ModeError> {
    // Shorter than two windows no gap can be.
    let from_us = from_us.max(2.0 * lab.calibration.pair_ns / 1000.0);
    // Ratio of a rung's two ends.
    let width = (to_us / from_us).powf(1.0 / RUNGS as f64);
    let mut passes = Passes { rounding_us: lab.calibration.pair_ns / 2000.0, runs: Vec::new() };
    let most = lab.settings.repetitions.clamp(FEWEST, MOST);
    let patience = lab.deadline(if lab.is_quick() { 0.0 } else { 0.5 }, PATIENCE);
    for n in 0..most {
        let is_enough = passes.alone(alone).count() >= ENOUGH || patience.is_over();
        if n >= FEWEST && deadline.is_over() && is_enough {
            break;
        }
        let part = dither(n);
        let mut pass: Vec<(usize, Run)> = Vec::new();
        for turn in 0..RUNGS {
            let rung = (turn * TURN + n) % RUNGS;
            let gap_us = from_us * width.powf(rung as f64 + part);
            pass.push((rung, Series::new(lab, burst, gap_us).run(lab)?));
        }
        pass.sort_by_key(|(rung, _)| *rung);
        passes.runs.push(pass.into_iter().map(|(_, run)| run).collect());
    }
    Ok(passes)
}

impl Passes {
    /// Runs during which nobody else kept the license, in the order of passes.
    fn alone(&self, alone: Alone) -> impl Iterator<Item = &Run> {
        self.runs.iter().flatten().filter(move |run| alone.is_alone(run))
    }

    /// The gap at which the regime changes (us), and how far it wanders; `None` if that cannot be
    /// said, see [`change_of`].
    pub(super) fn change_us(&self, signal: Signal, alone: Alone) -> Option<Estimate> {
        let score = |run: &Run| (run.gap_us, signal.score(run));
        let points: Vec<(f64, f64)> = self.alone(alone).map(score).collect();
        let change_us = change_of(&points, signal.least())?;
        let ends = change_us.ci95;
        let ci95 = ((ends.0 - self.rounding_us).max(0.0), ends.1 + self.rounding_us);
        Some(Estimate { ci95, ..change_us })
    }

    /// The runs rung by rung, all passes together: gaps that differ by less than a rung's width.
    pub(super) fn rungs(self) -> Vec<Vec<Run>> {
        let mut rungs: Vec<Vec<Run>> = std::iter::repeat_with(Vec::new).take(RUNGS).collect();
        for pass in self.runs {
            rungs.iter_mut().zip(pass).for_each(|(rung, run)| rung.push(run));
        }
        rungs
    }
}

/// Where scores fall with the gap, and the range of that over consecutive stretches. `None` if
/// there are too few, if they fall by less than `least`, in all or in half of the stretches, or by
/// what may be chance.
///
/// `points` of gap and score in the order of time; scores that are not finite are left out.
fn change_of(points: &[(f64, f64)], least: f64) -> Option<Estimate> {
    let points: Vec<(f64, f64)> =
        points.iter().copied().filter(|(_, score)| score.is_finite()).collect();
    let stretches = (points.len() / STRETCH).min(*STRETCHES.end());
    if !STRETCHES.contains(&stretches) {
        return None;
    }
    let ends = |index: usize| index * points.len() / stretches;
    let changes: Samples = (0..stretches)
        .filter_map(|index| fall_of(&points[ends(index)..ends(index + 1)], least))
        .collect();
    let is_lasting = 2 * changes.len() > stretches;
    let median = fall_of(&points, least).filter(|_| is_lasting)?;
    if !is_beyond_chance(&points, median) {
        return None;
    }
    let ci95 = (changes.quantile(0.0)?.min(median), changes.quantile(1.0)?.max(median));
    Some(Estimate { median, ci95 })
}

/// The gap that parts the scores best.
fn fall_of(points: &[(f64, f64)], least: f64) -> Option<f64> {
    let mut ascending = points.to_vec();
    ascending.sort_by(|a, b| a.0.total_cmp(&b.0));
    let scores: Vec<f64> = ascending.iter().map(|(_, score)| *score).collect();
    let at = parting(&scores, least)?;
    Some((ascending[at - 1].0 * ascending[at].0).sqrt())
}

/// Whether scores below a gap are higher than above it by [`CERTAINTY`] standard errors.
fn is_beyond_chance(points: &[(f64, f64)], gap_us: f64) -> bool {
    let (near, far): (Vec<_>, Vec<_>) = points.iter().partition(|(gap, _)| *gap < gap_us);
    let moments = |part: &[(f64, f64)]| {
        let n = part.len() as f64;
        let mean = part.iter().map(|(_, score)| score).sum::<f64>() / n;
        let squares = part.iter().map(|(_, score)| (score - mean).powi(2)).sum::<f64>();
        (mean, squares / (n - 1.0) / n)
    };
    let (near, far) = (moments(&near), moments(&far));
    near.0 - far.0 > CERTAINTY * (near.1 + far.1).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes over a curve that falls from `near` to `far` at a gap of `at`, between 50 and 600.
    fn passes(n: usize, at: f64, near: f64, far: f64) -> Vec<(f64, f64)> {
        let width = 12_f64.powf(1.0 / RUNGS as f64);
        let pass = |n: usize| {
            let part = dither(n);
            let gap =
                move |turn: usize| 50.0 * width.powf(((turn * TURN + n) % RUNGS) as f64 + part);
            (0..RUNGS).map(gap).map(move |gap| (gap, if gap < at { near } else { far }))
        };
        (0..n).flat_map(pass).collect()
    }

    fn assert_near(change: Option<Estimate>, at: f64, tolerance: f64) {
        let change = change.unwrap();
        assert!((change.median / at - 1.0).abs() < tolerance, "{change:?}");
        assert!((change.ci95.0..=change.ci95.1).contains(&change.median), "{change:?}");
    }

    #[test]
    fn a_step_is_found_between_the_rungs() {
        assert_near(change_of(&passes(40, 190.0, 1.0, 0.0), 0.2), 190.0, 0.01);
        assert_near(change_of(&passes(5, 190.0, 1.0, 0.0), 0.2), 190.0, 0.05);
    }

    #[test]
    fn a_change_that_wanders_has_a_wide_interval() {
        let mut wandering = passes(20, 120.0, 0.9, 0.0);
        wandering.extend(passes(20, 300.0, 0.9, 0.0));
        let change = change_of(&wandering, 0.2).unwrap();
        assert!(change.ci95.0 < 130.0 && change.ci95.1 > 270.0, "{change:?}");
    }

    #[test]
    fn what_is_level_or_falls_in_one_stretch_only_has_no_change() {
        assert_eq!(change_of(&passes(40, 190.0, 0.6, 0.5), 0.2), None);
        let mut once = passes(30, 190.0, 0.0, 0.0);
        once.extend(passes(10, 190.0, 1.0, 0.0));
        assert_eq!(change_of(&once, 0.2), None);
        // The clock wanders by more than a small fall: chance parts any stretch somewhere.
        let wanders = |(index, (gap, _)): (usize, (f64, f64))| (gap, dither(index));
        let chance: Vec<(f64, f64)> =
            passes(40, 190.0, 0.0, 0.0).into_iter().enumerate().map(wanders).collect();
        assert_eq!(change_of(&chance, SMALLEST_RISE), None);
        assert_eq!(change_of(&[], 0.2), None);
    }

    #[test]
    fn the_largest_step_down_parts_the_gaps() {
        let step = |values: &[f64]| Some(last_of_step(values, parting(values, SMALLEST_FALL)?));
        let one = [1.0, 0.98, 0.88, 0.81, 0.77, 0.59, 0.52, 0.13, 0.01, 0.06, 0.0, 0.1];
        assert_eq!(step(&one), Some(7));
        let two = [0.99, 0.93, 0.83, 0.71, 0.45, 0.02, 0.1, 0.0, 0.0, 0.0];
        assert_eq!(step(&two), Some(5));
        assert_eq!(step(&[0.0, 0.1, 0.0]), None);
        assert_eq!(step(&[0.0, 1.0]), None);
        assert_eq!(step(&[]), None);
    }
}
