//! What the simulator gives for all targets at values of the parameters.

use std::collections::BTreeMap;

use dimmer_processor::model::Model;
use dimmer_sim::SimError;
use dimmer_sim::scenario::Outcome;
use rayon::prelude::*;

use super::document::{Change, Fit, Read, Target};
use super::search::Point;
use crate::mechanism::{Mechanism, Way};

/// Sees how far a fit is, and may stop it.
#[expect(missing_debug_implementations, reason = "functions have no text")]
pub struct Follower<'a> {
    /// Whether the fit is to end now.
    pub stops: &'a (dyn Fn() -> bool + Sync),
    /// Called when this many values of the parameters were tried.
    pub advances: &'a (dyn Fn(usize) + Sync),
}

/// Why a fit ends before its result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    /// The follower stopped it.
    #[error("stopped before its end")]
    Stopped,
    /// A target cannot be simulated, whatever the parameters.
    #[error("target `{target}`: {message}")]
    Target {
        /// The target's name.
        target: String,
        /// Why not.
        message: String,
    },
    /// The simulation cannot go on.
    #[error("target `{target}` at {at}: {error}")]
    Sim {
        /// The target's name.
        target: String,
        /// The values of the parameters.
        at: String,
        /// What went wrong.
        error: Box<SimError>,
    },
    /// No values of the parameters that were tried can be simulated.
    #[error("at none of the values that were tried, all targets have a value: {why}")]
    Nowhere {
        /// What was wrong at the first of them.
        why: String,
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

/// The value of each target, for each seed; or why the values of the parameters do not fit each
/// other.
pub(super) type Values = Result<Vec<Vec<f64>>, String>;

/// What runs alike for several targets: a mechanism, and what was set for it.
type Config<'a> = (Mechanism, &'a [Change]);

/// Tries values of the parameters, and remembers what it gave.
pub(super) struct Trials<'a> {
    fit: &'a Fit,
    read: Read<'a>,
    follower: &'a Follower<'a>,
    pool: rayon::ThreadPool,
    configs: Vec<Config<'a>>,
    /// By the values of the parameters, as bits: the place of the first with these, and its result.
    known: BTreeMap<Vec<u64>, (Vec<f64>, Values)>,
    /// How many seeds run at each place, known from the first ones on.
    seeds: Option<u64>,
    /// Simulated runs.
    pub(super) runs: usize,
}

impl<'a> Trials<'a> {
    /// * `jobs`: the number of threads that simulate; 0: one for each CPU of this process.
    pub(super) fn new(
        fit: &'a Fit,
        read: Read<'a>,
        jobs: usize,
        follower: &'a Follower<'a>,
    ) -> Result<Self, FitError> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(jobs).build();
        let pool = pool.map_err(|error| FitError::Threads { threads: jobs, error })?;
        let mut configs: Vec<Config<'_>> = Vec::new();
        for target in &fit.targets {
            for mechanism in target.mechanisms() {
                if !configs.contains(&(mechanism, &target.set)) {
                    configs.push((mechanism, &target.set));
                }
            }
        }
        let known = BTreeMap::new();
        Ok(Self { fit, read, follower, pool, configs, known, seeds: None, runs: 0 })
    }

    /// How many values of the parameters were tried.
    pub(super) fn tried(&self) -> usize {
        self.known.len()
    }

    /// The values of all targets at each of these places of the unit cube. Those that are not known
    /// are simulated together.
    pub(super) fn at(&mut self, places: &[Vec<f64>]) -> Result<Vec<Values>, FitError> {
        let keys: Vec<Vec<u64>> = places.iter().map(|place| self.key(place)).collect();
        let mut new: Vec<(Vec<u64>, &Vec<f64>)> = Vec::new();
        for (key, place) in keys.iter().zip(places) {
            if !self.known.contains_key(key) && new.iter().all(|(other, _)| other != key) {
                new.push((key.clone(), place));
            }
        }
        let seeds = match self.seeds {
            Some(seeds) => seeds,
            None => self.seeds_at(&new)?,
        };
        self.seeds = Some(seeds);
        let this = &*self;
        let simulate = || {
            let new = new.par_iter().with_max_len(1);
            new.map(|(_, place)| this.simulate(place, seeds)).collect::<Result<Vec<_>, FitError>>()
        };
        let simulated = this.pool.install(simulate)?;
        for ((key, place), (values, runs)) in new.into_iter().zip(simulated) {
            self.runs += runs;
            self.known.insert(key, (place.clone(), values));
        }
        (self.follower.advances)(self.known.len());
        let found = keys.iter().filter_map(|key| self.known.get(key));
        Ok(found.map(|(_, values)| values.clone()).collect())
    }

    /// The values of all targets at a place.
    pub(super) fn one(&mut self, place: &[f64]) -> Result<Values, FitError> {
        let values = self.at(&[place.to_vec()])?;
        Ok(values.into_iter().next().unwrap_or_else(|| Err(String::new())))
    }

    /// What was tried so far, in the order of the parameters' values: places, and what they gave.
    pub(super) fn all(&self) -> impl Iterator<Item = (&[f64], &Values)> {
        self.known.values().map(|(place, values)| (&place[..], values))
    }

    /// Why the first of the values that do not fit each other do not.
    pub(super) fn refusal(&self) -> Option<&str> {
        self.all().find_map(|(_, values)| values.as_ref().err().map(String::as_str))
    }

    fn key(&self, place: &[f64]) -> Vec<u64> {
        let of = self.fit.parameters.iter().zip(place);
        of.map(|(parameter, place)| parameter.at(*place).to_bits()).collect()
    }

    /// How many seeds tell all, by the first places that are tried: one if nothing is random at any
    /// of them, because seeds 1 and 2 have the same outcomes. Equal values of targets alone may be
    /// chance.
    fn seeds_at(&mut self, places: &[(Vec<u64>, &Vec<f64>)]) -> Result<u64, FitError> {
        for (_, place) in places {
            let Ok(ways) = self.ways(place) else { continue };
            let this = &*self;
            let outcomes = |seed: u64| this.outcomes(&ways, place, seed);
            let (one, other) = this.pool.install(|| rayon::join(|| outcomes(1), || outcomes(2)));
            let (one, other) = (one?, other?);
            self.runs += one.len() + other.len();
            if one != other {
                return Ok(self.fit.seeds);
            }
        }
        Ok(1)
    }

    /// The configurations at a place; or why the values of the parameters do not fit each other.
    fn ways(&self, place: &[f64]) -> Result<Vec<(Way, Model)>, String> {
        let parameters = self.fit.parameters.iter().zip(place);
        let changes: Vec<Change> = parameters
            .flat_map(|(parameter, place)| parameter.changes(parameter.at(*place)))
            .collect();
        let configs = self.configs.iter().map(|(mechanism, set)| {
            let changes: Vec<Change> = changes.iter().chain(*set).cloned().collect();
            let (scenario, model) = self.fit.read_with(&changes, self.read)?;
            let way = mechanism.on(&scenario, &model);
            Ok((way.map_err(|why| format!("{}: {why}", mechanism.name()))?, model))
        });
        configs.collect()
    }

    /// The outcomes of all configurations with a seed.
    fn outcomes(
        &self,
        ways: &[(Way, Model)],
        place: &[f64],
        seed: u64,
    ) -> Result<Vec<Outcome>, FitError> {
        let run = |(config, (way, model)): (usize, &(Way, Model))| {
            self.run(way, model, seed).map_err(|error| match error {
                Some(error) => FitError::Sim {
                    target: self.first_of(config),
                    at: self.told(place),
                    error: Box::new(error),
                },
                None => FitError::Stopped,
            })
        };
        ways.par_iter().enumerate().map(run).collect()
    }

    /// The values of all targets at a place with this many seeds, and how many runs that took.
    fn simulate(&self, place: &[f64], seeds: u64) -> Result<(Values, usize), FitError> {
        let ways = match self.ways(place) {
            Ok(ways) => ways,
            Err(why) => return Ok((Err(why), 0)),
        };
        // The same seeds at all places, so that differences are the parameters'.
        let of_seed = |seed: u64| -> Result<Vec<f64>, FitError> {
            let outcomes = self.outcomes(&ways, place, seed)?;
            self.fit.targets.iter().map(|target| self.value(target, &outcomes)).collect()
        };
        let by_seed: Result<Vec<Vec<f64>>, FitError> =
            (1..=seeds).into_par_iter().map(of_seed).collect();
        let by_seed = by_seed?;
        let runs = by_seed.len() * ways.len();
        let targets = 0..self.fit.targets.len();
        let values: Vec<Vec<f64>> =
            targets.map(|target| by_seed.iter().map(|seed| seed[target]).collect()).collect();
        let missing = values.iter().position(|of| of.iter().any(|value| !value.is_finite()));
        Ok(match missing {
            Some(target) => {
                let name = &self.fit.targets[target].name;
                (Err(format!("target `{name}` has no value at {}", self.told(place))), runs)
            }
            None => (Ok(values), runs),
        })
    }

    /// A run; the error is `None` if it was stopped.
    fn run(&self, way: &Way, model: &Model, seed: u64) -> Result<Outcome, Option<SimError>> {
        let settings = way.settings(model, seed)?;
        let stops = |_| (self.follower.stops)();
        let (outcome, ()) = way.scenario.run_on(model, settings, (), &stops)?;
        if outcome.is_partial { Err(None) } else { Ok(outcome) }
    }

    fn value(&self, target: &Target, outcomes: &[Outcome]) -> Result<f64, FitError> {
        let of = |mechanism: Mechanism| {
            let is_own = |(of, set): &Config<'_>| *of == mechanism && *set == target.set;
            let config = self.configs.iter().position(is_own).unwrap_or_default();
            let (program, code) = (target.program.as_deref(), target.code.as_deref());
            let value = target.metric.of(&outcomes[config], program, code);
            value.map_err(|message| FitError::Target { target: target.name.clone(), message })
        };
        let value = of(target.mechanism)?;
        target.over.map_or(Ok(1.0), of).map(|over| value / over)
    }

    /// The first target of a configuration.
    fn first_of(&self, config: usize) -> String {
        let (mechanism, set) = self.configs[config];
        let is_of =
            |target: &&Target| target.set == set && target.mechanisms().any(|of| of == mechanism);
        self.fit.targets.iter().find(is_of).map(|target| target.name.clone()).unwrap_or_default()
    }

    fn told(&self, place: &[f64]) -> String {
        let of = self.fit.parameters.iter().zip(place);
        let of =
            of.map(|(parameter, place)| format!("{} = {}", parameter.name, parameter.at(*place)));
        of.collect::<Vec<_>>().join(", ")
    }
}

impl Target {
    fn mechanisms(&self) -> impl Iterator<Item = Mechanism> + use<> {
        [Some(self.mechanism), self.over].into_iter().flatten()
    }
}

/// The best of several points, the first of equals.
pub(super) fn best(points: impl IntoIterator<Item = Point>) -> Option<Point> {
    points.into_iter().reduce(|best, point| if point.1 < best.1 { point } else { best })
}
