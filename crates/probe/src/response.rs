//! From superposed epochs to constants: whether there is an effect, how long it lasts, what it
//! costs, when the nominal clock returns, and whether the core stalls then.
//!
//! # Method
//!
//! 1. Pairs are grouped in bins that grow with time after the burst. In each bin, burst and
//!    baseline are compared repetition by repetition; a [`Bin`] holds mean and error of the
//!    difference. The effect ends with the last bin that stands out.
//! 2. Only clock windows count for how much longer pairs take, unless the burst slows issue more
//!    than the clock. The cost of a repetition is the sum of excess up to twice the length of the
//!    effect, less its baseline's.
//! 3. The release of a repetition is the change point that best separates pairs at the plateau's
//!    level from pairs at zero: the maximum of the running sum of `2 s p - p^2`, where s is a
//!    pair's relative excess and p the plateau (Page 1954, for two known means).
//! 4. A stall belongs to the effect if it lies next to the release. Other stalls are stolen time,
//!    and are left out on both sides.
//! 5. If the repetitions are of two kinds, with the effect and without ([`detection`]), steps 1 to
//!    4 are repeated on those with it.
//!
//! [`detection`]: crate::detection

use crate::calibration::Calibration;
use crate::detection::{Costs, Detection, SMALLEST_COST_NS};
use crate::epoch::{Disturbance, Epoch, Epochs, Seen};
use crate::outcome::CurvePoint;
use crate::stats::{Estimate, Samples};

/// Number of standard errors by which a bin must stand out. With some 40 bins, 4.5 keeps false
/// alarms below 1 in 3000 runs if errors are normal.
const STANDS_OUT: f64 = 4.5;

/// The smallest relative slow-down that counts as an effect of the clock: roughly half a bin of 100
/// MHz at 10 GHz. Smaller differences come from code placement.
const SMALLEST_SLOWDOWN: f64 = 0.004;

/// Smallest slow-down of the issue windows right after a burst at which their own time counts.
/// Smaller differences lie within the noise of code placement and of other hardware threads.
const SLOWER_ISSUE: f64 = 0.02;

/// Number of pairs on each side of the release in which its stall may lie (4 us).
const STALL_REACH: usize = 10;

/// Number of bins in a row that may show nothing while the effect lasts. Time doubles over three
/// bins.
const PAUSE: usize = 3;

/// The shortest time after a burst that is examined (ns).
pub(crate) const LEAST_HORIZON_NS: f64 = 20_000.0;

/// One bin of the superposed epochs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bin {
    /// Number of the first pair.
    pub(crate) first: usize,
    /// One past the last pair.
    pub(crate) end: usize,
    /// Middle (ns after the burst).
    pub(crate) at_ns: f64,
    /// Relative slow-down against the baseline: mean and standard error.
    pub(crate) slowdown: (f64, f64),
    /// Repetitions with a stall in the bin: of the burst, and of the baseline.
    pub(crate) stalls: (usize, usize),
    /// Number of repetitions compared.
    pub(crate) repetitions: usize,
}

impl Bin {
    fn is_slow(&self) -> bool {
        let (mean, error) = self.slowdown;
        mean > SMALLEST_SLOWDOWN && mean > STANDS_OUT * error
    }

    fn has_stalls(&self) -> bool {
        let (burst, baseline) = (self.stalls.0 as f64, self.stalls.1 as f64);
        // Counts of rare events have Poisson errors. The stalls must also be in at least one
        // repetition in twenty.
        burst - baseline > STANDS_OUT * (burst + baseline).sqrt()
            && burst - baseline > 0.05 * self.repetitions as f64
    }

    /// The bin as a point of the outcome's curve.
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

/// Pair indices at which bins start and end: 0, 1, 2, 3, 4, then growing by a quarter.
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

/// Mean relative excess of the undisturbed pairs, and whether any pair stalled.
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

/// Effect of a burst on the code after it.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    /// The superposed epochs.
    pub(crate) bins: Vec<Bin>,
    /// Whether the burst has an effect.
    pub(crate) effect: bool,
    /// Length of the examined time after the burst (ns).
    pub(crate) horizon_ns: f64,
    /// Number of pairs that count for costs.
    horizon: usize,
    /// Level of the lowered clock, as relative excess.
    plateau: f64,
    /// Whether the issue windows' own time counts.
    issue: bool,
    /// Time of the last trace of the effect (ns); 0 without an effect.
    pub(crate) end_ns: f64,
    /// The bursts that have the effect.
    pub(crate) detection: Detection,
    /// Cost of each repetition, less its baseline's (ns).
    pub(crate) extra_ns: Samples,
    /// Mean cost of a burst over all repetitions, each cost limited to a quarter of the horizon
    /// (ns); `None` with fewer than two.
    pub(crate) mean_ns: Option<Estimate>,
    /// Release of each repetition that has one (ns after the burst).
    pub(crate) release_ns: Samples,
    /// Stall of each repetition that has one (ns).
    pub(crate) stall_ns: Samples,
}

impl Response {
    /// Cost of each epoch, with the stall of its own release if it seems to have one. Epochs
    /// without a burst are treated alike.
    pub(crate) fn costs(&self, seen: &Seen) -> Costs {
        let own = |epoch: &Epoch| {
            cost(epoch, self.horizon, release(epoch, self.horizon, self.plateau).as_ref())
        };
        let of = |epoch: &Epoch| if self.issue { own(&epoch.with_issue()) } else { own(epoch) };
        let all = |epochs: &[Epoch]| epochs.iter().map(of).collect();
        Costs {
            most: self.horizon_ns / 4.0,
            bursts: all(&seen.bursts),
            baselines: all(&seen.baselines),
            quiet: seen.quiet.iter().map(|epochs| all(epochs)).collect(),
        }
    }

    /// Cost of a burst with the effect (ns). The interval covers the doubt about which bursts have
    /// it.
    pub(crate) fn extra(&self) -> Option<Estimate> {
        let own = self.extra_ns.estimate()?;
        let Some(cost) = self.detection.cost else { return Some(own) };
        let ci95 = (own.ci95.0.min(cost.ci95.0), own.ci95.1.max(cost.ci95.1));
        Some(Estimate { ci95, ..own })
    }

    /// The share of bursts with the effect; without an effect, the share that may have one unseen.
    /// `None` if all bursts have it.
    pub(crate) fn share(&self) -> Option<Estimate> {
        self.detection.share.filter(|_| self.detection.with.is_some() || !self.effect)
    }

    /// The largest mean cost that an effect may have and stay unseen; if there is an effect, the
    /// largest cost that it may have. Both at 95 % (ns).
    pub(crate) fn bound_ns(&self) -> f64 {
        let typical = self.extra().map_or(f64::NAN, |extra| extra.bound());
        let mean = self.mean_ns.map_or(f64::NAN, |mean| mean.bound());
        if self.effect { typical } else { typical.max(mean) }
    }
}

/// Analyses the epochs of one hardware thread.
pub(crate) fn analyse(calibration: &Calibration, seen: &Seen) -> Response {
    let Seen { bursts, baselines, .. } = seen;
    let issue = slows_issue(bursts, baselines);
    let all = superpose(calibration, bursts, baselines, issue);
    let detection = all.costs(seen).detection();
    let of = |epochs: &[Epoch], with: &[usize]| -> Vec<Epoch> {
        with.iter().filter_map(|&index| epochs.get(index).cloned()).collect()
    };
    let those = detection
        .with
        .as_ref()
        .map(|with| superpose(calibration, &of(bursts, with), &of(baselines, with), issue));
    let (found, with, cost) = match those.filter(|those| those.effect) {
        Some(those) => (those, detection.with, detection.cost),
        None => (all, None, None),
    };
    let mean_ns = found.costs(seen).mean();
    Response { mean_ns, detection: Detection { with, cost, ..detection }, ..found }
}

/// Whether the burst slows the issue of the code after it more than the clock does.
fn slows_issue(bursts: &[Epoch], baselines: &[Epoch]) -> bool {
    let mean = |epoch: &Epoch| {
        let near = epoch.pairs.iter().take(2 * STALL_REACH);
        let near = near.filter(|pair| pair.disturbance == Disturbance::None);
        let slower: Vec<f64> = near.map(|pair| pair.issue_excess_ns / epoch.reference_ns).collect();
        slower.iter().sum::<f64>() / slower.len() as f64
    };
    let both = bursts.iter().zip(baselines);
    let slower: Samples = both.map(|(burst, baseline)| mean(burst) - mean(baseline)).collect();
    slower.centre().is_some_and(|(mean, error)| mean > SLOWER_ISSUE.max(STANDS_OUT * error))
}

/// Superposes epochs as if they were all of one kind.
fn superpose(
    calibration: &Calibration,
    bursts: &[Epoch],
    baselines: &[Epoch],
    issue: bool,
) -> Response {
    if issue {
        let whole = |epochs: &[Epoch]| epochs.iter().map(Epoch::with_issue).collect::<Vec<_>>();
        let by_clock = superpose(calibration, &whole(bursts), &whole(baselines), false);
        return Response { issue, ..by_clock };
    }
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
    // 99.9 %: one run in a thousand finds a cost where there is none.
    let costs = extra_ns.interval(0.999).is_some_and(|(low, _)| low > 0.0)
        && extra_ns.quantile(0.5).is_some_and(|cost| cost > SMALLEST_COST_NS);
    let effect = end > 0 && costs;
    let of = |value: fn(&Release) -> f64| -> Samples {
        releases.iter().flatten().map(value).filter(|value| *value > 0.0).collect()
    };
    Response {
        effect,
        horizon,
        plateau,
        issue,
        horizon_ns: horizon as f64 * calibration.pair_ns,
        end_ns: end as f64 * calibration.pair_ns,
        detection: Detection { with: None, share: None, cost: None },
        mean_ns: None,
        release_ns: if effect { of(|release| release.at_ns) } else { Samples::default() },
        stall_ns: if effect { of(|release| release.stall_ns) } else { Samples::default() },
        extra_ns,
        bins,
    }
}

/// One past the last pair that shows the effect; 0 without an effect. The effect must start within
/// the least horizon, and continue without a pause of more than [`PAUSE`] bins: where the clock
/// wanders by itself, distant bins stand out by chance. A bin that stands out alone counts only
/// among the first four, where effects of a few hundred nanoseconds are.
fn end_of_effect(bins: &[Bin]) -> usize {
    let slow = |index: usize| bins.get(index).is_some_and(Bin::is_slow);
    let stalls = |index: usize| bins.get(index).is_some_and(Bin::has_stalls);
    let shows = |index: usize| {
        stalls(index)
            || slow(index) && (index < 4 || slow(index - 1) || slow(index + 1) || stalls(index + 1))
    };
    let (mut end, mut pause) = (0, 0);
    for (index, bin) in bins.iter().enumerate() {
        if shows(index) {
            (end, pause) = (bin.end, 0);
        } else {
            pause += 1;
            let begins_here = end == 0 && bin.at_ns < LEAST_HORIZON_NS;
            if pause > PAUSE && !begins_here {
                break;
            }
        }
    }
    end
}

/// The level of the lowered clock: the mean, weighted by pairs, of the bins that stand out within
/// the first half of the effect.
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
    /// Time of the return (ns after the burst).
    at_ns: f64,
    /// The stall next to it, without the time of the pairs that it fell into (ns); 0 if there is
    /// none.
    stall_ns: f64,
    /// Range of the pairs whose stalls belong to it.
    reach: (usize, usize),
}

fn release(burst: &Epoch, horizon: usize, plateau: f64) -> Option<Release> {
    let pairs = &burst.pairs[..horizon.min(burst.pairs.len())];
    let change = if plateau > SMALLEST_SLOWDOWN {
        change_point(burst, pairs.len(), plateau)
    } else {
        // Without a lowered clock, the longest stall is the release.
        let stalled = pairs.iter().enumerate();
        let stalled = stalled.filter(|(_, pair)| pair.disturbance == Disturbance::Stalled);
        stalled.max_by(|a, b| a.1.excess_ns.total_cmp(&b.1.excess_ns)).map(|(index, _)| index)?
    };
    let reach = (change.saturating_sub(STALL_REACH), (change + STALL_REACH).min(pairs.len()));
    let stalls = pairs[reach.0..reach.1].iter();
    let stalls = stalls.filter(|pair| pair.disturbance == Disturbance::Stalled);
    let stall_ns: f64 = stalls.clone().map(|pair| pair.excess_ns).sum();
    // A stall is the release; without one, the release is where the pairs change.
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

/// The excess of the first `horizon` pairs (ns). Only the release's stalls count.
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
/// value for each repetition with the effect; 1 is nominal.
pub(crate) fn ratio_after(
    epochs: &Epochs,
    detection: &Detection,
    until_ns: f64,
    ratio: fn(&crate::epoch::Pair) -> f64,
) -> Samples {
    let middle = |epoch: &Epoch| {
        let near = epoch.pairs.iter().take_while(|pair| pair.at_ns < until_ns);
        let near = near.filter(|pair| pair.disturbance == Disturbance::None);
        near.map(ratio).collect::<Samples>().trimmed_mean(0.1).unwrap_or(f64::NAN)
    };
    let both = epochs.own.bursts.iter().zip(&epochs.own.baselines).enumerate();
    let counts = |index: &usize| {
        detection.with.as_ref().is_none_or(|with| with.binary_search(index).is_ok())
    };
    both.filter(|(index, _)| counts(index))
        .map(|(_, (burst, baseline))| middle(baseline) / middle(burst))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bins of 0.4 us pairs. Bins for which `slow` returns true are 5 % slower, measured to 0.1 %.
    fn bins_with(slow: impl Fn(f64) -> bool) -> Vec<Bin> {
        let edges = edges(10_000);
        let bin = |edge: &[usize]| {
            let at_ns = (edge[0] + edge[1]) as f64 / 2.0 * 400.0;
            let slowdown = (if slow(at_ns) { 0.05 } else { 0.0 }, 0.001);
            Bin { first: edge[0], end: edge[1], at_ns, slowdown, stalls: (0, 0), repetitions: 100 }
        };
        edges.windows(2).map(bin).collect()
    }

    fn end_ns(slow: impl Fn(f64) -> bool) -> f64 {
        end_of_effect(&bins_with(slow)) as f64 * 400.0
    }

    #[test]
    fn effect_ends_with_the_last_slow_bin() {
        let end = end_ns(|at| at < 600_000.0);
        assert!((500_000.0..760_000.0).contains(&end), "{end}");
        assert_eq!(end_ns(|_| false), 0.0);
    }

    #[test]
    fn effect_may_begin_after_a_while() {
        assert!(end_ns(|at| (14_000.0..600_000.0).contains(&at)) > 500_000.0);
    }

    #[test]
    fn clock_that_wanders_far_away_is_no_effect() {
        assert_eq!(end_ns(|at| at > 1e6), 0.0);
        assert!(end_ns(|at| !(3_000.0..=1e6).contains(&at)) < 4_000.0);
    }
}
