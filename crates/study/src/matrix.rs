//! All cells of a study: each mechanism on each scenario on each model, with several seeds.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use dimmer_processor::model::Model;
use dimmer_sim::SimError;
use dimmer_sim::scenario::Scenario;
use rayon::prelude::*;

use crate::cache::{Cache, Kept};
use crate::mechanism::Mechanism;
use crate::ranking::{Place, rank};
use crate::run::{self, Run};

/// Something with the name by which a user knows it.
#[derive(Clone, Debug)]
pub struct Named<T> {
    /// The name, or the file.
    pub name: String,
    /// The thing.
    pub value: T,
}

impl<T> Named<T> {
    /// What `find` finds for each of these names.
    ///
    /// # Errors
    /// The first of `find`.
    pub fn all<E>(
        names: &[String],
        find: impl Fn(&String) -> Result<T, E>,
    ) -> Result<Vec<Self>, E> {
        let one = |name: &String| Ok(Self { name: name.clone(), value: find(name)? });
        names.iter().map(one).collect()
    }
}

/// What is studied.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The workloads.
    pub scenarios: Vec<Named<Scenario>>,
    /// The processors.
    pub models: Vec<Named<Model>>,
    /// The mechanisms beside none; empty: all of them.
    pub mechanisms: Vec<Mechanism>,
    /// Runs of each cell, with the seeds 1 to this number.
    pub seeds: u64,
    /// The number of threads that simulate; 0: one for each CPU that this process may use.
    pub jobs: usize,
}

/// Sees how far a study is, and may stop it.
#[expect(missing_debug_implementations, reason = "functions have no text")]
pub struct Follower<'a> {
    /// Whether the study is to end now.
    pub stops: &'a (dyn Fn() -> bool + Sync),
    /// Called when this many of all cells are complete.
    pub advances: &'a (dyn Fn(usize, usize) + Sync),
}

/// Why a study fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StudyError {
    /// A scenario cannot be simulated to its end.
    #[error("scenario {scenario} on model {model} under {mechanism}: {error}")]
    Sim {
        /// The scenario's name.
        scenario: String,
        /// The model's name.
        model: String,
        /// The mechanism's name.
        mechanism: &'static str,
        /// What went wrong.
        error: Box<SimError>,
    },
    /// The threads cannot be started.
    #[error("--jobs {threads}: cannot start that many threads: {error}")]
    Threads {
        /// The number of threads.
        threads: usize,
        /// What went wrong.
        error: rayon::ThreadPoolBuildError,
    },
}

/// The runs of a cell, by seed from 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Runs {
    /// At least one.
    pub runs: Vec<Run>,
    /// Whether the first two seeds gave equal results, so that no other was run.
    pub is_fixed: bool,
}

impl Runs {
    /// The run of a seed, from 0.
    #[must_use]
    pub fn of(&self, seed: usize) -> Option<&Run> {
        if self.is_fixed { self.runs.first() } else { self.runs.get(seed) }
    }

    /// How many seeds two cells can be compared with.
    #[must_use]
    pub fn count(&self, other: &Self) -> usize {
        match (self.is_fixed, other.is_fixed) {
            (true, true) => 1,
            (true, false) => other.runs.len(),
            (false, true) => self.runs.len(),
            (false, false) => self.runs.len().min(other.runs.len()),
        }
    }
}

/// A mechanism on a scenario on a model.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// It was simulated.
    Ran(Runs),
    /// It cannot be, for this reason.
    DoesNotApply(String),
    /// The study ended before.
    NotRun,
}

/// All mechanisms on a scenario on a model.
#[derive(Clone, Debug)]
pub struct Case {
    /// The number of the scenario in the plan.
    pub scenario: usize,
    /// The number of the model in the plan.
    pub model: usize,
    /// Each mechanism's cell, none first.
    pub cells: Vec<(Mechanism, Cell)>,
}

impl Case {
    /// The mechanisms that were simulated, the best first.
    #[must_use]
    pub fn ranking(&self) -> Vec<Place> {
        let ran: Vec<(Mechanism, &Runs)> = self
            .cells
            .iter()
            .filter_map(|(mechanism, cell)| match cell {
                Cell::Ran(runs) => Some((*mechanism, runs)),
                _ => None,
            })
            .collect();
        rank(&ran)
    }

    /// The runs of a mechanism, if it was simulated.
    #[must_use]
    pub fn runs(&self, of: Mechanism) -> Option<&Runs> {
        self.cells.iter().find_map(|(mechanism, cell)| match cell {
            Cell::Ran(runs) if *mechanism == of => Some(runs),
            _ => None,
        })
    }

    /// Whether the study ended before all cells were complete: then the ranking lacks some.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        self.cells.iter().any(|(_, cell)| *cell == Cell::NotRun)
    }

    /// Why even none does not apply, if so: then no mechanism does.
    #[must_use]
    pub fn refusal(&self) -> Option<&str> {
        match self.cells.first() {
            Some((Mechanism::None, Cell::DoesNotApply(why))) => Some(why),
            _ => None,
        }
    }
}

impl Plan {
    /// The mechanisms in the order of [`Mechanism::ALL`], always with [`Mechanism::None`].
    #[must_use]
    pub fn mechanisms(&self) -> Vec<Mechanism> {
        let is_chosen = |mechanism: &Mechanism| {
            let is_listed = self.mechanisms.is_empty() || self.mechanisms.contains(mechanism);
            *mechanism == Mechanism::None || is_listed
        };
        Mechanism::ALL.into_iter().filter(is_chosen).collect()
    }

    /// Simulates all cells. The result depends neither on the number of threads nor on what the
    /// cache has. Cases are in the order of the scenarios, then of the models.
    ///
    /// # Errors
    /// [`StudyError`].
    pub fn carry_out(
        &self,
        cache: &Cache,
        follower: &Follower<'_>,
    ) -> Result<Vec<Case>, StudyError> {
        self.pool()?.install(|| self.cells(cache, follower))
    }

    pub(crate) fn pool(&self) -> Result<rayon::ThreadPool, StudyError> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(self.jobs).build();
        pool.map_err(|error| StudyError::Threads { threads: self.jobs, error })
    }

    fn cells(&self, cache: &Cache, follower: &Follower<'_>) -> Result<Vec<Case>, StudyError> {
        let mechanisms = self.mechanisms();
        let places = (0..self.scenarios.len())
            .flat_map(|scenario| (0..self.models.len()).map(move |model| (scenario, model)));
        let places: Vec<(usize, usize)> = places.collect();
        let kept: Vec<Mutex<Option<Kept>>> = places.iter().map(|_| Mutex::new(None)).collect();
        let tasks: Vec<(usize, Mechanism)> = (0..places.len())
            .flat_map(|case| mechanisms.iter().map(move |mechanism| (case, *mechanism)))
            .collect();
        let complete = AtomicUsize::new(0);
        let of_task = |(case, mechanism): &(usize, Mechanism)| {
            let (scenario, model) = places[*case];
            let (scenario, model) = (&self.scenarios[scenario], &self.models[model]);
            let job = Job {
                scenario: (&scenario.name, &scenario.value),
                model: (&model.name, &model.value),
                base: (&scenario.value, &model.value),
                variant: String::new(),
            };
            let cell = self.cell(&job, *mechanism, &kept[*case], cache, follower);
            // Relaxed: only the number counts.
            let before = complete.fetch_add(1, Ordering::Relaxed);
            (follower.advances)(before + 1, tasks.len());
            cell
        };
        let results: Result<Vec<Cell>, _> = tasks.par_iter().with_max_len(1).map(of_task).collect();
        let mut results = results?.into_iter();
        let case = |(scenario, model): (usize, usize)| {
            let cells = mechanisms.iter().copied().zip(results.by_ref()).collect();
            Case { scenario, model, cells }
        };
        Ok(places.into_iter().map(case).collect())
    }

    /// Simulates a mechanism with all seeds, as far as the results are not kept.
    pub(crate) fn cell(
        &self,
        job: &Job<'_>,
        mechanism: Mechanism,
        kept: &Mutex<Option<Kept>>,
        cache: &Cache,
        follower: &Follower<'_>,
    ) -> Result<Cell, StudyError> {
        if (follower.stops)() {
            return Ok(Cell::NotRun);
        }
        let ((scenario_name, scenario), (model_name, model)) = (job.scenario, job.model);
        let way = match mechanism.on(scenario, model) {
            Ok(way) => way,
            Err(why) => return Ok(Cell::DoesNotApply(why)),
        };
        let label = format!("{}{}", mechanism.name(), job.variant);
        let with_kept = |act: &mut dyn FnMut(&mut Kept)| {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            act(kept.get_or_insert_with(|| cache.open(job.base.0, job.base.1)));
        };
        let one = |seed: u64| -> Result<Option<Run>, StudyError> {
            let mut found = None;
            with_kept(&mut |kept| found = kept.run(&label, seed));
            if found.is_some() {
                return Ok(found);
            }
            let looks = mechanism == Mechanism::None;
            let ran = run::measure(&way, model, seed, looks, follower.stops);
            let ran = ran.map_err(|error| StudyError::Sim {
                scenario: scenario_name.to_owned(),
                model: model_name.to_owned(),
                mechanism: mechanism.name(),
                error: Box::new(error),
            })?;
            let Some(ran) = ran else { return Ok(None) };
            let mut read_back = None;
            with_kept(&mut |kept| read_back = Some(kept.keep(&label, seed, &ran)));
            Ok(read_back)
        };
        let mut runs: Vec<Run> = Vec::new();
        for seed in 1..=self.seeds {
            let Some(run) = one(seed)? else { return Ok(Cell::NotRun) };
            if !run.has_work() {
                return Ok(Cell::DoesNotApply("no program does any work under it".to_owned()));
            }
            runs.push(run);
            if runs.len() == 2 && runs[0] == runs[1] {
                runs.truncate(1);
                return Ok(Cell::Ran(Runs { runs, is_fixed: true }));
            }
        }
        Ok(Cell::Ran(Runs { runs, is_fixed: false }))
    }
}

/// What is simulated for a cell.
pub(crate) struct Job<'a> {
    pub(crate) scenario: (&'a str, &'a Scenario),
    pub(crate) model: (&'a str, &'a Model),
    /// The scenario and the model with which results are kept.
    pub(crate) base: (&'a Scenario, &'a Model),
    /// How the job differs from these; empty if it does not.
    pub(crate) variant: String,
}
