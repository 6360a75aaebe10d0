//! Superposed epochs: a burst between stretches of scalar code, repeated many times, interleaved
//! with baselines that have a scalar stand-in for the burst.
//!
//! An [`Epoch`] is one such stretch, cut out of a trace: the burst's duration, and for every pair
//! of windows after it the excess over the pairs before the burst. Working with this excess cancels
//! drift of the clock; subtracting the baseline's excess cancels the instrument's own share.

use std::ops::Range;
use std::sync::Arc;

use dimmer_processor::units::CpuId;

use crate::calibration::Calibration;
use crate::kernel::{self, Kernel, Upper};
use crate::lab::{Lab, ModeError};
use crate::program::{Operands, Program, Trace, Work};
use crate::stats::{Samples, floor_index};

/// Maximum number of pairs right before the burst that are its reference (40 us).
const REFERENCE_PAIRS: usize = 100;

/// Number of stretches before each burst and baseline that show what happens by chance. Together
/// with the baseline itself, there are five for each burst.
const QUIET_EPOCHS: usize = 2;

/// The parts of one epoch.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The code of the burst.
    pub(crate) kernel: Arc<Kernel>,
    /// Instructions in the burst.
    pub(crate) instructions: u32,
    /// Whether its operands are loaded.
    pub(crate) operands: Operands,
    /// Pairs before the burst.
    pub(crate) quiet: usize,
    /// Pairs after it.
    pub(crate) after: usize,
    /// Number of repetitions in one program, each a burst and a baseline.
    pub(crate) batch: usize,
    /// Another hardware thread that runs scalar code at the same time.
    pub(crate) neighbour: Option<CpuId>,
}

/// One pair of windows after a burst.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    /// Start, after the burst's end (ns).
    pub(crate) at_ns: f64,
    /// Time beyond the reference (ns), computed from the clock window: the issue window is assumed
    /// to be slower by the same factor. For a pair that stalled or was interrupted, the measured
    /// excess.
    pub(crate) excess_ns: f64,
    /// Further excess of the issue window (ns); 0 if the pair stalled or was interrupted. Now and
    /// then another hardware thread of the core makes issue windows up to three times as long, and
    /// hardly affects clock windows (seen on a shared Emerald Rapids host).
    pub(crate) issue_excess_ns: f64,
    /// Duration of the clock window over its reference.
    pub(crate) clock: f64,
    /// Duration of the issue window over its reference.
    pub(crate) issue: f64,
    /// Disturbance of the pair.
    pub(crate) disturbance: Disturbance,
}

/// Whether something disturbed the duration of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disturbance {
    /// Not disturbed.
    None,
    /// An interrupt arrived.
    Interrupted,
    /// It took more than twice its time: the core stalled, or a hypervisor took time.
    Stalled,
}

/// One burst or baseline, and the scalar code after it.
#[derive(Clone, Debug)]
pub(crate) struct Epoch {
    /// Duration of the burst (ns).
    pub(crate) burst_ns: f64,
    /// Whether the burst was interrupted.
    pub(crate) burst_interrupted: bool,
    /// The pairs after it, in order.
    pub(crate) pairs: Vec<Pair>,
    /// Duration of a pair before the burst (ns).
    pub(crate) reference_ns: f64,
    /// Duration of the clock window of such a pair (ns).
    pub(crate) clock_reference_ns: f64,
}

/// Epochs of one hardware thread, one repetition at each index.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) bursts: Vec<Epoch>,
    /// The baselines, each next to its burst in time.
    pub(crate) baselines: Vec<Epoch>,
    /// Stretches of the scalar code before both, cut as if a burst came before them: they show what
    /// happens by chance. There are none for a neighbour.
    pub(crate) quiet: Vec<Vec<Epoch>>,
}

/// Repetitions so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Epochs {
    pub(crate) own: Seen,
    /// The same repetitions on the neighbouring hardware thread.
    pub(crate) neighbour: Seen,
    pub(crate) preemptions: u64,
    /// Repetitions left out because an interrupt fell into a burst, or into all of the windows
    /// before it.
    pub(crate) discarded: usize,
}

impl Epoch {
    /// Whether the burst was undisturbed and has a reference.
    fn is_usable(&self) -> bool {
        self.reference_ns.is_finite() && !self.burst_interrupted
    }
}

impl Epoch {
    /// The same epoch, with the issue windows' own time included in the excess.
    pub(crate) fn with_issue(&self) -> Self {
        let whole = |pair: &Pair| Pair {
            excess_ns: pair.excess_ns + pair.issue_excess_ns,
            issue_excess_ns: 0.0,
            ..*pair
        };
        Self { pairs: self.pairs.iter().map(whole).collect(), ..self.clone() }
    }
}

impl Epochs {
    /// Number of repetitions so far.
    pub(crate) fn len(&self) -> usize {
        self.own.bursts.len()
    }

    /// Number of pairs with an interrupt.
    pub(crate) fn disturbed(&self) -> usize {
        let all = self.own.bursts.iter().chain(&self.own.baselines);
        let all = all.flat_map(|epoch| &epoch.pairs);
        all.filter(|pair| pair.disturbance == Disturbance::Interrupted).count()
    }

    /// Number of pairs of baselines that took more than twice their time.
    pub(crate) fn stolen(&self) -> usize {
        let all = self.own.baselines.iter().flat_map(|epoch| &epoch.pairs);
        all.filter(|pair| pair.disturbance == Disturbance::Stalled).count()
    }
}

/// Position of one epoch in a program.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The burst's window.
    burst: usize,
    /// First window of the pairs after the burst.
    after: usize,
}

/// Runs one batch, and appends its epochs.
pub(crate) fn run(lab: &mut Lab<'_>, plan: &Plan, epochs: &mut Epochs) -> Result<(), ModeError> {
    let calibration = lab.calibration;
    let (program, places) = program(calibration, plan, epochs.len() + epochs.discarded);
    let pairs = 2.0 * places.len() as f64 * (plan.quiet + plan.after) as f64;
    let expected_ns = pairs * calibration.pair_ns * 1.05;
    let mut watch = Program::default();
    watch.push(&calibration.pair(), calibration.pairs(expected_ns));
    let neighbour = plan.neighbour.map(|cpu| (cpu, &watch));
    let (own, other) = lab.run(&program, neighbour, expected_ns)?;
    epochs.preemptions += own.preemptions;
    for (burst, baseline) in &places {
        let places = [burst, baseline];
        let quiet = places.iter().flat_map(|place| quiet_epochs(calibration, &own, place, plan));
        let quiet: Vec<Epoch> = quiet.collect();
        let pair = [burst, baseline].map(|place| own_epoch(calibration, &own, place, plan));
        let watched = other.as_ref().and_then(|trace| {
            let seen = |place: &Place| {
                let burst = own.stamps[place.burst].ticks();
                watched_epoch(calibration, trace, burst, plan.after)
            };
            Some([seen(burst)?, seen(baseline)?])
        });
        for Epoch { reference_ns, clock_reference_ns, .. } in &pair {
            let issue_ns = reference_ns - clock_reference_ns;
            lab.surroundings.add(calibration, *clock_reference_ns, issue_ns);
        }
        let usable = pair.iter().all(Epoch::is_usable);
        let [burst, baseline] = pair;
        if !usable {
            epochs.discarded += 1;
            continue;
        }
        epochs.own.bursts.push(burst);
        epochs.own.baselines.push(baseline);
        epochs.own.quiet.push(quiet);
        if let Some([burst, baseline]) = watched.filter(|pair| pair.iter().all(Epoch::is_usable)) {
            epochs.neighbour.bursts.push(burst);
            epochs.neighbour.baselines.push(baseline);
        }
    }
    Ok(())
}

/// Bursts and baselines in turn; their order alternates, so that neither always follows the other.
/// Between burst and pairs lies a chain of varying length. It shifts the pairs relative to the
/// burst, so that times after the burst are finer than a pair.
fn program(
    calibration: &Calibration,
    plan: &Plan,
    repetition: usize,
) -> (Program, Vec<(Place, Place)>) {
    let stand_in = Arc::new(kernel::stand_in());
    let mut program = Program::default();
    let mut places = Vec::with_capacity(plan.batch);
    for index in repetition..repetition + plan.batch {
        let shift = calibration.pair_ns / calibration.link_ns * dither(index);
        let shift = Work::clock(u32::try_from(floor_index(shift)).unwrap_or(u32::MAX));
        let mut place = |is_burst: bool| {
            match (plan.kernel.upper, is_burst) {
                (Upper::Clean, _) => {}
                (Upper::Dirty, true) => {
                    program.push(&[Work::TouchUpper { clean: false }], 1);
                }
                _ => {
                    program.push(&[Work::TouchUpper { clean: true }], 1);
                }
            }
            program.push(&calibration.pair(), plan.quiet);
            let work = Work::Burst {
                kernel: Arc::clone(if is_burst { &plan.kernel } else { &stand_in }),
                instructions: plan.instructions,
                operands: plan.operands,
            };
            let burst = program.push(&[work], 1);
            program.push(std::slice::from_ref(&shift), 1);
            Place { burst, after: program.push(&calibration.pair(), plan.after) }
        };
        places.push(if index % 2 == 0 {
            let burst = place(true);
            (burst, place(false))
        } else {
            let baseline = place(false);
            (place(true), baseline)
        });
    }
    (program, places)
}

/// A number from 0 to 1, evenly spread over consecutive repetitions (the golden-ratio sequence).
pub(crate) fn dither(index: usize) -> f64 {
    (index as f64 * 0.618_033_988_749_895).fract()
}

fn own_epoch(calibration: &Calibration, trace: &Trace, place: &Place, plan: &Plan) -> Epoch {
    let reference = plan.quiet.min(REFERENCE_PAIRS);
    let before = place.burst - 2 * reference..place.burst;
    let end = trace.stamps[place.burst + 1].ticks();
    let mut epoch =
        epoch(calibration, trace, before, place.after..place.after + 2 * plan.after, end);
    epoch.burst_ns = calibration.ns(trace.ticks(place.burst));
    epoch.burst_interrupted = trace.interrupted(place.burst);
    epoch
}

/// Stretches of scalar code before the burst at `place`, as epochs without a burst.
fn quiet_epochs(
    calibration: &Calibration,
    trace: &Trace,
    place: &Place,
    plan: &Plan,
) -> Vec<Epoch> {
    let width = REFERENCE_PAIRS + plan.after;
    let fit = (plan.quiet / width).min(QUIET_EPOCHS);
    let epochs = (0..fit).map(|index| {
        let end = place.burst - 2 * index * width;
        let begin = end - 2 * plan.after;
        let before = begin - 2 * REFERENCE_PAIRS..begin;
        epoch(calibration, trace, before, begin..end, trace.stamps[begin].ticks())
    });
    epochs.filter(Epoch::is_usable).collect()
}

/// The pairs of another hardware thread around `burst` (ticks); `None` if its trace is too short.
fn watched_epoch(
    calibration: &Calibration,
    trace: &Trace,
    burst: u64,
    after: usize,
) -> Option<Epoch> {
    let at = trace.stamps.partition_point(|stamp| stamp.ticks() < burst);
    let first = at.next_multiple_of(2);
    let before = first.checked_sub(2 * REFERENCE_PAIRS + 2)?..first - 2;
    let pairs = first - 2..first - 2 + 2 * after;
    (pairs.end < trace.stamps.len()).then(|| epoch(calibration, trace, before, pairs, burst))
}

/// Cuts out the pairs in windows `after`, with the pairs in windows `before` as their reference.
fn epoch(
    calibration: &Calibration,
    trace: &Trace,
    before: Range<usize>,
    after: Range<usize>,
    zero: u64,
) -> Epoch {
    let clock_reference = reference(calibration, trace, before.clone().step_by(2));
    let issue_reference = reference(calibration, trace, before.skip(1).step_by(2));
    let reference_ns = clock_reference + issue_reference;
    let pairs = after.step_by(2).map(|window| {
        let clock = calibration.ns(trace.ticks(window));
        let issue = calibration.ns(trace.ticks(window + 1));
        let disturbance = if trace.interrupted(window) || trace.interrupted(window + 1) {
            Disturbance::Interrupted
        } else if clock + issue > 2.0 * reference_ns {
            Disturbance::Stalled
        } else {
            Disturbance::None
        };
        let begin = trace.stamps[window].ticks();
        let at_ns = if begin >= zero {
            calibration.ns(begin - zero)
        } else {
            -calibration.ns(zero - begin)
        };
        let excess_ns = clock + issue - reference_ns;
        let by_clock = if disturbance == Disturbance::None {
            (clock / clock_reference - 1.0) * reference_ns
        } else {
            excess_ns
        };
        Pair {
            at_ns,
            excess_ns: by_clock,
            issue_excess_ns: excess_ns - by_clock,
            clock: clock / clock_reference,
            issue: issue / issue_reference,
            disturbance,
        }
    });
    Epoch {
        burst_ns: 0.0,
        burst_interrupted: false,
        pairs: pairs.collect(),
        reference_ns,
        clock_reference_ns: clock_reference,
    }
}

/// Mean duration of undisturbed windows (ns). A median would be rounded to a step of the counter.
fn reference(
    calibration: &Calibration,
    trace: &Trace,
    windows: impl Iterator<Item = usize>,
) -> f64 {
    let undisturbed = windows.filter(|&window| !trace.interrupted(window));
    let samples: Samples = undisturbed.map(|window| calibration.ns(trace.ticks(window))).collect();
    let typical = samples.quantile(0.5).unwrap_or(f64::NAN);
    let (mut sum, mut count) = (0.0, 0.0);
    for value in samples.values().iter().filter(|value| **value < 1.5 * typical) {
        sum += value;
        count += 1.0;
    }
    sum / count
}
