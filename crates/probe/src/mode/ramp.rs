//! A long stretch of the kernel, from its first instruction on: the thesis's DOWNCLOCK and
//! PRE_THROTTLE_TIME modes (paper 000 §3.2.5), and how a burst is throttled.
//!
//! The stretch begins with fine windows of kernel code only, goes on with coarse ones in turn with
//! clock windows, and ends with fine ones again: the settled reference of those at its begin. So
//! throughput per cycle and clock are known apart from each other, at every time.

use std::time::Duration;

use super::Mode;
use crate::lab::{Lab, ModeError, floor_u32};
use crate::outcome::{
    CurvePoint, Detail, Downclock, Outcome, Quantity, Step, Throttle, Throttling,
};
use crate::program::{Program, Trace, Work};
use crate::response::edges;
use crate::stats::{Estimate, Samples, floor_index};

/// Settled length of a fine window (ns): a few times what a time stamp costs.
const FINE_NS: f64 = 40.0;

/// Fine windows at both ends: 2 us, 8 us if throttled to a quarter. They have no clock windows
/// between them, so they must be over before the clock settles.
const FINE_WINDOWS: usize = 40;

/// Settled length of a coarse window (ns): twice the clock window beside it, so that a kernel of
/// two instructions a cycle stays well above the one in two cycles that licences are said to ask
/// for (paper 003 §2).
const COARSE_NS: f64 = 500.0;

/// Scalar code before the stretch (ns): the licence of the one before is given back.
const QUIET_NS: f64 = 3e6;

/// How much slower than settled a window must be to count as throttled: a dispatch rate of 83 %,
/// the mildest that was published. (A quarter: Downs 2020, paper 000 figure 3.6. 69 to 83 %:
/// Chips and Cheese 2025, Zen 5.)
const THROTTLED: f64 = 0.20;

/// Time at the begin that is not judged (ns): after the quiet the kernel's code has to be fetched
/// and decoded again, which was seen to slow the first 240 ns on Zen 5.
const COLD_NS: f64 = 250.0;

/// Most time for the stretches of one mode.
const LONGEST: Duration = Duration::from_secs(20);

/// Standard errors by which a step of the clock or of throughput must stand out.
const STANDS_OUT: f64 = 4.5;

/// The smallest step of the settled clock that counts. Licences come in bins of 100 MHz, some 2 %
/// of the clock; within the tens of milliseconds of a stretch it drifts by nearly 1 % on shared
/// machines.
pub(crate) const SMALLEST_STEP: f64 = 0.01;

/// One stretch of the kernel, reduced to numbers.
#[derive(Clone, Debug)]
struct Stretch {
    /// Fine windows at the begin: (begin (ns), duration over the settled one); NaN if interrupted.
    fine: Vec<(f64, f64)>,
    /// Coarse windows of the kernel and the clock windows after them.
    coarse: Vec<Coarse>,
    /// Durations of a stall in the clock windows: (begin (ns), stall (ns)).
    stalls: Vec<(f64, f64)>,
    /// Settled clock over nominal.
    clock_ratio: f64,
    /// Settled kernel instructions per core cycle.
    instructions_per_cycle: f64,
}

/// A coarse window of the kernel and the clock window after it; NaN if interrupted.
#[derive(Clone, Copy, Debug)]
struct Coarse {
    /// Begin (ns after the kernel's first instruction).
    at_ns: f64,
    /// Duration over the settled one, less 1.
    slowness: f64,
    /// Begin of the clock window (ns).
    clock_at_ns: f64,
    /// Clock over nominal.
    clock: f64,
}

/// Sizes of the windows.
#[derive(Clone, Copy, Debug)]
struct Shape {
    fine: u32,
    coarse: u32,
    coarse_windows: usize,
    quiet_pairs: usize,
    fine_windows: usize,
}

/// Kernel instructions per nanosecond, settled: what window sizes are computed from.
pub(crate) fn rate(lab: &mut Lab<'_>) -> Result<f64, ModeError> {
    const PROBE: u32 = 2000;
    let mut program = Program::default();
    let burst = Work::burst(&lab.kernel, PROBE);
    let first = program.push(std::slice::from_ref(&burst), 100);
    let (trace, _) = lab.run(&program, None, 1e6)?;
    let half = first + 50..program.windows();
    let windows = half.filter(|&window| !trace.interrupted(window));
    let samples: Samples = windows.map(|window| lab.calibration.ns(trace.ticks(window))).collect();
    let ns = samples.quantile(0.5).unwrap_or(f64::from(PROBE)).max(1.0);
    Ok(f64::from(PROBE) / ns)
}

/// The DOWNCLOCK mode.
pub(crate) fn downclock(lab: &mut Lab<'_>) -> Result<Outcome, ModeError> {
    let observed_ns = if lab.is_quick() { 1e6 } else { 60e6 };
    let repetitions = if lab.is_quick() { 24 } else { 60 };
    let (stretches, trace_facts) = stretches(
        lab,
        (FINE_NS, FINE_WINDOWS),
        observed_ns,
        repetitions.min(lab.settings.repetitions),
    )?;
    let curve = curve(lab, &stretches);
    let settled: Samples = stretches.iter().map(|stretch| stretch.clock_ratio).collect();
    let settled_ratio = settled.quantile(0.5).unwrap_or(1.0);
    let lowered = settled
        .centre()
        .is_some_and(|(mean, error)| 1.0 - mean > SMALLEST_STEP.max(STANDS_OUT * error));
    let mut steps = steps(&curve, &stretches);
    if !lowered {
        steps.truncate(1);
    }
    let settle: Samples = if lowered {
        stretches.iter().filter_map(|stretch| settle_time(stretch, settled_ratio)).collect()
    } else {
        Samples::default()
    };
    let until = settle.quantile(0.95).unwrap_or(0.0) + 10_000.0;
    let stalls: Samples = stretches
        .iter()
        .map(|s| s.stalls.iter().filter(|(at, _)| *at < until).map(|(_, ns)| ns).sum::<f64>())
        .filter(|stall| lowered && *stall > 0.0)
        .collect();
    let level = throttled_level(&stretches);
    let throttling = level.and_then(|level| throttling_at(level, &stretches));
    let ratio = Quantity::new(settled);
    let per_cycle = Quantity::new(stretches.iter().map(|s| s.instructions_per_cycle).collect());
    let (Some(clock_ratio), Some(instructions_per_cycle)) = (ratio, per_cycle) else {
        return Err(nothing_undisturbed());
    };
    let effect = lowered || throttling.is_some();
    let (low, high) = clock_ratio.estimate.ci95;
    let detail = Downclock {
        observed_ns,
        settle_ns: Quantity::new(settle),
        stall_ns: (2 * stalls.len() >= stretches.len()).then(|| Quantity::new(stalls)).flatten(),
        throughput: throughput(&stretches),
        clock_ratio,
        instructions_per_cycle,
        throttling,
        steps,
        curve,
    };
    Ok(Outcome {
        repetitions: stretches.len(),
        disturbed_windows: trace_facts.disturbed,
        preemptions: trace_facts.preemptions,
        effect,
        // What the stretch loses at most to another clock.
        bound_ns: (1.0 - low).abs().max((1.0 - high).abs()) * observed_ns,
        horizon_ns: observed_ns,
        ..lab.outcome(Mode::Downclock, Detail::Downclock(detail))
    })
}

/// The PRE_THROTTLE_TIME mode.
pub(crate) fn throttle(lab: &mut Lab<'_>) -> Result<Outcome, ModeError> {
    /// How many windows: 8 us, time for tens of thousands of instructions.
    const FINE_WINDOWS: usize = 200;
    let repetitions = if lab.is_quick() { 60 } else { 400 };
    let repetitions = repetitions.min(lab.settings.repetitions);
    let fine = (FINE_NS, FINE_WINDOWS);
    let (stretches, facts) = stretches(lab, fine, 200_000.0, repetitions)?;
    let per_window = rate(lab)? * FINE_NS;
    let level = throttled_level(&stretches);
    let throttling = level.and_then(|level| throttling_at(level, &stretches));
    let starts: Vec<(f64, f64)> = level
        .filter(|_| throttling.is_some())
        .map(|level| {
            let first = |stretch: &Stretch| {
                let slow =
                    |index: usize| stretch.fine.get(index).is_some_and(|w| w.1 > level / 2.0);
                let index =
                    (0..stretch.fine.len()).find(|&index| slow(index) && slow(index + 1))?;
                Some((stretch.fine[index].0, index as f64 * per_window))
            };
            stretches.iter().filter_map(first).collect()
        })
        .unwrap_or_default();
    let detail = Throttle {
        pre_throttle_ns: Quantity::new(starts.iter().map(|start| start.0).collect()),
        pre_throttle_instructions: Quantity::new(starts.iter().map(|start| start.1).collect()),
        throughput: mean_slowness(&stretches)
            .into_iter()
            .enumerate()
            .map(|(index, (slowness, _))| {
                let settled = settled_per_cycle(&stretches);
                (index as f64 * per_window, settled / (1.0 + slowness))
            })
            .collect(),
        throttling,
    };
    Ok(Outcome {
        repetitions: stretches.len(),
        disturbed_windows: facts.disturbed,
        preemptions: facts.preemptions,
        effect: detail.throttling.is_some(),
        bound_ns: detail.throttling.as_ref().map_or(COLD_NS, |t| t.throttled_ns.estimate.bound()),
        horizon_ns: FINE_NS * FINE_WINDOWS as f64,
        ..lab.outcome(Mode::Throttle, Detail::Throttle(detail))
    })
}

/// How the first `instructions` of the kernel are throttled; `None` if they are not.
pub(crate) fn throttling(
    lab: &mut Lab<'_>,
    instructions: u32,
) -> Result<Option<Throttling>, ModeError> {
    let repetitions = if lab.is_quick() { 30 } else { 100 };
    let (mut stretches, _) = stretches(lab, (FINE_NS, FINE_WINDOWS), 200_000.0, repetitions)?;
    let Some(level) = throttled_level(&stretches) else { return Ok(None) };
    // Only what lies within the burst counts as its throttling.
    let windows = f64::from(instructions) / (rate(lab)? * FINE_NS);
    for stretch in &mut stretches {
        stretch.fine.truncate(floor_index(windows.ceil()).max(3));
        stretch.coarse.clear();
    }
    Ok(throttling_at(level, &stretches))
}

/// What happened while the stretches ran.
#[derive(Clone, Copy, Debug, Default)]
struct Facts {
    disturbed: usize,
    preemptions: u64,
}

fn stretches(
    lab: &mut Lab<'_>,
    (fine_ns, fine_windows): (f64, usize),
    observed_ns: f64,
    repetitions: usize,
) -> Result<(Vec<Stretch>, Facts), ModeError> {
    let rate = rate(lab)?;
    let window_ns = COARSE_NS + lab.calibration.clock_ns;
    let shape = Shape {
        fine: floor_u32((rate * fine_ns).max(1.0)),
        coarse: floor_u32((rate * COARSE_NS).max(1.0)),
        coarse_windows: floor_index(observed_ns / window_ns).max(40),
        quiet_pairs: lab.calibration.pairs(QUIET_NS),
        fine_windows,
    };
    let deadline = lab.deadline(if observed_ns > 300_000.0 { 0.8 } else { 0.2 }, LONGEST);
    let mut program = Program::default();
    let [clock, issue] = lab.calibration.pair();
    let quiet = program.push(&[issue, clock.clone()], shape.quiet_pairs);
    let begin = program.push(&[Work::burst(&lab.kernel, shape.fine)], shape.fine_windows);
    let middle =
        program.push(&[Work::burst(&lab.kernel, shape.coarse), clock], shape.coarse_windows);
    let end = program.push(&[Work::burst(&lab.kernel, shape.fine)], shape.fine_windows);
    let mut found = Vec::new();
    let mut facts = Facts::default();
    for _ in 0..repetitions.max(4) {
        let (trace, _) = lab.run(&program, None, QUIET_NS + 1.3 * observed_ns)?;
        facts.preemptions += trace.preemptions;
        facts.disturbed +=
            (begin..program.windows()).filter(|&window| trace.interrupted(window)).count();
        found.extend(reduce(lab, &shape, &trace, [quiet, begin, middle, end]));
        if found.len() >= 4 && deadline.is_over() {
            break;
        }
    }
    if found.is_empty() { Err(nothing_undisturbed()) } else { Ok((found, facts)) }
}

/// One trace, with what is settled taken from its own end; `None` if that is disturbed.
fn reduce(
    lab: &Lab<'_>,
    shape: &Shape,
    trace: &Trace,
    [quiet, begin, middle, end]: [usize; 4],
) -> Option<Stretch> {
    let ns = |window: usize| {
        let taken = lab.calibration.ns(trace.ticks(window));
        if trace.interrupted(window) { f64::NAN } else { taken }
    };
    let midmean = |windows: &mut dyn Iterator<Item = usize>| {
        windows.map(ns).collect::<Samples>().trimmed_mean(0.25)
    };
    // The last 100 clock windows before the stretch: the nominal clock.
    let nominal = midmean(&mut (quiet + 1..begin).step_by(2).rev().take(100))?;
    let last_quarter = shape.coarse_windows / 4;
    let clock_settled = midmean(&mut (middle + 1..end).step_by(2).rev().take(last_quarter))?;
    let coarse_settled = midmean(&mut (middle..end).step_by(2).rev().take(last_quarter))?;
    let fine_settled = midmean(&mut (end..end + shape.fine_windows))?;
    let zero = trace.stamps[begin].ticks();
    let at = |window: usize| lab.calibration.ns(trace.stamps[window].ticks().saturating_sub(zero));
    let overhead = lab.calibration.instrument.overhead_ns;
    let slowness =
        |window: usize, settled: f64| (ns(window) - overhead) / (settled - overhead) - 1.0;
    let clock_ratio = (nominal - overhead) / (clock_settled - overhead);
    let settled_ghz = lab.calibration.instrument.nominal_ghz * clock_ratio;
    let mut stretch = Stretch {
        fine: (begin..middle).map(|window| (at(window), slowness(window, fine_settled))).collect(),
        coarse: Vec::with_capacity(shape.coarse_windows),
        stalls: Vec::new(),
        clock_ratio,
        instructions_per_cycle: f64::from(shape.coarse)
            / ((coarse_settled - overhead) * settled_ghz),
    };
    for window in (middle..end).step_by(2) {
        let clock = ns(window + 1);
        let stalled = clock > 2.0 * nominal;
        if stalled {
            stretch.stalls.push((at(window + 1), clock - clock_settled));
        }
        let ratio = if stalled { f64::NAN } else { (nominal - overhead) / (clock - overhead) };
        stretch.coarse.push(Coarse {
            at_ns: at(window),
            slowness: slowness(window, coarse_settled),
            clock_at_ns: at(window + 1),
            clock: ratio,
        });
    }
    Some(stretch)
}

/// Mean slowness of each fine window over the stretches, and its standard error.
fn mean_slowness(stretches: &[Stretch]) -> Vec<(f64, f64)> {
    let windows = stretches.iter().map(|stretch| stretch.fine.len()).min().unwrap_or(0);
    let centre = |index: usize| {
        let samples: Samples = stretches.iter().map(|stretch| stretch.fine[index].1).collect();
        samples.centre().unwrap_or((0.0, f64::INFINITY))
    };
    (0..windows).map(centre).collect()
}

/// The slowness of throttled windows: the median of those that are slow. (A stall makes one
/// window slower by far; it does not count more than another.) `None`: nothing is throttled.
fn throttled_level(stretches: &[Stretch]) -> Option<f64> {
    let begins = |index: usize| -> Samples { stretches.iter().map(|s| s.fine[index].0).collect() };
    let slow = |(index, (mean, error)): (usize, (f64, f64))| {
        let warm = begins(index).quantile(0.5).is_some_and(|begin| begin > COLD_NS);
        (warm && mean > THROTTLED && mean > STANDS_OUT * error).then_some(mean)
    };
    let throttled: Samples =
        mean_slowness(stretches).into_iter().enumerate().filter_map(slow).collect();
    // Two windows at least: one alone is an accident of code placement.
    throttled.quantile(0.5).filter(|_| throttled.len() >= 2)
}

/// How these stretches are throttled, given the slowness of throttled windows.
fn throttling_at(level: f64, stretches: &[Stretch]) -> Option<Throttling> {
    let end = |stretch: &Stretch| {
        // The change point between `level` and 0, as in the release of a licence.
        let (mut sum, mut best, mut end) = (0.0, 0.0, 0.0);
        let coarse = stretch.coarse.iter().map(|window| (window.at_ns, window.slowness));
        let windows = stretch.fine.iter().copied().chain(coarse).filter(|w| w.1.is_finite());
        let windows: Vec<(f64, f64)> = windows.collect();
        for (index, window) in windows.iter().enumerate() {
            // A window with a stall in it says nothing about throttling.
            if window.1 < 4.0 * level {
                sum += 2.0 * window.1 * level - level * level;
            }
            if sum > best {
                best = sum;
                // The last window ends about its own length after its begin.
                let length =
                    index.checked_sub(1).map_or(0.0, |before| window.0 - windows[before].0);
                end = windows.get(index + 1).map_or(window.0 + length, |next| next.0);
            }
        }
        end
    };
    let factors: Samples = stretches
        .iter()
        .map(|stretch| {
            let slow = stretch.fine.iter().skip(1).map(|window| window.1);
            let slow: Samples = slow.filter(|slowness| *slowness > level / 2.0).collect();
            // Slowness is in time; throttled code still runs at the nominal clock.
            stretch.clock_ratio / (1.0 + slow.quantile(0.5).unwrap_or(f64::NAN))
        })
        .collect();
    let throttled_ns = Quantity::new(stretches.iter().map(end).collect())?;
    let throttle_factor = factors.estimate()?;
    // What is over before the code is warm is the cold.
    let beyond_cold = throttled_ns.estimate.median > COLD_NS;
    beyond_cold.then_some(Throttling { throttled_ns, throttle_factor })
}

fn settled_per_cycle(stretches: &[Stretch]) -> f64 {
    let samples: Samples = stretches.iter().map(|s| s.instructions_per_cycle).collect();
    samples.quantile(0.5).unwrap_or(f64::NAN)
}

/// Clock over time, in bins that grow.
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

/// Throughput over time: fine windows at the begin, bins of coarse ones after.
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

/// The levels of the clock in order: a new one begins where a point of the curve and the next
/// differ from the level so far.
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

/// When the clock of one stretch reaches the settled level: the change point between the two.
fn settle_time(stretch: &Stretch, settled: f64) -> Option<f64> {
    let (mut sum, mut best, mut at) = (0.0, 0.0, 0.0);
    let drop = 1.0 - settled;
    if drop < SMALLEST_STEP {
        return None;
    }
    let windows: Vec<_> = stretch.coarse.iter().filter(|window| window.clock.is_finite()).collect();
    for (index, window) in windows.iter().enumerate() {
        // Near the nominal clock counts for, near the settled one against.
        sum += (window.clock - settled) / drop * 2.0 - 1.0;
        if sum > best {
            best = sum;
            at = windows.get(index + 1).map_or(window.at_ns, |next| next.clock_at_ns);
        }
    }
    Some(at)
}

fn nothing_undisturbed() -> ModeError {
    ModeError::Target(crate::target::TargetError::NoClock {
        why: "every stretch of the kernel was disturbed by interrupts".to_owned(),
    })
}

/// A stretch of the kernel long enough to reach the settled clock (instructions).
pub(crate) fn settled_burst(lab: &mut Lab<'_>, settle_ns: f64) -> Result<u32, ModeError> {
    Ok(floor_u32(rate(lab)? * settle_ns.max(100_000.0) * 2.0))
}
