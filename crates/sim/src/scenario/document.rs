//! Scenarios as written in the file, and the checks that refuse some.

use std::collections::BTreeMap;
use std::sync::Arc;

use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::Upper;
use serde::Deserialize;

use super::steps::{Names, Numbered, StepDocument, Steps};
use super::{Scenario, Thread};
use crate::program::Distribution;
use crate::{Arrivals, Moment, Picos, Segment};

/// Instructions per cycle: from far below what any code has to more than any core retires.
const PER_CYCLE: (f64, f64) = (1e-6, 64.0);

/// Maximum time for which memory stalls an instruction (ns): a second.
const MOST_MEMORY_NS: f64 = 1e9;

/// Maximum number of steps of all threads together, as far as the file determines it: they take
/// some minutes to simulate.
const MOST_STEPS: f64 = 1e9;

/// Maximum number of steps as written, those of each thread counted: a thousand threads of a
/// thousand steps. The output has a line for each.
const MOST_WRITTEN: usize = 1_000_000;

/// Maximum number of times that a thread repeats its steps.
const MOST_TIMES: u64 = 1_000_000_000;

/// Maximum length of a step (µs): a day.
pub(super) const LONGEST_US: f64 = 8.64e10;

/// Maximum number of cores of a machine.
const MOST_CORES: u32 = 4096;

/// Maximum size of a thread's data in caches (KiB): a gibibyte.
const MOST_CACHED_KIB: u64 = 1 << 20;

/// Maximum number of threads of a scenario.
const MOST_THREADS: usize = 65_536;

/// Locks have numbers below this.
pub(super) const LOCKS: usize = 65_536;

/// The version of the format.
const SCHEMA: &str = "dimmer/scenario/1";

/// The file as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    schema: String,
    name: String,
    source: String,
    model: String,
    cores: i64,
    #[serde(default = "one")]
    threads_per_core: i64,
    #[serde(default)]
    smt_share: Option<f64>,
    #[serde(default)]
    idle_states: bool,
    #[serde(default)]
    pstate: Option<String>,
    #[serde(default)]
    end_us: Option<f64>,
    #[serde(default)]
    hand_over_us: Option<f64>,
    #[serde(default)]
    code: Vec<Code>,
    #[serde(default)]
    distribution: Vec<DistributionDocument>,
    #[serde(default)]
    thread: Vec<ThreadDocument>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Code {
    name: String,
    class: String,
    /// Instructions of all kinds.
    per_cycle: f64,
    /// Of the class.
    #[serde(default)]
    share: Option<f64>,
    #[serde(default)]
    chained: bool,
    #[serde(default)]
    dirty_upper: bool,
    #[serde(default)]
    memory_ns: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DistributionDocument {
    name: String,
    quantiles: Vec<Vec<f64>>,
    #[serde(default)]
    correlation: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ThreadDocument {
    name: String,
    #[serde(default)]
    program: Option<String>,
    #[serde(default)]
    count: Option<i64>,
    #[serde(default)]
    cpu: Option<i64>,
    #[serde(default)]
    cached_kib: Option<i64>,
    #[serde(default)]
    begin_us: Option<f64>,
    #[serde(default)]
    times: Option<i64>,
    #[serde(default)]
    requests: Option<Requests>,
    #[serde(default)]
    every_us: Option<f64>,
    steps: Vec<StepDocument>,
}

/// How requests arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Requests {
    Closed,
    Even,
    Random,
}

const fn one() -> i64 {
    1
}

impl Document {
    /// Checks the document.
    pub(super) fn check(self) -> Result<Scenario, String> {
        if self.schema != SCHEMA {
            return Err(format!("`schema` is \"{}\", expected \"{SCHEMA}\"", self.schema));
        }
        let cores = within("cores", self.cores, 1, MOST_CORES)?;
        let threads_per_core = within("threads_per_core", self.threads_per_core, 1, 8)?;
        if self.thread.is_empty() {
            return Err("no `[[thread]]`: there is nothing to run".to_owned());
        }
        let smt_share = match self.smt_share {
            Some(share) if share > 0.0 && share <= 1.0 => share,
            Some(share) => {
                return Err(format!("`smt_share` is {share}, expected a share above 0, at most 1"));
            }
            None if threads_per_core > 1 => {
                return Err("`smt_share` is missing: what each of several busy hardware threads has of its core".to_owned());
            }
            None => 1.0,
        };
        let mut code = BTreeMap::new();
        for one in &self.code {
            if code.insert(one.name.clone(), one.segment()?).is_some() {
                return Err(format!("code `{}` stands twice", one.name));
            }
        }
        let cpus = usize::try_from(cores * threads_per_core).unwrap_or(usize::MAX);
        let end = self.end_us.map(|us| span(us, "`end_us`")).transpose()?;
        let end = end.map(|end| Moment::START + end);
        let hand_over = self.hand_over_us.map(|us| span(us, "`hand_over_us`")).transpose()?;
        let mut distributions = BTreeMap::new();
        for one in &self.distribution {
            if distributions.insert(one.name.clone(), Arc::new(one.check()?)).is_some() {
                return Err(format!("distribution `{}` stands twice", one.name));
            }
        }
        let (pstates, regions) = (Numbered::default(), Numbered::default());
        let mut names = Names { code, distributions, pstates, regions };
        let mut threads = Vec::new();
        let (mut steps, mut written) = (0.0, 0);
        let mut programs = Numbered::default();
        for thread in self.thread {
            let program = thread.program.clone().unwrap_or_else(|| thread.name.clone());
            let program = (programs.number(&program) as u64, program);
            let count = thread.count;
            let count = count.map(|count| within("count", count, 1, MOST_THREADS));
            let count =
                count.transpose().map_err(|error| format!("thread `{}`: {error}", thread.name))?;
            let mut thread = thread.check(&mut names, cpus, end.is_some())?;
            let Thread { name, .. } = &thread;
            written += thread.steps.written * count.unwrap_or(1);
            if written > MOST_WRITTEN {
                return Err(format!(
                    "thread `{name}`: with it, the threads have {written} steps as written, \
                     expected at most {MOST_WRITTEN}"
                ));
            }
            steps += thread.steps_taken(end) * count.unwrap_or(1) as f64;
            if steps > MOST_STEPS {
                return Err(format!(
                    "thread `{name}`: with it, the threads take up to {steps:.3e} steps, expected \
                     at most {MOST_STEPS}: with less in `times`, `repeat`, `count` or `end_us`, \
                     or with longer steps or `every_us`"
                ));
            }
            thread.program = program;
            threads.extend(thread.equals(count, cpus)?);
            if threads.len() > MOST_THREADS {
                let all = threads.len();
                return Err(format!("{all} threads or more, expected at most {MOST_THREADS}"));
            }
        }
        Ok(Scenario {
            name: self.name,
            source: self.source,
            model: self.model,
            cores,
            threads_per_core,
            smt_share,
            idle_states: self.idle_states,
            pstate: self.pstate,
            pstates: names.pstates.names,
            end,
            hand_over_ns: hand_over.map(Picos::ns),
            threads,
        })
    }
}

impl DistributionDocument {
    fn check(&self) -> Result<Distribution, String> {
        let pairs = self.quantiles.iter().map(|pair| match pair.as_slice() {
            [probability, value] => Ok((*probability, *value)),
            other => {
                let count = other.len();
                Err(format!("`quantiles` has {count} numbers in a pair, expected [share, value]"))
            }
        });
        let distribution = pairs
            .collect::<Result<Vec<_>, _>>()
            .and_then(|pairs| Distribution::new(&pairs, self.correlation));
        distribution.map_err(|error| format!("distribution `{}`: {error}", self.name))
    }
}

impl Code {
    fn segment(&self) -> Result<Segment, String> {
        let Self { name, .. } = self;
        let class = self.class.parse::<InstructionClass>();
        let class = class.map_err(|error| format!("code `{name}`: {error}"))?;
        let bounded = |key: &str, found: f64, (low, high): (f64, f64)| {
            let is_within = (low..=high).contains(&found);
            is_within.then_some(()).ok_or_else(|| {
                format!("code `{name}`: `{key}` is {found}, expected a number from {low} to {high}")
            })
        };
        bounded("per_cycle", self.per_cycle, PER_CYCLE)?;
        let share = self.share.unwrap_or(1.0);
        bounded("share", share, (0.0, 1.0))?;
        bounded("memory_ns", self.memory_ns, (0.0, MOST_MEMORY_NS))?;
        Ok(Segment {
            class,
            upper: if self.dirty_upper { Upper::Dirty } else { Upper::Any },
            ipc: self.per_cycle,
            share,
            is_chained: self.chained,
            memory_ns: self.memory_ns,
            ..Segment::SCALAR
        })
    }
}

impl ThreadDocument {
    fn check(self, names: &mut Names, cpus: usize, has_end: bool) -> Result<Thread, String> {
        let Self { name, cpu, cached_kib, begin_us, times, requests, every_us, steps, .. } = self;
        let begin = begin_us.map(|us| span(us, "`begin_us`")).transpose();
        let begin = begin.map_err(|error| format!("thread `{name}`: {error}"))?.unwrap_or_default();
        let begin = Moment::START + begin;
        let every = every_us.map(|us| span(us, "`every_us`")).transpose();
        let every = every.map_err(|error| format!("thread `{name}`: {error}"))?;
        let requests = match (requests, every) {
            (None, None) => None,
            (Some(Requests::Closed), None) => Some(Arrivals::Closed),
            (Some(Requests::Even), Some(every)) => Some(Arrivals::Open { every, is_random: false }),
            (Some(Requests::Random), Some(every)) => {
                Some(Arrivals::Open { every, is_random: true })
            }
            _ => {
                return Err(format!(
                    "thread `{name}`: expected `requests = \"closed\"`, or \"even\" or \"random\" together with `every_us`"
                ));
            }
        };
        let cpu = cpu.map(|cpu| within("cpu", cpu, 0, cpus - 1)).transpose();
        let cpu = cpu.map_err(|error| format!("thread `{name}`: {error}"))?;
        let cached_kib = within("cached_kib", cached_kib.unwrap_or(0), 0, MOST_CACHED_KIB);
        let cached_kib = cached_kib.map_err(|error| format!("thread `{name}`: {error}"))?;
        if steps.is_empty() {
            return Err(format!("thread `{name}`: it has no steps"));
        }
        let times = times.map(|times| within("times", times, 0, MOST_TIMES)).transpose();
        let times = times.map_err(|error| format!("thread `{name}`: {error}"))?;
        let times = match times {
            Some(0) if has_end => u64::MAX,
            Some(0) => {
                return Err(format!(
                    "thread `{name}`: `times` is 0, for ever, but there is no `end_us`"
                ));
            }
            times => times.unwrap_or(1),
        };
        let steps = Steps::new(&steps, names);
        let steps = Arc::new(steps.map_err(|error| format!("thread `{name}`{error}"))?);
        if times > 1 && steps.effort.least() == 0.0 {
            return Err(format!(
                "thread `{name}`: its steps recur, but none of them takes any time for certain: \
                 expected `run` or `sleep_us` above 0 in each branch, and not only in blocks that \
                 may be repeated 0 times"
            ));
        }
        Ok(Thread {
            name,
            program: (0, String::new()),
            cpu,
            cached_kib,
            begin,
            times,
            requests,
            steps,
        })
    }
}

impl Thread {
    /// The maximum number of steps, at the highest clock that a model may have.
    fn steps_taken(&self, end: Option<Moment>) -> f64 {
        let left = end.map(|end| (end - self.begin).as_f64());
        let times = self.times as f64;
        let rounds = match (self.requests, left) {
            (Some(Arrivals::Open { every, .. }), Some(left)) => {
                times.min((left / every.as_f64()).ceil())
            }
            _ => times,
        };
        self.steps.effort.most_steps(rounds, left)
    }

    /// N copies, numbered from 1. If the first has a CPU, each is on the CPU after that of the one
    /// before. Without a number, returns only this thread.
    fn equals(self, count: Option<usize>, cpus: usize) -> Result<Vec<Self>, String> {
        let Some(count) = count else { return Ok(vec![self]) };
        let Self { name, cpu, .. } = &self;
        if let Some(cpu) = cpu.filter(|cpu| cpu + count > cpus) {
            let last = cpus - 1;
            return Err(format!(
                "thread `{name}`: `count` is {count} from `cpu` {cpu} on, but CPUs are 0 to {last}"
            ));
        }
        let of = |index: usize| Self {
            name: format!("{name} {}", index + 1),
            cpu: cpu.map(|cpu| cpu + index),
            ..self.clone()
        };
        Ok((0..count).map(of).collect())
    }
}

/// A whole number in its range, ends included.
pub(super) fn within<T>(key: &str, found: i64, low: T, high: T) -> Result<T, String>
where
    T: TryFrom<i64> + PartialOrd + std::fmt::Display,
{
    let fits = T::try_from(found).ok().filter(|number| low <= *number && *number <= high);
    fits.ok_or_else(|| format!("`{key}` is {found}, expected {low} to {high}"))
}

/// A span of microseconds.
pub(super) fn span(us: f64, key: &str) -> Result<Picos, String> {
    let span = Picos::rounded(us * 1e6);
    if span > Picos::ZERO && us <= LONGEST_US {
        Ok(span)
    } else {
        Err(format!("{key} is {us}, expected a number from 0.000001 to {LONGEST_US}"))
    }
}
