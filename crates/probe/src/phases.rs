//! Phases of scalar and wide SIMD code, each for a given time: the multi-phase tool of paper 000
//! §5.1.2, on the processor itself.
//!
//! In the paper's tool, another thread signals the end of a phase to the executing thread. A
//! [`Program`] has a length and no clock: a phase consists of short windows, enough to take a
//! little longer than the phase at the fastest rate seen so far. The result is the work completed
//! within the phase's nominal time from its first time stamp. A run in which the windows of a phase
//! take less than that time does not count, and the next run has more windows. [`Seen::lasted_ns`]
//! reports how long phases really last.

use std::sync::Arc;

use dimmer_processor::units::{CpuId, TscFrequency, TscTicks};

use crate::calibration::run_one;
use crate::kernel::{self, Kernel};
use crate::lab::{ModeError, Observer, floor_u32};
use crate::program::{Program, Trace, Work};
use crate::stats::{Samples, floor_index};
use crate::target::Target;

/// Independent multiply-adds in an iteration of heavy code: one for each register except the
/// source, as in the code of paper 000 §3.2.4.
pub const UNROLLED: u32 = 31;

/// Time that the windows of a phase take at the fastest rate seen, as a factor of the phase's time.
const MARGIN: f64 = 1.02;

/// Number of windows in a phase, unless the two lengths below limit it.
const WINDOWS: f64 = 200.0;

/// Shortest window (ns): its time stamp, some ten nanoseconds, is small against it.
const SHORTEST_NS: f64 = 2_000.0;

/// Longest window (ns), so that at most about one interrupt falls into a window.
const LONGEST_NS: f64 = 50_000.0;

/// Scalar code before the first phase (ns): longer than any known hold of a level (2.0 ms, paper
/// 000 §3.3.4), so that a run does not affect the next one.
const LEAD_IN_NS: f64 = 5e6;

/// Number of windows of each phase in the run that measures the speed of its code.
const PILOT_WINDOWS: usize = 50;

/// Clock assumed for that run (GHz); a wrong one makes its windows shorter or longer.
const PILOT_GHZ: f64 = 3.0;

/// Number of windows on each side that show how long a window should have taken.
const NEIGHBOURS: usize = 10;

/// A window that takes this much longer than its neighbours (ns) counts as stolen from, even
/// without a known interrupt: three times the longest halt for a new level in paper 000 §3.3.3.
const STOLEN_NS: f64 = 30_000.0;

/// A phase that lost more than this share of its time counts as disturbed.
const DISTURBED: f64 = 0.01;

/// The code of a phase.
#[derive(Clone, Debug)]
pub enum Code {
    /// Instructions of a kernel, `per_iteration` in each iteration.
    Wide {
        /// The kernel.
        kernel: Arc<Kernel>,
        /// Number of its instructions in an iteration.
        per_iteration: u32,
    },
    /// Additions that depend on each other. One is an iteration and takes a cycle, as do the
    /// increments and jumps of the paper.
    Scalar,
}

impl Code {
    /// Work of about this number of iterations, and their exact number.
    fn work(&self, iterations: f64) -> (Work, f64) {
        match self {
            Self::Wide { kernel, per_iteration } => {
                let iterations = floor_u32(iterations).clamp(1, u32::MAX / per_iteration);
                (Work::burst(kernel, iterations * per_iteration), f64::from(iterations))
            }
            Self::Scalar => {
                let steps = floor_u32(iterations / f64::from(Work::CLOCK_STEP)).max(1);
                let links = steps.saturating_mul(Work::CLOCK_STEP);
                (Work::Unit { links }, f64::from(links))
            }
        }
    }

    /// Approximate cycles of an iteration: two multiply-adds a cycle, or one every four cycles.
    fn cycles(&self) -> f64 {
        match self {
            Self::Wide { per_iteration: 1, .. } => 4.0,
            Self::Wide { per_iteration, .. } => f64::from(*per_iteration) / 2.0,
            Self::Scalar => 1.0,
        }
    }
}

/// The multiply-adds of paper 000 §5.1.2, in the greatest width that the processor has.
#[derive(Clone, Debug)]
pub struct Wide {
    /// Width (bits).
    pub bits: u32,
    /// The reason why they are not 512 bits wide, if they are not.
    pub lacks: Option<String>,
    /// [`UNROLLED`] of them at a time, independent of each other.
    pub heavy: Code,
    /// Each depends on the previous one.
    pub waiting: Code,
}

/// A processor without multiply-adds of 256 bits or more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there are no wide multiply-adds here: {why}")]
pub struct NoWide {
    /// What is missing.
    pub why: String,
}

impl Wide {
    /// The widest multiply-adds that `target` can run.
    ///
    /// # Errors
    /// [`NoWide`] if it can run none.
    pub fn of(target: &dyn Target) -> Result<Self, NoWide> {
        let mut lacks = None;
        for bits in [512, 256] {
            let named = |dependency| kernel::find(&format!("vfmaddsub132pd-{bits}-{dependency}"));
            let kernels = named("unrolled").and_then(|heavy| Ok((heavy, named("dependent")?)));
            let (heavy, waiting) = kernels.map_err(|error| NoWide { why: error.to_string() })?;
            if let Some(why) = target.lacks(&heavy).or_else(|| target.lacks(&waiting)) {
                lacks = Some(why);
                continue;
            }
            let code = |kernel, per_iteration| Code::Wide { kernel, per_iteration };
            let (heavy, waiting) = (code(Arc::new(heavy), UNROLLED), code(Arc::new(waiting), 1));
            return Ok(Self { bits, lacks, heavy, waiting });
        }
        Err(NoWide { why: lacks.unwrap_or_default() })
    }
}

/// A phase to run.
#[derive(Clone, Debug)]
pub struct Phase {
    /// The code that it executes.
    pub code: Code,
    /// Its duration (ns); above 0.
    pub ns: f64,
}

/// One phase in one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// Iterations completed within the phase's nominal time.
    pub iterations: f64,
    /// Time in which other code had the core, as far as windows show it (ns).
    pub lost_ns: f64,
    /// Whether that is more than one percent of the phase's time.
    pub is_disturbed: bool,
    /// Time until the next phase started (ns).
    pub lasted_ns: f64,
}

/// Results of all runs.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The phases of each run.
    pub runs: Vec<Vec<Seen>>,
    /// How often the kernel took the core away in those runs.
    pub preemptions: u64,
    /// Whether the observer stopped before all runs were done.
    pub interrupted: bool,
}

impl Found {
    /// The iterations of one phase, without the runs in which it was disturbed.
    #[must_use]
    pub fn iterations(&self, phase: usize) -> Samples {
        let seen = self.runs.iter().filter_map(|run| run.get(phase));
        seen.filter(|seen| !seen.is_disturbed).map(|seen| seen.iterations).collect()
    }

    /// Number of runs in which the phase was disturbed.
    #[must_use]
    pub fn disturbed(&self, phase: usize) -> usize {
        let seen = self.runs.iter().filter_map(|run| run.get(phase));
        seen.filter(|seen| seen.is_disturbed).count()
    }
}

/// Runs the phases one after the other on `cpu`, `repetitions` times.
///
/// # Errors
/// [`ModeError::Target`]: nothing can be measured.
pub fn run(
    target: &mut dyn Target,
    cpu: CpuId,
    phases: &[Phase],
    repetitions: usize,
    observer: &mut dyn Observer,
) -> Result<Found, ModeError> {
    let tsc = target.tsc();
    observer.begins("finding out how fast each phase is", 0.0);
    let mut shapes = pilot(target, cpu, phases)?;
    let mut found = Found::default();
    while found.runs.len() < repetitions {
        if observer.wants_stop() {
            found.interrupted = true;
            return Ok(found);
        }
        let done = found.runs.len();
        let what = format!("run {} of {repetitions}", done + 1);
        observer.begins(&what, done as f64 / repetitions as f64);
        let (program, firsts) = lay_out(&shapes);
        let trace = run_one(target, cpu, &program)?;
        let mut run = Vec::with_capacity(phases.len());
        for ((shape, phase), first) in shapes.iter_mut().zip(phases).zip(firsts) {
            let windows = Windows::new(tsc, &trace, first, shape.windows);
            run.extend(windows.seen(phase.ns, shape.per_window));
            shape.fit(phase.ns, windows.mean_ns());
        }
        if run.len() == phases.len() {
            found.preemptions += trace.preemptions;
            found.runs.push(run);
        }
    }
    Ok(found)
}

/// The windows of a phase.
#[derive(Clone, Debug)]
struct Shape {
    work: Work,
    /// Iterations in a window.
    per_window: f64,
    windows: usize,
    /// Mean duration of a window in the fastest run so far (ns).
    fastest_ns: f64,
}

impl Shape {
    /// Sets the number of windows that the phase needs at the fastest rate; `mean_ns` is the mean
    /// window of the last run.
    fn fit(&mut self, phase_ns: f64, mean_ns: f64) {
        self.fastest_ns = self.fastest_ns.min(mean_ns);
        self.windows = floor_index(phase_ns * MARGIN / self.fastest_ns) + 1;
    }
}

/// Runs each phase briefly, and chooses its windows from the result.
fn pilot(target: &mut dyn Target, cpu: CpuId, phases: &[Phase]) -> Result<Vec<Shape>, ModeError> {
    let tsc = target.tsc();
    let window_ns =
        |phase: &Phase| (phase.ns / WINDOWS).clamp(SHORTEST_NS, LONGEST_NS).min(phase.ns / 4.0);
    let guess = |phase: &Phase| {
        let (work, per_window) =
            phase.code.work(window_ns(phase) * PILOT_GHZ / phase.code.cycles());
        Shape { work, per_window, windows: PILOT_WINDOWS, fastest_ns: f64::INFINITY }
    };
    let mut shapes: Vec<Shape> = phases.iter().map(guess).collect();
    let (program, firsts) = lay_out(&shapes);
    let trace = run_one(target, cpu, &program)?;
    for ((shape, phase), first) in shapes.iter_mut().zip(phases).zip(firsts) {
        let typical_ns = Windows::new(tsc, &trace, first, shape.windows).typical_ns();
        let iteration_ns = (typical_ns / shape.per_window).max(f64::MIN_POSITIVE);
        (shape.work, shape.per_window) = phase.code.work(window_ns(phase) / iteration_ns);
        shape.fit(phase.ns, shape.per_window * iteration_ns);
    }
    Ok(shapes)
}

/// Lays out the phases after some scalar code, and returns the first window of each.
fn lay_out(shapes: &[Shape]) -> (Program, Vec<usize>) {
    let mut program = Program::default();
    let (scalar, _) = Code::Scalar.work(LONGEST_NS * PILOT_GHZ);
    program.push(&[scalar], floor_index(LEAD_IN_NS / LONGEST_NS));
    let push = |shape: &Shape| program.push(std::slice::from_ref(&shape.work), shape.windows);
    let firsts = shapes.iter().map(push).collect();
    (program, firsts)
}

/// The windows of a phase in a trace.
struct Windows {
    /// Start of each window, and end of the last one, after the first start (ns).
    at_ns: Vec<f64>,
    interrupted: Vec<bool>,
}

impl Windows {
    fn new(tsc: TscFrequency, trace: &Trace, first: usize, count: usize) -> Self {
        let stamps = &trace.stamps[first..=first + count];
        let since =
            |ticks: u64| tsc.ns(TscTicks::from_ticks(ticks.saturating_sub(stamps[0].ticks())));
        Self {
            at_ns: stamps.iter().map(|stamp| since(stamp.ticks())).collect(),
            interrupted: (first..first + count).map(|index| trace.interrupted(index)).collect(),
        }
    }

    fn ns(&self, window: usize) -> f64 {
        self.at_ns[window + 1] - self.at_ns[window]
    }

    fn count(&self) -> usize {
        self.interrupted.len()
    }

    fn lasted_ns(&self) -> f64 {
        self.at_ns.last().copied().unwrap_or(0.0)
    }

    fn mean_ns(&self) -> f64 {
        self.lasted_ns() / self.count() as f64
    }

    fn typical_ns(&self) -> f64 {
        let all: Samples = (0..self.count()).map(|window| self.ns(window)).collect();
        all.quantile(0.5).unwrap_or(f64::NAN)
    }

    /// Work completed within `phase_ns`; `None` if the windows end before.
    fn seen(&self, phase_ns: f64, per_window: f64) -> Option<Seen> {
        let complete = self.at_ns.partition_point(|at| *at <= phase_ns) - 1;
        if complete == self.count() {
            return None;
        }
        let part = (phase_ns - self.at_ns[complete]) / self.ns(complete);
        let lost_ns = self.lost_ns(complete + 1);
        Some(Seen {
            iterations: (complete as f64 + part) * per_window,
            lost_ns,
            is_disturbed: lost_ns > DISTURBED * phase_ns,
            lasted_ns: self.lasted_ns(),
        })
    }

    /// Excess time over their neighbours of those of the first `count` windows that were
    /// interrupted or stolen from.
    fn lost_ns(&self, count: usize) -> f64 {
        let typical_ns = self.typical_ns();
        let excess = |window: usize| {
            let is_suspect = self.interrupted[window] || self.ns(window) > typical_ns + STOLEN_NS;
            if !is_suspect {
                return 0.0;
            }
            let near =
                window.saturating_sub(NEIGHBOURS)..(window + NEIGHBOURS + 1).min(self.count());
            let near: Samples = near.map(|window| self.ns(window)).collect();
            let excess = self.ns(window) - near.quantile(0.5).unwrap_or(f64::NAN);
            if self.interrupted[window] || excess > STOLEN_NS { excess.max(0.0) } else { 0.0 }
        };
        (0..count).map(excess).sum()
    }
}
