//! What a scenario has done.

use hdrhistogram::Histogram;

use super::Thread;
use crate::{Energy, Machine, Moment, NoEnergy, Observer, Totals};

/// What a scenario has done.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Each thread.
    pub threads: Vec<ThreadOutcome>,
    /// In which states each core spent its time.
    pub cores: Vec<Totals>,
    /// When it ended (ps).
    pub end: Moment,
    /// Whether it was stopped before its end.
    pub is_partial: bool,
    /// Stretches of code that were begun.
    pub segments: u64,
    /// What all of it took, or why that is not known.
    pub energy: Result<Energy, NoEnergy>,
}

/// What a thread has done.
#[derive(Clone, Debug, PartialEq)]
pub struct ThreadOutcome {
    /// Its name.
    pub name: String,
    /// That of its program.
    pub program: String,
    /// When it finished (ps); `None` if the scenario ended before.
    pub finished: Option<Moment>,
    /// Its steps that run code, in order.
    pub phases: Vec<PhaseOutcome>,
    /// Calls of marked regions, where somebody decides about them; of these, those that ran on
    /// dedicated cores.
    pub calls: u64,
    /// See above.
    pub offloaded: u64,
    /// Of its requests, if it serves any.
    pub latencies: Option<Latencies>,
}

/// Latencies of requests (ns).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latencies {
    /// How many were served.
    pub requests: u64,
    /// On average.
    pub mean: f64,
    /// Quantiles.
    pub p50: u64,
    /// 90 %.
    pub p90: u64,
    /// 99 %.
    pub p99: u64,
    /// 99.9 %.
    pub p999: u64,
    /// The longest.
    pub longest: u64,
}

impl Latencies {
    fn new(counted: &Histogram<u64>) -> Self {
        let quantile = |at| counted.value_at_quantile(at);
        Self {
            requests: counted.len(),
            mean: counted.mean(),
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p999: quantile(0.999),
            longest: counted.max(),
        }
    }
}

/// What a step of a thread has done, all its times taken together.
#[derive(Clone, Debug, PartialEq)]
pub struct PhaseOutcome {
    /// The name of its code.
    pub code: String,
    /// Instructions executed.
    pub instructions: f64,
    /// Time on a core (ps).
    pub time: Moment,
}

impl Outcome {
    /// What the machine's threads, which are these, have done.
    pub(super) fn new<O: Observer>(
        threads: &[Thread],
        machine: &Machine<O>,
        is_partial: bool,
    ) -> Self {
        let threads = threads.iter().zip(machine.threads()).map(|(thread, totals)| {
            let phases = thread.steps.iter().enumerate().filter_map(|(index, (_, run))| {
                let instructions = totals.instructions.get(index).copied().unwrap_or(0.0);
                let time = totals.time.get(index).copied().unwrap_or(0);
                Some(PhaseOutcome { code: run.clone()?, instructions, time })
            });
            ThreadOutcome {
                name: thread.name.clone(),
                program: thread.program.1.clone(),
                finished: totals.finished,
                phases: phases.collect(),
                calls: totals.calls,
                offloaded: totals.offloaded,
                latencies: totals.latencies.as_deref().map(Latencies::new),
            }
        });
        Self {
            threads: threads.collect(),
            cores: machine.cores().cloned().collect(),
            end: machine.now(),
            is_partial,
            segments: machine.segments(),
            energy: machine.energy(),
        }
    }
}
