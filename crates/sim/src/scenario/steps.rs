//! Steps as written in the file, and the script that they become.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use dimmer_processor::units::{LicenseLevel, nearest};
use serde::Deserialize;
use serde::de::{Deserializer, Visitor};

use super::document::{LOCKS, LONGEST_US, MOST_CORES, span, within};
use super::effort::Effort;
use crate::program::{Distribution, Operation, Passes};
use crate::{Extent, Picos, Segment, Step, index};

/// CPUs have numbers below this: eight hardware threads of each core.
const MOST_CPUS: usize = 32_768;

/// Maximum number of instructions of a step: minutes of them.
const MOST_INSTRUCTIONS: f64 = 1e12;

/// Maximum number of passes of a block.
const MOST_PASSES: f64 = 1e9;

/// Maximum number of blocks within each other.
const DEEPEST: usize = 8;

/// The range of the shares of a choice.
const SHARES: (f64, f64) = (1e-9, 1e9);

/// No core has a shorter cycle (ns), see `docs/model.md`.
const SHORTEST_CYCLE_NS: f64 = 0.01;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StepDocument {
    run: Option<String>,
    us: Option<Amount>,
    instructions: Option<Amount>,
    sleep_us: Option<Amount>,
    lock: Option<i64>,
    wait: Option<String>,
    unlock: Option<i64>,
    pstate: Option<String>,
    core: Option<i64>,
    by: Option<i64>,
    migrate: Option<i64>,
    system_call: Option<String>,
    mark: Option<String>,
    enter: Option<String>,
    leave: Option<String>,
    repeat: Option<Amount>,
    steps: Option<Vec<StepDocument>>,
    choose: Option<Vec<Branch>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Branch {
    share: f64,
    steps: Vec<StepDocument>,
}

/// A number, or the name of the distribution of which it is drawn.
#[derive(Debug)]
enum Amount {
    Number(f64),
    Drawn(String),
}

impl StepDocument {
    /// How many keys it has.
    fn keys(&self) -> usize {
        let Self { run, us, instructions, sleep_us, lock, unlock, wait, .. } = self;
        let Self { pstate, system_call, mark, enter, leave, repeat, steps, choose, .. } = self;
        let Self { core, by, migrate, .. } = self;
        let names = [run, wait, pstate, system_call, mark, enter, leave].map(Option::is_some);
        let amounts = [us, instructions, sleep_us, repeat].map(Option::is_some);
        let numbers = [lock, unlock, core, by, migrate].map(Option::is_some);
        let others = [steps.is_some(), choose.is_some()];
        let all = names.iter().chain(&amounts).chain(&numbers).chain(&others);
        all.filter(|is_there| **is_there).count()
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl Visitor<'_> for Reader {
            type Value = Amount;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a number or the name of a distribution")
            }

            fn visit_f64<E>(self, number: f64) -> Result<Amount, E> {
                Ok(Amount::Number(number))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Amount, E> {
                Ok(Amount::Number(number as f64))
            }

            fn visit_str<E>(self, name: &str) -> Result<Amount, E> {
                Ok(Amount::Drawn(name.to_owned()))
            }
        }

        deserializer.deserialize_any(Reader)
    }
}

/// The steps of a thread as a script.
#[derive(Debug)]
pub(super) struct Steps {
    /// Levels are those of no model, and P-states are indices into the scenario's list.
    pub(super) operations: Arc<[Operation]>,
    pub(super) distributions: Arc<[Arc<Distribution>]>,
    /// The counter and the code of each step that runs any.
    pub(super) runs: Vec<(usize, String)>,
    /// The number of steps as written.
    pub(super) written: usize,
    pub(super) effort: Effort,
}

/// Names by number, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Numbered {
    numbers: BTreeMap<String, usize>,
    pub(super) names: Vec<String>,
}

impl Numbered {
    /// The number of a name; a new name gets the next one.
    pub(super) fn number(&mut self, name: &str) -> usize {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), self.names.len() - 1);
        self.names.len() - 1
    }
}

/// Names that steps may use: of code and distributions, and of P-states, regions and marks,
/// which are added as they come.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) code: BTreeMap<String, Segment>,
    pub(super) distributions: BTreeMap<String, Arc<Distribution>>,
    pub(super) pstates: Numbered,
    pub(super) regions: Numbered,
    pub(super) marks: Numbered,
}

/// What is wrong with a step, and its place: ", step 2, branch 1, step 3".
#[derive(Debug)]
pub(super) struct StepError {
    place: String,
    message: String,
}

impl StepError {
    fn within(self, place: &str) -> Self {
        Self { place: format!("{place}{}", self.place), ..self }
    }
}

impl From<String> for StepError {
    fn from(message: String) -> Self {
        Self { place: String::new(), message }
    }
}

impl fmt::Display for StepError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.place, self.message)
    }
}

impl Steps {
    /// The script of these steps.
    ///
    /// # Errors
    /// The first step that is wrong, and the accepted values.
    pub(super) fn new(steps: &[StepDocument], names: &mut Names) -> Result<Self, StepError> {
        let mut writer = Writer {
            names,
            operations: Vec::new(),
            distributions: Numbered::default(),
            runs: Vec::new(),
            written: 0,
        };
        let effort = writer.sequence(steps, 0)?;
        let Writer { operations, distributions, runs, written, names } = writer;
        let distributions = distributions.names.iter();
        let distributions = distributions.filter_map(|name| names.distributions.get(name).cloned());
        Ok(Self {
            operations: operations.into(),
            distributions: distributions.collect(),
            runs,
            written,
            effort,
        })
    }

    /// The same with other operations, one for each.
    pub(super) fn with(&self, operations: Arc<[Operation]>) -> Self {
        let Self { distributions, runs, written, effort, .. } = self;
        Self {
            operations,
            distributions: Arc::clone(distributions),
            runs: runs.clone(),
            written: *written,
            effort: effort.clone(),
        }
    }
}

/// Writes a script.
struct Writer<'a> {
    names: &'a mut Names,
    operations: Vec<Operation>,
    /// Those that the script draws from, by their numbers there.
    distributions: Numbered,
    runs: Vec<(usize, String)>,
    written: usize,
}

impl Writer<'_> {
    /// Writes steps within this many blocks.
    fn sequence(&mut self, steps: &[StepDocument], depth: usize) -> Result<Effort, StepError> {
        let mut efforts = Vec::with_capacity(steps.len());
        for (index, step) in steps.iter().enumerate() {
            let effort = self.step(step, depth);
            efforts.push(effort.map_err(|error| error.within(&format!(", step {}", index + 1)))?);
        }
        are_paired(steps)?;
        Ok(Effort::Sequence(efforts))
    }

    /// Writes a step within this many blocks.
    fn step(&mut self, step: &StepDocument, depth: usize) -> Result<Effort, StepError> {
        let is_block = step.repeat.is_some() || step.choose.is_some() || step.steps.is_some();
        if is_block && depth == DEEPEST {
            return Err(format!("blocks are nested deeper, expected at most {DEEPEST} deep").into());
        }
        match (&step.repeat, &step.steps, &step.choose, step.keys()) {
            (Some(passes), Some(steps), None, 2) => self.repeat(passes, steps, depth),
            (None, None, Some(branches), 1) => self.choose(branches, depth),
            _ => Ok(self.simple(step)?),
        }
    }

    fn repeat(
        &mut self,
        passes: &Amount,
        steps: &[StepDocument],
        depth: usize,
    ) -> Result<Effort, StepError> {
        let start = self.operations.len() + 1;
        let (passes, least, mean) = match passes {
            Amount::Number(number) if is_count(*number) => {
                (Passes::Fixed(nearest(*number)), *number, *number)
            }
            Amount::Number(number) => {
                return Err(format!(
                    "`repeat` is {number}, expected a whole number from 0 to {MOST_PASSES}, or \
                     the name of a distribution"
                )
                .into());
            }
            Amount::Drawn(name) => {
                let (from, drawn) = self.distribution("repeat", name, MOST_PASSES)?;
                (Passes::Drawn(from), drawn.least().round(), drawn.mean())
            }
        };
        if steps.is_empty() {
            return Err("`repeat` has no steps".to_owned().into());
        }
        self.operations.push(Operation::Repeat { passes, after: start });
        let each = Box::new(self.sequence(steps, depth + 1)?);
        self.operations.push(Operation::Again { start });
        let after = self.operations.len();
        self.operations[start - 1] = Operation::Repeat { passes, after };
        Ok(Effort::Repeat { least, mean, each })
    }

    fn choose(&mut self, branches: &[Branch], depth: usize) -> Result<Effort, StepError> {
        if branches.is_empty() {
            return Err("`choose` has no branches".to_owned().into());
        }
        let (low, high) = SHARES;
        let mut total = 0.0;
        for (index, branch) in branches.iter().enumerate() {
            let Branch { share, .. } = branch;
            if !(low..=high).contains(share) {
                let number = index + 1;
                return Err(StepError {
                    place: format!(", branch {number}"),
                    message: format!("`share` is {share}, expected a number from {low} to {high}"),
                });
            }
            total += share;
        }
        let place = self.operations.len();
        self.operations.push(Operation::Choose(Arc::new([])));
        let (mut starts, mut jumps, mut efforts) = (Vec::new(), Vec::new(), Vec::new());
        let mut below = 0.0;
        for (index, branch) in branches.iter().enumerate() {
            below += branch.share;
            starts.push((below / total, self.operations.len()));
            let effort = self.sequence(&branch.steps, depth + 1);
            let within = |error: StepError| error.within(&format!(", branch {}", index + 1));
            efforts.push((branch.share / total, effort.map_err(within)?));
            jumps.push(self.operations.len());
            self.operations.push(Operation::Jump(0));
        }
        let after = self.operations.len();
        for jump in jumps {
            self.operations[jump] = Operation::Jump(after);
        }
        self.operations[place] = Operation::Choose(starts.into());
        Ok(Effort::Choice(efforts))
    }

    /// Writes a step that is no block.
    fn simple(&mut self, step: &StepDocument) -> Result<Effort, String> {
        const ACCEPTED: &str = "{ run = CODE, us = N }, { run = CODE, instructions = N }, \
            { sleep_us = N }, { lock = N }, { unlock = N }, { migrate = CPU }, { pstate = NAME }, \
            { system_call = NAME }, { mark = NAME }, { enter = REGION }, { leave = REGION }, { repeat = N, steps = [...] } or \
            { choose = [{ share = N, steps = [...] }, ...] }";
        let StepDocument { run, us, instructions, sleep_us, lock, unlock, pstate, .. } = step;
        let StepDocument { system_call, mark, enter, leave, repeat, steps, choose, .. } = step;
        let StepDocument { wait, core, by, migrate, .. } = step;
        let is_block = repeat.is_some() || steps.is_some() || choose.is_some();
        let is_alone = system_call.is_some() || mark.is_some() || migrate.is_some();
        let is_mixed = is_alone && step.keys() > 1
            || wait.is_some() && lock.is_none()
            || (core.is_some() || by.is_some()) && pstate.is_none();
        if is_block || is_mixed || run.is_none() && (us.is_some() || instructions.is_some()) {
            return Err(format!("expected {ACCEPTED}"));
        }
        let counter = self.written;
        self.written += 1;
        let step = match (run, sleep_us, lock, unlock, pstate, enter, leave) {
            (Some(run), None, None, None, None, None, None) => {
                let code = &self.names.code;
                let names = || code.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
                let segment = code.get(run);
                let segment = *segment
                    .ok_or_else(|| format!("no code `{run}`, expected one of {}", names()))?;
                self.runs.push((counter, run.clone()));
                let segment = Segment { counter, ..segment };
                return match (us, instructions) {
                    (Some(us), None) => self.timed("us", us, |span| {
                        Step::Run(Segment { extent: Extent::Time(span), ..segment })
                    }),
                    (None, Some(number)) => self.counted(number, segment),
                    _ => Err("expected either `us` or `instructions`".to_owned()),
                };
            }
            (None, Some(us), None, None, None, None, None) => {
                return self.timed("sleep_us", us, Step::Sleep);
            }
            (None, None, Some(lock), None, None, None, None) => {
                let lock = within("lock", *lock, 0, LOCKS - 1)?;
                match wait.as_deref() {
                    None | Some("block") => Step::Lock(lock),
                    Some("spin") => Step::Spin(lock, Segment { counter, ..Segment::SCALAR }),
                    Some("mwait") => Step::Mwait(lock),
                    Some(other) => {
                        return Err(format!("`wait` is `{other}`, expected block, spin or mwait"));
                    }
                }
            }
            (None, None, None, Some(lock), None, None, None) => {
                Step::Unlock(within("unlock", *lock, 0, LOCKS - 1)?)
            }
            (None, None, None, None, Some(name), None, None) => {
                let wish = self.names.pstates.number(name);
                let number = |key: &str, core: i64| within(key, core, 0, MOST_CORES - 1).map(index);
                match (core, by) {
                    (None, None) => Step::Ask(wish),
                    (Some(core), by) => {
                        let by = number("by", by.unwrap_or(*core))?;
                        Step::AskBy { core: number("core", *core)?, by, wish }
                    }
                    (None, Some(_)) => return Err("`by` needs `core`".to_owned()),
                }
            }
            (None, None, None, None, None, Some(name), None) => {
                Step::Enter(self.names.regions.number(name))
            }
            (None, None, None, None, None, None, Some(name)) => {
                Step::Leave(self.names.regions.number(name))
            }
            _ if let Some(cpu) = migrate => Step::Go(within("migrate", *cpu, 0, MOST_CPUS - 1)?),
            _ if system_call.is_some() => Step::SystemCall,
            _ if let Some(name) = mark => {
                super::phases::mark(name)?;
                Step::Mark(self.names.marks.number(name))
            }
            _ => return Err(format!("expected {ACCEPTED}")),
        };
        self.operations.push(Operation::Take(step, LicenseLevel::new(0)));
        Ok(Effort::Step { least: 0.0, usual: 0.0 })
    }

    /// Writes a step of a number of microseconds.
    fn timed(
        &mut self,
        key: &str,
        us: &Amount,
        step: impl Fn(Picos) -> Step,
    ) -> Result<Effort, String> {
        let level = LicenseLevel::new(0);
        let (operation, least, usual) = match us {
            Amount::Number(us) => {
                let span = span(*us, &format!("`{key}`"))?;
                (Operation::Take(step(span), level), span, span)
            }
            Amount::Drawn(name) => {
                let (from, drawn) = self.distribution(key, name, LONGEST_US)?;
                let [least, usual] =
                    [drawn.least(), drawn.usual()].map(|us| Picos::rounded(us * 1e6));
                (Operation::Draw { step: step(Picos::ZERO), level, from }, least, usual)
            }
        };
        self.operations.push(operation);
        Ok(Effort::Step { least: least.as_f64(), usual: usual.as_f64() })
    }

    /// Writes a step of a number of instructions of this code.
    fn counted(&mut self, number: &Amount, segment: Segment) -> Result<Effort, String> {
        let level = LicenseLevel::new(0);
        let step = |number| Step::Run(Segment { extent: Extent::Instructions(number), ..segment });
        let (operation, least, usual) = match number {
            Amount::Number(number) if (1.0..=MOST_INSTRUCTIONS).contains(number) => {
                (Operation::Take(step(*number), level), *number, *number)
            }
            Amount::Number(number) => {
                return Err(format!(
                    "`instructions` is {number}, expected 1 to {MOST_INSTRUCTIONS}"
                ));
            }
            Amount::Drawn(name) => {
                let (from, drawn) = self.distribution("instructions", name, MOST_INSTRUCTIONS)?;
                let least = if drawn.least() < 1.0 { 0.0 } else { drawn.least() };
                (Operation::Draw { step: step(0.0), level, from }, least, drawn.usual())
            }
        };
        self.operations.push(operation);
        let each_ps = (SHORTEST_CYCLE_NS / segment.ipc + segment.memory_ns) * 1000.0;
        Ok(Effort::Step { least: least * each_ps, usual: usual * each_ps })
    }

    /// A distribution whose values are at most `most`, and the script's number of it.
    fn distribution(
        &mut self,
        key: &str,
        name: &str,
        most: f64,
    ) -> Result<(usize, Arc<Distribution>), String> {
        let all = &self.names.distributions;
        let Some(one) = all.get(name) else {
            let names = all.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            let expected = match all.len() {
                0 => "a number: there is no `[[distribution]]`".to_owned(),
                _ => format!("a number or one of {names}"),
            };
            return Err(format!("`{key}`: no distribution `{name}`, expected {expected}"));
        };
        if one.most() > most {
            let found = one.most();
            return Err(format!(
                "`{key}`: distribution `{name}` has values up to {found}, expected at most {most}"
            ));
        }
        Ok((self.distributions.number(name), Arc::clone(one)))
    }
}

/// Whether a number is a whole number of passes that is accepted.
fn is_count(number: f64) -> bool {
    (0.0..=MOST_PASSES).contains(&number) && number.fract() == 0.0
}

/// Checks that steps leave the regions that they enter, the last one first.
fn are_paired(steps: &[StepDocument]) -> Result<(), StepError> {
    const EXPECTED: &str =
        "expected a `leave` for each `enter` of the same steps, of the region entered last first";
    let wrong = || StepError::from(EXPECTED.to_owned());
    let mut within = Vec::new();
    for step in steps {
        match (&step.enter, &step.leave) {
            (Some(region), _) => within.push(region),
            (_, Some(region)) if within.pop() != Some(region) => return Err(wrong()),
            _ => {}
        }
    }
    within.is_empty().then_some(()).ok_or_else(wrong)
}
