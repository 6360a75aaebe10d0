//! The native part of the Python package `dimmer`: the simulator, its models and scenarios, policy
//! loops written in Python, and marked regions.
//!
//! Converts arguments and results only. What is simulated, decided or moved is in the crates below,
//! and documents are those of `dimmer sim`. `python/dimmer` is the package's Python part.
#![forbid(unsafe_code)]

mod input;
mod policy;
mod python_loop;
mod region;
mod run;

use pyo3::prelude::*;

/// The native module; `python/dimmer/__init__.py` documents what users call.
#[pymodule]
mod _dimmer {
    #[pymodule_export]
    use super::input::{PyModel, PyScenario, models, scenarios};
    #[pymodule_export]
    use super::policy::policies;
    #[pymodule_export]
    use super::python_loop::copied;
    #[pymodule_export]
    use super::region::{PyRegion, dedicated_cores, metric, region_statistics};
    #[pymodule_export]
    use super::run::{compare, simulate};
}
