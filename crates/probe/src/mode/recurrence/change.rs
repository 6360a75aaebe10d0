//! Finds the gap at which the regime changes.
//!
//! The share of bursts that are kept falls from one level to another over a range of gaps. Both
//! levels depend on other code on the core: wide code of other programs keeps licenses too, now and
//! then for seconds. So gaps can be judged neither singly nor one after the other, as in a
//! bisection. Instead, gaps from below the change to above it are measured in turn, pass by pass.
//! The change is where it best divides the shares of all series that were alone on the core. Every
//! pass takes other gaps, so that their spacing cancels.
//!
//! Other code may still move the change for seconds. So its interval is not that of a mean, which
//! ten times as many passes would make three times as narrow, but the range over consecutive
//! stretches of the measurement.

use std::time::Duration;

use super::gap::{Burst, Observed, Run, Series};
use super::keeping::{Alone, FullSpeed};
use crate::epoch::dither;
use crate::lab::{Deadline, Lab, ModeError};
use crate::stats::{Estimate, Samples};

/// Number of gaps in a pass. A power of two, for [`TURN`].
const RUNGS: usize = 16;

/// Coprime to [`RUNGS`]: the gaps of a pass follow each other in mixed order.
const TURN: usize = 7;

/// Factor by which a pass starts below the two gaps that divide the regimes.
const BELOW: f64 = 2.0;

/// Factor by which a pass ends above those gaps. It is larger, because the share falls slowly where
/// there is chance.
const ABOVE: f64 = 3.0;

/// Minimum number of passes.
const FEWEST: usize = 3;

/// Maximum number of passes: more would show nothing more about how the change wanders.
const MOST: usize = 100;

/// Time for which passes continue while too few series were alone on the core.
const PATIENCE: Duration = Duration::from_secs(90);

/// Number of standard errors by which the two levels must differ. The best of many divisions of
/// random values reaches three.
const CERTAINTY: f64 = 4.5;

/// Minimum and maximum number of stretches that give the interval. The range of five stretches
/// misses their common value one time in sixteen, that of ten hardly ever.
const STRETCHES: std::ops::RangeInclusive<usize> = 5..=10;

/// Minimum number of series in a stretch, so that its fall is more than chance.
const STRETCH: usize = 8;

/// Minimum number of series alone on the core.
const ENOUGH: usize = *STRETCHES.start() * STRETCH;

/// Minimum fall of the share of kept bursts.
const SMALLEST_FALL: f64 = 0.2;

/// Minimum rise of the clock's ratio: less than one of its steps.
const SMALLEST_RISE: f64 = 0.004;

/// The signal that distinguishes one regime from the other.
#[derive(Clone, Copy, Debug)]
pub(super) enum Signal {
    /// Bursts at full speed: the license was kept since the previous one.
    Bursts(FullSpeed),
    /// The clock just before the next burst: lowered while the license is kept.
    Clock,
}

impl Signal {
    /// The signal that differs between shorter and longer gaps (`ascending`), and the range of gaps
    /// (us) in which it surely changes; `None` if no signal differs. Bursts are tried first: their
    /// times differ by factors, and do not wander with the clock.
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

    /// Minimum fall of the score.
    fn least(self) -> f64 {
        match self {
            Self::Bursts(_) => SMALLEST_FALL,
            Self::Clock => SMALLEST_RISE,
        }
    }

    /// Score of one run for how much of the license it kept, on the signal's own scale.
    fn score(self, run: &Run) -> f64 {
        match self {
            Self::Bursts(full_speed) => full_speed.share(run),
            Self::Clock => 1.0 - run.clock_ratio,
        }
    }
}

/// The index of the first of the lower values, in the division into two parts that leaves the least
/// variance within them; `None` if no division has means that differ by `least`.
fn parting(values: &[f64], least: f64) -> Option<usize> {
    // The variance between the parts.
    let between = |at: usize| fall(values, at).powi(2) * (at * (values.len() - at)) as f64;
    (1..values.len())
        .filter(|at| fall(values, *at) >= least)
        .max_by(|a, b| between(*a).total_cmp(&between(*b)))
}

/// Fall of the mean from the values before the index to those from it on.
fn fall(values: &[f64], at: usize) -> f64 {
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    mean(&values[..at]) - mean(&values[at..])
}

/// The first index from `parting` on with a low value: less than a quarter of the difference above
/// the lower part's mean. The license's own hold may make a step before the memory's.
fn last_of_step(values: &[f64], parting: usize) -> usize {
    let later = &values[parting..];
    let low = later.iter().sum::<f64>() / later.len() as f64 + fall(values, parting) / 4.0;
    let last = values.len() - 1;
    (parting..last).find(|at| values[*at] < low).unwrap_or(last)
}

/// Gaps around a change; each pass measures all of them once.
#[derive(Debug)]
pub(super) struct Passes {
    /// Half of the unit of which gaps are multiples (us).
    rounding_us: f64,
    /// Runs, by pass and rung.
    runs: Vec<Vec<Run>>,
}

/// Measures gaps in the given range (us), pass by pass, until the time is over.
pub(super) fn passes(
    lab: &mut Lab<'_>,
    burst: Burst,
    (from_us, to_us): (f64, f64),
    alone: Alone,
    deadline: Deadline,
) -> Result<Passes, ModeError> {
    // No gap is shorter than two pairs of windows.
    let from_us = from_us.max(2.0 * lab.calibration.pair_ns / 1000.0);
    // Ratio of the two ends of a rung.
    let width = (to_us / from_us).powf(1.0 / RUNGS as f64);
    let mut passes = Passes { rounding_us: lab.calibration.pair_ns / 2000.0, runs: Vec::new() };
    let most = lab.settings.repetitions.clamp(FEWEST, MOST);
    let patience = lab.deadline(if lab.is_quick() { 0.0 } else { 0.5 }, PATIENCE);
    for n in 0..most {
        let is_enough = passes.alone(alone).count() >= ENOUGH || patience.is_over(lab);
        if n >= FEWEST && deadline.is_over(lab) && is_enough {
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
    /// Runs during which no other code kept the license, in the order of passes.
    fn alone(&self, alone: Alone) -> impl Iterator<Item = &Run> {
        self.runs.iter().flatten().filter(move |run| alone.is_alone(run))
    }

    /// The gap at which the regime changes (us), and how far it wanders; `None` if it cannot be
    /// determined, see [`change_of`].
    pub(super) fn change_us(&self, signal: Signal, alone: Alone) -> Option<Estimate> {
        let score = |run: &Run| (run.gap_us, signal.score(run));
        let points: Vec<(f64, f64)> = self.alone(alone).map(score).collect();
        let change_us = change_of(&points, signal.least())?;
        let ends = change_us.ci95;
        let ci95 = ((ends.0 - self.rounding_us).max(0.0), ends.1 + self.rounding_us);
        Some(Estimate { ci95, ..change_us })
    }

    /// The runs rung by rung, from all passes: gaps that differ by less than a rung's width.
    pub(super) fn rungs(self) -> Vec<Vec<Run>> {
        let mut rungs: Vec<Vec<Run>> = std::iter::repeat_with(Vec::new).take(RUNGS).collect();
        for pass in self.runs {
            rungs.iter_mut().zip(pass).for_each(|(rung, run)| rung.push(run));
        }
        rungs
    }
}

/// The gap at which scores fall, and its range over consecutive stretches. `None` if there are too
/// few points, if the scores fall by less than `least` in all points together or in half of the
/// stretches, or if the fall may be chance.
///
/// `points` are pairs of gap and score in the order of time; scores that are not finite are left
/// out.
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

/// The gap that best divides the scores.
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
        // The clock wanders by more than a small fall, so chance divides any stretch somewhere.
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
