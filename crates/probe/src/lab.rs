//! What a mode works with: a target, its calibration, who else runs, and when to stop.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dimmer_processor::units::CpuId;

use crate::calibration::Calibration;
use crate::kernel::Kernel;
use crate::mode::Mode;
use crate::outcome::{Detail, Outcome};
use crate::program::{Counts, Program, Trace, Work};
use crate::stats::floor_index;
use crate::surroundings::Log;
use crate::target::{Job, Load, Target, TargetError};

/// How thorough a probe is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effort {
    /// Less than 20 s in all: short horizons, few repetitions.
    Quick,
    /// Some minutes: horizons to 200 ms, repetitions until the result is precise.
    Full,
}

/// What the caller of a probe sees and says while it runs.
pub trait Observer {
    /// A new piece of work begins; `done` of all is behind (0 to 1).
    fn begins(&mut self, what: &str, done: f64);

    /// Whether to stop as soon as possible. Asked every few hundred milliseconds.
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
}

/// How modes measure, the same for all.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How thorough.
    pub effort: Effort,
    /// At most so many repetitions of a burst. The AVXFREQ thesis took 1000.
    pub repetitions: usize,
    /// CPUs that run the measured program in step, the measured one included.
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
    /// Time that this mode and kernel may take, the least they need apart.
    pub(crate) allowance: Duration,
    /// What goes on without the probe's doing.
    pub(crate) surroundings: &'a mut Log,
    /// What performance counters have said so far.
    pub(crate) counts: Option<Counts>,
}

impl Lab<'_> {
    /// Whether to save time.
    pub(crate) fn is_quick(&self) -> bool {
        self.settings.effort == Effort::Quick
    }

    /// A clock that runs out after a share (0 to 1) of what this mode may take, and after `most`
    /// in any case.
    pub(crate) fn deadline(&self, share: f64, most: Duration) -> Deadline {
        Deadline { end: Instant::now() + self.allowance.mul_f64(share).min(most) }
    }

    /// CPUs beside the measured one that run the same program.
    fn partners(&self) -> Vec<CpuId> {
        let others = self.target.cpus().iter().copied().filter(|&cpu| cpu != self.cpu);
        others.take(self.settings.threads.saturating_sub(1)).collect()
    }

    /// Runs `program` on the measured CPU and its partners, `watch` on another CPU, and the load
    /// on those that are left. Returns the traces of the measured CPU and of the watching one.
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
            // About 10 us at one instruction a nanosecond; slower kernels only overrun the end.
            Load::Vector => Work::burst(&self.kernel, 10_000),
        };
        let window_ns = if load == Load::Scalar { 20_000.0 } else { 5_000.0 };
        let mut program = Program::default();
        program.push(&[window], floor_index(expected_ns / window_ns).max(1));
        program
    }

    /// An outcome with what is the same for all modes.
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

/// When a loop over repetitions ends at the latest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    end: Instant,
}

impl Deadline {
    /// Whether it has passed.
    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }
}

/// A count from a positive number.
pub(crate) fn floor_u32(value: f64) -> u32 {
    u32::try_from(floor_index(value)).unwrap_or(u32::MAX)
}
