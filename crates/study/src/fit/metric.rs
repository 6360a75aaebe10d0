//! What a run of the simulator is compared by.

use dimmer_sim::scenario::{Latencies, Outcome, PhaseOutcome, ThreadOutcome};
use dimmer_sim::{Picos, Totals};

/// A number that a run gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Requests served a second.
    Requests,
    /// Instructions executed a second.
    Instructions,
    /// The mean latency of requests.
    Mean,
    /// Their median latency.
    Median,
    /// The latency of the 90th percentile.
    P90,
    /// The latency of the 99th percentile.
    P99,
    /// Time on CPUs for each request.
    CpuPerRequest,
    /// Time on CPUs of all of the run.
    CpuTime,
    /// When the last thread finished.
    Finish,
    /// Mean power of all packages.
    Watts,
    /// Changes of license level a second, of all cores.
    Changes,
    /// The part of the busy time above the first license level.
    Lowered,
}

impl Metric {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Requests,
        Self::Instructions,
        Self::Mean,
        Self::Median,
        Self::P90,
        Self::P99,
        Self::CpuPerRequest,
        Self::CpuTime,
        Self::Finish,
        Self::Watts,
        Self::Changes,
        Self::Lowered,
    ];

    /// Its name, with the unit.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests_per_s",
            Self::Instructions => "instructions_per_s",
            Self::Mean => "mean_us",
            Self::Median => "p50_us",
            Self::P90 => "p90_us",
            Self::P99 => "p99_us",
            Self::CpuPerRequest => "cpu_us_per_request",
            Self::CpuTime => "cpu_s",
            Self::Finish => "finish_s",
            Self::Watts => "watts",
            Self::Changes => "level_changes_per_s",
            Self::Lowered => "lowered_ratio",
        }
    }

    /// The metric of this name.
    ///
    /// # Errors
    /// The names that there are.
    pub(super) fn named(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|metric| metric.name() == name);
        let names = Self::ALL.map(Self::name).join(", ");
        found.ok_or_else(|| format!("`metric` is \"{name}\", expected one of {names}"))
    }

    /// Whether it is one of the whole machine, not of a program.
    pub(super) const fn is_of_machine(self) -> bool {
        matches!(self, Self::Watts | Self::Changes | Self::Lowered)
    }

    /// Its value in a run.
    ///
    /// * `program`: of which program; `None`: of all.
    /// * `code`: for `cpu_s` and `instructions_per_s`: of which code alone; `None`: of all.
    ///
    /// # Errors
    /// Why the run cannot have it, whatever its numbers. NaN if this one alone does not: no request
    /// was served in time, for example.
    pub(super) fn of(
        self,
        outcome: &Outcome,
        program: Option<&str>,
        code: Option<&str>,
    ) -> Result<f64, String> {
        let of = Of::new(outcome, program, code)?;
        let length_s = seconds(outcome.end.since_start());
        Ok(match self {
            Self::Requests => {
                of.latencies()?.map(|of| of.requests as f64).sum::<f64>() / of.until_s
            }
            Self::Instructions => of.phases().map(|of| of.instructions).sum::<f64>() / of.until_s,
            Self::Mean => {
                let requests = of.latencies()?.map(|of| of.requests as f64).sum::<f64>();
                let all = of.latencies()?.map(|of| of.mean * of.requests as f64).sum::<f64>();
                all / requests / 1e3
            }
            Self::Median => of.longest(|of| of.p50)?,
            Self::P90 => of.longest(|of| of.p90)?,
            Self::P99 => of.longest(|of| of.p99)?,
            Self::CpuPerRequest => {
                let requests = of.latencies()?.map(|of| of.requests as f64).sum::<f64>();
                of.cpu_s() * 1e6 / requests
            }
            Self::CpuTime => of.cpu_s(),
            Self::Finish => {
                let finished = of.threads.iter().map(|thread| thread.finished);
                let last = finished.collect::<Option<Vec<_>>>().and_then(|of| of.into_iter().max());
                last.map_or(f64::NAN, |at| seconds(at.since_start()))
            }
            Self::Watts => {
                let energy = outcome.energy.as_ref().map_err(ToString::to_string)?;
                let joules = energy.packages.iter().map(|package| package.joules);
                joules.sum::<f64>() / length_s
            }
            Self::Changes => {
                outcome.cores.iter().map(|core| core.changes as f64).sum::<f64>() / length_s
            }
            Self::Lowered => lowered(&outcome.cores),
        })
    }
}

/// What a metric is of.
struct Of<'a> {
    threads: Vec<&'a ThreadOutcome>,
    code: Option<&'a str>,
    /// When the last of the threads finished, or the run ended (s).
    until_s: f64,
}

impl<'a> Of<'a> {
    fn new(
        outcome: &'a Outcome,
        program: Option<&str>,
        code: Option<&'a str>,
    ) -> Result<Self, String> {
        let listed = |mut names: Vec<&str>| {
            names.sort_unstable();
            names.dedup();
            names.join(", ")
        };
        let is_of = |thread: &&ThreadOutcome| program.is_none_or(|name| thread.program == name);
        let threads: Vec<&ThreadOutcome> = outcome.threads.iter().filter(is_of).collect();
        if let Some(program) = program.filter(|_| threads.is_empty()) {
            let names = listed(outcome.threads.iter().map(|of| &*of.program).collect());
            return Err(format!("no `program` \"{program}\", expected one of {names}"));
        }
        let all = threads.iter().flat_map(|thread| &thread.phases).map(|of| &*of.code);
        if let Some(code) = code.filter(|code| all.clone().all(|of| of != *code)) {
            let names = listed(all.collect());
            return Err(format!("no `code` \"{code}\", expected one of {names}"));
        }
        let until = threads.iter().map(|thread| thread.finished.unwrap_or(outcome.end)).max();
        let until_s = seconds(until.unwrap_or(outcome.end).since_start());
        Ok(Self { threads, code, until_s })
    }

    fn latencies(&self) -> Result<impl Iterator<Item = &Latencies>, String> {
        let of = self.threads.iter().filter_map(|thread| thread.latencies.as_ref());
        if of.clone().next().is_none() {
            let what = "no thread serves requests: expected another `metric`, or a thread with \
                        `requests` in the scenario";
            return Err(what.to_owned());
        }
        Ok(of)
    }

    /// The longest of a quantile of the threads' latencies (µs).
    fn longest(&self, of: fn(&Latencies) -> u64) -> Result<f64, String> {
        let served = self.latencies()?.filter_map(Latencies::if_any);
        Ok(served.map(of).max().map_or(f64::NAN, |ns| ns as f64 / 1e3))
    }

    fn phases(&self) -> impl Iterator<Item = &PhaseOutcome> {
        let phases = self.threads.iter().flat_map(|thread| &thread.phases);
        phases.filter(|phase| self.code.is_none_or(|code| phase.code == code))
    }

    fn cpu_s(&self) -> f64 {
        self.phases().map(|phase| seconds(phase.time)).sum()
    }
}

fn seconds(time: Picos) -> f64 {
    time.as_f64() / 1e12
}

/// The part of the busy time of all cores in which their level was above the first one.
fn lowered(cores: &[Totals]) -> f64 {
    let at = |core: &Totals, from: usize| -> f64 {
        core.level.iter().skip(from).map(|time| seconds(*time)).sum()
    };
    let (mut lower, mut busy) = (0.0, 0.0);
    for core in cores {
        let kept = [core.throttled, core.still, core.stolen, core.delayed].map(seconds);
        lower += at(core, 1) + seconds(core.throttled);
        busy += at(core, 0) + kept.iter().sum::<f64>();
    }
    lower / busy
}
