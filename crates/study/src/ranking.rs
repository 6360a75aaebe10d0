//! How much a mechanism gains over none, with its interval, and which of them are better than
//! others.

use crate::fit::{mean, standard_error, student95};
use crate::matrix::Runs;
use crate::mechanism::Mechanism;
use crate::run::Run;

/// Differences of speed below this are none: half of the last digit shown (0.01 %).
const LEAST: f64 = 5e-5;

/// A mean and its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The mean.
    pub mean: f64,
    /// The interval's ends; `None` if one value does not give any.
    pub ci95: Option<(f64, f64)>,
}

impl Interval {
    /// The mean of values that vary with the seed, with Student's interval; `None` without any. If
    /// nothing varies, the interval has no width.
    ///
    /// * `is_fixed`: whether values do not depend on the seed, so that one is enough.
    #[must_use]
    pub fn new(values: &[f64], is_fixed: bool) -> Option<Self> {
        let first = *values.first()?;
        if is_fixed || (values.len() > 1 && values.iter().all(|value| *value == first)) {
            return Some(Self { mean: first, ci95: Some((first, first)) });
        }
        let mean = mean(values);
        let ci95 = (values.len() > 1).then(|| {
            let half = student95((values.len() - 1) as f64) * standard_error(values);
            (mean - half, mean + half)
        });
        Some(Self { mean, ci95 })
    }

    /// Whether a difference with this interval may be none.
    #[must_use]
    pub fn has_zero(&self) -> bool {
        self.ci95.is_none_or(|(low, high)| low <= LEAST && high >= -LEAST)
    }
}

/// A mechanism's place among those of a scenario on a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// The mechanism.
    pub mechanism: Mechanism,
    /// Its rank, from 1; equal for those whose difference may be none. `None` if it has no rank:
    /// it is a bound, or code ran above the clock of its level.
    pub rank: Option<usize>,
    /// Work done, over that under none, less 1.
    pub gain: Interval,
    /// The longest 99th percentile of requests, over that under none, less 1.
    pub p99: Option<Interval>,
    /// Energy for the same work, over that under none, less 1.
    pub energy: Option<Interval>,
}

/// Ranks mechanisms by the work done, seed by seed. Those with the same rank are in the order of
/// their means; those without a rank come last.
#[must_use]
pub fn rank(ran: &[(Mechanism, &Runs)]) -> Vec<Place> {
    let Some((_, none)) = ran.iter().find(|(mechanism, _)| *mechanism == Mechanism::None) else {
        return Vec::new();
    };
    let mut places: Vec<(Place, &Runs)> = ran
        .iter()
        .filter_map(|(mechanism, runs)| {
            let over = |of: fn(&Run, &Run) -> Option<f64>| over(runs, none, of);
            let gain = over(|own, none| Some(own.speed_over(none) - 1.0))?;
            let p99 = over(|own, none| Some(own.p99_us()? / none.p99_us()? - 1.0));
            let energy = over(|own, none| Some(own.energy_over(none)? - 1.0));
            Some((Place { mechanism: *mechanism, rank: None, gain, p99, energy }, *runs))
        })
        .collect();
    let has_rank = |place: &Place, runs: &Runs| {
        !place.mechanism.is_bound() && runs.runs.iter().all(|run| run.below_s == 0.0)
    };
    places.sort_by(|(a, of_a), (b, of_b)| {
        let ranked = has_rank(b, of_b).cmp(&has_rank(a, of_a));
        ranked.then(b.gain.mean.total_cmp(&a.gain.mean)).then(a.mechanism.cmp(&b.mechanism))
    });
    // The rank of a group, and the runs of its first one.
    let mut group: Option<(usize, &Runs)> = None;
    for (index, (place, runs)) in places.iter_mut().enumerate() {
        if !has_rank(place, runs) {
            continue;
        }
        let shares = group.filter(|(_, first)| may_be_equal(runs, first, none));
        let (rank, first) = shares.unwrap_or((index + 1, *runs));
        place.rank = Some(rank);
        group = Some((rank, first));
    }
    places.into_iter().map(|(place, _)| place).collect()
}

/// Whether two mechanisms may do the same work: whether the interval of the difference of their
/// gains over none, seed by seed, has zero in it.
fn may_be_equal(one: &Runs, other: &Runs, none: &Runs) -> bool {
    let gain = |runs: &Runs, seed: usize| Some(runs.of(seed)?.speed_over(none.of(seed)?));
    let seeds = 0..one.count(other).max(one.count(none));
    let differences: Vec<f64> =
        seeds.filter_map(|seed| Some(gain(one, seed)? - gain(other, seed)?)).collect();
    let is_fixed = one.is_fixed && other.is_fixed && none.is_fixed;
    Interval::new(&differences, is_fixed).is_none_or(|difference| difference.has_zero())
}

/// A quantity over that under none, seed by seed.
fn over(own: &Runs, none: &Runs, of: fn(&Run, &Run) -> Option<f64>) -> Option<Interval> {
    let seeds = 0..own.count(none);
    let values: Vec<f64> = seeds.filter_map(|seed| of(own.of(seed)?, none.of(seed)?)).collect();
    Interval::new(&values, own.is_fixed && none.is_fixed)
}

#[cfg(test)]
mod tests;
