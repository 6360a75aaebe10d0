//! What a mode works with: a target, its calibration, the other running code, and when to stop.

use std::sync::Arc;
use std::time::Duration;

use dimmer_processor::units::CpuId;

use crate::calibration::Calibration;
use crate::kernel::Kernel;
use crate::mode::Mode;
use crate::outcome::{Detail, Outcome};
use crate::program::{Counts, Program, Trace, Work};
use crate::stats::floor_index;
use crate::surroundings::Log;
use crate::target::{Job, Load, Target, TargetError};

/// Thoroughness of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effort {
    /// Less than 20 s in all: short horizons, few repetitions.
    Quick,
    /// Some minutes: horizons to 200 ms, repetitions until the result is precise.
    Full,
}

/// The caller's view of a running probe, and its means to stop it.
pub trait Observer {
    /// A new piece of work starts; the share `done` (0 to 1) of all work is complete.
    fn begins(&mut self, what: &str, done: f64);

    /// Whether to stop as soon as possible. Called every few hundred milliseconds.
    fn wants_stop(&self) -> bool;
}

/// Why a mode has no outcome.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModeError {
    /// The target failed.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The observer wanted to stop; what was measured of this mode is discarded.
    #[error("interrupted")]
    Interrupted,
    /// Fewer than four repetitions were undisturbed: too few to find or exclude an effect. Other
    /// modes and kernels may have more.
    #[error("nearly every {what} was interrupted")]
    Disturbed {
        /// A repetition, as a noun.
        what: String,
    },
}

/// Minimum number of undisturbed repetitions of a result: with fewer, no spread can be estimated
/// ([`crate::stats::Samples::centre`]).
pub(crate) const LEAST_USABLE: usize = 4;

/// Checks that at least [`LEAST_USABLE`] repetitions were undisturbed.
///
/// # Errors
/// [`ModeError::Disturbed`]
pub(crate) fn check_usable(undisturbed: usize, what: &str) -> Result<(), ModeError> {
    if undisturbed < LEAST_USABLE { Err(disturbed(what)) } else { Ok(()) }
}

/// The error of repetitions that were disturbed.
pub(crate) fn disturbed(what: &str) -> ModeError {
    ModeError::Disturbed { what: what.to_owned() }
}

/// Settings of a measurement, the same for all modes.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Thoroughness.
    pub effort: Effort,
    /// Maximum number of repetitions of a burst. The AVXFREQ thesis took 1000.
    pub repetitions: usize,
    /// Number of CPUs that run the measured program in step, including the measured one.
    pub threads: usize,
    /// Load on all other CPUs (pre-throttling).
    pub load: Option<Load>,
}

/// The workplace of one mode on one kernel.
pub(crate) struct Lab<'a> {
    pub(crate) target: &'a mut dyn Target,
    pub(crate) calibration: &'a Calibration,
    pub(crate) settings: &'a Settings,
    pub(crate) observer: &'a dyn Observer,
    pub(crate) cpu: CpuId,
    pub(crate) kernel: Arc<Kernel>,
    /// Time that this mode and kernel may take in addition to the minimum that they need.
    pub(crate) allowance: Duration,
    /// Conditions that the probe does not cause.
    pub(crate) surroundings: &'a mut Log,
    /// Sums of the performance counters so far.
    pub(crate) counts: Option<Counts>,
}

impl Lab<'_> {
    /// Whether to save time.
    pub(crate) fn is_quick(&self) -> bool {
        self.settings.effort == Effort::Quick
    }

    /// A deadline after a share (0 to 1) of the time that this mode may take, and after `most` at
    /// the latest.
    pub(crate) fn deadline(&self, share: f64, most: Duration) -> Deadline {
        Deadline { end: self.target.now() + self.allowance.mul_f64(share).min(most) }
    }

    /// The other CPUs that run the same program as the measured one.
    fn partners(&self) -> Vec<CpuId> {
        let others = self.target.cpus().iter().copied().filter(|&cpu| cpu != self.cpu);
        others.take(self.settings.threads.saturating_sub(1)).collect()
    }

    /// Runs `program` on the measured CPU and its partners, `watch` on another CPU, and the load on
    /// the remaining ones. Returns the traces of the measured CPU and of the watching one.
    pub(crate) fn run(
        &mut self,
        program: &Program,
        watch: Option<(CpuId, &Program)>,
        expected_ns: f64,
    ) -> Result<(Trace, Option<Trace>), ModeError> {
        if self.observer.wants_stop() {
            return Err(ModeError::Interrupted);
        }
        let mut jobs = vec![Job { cpu: self.cpu, program }];
        jobs.extend(watch.map(|(cpu, program)| Job { cpu, program }));
        for cpu in self.partners() {
            if !jobs.iter().any(|job| job.cpu == cpu) {
                jobs.push(Job { cpu, program });
            }
        }
        let load = self.settings.load.map(|load| self.load_program(load, expected_ns));
        if let Some(load) = &load {
            let idle = self.target.cpus().iter().copied();
            let idle: Vec<CpuId> =
                idle.filter(|cpu| !jobs.iter().any(|job| job.cpu == *cpu)).collect();
            jobs.extend(idle.into_iter().map(|cpu| Job { cpu, program: load }));
        }
        let mut traces = self.target.run(&jobs)?.into_iter();
        let own = traces.next().ok_or(TargetError::ThreadGone { cpu: self.cpu })?;
        match (&mut self.counts, &own.counts) {
            (Some(counts), Some(later)) => counts.add(later),
            (counts, later) => *counts = later.clone(),
        }
        Ok((own, watch.and_then(|_| traces.next())))
    }

    /// Code that keeps a core busy for about `expected_ns`.
    fn load_program(&self, load: Load, expected_ns: f64) -> Program {
        let window = match load {
            Load::Scalar => Work::clock(floor_u32(20_000.0 / self.calibration.link_ns)),
            // About 10 us at one instruction a nanosecond; a slower kernel only runs past the end.
            Load::Vector => Work::burst(&self.kernel, 10_000),
        };
        let window_ns = if load == Load::Scalar { 20_000.0 } else { 5_000.0 };
        let mut program = Program::default();
        program.push(&[window], floor_index(expected_ns / window_ns).max(1));
        program
    }

    /// An outcome, filled with what all modes have in common.
    pub(crate) fn outcome(&self, mode: Mode, detail: Detail) -> Outcome {
        Outcome {
            mode,
            kernel: self.kernel.name.clone(),
            class: self.kernel.class,
            cpu: self.cpu,
            threads: self.settings.threads,
            repetitions: 0,
            disturbed_windows: 0,
            stolen_windows: 0,
            preemptions: 0,
            effect: false,
            bound_ns: 0.0,
            horizon_ns: 0.0,
            counts: self.counts.clone(),
            detail,
        }
    }
}

/// The latest end of a loop over repetitions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    end: Duration,
}

impl Deadline {
    /// Whether it has passed.
    pub(crate) fn is_over(&self, lab: &Lab<'_>) -> bool {
        lab.target.now() >= self.end
    }
}

/// A positive number, rounded down to a count.
pub(crate) fn floor_u32(value: f64) -> u32 {
    u32::try_from(floor_index(value)).unwrap_or(u32::MAX)
}
