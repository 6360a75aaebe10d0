//! A fit as it is written: which parameters of a scenario and a model, within which bounds, by
//! which measured values. `docs/fit.md` describes the file.

use std::collections::BTreeMap;
use std::path::{Path as FilePath, PathBuf};

use dimmer_processor::model::{Model, builtin as builtin_model};
use dimmer_processor::text::{line_of_message, toml_problem};
use dimmer_sim::scenario::Scenario;
use serde::Deserialize;
use toml::Spanned;

use super::metric::Metric;
use super::place::{Path, Place, replaced, written};
use super::recorded::RunsDocument;
use crate::builtin;
use crate::mechanism::Mechanism;

/// The version of the format.
const SCHEMA: &str = "dimmer/fit/1";

/// The most parameters: with more, neither the search nor a reader keeps an overview.
const MOST_PARAMETERS: usize = 3;

/// The most targets, and the most measured values of one.
const MOST_TARGETS: usize = 1000;
const MOST_VALUES: usize = 100_000;

/// More than any metric is, in its unit; squares of it are finite.
pub(super) const MOST_MEASURED: f64 = 1e18;

/// Returns the text of a file, or why there is none.
pub type Read<'a> = &'a (dyn Fn(&FilePath) -> Result<String, String> + Sync);

/// A file that is no valid fit, or that does not fit its scenario and its model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", path.display())]
pub struct FitFileError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong, and what would be right.
    pub message: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    schema: String,
    scenario: String,
    model: Option<String>,
    seeds: Option<i64>,
    #[serde(default)]
    parameter: Vec<Spanned<ParameterDocument>>,
    #[serde(default)]
    target: Vec<Spanned<TargetDocument>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ParameterDocument {
    name: Option<String>,
    keys: Vec<String>,
    low: f64,
    high: f64,
    #[serde(default)]
    factor: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TargetDocument {
    name: Option<String>,
    metric: String,
    program: Option<String>,
    code: Option<String>,
    mechanism: Option<String>,
    over: Option<String>,
    #[serde(default)]
    set: BTreeMap<String, f64>,
    #[serde(default)]
    measured: Vec<f64>,
    runs: Option<RunsDocument>,
    error: Option<f64>,
    #[serde(default)]
    check: bool,
}

/// A text that the simulator reads.
#[derive(Clone, Debug)]
pub(super) struct Text {
    /// The name of what comes with Dimmer, or the file as the user named it.
    pub(super) name: String,
    /// For messages, and what includes are relative to.
    pub(super) path: PathBuf,
    pub(super) text: String,
}

/// Which of the two texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Scenario,
    Model,
}

/// A number in one of the texts.
#[derive(Clone, Debug)]
pub(super) struct Spot {
    pub(super) which: Which,
    pub(super) place: Place,
    /// Whether it must be written without a point.
    pub(super) is_whole: bool,
}

/// Something to find.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Its name: its first key, or what the user calls it.
    pub name: String,
    /// Its keys, as written.
    pub keys: Vec<String>,
    /// Its least value.
    pub low: f64,
    /// Its largest value.
    pub high: f64,
    /// Whether it multiplies the numbers that stand there, instead of replacing them.
    pub is_factor: bool,
    pub(super) spots: Vec<Spot>,
}

impl Parameter {
    /// Whether bounds are far enough apart, and above 0, to be searched by their logarithms.
    fn is_logarithmic(&self) -> bool {
        self.low > 0.0
    }

    /// The value at a place from 0 to 1 between its bounds.
    #[must_use]
    pub fn at(&self, place: f64) -> f64 {
        let value = if self.is_logarithmic() {
            (self.low.ln() + place * (self.high / self.low).ln()).exp()
        } else {
            self.low + place * (self.high - self.low)
        };
        let is_whole = !self.is_factor && self.spots.iter().all(|spot| spot.is_whole);
        let value = if is_whole { value.round() } else { value };
        value.clamp(self.low, self.high)
    }

    /// What is to be written in the texts for a value.
    pub(super) fn changes(&self, value: f64) -> Vec<Change> {
        self.spots.iter().flat_map(|spot| spot.changes(self.written(spot, value))).collect()
    }

    /// The number of a spot at a value of the parameter.
    pub(super) fn written(&self, spot: &Spot, value: f64) -> f64 {
        if self.is_factor { spot.place.value * value } else { value }
    }
}

/// Words in a text, and what replaces them.
pub(super) type Change = (Which, std::ops::Range<usize>, String);

impl Spot {
    /// What is to be written for a number, which lies within an interval of no width.
    fn changes(&self, value: f64) -> impl Iterator<Item = Change> + use<> {
        let number = written(value, self.is_whole);
        let interval = format!("[{number}, {number}]");
        let ci95 = self.place.ci95.clone().map(|span| (self.which, span, interval));
        [(self.which, self.place.span.clone(), number)].into_iter().chain(ci95)
    }
}

/// Something measured.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its name: the metric and what is special, or what the user calls it.
    pub name: String,
    /// What was measured.
    pub metric: Metric,
    /// Of which program; `None`: of all.
    pub program: Option<String>,
    /// Of which code; `None`: of all.
    pub code: Option<String>,
    /// Under which mechanism.
    pub mechanism: Mechanism,
    /// If it is a ratio: over that under which mechanism.
    pub over: Option<Mechanism>,
    /// What was measured.
    pub measured: Vec<f64>,
    /// The standard error of their mean, if the user gives it.
    pub error: Option<f64>,
    /// Whether it was held back: it is compared, and decides nothing.
    pub is_check: bool,
    /// What was set to other values for it.
    pub(super) set: Vec<Change>,
}

impl Target {
    /// The mean of what was measured.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.measured.iter().sum::<f64>() / self.measured.len() as f64
    }

    /// The standard error of the mean: what the user gives, or from the scatter of the values.
    /// `None` if there is one value, or if all of them are equal.
    #[must_use]
    pub fn standard_error(&self) -> Option<f64> {
        let (count, mean) = (self.measured.len() as f64, self.mean());
        let squares: f64 = self.measured.iter().map(|value| (value - mean).powi(2)).sum();
        let scatter = (squares / (count - 1.0) / count).sqrt();
        self.error.or((count > 1.0 && scatter > 0.0).then_some(scatter))
    }
}

/// What is to be fitted.
#[derive(Clone, Debug)]
pub struct Fit {
    /// What is to be found.
    pub parameters: Vec<Parameter>,
    /// What was measured.
    pub targets: Vec<Target>,
    /// Each simulation runs with the seeds 1 to this number.
    pub seeds: u64,
    pub(super) path: PathBuf,
    pub(super) scenario: Text,
    pub(super) model: Text,
}

impl Fit {
    /// Reads a fit, with its scenario, its model and its recorded runs, whose paths are relative to
    /// its own.
    ///
    /// # Errors
    /// The first thing that is wrong, with its place and the accepted values.
    pub fn read(path: &FilePath, read: Read<'_>) -> Result<Self, FitFileError> {
        let refused = |message: String| FitFileError { path: path.to_owned(), message };
        let text = read(path).map_err(refused)?;
        Self::parse(path, &text, read).map_err(refused)
    }

    fn parse(path: &FilePath, text: &str, read: Read<'_>) -> Result<Self, String> {
        let document: Document =
            toml::from_str(text).map_err(|error| toml_problem(text, &error))?;
        if document.schema != SCHEMA {
            return Err(format!("`schema` is \"{}\", expected \"{SCHEMA}\"", document.schema));
        }
        let seeds = u64::try_from(document.seeds.unwrap_or(5)).unwrap_or(0);
        if !(2..=1000).contains(&seeds) {
            return Err("`seeds`: expected 2 to 1000".to_owned());
        }
        let beside = |name: &str| path.parent().unwrap_or(FilePath::new("")).join(name);
        let scenario = match builtin::text(&document.scenario) {
            Some(text) => {
                let path = PathBuf::from(format!("{}.toml", document.scenario));
                Text { name: document.scenario, path, text: text.to_owned() }
            }
            None => of_file(document.scenario, &beside, read, "scenario", &builtin::names())?,
        };
        let named = parsed_scenario(&scenario, &scenario.text, read)?.model;
        let model = document.model.unwrap_or(named);
        let model = match builtin_model(&model) {
            Some(text) => Text { path: PathBuf::from(&model), name: model, text: text.to_owned() },
            None => of_file(model, &beside, read, "model", &builtin::models())?,
        };
        let mut fit = Self {
            parameters: Vec::new(),
            targets: Vec::new(),
            seeds,
            path: path.to_owned(),
            scenario,
            model,
        };
        let placed = |start: usize, what: &str, message: String| {
            let line = line_of_message(text, start, &message);
            format!("line {line}: {what}: {message}")
        };
        for one in document.parameter {
            let start = one.span().start;
            let added = fit.add_parameter(one.into_inner(), read);
            added.map_err(|(name, error)| placed(start, &format!("parameter `{name}`"), error))?;
        }
        let count = fit.parameters.len();
        if !(1..=MOST_PARAMETERS).contains(&count) {
            let each = "expected a `[[parameter]]` for each of 1 to 3";
            return Err(format!("{count} parameters, {each}"));
        }
        for one in document.target {
            let start = one.span().start;
            let (name, target) = fit.target(one.into_inner(), &beside, read);
            let target =
                target.map_err(|error| placed(start, &format!("target `{name}`"), error))?;
            if fit.targets.iter().any(|other| other.name == target.name) {
                let twice = "it stands twice: give it a `name` of its own".to_owned();
                return Err(placed(start, &format!("target `{name}`"), twice));
            }
            fit.targets.push(target);
        }
        fit.check_targets()?;
        Ok(fit)
    }

    /// The names of the scenario and of the model.
    #[must_use]
    pub fn names(&self) -> (&str, &str) {
        (&self.scenario.name, &self.model.name)
    }

    /// Adds a parameter; on errors its name, too.
    fn add_parameter(
        &mut self,
        document: ParameterDocument,
        read: Read<'_>,
    ) -> Result<(), (String, String)> {
        let ParameterDocument { name, keys, low, high, factor } = document;
        let name = name.or_else(|| keys.first().cloned()).unwrap_or_default();
        let mut parameter =
            Parameter { name, keys, low, high, is_factor: factor, spots: Vec::new() };
        let checked = self.check_parameter(&mut parameter, read);
        match checked {
            Ok(()) => self.parameters.push(parameter),
            Err(error) => return Err((parameter.name, error)),
        }
        Ok(())
    }

    fn check_parameter(&self, parameter: &mut Parameter, read: Read<'_>) -> Result<(), String> {
        let Parameter { name, keys, low, high, is_factor, .. } = &*parameter;
        if keys.is_empty() {
            return Err("`keys` is empty, expected one or more, as in \
                        `scenario:code.scalar.per_cycle`"
                .to_owned());
        }
        if !(low.is_finite() && high.is_finite() && low < high) {
            return Err(format!(
                "`low` is {low} and `high` is {high}, expected finite numbers, the first less than \
                 the second"
            ));
        }
        if *is_factor && *low <= 0.0 {
            return Err(format!("`low` is {low}, expected a factor above 0"));
        }
        if self.parameters.iter().any(|other| other.name == *name) {
            return Err("it stands twice, expected each once".to_owned());
        }
        let mut spots = Vec::new();
        for key in keys {
            let found = self.spots(key)?;
            let others = self.parameters.iter().flat_map(|other| &other.spots).chain(&spots);
            if others.clone().any(|other| found.iter().any(|spot| spot.overlaps(other))) {
                return Err(format!("`{key}` is also another parameter's, or named twice"));
            }
            spots.extend(found);
        }
        if *is_factor && spots.iter().all(|spot| spot.place.value == 0.0) {
            return Err("all of its numbers are 0, which no factor changes".to_owned());
        }
        parameter.spots = spots;
        self.choose_form(parameter, read)
    }

    /// Finds out whether its numbers may have a point, by reading the texts with them, and so
    /// whether both bounds are accepted.
    fn choose_form(&self, parameter: &mut Parameter, read: Read<'_>) -> Result<(), String> {
        let middle = parameter.at(0.5);
        for index in 0..parameter.spots.len() {
            let spot = &mut parameter.spots[index];
            spot.is_whole = false;
            let value = if parameter.is_factor { spot.place.value * middle } else { middle };
            // A number that is no whole one, so that only keys that take such ones accept it.
            let changes: Vec<Change> = spot.changes(value.floor() + 0.5).collect();
            let is_refused = self.read_with(&changes, read).is_err();
            let spot = &mut parameter.spots[index];
            spot.is_whole = is_refused && spot.place.is_whole;
        }
        for (bound, value) in [("low", parameter.low), ("high", parameter.high)] {
            let refused = |error: String| format!("at `{bound}` = {value}: {error}");
            self.read_with(&parameter.changes(value), read).map_err(refused)?;
        }
        Ok(())
    }

    /// The numbers that a key names, as in `scenario:code.scalar.per_cycle`.
    fn spots(&self, key: &str) -> Result<Vec<Spot>, String> {
        let (which, text, path) = match key.split_once(':') {
            Some(("scenario", path)) => (Which::Scenario, &self.scenario, path),
            Some(("model", path)) => (Which::Model, &self.model, path),
            _ => {
                return Err(format!(
                    "key `{key}`: expected `scenario:` or `model:` and a path, as in \
                     `scenario:code.scalar.per_cycle`"
                ));
            }
        };
        let found = Path::parse(path).and_then(|path| Place::find(&text.text, &path));
        let found = found.map_err(|error| format!("key `{key}`: {}: {error}", text.name))?;
        let spot = |place: Place| Spot { which, is_whole: place.is_whole, place };
        Ok(found.into_iter().map(spot).collect())
    }

    /// A target, and its name also if it is wrong.
    fn target(
        &self,
        document: TargetDocument,
        beside: &dyn Fn(&str) -> PathBuf,
        read: Read<'_>,
    ) -> (String, Result<Target, String>) {
        let usual = [Some(&document.metric), document.program.as_ref(), document.code.as_ref()];
        let usual = usual.into_iter().flatten().chain(document.mechanism.as_ref());
        let mut usual: String = usual.map(String::as_str).collect::<Vec<_>>().join(" ");
        usual.extend(document.over.iter().map(|over| format!(" over {over}")));
        for (key, value) in &document.set {
            usual += &format!(", {} = {value}", key.split_once(':').map_or(&**key, |(_, key)| key));
        }
        let name = document.name.clone().unwrap_or(usual);
        (name.clone(), self.checked_target(name, document, beside, read))
    }

    fn checked_target(
        &self,
        name: String,
        document: TargetDocument,
        beside: &dyn Fn(&str) -> PathBuf,
        read: Read<'_>,
    ) -> Result<Target, String> {
        let TargetDocument { metric, program, code, mechanism, over, set, runs, error, .. } =
            document;
        let metric = Metric::named(&metric)?;
        if metric.is_of_machine() && (program.is_some() || code.is_some()) {
            let name = metric.name();
            return Err(format!(
                "{name} is one of the whole machine: without `program` and `code`"
            ));
        }
        if code.is_some() && !matches!(metric, Metric::CpuTime | Metric::Instructions) {
            let names = [Metric::CpuTime, Metric::Instructions].map(Metric::name).join(" and ");
            return Err(format!("`code` is for the metrics {names}"));
        }
        let mechanism = mechanism.as_deref().map_or(Ok(Mechanism::None), named)?;
        let over = over.as_deref().map(named).transpose()?;
        if over == Some(mechanism) {
            return Err(format!("`over` is \"{}\" as well: the ratio is 1", mechanism.name()));
        }
        let mut changes = Vec::new();
        for (key, value) in &set {
            for mut spot in self.spots(key)? {
                if self.parameters.iter().flat_map(|of| &of.spots).any(|of| of.overlaps(&spot)) {
                    return Err(format!("`set`: `{key}` is a parameter"));
                }
                spot.is_whole = spot.is_whole && value.fract() == 0.0;
                changes.extend(spot.changes(*value));
            }
        }
        self.read_with(&changes, read).map_err(|error| format!("`set`: {error}"))?;
        let (measured, of_file) = match (document.measured, runs) {
            (measured, None) if !measured.is_empty() => (measured, None),
            (measured, Some(runs)) if measured.is_empty() => {
                let found = runs.values(|file| read(&beside(file)));
                found.map_err(|error| format!("`runs`: {error}"))?
            }
            _ => {
                return Err(
                    "expected `measured`, one or more values, or `runs`, the file that has \
                            them"
                        .to_owned(),
                );
            }
        };
        if measured.len() > MOST_VALUES {
            let count = measured.len();
            return Err(format!("{count} measured values, expected at most {MOST_VALUES}"));
        }
        // No metric is ever below 0.
        if let Some(value) = measured.iter().find(|value| !(0.0..=MOST_MEASURED).contains(*value)) {
            return Err(format!(
                "a measured value is {value}, expected numbers from 0 to {MOST_MEASURED:e}"
            ));
        }
        if let Some(error) = error.filter(|error| !(*error > 0.0 && *error <= MOST_MEASURED)) {
            return Err(format!(
                "`error` is {error}, expected a standard error above 0, up to {MOST_MEASURED:e}"
            ));
        }
        let error = error.or(of_file);
        let is_check = document.check;
        Ok(Target {
            name,
            metric,
            program,
            code,
            mechanism,
            over,
            measured,
            error,
            is_check,
            set: changes,
        })
    }

    /// Checks what counts for all targets together.
    fn check_targets(&self) -> Result<(), String> {
        let fitted: Vec<&Target> = self.targets.iter().filter(|target| !target.is_check).collect();
        let (count, parameters) = (fitted.len(), self.parameters.len());
        if self.targets.len() > MOST_TARGETS {
            let all = self.targets.len();
            return Err(format!("{all} targets, expected at most {MOST_TARGETS}"));
        }
        if count < parameters {
            return Err(format!(
                "{count} targets to fit, expected a `[[target]]` without `check` for each of the \
                 {parameters} parameters, or more"
            ));
        }
        let without = |target: &&&Target| target.standard_error().is_none();
        let unknown = fitted.iter().filter(without).count();
        if let Some(first) = fitted.iter().find(without).filter(|_| unknown < count) {
            let values = if first.measured.len() == 1 { "one value" } else { "only equal values" };
            return Err(format!(
                "target `{}` has {values}, others have scatter: how much it counts is not known; \
                 give its standard error, as in `error = 0.5`, or repeats",
                first.name
            ));
        }
        match fitted.iter().find(|target| unknown > 0 && target.mean() == 0.0) {
            Some(zero) => Err(format!(
                "target `{}` is 0, of which a relative difference is none: give its standard error \
                 (`error`)",
                zero.name
            )),
            None => Ok(()),
        }
    }

    /// The scenario and the model with changes.
    pub(super) fn read_with(
        &self,
        changes: &[Change],
        read: Read<'_>,
    ) -> Result<(Scenario, Model), String> {
        let text = |which: Which| {
            let changes = changes.iter().filter(|(of, ..)| *of == which);
            let own = if which == Which::Scenario { &self.scenario } else { &self.model };
            replaced(&own.text, changes.map(|(_, span, new)| (span.clone(), new.clone())).collect())
        };
        let scenario = parsed_scenario(&self.scenario, &text(Which::Scenario), read)?;
        let model = Model::parse(&self.model.path, &text(Which::Model));
        Ok((scenario, model.map_err(|error| error.to_string())?))
    }
}

impl Spot {
    fn overlaps(&self, other: &Self) -> bool {
        self.which == other.which && self.place.span.start == other.place.span.start
    }
}

fn named(name: &str) -> Result<Mechanism, String> {
    let names = || Mechanism::ALL.map(Mechanism::name).join(", ");
    Mechanism::named(name)
        .ok_or_else(|| format!("no mechanism `{name}`, expected one of {}", names()))
}

/// A text of a file beside the fit.
fn of_file(
    name: String,
    beside: &dyn Fn(&str) -> PathBuf,
    read: Read<'_>,
    what: &str,
    known: &[String],
) -> Result<Text, String> {
    let path = beside(&name);
    let text = read(&path).map_err(|error| {
        format!("`{what}` is \"{name}\": {error}; expected a file or one of {}", known.join(", "))
    })?;
    Ok(Text { name, path, text })
}

/// A scenario; files that it includes are read, or come with Dimmer as it does.
fn parsed_scenario(of: &Text, text: &str, read: Read<'_>) -> Result<Scenario, String> {
    let found = if builtin::text(&of.name).is_some() {
        Scenario::parse_with(&of.path, text, &builtin::included)
    } else {
        Scenario::parse_with(&of.path, text, &|path| read(path))
    };
    found.map_err(|error| error.to_string())
}
