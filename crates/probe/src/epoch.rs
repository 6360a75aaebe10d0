//! Superposed epochs: a burst between stretches of scalar code, many times over, interleaved with
//! baselines that have a scalar stand-in for the burst.
//!
//! An [`Epoch`] is one such stretch, cut out of a trace: the burst's duration and, for every pair
//! of windows after it, how much longer it took than the pairs before the burst did. Working with
//! this excess cancels drift of the clock; subtracting the baseline's excess cancels what is the
//! instrument's own.

use std::ops::Range;
use std::sync::Arc;

use dimmer_processor::units::CpuId;

use crate::calibration::Calibration;
use crate::kernel::{self, Kernel, Upper};
use crate::lab::{Lab, ModeError};
use crate::program::{Operands, Program, Trace, Work};
use crate::stats::{Samples, floor_index};

/// How many pairs right before the burst are its reference, at most (40 us).
const REFERENCE_PAIRS: usize = 100;

/// How many stretches before each burst and baseline are looked at for what happens by chance: with
/// both, and the baseline itself, five for each burst.
const QUIET_EPOCHS: usize = 2;

/// What one epoch is made of.
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
    /// Repetitions in one program: a burst and a baseline each.
    pub(crate) batch: usize,
    /// Another hardware thread that runs scalar code meanwhile.
    pub(crate) neighbour: Option<CpuId>,
}

/// One pair of windows after a burst.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    /// Begin, after the burst's end (ns).
    pub(crate) at_ns: f64,
    /// Time beyond the reference (ns), as the clock window tells it: the issue window is taken to
    /// be slower by the same factor. A pair that stalled or was interrupted: its time as it is.
    pub(crate) excess_ns: f64,
    /// What the issue window took beyond that (ns); 0 if stalled or interrupted. Another hardware
    /// thread of the core makes issue windows up to three times as long, now and then; clock
    /// windows hardly feel it (seen on a shared Emerald Rapids host).
    pub(crate) issue_excess_ns: f64,
    /// Duration of the clock window over its reference.
    pub(crate) clock: f64,
    /// Duration of the issue window over its reference.
    pub(crate) issue: f64,
    /// What else happened.
    pub(crate) disturbance: Disturbance,
}

/// Whether a pair took the time of its own work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disturbance {
    /// It did.
    None,
    /// An interrupt arrived.
    Interrupted,
    /// It took more than twice its time: a stall of the core, or time that a hypervisor took.
    Stalled,
}

/// One burst, or baseline, and the scalar code after it.
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
    /// That of its clock window (ns).
    pub(crate) clock_reference_ns: f64,
}

/// What one hardware thread saw, a repetition at each index.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) bursts: Vec<Epoch>,
    /// Neighbours in time of the bursts.
    pub(crate) baselines: Vec<Epoch>,
    /// Stretches of the scalar code before both, cut as if a burst came before them: what happens
    /// there happens by chance. Of a neighbour there are none.
    pub(crate) quiet: Vec<Vec<Epoch>>,
}

/// Repetitions so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Epochs {
    pub(crate) own: Seen,
    /// The same as seen by the neighbour.
    pub(crate) neighbour: Seen,
    pub(crate) preemptions: u64,
    /// Repetitions left out because an interrupt fell into a burst or all around it.
    pub(crate) discarded: usize,
}

impl Epoch {
    /// Whether the burst ran undisturbed and has something to be compared with.
    fn is_usable(&self) -> bool {
        self.reference_ns.is_finite() && !self.burst_interrupted
    }
}

impl Epoch {
    /// The same with the issue windows' own time counted in.
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
    /// Repetitions so far.
    pub(crate) fn len(&self) -> usize {
        self.own.bursts.len()
    }

    /// Pairs that an interrupt fell into.
    pub(crate) fn disturbed(&self) -> usize {
        let all = self.own.bursts.iter().chain(&self.own.baselines);
        let all = all.flat_map(|epoch| &epoch.pairs);
        all.filter(|pair| pair.disturbance == Disturbance::Interrupted).count()
    }

    /// Pairs of baselines that took more than twice their time.
    pub(crate) fn stolen(&self) -> usize {
        let all = self.own.baselines.iter().flat_map(|epoch| &epoch.pairs);
        all.filter(|pair| pair.disturbance == Disturbance::Stalled).count()
    }
}

/// Where one epoch lies in a program.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The burst's window.
    burst: usize,
    /// First window of the pairs after.
    after: usize,
}

/// Runs one batch and appends what it gave.
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

/// Bursts and baselines in turn; who comes first alternates, so that neither always follows the
/// other. Between burst and pairs lies a chain of varying length: it moves the pairs against the
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

/// 0 to 1, evenly spread over consecutive repetitions (the golden-ratio sequence).
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

/// Stretches of scalar code before the burst at `place`, as epochs of no burst.
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

/// The pairs of another hardware thread around `burst` (ticks); `None` if its trace does not reach
/// far enough.
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

/// Cuts the pairs in windows `after` out, with the pairs in windows `before` as their reference.
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

/// Mean duration of windows that nothing disturbed (ns). A mean, not a median: a median would
/// round to a step of the counter.
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
