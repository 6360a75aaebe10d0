//! Which other values of a parameter the measured values allow: by the profile of the sum of
//! squares (how much it grows with the parameter held elsewhere and the others at their best
//! there), and by the bootstrap of the measured values (Efron, "Bootstrap methods: another look at
//! the jackknife", The Annals of Statistics 7, 1979).

use std::cell::RefCell;

use statrs::distribution::{ChiSquared, ContinuousCDF, FisherSnedecor};

use super::document::Parameter;
use super::search::{NEAR, Point, least};
use super::{
    ASSUMED, FitError, RelativeError, Residual, Squares, Target, mean, standard_error, student95,
};

/// The first step of a profile, in the unit cube.
const FIRST_STEP: f64 = 0.004;

/// How precisely the end of an interval is found, in parts of its distance.
const PRECISE: f64 = 0.05;

/// Samples of the bootstrap.
const SAMPLES: usize = 2000;

/// The ends of an interval in the unit cube; `None`: none within the bounds.
pub(super) type Ends = (Option<f64>, Option<f64>);

/// What the runs say of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The value with the least sum of squares.
    pub value: f64,
    /// The least and the largest value that the profile of the sum of squares allows; `None` if
    /// that is the parameter's bound.
    pub profile: (Option<f64>, Option<f64>),
    /// The middle 95 % of the values of the bootstrap; `None` if not all parameters are within
    /// their bounds.
    pub bootstrap: Option<(f64, f64)>,
}

/// What is known of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Known {
    /// It lies between these, with 95 %.
    Within(f64, f64),
    /// It is at least this: the best value may be its upper bound, or above.
    AtLeast(f64),
    /// It is at most this.
    AtMost(f64),
    /// Any value within the bounds is as good.
    Nothing,
}

impl Found {
    pub(super) fn new(
        parameter: &Parameter,
        place: f64,
        (low, high): Ends,
        bootstrap: Option<(f64, f64)>,
    ) -> Self {
        let at = |place: f64| parameter.at(place);
        Self {
            value: at(place),
            profile: (low.map(at), high.map(at)),
            bootstrap: bootstrap.map(|(low, high)| (at(low), at(high))),
        }
    }

    /// What is known: the wider of both intervals on each side.
    #[must_use]
    pub fn known(&self) -> Known {
        let (low, high) = self.bootstrap.unwrap_or((f64::INFINITY, f64::NEG_INFINITY));
        match self.profile {
            (Some(least), Some(most)) => Known::Within(least.min(low), most.max(high)),
            (Some(least), None) => Known::AtLeast(least),
            (None, Some(most)) => Known::AtMost(most),
            (None, None) => Known::Nothing,
        }
    }
}

/// How far the sum of squares may be above its least.
#[derive(Clone, Debug)]
pub(super) struct Limit {
    /// By this much.
    pub(super) beyond: f64,
    /// By this much if scatter explains the least.
    strict: f64,
    /// How many more fitted targets there are than parameters that are not at a bound.
    pub(super) freedom: usize,
    /// How often scatter alone would make the least larger, if that is known.
    pub(super) probability: Option<f64>,
    /// The relative error of measured values, if no scatter tells it.
    pub(super) relative_error: Option<RelativeError>,
    /// By how much the errors of measured values are larger than they should be, at least 1.
    scale: f64,
}

impl Squares<'_> {
    /// How far other places may be above the least.
    pub(super) fn limit(&mut self, (place, least): &Point) -> Result<Limit, FitError> {
        let fitted = self.fit.targets.iter().filter(|target| !target.is_check).count();
        // A parameter at its bound was not free to come nearer.
        let is_free = |place: &&f64| **place > NEAR && **place < 1.0 - NEAR;
        let freedom = fitted - place.iter().filter(is_free).count();
        // But that its bounds are too narrow makes no interval wider.
        let within = fitted - self.fit.parameters.len();
        let part = if within > 0 { least / within as f64 } else { 0.0 };
        if self.has_errors {
            let of_errors = self.fit.error_freedom();
            let above = |found: Option<f64>| found.map(|below| (1.0 - below).max(0.0));
            let probability = match freedom {
                0 => None,
                _ if of_errors.is_infinite() => {
                    above(ChiSquared::new(freedom as f64).ok().map(|of| of.cdf(*least)))
                }
                _ => {
                    let ratio = FisherSnedecor::new(freedom as f64, of_errors);
                    above(ratio.ok().map(|of| of.cdf(least / freedom as f64)))
                }
            };
            // What scatter does not explain is in the intervals, too.
            let scale = part.max(1.0);
            let strict = student95(of_errors).powi(2);
            let (beyond, scale) = (strict * scale, scale.sqrt());
            let relative_error = None;
            return Ok(Limit { beyond, strict, freedom, probability, relative_error, scale });
        }
        let seeds = self.trials.one(place)?.map(|values| {
            let parts = values.iter().map(|values| standard_error(values) / mean(values));
            mean(&parts.map(|part| part * part).collect::<Vec<_>>())
        });
        let (of, of_errors) = if within > 0 {
            let estimated = part.max(seeds.unwrap_or(0.0)).sqrt();
            (RelativeError::Estimated(estimated), within as f64)
        } else {
            (RelativeError::Assumed(ASSUMED), f64::INFINITY)
        };
        let (RelativeError::Estimated(error) | RelativeError::Assumed(error)) = of;
        let beyond = (student95(of_errors) * error).powi(2);
        let (strict, scale, relative_error) = (beyond, error, Some(of));
        Ok(Limit { beyond, strict, freedom, probability: None, relative_error, scale })
    }

    /// The interval of each parameter by its profile; or a place that is better than the best.
    pub(super) fn profiles(
        &mut self,
        best: &Point,
        beyond: f64,
    ) -> Result<Result<Vec<Ends>, Vec<f64>>, FitError> {
        let mut found = Vec::new();
        for axis in 0..best.0.len() {
            let mut end = |sign: f64| self.end(best, axis, sign, beyond);
            match (end(-1.0)?, end(1.0)?) {
                (Ok(low), Ok(high)) => found.push((low, high)),
                (Err(better), _) | (_, Err(better)) => return Ok(Err(better)),
            }
        }
        Ok(Ok(found))
    }

    /// Where the sum of squares is too large, from the best place along an axis in the direction of
    /// `sign`; `None` if nowhere within the bounds.
    fn end(
        &mut self,
        best: &Point,
        axis: usize,
        sign: f64,
        beyond: f64,
    ) -> Result<Result<Option<f64>, Vec<f64>>, FitError> {
        let start = best.0[axis];
        let bound = if sign > 0.0 { 1.0 } else { 0.0 };
        let (mut near, mut step) = (best.clone(), FIRST_STEP);
        let mut far = loop {
            if (near.0[axis] - bound).abs() < NEAR {
                return Ok(Ok(None));
            }
            let next = (near.0[axis] + sign * step).clamp(0.0, 1.0);
            let point = self.held(&near.0, axis, next)?;
            if point.1 < best.1 - beyond / 100.0 {
                return Ok(Err(point.0));
            }
            if point.1 > best.1 + beyond {
                break next;
            }
            near = point;
            step *= 2.0;
        };
        while (far - near.0[axis]).abs() > (PRECISE * (far - start).abs()).max(NEAR) {
            let middle = f64::midpoint(far, near.0[axis]);
            let point = self.held(&near.0, axis, middle)?;
            if point.1 > best.1 + beyond {
                far = middle;
            } else {
                near = point;
            }
        }
        // An end as near to the bound as it is precise is none.
        let is_bound = (far - bound).abs() <= (PRECISE * (far - start).abs()).max(NEAR);
        Ok(Ok((!is_bound).then_some(far)))
    }

    /// The best place with one axis held, from a place nearby.
    fn held(&mut self, from: &[f64], axis: usize, at: f64) -> Result<Point, FitError> {
        let with = |others: &[f64]| {
            let mut place = others.to_vec();
            place.insert(axis, at);
            place
        };
        let mut others = from.to_vec();
        others.remove(axis);
        if others.is_empty() {
            let value = self.at(&[at])?;
            return Ok((vec![at], value));
        }
        let size = (2.0 * (at - from[axis]).abs()).clamp(0.02, 0.3);
        let this = RefCell::new(self);
        // The least of one dimension lies within `size`: go on while it is at the end of that.
        loop {
            let found = least(&others, size, |others| this.borrow_mut().at(&with(others)))?;
            let moved = found.0.iter().zip(&others).map(|(new, old)| (new - old).abs());
            let is_at_end = others.len() == 1 && moved.fold(0.0, f64::max) > 0.9 * size;
            others = found.0;
            if !is_at_end {
                return Ok((with(&others), found.1));
            }
        }
    }

    /// The interval of each parameter by the bootstrap. Around the best place, what the simulator
    /// gives is taken as linear, over half of the profile's interval; so nothing else is simulated.
    pub(super) fn bootstraps(
        &mut self,
        best: &Point,
        profiles: &[Ends],
        limit: &Limit,
    ) -> Result<Vec<Option<(f64, f64)>>, FitError> {
        let none = vec![None; profiles.len()];
        let ends: Option<Vec<(f64, f64)>> =
            profiles.iter().map(|(low, high)| Some(((*low)?, (*high)?))).collect();
        let Some(ends) = ends else { return Ok(none) };
        let is_fitted: Vec<bool> = self.fit.targets.iter().map(|target| !target.is_check).collect();
        let means = |this: &mut Self, place: &[f64]| -> Result<Option<Vec<f64>>, FitError> {
            let values = this.trials.one(place)?;
            let fitted = |values: Vec<Vec<f64>>| {
                let of = values.iter().zip(&is_fitted).filter(|(_, is_fitted)| **is_fitted);
                of.map(|(values, _)| mean(values)).collect()
            };
            Ok(values.ok().map(fitted))
        };
        // The slope of each target along each axis.
        let mut slopes: Vec<Vec<f64>> = Vec::new();
        for (axis, (low, high)) in ends.iter().enumerate() {
            let mut held = |end: f64| {
                let mut place = best.0.clone();
                place[axis] = f64::midpoint(place[axis], end);
                Ok::<_, FitError>((place[axis], means(self, &place)?))
            };
            let ((from, Some(low)), (to, Some(high))) = (held(*low)?, held(*high)?) else {
                return Ok(none);
            };
            let pairs = low.iter().zip(&high);
            slopes.push(pairs.map(|(low, high)| (high - low) / (to - from)).collect());
        }
        let weights = self.weights.iter().zip(&is_fitted).filter(|(_, is_fitted)| **is_fitted);
        let weights: Vec<f64> = weights.map(|(weight, _)| 1.0 / weight.total().powi(2)).collect();
        let mut samples: Vec<Vec<f64>> = vec![Vec::new(); ends.len()];
        let mut chance = fastrand::Rng::with_seed(1);
        for _ in 0..SAMPLES {
            let drawn = self.drawn(limit, &mut chance);
            let moved: Vec<f64> =
                drawn.iter().zip(&self.fitted_means()).map(|(a, b)| a - b).collect();
            let Some(step) = solved(&slopes, &weights, &moved) else { return Ok(none) };
            for ((samples, step), place) in samples.iter_mut().zip(step).zip(&best.0) {
                samples.push((place + step).clamp(0.0, 1.0));
            }
        }
        let middle = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            let tail = SAMPLES / 40;
            Some((values[tail], values[SAMPLES - 1 - tail]))
        };
        Ok(samples.into_iter().map(middle).collect())
    }

    fn fitted_means(&self) -> Vec<f64> {
        let fitted = self.fit.targets.iter().zip(&self.weights);
        fitted.filter(|(target, _)| !target.is_check).map(|(_, weight)| weight.mean).collect()
    }

    /// Means of the fitted targets, drawn again: repeats with repetition, or where there are none,
    /// by the normal distribution; and the scatter of the simulator's seeds.
    fn drawn(&self, limit: &Limit, chance: &mut fastrand::Rng) -> Vec<f64> {
        let fitted = self.fit.targets.iter().zip(&self.weights);
        let fitted = fitted.filter(|(target, _)| !target.is_check);
        let mut drawn = Vec::new();
        for (target, weight) in fitted {
            let count = target.measured.len();
            let is_repeated = self.has_errors && target.error.is_none();
            let own = if is_repeated {
                let sum: f64 = (0..count).map(|_| target.measured[chance.usize(..count)]).sum();
                // Drawn from so few, they scatter less than those they stand for.
                let wider = (count as f64 / (count as f64 - 1.0)).sqrt() * limit.scale;
                (sum / count as f64 - weight.mean) * wider
            } else {
                weight.error * limit.scale * normal(chance)
            };
            drawn.push(weight.mean + own + weight.seeds * normal(chance));
        }
        drawn
    }

    /// The residual of each target at the best place.
    pub(super) fn residuals(
        &mut self,
        best: &Point,
        limit: &Limit,
    ) -> Result<Vec<Residual>, FitError> {
        let at_best = self.trials.one(&best.0)?.unwrap_or_default();
        let allowed = best.1 + limit.strict;
        let allowed: Vec<&Vec<Vec<f64>>> = self
            .trials
            .all()
            .filter(|(_, values)| self.of(values) <= allowed)
            .filter_map(|(_, values)| values.as_ref().ok())
            .collect();
        let targets = self.fit.targets.iter().zip(&at_best).enumerate();
        let residual = |(index, (target, values)): (usize, (&Target, &Vec<f64>))| {
            let (ours, measured) = (mean(values), target.mean());
            let others = allowed.iter().map(|values| mean(&values[index]));
            let range =
                others.fold((ours, ours), |(least, most), of| (least.min(of), most.max(of)));
            let error = target.standard_error();
            let total = error.map(|error| error.hypot(standard_error(values)));
            let own = target.error.map_or(target.measured.len() as f64 - 1.0, |_| f64::INFINITY);
            let away = f64::max(range.0 - measured, measured - range.1);
            Residual {
                ours,
                range,
                measured,
                standard_error: error,
                errors: total.map(|total| (ours - measured) / total),
                agrees: total.map(|total| away <= student95(own) * total),
            }
        };
        Ok(targets.map(residual).collect())
    }
}

/// A number of the standard normal distribution (Box and Muller, The Annals of Mathematical
/// Statistics 29, 1958).
fn normal(chance: &mut fastrand::Rng) -> f64 {
    let radius = (-2.0 * (1.0 - chance.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * chance.f64()).cos()
}

/// The step along each axis by which the targets move as near to `moved` as they can, if they
/// follow the slopes; `None` if that is no single step.
fn solved(slopes: &[Vec<f64>], weights: &[f64], moved: &[f64]) -> Option<Vec<f64>> {
    let product = |a: &[f64], b: &[f64]| -> f64 {
        a.iter().zip(b).zip(weights).map(|((a, b), weight)| a * b * weight).sum()
    };
    let count = slopes.len();
    let mut rows: Vec<Vec<f64>> = slopes
        .iter()
        .map(|own| {
            let others = slopes.iter().map(|other| product(own, other));
            others.chain([product(own, moved)]).collect()
        })
        .collect();
    for pivot in 0..count {
        let largest = (pivot..count)
            .max_by(|a, b| rows[*a][pivot].abs().total_cmp(&rows[*b][pivot].abs()))?;
        rows.swap(pivot, largest);
        let top = rows[pivot].clone();
        if top[pivot].abs() < f64::MIN_POSITIVE {
            return None;
        }
        for (index, row) in rows.iter_mut().enumerate() {
            if index != pivot {
                let times = row[pivot] / top[pivot];
                row.iter_mut().zip(&top).for_each(|(own, top)| *own -= times * top);
            }
        }
    }
    (0..count)
        .map(|axis| Some(rows[axis][count] / rows[axis][axis]).filter(|step| step.is_finite()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_follows_the_slopes() {
        let step = solved(&[vec![1.0, 0.0], vec![1.0, 2.0]], &[1.0, 4.0], &[3.0, 4.0]).unwrap();
        assert!((step[0] - 1.0).abs() < 1e-12 && (step[1] - 2.0).abs() < 1e-12, "{step:?}");
        assert_eq!(solved(&[vec![1.0, 1.0], vec![1.0, 1.0]], &[1.0, 1.0], &[1.0, 1.0]), None);
    }

    #[test]
    fn a_normal_number_has_its_moments() {
        let mut chance = fastrand::Rng::with_seed(3);
        let drawn: Vec<f64> = (0..10_000).map(|_| normal(&mut chance)).collect();
        assert!(mean(&drawn).abs() < 0.03 && (standard_error(&drawn) * 100.0 - 1.0).abs() < 0.03);
    }
}
