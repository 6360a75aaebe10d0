//! Parameters of a scenario or of a model, fitted to what was measured.
//!
//! `docs/fit.md` describes the file ([`Fit`]) and how it is done. [`Fit::carry_out`] searches for
//! the values with which the simulator comes nearest to the measured ones, by least squares in
//! units of their standard errors. Then it finds which other values are as good: the interval of
//! each parameter ([`Found`]), or that the runs do not tell it. What is left is reported as such.

mod document;
mod interval;
mod metric;
mod place;
mod recorded;
mod search;
#[cfg(test)]
mod tests;
mod trial;
mod written;

use statrs::distribution::{ContinuousCDF, StudentsT};

pub use self::document::{Fit, FitFileError, Parameter, Read, Target};
pub use self::interval::{Found, Known};
pub use self::metric::Metric;
use self::search::{Point, least, starts};
pub use self::trial::{FitError, Follower};
use self::trial::{Trials, Values, best};

/// A residual that scatter alone exceeds less often than this is the scenario's or the model's.
const MISFIT: f64 = 0.01;

/// The relative error that is assumed of values measured once if nothing else tells it: a guess,
/// which results name.
const ASSUMED: f64 = 0.01;

/// How often a fit starts again from a better place that intervals came upon.
const RESTARTS: usize = 3;

/// How many starts are followed to their ends.
const FOLLOWED: usize = 3;

/// What a fit gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Fitted {
    /// The parameters, in the order of the file.
    pub parameters: Vec<Found>,
    /// The targets, in the order of the file.
    pub targets: Vec<Residual>,
    /// What all fitted targets together say.
    pub overall: Overall,
    /// How many values of the parameters were tried.
    pub tried: usize,
    /// How many runs were simulated.
    pub runs: usize,
}

/// How far the simulator is from a measured value.
#[derive(Clone, Debug, PartialEq)]
pub struct Residual {
    /// What the simulator gives, a mean over seeds.
    pub ours: f64,
    /// The least and the most of it over all tried values of the parameters that the runs allow.
    pub range: (f64, f64),
    /// The mean of what was measured.
    pub measured: f64,
    /// Its standard error, if known.
    pub standard_error: Option<f64>,
    /// The difference of ours in standard errors, of both together: what was measured, and the
    /// simulator's seeds.
    pub errors: Option<f64>,
    /// Whether the 95 % interval of what was measured meets the range of ours, if it is known.
    pub agrees: Option<bool>,
}

impl Residual {
    /// The difference of ours to what was measured (%).
    #[must_use]
    pub fn difference_pct(&self) -> f64 {
        100.0 * (self.ours / self.measured - 1.0)
    }
}

/// The residual of all fitted targets.
#[derive(Clone, Debug, PartialEq)]
pub struct Overall {
    /// The sum of the squared differences, in standard errors; `None` if these are not known.
    pub chi_squared: Option<f64>,
    /// Fitted targets beyond the number of parameters that are not at a bound. Without any, the
    /// residual says nothing.
    pub freedom: usize,
    /// How often scatter alone would make it larger, if that is known.
    pub probability: Option<f64>,
    /// The root of the mean square of the relative differences.
    pub rms_ratio: f64,
    /// The relative error of the measured values, if no scatter tells it: by the differences, or
    /// assumed.
    pub relative_error: Option<RelativeError>,
}

/// The relative error of values that were measured once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RelativeError {
    /// As large as their differences from the simulator, if that is right.
    Estimated(f64),
    /// There are no more values than parameters.
    Assumed(f64),
}

impl Overall {
    /// Whether the scenario or the model cannot give what was measured, whatever the parameters.
    #[must_use]
    pub fn is_misfit(&self) -> bool {
        self.probability.is_some_and(|probability| probability < MISFIT)
    }
}

impl Fitted {
    /// Whether each parameter has an interval within its bounds, the residual is what scatter
    /// explains, and targets that were held back agree.
    #[must_use]
    pub fn is_sound(&self, fit: &Fit) -> bool {
        let is_known = |found: &Found| matches!(found.known(), Known::Within(..));
        let mut checks = fit.targets.iter().zip(&self.targets).filter(|(of, _)| of.is_check);
        self.parameters.iter().all(is_known)
            && !self.overall.is_misfit()
            && checks.all(|(_, residual)| residual.agrees != Some(false))
    }
}

/// What one target counts.
#[derive(Clone, Copy, Debug)]
struct Weight {
    mean: f64,
    /// The standard error of the measured mean, or if none is known, the mean itself.
    error: f64,
    /// The standard error of the simulator's mean over seeds.
    seeds: f64,
}

impl Weight {
    fn total(&self) -> f64 {
        self.error.hypot(self.seeds)
    }
}

/// The least squares of a fit.
struct Squares<'a> {
    fit: &'a Fit,
    trials: Trials<'a>,
    /// One for each target.
    weights: Vec<Weight>,
    /// Whether standard errors of fitted targets are known.
    has_errors: bool,
}

impl Squares<'_> {
    /// The sum of squares of what was simulated.
    fn of(&self, values: &Values) -> f64 {
        let Ok(values) = values else { return f64::INFINITY };
        let targets = self.fit.targets.iter().zip(&self.weights).zip(values);
        let fitted = targets.filter(|((target, _), _)| !target.is_check);
        fitted.map(|((_, of), ours)| ((mean(ours) - of.mean) / of.total()).powi(2)).sum()
    }

    /// The sum of squares at a place.
    fn at(&mut self, place: &[f64]) -> Result<f64, FitError> {
        let values = self.trials.one(place)?;
        Ok(self.of(&values))
    }

    /// The least from here.
    fn least(&mut self, start: &[f64], size: f64) -> Result<Point, FitError> {
        least(start, size, |place| self.at(place))
    }

    /// The best of all places, from several starts.
    fn search(&mut self) -> Result<Point, FitError> {
        let dimensions = self.fit.parameters.len();
        let starts = starts(dimensions);
        let values = self.trials.at(&starts)?;
        let scores: Vec<f64> = values.iter().map(|values| self.of(values)).collect();
        let mut order: Vec<usize> = (0..starts.len()).collect();
        if dimensions == 1 {
            // Only lows between their neighbours, each of which has its own least.
            let beside = |index: usize| scores.get(index).copied().unwrap_or(f64::INFINITY);
            order.retain(|index| {
                let own = beside(*index);
                own <= beside(index.wrapping_sub(1)) && own <= beside(index + 1)
            });
        }
        order.retain(|index| scores[*index].is_finite());
        order.sort_by(|a, b| scores[*a].total_cmp(&scores[*b]));
        let size = if dimensions == 1 { 1.0 / 12.0 } else { 0.15 };
        let mut found = Vec::new();
        for index in order.into_iter().take(FOLLOWED) {
            found.push(self.least(&starts[index], size)?);
        }
        let why = || self.trials.refusal().unwrap_or_default().to_owned();
        best(found).ok_or_else(|| FitError::Nowhere { why: why() })
    }

    /// Counts what the simulator's seeds scatter, as they do at a place.
    fn weigh_seeds(&mut self, place: &[f64]) -> Result<(), FitError> {
        if let (Ok(values), true) = (self.trials.one(place)?, self.has_errors) {
            for (weight, values) in self.weights.iter_mut().zip(&values) {
                weight.seeds = standard_error(values);
            }
        }
        Ok(())
    }

    /// The best of all places that were tried, and those near it.
    fn polish(&mut self) -> Result<Point, FitError> {
        let tried = self.trials.all().map(|(place, values)| (place.to_vec(), self.of(values)));
        let (place, _) = best(tried.collect::<Vec<_>>()).unwrap_or_default();
        self.least(&place, 0.02)
    }
}

impl Fit {
    /// Fits the parameters. The result depends on nothing but the files.
    ///
    /// * `read`: reads what the scenario includes.
    /// * `jobs`: the number of threads that simulate; 0: one for each CPU of this process.
    ///
    /// # Errors
    /// [`FitError`].
    pub fn carry_out(
        &self,
        read: Read<'_>,
        jobs: usize,
        follower: &Follower<'_>,
    ) -> Result<Fitted, FitError> {
        let mut fitted = self.targets.iter().filter(|target| !target.is_check);
        let has_errors = fitted.all(|target| target.standard_error().is_some());
        let weight = |target: &Target| {
            let known = target.standard_error().filter(|_| has_errors);
            let mean = target.mean();
            Weight { mean, error: known.unwrap_or(mean.abs()), seeds: 0.0 }
        };
        let weights = self.targets.iter().map(weight).collect();
        let trials = Trials::new(self, read, jobs, follower)?;
        let mut squares = Squares { fit: self, trials, weights, has_errors };
        let (place, _) = squares.search()?;
        squares.weigh_seeds(&place)?;
        let mut point = squares.polish()?;
        let mut limit = squares.limit(&point)?;
        let mut profiles = squares.profiles(&point, limit.beyond)?;
        // A profile may come upon a better place, which is the new start.
        for _ in 0..RESTARTS {
            let Err(better) = profiles else { break };
            point = squares.least(&better, 0.02)?;
            limit = squares.limit(&point)?;
            profiles = squares.profiles(&point, limit.beyond)?;
        }
        // If even the last one did, the runs do not determine the best values.
        let profiles = profiles.unwrap_or_else(|_| vec![(None, None); self.parameters.len()]);
        let bootstraps = squares.bootstraps(&point, &profiles, &limit)?;
        let parameters = self.parameters.iter().zip(&point.0).zip(profiles.iter().zip(bootstraps));
        let parameters = parameters.map(|((parameter, place), (profile, bootstrap))| {
            Found::new(parameter, *place, *profile, bootstrap)
        });
        let parameters = parameters.collect();
        let targets = squares.residuals(&point, &limit)?;
        let fitted = self.targets.iter().zip(&targets).filter(|(target, _)| !target.is_check);
        let parts: Vec<f64> = fitted.map(|(_, of)| of.difference_pct() / 100.0).collect();
        let overall = Overall {
            chi_squared: has_errors.then_some(point.1),
            freedom: limit.freedom,
            probability: limit.probability,
            rms_ratio: mean(&parts.iter().map(|part| part * part).collect::<Vec<_>>()).sqrt(),
            relative_error: limit.relative_error,
        };
        let (tried, runs) = (squares.trials.tried(), squares.trials.runs);
        Ok(Fitted { parameters, targets, overall, tried, runs })
    }

    /// Degrees of freedom of the standard errors of fitted targets: infinite if they are given.
    fn error_freedom(&self) -> f64 {
        let fitted = self.targets.iter().filter(|target| !target.is_check);
        let scattered = fitted.filter(|target| target.error.is_none());
        let freedom: usize = scattered.map(|target| target.measured.len() - 1).sum();
        if freedom == 0 { f64::INFINITY } else { freedom as f64 }
    }
}

pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The standard error of a mean over seeds; 0 if nothing is random.
pub(crate) fn standard_error(values: &[f64]) -> f64 {
    let (count, mean) = (values.len() as f64, mean(values));
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    if values.iter().all(|value| *value == values[0]) {
        return 0.0;
    }
    (squares / (count - 1.0) / count).sqrt()
}

/// How many standard errors a mean is away in 95 % of cases at most, by Student's distribution.
pub(crate) fn student95(freedom: f64) -> f64 {
    // The normal distribution has 1.96.
    let found = StudentsT::new(0.0, 1.0, freedom.min(1e6)).map(|of| of.inverse_cdf(0.975));
    found.unwrap_or(f64::INFINITY)
}
