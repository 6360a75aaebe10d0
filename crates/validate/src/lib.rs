//! Results of papers, recreated on the simulated machine and compared with what the papers report.
//!
//! A [`Row`] is one result: what the paper says, what the simulator gives for the same experiment, and whether the two agree within a
//! tolerance. Nothing is looked up: the simulator knows the processor's model, what governors in software cost, and the experiment as the
//! paper describes it. Where a row is a model's parameter seen again through an experiment, its reason says so: that it comes out shows
//! that the machine does with it what it should, not that the parameter is right.
#![forbid(unsafe_code)]

pub mod here;
mod modes;
mod phases;
mod row;
mod sieve;
mod thesis;

pub use self::row::{Row, Tolerance};

use dimmer_processor::model::{Model, ModelError, builtin};
use dimmer_sim::SimError;

/// A paper whose results are recreated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paper {
    /// Paper 000.
    Avxfreq,
    /// Paper 001.
    Offloading,
}

/// A result that is not recreated, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Its name.
    pub id: &'static str,
    /// What it is.
    pub what: &'static str,
    /// Why not.
    pub why: &'static str,
}

impl Paper {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Avxfreq, Self::Offloading];

    /// Number and subject.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Avxfreq => "paper 000: AVX-induced reclocking on the i9-7940X",
            Self::Offloading => "paper 001: a library that moves wide code to other cores",
        }
    }

    /// Everything of the paper that is recreated, in its order. Takes about a second.
    ///
    /// # Errors
    /// If the model lacks what an experiment needs.
    pub fn rows(self) -> Result<Vec<Row>, ValidateError> {
        match self {
            Self::Avxfreq => thesis::rows(),
            Self::Offloading => sieve::rows(),
        }
    }

    /// What is not.
    #[must_use]
    pub fn left(self) -> &'static [Left] {
        match self {
            Self::Avxfreq => thesis::LEFT,
            Self::Offloading => sieve::LEFT,
        }
    }
}

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
    fn rows_are_recreated_once_each() {
        for (paper, fewest) in Paper::ALL.into_iter().zip([30, 4]) {
            let rows = paper.rows().unwrap();
            let ids: std::collections::BTreeSet<&str> = rows.iter().map(|row| row.id).collect();
            assert!(rows.len() >= fewest && ids.len() == rows.len(), "{}", rows.len());
            assert!(paper.left().iter().all(|left| !ids.contains(left.id)));
        }
    }
}
