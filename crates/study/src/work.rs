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
    /// The longest 99th percentile of its threads' requests (ns); `None` if none was served.
    pub p99: Option<u64>,
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
        of.p99 = of.p99.max(latencies.and_then(|latencies| Some(latencies.if_any()?.p99)));
    }
    programs
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use dimmer_processor::model::{Model, builtin};
    use dimmer_sim::Governor;
    use dimmer_sim::scenario::Scenario;

    use super::*;

    /// Two servers for 5 ms: one answers each millisecond, one would need a second for its first
    /// request.
    #[test]
    fn a_server_that_completes_no_request_does_no_work() {
        let server = |name: &str, us: u32| {
            format!(
                "[[thread]]\nname = '{name}'\nprogram = '{name}'\ntimes = 0\n\
                 requests = 'closed'\nsteps = [{{ run = 'scalar', us = {us} }}]\n"
            )
        };
        let text = format!(
            "schema = 'dimmer/scenario/1'\nname = 'servers'\nsource = 'made up'\n\
             model = 'i9-7940x'\ncores = 2\nend_us = 5_000\n\
             [[code]]\nname = 'scalar'\nclass = 'scalar'\nper_cycle = 1.0\n{}{}",
            server("fast", 1000),
            server("slow", 1_000_000)
        );
        let scenario = Scenario::parse(Path::new("servers.toml"), &text).unwrap();
        let model = Model::parse(Path::new("model"), builtin("i9-7940x").unwrap()).unwrap();
        let (outcome, ()) = scenario.run(&model, Governor::Hardware, 1, (), &|_| false).unwrap();
        let done = done(&outcome);
        let [fast, slow] = ["fast", "slow"].map(|name| done[name]);
        assert!(fast.rate() > 500.0 && fast.p99.is_some(), "{fast:?}");
        assert!(slow.is_serving && slow.instructions > 0.0, "{slow:?}");
        assert_eq!((slow.rate(), slow.p99), (0.0, None));
    }
}
