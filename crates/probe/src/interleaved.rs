//! Scalar code interleaved with bursts: how much longer it takes than the same code interleaved
//! with scalar stand-ins. A program that often calls short wide SIMD functions behaves so.
//!
//! The scalar code is a chain of multiplications: only the clock and the standstills of the core
//! affect its time. A series of bursts runs between two series of stand-ins, so that a drift of the
//! clock cancels; series in which the clock jumps do not count. This module measures, and predicts
//! nothing.

use std::sync::Arc;

use dimmer_processor::class::InstructionClass;
use dimmer_processor::units::CpuId;

use crate::calibration::{Calibration, run_one};
use crate::kernel::{self, Kernel};
use crate::lab::{ModeError, Observer, floor_u32};
use crate::program::{Program, Trace, Work};
use crate::stats::{Samples, floor_index};
use crate::target::Target;

/// Time after which every trace of bursts is gone (ns): longer than any known hold of a level (2.0
/// ms, paper 000 §3.3.4).
const SETTLE_NS: f64 = 3e6;

/// Time for which bursts recur before they count (ns), as in the mode `recurrence`: Emerald Rapids
/// needs that time before it keeps a level between bursts.
const LEARNING_NS: f64 = 12e6;

/// Time for which a series counts (ns): at least twice the hold of a level on Skylake.
const MEASURED_NS: f64 = 4e6;

/// Approximate time of an instruction of a burst, and of a tile's (ns), to compute the number of
/// bursts in those times.
const INSTRUCTION_NS: f64 = 0.2;
const TILE_INSTRUCTION_NS: f64 = 4.0;

/// A window that takes this much longer than the typical one (ns) was stolen from: three times the
/// longest halt for a new level in paper 000 §3.3.3.
const STOLEN_NS: f64 = 30_000.0;

/// Largest difference between the stand-ins before and after the bursts: half a step of 100 MHz at
/// 5 GHz.
const SAME_CLOCK: f64 = 0.01;

/// Kernels of the heavy classes, the widest first.
const HEAVY: [&str; 3] =
    ["vfmadd231pd-512-unrolled", "vfmadd231pd-256-unrolled", "vfmadd231pd-128-unrolled"];

/// Kernels of the light classes, the widest first.
const LIGHT: [&str; 2] = ["vpaddd-512-unrolled", "vpaddd-256-unrolled"];

/// Kernels of tiles; the first that runs stands for them.
const TILES: [&str; 2] = ["tdpbf16ps-tile-unrolled", "tdpbssd-tile-unrolled"];

/// The widest heavy kernel that `target` can run, the widest light one, the next narrower heavy
/// one, and one of tiles. Fewer if it has no more, and none if it has no wide code.
#[must_use]
pub fn kernels(target: &dyn Target) -> Vec<Arc<Kernel>> {
    let can_run = |names: &[&str]| -> Vec<Arc<Kernel>> {
        let known = names.iter().filter_map(|name| kernel::find(name).ok());
        known.filter(|kernel| target.lacks(kernel).is_none()).map(Arc::new).collect()
    };
    let [mut heavy, light, tiles] =
        [can_run(&HEAVY), can_run(&LIGHT), can_run(&TILES)].map(Vec::into_iter);
    let first = heavy.next().into_iter();
    first.chain(light.take(1)).chain(heavy.next()).chain(tiles.take(1)).collect()
}

/// What is interleaved: bursts of a kernel, and the scalar code between them.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// The code of the bursts.
    pub kernel: Arc<Kernel>,
    /// Instructions in a burst.
    pub burst: u32,
    /// Amount of scalar code between two bursts, as its time at the nominal clock (ns).
    pub scalar_ns: f64,
}

impl Pattern {
    /// Number of bursts that take about this time.
    fn bursts(&self, ns: f64) -> usize {
        let instruction_ns = match self.kernel.class {
            InstructionClass::Tile => TILE_INSTRUCTION_NS,
            _ => INSTRUCTION_NS,
        };
        let period_ns = self.scalar_ns + f64::from(self.burst) * instruction_ns;
        floor_index(ns / period_ns) + 1
    }

    /// Number of bursts before those that count.
    #[must_use]
    pub fn learning(&self) -> usize {
        self.bursts(LEARNING_NS)
    }

    /// Number of bursts that count.
    #[must_use]
    pub fn measured(&self) -> usize {
        self.bursts(MEASURED_NS)
    }
}

/// Results for one pattern.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Slow-down of the scalar code, as a share of its time between stand-ins; one for each series.
    pub slowdowns: Vec<f64>,
    /// Number of stretches of scalar code that were examined.
    pub windows: usize,
    /// Number of stretches left out because they, or the bursts before them, were interrupted or
    /// stolen from.
    pub left_out: usize,
    /// Number of series left out because the clock after them differed from the clock before.
    pub unsettled: usize,
}

/// Results of the whole measurement.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// One for each pattern, in order.
    pub patterns: Vec<Measured>,
    /// How often the kernel took the core away.
    pub preemptions: u64,
    /// Whether the observer stopped before all was done.
    pub interrupted: bool,
}

/// Measures all patterns in turn on `cpu`, `rounds` times.
///
/// # Errors
/// [`ModeError::Target`]: there is nothing to measure with.
pub fn run(
    target: &mut dyn Target,
    cpu: CpuId,
    patterns: &[Pattern],
    rounds: usize,
    observer: &mut dyn Observer,
) -> Result<Found, ModeError> {
    observer.begins("calibrating", 0.0);
    let calibration = Calibration::take(target, cpu)?;
    let mut found =
        Found { patterns: vec![Measured::default(); patterns.len()], ..Found::default() };
    let all = (rounds * patterns.len()) as f64;
    for round in 0..rounds {
        for (index, pattern) in patterns.iter().enumerate() {
            if observer.wants_stop() {
                found.interrupted = true;
                return Ok(found);
            }
            let what = format!("round {} of {rounds}: {}", round + 1, pattern.kernel);
            observer.begins(&what, (round * patterns.len() + index) as f64 / all);
            let trial = Trial::new(&calibration, pattern);
            let trace = run_one(target, cpu, &trial.program)?;
            found.preemptions += trace.preemptions;
            trial.evaluate(&calibration, &trace, &mut found.patterns[index]);
        }
    }
    Ok(found)
}

/// A program of stand-ins, bursts, and stand-ins again.
struct Trial {
    program: Program,
    /// For each of the three, the first window that counts, and the number of bursts or stand-ins
    /// that count.
    counted: [(usize, usize); 3],
}

impl Trial {
    fn new(calibration: &Calibration, pattern: &Pattern) -> Self {
        let scalar = Work::clock(floor_u32(pattern.scalar_ns / calibration.link_ns));
        let stand_in = Arc::new(kernel::stand_in());
        let mut program = Program::default();
        let mut push = |kernel: &Arc<Kernel>, before: usize| {
            let cycle = [Work::burst(kernel, pattern.burst), scalar.clone()];
            program.push(&cycle, before);
            let measured = pattern.measured();
            (program.push(&cycle, measured), measured)
        };
        let settling = pattern.bursts(SETTLE_NS);
        let counted = [
            push(&stand_in, settling),
            push(&pattern.kernel, pattern.learning()),
            push(&stand_in, settling),
        ];
        Self { program, counted }
    }

    fn evaluate(&self, calibration: &Calibration, trace: &Trace, measured: &mut Measured) {
        let mut mean = |(first, cycles)| Self::mean(calibration, trace, first, cycles, measured);
        let [before, bursts, after] = self.counted.map(&mut mean);
        let stand_ins = (before + after) / 2.0;
        if ((after - before) / stand_ins).abs() > SAME_CLOCK {
            measured.unsettled += 1;
        } else if (bursts / stand_ins).is_finite() {
            measured.slowdowns.push(bursts / stand_ins - 1.0);
        }
    }

    /// Mean time of the scalar code of a cycle (ns), without the time stamp. It is a mean, so that
    /// it includes the standstills that only some cycles have.
    fn mean(
        calibration: &Calibration,
        trace: &Trace,
        first: usize,
        cycles: usize,
        measured: &mut Measured,
    ) -> f64 {
        let scalar = |cycle: usize| first + 2 * cycle + 1;
        let ns = |cycle: usize| calibration.ns(trace.ticks(scalar(cycle)));
        let is_interrupted =
            |cycle: usize| trace.interrupted(scalar(cycle) - 1) || trace.interrupted(scalar(cycle));
        let quiet = (0..cycles).filter(|cycle| !is_interrupted(*cycle)).map(ns);
        let quiet: Samples = quiet.collect();
        let limit_ns = quiet.quantile(0.5).unwrap_or(f64::NAN) + STOLEN_NS;
        let kept: Vec<f64> = quiet.values().iter().copied().filter(|ns| *ns < limit_ns).collect();
        measured.windows += cycles;
        measured.left_out += cycles - kept.len();
        kept.iter().sum::<f64>() / kept.len() as f64 - calibration.instrument.overhead_ns
    }
}
