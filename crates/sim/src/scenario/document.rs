//! Scenarios as written in the file, and the checks that refuse some.

mod tables;

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use dimmer_processor::text::line_of;
use serde::Deserialize;
use toml::Spanned;

use self::tables::{Code, DistributionDocument, RegionDocument};
use super::steps::{Names, Numbered, StepDocument, StepError, Steps};
use super::{Scenario, ScenarioError, Thread};
use crate::program::Distribution;
use crate::{Arrivals, Moment, Picos, Scheduling, Segment};

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

/// Maximum size of a thread's data in caches, and of a region's (KiB): a gibibyte.
const MOST_CACHED_KIB: u64 = 1 << 20;

/// Maximum number of threads of a scenario.
const MOST_THREADS: usize = 65_536;

/// Locks have numbers below this.
pub(super) const LOCKS: usize = 65_536;

/// Maximum length of the name of a table (bytes): outputs repeat it.
const LONGEST_NAME: usize = 1000;

/// The version of the format.
const SCHEMA: &str = "dimmer/scenario/1";

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
    pub(super) line: usize,
}

impl Place {
    /// Refuses what stands here.
    pub(super) fn refuse(&self, message: impl fmt::Display) -> ScenarioError {
        let message = format!("line {}: {message}", self.line);
        ScenarioError { path: self.path.to_path_buf(), message }
    }
}

/// A text, and the file that it was read from.
#[derive(Debug)]
pub(super) struct Source<'a> {
    pub(super) path: Arc<Path>,
    pub(super) text: &'a str,
}

impl Source<'_> {
    /// The place of a value.
    pub(super) fn place<T>(&self, value: &Spanned<T>) -> Place {
        let line = line_of(self.text, value.span().start);
        Place { path: Arc::clone(&self.path), line }
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

impl Document {
    /// Reads a file.
    pub(super) fn parse(source: &Source<'_>) -> Result<Self, ScenarioError> {
        let Source { path, text } = source;
        toml::from_str(text).map_err(|error| {
            let start = error.span().and_then(|span| text.get(..span.start));
            let line = start.map(|start| format!("line {}: ", line_of(text, start.len())));
            let key = start.and_then(key_before).map(|key| format!("`{key}`: "));
            let place = line.into_iter().chain(key).collect::<String>();
            let message = format!("{place}{}", error.message().replace('\n', " "));
            ScenarioError { path: path.to_path_buf(), message }
        })
    }

    /// Checks what can be checked without the rest of the scenario.
    pub(super) fn check(self, source: &Source<'_>) -> Result<Part, ScenarioError> {
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

impl Part {
    /// The scenario; `path` is the file that it was read from.
    pub(super) fn scenario(&self, path: &Path) -> Result<Scenario, ScenarioError> {
        let refused = |message: String| ScenarioError { path: path.to_owned(), message };
        let missing = |key: &str, what: &str| refused(format!("`{key}` is missing: {what}"));
        if self.schema.is_none() {
            return Err(missing("schema", &format!("expected \"{SCHEMA}\"")));
        }
        let name = of(&self.name).ok_or_else(|| missing("name", "the scenario's title"))?;
        let source = "the experiment that the scenario recreates";
        let source = of(&self.source).ok_or_else(|| missing("source", source))?;
        let model = "the processor model that the scenario is meant for";
        let model = of(&self.model).ok_or_else(|| missing("model", model))?;
        let cores = format!("expected 1 to {MOST_CORES}");
        let cores = of(&self.cores).ok_or_else(|| missing("cores", &cores))?;
        let threads_per_core = of(&self.threads_per_core).unwrap_or(1);
        let smt_share = of(&self.smt_share);
        if threads_per_core > 1 && smt_share.is_none() {
            let what = "what each of several busy hardware threads has of its core";
            return Err(missing("smt_share", what));
        }
        if let Some(wide) = self.wide_cores.as_ref().filter(|wide| wide.value >= cores) {
            let message =
                format!("`wide_cores` is {}, expected fewer than the {cores} `cores`", wide.value);
            return Err(wide.place.refuse(message));
        }
        if self.threads.is_empty() {
            return Err(refused("no `[[thread]]`: there is nothing to run".to_owned()));
        }
        let end = of(&self.end);
        let mut gathered = Gathered {
            names: Names {
                code: self.code.iter().map(|code| (code.name.clone(), code.value)).collect(),
                distributions: self
                    .distributions
                    .iter()
                    .map(|one| (one.name.clone(), Arc::clone(&one.value)))
                    .collect(),
                pstates: Numbered::default(),
                regions: Numbered::default(),
            },
            cpus: usize::try_from(cores * threads_per_core).unwrap_or(usize::MAX),
            end,
            programs: Numbered::default(),
            steps: 0.0,
            written: 0,
            threads: Vec::new(),
        };
        for Table { name, place, value } in self.threads.iter().map(|thread| &**thread) {
            let added = gathered.add(value);
            added.map_err(|error| place.refuse(format!("thread `{name}`{error}")))?;
        }
        let region_kib = self.regions_entered(&gathered.names.regions)?;
        Ok(Scenario {
            name,
            source,
            model,
            cores,
            threads_per_core,
            smt_share: smt_share.unwrap_or(1.0),
            idle_states: of(&self.idle_states).unwrap_or(false),
            scheduler: of(&self.scheduler).unwrap_or_default(),
            pstate: of(&self.pstate),
            pstates: gathered.names.pstates.names,
            region_kib,
            end,
            hand_over_ns: of(&self.hand_over).map(Picos::ns),
            wide_cores: of(&self.wide_cores),
            usual_steps: gathered.steps,
            threads: gathered.threads,
        })
    }
}

impl Part {
    /// The regions whose data are known: their numbers and data (KiB).
    fn regions_entered(&self, entered: &Numbered) -> Result<Vec<(usize, u64)>, ScenarioError> {
        let of = |table: &Arc<Table<u64>>| {
            let number = entered.names.iter().position(|name| *name == table.name);
            let number = number.ok_or_else(|| {
                table.place.refuse(format!("region `{}` is entered by no thread", table.name))
            });
            Ok((number?, table.value))
        };
        self.regions.iter().map(of).collect()
    }
}

/// The value of a key, if it is there.
fn of<T: Clone>(key: &Key<T>) -> Option<T> {
    key.as_ref().map(|placed| placed.value.clone())
}

/// Threads that were checked so far, and what counts for all of them.
struct Gathered {
    names: Names,
    cpus: usize,
    end: Option<Moment>,
    programs: Numbered,
    /// How many steps they take at most, and how many they have as written.
    steps: f64,
    written: usize,
    threads: Vec<Thread>,
}

impl Gathered {
    /// Adds the threads of a table.
    fn add(&mut self, document: &ThreadDocument) -> Result<(), StepError> {
        let ThreadDocument { name, program, count, .. } = document;
        let count = count.map(|count| within("count", count, 1, MOST_THREADS)).transpose()?;
        let program = program.as_ref().unwrap_or(name);
        if program.len() > LONGEST_NAME {
            let length = program.len();
            return Err(
                format!("`program` has {length} bytes, expected at most {LONGEST_NAME}").into()
            );
        }
        let mut thread = document.check(&mut self.names, self.cpus, self.end.is_some())?;
        thread.program = (self.programs.number(program) as u64, program.clone());
        let number = count.unwrap_or(1);
        self.written += thread.steps.written * number;
        if self.written > MOST_WRITTEN {
            return Err(format!(
                "with it, the threads have {} steps as written, expected at most {MOST_WRITTEN}",
                self.written
            )
            .into());
        }
        self.steps += thread.steps_taken(self.end) * number as f64;
        if self.steps > MOST_STEPS {
            return Err(format!(
                "with it, the threads take up to {:.3e} steps, expected at most {MOST_STEPS}: with \
                 less in `times`, `repeat`, `count` or `end_us`, or with longer steps or \
                 `every_us`",
                self.steps
            )
            .into());
        }
        let all = self.threads.len() + number;
        if all > MOST_THREADS {
            return Err(format!(
                "with it, there are {all} threads or more, expected at most {MOST_THREADS}"
            )
            .into());
        }
        self.threads.extend(thread.equals(count, self.cpus)?);
        Ok(())
    }
}

impl ThreadDocument {
    fn check(&self, names: &mut Names, cpus: usize, has_end: bool) -> Result<Thread, StepError> {
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
    fn steps_taken(&self, end: Option<Moment>) -> f64 {
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
    fn equals(self, count: Option<usize>, cpus: usize) -> Result<Vec<Self>, String> {
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

/// The key whose value starts where `text` ends.
fn key_before(text: &str) -> Option<&str> {
    let before = text.trim_end().strip_suffix('=')?.trim_end();
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let start = before.rfind(|character| !is_part(character)).map_or(0, |at| at + 1);
    before.get(start..).filter(|key| !key.is_empty())
}
