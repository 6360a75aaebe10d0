//! A whole probe: which modes on which kernels, in what order, with one calibration.

use std::sync::Arc;

use dimmer_processor::units::CpuId;

use crate::calibration::Calibration;
use crate::kernel::Kernel;
use crate::lab::{Lab, ModeError, Observer, Settings};
use crate::mode::{Mode, episode, instructions, levels, ramp, recurrence};
use crate::outcome::{Detail, Findings, Outcome, Skipped};
use crate::target::{Target, TargetError};

/// What a probe is to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Modes, in the order in which they are run on each kernel.
    pub modes: Vec<Mode>,
    /// Kernels.
    pub kernels: Vec<Kernel>,
    /// The CPU to measure.
    pub cpu: CpuId,
    /// How.
    pub settings: Settings,
    /// Whether recurrence and instruction counts, which take longest, are measured only for
    /// kernels that were seen to have an effect by another mode of this plan.
    pub only_where_effect: bool,
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
    observer.begins("calibrating", 0.0);
    let calibration = Calibration::take(target, plan.cpu)?;
    let mut findings = Findings {
        tsc_ghz: calibration.tsc.ghz(),
        instrument: calibration.instrument,
        outcomes: Vec::new(),
        skipped: Vec::new(),
        interrupted: false,
    };
    let mut kernels = Vec::new();
    for kernel in &plan.kernels {
        match target.lacks(kernel) {
            None => kernels.push(Arc::new(kernel.clone())),
            Some(reason) => {
                let kernel = kernel.name.clone();
                findings.skipped.push(Skipped { mode: None, kernel, reason });
            }
        }
    }
    let total = (kernels.len() * plan.modes.len()).max(1) as f64;
    let mut behind = 0.0;
    for &mode in &plan.modes {
        for kernel in &kernels {
            observer.begins(&format!("{mode} {kernel}"), behind / total);
            behind += 1.0;
            let costly = matches!(mode, Mode::Recurrence | Mode::Instructions);
            if plan.only_where_effect && costly && !saw_effect(&findings, &kernel.name) {
                let reason = "no effect of this kernel was seen by the other modes".to_owned();
                let kernel = kernel.name.clone();
                findings.skipped.push(Skipped { mode: Some(mode), kernel, reason });
                continue;
            }
            let mut lab = Lab {
                target: &mut *target,
                calibration: &calibration,
                settings: &plan.settings,
                observer: &*observer,
                cpu: plan.cpu,
                kernel: Arc::clone(kernel),
            };
            match measure(&mut lab, mode, &findings) {
                Ok(outcomes) => findings.outcomes.extend(outcomes),
                Err(ModeError::Interrupted) => {
                    findings.interrupted = true;
                    return Ok(findings);
                }
                Err(ModeError::Target(error)) => return Err(error),
            }
        }
    }
    Ok(findings)
}

fn measure(
    lab: &mut Lab<'_>,
    mode: Mode,
    findings: &Findings,
) -> Result<Vec<Outcome>, ModeError> {
    let burst = lab.settings.burst;
    let one = match mode {
        Mode::Downclock => ramp::downclock(lab)?,
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
