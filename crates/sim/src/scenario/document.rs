//! Scenarios as written in the file, and the checks that refuse some.

mod tables;

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use dimmer_processor::text::{line_of, line_of_message, toml_problem};
use serde::Deserialize;
use toml::Spanned;

use self::tables::{Code, DistributionDocument, RegionDocument};
use super::phases::{Phases, PhasesDocument};
use super::steps::{Names, StepDocument, StepError, Steps};
use super::{ScenarioError, Thread};
use crate::program::Distribution;
use crate::{Arrivals, Moment, Picos, Scheduling, Segment, index};

/// Maximum number of steps of all threads together, as far as the file determines it: they take
/// some minutes to simulate.
pub(super) const MOST_STEPS: f64 = 1e9;

/// Maximum number of steps as written, those of each thread counted: a thousand threads of a
/// thousand steps. The output has a line for each.
pub(super) const MOST_WRITTEN: usize = 1_000_000;

/// Maximum number of times that a thread repeats its steps.
const MOST_TIMES: u64 = 1_000_000_000;

/// Maximum length of a step (µs): a day.
pub(super) const LONGEST_US: f64 = 8.64e10;

/// Maximum number of cores of a machine.
pub(super) const MOST_CORES: u32 = 4096;

/// Maximum size of a thread's data in caches, and of a region's (KiB): a gibibyte.
const MOST_CACHED_KIB: u64 = 1 << 20;

/// Maximum number of threads of a scenario.
pub(super) const MOST_THREADS: usize = 65_536;

/// Locks have numbers below this.
pub(super) const LOCKS: usize = 65_536;

/// Maximum length of the name of a table (bytes): outputs repeat it.
pub(super) const LONGEST_NAME: usize = 1000;

/// The version of the format.
pub(super) const SCHEMA: &str = "dimmer/scenario/1";

/// A file as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    schema: Option<Spanned<String>>,
    pub(super) include: Option<Spanned<Vec<String>>>,
    name: Option<Spanned<String>>,
    source: Option<Spanned<String>>,
    model: Option<Spanned<String>>,
    cores: Option<Spanned<i64>>,
    threads_per_core: Option<Spanned<i64>>,
    smt_share: Option<Spanned<f64>>,
    idle_states: Option<Spanned<bool>>,
    scheduler: Option<Spanned<String>>,
    pstate: Option<Spanned<String>>,
    end_us: Option<Spanned<f64>>,
    hand_over_us: Option<Spanned<f64>>,
    wide_cores: Option<Spanned<i64>>,
    core_pstates: Option<Spanned<Vec<String>>>,
    mwait_cores: Option<Spanned<Vec<i64>>>,
    phases: Option<Spanned<PhasesDocument>>,
    #[serde(default)]
    code: Vec<Spanned<Code>>,
    #[serde(default)]
    distribution: Vec<Spanned<DistributionDocument>>,
    #[serde(default)]
    region: Vec<Spanned<RegionDocument>>,
    #[serde(default)]
    thread: Vec<Spanned<ThreadDocument>>,
}

/// What a file and those that it includes contain, each checked by itself.
#[derive(Debug, Default)]
pub(super) struct Part {
    pub(super) schema: Key<()>,
    pub(super) name: Key<String>,
    pub(super) source: Key<String>,
    pub(super) model: Key<String>,
    pub(super) cores: Key<u32>,
    pub(super) threads_per_core: Key<u32>,
    pub(super) smt_share: Key<f64>,
    pub(super) idle_states: Key<bool>,
    pub(super) scheduler: Key<Scheduling>,
    pub(super) pstate: Key<String>,
    pub(super) end: Key<Moment>,
    pub(super) hand_over: Key<Picos>,
    pub(super) wide_cores: Key<u32>,
    pub(super) core_pstates: Key<Vec<String>>,
    pub(super) mwait_cores: Key<Vec<usize>>,
    pub(super) phases: Key<Phases>,
    pub(super) code: Vec<Arc<Table<Segment>>>,
    pub(super) distributions: Vec<Arc<Table<Arc<Distribution>>>>,
    /// The data of each region (KiB).
    pub(super) regions: Vec<Arc<Table<u64>>>,
    pub(super) threads: Vec<Arc<Table<ThreadDocument>>>,
}

/// The value of a key at the top, if the key is there.
pub(super) type Key<T> = Option<Arc<Placed<T>>>;

/// Something that was read, and its place.
#[derive(Debug)]
pub(super) struct Placed<T> {
    pub(super) place: Place,
    pub(super) value: T,
}

/// A table with a name.
#[derive(Debug)]
pub(super) struct Table<T> {
    pub(super) name: String,
    pub(super) place: Place,
    pub(super) value: T,
}

/// A place in a file.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) path: Arc<Path>,
    text: Arc<str>,
    start: usize,
}

impl Place {
    /// Refuses what stands here.
    pub(super) fn refuse(&self, message: impl fmt::Display) -> ScenarioError {
        let message = message.to_string();
        let line = line_of_message(&self.text, self.start, &message);
        ScenarioError { path: self.path.to_path_buf(), message: format!("line {line}: {message}") }
    }

    /// The line, from 1.
    pub(super) fn line(&self) -> usize {
        line_of(&self.text, self.start)
    }
}

/// A text, and the file that it was read from.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) path: Arc<Path>,
    pub(super) text: Arc<str>,
}

impl Source {
    /// The place of a value.
    pub(super) fn place<T>(&self, value: &Spanned<T>) -> Place {
        let (path, text) = (Arc::clone(&self.path), Arc::clone(&self.text));
        Place { path, text, start: value.span().start }
    }

    /// A checked key.
    fn key<T, C>(
        &self,
        value: Option<Spanned<T>>,
        check: impl Fn(T) -> Result<C, String>,
    ) -> Result<Key<C>, ScenarioError> {
        let checked = value.map(|value| {
            let place = self.place(&value);
            match check(value.into_inner()) {
                Ok(value) => Ok(Arc::new(Placed { place, value })),
                Err(error) => Err(place.refuse(error)),
            }
        });
        checked.transpose()
    }

    /// Checked tables.
    fn tables<T, C>(
        &self,
        tables: Vec<Spanned<T>>,
        check: impl Fn(T) -> Result<(String, C), String>,
    ) -> Result<Vec<Arc<Table<C>>>, ScenarioError> {
        let checked = tables.into_iter().map(|table| {
            let place = self.place(&table);
            let (name, value) = check(table.into_inner()).map_err(|error| place.refuse(error))?;
            let length = name.len();
            if length > LONGEST_NAME {
                return Err(place.refuse(format!(
                    "`name` has {length} bytes, expected at most {LONGEST_NAME}"
                )));
            }
            Ok(Arc::new(Table { name, place, value }))
        });
        checked.collect()
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ThreadDocument {
    pub(super) name: String,
    #[serde(default)]
    pub(super) program: Option<String>,
    #[serde(default)]
    pub(super) count: Option<i64>,
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

impl Document {
    /// Reads a file.
    pub(super) fn parse(source: &Source) -> Result<Self, ScenarioError> {
        let Source { path, text } = source;
        toml::from_str(text).map_err(|error| ScenarioError {
            path: path.to_path_buf(),
            message: toml_problem(text, &error),
        })
    }

    /// Checks what can be checked without the rest of the scenario.
    pub(super) fn check(self, source: &Source) -> Result<Part, ScenarioError> {
        let part = Part {
            schema: source.key(self.schema, |schema| match schema.as_str() {
                SCHEMA => Ok(()),
                _ => Err(format!("`schema` is \"{schema}\", expected \"{SCHEMA}\"")),
            })?,
            name: source.key(self.name, Ok)?,
            source: source.key(self.source, Ok)?,
            model: source.key(self.model, Ok)?,
            cores: source.key(self.cores, |cores| within("cores", cores, 1, MOST_CORES))?,
            threads_per_core: source
                .key(self.threads_per_core, |count| within("threads_per_core", count, 1, 8))?,
            smt_share: source.key(self.smt_share, |share| match share {
                share if share > 0.0 && share <= 1.0 => Ok(share),
                _ => Err(format!("`smt_share` is {share}, expected a share above 0, at most 1")),
            })?,
            idle_states: source.key(self.idle_states, Ok)?,
            scheduler: source.key(self.scheduler, |name| Scheduling::named(&name))?,
            pstate: source.key(self.pstate, Ok)?,
            end: source.key(self.end_us, |us| Ok(Moment::START + span(us, "`end_us`")?))?,
            hand_over: source.key(self.hand_over_us, |us| span(us, "`hand_over_us`"))?,
            wide_cores: source
                .key(self.wide_cores, |cores| within("wide_cores", cores, 1, MOST_CORES))?,
            core_pstates: source.key(self.core_pstates, Ok)?,
            mwait_cores: source.key(self.mwait_cores, |cores| {
                let core = |core| within("mwait_cores", core, 0, MOST_CORES - 1).map(index);
                cores.into_iter().map(core).collect()
            })?,
            phases: source.key(self.phases, PhasesDocument::check)?,
            code: source.tables(self.code, |code| Ok((code.name.clone(), code.segment()?)))?,
            distributions: source.tables(self.distribution, |distribution| {
                Ok((distribution.name.clone(), Arc::new(distribution.check()?)))
            })?,
            regions: source.tables(self.region, RegionDocument::check)?,
            threads: source.tables(self.thread, |thread| Ok((thread.name.clone(), thread)))?,
        };
        stand_once("code", &part.code)?;
        stand_once("distribution", &part.distributions)?;
        stand_once("region", &part.regions)?;
        Ok(part)
    }
}

/// Checks that no name stands twice.
pub(super) fn stand_once<T>(kind: &str, tables: &[Arc<Table<T>>]) -> Result<(), ScenarioError> {
    let mut names = BTreeSet::new();
    for table in tables {
        if !names.insert(&table.name) {
            return Err(table.place.refuse(format!("{kind} `{}` stands twice", table.name)));
        }
    }
    Ok(())
}

impl ThreadDocument {
    pub(super) fn check(
        &self,
        names: &mut Names,
        cpus: usize,
        has_end: bool,
    ) -> Result<Thread, StepError> {
        let Self { name, cpu, cached_kib, begin_us, times, requests, every_us, steps, .. } = self;
        let begin = begin_us.map(|us| span(us, "`begin_us`")).transpose()?.unwrap_or_default();
        let begin = Moment::START + begin;
        let every = every_us.map(|us| span(us, "`every_us`")).transpose()?;
        let requests = match (requests, every) {
            (None, None) => None,
            (Some(Requests::Closed), None) => Some(Arrivals::Closed),
            (Some(Requests::Even), Some(every)) => Some(Arrivals::Open { every, is_random: false }),
            (Some(Requests::Random), Some(every)) => {
                Some(Arrivals::Open { every, is_random: true })
            }
            _ => {
                return Err("expected `requests = \"closed\"`, or \"even\" or \"random\" \
                            together with `every_us`"
                    .to_owned()
                    .into());
            }
        };
        let cpu = cpu.map(|cpu| within("cpu", cpu, 0, cpus - 1)).transpose()?;
        let cached_kib = within("cached_kib", cached_kib.unwrap_or(0), 0, MOST_CACHED_KIB)?;
        if steps.is_empty() {
            return Err("it has no steps".to_owned().into());
        }
        let times = times.map(|times| within("times", times, 0, MOST_TIMES)).transpose()?;
        let times = match times {
            Some(0) if has_end => u64::MAX,
            Some(0) => {
                return Err("`times` is 0, for ever, but there is no `end_us`".to_owned().into());
            }
            times => times.unwrap_or(1),
        };
        let steps = Arc::new(Steps::new(steps, names)?);
        if times > 1 && steps.effort.least() == 0.0 {
            return Err("its steps recur, but none of them takes any time for certain: expected \
                        `run` or `sleep_us` above 0 in each branch, and not only in blocks that \
                        may be repeated 0 times"
                .to_owned()
                .into());
        }
        Ok(Thread {
            name: name.clone(),
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
    /// The number of steps that it usually takes, at the highest clock that a model may have.
    pub(super) fn steps_taken(&self, end: Option<Moment>) -> f64 {
        let left = end.map(|end| (end - self.begin).as_f64());
        let times = self.times as f64;
        let rounds = match (self.requests, left) {
            (Some(Arrivals::Open { every, .. }), Some(left)) => {
                times.min((left / every.as_f64()).ceil())
            }
            _ => times,
        };
        self.steps.effort.steps(rounds, left)
    }

    /// N copies, numbered from 1. If the first has a CPU, each is on the CPU after that of the one
    /// before. Without a number, returns only this thread.
    pub(super) fn equals(self, count: Option<usize>, cpus: usize) -> Result<Vec<Self>, String> {
        let Some(count) = count else { return Ok(vec![self]) };
        let Self { name, cpu, .. } = &self;
        if let Some(cpu) = cpu.filter(|cpu| cpu + count > cpus) {
            let last = cpus - 1;
            return Err(format!(
                "`count` is {count} from `cpu` {cpu} on, but CPUs are 0 to {last}"
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
