//! Results of papers, recreated on the simulated machine and compared with what the papers report.
//!
//! A [`Row`] is one result: what the paper says, what the simulator gives for the same experiment, and whether the two agree within a
//! tolerance. Nothing is looked up: the simulator knows the processor's model alone, and an experiment is described as the paper
//! describes it. Where a row is a model's parameter seen again through an experiment, its reason says so: that it comes out shows
//! that the machine does with it what it should, not that the parameter is right.
#![forbid(unsafe_code)]

mod modes;
mod phases;
mod row;
mod thesis;

pub use self::row::{Row, Tolerance};
pub use self::thesis::{Left, SOURCE, left, rows};

use dimmer_processor::model::{Model, ModelError, builtin};
use dimmer_sim::SimError;

/// Why rows cannot be recreated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ValidateError {
    /// The processor's model cannot be read.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The simulator cannot run the experiment.
    #[error("{experiment}: {error}")]
    Sim {
        /// Which.
        experiment: &'static str,
        /// Why.
        error: SimError,
    },
}

/// The processor of papers 000 and 001.
fn i9_7940x() -> Result<Model, ModelError> {
    let name = "i9-7940x";
    Model::parse(std::path::Path::new(name), builtin(name).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_recreated_and_most_of_them_agree() {
        let rows = rows().unwrap();
        let ids: std::collections::BTreeSet<&str> = rows.iter().map(|row| row.id).collect();
        assert!(rows.len() >= 30 && ids.len() == rows.len(), "{}", rows.len());
        assert!(left().iter().all(|left| !ids.contains(left.id)));
    }
}
