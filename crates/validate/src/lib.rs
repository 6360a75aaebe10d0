//! Results of papers, recreated on the simulated machine and compared with what the papers report.
//!
//! A [`Row`] is one result: the paper's value, the simulator's value for the same experiment, and
//! whether the two agree within a tolerance. No result is looked up. The simulator's inputs are the
//! processor's model, the costs of governors in software, and the experiment as the paper describes
//! it. Some rows only show a parameter of the model again, through an experiment: the [`Class`] of
//! a row says what its agreement is worth. Classes are counted apart.
#![forbid(unsafe_code)]

mod asymmetric;
mod causes;
pub mod here;
mod inputs;
pub mod loops;
mod migration;
mod migration_points;
mod modes;
mod phases;
mod policy_server;
mod row;
mod server;
mod sieve;
mod specialised;
pub mod taken;
mod thesis;
pub mod turbo;
pub mod ways;
pub mod wins;

pub use self::causes::Cause;
pub use self::row::{Class, Number, Row};

use dimmer_processor::model::{Assumed, Model, ModelError, builtin};
use dimmer_sim::SimError;

use self::inputs::Inputs;

/// A paper whose results are recreated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paper {
    /// Paper 000.
    Avxfreq,
    /// Paper 001.
    Library,
    /// Paper 002.
    Turbo,
    /// Paper 003.
    Specialisation,
    /// Paper 004.
    Migration,
}

/// Follows work that takes seconds to minutes. A function that only says when to end is one.
pub trait Follower: Sync {
    /// Whether the work is to end now. Called all the time.
    fn stops(&self) -> bool;

    /// The work goes on with this experiment.
    fn begins(&self, _experiment: &str) {}
}

impl<F: Fn() -> bool + Sync> Follower for F {
    fn stops(&self) -> bool {
        self()
    }
}

/// A result that is not recreated, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// The result's id, such as `R000-11`.
    pub id: &'static str,
    /// The result, in words.
    pub what: &'static str,
    /// Why it is not recreated.
    pub why: &'static str,
}

impl Paper {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Avxfreq, Self::Library, Self::Turbo, Self::Specialisation, Self::Migration];

    /// The paper's number and subject.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Avxfreq => "paper 000: AVX-induced reclocking on the i9-7940X",
            Self::Library => "paper 001: a library that moves wide code to other cores",
            Self::Turbo => "paper 002: clocks by the application (§4.2 to §5)",
            Self::Specialisation => {
                "paper 003: cores for 512-bit code, to which threads move by themselves"
            }
            Self::Migration => "paper 004: threads that migrate between a fast and a slow core",
        }
    }

    /// Recreates all results of the paper that can be recreated. Takes seconds, or some minutes
    /// if the policy server is at work.
    ///
    /// * `follower`: if it stops the work, only the complete experiments are returned.
    ///
    /// # Errors
    /// If the model lacks what an experiment needs.
    pub fn recreate(self, follower: &dyn Follower) -> Result<Recreated, ValidateError> {
        let mut inputs = Inputs::new(self.model()?, follower);
        inputs.page = self.page();
        if self == Self::Turbo {
            inputs.model = turbo::first()?;
            inputs.second = Some(turbo::second()?);
        }
        let experiments = match self {
            Self::Avxfreq => thesis::EXPERIMENTS.to_vec(),
            Self::Library => [sieve::EXPERIMENTS, policy_server::EXPERIMENTS].concat(),
            Self::Turbo => turbo::EXPERIMENTS.to_vec(),
            Self::Specialisation => specialised::EXPERIMENTS.to_vec(),
            Self::Migration => migration::EXPERIMENTS.to_vec(),
        };
        let mut recreated = Recreated {
            paper: self,
            rows: Vec::new(),
            causes: Vec::new(),
            assumed: self.assumed(&inputs)?,
            done: 0,
            experiments: experiments.len(),
        };
        for experiment in experiments {
            if follower.stops() {
                break;
            }
            follower.begins(experiment.name);
            let named = |error| ValidateError::Sim { experiment: experiment.name, error };
            let rows = (experiment.rows)(&inputs).map_err(named)?;
            if follower.stops() {
                break;
            }
            recreated.rows.extend(rows);
            recreated.done += 1;
        }
        recreated.rows.sort_by_key(|row| row.id);
        recreated.causes = causes::test(self, &recreated.rows, &inputs)?;
        recreated.causes.sort_by_key(|cause| cause.row.id);
        Ok(recreated)
    }

    /// Its processor.
    pub(crate) fn model(self) -> Result<Model, ModelError> {
        let name = match self {
            Self::Avxfreq | Self::Library => "i9-7940x",
            Self::Turbo => "fx-8120",
            Self::Specialisation => "xeon-gold-6130",
            Self::Migration => "ryzen-1600x",
        };
        Model::parse(std::path::Path::new(name), builtin(name).unwrap_or_default())
    }

    /// How long a page of its web server takes, of the measured one.
    fn page(self) -> f64 {
        match self {
            Self::Library => taken::value("R001-11"),
            Self::Specialisation => taken::value("R003-01"),
            _ => 1.0,
        }
    }

    /// What the experiments assume where the model lacks values.
    fn assumed(self, inputs: &Inputs<'_>) -> Result<Vec<Assumed>, ValidateError> {
        let assumed = match self {
            Self::Avxfreq => thesis::assumed(inputs),
            Self::Library => server::assumed(inputs),
            Self::Turbo => Ok(turbo::assumed()),
            Self::Specialisation => specialised::assumed(inputs),
            Self::Migration => migration::assumed(inputs),
        };
        assumed.map_err(|error| ValidateError::Sim { experiment: "what is assumed", error })
    }

    /// The results that are not recreated.
    #[must_use]
    pub fn left(self) -> Vec<Left> {
        match self {
            Self::Avxfreq => thesis::LEFT.to_vec(),
            Self::Library => [sieve::LEFT, policy_server::LEFT].concat(),
            Self::Turbo => turbo::LEFT.to_vec(),
            Self::Specialisation => specialised::LEFT.to_vec(),
            Self::Migration => migration::LEFT.to_vec(),
        }
    }
}

/// Results of a paper, recreated.
#[derive(Clone, Debug, PartialEq)]
pub struct Recreated {
    /// The paper.
    pub paper: Paper,
    /// The results, in the paper's order.
    pub rows: Vec<Row>,
    /// What is supposed to be behind misses, tested, in the order of the rows.
    pub causes: Vec<Cause>,
    /// What was used in the place of values that the model lacks.
    pub assumed: Vec<Assumed>,
    /// Number of experiments that were carried out.
    pub done: usize,
    /// Number of all experiments.
    pub experiments: usize,
}

impl Recreated {
    /// The number of rows of a class, and how many of them are hits.
    #[must_use]
    pub fn count(&self, class: Class) -> (usize, usize) {
        let of_class = self.rows.iter().filter(|row| row.class == class);
        (of_class.clone().count(), of_class.filter(|row| row.hit).count())
    }

    /// Whether the run was stopped before the last experiment.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        self.done < self.experiments
    }
}

/// Some of a paper's results, recreated together.
#[derive(Clone, Copy, Debug)]
struct Experiment {
    name: &'static str,
    rows: fn(&Inputs<'_>) -> Result<Vec<Row>, SimError>,
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
        /// The experiment's name.
        experiment: &'static str,
        /// The simulator's error.
        error: SimError,
    },
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// The numbers of all results that a paper reports.
    fn reported(paper: Paper) -> Vec<u32> {
        match paper {
            Paper::Avxfreq => (1..=26).chain(30..=34).chain(40..=47).collect(),
            Paper::Library => (1..=26).collect(),
            Paper::Turbo => {
                let studies = (30..=35).chain(40..=42).chain(50..=63).chain(70..=77);
                (1..=12).chain(20..=23).chain(studies).collect()
            }
            Paper::Specialisation => (1..=21).collect(),
            Paper::Migration => (1..=19).chain(30..=53).collect(),
        }
    }

    /// A test of the command compares the document with what is recreated.
    #[test]
    fn each_result_is_recreated_or_left_out_for_a_reason() {
        let document = include_str!("../../../docs/VALIDATION.md");
        for paper in Paper::ALL {
            let start = document.find(paper.name()).unwrap();
            let text = &document[start..];
            let text = &text[..text.find("\n## ").unwrap_or(text.len())];
            let (recreated, left) = text.split_once("\nNot recreated:").unwrap();
            let recreated = recreated.split("\nWhat is supposed").next().unwrap();
            let ids = |text: &'static str| {
                text.lines().filter_map(|line| line.strip_prefix("| R0")?.split(' ').next())
            };
            // `R001-07b` is another part of result 7.
            let number = |id: &str| id[3..].trim_end_matches(['b', 'c']).parse::<u32>().unwrap();
            let all: Vec<&str> = ids(recreated).collect();
            assert_eq!(
                all.iter().collect::<BTreeSet<_>>().len(),
                all.len(),
                "an id stands for one row"
            );
            let numbers = |text| ids(text).map(number).collect::<BTreeSet<u32>>();
            assert_eq!(paper.left().len(), ids(left).count());
            let (recreated, left) = (numbers(recreated), numbers(left));
            assert!(recreated.is_disjoint(&left));
            assert_eq!(recreated.union(&left).copied().collect::<Vec<_>>(), reported(paper));
        }
    }

    #[test]
    fn what_is_complete_when_it_stops_is_told() {
        // Asked before and after the first experiment, and before the second one.
        let asked = AtomicUsize::new(0);
        let stops = || asked.fetch_add(1, Ordering::Relaxed) >= 2;
        let recreated = Paper::Avxfreq.recreate(&stops).unwrap();
        assert!(recreated.is_partial() && recreated.done == 1 && !recreated.rows.is_empty());
        let whole = Paper::Avxfreq.recreate(&|| false).unwrap();
        assert!(recreated.rows.iter().all(|row| whole.rows.contains(row)));
    }
}
