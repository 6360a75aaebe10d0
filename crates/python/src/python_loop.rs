//! A policy loop whose methods are those of a Python object.
//!
//! A loop must neither fail nor panic. So the first exception of a method is kept, the loop calls
//! no more methods, and the run ends at its next look at [`Failure`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dimmer_policy::server::UserId;
use dimmer_policy::server::decision::{Action, Reason};
use dimmer_policy::server::evidence::{Density, NEGLIGIBLE};
use dimmer_policy::server::loops::{Constant, Constants, Definition, LONGEST_MS, Loop, WindowEnd};
use dimmer_processor::units::{Nanos, Time};
use pyo3::call::PyCallArgs;
use pyo3::exceptions::{PyException, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};

/// The length of a window where the object does not say it, as in Dimmer's loop `trials`.
const WINDOW: Nanos = Nanos::from_ms(1000);

/// The first exception of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failure(Arc<(AtomicBool, Mutex<Option<PyErr>>)>);

impl Failure {
    pub(crate) fn is_set(&self) -> bool {
        self.0.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, error: PyErr) {
        let mut first = self.0.1.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(error);
        self.0.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn take(&self) -> Option<PyErr> {
        self.0.1.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Methods of [`Loop`] that an object may leave out.
#[derive(Clone, Copy, Debug)]
struct Has {
    window: bool,
    ends_early: bool,
    passed: bool,
    own: bool,
    candidate: bool,
    expect: bool,
    spend: bool,
    rest: bool,
    forget: bool,
}

/// A Python object as a policy loop.
#[derive(Clone, Debug)]
pub(crate) struct PythonLoop {
    object: Arc<Py<PyAny>>,
    /// The policy, where it is a class: each run has an object that it makes.
    class: Option<Arc<Py<PyAny>>>,
    has: Has,
    window: Nanos,
    settling: Option<Nanos>,
    negligible: f64,
    counts_moved_calls: bool,
    skips_first_window: bool,
    failure: Failure,
}

impl PythonLoop {
    /// A loop of this object, or of an object that this class makes, and its name. Attributes are
    /// read now.
    pub(crate) fn of(policy: &Bound<'_, PyAny>) -> PyResult<(String, Self)> {
        if !policy.is_instance_of::<PyType>() {
            return Ok((name(policy)?, Self::new(policy)?));
        }
        let object = policy.call0()?;
        let class = Some(Arc::new(policy.clone().unbind()));
        Ok((name(&object)?, Self { class, ..Self::new(&object)? }))
    }

    fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let has = |name: &str| -> PyResult<bool> {
            let Some(method) = object.getattr_opt(name)? else { return Ok(false) };
            if method.is_callable() {
                return Ok(true);
            }
            let said = format!("{name}: expected a method, not {}", method.repr()?);
            Err(PyTypeError::new_err(said))
        };
        has("decide")?;
        let has = Has {
            window: has("window")?,
            ends_early: has("ends_early")?,
            passed: has("passed")?,
            own: has("own")?,
            candidate: has("candidate")?,
            expect: has("expect")?,
            spend: has("spend")?,
            rest: has("rest")?,
            forget: has("forget")?,
        };
        Ok(Self {
            has,
            window: time_ms(object, "window_ms", 1.0)?.unwrap_or(WINDOW),
            settling: time_ms(object, "settling_ms", 0.0)?,
            negligible: number(object, "negligible", (0.0, 1.0))?.unwrap_or(NEGLIGIBLE),
            counts_moved_calls: flag(object, "counts_moved_calls")?.unwrap_or(false),
            skips_first_window: flag(object, "skips_first_window")?.unwrap_or(true),
            object: Arc::new(object.clone().unbind()),
            class: None,
            failure: Failure::default(),
        })
    }

    /// The loop for a run of its own: of another object of the class, or of a copy of the object.
    pub(crate) fn for_run(&self, py: Python<'_>) -> PyResult<Self> {
        match &self.class {
            Some(class) => Ok(Self::of(class.bind(py))?.1),
            None => self.deep_copy(py),
        }
    }

    /// The same state in an object of its own, and no exception yet.
    fn deep_copy(&self, py: Python<'_>) -> PyResult<Self> {
        let object = Arc::new(copied(self.object.bind(py))?.unbind());
        Ok(Self { object, failure: Failure::default(), ..self.clone() })
    }

    /// Where the first exception is kept.
    pub(crate) fn failure(&self) -> Failure {
        self.failure.clone()
    }

    /// Calls a method, unless one has failed.
    fn call<T>(
        &self,
        method: &str,
        arguments: impl for<'py> PyCallArgs<'py>,
        read: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>,
    ) -> Option<T> {
        if self.failure.is_set() {
            return None;
        }
        let called = Python::attach(|py| {
            let name = PyString::intern(py, method);
            read(&self.object.bind(py).call_method1(name, arguments)?)
        });
        called.map_err(|error| self.failure.set(error)).ok()
    }

    /// Calls a method whose result does not count.
    fn inform(&self, method: &str, arguments: impl for<'py> PyCallArgs<'py>) {
        let _ = self.call(method, arguments, |_| Ok(()));
    }
}

impl Loop for PythonLoop {
    fn copy(&self) -> Box<dyn Loop> {
        let copied = Python::attach(|py| self.deep_copy(py));
        Box::new(match copied {
            Ok(copy) => Self { failure: self.failure(), ..copy },
            Err(error) => {
                self.failure.set(error);
                self.clone()
            }
        })
    }

    fn window_length(&self) -> Nanos {
        self.window
    }

    fn decide(&self, group: usize, density: &Density) -> (Action, Reason) {
        let moves = self.call("decide", (group, density.0), |action| {
            let py = action.py();
            if action.eq(intern!(py, "move"))? {
                Ok(true)
            } else if action.eq(intern!(py, "stay"))? {
                Ok(false)
            } else {
                Err(refused("decide", action, "\"move\" or \"stay\""))
            }
        });
        match moves {
            Some(true) => (Action::Move, Reason::Worth),
            Some(false) | None => (Action::Stay, Reason::NotWorth),
        }
    }

    fn window(&mut self, end: WindowEnd) -> bool {
        let now_ms = end.now.since_start().as_f64() / 1e6;
        let arguments = (now_ms, end.trend.change(), end.moved);
        self.has.window
            && self.call("window", arguments, |again| truth("window", again)) == Some(true)
    }

    fn settling(&self) -> Option<Nanos> {
        self.settling
    }

    fn ends_early(&self) -> bool {
        self.has.ends_early
            && self.call("ends_early", (), |now| truth("ends_early", now)) == Some(true)
    }

    fn pass(&mut self, windows: u64) {
        if self.has.passed {
            self.inform("passed", (windows,));
        }
    }

    fn negligible(&self) -> f64 {
        self.negligible
    }

    fn skips_first_window(&self) -> bool {
        self.skips_first_window
    }

    fn counts_moved_calls(&self) -> bool {
        self.counts_moved_calls
    }

    fn own(&mut self, group: usize, user: UserId) {
        if self.has.own {
            self.inform("own", (group, user.0));
        }
    }

    fn candidate(&mut self, group: usize, is_one: bool) {
        if self.has.candidate {
            self.inform("candidate", (group, is_one));
        }
    }

    fn expect(&mut self, group: usize, gain: f64) {
        if self.has.expect {
            self.inform("expect", (group, gain));
        }
    }

    fn spend(&mut self, group: usize, longer_ns: f64, worked_ns: f64) {
        if self.has.spend {
            self.inform("spend", (group, longer_ns, worked_ns));
        }
    }

    fn rest(&mut self, group: usize) {
        if self.has.rest {
            self.inform("rest", (group,));
        }
    }

    fn forget(&mut self, group: usize) {
        if self.has.forget {
            self.inform("forget", (group,));
        }
    }
}

/// The constants of a loop in Python: none; its object is its start.
#[derive(Clone, Debug)]
pub(crate) struct PythonConstants {
    pub(crate) definition: &'static Definition,
    pub(crate) start: PythonLoop,
}

impl Constants for PythonConstants {
    fn definition(&self) -> &'static Definition {
        self.definition
    }

    fn copy(&self) -> Box<dyn Constants> {
        Box::new(self.clone())
    }

    fn list(&mut self) -> Vec<Constant<'_>> {
        Vec::new()
    }

    fn start(&self, _: Time) -> Box<dyn Loop> {
        Box::new(self.start.clone())
    }
}

/// A deep copy of a policy's object.
#[pyfunction]
pub(crate) fn copied<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    py.import("copy")?.call_method1("deepcopy", (object,)).map_err(|cause| {
        if !cause.is_instance_of::<PyException>(py) {
            return cause;
        }
        let of = type_name(object);
        let error = PyTypeError::new_err(format!(
            "policy {of}: its object cannot be copied, and each run needs an object of its own"
        ));
        error.set_cause(py, Some(cause));
        error
    })
}

/// The name of a loop: the attribute `name` of its object, otherwise the name of the class.
fn name(object: &Bound<'_, PyAny>) -> PyResult<String> {
    let Some(name) = object.getattr_opt("name")?.filter(|name| !name.is_none()) else {
        return Ok(object.get_type().name()?.to_string());
    };
    let accepted = "expected a text of at least one character";
    let Ok(text) = name.cast::<PyString>() else {
        return Err(PyTypeError::new_err(format!("name: {accepted}, not {}", type_name(&name))));
    };
    let text = text.to_cow()?.into_owned();
    if text.is_empty() {
        return Err(PyValueError::new_err(format!("name is empty, {accepted}")));
    }
    Ok(text)
}

/// The name of an object's class, for messages.
pub(crate) fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string())
}

/// The exception for what a method returned.
fn refused(method: &str, found: &Bound<'_, PyAny>, expected: &str) -> PyErr {
    let found = found.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string());
    PyValueError::new_err(format!("{method}() returned {found}, expected {expected}"))
}

fn truth(method: &str, found: &Bound<'_, PyAny>) -> PyResult<bool> {
    found.extract::<bool>().map_err(|_| refused(method, found, "True or False"))
}

/// An attribute that is a time in milliseconds; `None` if it is absent or `None`.
fn time_ms(object: &Bound<'_, PyAny>, name: &str, least: f64) -> PyResult<Option<Nanos>> {
    let ms = number(object, name, (least, LONGEST_MS))?;
    Ok(ms.map(|ms| Nanos::rounded(ms * 1e6)))
}

fn number(
    object: &Bound<'_, PyAny>,
    name: &str,
    (least, most): (f64, f64),
) -> PyResult<Option<f64>> {
    let Some(value) = object.getattr_opt(name)?.filter(|value| !value.is_none()) else {
        return Ok(None);
    };
    let accepted = || format!("expected {least} to {most}");
    let number: f64 = value.extract().map_err(|_| {
        PyTypeError::new_err(format!("{name}: {}, not {}", accepted(), type_name(&value)))
    })?;
    if !(least..=most).contains(&number) {
        return Err(PyValueError::new_err(format!("{name} is {number}, {}", accepted())));
    }
    Ok(Some(number))
}

fn flag(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<bool>> {
    let Some(value) = object.getattr_opt(name)? else { return Ok(None) };
    let found = |_| PyTypeError::new_err(format!("{name}: expected True or False, not {value}"));
    value.extract::<bool>().map(Some).map_err(found)
}
