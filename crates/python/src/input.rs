//! Models and scenarios, from a name, a file or a text.
//!
//! A scenario keeps the text of each file that it was read from. So it can be sent to another
//! process, where none of these files exists, and read again there.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dimmer_host::bounded_file::{self, BoundedFileError};
use dimmer_processor::model::{BUILTIN, Model, builtin};
use dimmer_sim::scenario::Scenario;
use dimmer_study::builtin::SCENARIOS;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use toml::Value;

/// Size limit of a file (bytes), as in the command `dimmer`.
const LONGEST: u64 = 16 << 20;

/// The names of the models that come with Dimmer.
#[pyfunction]
pub(crate) fn models() -> Vec<&'static str> {
    BUILTIN.iter().map(|(name, _)| *name).collect()
}

/// The names of the scenarios that come with Dimmer.
#[pyfunction]
pub(crate) fn scenarios() -> Vec<&'static str> {
    SCENARIOS.iter().map(|(name, _)| *name).collect()
}

/// A processor model.
#[pyclass(name = "Model", module = "dimmer", frozen)]
#[derive(Debug)]
pub(crate) struct PyModel {
    pub(crate) model: Arc<Model>,
    path: String,
    text: String,
}

#[pymethods]
impl PyModel {
    /// Reads a model: the name of one that comes with Dimmer, a file, or a TOML text.
    #[staticmethod]
    fn load(source: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (path, text) = found(source, "model", &models(), builtin)?;
        Self::read(path, text)
    }

    /// Reads a model from its text; `path` is for messages.
    #[staticmethod]
    fn read(path: String, text: String) -> PyResult<Self> {
        let model = Model::parse(Path::new(&path), &text).map_err(refused)?;
        Ok(Self { model: Arc::new(model), path, text })
    }

    /// The name of the processor.
    #[getter]
    fn name(&self) -> &str {
        &self.model.identity.name
    }

    /// Its microarchitecture.
    #[getter]
    fn microarchitecture(&self) -> String {
        self.model.identity.microarchitecture.clone()
    }

    /// The names of its license levels, the fastest one first.
    #[getter]
    fn levels(&self) -> Vec<String> {
        self.model.levels.iter().map(|level| level.name.clone()).collect()
    }

    /// The file, or the name.
    #[getter]
    fn path(&self) -> &str {
        &self.path
    }

    /// The TOML text.
    #[getter]
    fn text(&self) -> &str {
        &self.text
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (String, String))> {
        let own = slf.get();
        Ok((slf.getattr("read")?, (own.path.clone(), own.text.clone())))
    }

    fn __repr__(&self) -> String {
        format!("<dimmer.Model {:?}>", self.model.identity.name)
    }
}

/// A workload.
#[pyclass(name = "Scenario", module = "dimmer", frozen)]
#[derive(Debug)]
pub(crate) struct PyScenario {
    pub(crate) scenario: Arc<Scenario>,
    path: String,
    text: String,
    files: BTreeMap<String, String>,
}

#[pymethods]
impl PyScenario {
    /// Reads a scenario: the name of one that comes with Dimmer, a file, or a TOML text. A text
    /// may include scenarios that come with Dimmer, as `NAME.toml`.
    #[staticmethod]
    fn load(source: &Bound<'_, PyAny>) -> PyResult<Self> {
        let named = |name: &str| named(SCENARIOS, name);
        let (path, text) = found(source, "scenario", &scenarios(), named)?;
        let is_file = named(&path).is_none() && path != TEXT;
        let files = RefCell::new(BTreeMap::new());
        let read = |path: &Path| {
            let text = if is_file {
                file(path).map_err(|error| chain(&error))
            } else {
                let name = path.file_stem().unwrap_or_default().to_string_lossy();
                let text = named(&name).filter(|_| path.file_name() == Some(path.as_os_str()));
                let none = || {
                    let known = scenarios().join(".toml, ");
                    format!("no such scenario comes with Dimmer; included can be {known}.toml")
                };
                text.map(str::to_owned).ok_or_else(none)
            }?;
            files.borrow_mut().insert(path.display().to_string(), text.clone());
            Ok(text)
        };
        let scenario = Scenario::parse_with(Path::new(&path), &text, &read).map_err(refused)?;
        Ok(Self { scenario: Arc::new(scenario), path, text, files: files.into_inner() })
    }

    /// Reads a scenario from its text and those of the files that it includes, by their paths.
    #[staticmethod]
    fn read(path: String, text: String, files: BTreeMap<String, String>) -> PyResult<Self> {
        let file = |path: &Path| {
            let text = files.get(&path.display().to_string());
            text.cloned().ok_or_else(|| "it is not among the files of the scenario".to_owned())
        };
        let scenario = Scenario::parse_with(Path::new(&path), &text, &file).map_err(refused)?;
        Ok(Self { scenario: Arc::new(scenario), path, text, files })
    }

    /// The same scenario with other values of keys at the top of its file, such as `cores`; `None`
    /// removes a key, also from the files that it includes.
    #[pyo3(signature = (**keys))]
    fn replace(&self, keys: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut document = table(&self.path, &self.text)?;
        let mut files = self.files.clone();
        for (key, value) in keys.into_iter().flatten() {
            let key: String = key.extract()?;
            if value.is_none() {
                let is_own = document.remove(&key).is_some();
                if !remove_from(&mut files, &key)? && !is_own {
                    return Err(PyValueError::new_err(format!(
                        "`{key}`: neither {} nor a file that it includes has this key",
                        self.path
                    )));
                }
            } else {
                let value = toml_value(&value).map_err(|error| {
                    PyTypeError::new_err(format!("`{key}`: {}", error.value(value.py())))
                })?;
                document.insert(key, value);
            }
        }
        Self::read(self.path.clone(), document.to_string(), files)
    }

    /// The name of the workload.
    #[getter]
    fn name(&self) -> &str {
        &self.scenario.name
    }

    /// The source that it recreates.
    #[getter]
    fn source(&self) -> &str {
        &self.scenario.source
    }

    /// The name of the model that it is meant for.
    #[getter]
    fn model(&self) -> &str {
        &self.scenario.model
    }

    /// The latest end (µs); `None` if it ends by itself.
    #[getter]
    fn end_us(&self) -> Option<f64> {
        self.scenario.end().map(|end| end.since_start().as_f64() * 1e-6)
    }

    /// The file, or the name.
    #[getter]
    fn path(&self) -> &str {
        &self.path
    }

    /// The TOML text.
    #[getter]
    fn text(&self) -> &str {
        &self.text
    }

    /// The texts of the files that it includes, by their paths.
    #[getter]
    fn files(&self) -> BTreeMap<String, String> {
        self.files.clone()
    }

    #[expect(clippy::type_complexity, reason = "the form is pickle's")]
    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyAny>, (String, String, BTreeMap<String, String>))> {
        let own = slf.get();
        let arguments = (own.path.clone(), own.text.clone(), own.files.clone());
        Ok((slf.getattr("read")?, arguments))
    }

    fn __repr__(&self) -> String {
        format!("<dimmer.Scenario {:?}>", self.scenario.name)
    }
}

/// What messages call a text that came without a file.
const TEXT: &str = "text";

fn table(path: &str, text: &str) -> PyResult<toml::Table> {
    text.parse().map_err(|error| PyValueError::new_err(format!("{path}: {error}")))
}

/// Removes a key from the texts of files. Returns whether one had it.
fn remove_from(files: &mut BTreeMap<String, String>, key: &str) -> PyResult<bool> {
    let mut had = false;
    for (path, text) in files {
        let mut document = table(path, text)?;
        if document.remove(key).is_some() {
            *text = document.to_string();
            had = true;
        }
    }
    Ok(had)
}

fn named(table: &[(&'static str, &'static str)], name: &str) -> Option<&'static str> {
    table.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// The path, for messages, and the text that `source` stands for.
fn found(
    source: &Bound<'_, PyAny>,
    what: &str,
    known: &[&str],
    builtin: impl Fn(&str) -> Option<&'static str>,
) -> PyResult<(String, String)> {
    let name = match source.cast::<PyString>() {
        Ok(text) => text.to_cow()?.into_owned(),
        Err(_) if source.hasattr("__fspath__")? => {
            source.extract::<PathBuf>()?.display().to_string()
        }
        Err(_) => {
            let found = source.get_type().name()?;
            let said = format!("a {what} is a name, a path or a TOML text, not {found}");
            return Err(PyTypeError::new_err(said));
        }
    };
    if name.contains('\n') {
        return Ok((TEXT.to_owned(), name));
    }
    if let Some(text) = builtin(&name) {
        return Ok((name, text.to_owned()));
    }
    if !Path::new(&name).exists() {
        let known = known.join(", ");
        let said = format!("no {what} or file `{name}`; {what}s: {known}");
        return Err(PyValueError::new_err(said));
    }
    match file(Path::new(&name)) {
        Ok(text) => Ok((name, text)),
        Err(error) => Err(PyValueError::new_err(chain(&error))),
    }
}

fn file(path: &Path) -> Result<String, BoundedFileError> {
    bounded_file::read_to_string(path, LONGEST)
}

/// An error and its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        said = format!("{said}: {error}");
        cause = error.source();
    }
    said
}

/// Dimmer's message as a `ValueError`.
pub(crate) fn refused(error: impl std::error::Error) -> PyErr {
    PyValueError::new_err(chain(&error))
}

/// A value of a scenario's key.
fn toml_value(value: &Bound<'_, PyAny>) -> PyResult<Value> {
    if let Ok(flag) = value.extract::<bool>() {
        Ok(Value::Boolean(flag))
    } else if let Ok(text) = value.extract::<String>() {
        Ok(Value::String(text))
    } else if let Ok(number) = value.extract::<i64>() {
        Ok(Value::Integer(number))
    } else if let Ok(number) = value.extract::<f64>() {
        Ok(Value::Float(number))
    } else if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        let items = value.try_iter()?.map(|item| toml_value(&item?));
        Ok(Value::Array(items.collect::<PyResult<_>>()?))
    } else if let Ok(table) = value.cast::<PyDict>() {
        let items = table.iter().map(|(key, item)| Ok((key.extract()?, toml_value(&item)?)));
        Ok(Value::Table(items.collect::<PyResult<_>>()?))
    } else {
        let found = value.get_type().name()?;
        let accepted = "a number, a text, True, False, a list or a dict of these";
        Err(PyTypeError::new_err(format!("expected {accepted}, not {found}")))
    }
}
