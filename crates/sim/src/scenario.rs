//! Scenarios: a workload described in a file.
//!
//! `docs/scenario.md` is the format. Reading checks everything that can be checked without a processor model.

mod outcome;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use dimmer_policy::licence::hardware::Rules;
use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::{Model, Upper};
use dimmer_processor::units::LicenceLevel;
use serde::Deserialize;

pub use self::outcome::{Latencies, Outcome, PhaseOutcome, ThreadOutcome};

use crate::machine::pstate;
use crate::{
    Arrivals, Costs, Ended, Extent, Governor, Machine, Moment, Observer, PS, Script, Segment,
    Settings, SimError, Step,
};

/// Instructions per cycle: from far below what any code has to more than any core retires.
const PER_CYCLE: (f64, f64) = (1e-6, 64.0);

/// How long memory stops an instruction at most (ns): a second.
const MOST_MEMORY_NS: f64 = 1e9;

/// How many instructions a step has at most: days of them.
const MOST_INSTRUCTIONS: f64 = 1e15;

/// How long a step is at most (µs): a day.
const LONGEST_US: f64 = 8.64e10;

/// Cores of a machine, at most.
const MOST_CORES: u32 = 4096;

/// What a thread has in caches at most (KiB): a gibibyte.
const MOST_CACHED_KIB: u64 = 1 << 20;

/// Threads of a scenario, at most.
const MOST_THREADS: usize = 65_536;

/// Locks have numbers below this.
const LOCKS: usize = 65_536;

/// The version of the format.
const SCHEMA: &str = "dimmer/scenario/1";

/// A workload: threads, and the code that they run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What it is.
    pub name: String,
    /// What it recreates.
    pub source: String,
    /// The model it is meant for, by name.
    pub model: String,
    cores: u32,
    threads_per_core: u32,
    smt_share: f64,
    idle_states: bool,
    /// What all cores ask for at the begin.
    pstate: Option<String>,
    /// Names of the P-states that threads ask for; their steps have the places here.
    pstates: Vec<String>,
    /// When it ends, if not by itself (ps).
    end: Option<Moment>,
    threads: Vec<Thread>,
}

#[derive(Clone, Debug)]
struct Thread {
    name: String,
    cpu: Option<usize>,
    cached_kib: u64,
    times: u64,
    requests: Option<Arrivals>,
    /// Each with the name of what it runs, if it runs anything.
    steps: Vec<(Step, Option<String>)>,
}

/// A file that is no scenario.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", path.display())]
pub struct ScenarioError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong, and what would be right.
    pub message: String,
}

/// The file as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    schema: String,
    name: String,
    source: String,
    model: String,
    cores: u32,
    #[serde(default = "one")]
    threads_per_core: u32,
    #[serde(default)]
    smt_share: Option<f64>,
    #[serde(default)]
    idle_states: bool,
    #[serde(default)]
    pstate: Option<String>,
    #[serde(default)]
    end_us: Option<f64>,
    code: Vec<Code>,
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
struct ThreadDocument {
    name: String,
    #[serde(default)]
    count: Option<usize>,
    #[serde(default)]
    cpu: Option<usize>,
    #[serde(default)]
    cached_kib: Option<u64>,
    #[serde(default)]
    times: Option<u64>,
    #[serde(default)]
    requests: Option<Requests>,
    #[serde(default)]
    every_us: Option<f64>,
    steps: Vec<StepDocument>,
}

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Requests {
    Closed,
    Even,
    Random,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct StepDocument {
    run: Option<String>,
    us: Option<f64>,
    instructions: Option<f64>,
    sleep_us: Option<f64>,
    lock: Option<usize>,
    unlock: Option<usize>,
    pstate: Option<String>,
}

const fn one() -> u32 {
    1
}

impl Scenario {
    /// Reads a scenario; `path` is for messages.
    ///
    /// # Errors
    /// What is wrong first, with its place and the accepted values.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ScenarioError> {
        let refused = |message: String| ScenarioError { path: path.to_owned(), message };
        let document: Document = toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| text[..span.start].matches('\n').count() + 1);
            let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
            refused(format!("{place}{}", error.message().replace('\n', " ")))
        })?;
        document.check().map_err(refused)
    }

    /// A machine that has the scenario's threads to run, and when it ends at the latest (ps).
    ///
    /// # Errors
    /// If the model lacks what that needs.
    pub fn machine<O: Observer>(
        &self,
        model: &Model,
        governor: Governor,
        seed: u64,
        observer: O,
    ) -> Result<(Machine<O>, Moment), SimError> {
        let settings = Settings {
            cores: self.cores,
            threads_per_core: self.threads_per_core,
            smt_share: self.smt_share,
            idle_states: self.idle_states,
            governor,
            costs: Costs::default(),
            pstate: self.pstate.clone(),
            seed,
        };
        let mut machine = Machine::new(model, settings, observer)?;
        let rules = Rules::new(model)?;
        let pstates = self.pstates.iter().map(|name| pstate(model, name));
        let pstates: Vec<usize> = pstates.collect::<Result<_, _>>()?;
        for thread in &self.threads {
            let level = |step: &Step| match step {
                Step::Run(segment) => rules.level_of(&segment.demand()),
                _ => LicenceLevel::new(0),
            };
            let of_model = |step: &Step| match step {
                Step::Ask(name) => pstates.get(*name).map_or(*step, |place| Step::Ask(*place)),
                step => *step,
            };
            let steps = thread.steps.iter();
            let steps = steps.map(|(step, _)| (of_model(step), level(step))).collect();
            let script = Script::new(steps, thread.times).under(governor);
            let script = match thread.requests {
                Some(requests) => script.serving(requests),
                None => script,
            };
            let spawned = machine.spawn(&thread.name, Box::new(script), thread.cpu);
            machine.caches(spawned, thread.cached_kib);
        }
        Ok((machine, self.end.unwrap_or(Moment::MAX)))
    }

    /// Runs it to its end, unless it `stops` before, as [`Machine::run_unless`] asks.
    ///
    /// # Errors
    /// As [`Scenario::machine`] and [`Machine::run`].
    pub fn run<O: Observer>(
        &self,
        model: &Model,
        governor: Governor,
        seed: u64,
        observer: O,
        stops: &dyn Fn() -> bool,
    ) -> Result<(Outcome, O), SimError> {
        let (mut machine, end) = self.machine(model, governor, seed, observer)?;
        let is_partial = machine.run_unless(end, stops)? == Ended::Stopped;
        let outcome = Outcome::new(&self.threads, &machine, is_partial);
        Ok((outcome, machine.into_observer()))
    }

    /// When it ends (ps), if not by itself.
    #[must_use]
    pub fn end(&self) -> Option<Moment> {
        self.end
    }
}

impl Document {
    fn check(self) -> Result<Scenario, String> {
        if self.schema != SCHEMA {
            return Err(format!("`schema` is \"{}\", expected \"{SCHEMA}\"", self.schema));
        }
        for (key, found, most) in
            [("cores", self.cores, MOST_CORES), ("threads_per_core", self.threads_per_core, 8)]
        {
            if !(1..=most).contains(&found) {
                return Err(format!("`{key}` is {found}, expected 1 to {most}"));
            }
        }
        if self.thread.is_empty() {
            return Err("no `[[thread]]`: there is nothing to run".to_owned());
        }
        let smt_share = match self.smt_share {
            Some(share) if share > 0.0 && share <= 1.0 => share,
            Some(share) => {
                return Err(format!("`smt_share` is {share}, expected a share above 0, at most 1"));
            }
            None if self.threads_per_core > 1 => {
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
        let cpus = usize::try_from(self.cores * self.threads_per_core).unwrap_or(usize::MAX);
        let end = self.end_us.map(|us| span(us, "`end_us`")).transpose()?;
        let mut pstates = Vec::new();
        let mut threads = Vec::new();
        for thread in self.thread {
            let count = thread.count;
            let thread = thread.check(&code, cpus, end.is_some(), &mut pstates)?;
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
            cores: self.cores,
            threads_per_core: self.threads_per_core,
            smt_share,
            idle_states: self.idle_states,
            pstate: self.pstate,
            pstates,
            end,
            threads,
        })
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
    fn check(
        self,
        code: &BTreeMap<String, Segment>,
        cpus: usize,
        has_end: bool,
        pstates: &mut Vec<String>,
    ) -> Result<Thread, String> {
        let Self { name, count: _, cpu, cached_kib, times, requests, every_us, steps } = self;
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
        if let Some(cpu) = cpu.filter(|cpu| *cpu >= cpus) {
            let last = cpus - 1;
            return Err(format!("thread `{name}`: `cpu` is {cpu}, but CPUs are 0 to {last}"));
        }
        let cached_kib = cached_kib.unwrap_or(0);
        if cached_kib > MOST_CACHED_KIB {
            return Err(format!(
                "thread `{name}`: `cached_kib` is {cached_kib}, expected 0 to {MOST_CACHED_KIB}"
            ));
        }
        if steps.is_empty() {
            return Err(format!("thread `{name}`: it has no steps"));
        }
        let times = match times {
            Some(0) if has_end => u64::MAX,
            Some(0) => {
                return Err(format!(
                    "thread `{name}`: `times` is 0, for ever, but there is no `end_us`"
                ));
            }
            times => times.unwrap_or(1),
        };
        let steps = steps.into_iter().enumerate().map(|(index, step)| {
            let place = format!("thread `{name}`, step {}", index + 1);
            step.check(code, index, pstates).map_err(|error| format!("{place}: {error}"))
        });
        let steps: Vec<(Step, Option<String>)> = steps.collect::<Result<_, _>>()?;
        let takes_time = |(step, _): &(Step, Option<String>)| match step {
            Step::Sleep(span) => *span > 0,
            Step::Run(_) => true,
            _ => false,
        };
        if times > 1 && !steps.iter().any(takes_time) {
            return Err(format!(
                "thread `{name}`: its steps recur, but none of them takes any time"
            ));
        }
        Ok(Thread { name, cpu, cached_kib, times, requests, steps })
    }
}

impl Thread {
    /// So many like it, numbered from 1, each on the CPU after that of the one before if the first has one; just this one if no number is
    /// given.
    fn equals(self, count: Option<usize>, cpus: usize) -> Result<Vec<Self>, String> {
        let Some(count) = count else { return Ok(vec![self]) };
        let Self { name, cpu, .. } = &self;
        if !(1..=MOST_THREADS).contains(&count) {
            return Err(format!(
                "thread `{name}`: `count` is {count}, expected 1 to {MOST_THREADS}"
            ));
        }
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

impl StepDocument {
    fn check(
        self,
        code: &BTreeMap<String, Segment>,
        counter: usize,
        pstates: &mut Vec<String>,
    ) -> Result<(Step, Option<String>), String> {
        const ACCEPTED: &str = "{ run = CODE, us = N }, { run = CODE, instructions = N }, { sleep_us = N }, { lock = N }, { unlock = N } or { pstate = NAME }";
        let step = match self {
            Self {
                run: Some(run),
                us,
                instructions,
                sleep_us: None,
                lock: None,
                unlock: None,
                pstate: None,
            } => {
                let names = || code.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
                let segment = code.get(&run);
                let segment = segment
                    .ok_or_else(|| format!("no code `{run}`, expected one of {}", names()))?;
                let extent = match (us, instructions) {
                    (Some(us), None) => Extent::Time(span(us, "`us`")?),
                    (None, Some(n)) if n >= 1.0 && n.is_finite() => Extent::Instructions(n),
                    (None, Some(n)) => {
                        return Err(format!(
                            "`instructions` is {n}, expected 1 to {MOST_INSTRUCTIONS}"
                        ));
                    }
                    _ => return Err("expected either `us` or `instructions`".to_owned()),
                };
                return Ok((Step::Run(Segment { extent, counter, ..*segment }), Some(run)));
            }
            Self { run: None, us: None, instructions: None, sleep_us, lock, unlock, pstate } => {
                match (sleep_us, lock, unlock, pstate) {
                    (None, None, None, Some(name)) => {
                        let known = pstates.iter().position(|known| *known == name);
                        Step::Ask(known.unwrap_or_else(|| {
                            pstates.push(name);
                            pstates.len() - 1
                        }))
                    }
                    (Some(us), None, None, None) => Step::Sleep(span(us, "`sleep_us`")?),
                    (None, Some(lock), None, None) if lock < LOCKS => Step::Lock(lock),
                    (None, None, Some(lock), None) if lock < LOCKS => Step::Unlock(lock),
                    (None, Some(lock), None, None) | (None, None, Some(lock), None) => {
                        return Err(format!("lock {lock}, expected 0 to {}", LOCKS - 1));
                    }
                    _ => return Err(format!("expected {ACCEPTED}")),
                }
            }
            _ => return Err(format!("expected {ACCEPTED}")),
        };
        Ok((step, None))
    }
}

/// Microseconds as picoseconds.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "what is below 0 or too long saturates, and is refused then"
)]
fn span(us: f64, key: &str) -> Result<Moment, String> {
    let ps = (us * 1000.0 * PS as f64).round() as Moment;
    if ps > 0 && us <= LONGEST_US {
        Ok(ps)
    } else {
        Err(format!("{key} is {us}, expected a number from 0.000001 to {LONGEST_US}"))
    }
}
