//! Results of papers, recreated on the simulated machine and compared with what the papers report.
//!
//! A [`Row`] is one result: what the paper says, what the simulator gives for the same experiment,
//! and whether the two agree within a tolerance. Nothing is looked up: the simulator knows the
//! processor's model, what governors in software cost, and the experiment as the paper describes
//! it. Where a row is a model's parameter seen again through an experiment, its reason says so:
//! that it comes out shows that the machine does with it what it should, not that the parameter is
//! right.
#![forbid(unsafe_code)]

pub mod here;
pub mod loops;
mod modes;
mod offload;
mod phases;
mod row;
mod server;
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

    /// Everything of the paper that is recreated. Takes a second, or some twenty where the policy
    /// server is at work.
    ///
    /// * `stops`: whether to leave it at the experiments that are complete; asked before each.
    ///
    /// # Errors
    /// If the model lacks what an experiment needs.
    pub fn recreate(self, stops: &dyn Fn() -> bool) -> Result<Recreated, ValidateError> {
        let model = i9_7940x()?;
        let experiments = match self {
            Self::Avxfreq => thesis::EXPERIMENTS.to_vec(),
            Self::Offloading => [sieve::EXPERIMENTS, offload::EXPERIMENTS].concat(),
        };
        let mut recreated =
            Recreated { paper: self, rows: Vec::new(), done: 0, experiments: experiments.len() };
        for experiment in experiments {
            if stops() {
                break;
            }
            let named = |error| ValidateError::Sim { experiment: experiment.name, error };
            recreated.rows.extend((experiment.rows)(&model).map_err(named)?);
            recreated.done += 1;
        }
        recreated.rows.sort_by_key(|row| row.id);
        Ok(recreated)
    }

    /// What is not.
    #[must_use]
    pub fn left(self) -> Vec<Left> {
        match self {
            Self::Avxfreq => thesis::LEFT.to_vec(),
            Self::Offloading => [sieve::LEFT, offload::LEFT].concat(),
        }
    }
}

/// Results of a paper, recreated.
#[derive(Clone, Debug, PartialEq)]
pub struct Recreated {
    /// Whose.
    pub paper: Paper,
    /// In the paper's order.
    pub rows: Vec<Row>,
    /// Experiments that were carried out.
    pub done: usize,
    /// Experiments in all.
    pub experiments: usize,
}

impl Recreated {
    /// Whether it was stopped before the last experiment.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        self.done < self.experiments
    }
}

/// Some of a paper's results, recreated together.
#[derive(Clone, Copy, Debug)]
struct Experiment {
    name: &'static str,
    rows: fn(&Model) -> Result<Vec<Row>, SimError>,
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
        for (paper, fewest) in Paper::ALL.into_iter().zip([30, 20]) {
            let recreated = paper.recreate(&|| false).unwrap();
            assert!(!recreated.is_partial());
            let rows = recreated.rows;
            let ids: std::collections::BTreeSet<&str> = rows.iter().map(|row| row.id).collect();
            assert!(rows.len() >= fewest && ids.len() == rows.len(), "{}", rows.len());
            assert!(paper.left().iter().all(|left| !ids.contains(left.id)));
        }
    }

    #[test]
    fn what_is_complete_when_it_stops_is_told() {
        let asked = std::cell::Cell::new(0);
        let stops = || {
            asked.set(asked.get() + 1);
            asked.get() > 1
        };
        let recreated = Paper::Avxfreq.recreate(&stops).unwrap();
        assert!(recreated.is_partial() && recreated.done == 1 && !recreated.rows.is_empty());
        let whole = Paper::Avxfreq.recreate(&|| false).unwrap();
        assert!(recreated.rows.iter().all(|row| whole.rows.contains(row)));
    }
}
