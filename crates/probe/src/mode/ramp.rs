//! The start of long stretches of a kernel, from its first instruction on: the thesis's
//! PRE_THROTTLE_TIME mode (paper 000 §3.2.5), and the throttling of a burst. `downclock` measures
//! where their clock goes.
//!
//! The stretch starts with fine windows of kernel code only, continues with coarse ones that
//! alternate with clock windows, and ends with fine ones again. These last ones are the settled
//! reference of those at the start. So throughput per cycle and clock are known separately at every
//! time.

use std::time::Duration;

use super::Mode;
use crate::lab::{LEAST_USABLE, Lab, ModeError, check_usable, floor_u32};
use crate::outcome::{Detail, Outcome, Quantity, Throttle, Throttling};
use crate::program::{Program, Trace, Work};
use crate::stats::{Samples, floor_index};

/// Settled length of a fine window (ns): a few times the cost of a time stamp.
pub(super) const FINE_NS: f64 = 40.0;

/// Number of fine windows at each end: 2 us, 8 us if throttled to a quarter. There are no clock
/// windows between them, so they must end before the clock settles.
pub(super) const FINE_WINDOWS: usize = 40;

/// Settled length of a coarse window (ns): twice the clock window beside it. So a kernel of two
/// instructions a cycle stays well above the one instruction in two cycles that licenses reportedly
/// require (paper 003 §2).
pub(super) const COARSE_NS: f64 = 500.0;

/// Scalar code before the stretch (ns), so that the license of the previous one is released.
const QUIET_NS: f64 = 3e6;

/// Smallest slowness, relative to settled, at which a window counts as throttled: a dispatch rate
/// of 83 %, the mildest that was published. (A quarter: Downs 2020, paper 000 figure 3.6. 69 to 83
/// %: Chips and Cheese 2025, Zen 5.)
const THROTTLED: f64 = 0.20;

/// Time at the start that does not count (ns), after the code was fetched. After the quiet time the
/// code must also be decoded again, which was seen to slow the first 240 ns on Zen 5.
const COLD_NS: f64 = 250.0;

/// Time limit for the stretches of one mode.
const LONGEST: Duration = Duration::from_secs(20);

/// What is repeated here, as a noun.
pub(super) const STRETCH: &str = "stretch of the kernel";

/// Number of standard errors by which a step of the clock or of throughput must stand out.
pub(super) const STANDS_OUT: f64 = 4.5;

/// One stretch of the kernel, reduced to numbers.
#[derive(Clone, Debug)]
pub(super) struct Stretch {
    /// Fine windows at the start: (start (ns), duration over the settled one, less 1); NaN if
    /// interrupted.
    pub(super) fine: Vec<(f64, f64)>,
    /// Coarse windows of the kernel and the clock windows after them.
    pub(super) coarse: Vec<Coarse>,
    /// Stalls in the clock windows: (start (ns), length (ns)).
    pub(super) stalls: Vec<(f64, f64)>,
    /// Settled clock over nominal.
    pub(super) clock_ratio: f64,
    /// Settled kernel instructions per core cycle.
    pub(super) instructions_per_cycle: f64,
}

/// A coarse window of the kernel and the clock window after it; NaN if interrupted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Coarse {
    /// Start (ns after the kernel's first instruction).
    pub(super) at_ns: f64,
    /// Duration over the settled one, less 1.
    pub(super) slowness: f64,
    /// Start of the clock window (ns).
    pub(super) clock_at_ns: f64,
    /// Clock over nominal.
    pub(super) clock: f64,
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

/// Settled kernel instructions per nanosecond, from which window sizes are computed.
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

/// The PRE_THROTTLE_TIME mode.
pub(crate) fn throttle(lab: &mut Lab<'_>) -> Result<Outcome, ModeError> {
    /// Number of windows: 8 us, enough for tens of thousands of instructions.
    const FINE_WINDOWS: usize = 200;
    let repetitions = if lab.is_quick() { 60 } else { 150 };
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
        bound_ns: detail
            .throttling
            .as_ref()
            .map_or_else(|| cold_ns(&stretches), |t| t.throttled_ns.estimate.bound()),
        horizon_ns: FINE_NS * FINE_WINDOWS as f64,
        ..lab.outcome(Mode::Throttle, Detail::Throttle(detail))
    })
}

/// Throttling of the first `instructions` of the kernel; `None` if they are not throttled.
pub(crate) fn throttling(
    lab: &mut Lab<'_>,
    instructions: u32,
) -> Result<Option<Throttling>, ModeError> {
    let repetitions = if lab.is_quick() { 30 } else { 100 };
    let (mut stretches, _) = stretches(lab, (FINE_NS, FINE_WINDOWS), 200_000.0, repetitions)?;
    let Some(level) = throttled_level(&stretches) else { return Ok(None) };
    // Only windows within the burst count as its throttling.
    let windows = f64::from(instructions) / (rate(lab)? * FINE_NS);
    for stretch in &mut stretches {
        stretch.fine.truncate(floor_index(windows.ceil()).max(3));
        stretch.coarse.clear();
    }
    Ok(throttling_at(level, &stretches))
}

/// Disturbances while the stretches ran.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Facts {
    pub(super) disturbed: usize,
    pub(super) preemptions: u64,
}

impl Facts {
    pub(super) fn add(&mut self, other: Self) {
        self.disturbed += other.disturbed;
        self.preemptions += other.preemptions;
    }
}

/// Runs stretches of the kernel, of which enough are undisturbed.
///
/// # Errors
/// [`ModeError::Disturbed`] if they are not.
pub(super) fn stretches(
    lab: &mut Lab<'_>,
    fine: (f64, usize),
    observed_ns: f64,
    repetitions: usize,
) -> Result<(Vec<Stretch>, Facts), ModeError> {
    let (found, facts) = some_stretches(lab, fine, observed_ns, repetitions)?;
    check_usable(found.len(), STRETCH)?;
    Ok((found, facts))
}

/// As [`stretches`], but any number of them may be undisturbed.
pub(super) fn some_stretches(
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
    for _ in 0..repetitions.max(LEAST_USABLE) {
        let (trace, _) = lab.run(&program, None, QUIET_NS + 1.3 * observed_ns)?;
        facts.preemptions += trace.preemptions;
        facts.disturbed +=
            (begin..program.windows()).filter(|&window| trace.interrupted(window)).count();
        found.extend(reduce(lab, &shape, &trace, [quiet, begin, middle, end]));
        if found.len() >= LEAST_USABLE && deadline.is_over(lab) {
            break;
        }
    }
    Ok((found, facts))
}

/// Reduces one trace. The settled values come from the trace's own end; `None` if that is
/// disturbed.
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
    let settled_ghz = lab.calibration.ghz(clock_settled);
    let mut stretch = Stretch {
        fine: (begin..middle).map(|window| (at(window), slowness(window, fine_settled))).collect(),
        coarse: Vec::with_capacity(shape.coarse_windows),
        stalls: Vec::new(),
        clock_ratio,
        // The difference of two windows, so that the cost of starting and ending one cancels.
        instructions_per_cycle: f64::from(shape.coarse - shape.fine)
            / ((coarse_settled - fine_settled) * settled_ghz),
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

/// Time for which code may be slow at the start only because it is cold (ns): the excess of the
/// first window over the second, due to fetching (some 0.6 us on a Zen 3 host with busy
/// neighbours), plus [`COLD_NS`].
fn cold_ns(stretches: &[Stretch]) -> f64 {
    let fetching = |stretch: &Stretch| match stretch.fine[..] {
        [first, second, third, ..] => (second.0 - first.0) - (third.0 - second.0),
        _ => 0.0,
    };
    let fetching: Samples = stretches.iter().map(fetching).collect();
    COLD_NS + fetching.quantile(0.5).unwrap_or(0.0).max(0.0)
}

/// The slowness of throttled windows: the median of the slow ones. (A stall makes one window slower
/// by far; it does not count more than another.) `None` if nothing is throttled.
pub(super) fn throttled_level(stretches: &[Stretch]) -> Option<f64> {
    let begins = |index: usize| -> Samples { stretches.iter().map(|s| s.fine[index].0).collect() };
    let cold = cold_ns(stretches);
    let slow = |(index, (mean, error)): (usize, (f64, f64))| {
        let warm = begins(index).quantile(0.5).is_some_and(|begin| begin > cold);
        (warm && mean > THROTTLED && mean > STANDS_OUT * error).then_some(mean)
    };
    let slow: Vec<Option<f64>> =
        mean_slowness(stretches).into_iter().enumerate().map(slow).collect();
    // At least two in a row. A single slow window is an accident of code placement, and there may
    // be several such (on Zen 3 every eighth or third window, because short windows hold parts of a
    // loop).
    let runs = slow.split(Option::is_none).filter(|run| run.len() >= 2);
    runs.flatten().copied().flatten().collect::<Samples>().quantile(0.5)
}

/// Throttling of these stretches, given the slowness of throttled windows.
pub(super) fn throttling_at(level: f64, stretches: &[Stretch]) -> Option<Throttling> {
    let end = |stretch: &Stretch| {
        // The change point between `level` and 0, as in the release of a license.
        let (mut sum, mut best, mut end) = (0.0, 0.0, 0.0);
        let coarse = stretch.coarse.iter().map(|window| (window.at_ns, window.slowness));
        let windows = stretch.fine.iter().copied().chain(coarse).filter(|w| w.1.is_finite());
        let windows: Vec<(f64, f64)> = windows.collect();
        for (index, window) in windows.iter().enumerate() {
            // A window with a stall shows nothing about throttling.
            if window.1 < 4.0 * level {
                sum += 2.0 * window.1 * level - level * level;
            }
            if sum > best {
                best = sum;
                // The last window ends about its own length after its start.
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
    // If it ends before the code is warm, cold code is the reason.
    let beyond_cold = throttled_ns.estimate.median > cold_ns(stretches);
    beyond_cold.then_some(Throttling { throttled_ns, throttle_factor })
}

pub(super) fn settled_per_cycle(stretches: &[Stretch]) -> f64 {
    let samples: Samples = stretches.iter().map(|s| s.instructions_per_cycle).collect();
    samples.quantile(0.5).unwrap_or(f64::NAN)
}

/// Number of instructions of a stretch that is long enough to reach the settled clock.
pub(crate) fn settled_burst(lab: &mut Lab<'_>, settle_ns: f64) -> Result<u32, ModeError> {
    Ok(floor_u32(rate(lab)? * settle_ns.max(100_000.0) * 2.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Equal stretches of windows, with each window's duration as a multiple of the settled one.
    fn stretches(times: &[f64]) -> Vec<Stretch> {
        let mut now = 0.0;
        let mut window = |&time: &f64| {
            let begin = now;
            now += time * FINE_NS;
            (begin, time - 1.0)
        };
        let fine = times.iter().map(&mut window).collect();
        let (coarse, stalls) = (Vec::new(), Vec::new());
        let stretch =
            Stretch { fine, coarse, stalls, clock_ratio: 1.0, instructions_per_cycle: 2.0 };
        vec![stretch; 10]
    }

    #[track_caller]
    fn check(throttled: Option<f64>, windows: &[(f64, usize)]) {
        let times: Vec<f64> = windows.iter().flat_map(|&(time, count)| vec![time; count]).collect();
        let stretches = stretches(&times);
        let level = throttled_level(&stretches);
        let found = level.and_then(|level| throttling_at(level, &stretches));
        let found = found.map(|throttling| throttling.throttled_ns.estimate.median);
        assert_eq!(found, throttled);
    }

    #[test]
    fn throttled_windows_follow_each_other() {
        check(Some(1600.0), &[(4.0, 10), (1.0, 30)]);
        check(None, &[(1.0, 15), (1.3, 1), (1.0, 7), (1.3, 1), (1.0, 16)]);
    }

    #[test]
    fn code_that_is_fetched_for_long_is_not_throttled() {
        check(None, &[(15.0, 1), (1.4, 3), (1.0, 36)]);
        check(Some(2160.0), &[(18.0, 1), (4.0, 9), (1.0, 30)]);
    }
}
