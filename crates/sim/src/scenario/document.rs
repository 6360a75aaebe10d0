//! Scenarios as written in the file, and the checks that refuse some.

use std::collections::BTreeMap;

use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::Upper;
use serde::Deserialize;

use super::{Scenario, Thread};
use crate::{Arrivals, Extent, Moment, Picos, Segment, Step};

/// Instructions per cycle: from far below what any code has to more than any core retires.
const PER_CYCLE: (f64, f64) = (1e-6, 64.0);

/// Maximum time for which memory stalls an instruction (ns): a second.
const MOST_MEMORY_NS: f64 = 1e9;

/// Maximum number of instructions of a step: minutes of them.
const MOST_INSTRUCTIONS: f64 = 1e12;

/// Maximum number of steps of all threads together, as far as the file determines it: they take
/// some minutes to simulate.
const MOST_STEPS: f64 = 1e9;

/// Maximum number of times that a thread repeats its steps.
const MOST_TIMES: u64 = 1_000_000_000;

/// No core has a shorter cycle (ns), see `docs/model.md`.
const SHORTEST_CYCLE_NS: f64 = 0.01;

/// Maximum length of a step (µs): a day.
const LONGEST_US: f64 = 8.64e10;

/// Maximum number of cores of a machine.
const MOST_CORES: u32 = 4096;

/// Maximum size of a thread's data in caches (KiB): a gibibyte.
const MOST_CACHED_KIB: u64 = 1 << 20;

/// Maximum number of threads of a scenario.
const MOST_THREADS: usize = 65_536;

/// Locks have numbers below this.
const LOCKS: usize = 65_536;

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

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct StepDocument {
    run: Option<String>,
    us: Option<f64>,
    instructions: Option<f64>,
    sleep_us: Option<f64>,
    lock: Option<i64>,
    unlock: Option<i64>,
    pstate: Option<String>,
    enter: Option<String>,
    leave: Option<String>,
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
        let (mut pstates, mut regions) = (Vec::new(), Vec::new());
        let mut threads = Vec::new();
        let mut steps = 0.0;
        let mut programs = Vec::new();
        for thread in self.thread {
            let program = thread.program.clone().unwrap_or_else(|| thread.name.clone());
            let program = (place(&mut programs, program.clone()) as u64, program);
            let count = thread.count;
            let count = count.map(|count| within("count", count, 1, MOST_THREADS));
            let count =
                count.transpose().map_err(|error| format!("thread `{}`: {error}", thread.name))?;
            let names = Names { code: &code, pstates: &mut pstates, regions: &mut regions };
            let mut thread = thread.check(names, cpus, end.is_some())?;
            steps += thread.steps_taken(end) * count.unwrap_or(1) as f64;
            if steps > MOST_STEPS {
                let Thread { name, .. } = &thread;
                return Err(format!(
                    "thread `{name}`: with it, the threads take {steps:.0} steps, expected at most {MOST_STEPS}: with less in `times`, \
                     `count` or `end_us`, or with longer steps or `every_us`"
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
            pstates,
            end,
            hand_over_ns: hand_over.map(Picos::ns),
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
    fn check(self, mut names: Names<'_>, cpus: usize, has_end: bool) -> Result<Thread, String> {
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
        let steps = steps.into_iter().enumerate().map(|(index, step)| {
            let place = format!("thread `{name}`, step {}", index + 1);
            step.check(&mut names, index).map_err(|error| format!("{place}: {error}"))
        });
        let steps: Vec<(Step, Option<String>)> = steps.collect::<Result<_, _>>()?;
        let takes_time = |(step, _): &(Step, Option<String>)| match step {
            Step::Sleep(span) => *span > Picos::ZERO,
            Step::Run(_) => true,
            _ => false,
        };
        if times > 1 && !steps.iter().any(takes_time) {
            return Err(format!(
                "thread `{name}`: its steps recur, but none of them takes any time"
            ));
        }
        are_paired(&steps).map_err(|error| format!("thread `{name}`: {error}"))?;
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
        let step = |(step, _): &(Step, Option<String>)| match step {
            Step::Sleep(span) => span.as_f64(),
            Step::Run(segment) => match segment.extent {
                Extent::Time(span) => span.as_f64(),
                Extent::Instructions(n) => {
                    n * (SHORTEST_CYCLE_NS / segment.ipc + segment.memory_ns) * 1000.0
                }
            },
            _ => 0.0,
        };
        let round = match self.requests {
            Some(Arrivals::Open { every, .. }) => every.as_f64(),
            _ => self.steps.iter().map(step).sum(),
        };
        let left = end.map(|end| (end - self.begin).as_f64());
        let rounds = left.map_or(f64::INFINITY, |left| (left / round).ceil());
        rounds.min(self.times as f64) * self.steps.len() as f64
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

impl StepDocument {
    fn check(
        self,
        names: &mut Names<'_>,
        counter: usize,
    ) -> Result<(Step, Option<String>), String> {
        let Names { code, pstates, regions } = names;
        const ACCEPTED: &str = "{ run = CODE, us = N }, { run = CODE, instructions = N }, { sleep_us = N }, { lock = N }, { unlock = N }, { pstate = NAME }, { enter = REGION } or { leave = REGION }";
        let Self { run, us, instructions, sleep_us, lock, unlock, pstate, enter, leave } = self;
        if run.is_none() && (us.is_some() || instructions.is_some()) {
            return Err(format!("expected {ACCEPTED}"));
        }
        let step = match (run, sleep_us, lock, unlock, pstate, enter, leave) {
            (Some(run), None, None, None, None, None, None) => {
                let names = || code.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
                let segment = code.get(&run);
                let segment = segment
                    .ok_or_else(|| format!("no code `{run}`, expected one of {}", names()))?;
                let extent = match (us, instructions) {
                    (Some(us), None) => Extent::Time(span(us, "`us`")?),
                    (None, Some(n)) if (1.0..=MOST_INSTRUCTIONS).contains(&n) => {
                        Extent::Instructions(n)
                    }
                    (None, Some(n)) => {
                        return Err(format!(
                            "`instructions` is {n}, expected 1 to {MOST_INSTRUCTIONS}"
                        ));
                    }
                    _ => return Err("expected either `us` or `instructions`".to_owned()),
                };
                return Ok((Step::Run(Segment { extent, counter, ..*segment }), Some(run)));
            }
            (None, Some(us), None, None, None, None, None) => Step::Sleep(span(us, "`sleep_us`")?),
            (None, None, Some(lock), None, None, None, None) => {
                Step::Lock(within("lock", lock, 0, LOCKS - 1)?)
            }
            (None, None, None, Some(lock), None, None, None) => {
                Step::Unlock(within("unlock", lock, 0, LOCKS - 1)?)
            }
            (None, None, None, None, Some(name), None, None) => Step::Ask(place(pstates, name)),
            (None, None, None, None, None, Some(name), None) => Step::Enter(place(regions, name)),
            (None, None, None, None, None, None, Some(name)) => Step::Leave(place(regions, name)),
            _ => return Err(format!("expected {ACCEPTED}")),
        };
        Ok((step, None))
    }
}

/// Names that steps may use: of code, and of P-states and regions, which are added as they come.
struct Names<'a> {
    code: &'a BTreeMap<String, Segment>,
    pstates: &'a mut Vec<String>,
    regions: &'a mut Vec<String>,
}

/// The index of a name in the list; a new name is appended.
fn place(known: &mut Vec<String>, name: String) -> usize {
    known.iter().position(|known| *known == name).unwrap_or_else(|| {
        known.push(name);
        known.len() - 1
    })
}

/// Checks that steps leave the regions that they enter, the last one first.
fn are_paired(steps: &[(Step, Option<String>)]) -> Result<(), String> {
    const EXPECTED: &str =
        "expected a `leave` for each `enter` of the same steps, of the region entered last first";
    let mut within = Vec::new();
    for (step, _) in steps {
        match step {
            Step::Enter(region) => within.push(region),
            Step::Leave(region) if within.pop() != Some(region) => return Err(EXPECTED.to_owned()),
            _ => {}
        }
    }
    within.is_empty().then_some(()).ok_or_else(|| EXPECTED.to_owned())
}

/// A whole number in its range, ends included.
fn within<T>(key: &str, found: i64, low: T, high: T) -> Result<T, String>
where
    T: TryFrom<i64> + PartialOrd + std::fmt::Display,
{
    let fits = T::try_from(found).ok().filter(|number| low <= *number && *number <= high);
    fits.ok_or_else(|| format!("`{key}` is {found}, expected {low} to {high}"))
}

/// A span of microseconds.
fn span(us: f64, key: &str) -> Result<Picos, String> {
    let span = Picos::rounded(us * 1e6);
    if span > Picos::ZERO && us <= LONGEST_US {
        Ok(span)
    } else {
        Err(format!("{key} is {us}, expected a number from 0.000001 to {LONGEST_US}"))
    }
}
