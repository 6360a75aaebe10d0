//! A long stretch of the kernel, from its first instruction to the settled clock: the thesis's
//! DOWNCLOCK mode (paper 000 §3.2.5).
//!
//! The clock does not always stay where the license takes it: on Emerald Rapids it is 11 % lower
//! for some 0.3 ms, and then nominal again although the code continues. So the lowest level and the
//! settled one are measured separately. On a machine where some stretches show an effect, stretches
//! that show none are counted and left out. Unlike in `response`, there are no baselines to compare
//! them with; the criterion is half the mean's depth. So an effect in few stretches is missed if
//! the mean does not stand out.

use std::sync::Arc;

use super::Mode;
use super::ramp::{
    COARSE_NS, Coarse, FINE_NS, FINE_WINDOWS, Facts, STANDS_OUT, STRETCH, Stretch,
    settled_per_cycle, some_stretches, stretches, throttled_level, throttling_at,
};
use crate::kernel;
use crate::lab::{Lab, ModeError, disturbed};
use crate::outcome::{CurvePoint, Detail, Downclock, Lowest, Outcome, Quantity, Step};
use crate::response::edges;
use crate::stats::{Estimate, Samples, share95};

/// Time for which the kernel runs to reach the settled clock (ns): twice the 500 us that Intel
/// documents (paper 000 §3), and short against the times in which the clock of a shared machine
/// wanders.
const NEAR_NS: f64 = 1e6;

/// Time for which it runs to see whether the clock changes later (ns), as Zen 5's does because of
/// power.
const FAR_NS: f64 = 60e6;

/// Maximum number of repetitions of those long runs.
const FAR_REPETITIONS: usize = 12;

/// The smallest step of the settled clock that counts. Licenses come in bins of 100 MHz, some 2 %
/// of the clock. Within the tens of milliseconds of a stretch, the clock drifts by nearly 1 % on
/// shared machines.
pub(crate) const SMALLEST_STEP: f64 = 0.01;

/// Number of turns in which stretches of the kernel and of scalar code follow each other.
const TURNS: usize = 4;

/// Number of stretches in each turn of either.
const TURN: usize = 4;

/// Share of the stretches above which all count as of one kind.
const ALMOST_ALL: f64 = 0.95;

/// Measures the kernel.
pub(crate) fn measure(lab: &mut Lab<'_>) -> Result<Outcome, ModeError> {
    let fine = (FINE_NS, FINE_WINDOWS);
    let repetitions = if lab.is_quick() { 48 } else { 120 };
    let repetitions = repetitions.min(lab.settings.repetitions);
    let (near, mut facts) = stretches(lab, fine, NEAR_NS, repetitions)?;
    let mut found = (near, NEAR_NS);
    if !lab.is_quick() {
        let (far, far_facts) = stretches(lab, fine, FAR_NS, repetitions.min(FAR_REPETITIONS))?;
        facts.add(far_facts);
        if goes_on(&found.0, &far) && !is_by_itself(lab, &far, FAR_NS, &mut facts)? {
            found = (far, FAR_NS);
        }
    }
    let (found, observed_ns) = found;
    let throttling = throttled_level(&found).and_then(|level| throttling_at(level, &found));
    let is_own = throttling.is_some()
        || observed_ns == FAR_NS
        || !is_by_itself(lab, &found, NEAR_NS, &mut facts)?;
    let repetitions = found.len();
    let (found, share) = if is_own { with_effect(lab, found) } else { (found, None) };
    let curve = curve(lab, &found);
    let course = if is_own { Course::of(&curve, &found) } else { None };
    let lowered = course.is_some();
    let until =
        course.as_ref().map_or(0.0, |course| course.lowest_at.quantile(0.95).unwrap_or(0.0));
    let early = |stretch: &Stretch| -> f64 {
        let stalls = stretch.stalls.iter().filter(|(at, _)| *at < until + 10_000.0);
        stalls.map(|(_, ns)| ns).sum()
    };
    let stalls: Samples = found.iter().map(early).filter(|ns| lowered && *ns > 0.0).collect();
    let ratios: Samples = found.iter().map(|stretch| stretch.clock_ratio).collect();
    let per_cycle = found.iter().map(|stretch| stretch.instructions_per_cycle).collect();
    let (Some(clock_ratio), Some(instructions_per_cycle)) =
        (Quantity::new(ratios), Quantity::new(per_cycle))
    else {
        return Err(disturbed(STRETCH));
    };
    let (low, high) = clock_ratio.estimate.ci95;
    let (settle_ns, lowest) = course.map(Course::told).unwrap_or_default();
    let detail = Downclock {
        observed_ns,
        effect_share: share.filter(|_| lowered),
        settle_ns,
        lowest,
        stall_ns: (2 * stalls.len() >= found.len()).then(|| Quantity::new(stalls)).flatten(),
        throughput: throughput(&found),
        clock_ratio,
        instructions_per_cycle,
        steps: if lowered { steps(&curve, &found) } else { steps(&[], &found) },
        curve,
        throttling,
    };
    Ok(Outcome {
        repetitions,
        disturbed_windows: facts.disturbed,
        preemptions: facts.preemptions,
        effect: lowered || detail.throttling.is_some(),
        // The most that the stretch can lose to a different clock.
        bound_ns: (1.0 - low).abs().max((1.0 - high).abs()) * observed_ns,
        horizon_ns: observed_ns,
        ..lab.outcome(Mode::Downclock, Detail::Downclock(detail))
    })
}

/// Whether the clock changes after the end of the `near` stretches.
fn goes_on(near: &[Stretch], far: &[Stretch]) -> bool {
    let settled = |stretches: &[Stretch]| {
        stretches.iter().map(|stretch| stretch.clock_ratio).collect::<Samples>().centre()
    };
    let (Some((near, near_error)), Some((far, far_error))) = (settled(near), settled(far)) else {
        return false;
    };
    let error = near_error.hypot(far_error);
    (far - near).abs() > SMALLEST_STEP.max(STANDS_OUT * error)
}

/// Whether the clock that the `found` stretches lower falls in scalar code, too, by more than half
/// as much. On a shared machine it also falls by itself, for seconds or for a part of each stretch.
/// So if it is lowered, stretches of the kernel and of scalar code follow each other, a few at a
/// time. Means of both are compared, since an effect may be in few stretches.
fn is_by_itself(
    lab: &mut Lab<'_>,
    found: &[Stretch],
    observed_ns: f64,
    facts: &mut Facts,
) -> Result<bool, ModeError> {
    let Some(low) = Low::of(&curve(lab, found)) else { return Ok(false) };
    let own = Arc::clone(&lab.kernel);
    let scalar = Arc::new(kernel::stand_in());
    let mut clocks = [Vec::new(), Vec::new()];
    for _ in 0..TURNS {
        for (code, clocks) in [&own, &scalar].into_iter().zip(&mut clocks) {
            // What counters count is the kernel's alone.
            let counts = lab.counts.clone();
            lab.kernel = Arc::clone(code);
            let turn = some_stretches(lab, (FINE_NS, FINE_WINDOWS), observed_ns, TURN);
            lab.kernel = Arc::clone(&own);
            lab.counts = counts;
            let (turn, more) = turn?;
            facts.add(more);
            clocks.extend(turn.iter().map(|stretch| low.clock(stretch)));
        }
    }
    let [kernel, scalar] = clocks.map(|clocks| clocks.into_iter().collect::<Samples>().centre());
    let (Some((kernel, _)), Some((scalar, _))) = (kernel, scalar) else { return Ok(false) };
    Ok(scalar - kernel < (1.0 - low.ratio) / 2.0)
}

/// The stretches whose clock is lowered at all, and their share. Returns all stretches if none is,
/// or nearly all are.
fn with_effect(lab: &Lab<'_>, all: Vec<Stretch>) -> (Vec<Stretch>, Option<Estimate>) {
    let Some(low) = Low::of(&curve(lab, &all)) else { return (all, None) };
    let half = f64::midpoint(1.0, low.ratio);
    let marks = all.iter().map(|stretch| f64::from(u8::from(low.clock(stretch) < half)));
    let share = share95(&marks.collect::<Vec<f64>>());
    let (with, without): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|stretch| low.clock(stretch) < half);
    if share.is_none_or(|share| share.median > ALMOST_ALL) || with.len() < 4 {
        return (with.into_iter().chain(without).collect(), None);
    }
    (with, share)
}

/// The lowest level of the clock.
#[derive(Clone, Debug)]
struct Low {
    /// Ratio to nominal.
    ratio: f64,
    /// The time in which the clock is surely there: first and last point (ns after the first
    /// instruction).
    at_ns: (f64, f64),
}

impl Low {
    /// The lowest level of a curve that stands out, in two points or more that follow each other: a
    /// single one is an accident, or the way there. `None` if there is none.
    fn of(curve: &[CurvePoint]) -> Option<Self> {
        let depth = |point: &CurvePoint| 1.0 - point.clock_ratio.median;
        let error = |point: &CurvePoint| point.clock_ratio.half_width() / 1.96;
        let stands_out =
            |point: &CurvePoint| depth(point) > SMALLEST_STEP.max(STANDS_OUT * error(point));
        let level = |at: usize| {
            let ratio = curve[at].clock_ratio.median;
            let same = |index: &usize| {
                (curve[*index].clock_ratio.median - ratio).abs() < SMALLEST_STEP / 2.0
            };
            let first = (0..at).rev().take_while(same).last().unwrap_or(at);
            let last = (at + 1..curve.len()).take_while(same).last().unwrap_or(at);
            (last > first).then(|| Self { ratio, at_ns: (curve[first].at_ns, curve[last].at_ns) })
        };
        let levels = (0..curve.len()).filter(|&at| stands_out(&curve[at])).filter_map(level);
        levels.min_by(|a, b| a.ratio.total_cmp(&b.ratio))
    }

    /// The clock of one stretch during that time.
    fn clock(&self, stretch: &Stretch) -> f64 {
        let (begin, end) = self.at_ns;
        let within = stretch.coarse.iter().filter(|w| (begin..=end).contains(&w.clock_at_ns));
        let clocks: Samples = within.map(|window| window.clock).collect();
        clocks.trimmed_mean(0.1).unwrap_or(f64::NAN)
    }
}

/// Course of the clock over time.
#[derive(Clone, Debug)]
struct Course {
    /// Time at which the lowest level is reached, one value for each stretch (ns).
    lowest_at: Samples,
    /// The lowest level.
    lowest: Samples,
    /// Time at which the settled level is reached; `None` if the lowest level is the settled one.
    settled_at: Option<Samples>,
}

impl Course {
    /// `None` if the clock does not change.
    fn of(curve: &[CurvePoint], stretches: &[Stretch]) -> Option<Self> {
        let low = Low::of(curve)?;
        let settled: Samples = stretches.iter().map(|stretch| stretch.clock_ratio).collect();
        let settled = settled.quantile(0.5)?;
        let times = |range: std::ops::RangeInclusive<f64>, from: f64, to: f64| -> Samples {
            stretches.iter().map(|stretch| change_at(stretch, range.clone(), from, to)).collect()
        };
        let comes_back = settled - low.ratio > SMALLEST_STEP;
        Some(Self {
            lowest_at: times(0.0..=low.at_ns.1, 1.0, low.ratio),
            lowest: stretches.iter().map(|stretch| low.clock(stretch)).collect(),
            settled_at: comes_back.then(|| times(low.at_ns.0..=f64::MAX, low.ratio, settled)),
        })
    }

    /// The outcome's form: the time at which the clock is settled, and the lowest level if it
    /// differs.
    fn told(self) -> (Option<Quantity>, Option<Lowest>) {
        let reached = Quantity::new(self.lowest_at);
        let Some(settled_at) = self.settled_at else { return (reached, None) };
        let lowest = reached.zip(Quantity::new(self.lowest));
        let lowest = lowest.map(|(after_ns, clock_ratio)| Lowest { after_ns, clock_ratio });
        (Quantity::new(settled_at), lowest)
    }
}

/// Time at which the clock of one stretch changes from one level to the other, within a range of
/// times: the change point between the two (ns). At the earliest the first clock window.
fn change_at(stretch: &Stretch, range: std::ops::RangeInclusive<f64>, from: f64, to: f64) -> f64 {
    let seen = |window: &&Coarse| window.clock.is_finite() && range.contains(&window.clock_at_ns);
    let windows: Vec<&Coarse> = stretch.coarse.iter().filter(seen).collect();
    let (mut sum, mut best) = (0.0, 0.0);
    let mut at = windows.first().map_or(f64::NAN, |window| window.clock_at_ns);
    for (index, window) in windows.iter().enumerate() {
        // A window near `from` counts for it, one near `to` against it.
        sum += (window.clock - to) / (from - to) * 2.0 - 1.0;
        if sum > best {
            best = sum;
            at = windows.get(index + 1).map_or(window.at_ns, |next| next.clock_at_ns);
        }
    }
    at
}

/// Clock over time, in growing bins.
fn curve(lab: &Lab<'_>, stretches: &[Stretch]) -> Vec<CurvePoint> {
    let windows = stretches.iter().map(|stretch| stretch.coarse.len()).min().unwrap_or(0);
    let window_ns = COARSE_NS + lab.calibration.clock_ns;
    let point = |first: usize, end: usize| {
        let mean = |stretch: &Stretch| {
            let clocks: Samples = stretch.coarse[first..end].iter().map(|w| w.clock).collect();
            clocks.trimmed_mean(0.1).unwrap_or(f64::NAN)
        };
        let at: Samples = stretches.iter().map(|stretch| stretch.coarse[first].at_ns).collect();
        let (mean, error) =
            stretches.iter().map(mean).collect::<Samples>().centre().unwrap_or((1.0, 1.0));
        let until = (end - first) as f64 * window_ns;
        let begin = at.quantile(0.5).unwrap_or(0.0);
        let stalled = stretches.iter().filter(|stretch| {
            stretch.stalls.iter().any(|(at, _)| (begin..begin + until).contains(at))
        });
        CurvePoint {
            at_ns: begin + until / 2.0,
            clock_ratio: Estimate {
                median: mean,
                ci95: (mean - 1.96 * error, mean + 1.96 * error),
            },
            stall_share: stalled.count() as f64 / stretches.len() as f64,
        }
    };
    edges(windows).windows(2).map(|edge| point(edge[0], edge[1])).collect()
}

/// Throughput over time: fine windows at the start, then bins of coarse ones.
fn throughput(stretches: &[Stretch]) -> Vec<(f64, f64)> {
    let settled = settled_per_cycle(stretches);
    let fine = stretches.iter().map(|stretch| stretch.fine.len()).min().unwrap_or(0);
    let coarse = stretches.iter().map(|stretch| stretch.coarse.len()).min().unwrap_or(0);
    let median = |values: &mut dyn Iterator<Item = f64>| values.collect::<Samples>().quantile(0.5);
    let mut points = Vec::new();
    for index in 0..fine {
        let at = median(&mut stretches.iter().map(|stretch| stretch.fine[index].0));
        let slow = median(&mut stretches.iter().map(|stretch| stretch.fine[index].1));
        points.extend(at.zip(slow).map(|(at, slow)| (at, settled / (1.0 + slow))));
    }
    for edge in edges(coarse).windows(2) {
        let windows = || stretches.iter().flat_map(|stretch| &stretch.coarse[edge[0]..edge[1]]);
        let at = median(&mut windows().map(|window| window.at_ns));
        let slow = median(&mut windows().map(|window| window.slowness));
        points.extend(at.zip(slow).map(|(at, slow)| (at, settled / (1.0 + slow))));
    }
    points
}

/// The levels of the clock in order. A new one starts where a point of the curve and the next one
/// both differ from the level so far.
fn steps(curve: &[CurvePoint], stretches: &[Stretch]) -> Vec<Step> {
    let per_cycle = settled_per_cycle(stretches);
    let step = |at_ns, clock_ratio| Step { at_ns, clock_ratio, instructions_per_cycle: per_cycle };
    let mut steps = vec![step(0.0, 1.0)];
    let mut level = 1.0;
    for pair in curve.windows(2) {
        let differs = |point: &CurvePoint| {
            let error = point.clock_ratio.half_width() / 1.96;
            let away = (point.clock_ratio.median - level).abs();
            away > SMALLEST_STEP && away > STANDS_OUT * error
        };
        if differs(&pair[0]) && differs(&pair[1]) {
            level = pair[1].clock_ratio.median;
            steps.push(step(pair[0].at_ns, level));
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(ratios: &[f64]) -> Vec<CurvePoint> {
        let point = |(at, &ratio): (u32, &f64)| CurvePoint {
            at_ns: f64::from(at),
            clock_ratio: Estimate { median: ratio, ci95: (ratio - 0.003, ratio + 0.003) },
            stall_share: 0.0,
        };
        (0..).zip(ratios).map(point).collect()
    }

    #[test]
    fn a_level_has_more_than_one_point() {
        // As of tile code on a Xeon with AMX, whose first windows are slower still.
        let low = Low::of(&curve(&[0.81, 0.83, 0.85, 0.851, 0.852])).unwrap();
        assert_eq!((low.ratio, low.at_ns), (0.85, (2.0, 4.0)));
        assert!(Low::of(&curve(&[1.0, 0.8, 1.0, 1.0])).is_none());
    }
}
