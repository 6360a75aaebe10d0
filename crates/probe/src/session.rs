//! A whole probe: which modes on which kernels, in what order, with one calibration.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dimmer_processor::units::CpuId;

use crate::calibration::Calibration;
use crate::kernel::Kernel;
use crate::lab::{Lab, ModeError, Observer, Settings};
use crate::mode::{Mode, downclock, episode, instructions, levels, ramp, recurrence};
use crate::outcome::{Detail, Findings, Outcome, Skipped};
use crate::surroundings::Log;
use crate::target::{Target, TargetError};

/// One measurement.
#[derive(Clone, Debug)]
pub struct Item {
    /// The question.
    pub mode: Mode,
    /// The code.
    pub kernel: Kernel,
    /// Instructions in a burst; only `episode` and `recurrence` ask.
    pub burst: u32,
}

/// What a probe is to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What to measure, in order.
    pub items: Vec<Item>,
    /// The CPU to measure.
    pub cpu: CpuId,
    /// How.
    pub settings: Settings,
    /// How long all of it may take. Items share what is left by what they usually take; each takes
    /// the least time that it needs in any case.
    pub budget: Duration,
    /// Whether modes that ask about an effect (upclock, recurrence, instructions) are left out for
    /// kernels of which no other mode of this plan has seen one.
    pub only_where_effect: bool,
}

impl Plan {
    /// Every mode on every kernel, mode by mode, and every burst in the modes that ask for one.
    #[must_use]
    pub fn cross(modes: &[Mode], kernels: &[Kernel], bursts: &[u32]) -> Vec<Item> {
        let mut items = Vec::new();
        for &mode in modes {
            let bursts = if mode.has_bursts() { bursts } else { &bursts[..bursts.len().min(1)] };
            for kernel in kernels {
                let of = |&burst| Item { mode, kernel: kernel.clone(), burst };
                items.extend(bursts.iter().map(of));
            }
        }
        items
    }
}

/// Calibrates the instrument and measures everything in the plan.
///
/// A stop by the observer is no error: what is complete is returned.
///
/// # Errors
/// [`TargetError`]: there is nothing to measure with.
pub fn run(
    target: &mut dyn Target,
    plan: &Plan,
    observer: &mut dyn Observer,
) -> Result<Findings, TargetError> {
    let begin = Instant::now();
    observer.begins("calibrating", 0.0);
    let calibration = Calibration::take(target, plan.cpu)?;
    let mut findings = Findings {
        tsc_ghz: calibration.tsc.ghz(),
        instrument: calibration.instrument,
        surroundings: None,
        outcomes: Vec::new(),
        skipped: Vec::new(),
        interrupted: false,
    };
    let mut surroundings = Log::default();
    for (index, Item { mode, kernel, burst }) in plan.items.iter().enumerate() {
        if let Some(reason) = target.lacks(kernel) {
            let skipped = Skipped { mode: None, kernel: kernel.name.clone(), reason };
            if !findings.skipped.contains(&skipped) {
                findings.skipped.push(skipped);
            }
            continue;
        }
        let asks_about_effect =
            matches!(mode, Mode::Upclock | Mode::Recurrence | Mode::Instructions);
        if plan.only_where_effect && asks_about_effect && !saw_effect(&findings, &kernel.name) {
            let reason = "no effect of this kernel was seen by the other modes".to_owned();
            let kernel = kernel.name.clone();
            findings.skipped.push(Skipped { mode: Some(*mode), kernel, reason });
            continue;
        }
        observer.begins(&format!("{mode} {kernel}"), index as f64 / plan.items.len() as f64);
        let weights = plan.items[index..].iter().map(|item| weight(item.mode)).sum::<f64>();
        let left = plan.budget.saturating_sub(begin.elapsed());
        let mut lab = Lab {
            target: &mut *target,
            calibration: &calibration,
            settings: &plan.settings,
            observer: &*observer,
            cpu: plan.cpu,
            kernel: Arc::new(kernel.clone()),
            allowance: left.mul_f64(weight(*mode) / weights),
            surroundings: &mut surroundings,
            counts: None,
        };
        match measure(&mut lab, *mode, *burst, &findings) {
            Ok(outcomes) => findings.outcomes.extend(outcomes),
            Err(ModeError::Interrupted) => {
                findings.interrupted = true;
                break;
            }
            Err(ModeError::Target(error)) => return Err(error),
        }
    }
    findings.surroundings = surroundings.told();
    Ok(findings)
}

/// How much of the time a mode takes, relative to the others: a recurrence is twenty measurements.
fn weight(mode: Mode) -> f64 {
    if mode == Mode::Recurrence { 4.0 } else { 1.0 }
}

fn measure(
    lab: &mut Lab<'_>,
    mode: Mode,
    burst: u32,
    findings: &Findings,
) -> Result<Vec<Outcome>, ModeError> {
    let one = match mode {
        Mode::Downclock => downclock::measure(lab)?,
        Mode::Upclock => {
            let settle_ns = settle_ns(findings, &lab.kernel.name);
            let settled = ramp::settled_burst(lab, settle_ns)?;
            episode::measure(lab, Mode::Upclock, settled)?
        }
        Mode::Throttle => ramp::throttle(lab)?,
        Mode::Instructions => instructions::measure(lab)?,
        Mode::Episode => episode::measure(lab, Mode::Episode, burst)?,
        Mode::Recurrence => recurrence::measure(lab, burst)?,
        Mode::Levels => return levels::measure(lab),
    };
    Ok(vec![one])
}

/// Whether any mode so far has seen an effect of the kernel.
fn saw_effect(findings: &Findings, kernel: &str) -> bool {
    findings.outcomes.iter().any(|outcome| outcome.kernel == kernel && outcome.effect)
}

/// The time that the kernel's clock takes to settle, if DOWNCLOCK was run before; else 0.
fn settle_ns(findings: &Findings, kernel: &str) -> f64 {
    let of_kernel = findings.outcomes.iter().filter(|outcome| outcome.kernel == kernel);
    let settle = of_kernel.filter_map(|outcome| match &outcome.detail {
        Detail::Downclock(downclock) => downclock.settle_ns.as_ref(),
        _ => None,
    });
    settle.map(|quantity| quantity.estimate.median).fold(0.0, f64::max)
}
