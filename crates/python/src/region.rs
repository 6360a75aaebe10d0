//! Marked regions of Python programs, by the runtime's sites.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};

use dimmer_runtime::{Entered, Site};
use pyo3::exceptions::{PyOverflowError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::python_loop::type_name;

/// Maximum number of names, which stay in memory: the runtime lists as many sites.
const MOST: usize = 1 << 14;

/// The sites by name.
static SITES: Mutex<BTreeMap<String, &'static Site>> = Mutex::new(BTreeMap::new());

/// The site of this name; the first call says where it is.
fn site(name: String, file: String, line: u32) -> PyResult<&'static Site> {
    let mut sites = SITES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(site) = sites.get(&name) {
        return Ok(site);
    }
    if name.is_empty() || name.contains('\0') {
        let said = "a region's name is a text of at least one character, without NUL";
        return Err(PyValueError::new_err(said));
    }
    if sites.len() == MOST {
        let said = format!("region `{name}`: there are {MOST} names already, the most accepted");
        return Err(PyValueError::new_err(said));
    }
    let site: &'static Site =
        Box::leak(Box::new(Site::new(String::leak(name.clone()), String::leak(file), line)));
    sites.insert(name, site);
    Ok(site)
}

/// A region: `with` enters and leaves it.
#[pyclass(name = "Region", module = "dimmer", frozen)]
#[derive(Debug)]
pub(crate) struct PyRegion {
    site: &'static Site,
    /// The entries that have not ended, with their threads.
    entered: Mutex<Vec<(ThreadId, Entered)>>,
}

#[pymethods]
impl PyRegion {
    #[new]
    fn new(name: String, file: String, line: u32) -> PyResult<Self> {
        Ok(Self { site: site(name, file, line)?, entered: Mutex::default() })
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        let own = slf.get();
        let entered = own.site.enter();
        let mut all = own.entered.lock().unwrap_or_else(PoisonError::into_inner);
        all.push((thread::current().id(), entered));
        drop(all);
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        let own = thread::current().id();
        let mut all = self.entered.lock().unwrap_or_else(PoisonError::into_inner);
        let last = all.iter().rposition(|(thread, _)| *thread == own);
        let entered = last.map(|last| all.remove(last).1);
        drop(all);
        let never = || PyRuntimeError::new_err("this thread is not in the region that it leaves");
        self.site.exit(entered.ok_or_else(never)?);
        Ok(())
    }

    /// The name.
    #[getter]
    fn name(&self) -> String {
        self.site.name()
    }
}

/// The entries of a region and the mean time in it (ns), both estimated from samples; the time is
/// `None` before the first sample. `None` for a name that was never used.
#[pyfunction]
pub(crate) fn region_statistics(name: &str) -> Option<(u64, Option<f64>)> {
    let sites = SITES.lock().unwrap_or_else(PoisonError::into_inner);
    let statistics = sites.get(name)?.statistics();
    Some((statistics.calls, statistics.mean_ns))
}

/// The number of CPUs that are dedicated to regions.
#[pyfunction]
pub(crate) fn dedicated_cores() -> usize {
    dimmer_runtime::dedicated().map_or(0, |cores| cores.cpus().count())
}

/// Reports how much more the program got done, in a unit of its own.
#[pyfunction]
pub(crate) fn metric(amount: &Bound<'_, PyAny>) -> PyResult<()> {
    let read = amount.extract::<u64>().map_err(|error| {
        if error.is_instance_of::<PyOverflowError>(amount.py()) {
            let said = format!("amount is {amount}, expected 0 to {}", u64::MAX);
            return PyValueError::new_err(said);
        }
        PyTypeError::new_err(format!("amount: expected an int, not {}", type_name(amount)))
    });
    dimmer_runtime::metric(read?);
    Ok(())
}
