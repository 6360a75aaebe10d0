//! Scenarios: a workload described in a file.
//!
//! `docs/scenario.md` is the format. Reading checks everything that can be checked without a processor model.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use dimmer_policy::licence::hardware::Rules;
use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::{Model, Upper};
use dimmer_processor::units::LicenceLevel;
use serde::Deserialize;

use crate::{
    Costs, Extent, Governor, Machine, Moment, Observer, PS, Script, Segment, Settings, SimError,
    Step, Totals,
};

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
    /// When it ends, if not by itself (ps).
    end: Option<Moment>,
    threads: Vec<Thread>,
}

#[derive(Clone, Debug)]
struct Thread {
    name: String,
    cpu: Option<usize>,
    times: u64,
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
    cpu: Option<usize>,
    #[serde(default)]
    times: Option<u64>,
    steps: Vec<StepDocument>,
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
            governor,
            costs: Costs::default(),
            seed,
        };
        let mut machine = Machine::new(model, settings, observer)?;
        let rules = Rules::new(model)?;
        for thread in &self.threads {
            let level = |step: &Step| match step {
                Step::Run(segment) => rules.level_of(&segment.demand()),
                _ => LicenceLevel::new(0),
            };
            let steps = thread.steps.iter().map(|(step, _)| (*step, level(step))).collect();
            let script = Script::new(steps, thread.times);
            let script = if governor == Governor::User { script.calling() } else { script };
            machine.spawn(&thread.name, Box::new(script), thread.cpu);
        }
        Ok((machine, self.end.unwrap_or(Moment::MAX)))
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// As [`Scenario::machine`] and [`Machine::run`].
    pub fn run<O: Observer>(
        &self,
        model: &Model,
        governor: Governor,
        seed: u64,
        observer: O,
    ) -> Result<(Outcome, O), SimError> {
        let (mut machine, end) = self.machine(model, governor, seed, observer)?;
        machine.run(end)?;
        let threads = self.threads.iter().zip(machine.threads()).map(|(thread, totals)| {
            let phases = thread.steps.iter().enumerate().filter_map(|(index, (_, run))| {
                let instructions = totals.instructions.get(index).copied().unwrap_or(0.0);
                let time = totals.time.get(index).copied().unwrap_or(0);
                Some(PhaseOutcome { code: run.clone()?, instructions, time })
            });
            let (name, finished) = (thread.name.clone(), totals.finished);
            ThreadOutcome { name, finished, phases: phases.collect() }
        });
        let outcome = Outcome {
            threads: threads.collect(),
            cores: machine.cores().cloned().collect(),
            segments: machine.segments(),
        };
        Ok((outcome, machine.into_observer()))
    }
}

/// What a scenario has done.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Each thread.
    pub threads: Vec<ThreadOutcome>,
    /// In which states each core spent its time.
    pub cores: Vec<Totals>,
    /// Stretches of code that were begun.
    pub segments: u64,
}

/// What a thread has done.
#[derive(Clone, Debug, PartialEq)]
pub struct ThreadOutcome {
    /// Its name.
    pub name: String,
    /// When it finished (ps); `None` if the scenario ended before.
    pub finished: Option<Moment>,
    /// Its steps that run code, in order.
    pub phases: Vec<PhaseOutcome>,
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

impl Document {
    fn check(self) -> Result<Scenario, String> {
        if self.schema != SCHEMA {
            return Err(format!("`schema` is \"{}\", expected \"{SCHEMA}\"", self.schema));
        }
        if self.cores == 0 || self.threads_per_core == 0 {
            return Err("`cores` and `threads_per_core` are at least 1".to_owned());
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
        let threads =
            self.thread.into_iter().map(|thread| thread.check(&code, cpus, end.is_some()));
        Ok(Scenario {
            name: self.name,
            source: self.source,
            model: self.model,
            cores: self.cores,
            threads_per_core: self.threads_per_core,
            smt_share,
            end,
            threads: threads.collect::<Result<_, _>>()?,
        })
    }
}

impl Code {
    fn segment(&self) -> Result<Segment, String> {
        let Self { name, .. } = self;
        let class = self.class.parse::<InstructionClass>();
        let class = class.map_err(|error| format!("code `{name}`: {error}"))?;
        if !(self.per_cycle > 0.0 && self.per_cycle.is_finite()) {
            let found = self.per_cycle;
            return Err(format!(
                "code `{name}`: `per_cycle` is {found}, expected a number above 0"
            ));
        }
        let share = self.share.unwrap_or(1.0);
        if !(0.0..=1.0).contains(&share) {
            return Err(format!("code `{name}`: `share` is {share}, expected one from 0 to 1"));
        }
        if !(self.memory_ns >= 0.0 && self.memory_ns.is_finite()) {
            let found = self.memory_ns;
            return Err(format!("code `{name}`: `memory_ns` is {found}, expected 0 or above"));
        }
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
    ) -> Result<Thread, String> {
        let Self { name, cpu, times, steps } = self;
        if let Some(cpu) = cpu.filter(|cpu| *cpu >= cpus) {
            let last = cpus - 1;
            return Err(format!("thread `{name}`: `cpu` is {cpu}, but CPUs are 0 to {last}"));
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
            step.check(code, index).map_err(|error| format!("{place}: {error}"))
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
        Ok(Thread { name, cpu, times, steps })
    }
}

impl StepDocument {
    fn check(
        self,
        code: &BTreeMap<String, Segment>,
        counter: usize,
    ) -> Result<(Step, Option<String>), String> {
        const ACCEPTED: &str = "{ run = CODE, us = N }, { run = CODE, instructions = N }, { sleep_us = N }, { lock = N } or { unlock = N }";
        let step = match self {
            Self { run: Some(run), us, instructions, sleep_us: None, lock: None, unlock: None } => {
                let names = || code.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
                let segment = code.get(&run);
                let segment = segment
                    .ok_or_else(|| format!("no code `{run}`, expected one of {}", names()))?;
                let extent = match (us, instructions) {
                    (Some(us), None) => Extent::Time(span(us, "`us`")?),
                    (None, Some(n)) if n >= 1.0 && n.is_finite() => Extent::Instructions(n),
                    (None, Some(n)) => {
                        return Err(format!("`instructions` is {n}, expected 1 or more"));
                    }
                    _ => return Err("expected either `us` or `instructions`".to_owned()),
                };
                return Ok((Step::Run(Segment { extent, counter, ..*segment }), Some(run)));
            }
            Self { run: None, us: None, instructions: None, sleep_us, lock, unlock } => {
                match (sleep_us, lock, unlock) {
                    (Some(us), None, None) => Step::Sleep(span(us, "`sleep_us`")?),
                    (None, Some(lock), None) => Step::Lock(lock),
                    (None, None, Some(lock)) => Step::Unlock(lock),
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
    reason = "checked to be above 0; what is too long saturates"
)]
fn span(us: f64, key: &str) -> Result<Moment, String> {
    if us > 0.0 && us.is_finite() {
        Ok((us * 1000.0 * PS as f64).round() as Moment)
    } else {
        Err(format!("{key} is {us}, expected a number above 0"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
schema = "dimmer/scenario/1"
name = "n"
source = "s"
model = "i9-7940x"
cores = 2
[[code]]
name = "scalar"
class = "scalar"
per_cycle = 1.0
[[thread]]
name = "t"
cpu = 1
times = 3
steps = [{ run = "scalar", us = 10 }, { sleep_us = 5 }, { lock = 0 }, { unlock = 0 }]
"#;

    fn parse(text: &str) -> Result<Scenario, ScenarioError> {
        Scenario::parse(Path::new("s.toml"), text)
    }

    /// What is said if `from` is replaced by `to`.
    #[track_caller]
    fn check(from: &str, to: &str, expected: &str) {
        assert!(GOOD.contains(from));
        let error = parse(&GOOD.replace(from, to)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn a_scenario_runs() {
        let model = dimmer_processor::model::builtin("i9-7940x").unwrap();
        let model = Model::parse(Path::new("m"), model).unwrap();
        let scenario = parse(GOOD).unwrap();
        let (mut machine, end) = scenario.machine(&model, Governor::Hardware, 1, ()).unwrap();
        assert!(!machine.run(end).unwrap());
        let totals = machine.threads().next().unwrap();
        assert_eq!(totals.finished, Some(45_000 * PS));
        assert!((totals.instructions[0] - 3.0 * 43_000.0).abs() < 1.0);
        let (outcome, ()) = scenario.run(&model, Governor::Hardware, 1, ()).unwrap();
        let phases = &outcome.threads[0].phases;
        assert_eq!(
            (phases.len(), phases[0].code.as_str(), phases[0].time),
            (1, "scalar", 30_000 * PS)
        );
    }

    #[test]
    fn whatever_is_wrong_is_told_with_its_place() {
        check(
            "cores = 2",
            "core = 2",
            "s.toml: line 6: unknown field `core`, expected one of `schema`",
        );
        check("cores = 2", "cores = -1", "s.toml: line 6: invalid value");
        check("cores = 2", "cores = 0", "`cores` and `threads_per_core` are at least 1");
        check("dimmer/scenario/1", "dimmer/scenario/2", "expected \"dimmer/scenario/1\"");
        check("class = \"scalar\"", "class = \"wide\"", "code `scalar`: ");
        check("per_cycle = 1.0", "per_cycle = 0", "`per_cycle` is 0");
        check("cpu = 1", "cpu = 2", "thread `t`: `cpu` is 2, but CPUs are 0 to 1");
        check("times = 3", "times = 0", "for ever, but there is no `end_us`");
        check(
            "run = \"scalar\"",
            "run = \"x\"",
            "thread `t`, step 1: no code `x`, expected one of scalar",
        );
        check("us = 10 }", "us = 0 }", "thread `t`, step 1: `us` is 0");
        check(", us = 10 }", " }", "expected either `us` or `instructions`");
        check(
            "{ sleep_us = 5 }",
            "{ sleep_us = 5, lock = 1 }",
            "thread `t`, step 2: expected { run",
        );
        check(
            "{ run = \"scalar\", us = 10 }, { sleep_us = 5 }, ",
            "",
            "none of them takes any time",
        );
        check("cores = 2", "cores = 2\nthreads_per_core = 2", "`smt_share` is missing");
    }
}
