//! From superposed epochs to constants: is there an effect, how long does it last, what does it
//! cost, when is the clock given back, does the core stall then.
//!
//! # How
//!
//! 1. Pairs are gathered in bins that grow with time after the burst. In each bin, burst and
//!    baseline are compared repetition by repetition; a [`Bin`] holds mean and error of the
//!    difference. The effect ends with the last bin that stands out.
//! 2. The cost of a repetition is the sum of excess up to twice that time, less its baseline's.
//! 3. The release of a repetition is the change point that best separates pairs at the plateau's
//!    level from pairs at zero: the maximum of the running sum of `2 s p - p^2`, s being a pair's
//!    relative excess and p the plateau (Page 1954, for two known means).
//! 4. A stall belongs to the effect if it lies next to the release; others are time that somebody
//!    else took, and are left out on both sides.
//! 5. On a shared machine the same burst may cost microseconds in one millisecond and nothing in
//!    the next. (Why is not known; presumably the clock lies below the licence's limit already, or
//!    another tenant of the core holds the licence.) A median over both would be a median of nothing. Where the repetitions
//!    fall into two kinds, the share of those with the effect is told, and everything else is
//!    measured on them alone (steps 1 to 4 again).

use crate::calibration::Calibration;
use crate::epoch::{Disturbance, Epoch, Epochs};
use crate::outcome::CurvePoint;
use crate::stats::{Estimate, Samples};

/// How many standard errors a bin must stand out by. With some 40 bins, 4.5 keeps false alarms
/// below 1 in 3000 runs if errors are normal.
const STANDS_OUT: f64 = 4.5;

/// The smallest relative slow-down that counts as an effect of the clock: half a bin of 100 MHz
/// at 10 GHz; below it, differences of code placement show.
const SMALLEST_SLOWDOWN: f64 = 0.004;

/// The smallest cost that counts as an effect of the clock (ns). A wide burst and its stand-in
/// leave branch predictors and front end in different states; on Zen 5 that was seen to cost the
/// code after it up to 6 ns, less than two mispredicted branches.
pub(crate) const SMALLEST_COST_NS: f64 = 20.0;

/// How many pairs around the release may hold its stall (4 us).
const STALL_REACH: usize = 10;

/// The least time after a burst that is looked at (ns).
pub(crate) const LEAST_HORIZON_NS: f64 = 20_000.0;

/// How many deviations of the baselines' costs a repetition's cost must exceed to have the effect.
const APART: f64 = 5.0;

/// How many repetitions with the effect there must be, if none of the baselines looks like one:
/// one half to this power is less than one in two thousand. That is for one look; a measurement
/// that goes on until it is precise looks up to sixteen times, so false alarms are more frequent.
const LEAST_WITH_EFFECT: usize = 11;

/// One bin of the superposed epochs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bin {
    /// First pair.
    pub(crate) first: usize,
    /// One past the last pair.
    pub(crate) end: usize,
    /// Middle (ns after the burst).
    pub(crate) at_ns: f64,
    /// Relative slow-down against the baseline: mean and standard error.
    pub(crate) slowdown: (f64, f64),
    /// Repetitions with a stall in the bin, burst and baseline.
    pub(crate) stalls: (usize, usize),
    /// Repetitions compared.
    pub(crate) repetitions: usize,
}

/// In which repetitions the effect is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Presence {
    /// The repetitions are of one kind.
    Alike,
    /// There may be two kinds; so far there are too few of one to tell.
    Undecided,
    /// There are two kinds.
    Mixed {
        /// The repetitions with the effect, ascending.
        with: Vec<usize>,
        /// Their share, without those that look like it by chance.
        share: Estimate,
    },
}

impl Presence {
    /// The share of repetitions with the effect; `None` if they are not told apart.
    pub(crate) fn share(&self) -> Option<Estimate> {
        match self {
            Self::Mixed { share, .. } => Some(*share),
            Self::Alike | Self::Undecided => None,
        }
    }
}

impl Response {
    /// What each epoch costs, bursts and baselines alike: each with the stall of its own release, if
    /// it seems to have one (ns).
    pub(crate) fn costs(&self, epochs: &[Epoch]) -> Vec<f64> {
        let own = |epoch: &Epoch| {
            cost(epoch, self.horizon, release(epoch, self.horizon, self.plateau).as_ref())
        };
        epochs.iter().map(own).collect()
    }
}

impl Bin {
    fn is_slow(&self) -> bool {
        let (mean, error) = self.slowdown;
        mean > SMALLEST_SLOWDOWN && mean > STANDS_OUT * error
    }

    fn has_stalls(&self) -> bool {
        let (burst, baseline) = (self.stalls.0 as f64, self.stalls.1 as f64);
        // Counts of rare events: Poisson errors; and at least one repetition in twenty.
        burst - baseline > STANDS_OUT * (burst + baseline).sqrt()
            && burst - baseline > 0.05 * self.repetitions as f64
    }

    /// As a point of the outcome's curve.
    pub(crate) fn point(&self) -> CurvePoint {
        let (mean, error) = self.slowdown;
        let ratio = |slowdown: f64| 1.0 / (1.0 + slowdown);
        let ends = (ratio(mean + 1.96 * error), ratio(mean - 1.96 * error));
        let n = self.repetitions.max(1) as f64;
        CurvePoint {
            at_ns: self.at_ns,
            clock_ratio: Estimate { median: ratio(mean), ci95: ends },
            stall_share: (self.stalls.0 as f64 - self.stalls.1 as f64).max(0.0) / n,
        }
    }
}

/// Pair indices at which bins begin and end: 0, 1, 2, 3, 4, then growing by a quarter.
pub(crate) fn edges(pairs: usize) -> Vec<usize> {
    let mut edges = vec![0];
    let mut edge = 0;
    while edge < pairs {
        edge = (edge + 1 + edge / 4).min(pairs);
        edges.push(edge);
    }
    edges
}

/// Superposes the epochs.
pub(crate) fn bins(calibration: &Calibration, bursts: &[Epoch], baselines: &[Epoch]) -> Vec<Bin> {
    let pairs = bursts.iter().chain(baselines).map(|epoch| epoch.pairs.len()).min().unwrap_or(0);
    let bin = |first: usize, end: usize| {
        let mut differences = Vec::with_capacity(bursts.len());
        let mut stalls = (0, 0);
        for (burst, baseline) in bursts.iter().zip(baselines) {
            let (burst_mean, burst_stalled) = smooth_mean(burst, first, end);
            let (baseline_mean, baseline_stalled) = smooth_mean(baseline, first, end);
            differences.push(burst_mean - baseline_mean);
            stalls.0 += usize::from(burst_stalled);
            stalls.1 += usize::from(baseline_stalled);
        }
        let samples = Samples::new(differences);
        Bin {
            first,
            end,
            at_ns: (first + end + 1) as f64 / 2.0 * calibration.pair_ns,
            slowdown: samples.centre().unwrap_or((0.0, f64::INFINITY)),
            stalls,
            repetitions: bursts.len(),
        }
    };
    edges(pairs).windows(2).map(|edge| bin(edge[0], edge[1])).collect()
}

/// Mean relative excess of the undisturbed pairs, and whether any stalled.
fn smooth_mean(epoch: &Epoch, first: usize, end: usize) -> (f64, bool) {
    let (mut sum, mut count, mut stalled) = (0.0, 0.0, false);
    for pair in &epoch.pairs[first..end] {
        match pair.disturbance {
            Disturbance::None => {
                sum += pair.excess_ns;
                count += 1.0;
            }
            Disturbance::Stalled => stalled = true,
            Disturbance::Interrupted => {}
        }
    }
    (sum / count / epoch.reference_ns, stalled)
}

/// What a burst did to the code after it.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    /// The superposed epochs.
    pub(crate) bins: Vec<Bin>,
    /// Whether the burst did anything.
    pub(crate) effect: bool,
    /// How long after the burst was looked at (ns).
    pub(crate) horizon_ns: f64,
    /// Pairs that count for costs.
    horizon: usize,
    /// Level of the lowered clock: relative excess.
    plateau: f64,
    /// When the last trace of the effect was seen (ns); 0 without an effect.
    pub(crate) end_ns: f64,
    /// In which share of the repetitions the burst did something.
    pub(crate) presence: Presence,
    /// Cost of each repetition, less its baseline's (ns).
    pub(crate) extra_ns: Samples,
    /// Release of each repetition that has one (ns after the burst).
    pub(crate) release_ns: Samples,
    /// Stall of each repetition that has one (ns).
    pub(crate) stall_ns: Samples,
}

/// Analyses the epochs of one hardware thread.
pub(crate) fn analyse(
    calibration: &Calibration,
    bursts: &[Epoch],
    baselines: &[Epoch],
) -> Response {
    let all = superpose(calibration, bursts, baselines);
    let presence = presence(&all, bursts, baselines);
    let Presence::Mixed { with, .. } = &presence else {
        return Response { presence, ..all };
    };
    let of = |epochs: &[Epoch]| -> Vec<Epoch> {
        with.iter().filter_map(|&index| epochs.get(index).cloned()).collect()
    };
    let those = superpose(calibration, &of(bursts), &of(baselines));
    if those.effect { Response { presence, ..those } } else { all }
}

/// Epochs laid over each other as if they were of one kind.
fn superpose(calibration: &Calibration, bursts: &[Epoch], baselines: &[Epoch]) -> Response {
    let bins = bins(calibration, bursts, baselines);
    let end = end_of_effect(&bins);
    let least = calibration.pairs(LEAST_HORIZON_NS);
    let available = bins.last().map_or(0, |bin| bin.end);
    let horizon = (2 * end).max(least).min(available);
    let plateau = plateau(&bins, end);
    let releases: Vec<Option<Release>> = bursts
        .iter()
        .map(|burst| if end > 0 { release(burst, horizon, plateau) } else { None })
        .collect();
    let extra = bursts.iter().zip(baselines).zip(&releases).map(|((burst, baseline), release)| {
        cost(burst, horizon, release.as_ref()) - cost(baseline, horizon, None)
    });
    let extra_ns: Samples = extra.collect();
    // 99.9 %: one run in a thousand finds a cost where none is.
    let costs = extra_ns.interval(3.29).is_some_and(|(low, _)| low > 0.0)
        && extra_ns.quantile(0.5).is_some_and(|cost| cost > SMALLEST_COST_NS);
    let effect = end > 0 && costs;
    let of = |value: fn(&Release) -> f64| -> Samples {
        releases.iter().flatten().map(value).filter(|value| *value > 0.0).collect()
    };
    Response {
        effect,
        horizon,
        plateau,
        horizon_ns: horizon as f64 * calibration.pair_ns,
        end_ns: end as f64 * calibration.pair_ns,
        presence: Presence::Alike,
        release_ns: if effect { of(|release| release.at_ns) } else { Samples::default() },
        stall_ns: if effect { of(|release| release.stall_ns) } else { Samples::default() },
        extra_ns,
        bins,
    }
}

/// Tells repetitions with the effect from those without, by what they cost. Bursts and baselines
/// are looked at alike, each with its own release: as many bursts as baselines cost something by
/// chance.
fn presence(all: &Response, bursts: &[Epoch], baselines: &[Epoch]) -> Presence {
    let (burst_costs, baseline_costs) = (all.costs(bursts), all.costs(baselines));
    let quiet = Samples::new(baseline_costs.clone());
    let Some(typical) = quiet.quantile(0.5) else { return Presence::Alike };
    let away: Samples = quiet.values().iter().map(|cost| (cost - typical).abs()).collect();
    // 1.4826 median deviations are a standard deviation of normal errors.
    let deviation = 1.4826 * away.quantile(0.5).unwrap_or(f64::INFINITY);
    let threshold = typical + (APART * deviation).max(SMALLEST_COST_NS);
    let above = |costs: &[f64]| costs.iter().filter(|cost| **cost > threshold).count();
    let (hits, chance) = (above(&burst_costs), above(&baseline_costs));
    let with: Vec<usize> =
        (0..burst_costs.len()).filter(|&index| burst_costs[index] > threshold).collect();
    let middle = with.iter().map(|&index| burst_costs[index]).collect::<Samples>().quantile(0.5);
    // Two kinds, not the tail of one: those above lie well above.
    if middle.is_none_or(|middle| middle < typical + 2.0 * (threshold - typical)) {
        return Presence::Alike;
    }
    // A sign test: as many above in bursts as in baselines if there were no effect.
    let (hits, chance, all) = (hits as f64, chance as f64, burst_costs.len().max(1) as f64);
    if hits - chance < ((LEAST_WITH_EFFECT as f64) * (hits + chance)).sqrt() {
        let could_be = hits - chance > 0.02 * all;
        return if could_be { Presence::Undecided } else { Presence::Alike };
    }
    let share = (hits - chance) / all;
    let variance = |count: f64| (count + 0.5) / (all + 1.0) * (1.0 - count / (all + 1.0)) / all;
    let error = 1.96 * (variance(hits) + variance(chance)).sqrt();
    let ends = ((share - error).max(0.0), (share + error).min(1.0));
    Presence::Mixed { with, share: Estimate { median: share, ci95: ends } }
}

/// One past the last pair that shows the effect; 0 without one. A single bin that stands out alone
/// counts only among the first four, where effects of a few hundred nanoseconds are.
fn end_of_effect(bins: &[Bin]) -> usize {
    let slow = |index: usize| bins.get(index).is_some_and(Bin::is_slow);
    let stalls = |index: usize| bins.get(index).is_some_and(Bin::has_stalls);
    let shows = |&index: &usize| {
        stalls(index)
            || slow(index) && (index < 4 || slow(index - 1) || slow(index + 1) || stalls(index + 1))
    };
    (0..bins.len()).rev().find(shows).map_or(0, |index| bins[index].end)
}

/// The level of the lowered clock: the pair-weighted mean of the bins that stand out within the
/// first half of the effect.
fn plateau(bins: &[Bin], end: usize) -> f64 {
    let (mut sum, mut weight) = (0.0, 0.0);
    for bin in bins.iter().filter(|bin| bin.is_slow() && 2 * bin.first <= end) {
        let pairs = (bin.end.min(end.div_ceil(2).max(bin.first + 1)) - bin.first) as f64;
        sum += bin.slowdown.0 * pairs;
        weight += pairs;
    }
    if weight > 0.0 { sum / weight } else { 0.0 }
}

/// The return to the nominal clock in one repetition.
#[derive(Clone, Debug)]
struct Release {
    /// When (ns after the burst).
    at_ns: f64,
    /// The stall next to it, beyond the time of the pairs it fell into (ns); 0 if there is none.
    stall_ns: f64,
    /// The pairs whose stalls belong to it.
    reach: (usize, usize),
}

fn release(burst: &Epoch, horizon: usize, plateau: f64) -> Option<Release> {
    let pairs = &burst.pairs[..horizon.min(burst.pairs.len())];
    let change = if plateau > SMALLEST_SLOWDOWN {
        change_point(burst, pairs.len(), plateau)
    } else {
        // No lowered clock: the longest stall is all there is.
        let stalled = pairs.iter().enumerate();
        let stalled = stalled.filter(|(_, pair)| pair.disturbance == Disturbance::Stalled);
        stalled.max_by(|a, b| a.1.excess_ns.total_cmp(&b.1.excess_ns)).map(|(index, _)| index)?
    };
    let reach = (change.saturating_sub(STALL_REACH), (change + STALL_REACH).min(pairs.len()));
    let stalls = pairs[reach.0..reach.1].iter();
    let stalls = stalls.filter(|pair| pair.disturbance == Disturbance::Stalled);
    let stall_ns: f64 = stalls.clone().map(|pair| pair.excess_ns).sum();
    // The stall is the release; without one it lies where the pairs change.
    let longest = stalls.max_by(|a, b| a.excess_ns.total_cmp(&b.excess_ns));
    let at_ns = match (longest, pairs.get(change)) {
        (Some(stall), _) => stall.at_ns + burst.reference_ns / 2.0,
        (None, Some(pair)) => pair.at_ns,
        (None, None) => pairs.last()?.at_ns,
    };
    Some(Release { at_ns, stall_ns, reach })
}

/// The index that best splits pairs at `plateau` from pairs at zero.
fn change_point(epoch: &Epoch, pairs: usize, plateau: f64) -> usize {
    let (mut sum, mut best, mut change) = (0.0, 0.0, 0);
    for (index, pair) in epoch.pairs[..pairs].iter().enumerate() {
        if pair.disturbance == Disturbance::None {
            let slowdown = pair.excess_ns / epoch.reference_ns;
            sum += 2.0 * slowdown * plateau - plateau * plateau;
        }
        if sum > best {
            (best, change) = (sum, index + 1);
        }
    }
    change
}

/// The excess of the first `horizon` pairs, with the stalls of the release only (ns).
fn cost(epoch: &Epoch, horizon: usize, release: Option<&Release>) -> f64 {
    let counts = |index: usize| release.is_some_and(|r| (r.reach.0..r.reach.1).contains(&index));
    let pairs = epoch.pairs.iter().take(horizon).enumerate();
    pairs
        .map(|(index, pair)| match pair.disturbance {
            Disturbance::None => pair.excess_ns,
            Disturbance::Stalled if counts(index) => pair.excess_ns,
            Disturbance::Stalled | Disturbance::Interrupted => 0.0,
        })
        .sum()
}

/// A ratio over the pairs right after the burst, up to `until_ns`, against the baseline's: one
/// value for each repetition with the effect, 1 being nominal.
pub(crate) fn ratio_after(
    epochs: &Epochs,
    presence: &Presence,
    until_ns: f64,
    ratio: fn(&crate::epoch::Pair) -> f64,
) -> Samples {
    let middle = |epoch: &Epoch| {
        let near = epoch.pairs.iter().take_while(|pair| pair.at_ns < until_ns);
        let near = near.filter(|pair| pair.disturbance == Disturbance::None);
        near.map(ratio).collect::<Samples>().trimmed_mean(0.1).unwrap_or(f64::NAN)
    };
    let both = epochs.bursts.iter().zip(&epochs.baselines).enumerate();
    let counts = |index: &usize| match presence {
        Presence::Mixed { with, .. } => with.binary_search(index).is_ok(),
        Presence::Alike | Presence::Undecided => true,
    };
    both.filter(|(index, _)| counts(index))
        .map(|(_, (burst, baseline))| middle(baseline) / middle(burst))
        .collect()
}
