//! The `policy` argument: a governor of license levels, what moves code, or a loop in Python.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use dimmer_policy::server::loops::{self, Definition};
use dimmer_sim::{Governor, Moving};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::python_loop::PythonLoop;

/// What decides in a run.
#[derive(Clone, Debug)]
pub(crate) enum Policy {
    /// A governor of license levels; marked regions stay.
    Governor(Governor),
    /// What moves code, under the processor's own governor.
    Moving(Moving),
    /// A loop in Python decides which marked regions move, likewise.
    Python(&'static Definition, PythonLoop),
}

impl Policy {
    /// Reads the argument: a name, an object, or a class, of which an object is made; `None` is
    /// the processor's own governor.
    pub(crate) fn of(policy: &Bound<'_, PyAny>) -> PyResult<Self> {
        if policy.is_none() {
            return Ok(Self::Governor(Governor::Hardware));
        }
        if let Ok(name) = policy.cast::<PyString>() {
            return Self::named(&name.to_cow()?);
        }
        if !policy.hasattr("decide")? {
            let found = policy.repr()?;
            let known = policies().join(", ");
            return Err(PyTypeError::new_err(format!(
                "policy: expected one of {known}, or an object with a method `decide`, not {found}"
            )));
        }
        let (name, start) = PythonLoop::of(policy)?;
        if policies().contains(&name.as_str()) {
            let said = format!("policy: it has the name of Dimmer's own policy `{name}`");
            return Err(PyValueError::new_err(said));
        }
        Ok(Self::Python(definition(&name), start))
    }

    fn named(name: &str) -> PyResult<Self> {
        let governor = Governor::ALL.into_iter().find(|governor| governor.name() == name);
        let moving = || Moving::named(name).map(Self::Moving);
        governor.map(Self::Governor).or_else(moving).ok_or_else(|| {
            let known = policies().join(", ");
            PyValueError::new_err(format!("unknown policy `{name}`, expected one of {known}"))
        })
    }

    pub(crate) fn governor(&self) -> Governor {
        match self {
            Self::Governor(governor) => *governor,
            Self::Moving(_) | Self::Python(..) => Governor::Hardware,
        }
    }

    pub(crate) fn moving(&self) -> Moving {
        match self {
            Self::Governor(_) => Moving::None,
            Self::Moving(moving) => *moving,
            Self::Python(definition, _) => Moving::Loop(definition),
        }
    }

    /// The name in results.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Governor(governor) => governor.name(),
            Self::Moving(moving) => moving.name(),
            Self::Python(definition, _) => definition.name,
        }
    }

    /// The same for a run of its own: a loop in Python has another object.
    pub(crate) fn for_run(&self, py: Python<'_>) -> PyResult<Self> {
        match self {
            Self::Python(definition, of) => Ok(Self::Python(definition, of.for_run(py)?)),
            other => Ok(other.clone()),
        }
    }
}

/// The names of the policies that come with Dimmer: governors of license levels, then what moves
/// code.
#[pyfunction]
pub(crate) fn policies() -> Vec<&'static str> {
    let governors = Governor::ALL.map(Governor::name);
    governors.into_iter().chain(Moving::all().into_iter().map(Moving::name)).collect()
}

/// The definition of the loops that results call by this name. The server's settings are those of
/// Dimmer's usual loop. Each name takes some memory until the process ends.
fn definition(name: &str) -> &'static Definition {
    static KNOWN: Mutex<BTreeMap<String, &'static Definition>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.entry(name.to_owned()).or_insert_with(|| {
        Box::leak(Box::new(Definition {
            name: String::leak(name.to_owned()),
            summary: "a policy in Python",
            constants: loops::USUAL.constants,
            settings: loops::USUAL.settings,
        }))
    })
}
