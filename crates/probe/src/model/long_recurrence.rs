//! How long bursts that recur slow the code between them, from the recurrence of bursts of several
//! lengths.
//!
//! On Emerald Rapids the slow-down falls abruptly with the gap: bursts of 10 000 instructions slow
//! code by 7 % in gaps up to some 4 us and not at all in gaps from 7 us on, those of 30 000 up to
//! 16 us, and those of 65 536 by 2.5 % up to milliseconds. So it is fitted as one step or two, by
//! weighted least squares.

use dimmer_processor::model::{self, Sourced};
use dimmer_processor::units::{LicenseLevel, nearest};

use super::source;
use crate::outcome::{Detail, Gap, Outcome, Recurrence};
use crate::stats::Estimate;

/// Smallest slow-down of a step: less than one step of the clock.
const SMALLEST: f64 = 0.004;

/// Minimum number of gaps at which code is surely slower than by the other values of the model.
const FEWEST_GAPS: usize = 3;

/// By how much a second step must lower the sum of squares, in units of the errors, so that it is
/// more than chance: the 99 % point of chi squared with two degrees of freedom.
const BETTER: f64 = 9.21;

/// Within which excess of that sum a step is still likely: the 95 % point with one degree.
const LIKELY: f64 = 3.84;

/// By how much gaps and slow-downs of two lengths of bursts may differ and count as the same
/// (relative).
const SAME: f64 = 0.15;

/// What short bursts cost, by the other values of the model.
pub(super) struct Usual {
    /// Code is slower by `kept` in gaps below this (ns).
    pub(super) kept_below_ns: f64,
    /// A slow-down (a share).
    pub(super) kept: f64,
    /// What the burst costs in longer gaps (ns).
    pub(super) episode_ns: f64,
}

/// A slow-down at one gap.
#[derive(Clone, Copy, Debug)]
struct Point {
    gap_ns: f64,
    /// Without the cost of an isolated short burst.
    slowdown: f64,
    /// The part of it that short bursts cause as well.
    usual: f64,
    /// Its standard error.
    error: f64,
}

/// A fit of steps.
#[derive(Clone, Debug)]
struct Fit {
    /// The number of points before the end of each step, and its slow-down, by rising gap.
    steps: Vec<(usize, f64)>,
    /// The sum of squares, in units of the errors.
    squares: f64,
}

/// A step: the gap up to which code is slower (ns), and by which share.
#[derive(Clone, Copy, Debug)]
struct Step {
    gap_ns: Estimate,
    slowdown: Estimate,
}

/// The recurrences of bursts of `level` that are longer than the shortest of these outcomes, all of
/// one kernel. Those of longer bursts are left out if shorter ones cause as much.
///
/// A burst counts as long from the length that was measured; its interval begins at the next
/// shorter one.
pub(super) fn recurrences(
    outcomes: &[&Outcome],
    level: LicenseLevel,
    usual: &Usual,
) -> Vec<model::LongRecurrence> {
    let found = outcomes.iter().filter_map(|outcome| match &outcome.detail {
        Detail::Recurrence(found) => Some((*outcome, found)),
        _ => None,
    });
    let mut found: Vec<(&Outcome, &Recurrence)> = found.collect();
    let Some(kernel) = found.first().map(|(outcome, _)| outcome.kernel.clone()) else {
        return Vec::new();
    };
    found.retain(|(outcome, _)| outcome.kernel == kernel);
    found.sort_by_key(|(_, found)| found.burst_instructions);
    let mut all: Vec<model::LongRecurrence> = Vec::new();
    for pair in found.windows(2) {
        let [(_, shorter), (outcome, longer)] = pair else { continue };
        let (shorter_ns, burst_ns) = (full_speed_ns(shorter), full_speed_ns(longer));
        if !outcome.effect || burst_ns <= shorter_ns {
            continue;
        }
        let source =
            format!("{}, bursts of {} instructions", source(outcome), longer.burst_instructions);
        for step in steps(&points(longer, usual)) {
            let is_known = |known: &model::LongRecurrence| {
                known.gap_ns.value as f64 >= step.gap_ns.median * (1.0 - SAME)
                    && known.slowdown.value >= step.slowdown.median * (1.0 - SAME)
            };
            if all.iter().any(is_known) {
                continue;
            }
            let time = |ns: Estimate| {
                Sourced::new(nearest(ns.median), source.clone())
                    .with_interval(nearest(ns.ci95.0), nearest(ns.ci95.1))
            };
            let rounded = |share: f64| (share.clamp(0.0, 1.0) * 1e4).round() / 1e4;
            let Step { gap_ns, slowdown: Estimate { median, ci95 } } = step;
            all.push(model::LongRecurrence {
                level: Sourced::new(level, source.clone()),
                burst_ns: time(Estimate { median: burst_ns, ci95: (shorter_ns, burst_ns) }),
                gap_ns: time(gap_ns),
                slowdown: Sourced::new(rounded(median), source.clone())
                    .with_interval(rounded(ci95.0), rounded(ci95.1)),
            });
        }
    }
    all
}

/// How long a burst takes at full speed (ns).
fn full_speed_ns(found: &Recurrence) -> f64 {
    let bursts = found.gaps.iter().map(|gap| gap.burst_ns.median).filter(|ns| ns.is_finite());
    bursts.reduce(f64::min).unwrap_or(0.0)
}

/// The slow-downs by rising gap.
fn points(found: &Recurrence, usual: &Usual) -> Vec<Point> {
    let point = |gap: &Gap| {
        let gap_ns = gap.gap_us * 1000.0;
        let is_kept = gap_ns < usual.kept_below_ns;
        let episode = if is_kept { 0.0 } else { usual.episode_ns / gap_ns };
        Point {
            gap_ns,
            slowdown: gap.slowdown_pct.median / 100.0 - episode,
            usual: if is_kept { usual.kept } else { 0.0 },
            error: gap.slowdown_pct.half_width() / 100.0 / 1.96,
        }
    };
    found.gaps.iter().map(point).filter(|point| point.error > 0.0).collect()
}

/// Up to which gap code is slower, and by which share, by rising gap; empty if it is not.
fn steps(points: &[Point]) -> Vec<Step> {
    let is_slow = |point: &&Point| point.slowdown - point.usual - 1.96 * point.error > SMALLEST;
    if points.iter().filter(is_slow).count() < FEWEST_GAPS {
        return Vec::new();
    }
    let ends = 1..points.len();
    let one: Vec<Fit> = ends.clone().map(|end| fit(points, &[end])).collect();
    let two = ends.clone().flat_map(|first| {
        (first + 1..points.len()).map(move |second| fit(points, &[first, second]))
    });
    // Each step is lower than the one before.
    let falls = |fit: &Fit| {
        let steps = fit.steps.iter().map(|(_, slowdown)| *slowdown).chain([0.0]);
        steps.clone().zip(steps.skip(1)).all(|(step, next)| step - next >= SMALLEST)
    };
    let [one, two]: [Vec<Fit>; 2] =
        [one, two.collect()].map(|fits| fits.into_iter().filter(falls).collect());
    let least = |fits: &[Fit]| fits.iter().map(|fit| fit.squares).fold(f64::INFINITY, f64::min);
    let fits = if least(&one) - least(&two) > BETTER { two } else { one };
    let best = least(&fits);
    let Some(chosen) = fits.iter().find(|fit| fit.squares <= best) else { return Vec::new() };
    let likely: Vec<&Fit> = fits.iter().filter(|fit| fit.squares <= best + LIKELY).collect();
    let step = |index: usize| {
        let (end, slowdown) = chosen.steps[index];
        let ends = || likely.iter().map(|fit| fit.steps[index].0);
        let (first, last) = (ends().min().unwrap_or(end), ends().max().unwrap_or(end));
        let slowdowns = || likely.iter().map(|fit| fit.steps[index].1);
        let begin = index.checked_sub(1).map_or(0, |before| chosen.steps[before].0);
        let margin = 1.96 * mean(&points[begin..end]).1;
        Step {
            // Between the last gap with the slow-down and the first without.
            gap_ns: Estimate {
                median: (points[end - 1].gap_ns * points[end].gap_ns).sqrt(),
                ci95: (points[first - 1].gap_ns, points[last].gap_ns),
            },
            slowdown: Estimate {
                median: slowdown,
                ci95: (
                    slowdowns().fold(f64::INFINITY, f64::min) - margin,
                    slowdowns().fold(f64::NEG_INFINITY, f64::max) + margin,
                ),
            },
        }
    };
    (0..chosen.steps.len()).map(step).collect()
}

/// The mean slow-down of each step that ends before the point with this number; nothing is slower
/// from the last one on.
fn fit(points: &[Point], ends: &[usize]) -> Fit {
    let mut steps = Vec::new();
    let (mut begin, mut squares) = (0, 0.0);
    let mut add = |part: &[Point], slowdown: f64| {
        let off = |point: &Point| ((point.slowdown - slowdown) / point.error).powi(2);
        squares += part.iter().map(off).sum::<f64>();
    };
    for end in ends {
        let (slowdown, _) = mean(&points[begin..*end]);
        add(&points[begin..*end], slowdown);
        steps.push((*end, slowdown));
        begin = *end;
    }
    add(&points[begin..], 0.0);
    Fit { steps, squares }
}

/// The weighted mean of the slow-downs, and its standard error.
fn mean(points: &[Point]) -> (f64, f64) {
    let weight = |point: &Point| point.error.powi(-2);
    let weights: f64 = points.iter().map(weight).sum();
    let sum: f64 = points.iter().map(|point| weight(point) * point.slowdown).sum();
    (sum / weights, weights.sqrt().recip())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slow-downs by steps up to these gaps (ns), at gaps from 1 us to 70 ms, each off by an error
    /// of this size up or down.
    fn measured(steps: &[(f64, f64)], error: f64) -> Vec<Point> {
        let gaps = (0..40).map(|index| 1000.0 * 1.33_f64.powi(index));
        let point = |(index, gap_ns): (usize, f64)| {
            let step = steps.iter().find(|(until, _)| gap_ns < *until);
            let sign = if index % 2 == 0 { 1.0 } else { -1.0 };
            let slowdown = step.map_or(0.0, |(_, slowdown)| *slowdown) + sign * error;
            Point { gap_ns, slowdown, usual: 0.0, error }
        };
        gaps.enumerate().map(point).collect()
    }

    fn assert_near(found: Estimate, expected: f64, tolerance: f64) {
        assert!((found.median / expected - 1.0).abs() < tolerance, "{found:?} is not {expected}");
        assert!(found.ci95.0 <= found.median && found.median <= found.ci95.1, "{found:?}");
    }

    #[test]
    fn one_step_is_found() {
        let steps = steps(&measured(&[(16_000.0, 0.07)], 0.003));
        let [step] = steps[..] else { panic!("{steps:?}") };
        assert_near(step.gap_ns, 16_000.0, 0.2);
        assert_near(step.slowdown, 0.07, 0.05);
    }

    #[test]
    fn of_two_steps_the_closer_bursts_slow_more() {
        let steps = steps(&measured(&[(90_000.0, 0.067), (3e6, 0.027)], 0.003));
        let [close, apart] = steps[..] else { panic!("{steps:?}") };
        assert_near(close.gap_ns, 90_000.0, 0.2);
        assert_near(close.slowdown, 0.067, 0.05);
        assert_near(apart.gap_ns, 3e6, 0.2);
        assert_near(apart.slowdown, 0.027, 0.05);
    }

    #[test]
    fn without_a_slow_down_there_is_no_step() {
        assert!(steps(&measured(&[], 0.003)).is_empty());
        assert!(steps(&measured(&[(1e6, 0.002)], 0.0005)).is_empty(), "less than a clock step");
        assert!(steps(&[]).is_empty());
        // As between short bursts.
        let mut kept = measured(&[(1e6, 0.03)], 0.001);
        kept.iter_mut().for_each(|point| point.usual = if point.gap_ns < 1e6 { 0.03 } else { 0.0 });
        assert!(steps(&kept).is_empty());
    }
}
