//! Distributions, of which programs draw numbers.

use std::f64::consts::SQRT_2;

use dimmer_policy::license::Chance;

/// A distribution, given by some of its quantiles.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Distribution {
    /// The first probability, 0, and its value: the least that is drawn.
    first: (f64, f64),
    /// The other probabilities, which rise strictly up to 1, and their values, which do not fall.
    others: Vec<(f64, f64)>,
    /// The correlation of one draw with the next, before the transformation to these quantiles:
    /// between -1 and 1.
    correlation: f64,
}

impl Distribution {
    /// Greatest amount of a correlation. Beyond it, a thread's draws hardly vary.
    pub(crate) const MOST_CORRELATION: f64 = 0.99;

    /// Maximum number of quantiles.
    pub(crate) const MOST_QUANTILES: usize = 1000;

    /// The distribution with these quantiles: pairs of a probability and a value.
    ///
    /// # Errors
    /// If a number is not in its range or order, with the key and the accepted values.
    pub(crate) fn new(quantiles: &[(f64, f64)], correlation: f64) -> Result<Self, String> {
        let most = Self::MOST_QUANTILES;
        let count = quantiles.len();
        let (first, others) = match quantiles {
            [first, others @ ..] if (2..=most).contains(&count) => (*first, others.to_vec()),
            _ => return Err(format!("`quantiles` has {count} pairs, expected 2 to {most}")),
        };
        let last = others.last().map_or(first, |last| *last);
        if first.0 != 0.0 || last.0 != 1.0 {
            return Err(format!(
                "`quantiles` go from {} to {}, expected probabilities from 0 to 1",
                first.0, last.0
            ));
        }
        if !(first.1 >= 0.0 && last.1 < f64::INFINITY) {
            return Err(format!(
                "`quantiles` has values from {} to {}, expected numbers from 0 on",
                first.1, last.1
            ));
        }
        for (before, after) in quantiles.iter().zip(&others) {
            if !(before.0 < after.0 && before.1 <= after.1) {
                return Err(format!(
                    "`quantiles` has [{}, {}] after [{}, {}], expected a higher probability, and \
                     a value that is not lower",
                    after.0, after.1, before.0, before.1
                ));
            }
        }
        let most = Self::MOST_CORRELATION;
        if !(-most..=most).contains(&correlation) {
            return Err(format!("`correlation` is {correlation}, expected -{most} to {most}"));
        }
        Ok(Self { first, others, correlation })
    }

    /// The least value that is drawn.
    pub(crate) fn least(&self) -> f64 {
        self.first.1
    }

    /// The greatest value that is drawn.
    pub(crate) fn most(&self) -> f64 {
        self.others.last().map_or(self.first.1, |last| last.1)
    }

    /// The mean of what is drawn.
    pub(crate) fn mean(&self) -> f64 {
        self.mean_up_to(f64::INFINITY)
    }

    /// The mean of what is drawn, where a value above that at 0.9 counts as that: rare great values
    /// may not come for long.
    pub(crate) fn usual(&self) -> f64 {
        self.mean_up_to(self.quantile(0.9))
    }

    /// The mean, where a greater value than `most` counts as `most`.
    fn mean_up_to(&self, most: f64) -> f64 {
        let mut before = self.first;
        let parts = self.others.iter().map(|&(at, value)| {
            let (from, low) = std::mem::replace(&mut before, (at, value));
            let whole = at - from;
            if value <= most {
                return whole * (low + value) / 2.0;
            }
            let below = ((most - low) / (value - low)).max(0.0);
            whole * (below * (low.min(most) + most) / 2.0 + (1.0 - below) * most)
        });
        parts.sum()
    }

    /// Draws a value. `last` is the normally distributed number of the draw before, if there was
    /// one; it is replaced by that of this draw. Without correlation it is not used.
    pub(crate) fn draw(&self, last: &mut Option<f64>, chance: &mut impl Chance) -> f64 {
        if self.correlation == 0.0 {
            return self.quantile(chance.uniform());
        }
        let new = chance.normal();
        let number = last.map_or(new, |last| {
            let rest = (1.0 - self.correlation * self.correlation).sqrt();
            self.correlation * last + rest * new
        });
        *last = Some(number);
        self.quantile(below(number))
    }

    /// The value at a probability from 0 to 1, linear between those that are given.
    fn quantile(&self, probability: f64) -> f64 {
        let next = self.others.partition_point(|(at, _)| *at <= probability);
        let before = next.checked_sub(1).map_or(self.first, |last| self.others[last]);
        let Some((at, value)) = self.others.get(next) else { return before.1 };
        before.1 + (value - before.1) * ((probability - before.0) / (at - before.0))
    }
}

/// The probability that a standard normal number is below this one, to some 1e-16.
fn below(number: f64) -> f64 {
    0.5 * libm::erfc(-number / SQRT_2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    /// Steep, flat and with a jump in its slope.
    const QUANTILES: [(f64, f64); 5] =
        [(0.0, 0.0), (0.25, 10.0), (0.5, 10.0), (0.9, 50.0), (1.0, 1000.0)];

    fn drawn(correlation: f64, count: usize) -> Vec<f64> {
        let distribution = Distribution::new(&QUANTILES, correlation).unwrap();
        let (mut last, mut chance) = (None, Random::new(7));
        (0..count).map(|_| distribution.draw(&mut last, &mut chance)).collect()
    }

    #[test]
    fn means_are_those_of_the_quantiles() {
        let distribution = Distribution::new(&QUANTILES, 0.0).unwrap();
        // 0.25 at 5 on average, 0.25 at 10, 0.4 at 30, and 0.1 at 525, or at 50.
        assert!((distribution.mean() - 68.25).abs() < 1e-9, "{}", distribution.mean());
        assert!((distribution.usual() - 20.75).abs() < 1e-9, "{}", distribution.usual());
        let one = Distribution::new(&[(0.0, 7.0), (1.0, 7.0)], 0.0).unwrap();
        assert_eq!([one.least(), one.mean(), one.usual()], [7.0; 3]);
    }

    #[test]
    fn draws_have_the_given_quantiles() {
        for correlation in [0.0, 0.8, -0.8] {
            let mut drawn = drawn(correlation, 400_000);
            drawn.sort_by(f64::total_cmp);
            let share = |value: f64| {
                drawn.partition_point(|drawn| *drawn <= value) as f64 / drawn.len() as f64
            };
            let expected = [(5.0, 0.125), (10.0, 0.5), (30.0, 0.7), (50.0, 0.9), (525.0, 0.95)];
            for (value, expected) in expected {
                let found = share(value);
                assert!((found - expected).abs() < 0.01, "{correlation}, {value}: {found}");
            }
        }
    }

    /// Ranks keep the correlation of the normal numbers: Spearman's is 6/pi asin(r/2).
    #[test]
    fn draws_have_the_given_correlation() {
        for correlation in [-0.9, -0.3, 0.0, 0.5, 0.95] {
            let distribution = Distribution::new(&[(0.0, 0.0), (1.0, 1.0)], correlation).unwrap();
            let (mut last, mut chance) = (None, Random::new(3));
            let drawn: Vec<f64> =
                (0..400_000).map(|_| distribution.draw(&mut last, &mut chance) - 0.5).collect();
            let products: f64 = drawn.iter().zip(&drawn[1..]).map(|(one, next)| one * next).sum();
            let squares: f64 = drawn.iter().map(|one| one * one).sum();
            let expected = 6.0 / std::f64::consts::PI * (correlation / 2.0).asin();
            let found = products / squares;
            assert!((found - expected).abs() < 0.01, "{correlation}: {found}, not {expected}");
        }
    }

    #[test]
    fn the_normal_distribution_is_known_to_many_digits() {
        // Abramowitz and Stegun, table 26.1.
        for (number, expected) in
            [(0.0, 0.5), (1.0, 0.841_344_746_068_543), (-2.0, 0.022_750_131_948_179)]
        {
            assert!((below(number) - expected).abs() < 1e-14, "{number}: {}", below(number));
        }
        assert_eq!((below(40.0), below(-40.0)), (1.0, 0.0));
        let distribution = Distribution::new(&QUANTILES, 0.5).unwrap();
        assert_eq!((distribution.quantile(0.0), distribution.quantile(1.0)), (0.0, 1000.0));
        assert_eq!(distribution.quantile(0.3), 10.0);
        assert!((distribution.quantile(0.95) - 525.0).abs() < 1e-9);
    }
}
