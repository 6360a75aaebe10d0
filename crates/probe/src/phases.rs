//! Phases of scalar and wide-vector code, each for a given time: the multi-phase tool of paper 000
//! §5.1.2 on the processor itself.
//!
//! There, another thread told the executing one when a phase was over. A [`Program`] has a length
//! and no clock: a phase is made of short windows, as many as take a little longer than it at the
//! fastest rate seen so far. What counts is what was completed within the phase's nominal time from
//! its first time stamp. A run in which a phase turns out shorter than that does not count, and the
//! next one has more windows; by how much phases last longer is told ([`Seen::lasted_ns`]).

use std::sync::Arc;

use dimmer_processor::units::{CpuId, TscFrequency, TscTicks};

use crate::calibration::run_one;
use crate::kernel::{self, Kernel};
use crate::lab::{ModeError, Observer, floor_u32};
use crate::program::{Program, Trace, Work};
use crate::stats::{Samples, floor_index};
use crate::target::Target;

/// Independent multiply-adds in an iteration of heavy code: one for each register but the source,
/// as the code of paper 000 §3.2.4 has them.
pub const UNROLLED: u32 = 31;

/// How much longer than asked for the windows of a phase take at the fastest rate seen.
const MARGIN: f64 = 1.02;

/// Windows of a phase, unless they are shorter or longer than the two lengths below.
const WINDOWS: f64 = 200.0;

/// Shortest window (ns): what its time stamp takes, some ten nanoseconds, is little against it.
const SHORTEST_NS: f64 = 2_000.0;

/// Longest window (ns), so that a window knows about one interrupt at most.
const LONGEST_NS: f64 = 50_000.0;

/// Scalar code before the first phase (ns): longer than any level is known to be held (2.0 ms,
/// paper 000 §3.3.4), so that a run does not feel the one before.
const LEAD_IN_NS: f64 = 5e6;

/// Windows of each phase in the run that finds out how fast its code is.
const PILOT_WINDOWS: usize = 50;

/// The clock that this run is laid out for (GHz); a wrong one makes its windows shorter or longer.
const PILOT_GHZ: f64 = 3.0;

/// Windows on both sides that tell how long a window should have taken.
const NEIGHBOURS: usize = 10;

/// A window that takes so much longer than its neighbours (ns) was stolen from, even if no
/// interrupt is known of: three times the longest halt for a new level in paper 000 §3.3.3.
const STOLEN_NS: f64 = 30_000.0;

/// A phase that lost more than this share of its time to others is disturbed.
const DISTURBED: f64 = 0.01;

/// What a phase executes.
#[derive(Clone, Debug)]
pub enum Code {
    /// A kernel, so many instructions an iteration.
    Wide {
        /// The instructions.
        kernel: Arc<Kernel>,
        /// How many of them.
        per_iteration: u32,
    },
    /// Additions that wait for each other; one is an iteration and takes a cycle, as the increments
    /// and jumps of the paper.
    Scalar,
}

impl Code {
    /// About so many iterations, and how many exactly.
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

    /// Roughly how many cycles an iteration takes: two multiply-adds a cycle, or one every four.
    fn cycles(&self) -> f64 {
        match self {
            Self::Wide { per_iteration: 1, .. } => 4.0,
            Self::Wide { per_iteration, .. } => f64::from(*per_iteration) / 2.0,
            Self::Scalar => 1.0,
        }
    }
}

/// The multiply-adds of paper 000 §5.1.2, as wide as a processor has them.
#[derive(Clone, Debug)]
pub struct Wide {
    /// How wide.
    pub bits: u32,
    /// Why they are not 512 bits wide, if they are not.
    pub lacks: Option<String>,
    /// [`UNROLLED`] of them at a time, independent of each other.
    pub heavy: Code,
    /// Each waits for the one before.
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
    /// The widest that `target` can run.
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

/// A phase that is to be run.
#[derive(Clone, Debug)]
pub struct Phase {
    /// What it executes.
    pub code: Code,
    /// For how long (ns); above 0.
    pub ns: f64,
}

/// One phase in one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// Iterations completed within its nominal time.
    pub iterations: f64,
    /// How long others had the core meanwhile, as far as that can be told (ns).
    pub lost_ns: f64,
    /// Whether that is more than one percent of its time.
    pub is_disturbed: bool,
    /// How long it went on until the next one began (ns).
    pub lasted_ns: f64,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The phases of each run.
    pub runs: Vec<Vec<Seen>>,
    /// How often the kernel took the core away in those runs.
    pub preemptions: u64,
    /// Whether the observer wanted to stop before all runs were done.
    pub interrupted: bool,
}

impl Found {
    /// The iterations of one phase, run by run, those left out in which it was disturbed.
    #[must_use]
    pub fn iterations(&self, phase: usize) -> Samples {
        let seen = self.runs.iter().filter_map(|run| run.get(phase));
        seen.filter(|seen| !seen.is_disturbed).map(|seen| seen.iterations).collect()
    }

    /// In how many runs the phase was disturbed.
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

/// The windows that a phase is made of.
#[derive(Clone, Debug)]
struct Shape {
    work: Work,
    /// Iterations of a window.
    per_window: f64,
    windows: usize,
    /// Mean duration of a window in the fastest run so far (ns).
    fastest_ns: f64,
}

impl Shape {
    /// Takes as many windows as the phase needs at the fastest rate, `mean_ns` a window being the
    /// last.
    fn fit(&mut self, phase_ns: f64, mean_ns: f64) {
        self.fastest_ns = self.fastest_ns.min(mean_ns);
        self.windows = floor_index(phase_ns * MARGIN / self.fastest_ns) + 1;
    }
}

/// Runs each phase for a moment, and lays it out by that.
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

/// The phases after some scalar code, and the first window of each.
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
    /// When each begins, after the first (ns), and when the last ends.
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

    /// What was completed within `phase_ns`; `None` if the windows are over before.
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

    /// How much longer than their neighbours those of the first `count` windows took that were
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
