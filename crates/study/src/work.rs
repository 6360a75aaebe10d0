//! The work that programs get done in a run.

use std::collections::BTreeMap;

use dimmer_sim::Moment;
use dimmer_sim::scenario::{Outcome, ThreadOutcome};

/// The work of a program in a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Whether its threads serve requests, which count; otherwise instructions do.
    pub is_serving: bool,
    /// Requests served.
    pub requests: f64,
    /// Instructions executed.
    pub instructions: f64,
    /// When its last thread finished, or the run ended.
    pub until: Moment,
    /// The longest 99th percentile of its threads' requests (ns).
    pub p99: u64,
}

impl Done {
    /// Work per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        let counted = if self.is_serving { self.requests } else { self.instructions };
        counted / (self.until.since_start().as_f64() / 1e12)
    }
}

/// The work of each program, by its name.
#[must_use]
pub fn done(outcome: &Outcome) -> BTreeMap<&str, Done> {
    let mut programs: BTreeMap<&str, Done> = BTreeMap::new();
    for thread in &outcome.threads {
        let ThreadOutcome { program, finished, phases, latencies, .. } = thread;
        let of = programs.entry(program.as_str()).or_default();
        of.is_serving |= latencies.is_some();
        of.until = of.until.max(finished.unwrap_or(outcome.end));
        of.instructions += phases.iter().map(|phase| phase.instructions).sum::<f64>();
        of.requests += latencies.map_or(0.0, |latencies| latencies.requests as f64);
        of.p99 = of.p99.max(latencies.map_or(0, |latencies| latencies.p99));
    }
    programs
}
