//! All costs of one isolated burst: its own duration, the scalar code after it, and scalar code on
//! other hardware threads. With a long burst this is the thesis's UPCLOCK mode (paper 000 §3.2.5).
//!
//! A first look has few repetitions with milliseconds (if necessary, tenths of seconds) around the
//! burst, to learn how long the effect lasts. The measurement follows, with a horizon to match,
//! until the cost is known to 5 % or 15 ns. If few bursts have the effect, the first look may miss
//! one that outlasts the horizon; then the measurement is repeated with a longer horizon.
//!
//! Kernels take turns, program by program ([`Ongoing`]), so that the activity of a shared machine's
//! neighbours, which varies from second to second, affects all kernels alike.

use std::sync::Arc;
use std::time::Duration;

use dimmer_processor::units::CpuId;

use super::Mode;
use super::ramp;
use crate::epoch::{self, Epochs, Pair, Plan, Seen};
use crate::lab::{LEAST_USABLE, Lab, ModeError, check_usable};
use crate::outcome::{Detail, Episode, Neighbour, Outcome, Quantity, Relation};
use crate::program::Operands;
use crate::response::{self, Response, ratio_after};
use crate::stats::Samples;

/// Scalar code around the burst in the first look (ns). Skylake's hold of 0.67 to 1.33 ms (paper
/// 000 §3.3.4) lies well within it.
const LOOK_NS: f64 = 3e6;

/// The same if the first look saw no end (ns): Zen 5 was seen to recover for more than 100 ms
/// (Chips and Cheese, "Zen 5's AVX-512 Frequency Behavior", 2025).
const LONG_LOOK_NS: f64 = 200e6;

/// The same, in a quick probe (ns).
const QUICK_LONG_LOOK_NS: f64 = 30e6;

/// Minimum scalar code before a burst in the measurement (ns).
const LEAST_QUIET_NS: f64 = 1e6;

/// Length of the time "right after the burst" if no release was measured (ns).
const NO_RELEASE_NS: f64 = 4000.0;

/// Precision of the cost at which a measurement ends: relative, and absolute (ns).
const PRECISION: (f64, f64) = (0.05, 15.0);

/// Minimum number of repetitions of a measurement.
const LEAST_REPETITIONS: usize = 40;

/// Maximum number of tries, undisturbed or not, of a measurement that is late.
const MOST_WHEN_LATE: usize = 4 * LEAST_USABLE;

/// Minimum number of repetitions, full and quick, unless every burst has the effect: on a shared
/// machine few bursts may have it, or for hundreds of milliseconds none. The thesis always took
/// 1000.
const LEAST_UNLESS_ALIKE: (usize, usize) = (1000, 300);

/// Factors for the usual number of repetitions if not all bursts have the effect.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// Upper limit, so that enough bursts have the effect.
    with_few: usize,
    /// Upper limit while it is open whether any burst has the effect, or what it costs.
    in_doubt: usize,
}

const PATIENCE: Patience = Patience { with_few: 4, in_doubt: 16 };

const NO_PATIENCE: Patience = Patience { with_few: 1, in_doubt: 1 };

/// Share of bursts below which an effect counts as absent. When surely fewer bursts have the
/// effect, the search for it ends.
pub const RARE: f64 = 0.02;

/// The share of its time that a measurement may spend on repetitions.
pub(crate) const SHARE_OF_TIME: f64 = 0.5;

/// Upper limit of that time.
pub(crate) const LONGEST: Duration = Duration::from_secs(40);

/// Longest program (ns); the user's interrupts are handled between programs.
const PROGRAM_NS: f64 = 150e6;

/// Measures an isolated burst of `instructions`; `mode` is the mode of the outcome.
pub(crate) fn measure(
    lab: &mut Lab<'_>,
    mode: Mode,
    instructions: u32,
) -> Result<Outcome, ModeError> {
    let mut ongoing = Ongoing::begin(lab, mode, instructions)?;
    let deadline = lab.deadline(SHARE_OF_TIME, LONGEST);
    loop {
        let is_late = deadline.is_over(lab);
        if ongoing.go_on(lab, is_late)? {
            break;
        }
    }
    ongoing.finish(lab)
}

/// A measurement that proceeds program by program, so that several can take turns.
pub(crate) struct Ongoing {
    mode: Mode,
    instructions: u32,
    look: Look,
    plan: Plan,
    repeating: Repeating,
}

impl Ongoing {
    /// Takes the first look, and plans the measurement.
    pub(crate) fn begin(
        lab: &mut Lab<'_>,
        mode: Mode,
        instructions: u32,
    ) -> Result<Self, ModeError> {
        let look = look(lab, instructions, Operands::Loaded)?;
        let plan = plan(lab, instructions, Operands::Loaded, &look);
        let repeating = Repeating::new(lab, lab.settings.repetitions, PATIENCE);
        Ok(Self { mode, instructions, look, plan, repeating })
    }

    /// Runs one more program. Returns whether that was enough, or the time is over.
    pub(crate) fn go_on(&mut self, lab: &mut Lab<'_>, is_late: bool) -> Result<bool, ModeError> {
        self.repeating.go_on(lab, &self.plan, is_late)
    }

    /// Measures the rest, and makes the outcome.
    pub(crate) fn finish(self, lab: &mut Lab<'_>) -> Result<Outcome, ModeError> {
        let Self { mode, instructions, mut look, mut plan, repeating } = self;
        let Repeating { mut epochs, mut response, .. } = repeating;
        while response.effect
            && 1.5 * response.end_ns > response.horizon_ns
            && look.quiet_ns < LOOK_NS
        {
            look.response.end_ns = 4.0 * response.end_ns;
            look.quiet_ns = LEAST_QUIET_NS.max(2.0 * look.response.end_ns);
            plan = self::plan(lab, instructions, Operands::Loaded, &look);
            (epochs, response) =
                repeat(lab, &plan, SHARE_OF_TIME, (lab.settings.repetitions, PATIENCE))?;
        }
        outcome(lab, mode, instructions, (&plan, &look), (&epochs, &response))
    }
}

fn outcome(
    lab: &mut Lab<'_>,
    mode: Mode,
    instructions: u32,
    (plan, look): (&Plan, &Look),
    (epochs, response): (&Epochs, &Response),
) -> Result<Outcome, ModeError> {
    check_usable(epochs.len(), &format!("burst of {instructions} instructions"))?;
    let throttling = if response.effect || mode == Mode::Episode {
        ramp::throttling(lab, instructions)?
    } else {
        None
    };
    let neighbours = neighbours(lab, plan)?;
    let after_ns = response.release_ns.quantile(0.5).unwrap_or(NO_RELEASE_NS);
    let after_ns = after_ns.max(2.0 * lab.calibration.pair_ns);
    let clock = |pair: &Pair| pair.clock;
    let issue = |pair: &Pair| pair.issue / pair.clock;
    let bursts: Samples = epochs.own.bursts.iter().map(|epoch| epoch.burst_ns).collect();
    let detail = Episode {
        burst_instructions: instructions,
        quiet_ns: plan.quiet as f64 * lab.calibration.pair_ns,
        burst_ns: quantity(bursts),
        effect_share: response.share(),
        mean_extra_ns: response.mean_ns,
        extra_ns: extra(response),
        clock_ratio_after: quantity(ratio_after(epochs, &response.detection, after_ns, clock)),
        issue_ratio_after: quantity(ratio_after(epochs, &response.detection, after_ns, issue)),
        release_delay_ns: of_most(&response.release_ns, response),
        release_stall_ns: of_most(&response.stall_ns, response),
        throttling,
        curve: look_and_measurement(&look.response, response),
        neighbours,
    };
    Ok(Outcome {
        repetitions: epochs.len(),
        disturbed_windows: epochs.disturbed(),
        stolen_windows: epochs.stolen(),
        preemptions: epochs.preemptions,
        effect: response.effect,
        bound_ns: response.bound_ns(),
        horizon_ns: response.horizon_ns,
        ..lab.outcome(mode, Detail::Episode(detail))
    })
}

/// Result of the first look.
pub(crate) struct Look {
    response: Response,
    /// Length of scalar code that was enough for the nominal clock to return (ns).
    pub(crate) quiet_ns: f64,
}

/// Measures how long the effect lasts.
pub(crate) fn look(
    lab: &mut Lab<'_>,
    instructions: u32,
    operands: Operands,
) -> Result<Look, ModeError> {
    let long_ns = if lab.is_quick() { QUICK_LONG_LOOK_NS } else { LONG_LOOK_NS };
    let repetitions = if lab.is_quick() { 16 } else { 40 };
    let first = look_around(lab, instructions, operands, LOOK_NS, repetitions)?;
    if first.end_ns < LOOK_NS / 2.0 {
        return Ok(Look { quiet_ns: LEAST_QUIET_NS.max(2.0 * first.end_ns), response: first });
    }
    let repetitions = if lab.is_quick() { 4 } else { 8 };
    let second = look_around(lab, instructions, operands, long_ns, repetitions)?;
    Ok(Look { quiet_ns: LOOK_NS.max(2.0 * second.end_ns).min(long_ns), response: second })
}

fn look_around(
    lab: &mut Lab<'_>,
    instructions: u32,
    operands: Operands,
    around_ns: f64,
    repetitions: usize,
) -> Result<Response, ModeError> {
    let pairs = lab.calibration.pairs(around_ns);
    let plan = Plan {
        kernel: Arc::clone(&lab.kernel),
        instructions,
        operands,
        quiet: pairs,
        after: pairs,
        batch: crate::stats::floor_index(PROGRAM_NS / (4.0 * around_ns)).clamp(1, repetitions),
        neighbour: None,
    };
    let mut epochs = Epochs::default();
    while epochs.len() + epochs.discarded < repetitions {
        epoch::run(lab, &plan, &mut epochs)?;
    }
    Ok(response::analyse(lab.calibration, &epochs.own))
}

/// The measurement that matches the first look.
pub(crate) fn plan(lab: &Lab<'_>, instructions: u32, operands: Operands, look: &Look) -> Plan {
    let after_ns = response::LEAST_HORIZON_NS.max(2.0 * look.response.end_ns);
    let period_ns = 2.0 * (look.quiet_ns + after_ns);
    Plan {
        kernel: Arc::clone(&lab.kernel),
        instructions,
        operands,
        quiet: lab.calibration.pairs(look.quiet_ns),
        after: lab.calibration.pairs(after_ns) + 1,
        batch: crate::stats::floor_index(PROGRAM_NS / period_ns).clamp(1, 20),
        neighbour: None,
    }
}

/// A measurement in progress.
struct Repeating {
    /// Maximum number of repetitions if every burst has the effect.
    most: usize,
    /// Factors for that number if not.
    patience: Patience,
    /// Number of repetitions at the next check whether few bursts have the effect. Each check may
    /// find an effect where there is none, so the number doubles in between.
    next_look: usize,
    epochs: Epochs,
    /// Analysis of the epochs; empty before the first check.
    response: Response,
}

impl Repeating {
    fn new(lab: &Lab<'_>, most: usize, patience: Patience) -> Self {
        let most = most.min(lab.settings.repetitions);
        let (full, quick) = LEAST_UNLESS_ALIKE;
        Self {
            most,
            patience,
            next_look: most.min(if lab.is_quick() { quick } else { full }),
            epochs: Epochs::default(),
            response: response::analyse(lab.calibration, &Seen::default()),
        }
    }

    /// Runs one more program. Returns whether the cost is precise then, all repetitions are done,
    /// or it is late and there are enough repetitions for a result, or no hope for them.
    fn go_on(&mut self, lab: &mut Lab<'_>, plan: &Plan, is_late: bool) -> Result<bool, ModeError> {
        let most_of_all = self.most * self.patience.in_doubt;
        let left = most_of_all.saturating_sub(self.epochs.len()).max(1);
        epoch::run(lab, &Plan { batch: plan.batch.min(left), ..plan.clone() }, &mut self.epochs)?;
        let done = self.epochs.len();
        let tried = done + self.epochs.discarded;
        let is_done_when_late = done >= LEAST_USABLE || tried >= MOST_WHEN_LATE;
        let is_over = tried >= most_of_all || is_late && is_done_when_late;
        let looks_for_few = tried >= self.next_look;
        let looks = done >= LEAST_REPETITIONS.min(self.most) && done % 60 < plan.batch;
        if !(is_over || looks_for_few || looks && tried < self.most) {
            return Ok(false);
        }
        self.response = response::analyse(lab.calibration, &self.epochs.own);
        if looks_for_few {
            self.next_look *= 2;
        }
        let is_alike = self.response.effect && self.response.detection.with.is_none();
        let is_enough = if is_alike {
            tried >= self.most || is_precise(&self.response)
        } else {
            let is_told = is_precise(&self.response) || tried >= self.most * self.patience.with_few;
            looks_for_few && is_told && !is_open(&self.response)
        };
        Ok(is_over || is_enough)
    }
}

/// Whether the measurement found neither an effect nor that the effect is rare.
fn is_open(response: &Response) -> bool {
    let is_rare = response.detection.share.is_some_and(|share| share.ci95.1 < RARE);
    !(response.effect || is_rare)
}

/// Repeats until the cost is precise, `most` repetitions are done (more with patience), or this
/// share of the time is used up.
fn repeat(
    lab: &mut Lab<'_>,
    plan: &Plan,
    share: f64,
    (most, patience): (usize, Patience),
) -> Result<(Epochs, Response), ModeError> {
    let deadline = lab.deadline(share, LONGEST);
    let mut repeating = Repeating::new(lab, most, patience);
    loop {
        let is_late = deadline.is_over(lab);
        if repeating.go_on(lab, plan, is_late)? {
            break;
        }
    }
    Ok((repeating.epochs, repeating.response))
}

fn is_precise(response: &Response) -> bool {
    let precise = |estimate: crate::stats::Estimate| {
        estimate.half_width() < (PRECISION.0 * estimate.median.abs()).max(PRECISION.1)
    };
    response.extra().is_some_and(precise)
}

/// Cost of the burst to scalar code on one other core and on the sibling.
fn neighbours(lab: &mut Lab<'_>, plan: &Plan) -> Result<Vec<Neighbour>, ModeError> {
    let siblings = lab.target.siblings(lab.cpu);
    let cpus = lab.target.cpus().to_vec();
    let other = cpus.into_iter().find(|cpu| *cpu != lab.cpu && !siblings.contains(cpu));
    let watched = other.map(|cpu| (cpu, Relation::OtherCore)).into_iter();
    let watched: Vec<(CpuId, Relation)> =
        watched.chain(siblings.first().map(|&cpu| (cpu, Relation::Sibling))).collect();
    let most = if lab.is_quick() { 60 } else { 100 };
    let mut found = Vec::new();
    for (cpu, relation) in watched {
        let plan = Plan { neighbour: Some(cpu), ..plan.clone() };
        let (epochs, _) = repeat(lab, &plan, 0.2, (most, NO_PATIENCE))?;
        let response = response::analyse(lab.calibration, &epochs.neighbour);
        if response.extra_ns.len() >= LEAST_USABLE {
            let extra_ns = extra(&response);
            found.push(Neighbour { cpu, relation, extra_ns, effect: response.effect });
        }
    }
    Ok(found)
}

/// A quantity with a sample in every repetition.
fn quantity(samples: Samples) -> Quantity {
    let nothing = crate::stats::Estimate { median: f64::NAN, ci95: (f64::NAN, f64::NAN) };
    let estimate = samples.estimate().unwrap_or(nothing);
    Quantity { estimate, samples }
}

/// Cost of the burst to the code after it.
fn extra(response: &Response) -> Quantity {
    let own = quantity(response.extra_ns.clone());
    Quantity { estimate: response.extra().unwrap_or(own.estimate), ..own }
}

/// A quantity that exists in at least half of the repetitions with the effect.
fn of_most(samples: &Samples, response: &Response) -> Option<Quantity> {
    (2 * samples.len() >= response.extra_ns.len()).then(|| Quantity::new(samples.clone())).flatten()
}

/// The measurement's curve, followed by the first look's beyond its horizon.
fn look_and_measurement(look: &Response, measured: &Response) -> Vec<crate::outcome::CurvePoint> {
    let near = measured.bins.iter().map(response::Bin::point);
    let reach = measured.bins.last().map_or(0.0, |bin| bin.at_ns);
    let far = look.bins.iter().filter(|bin| bin.at_ns > reach).map(response::Bin::point);
    near.chain(far).collect()
}
