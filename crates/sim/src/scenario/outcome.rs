//! The outcome of a scenario.

use hdrhistogram::Histogram;

use super::Thread;
use crate::{Energy, Governor, Machine, Moment, NoEnergy, Observer, Picos, Totals};

/// The outcome of a scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// One entry for each thread.
    pub threads: Vec<ThreadOutcome>,
    /// The time that each core spent in each state.
    pub cores: Vec<Totals>,
    /// When it ended (ps).
    pub end: Moment,
    /// Whether it was stopped before its end.
    pub is_partial: bool,
    /// The number of segments started.
    pub segments: u64,
    /// Under the oracle, the governor whose way it chose; [`Governor::Oracle`] stands for the
    /// break-even.
    pub oracle_way: Option<Governor>,
    /// The energy of the whole run, or why it is not known.
    pub energy: Result<Energy, NoEnergy>,
}

/// The outcome of a thread.
#[derive(Clone, Debug, PartialEq)]
pub struct ThreadOutcome {
    /// The thread's name.
    pub name: String,
    /// The name of its program.
    pub program: String,
    /// When it finished (ps); `None` if the scenario ended before.
    pub finished: Option<Moment>,
    /// Its steps that run code, in the order of the file; those of blocks, too.
    pub phases: Vec<PhaseOutcome>,
    /// Cycles of its core while it was on it, standstills not counted, by the core's level.
    pub cycles: Vec<f64>,
    /// Calls of marked regions, if anything decides about them; `moved` counts those of them
    /// that ran on dedicated cores.
    pub calls: u64,
    /// Calls that ran on dedicated cores.
    pub moved: u64,
    /// How often it migrated at a mark.
    pub migrations: u64,
    /// How often it was trapped because its core is no wide one, if cores are specialised.
    pub traps: u64,
    /// Latencies of its requests, if it serves requests: also if none was served in time.
    pub latencies: Option<Latencies>,
}

/// Latencies of requests (ns). All are 0 if no request was served: [`Self::if_any`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latencies {
    /// The number of requests served.
    pub requests: u64,
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: u64,
    /// The 90 % quantile.
    pub p90: u64,
    /// The 99 % quantile.
    pub p99: u64,
    /// The 99.9 % quantile.
    pub p999: u64,
    /// The longest latency.
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

    /// These latencies; `None` if no request was served, so that there is none.
    #[must_use]
    pub fn if_any(&self) -> Option<&Self> {
        (self.requests > 0).then_some(self)
    }
}

/// The outcome of a step of a thread, summed over all rounds.
#[derive(Clone, Debug, PartialEq)]
pub struct PhaseOutcome {
    /// The name of its code.
    pub code: String,
    /// Instructions executed.
    pub instructions: f64,
    /// Time on a core (ps).
    pub time: Picos,
}

impl PhaseOutcome {
    /// Instructions per nanosecond; `None` if it did not run.
    #[must_use]
    pub fn rate(&self) -> Option<f64> {
        (self.instructions > 0.0).then(|| self.instructions / self.time.ns())
    }
}

impl Outcome {
    /// How much faster its work was done than `other`, an outcome of the same scenario, would have
    /// done it: the time that its phases would have taken at the other's rates, over the time that
    /// they took. 1 if nothing ran.
    #[must_use]
    pub fn speed_over(&self, other: &Self) -> f64 {
        let phases = |of: &Self| -> Vec<PhaseOutcome> {
            of.threads.iter().flat_map(|thread| thread.phases.clone()).collect()
        };
        let (mut took, mut would_take) = (0.0, 0.0);
        for (own, other) in phases(self).iter().zip(phases(other)) {
            if let Some(rate) = other.rate() {
                took += own.time.ns();
                would_take += own.instructions / rate;
            }
        }
        if took > 0.0 { would_take / took } else { 1.0 }
    }

    /// Whether no code ran below the level that it asks for.
    #[must_use]
    pub fn is_at_its_levels(&self) -> bool {
        self.cores.iter().all(|core| core.below == Picos::ZERO)
    }

    /// The outcome of a machine that ran these threads.
    pub(super) fn new<O: Observer>(
        threads: &[Thread],
        machine: &Machine<O>,
        is_partial: bool,
    ) -> Self {
        let threads = threads.iter().zip(machine.threads()).map(|(thread, totals)| {
            let phases = thread.steps.runs.iter().map(|(counter, code)| {
                let instructions = totals.instructions.get(*counter).copied().unwrap_or(0.0);
                let time = totals.time.get(*counter).copied().unwrap_or_default();
                PhaseOutcome { code: code.clone(), instructions, time }
            });
            ThreadOutcome {
                name: thread.name.clone(),
                program: thread.program.1.clone(),
                finished: totals.finished,
                phases: phases.collect(),
                cycles: totals.cycles.clone(),
                calls: totals.calls,
                moved: totals.moved,
                migrations: totals.migrations,
                traps: totals.traps,
                latencies: thread
                    .requests
                    .is_some()
                    .then(|| totals.latencies.as_deref().map(Latencies::new).unwrap_or_default()),
            }
        });
        Self {
            threads: threads.collect(),
            cores: machine.cores().cloned().collect(),
            end: machine.now(),
            is_partial,
            segments: machine.segments(),
            oracle_way: None,
            energy: machine.energy(),
        }
    }
}
