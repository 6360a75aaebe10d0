//! Statistics of a measurement: medians with intervals, quantiles, trimmed means.
//!
//! Intervals of medians are distribution-free: ranks of the binomial distribution (David and
//! Nagaraja, "Order Statistics", 3rd edition, §7.1). They hold the true median at least as often as
//! they should, except with so few samples that not even the whole range does, which is the
//! interval then: at 95 % below 6 samples (4 samples: 87.5 %), at 99.9 % below 11.

use statrs::distribution::{Binomial, ContinuousCDF, DiscreteCDF, StudentsT};

/// A measured quantity: the median of its samples, and the interval that holds the true median.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The median.
    pub median: f64,
    /// The interval that holds the true median with 95 % probability: low end, high end.
    pub ci95: (f64, f64),
}

impl Estimate {
    /// Half the width of the interval.
    #[must_use]
    pub fn half_width(&self) -> f64 {
        (self.ci95.1 - self.ci95.0) / 2.0
    }

    /// The largest distance of the true median from zero.
    #[must_use]
    pub fn bound(&self) -> f64 {
        self.ci95.0.abs().max(self.ci95.1.abs())
    }

    /// The same quantity in another unit.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        let ends = (self.ci95.0 * factor, self.ci95.1 * factor);
        let ci95 = if factor < 0.0 { (ends.1, ends.0) } else { ends };
        Self { median: self.median * factor, ci95 }
    }
}

/// Samples of one quantity, in ascending order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Sorts `values`; those that are not finite are left out.
    #[must_use]
    pub fn new(mut values: Vec<f64>) -> Self {
        values.retain(|value| value.is_finite());
        values.sort_unstable_by(f64::total_cmp);
        Self(values)
    }

    /// The values, ascending.
    #[must_use]
    pub fn values(&self) -> &[f64] {
        &self.0
    }

    /// Number of samples.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value below which a share of `q` (0 to 1) of the samples lies, interpolated linearly
    /// between samples; `None` without samples.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let last = self.0.len().checked_sub(1)?;
        let position = q.clamp(0.0, 1.0) * last as f64;
        let below = floor_index(position).min(last);
        let above = (below + 1).min(last);
        let part = position - below as f64;
        Some(self.0[below] + (self.0[above] - self.0[below]) * part)
    }

    /// Median with its 95 % interval; `None` without samples.
    #[must_use]
    pub fn estimate(&self) -> Option<Estimate> {
        Some(Estimate { median: self.quantile(0.5)?, ci95: self.interval(0.95)? })
    }

    /// The interval that holds the true median with this probability (0 to 1); `None` without
    /// samples.
    #[must_use]
    pub fn interval(&self, probability: f64) -> Option<(f64, f64)> {
        let n = self.0.len();
        let last = n.checked_sub(1)?;
        // The median lies below the sample of rank `low` if at most `low` samples lie below it.
        let is_sure = |low: usize| at_least(n - low, n, 0.5) <= (1.0 - probability) / 2.0;
        let (mut low, mut above) = (0, n.div_ceil(2));
        while above - low > 1 {
            let middle = usize::midpoint(low, above);
            if is_sure(middle) {
                low = middle;
            } else {
                above = middle;
            }
        }
        Some((self.0[low], self.0[last - low]))
    }

    /// The mean of the samples that remain after a share of `trim` (0 to 0.5) is cut off at both
    /// ends; `None` without samples. Meant for time stamps in coarse steps, which a median would
    /// round to a step.
    #[must_use]
    pub fn trimmed_mean(&self, trim: f64) -> Option<f64> {
        let n = self.0.len();
        let cut = floor_index(trim.clamp(0.0, 0.5) * n as f64).min(n.checked_sub(1)? / 2);
        let kept = &self.0[cut..n - cut];
        Some(kept.iter().sum::<f64>() / kept.len() as f64)
    }

    /// The mean, and half the width of its 95 % interval, from Student's distribution if there are
    /// few samples; `None` below 2 samples.
    #[must_use]
    pub fn mean95(&self) -> Option<(f64, f64)> {
        const FEW: usize = 20;
        let n = self.0.len();
        if n >= FEW {
            return self.centre().map(|(mean, error)| (mean, 1.96 * error));
        }
        let freedom = n.checked_sub(1).filter(|freedom| *freedom > 0)? as f64;
        let mean = self.0.iter().sum::<f64>() / n as f64;
        let squares = self.0.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
        let error = (squares / freedom / n as f64).sqrt();
        let t = StudentsT::new(0.0, 1.0, freedom).ok()?.inverse_cdf(0.975);
        Some((mean, t * error))
    }

    /// Mean and standard error of the samples without their outermost 5 % at both ends; the spread
    /// follows Winsor's rule (Tukey and McLaughlin 1963). `None` below 4 samples.
    #[must_use]
    pub fn centre(&self) -> Option<(f64, f64)> {
        const TRIM: f64 = 0.05;
        let n = self.0.len();
        if n < 4 {
            return None;
        }
        let cut = floor_index((TRIM * n as f64).ceil()).min((n - 1) / 2);
        let (low, high) = (self.0[cut], self.0[n - 1 - cut]);
        let mean = self.trimmed_mean(TRIM)?;
        let winsorized: Vec<f64> = self.0.iter().map(|v| v.clamp(low, high)).collect();
        let centre = winsorized.iter().sum::<f64>() / n as f64;
        let variance =
            winsorized.iter().map(|v| (v - centre).powi(2)).sum::<f64>() / (n - 1) as f64;
        Some((mean, (variance / n as f64).sqrt() / (1.0 - 2.0 * TRIM)))
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Self::new(values.into_iter().collect())
    }
}

/// Number of stretches into which a series is cut. More would be shorter than the dependence that
/// they are to even out; fewer would say little about their spread (Schmeiser 1982: 10 to 30).
const BATCHES: usize = 10;

/// The mean of a series in the order of time, and half the width of its 95 % interval. Neighbouring
/// values may depend on each other, so the interval comes from the spread of the means of
/// consecutive stretches (batch means; Law, "Simulation Modeling and Analysis", §9.5.3). States
/// that last longer than a tenth of the series still make it too narrow. `None` below 2 values.
#[must_use]
pub(crate) fn batch_mean95(series: &[f64]) -> Option<(f64, f64)> {
    let n = series.len();
    if n < 2 * BATCHES {
        return series.iter().copied().collect::<Samples>().mean95();
    }
    let mean = series.iter().sum::<f64>() / n as f64;
    let batch = |index: usize| {
        let batch = &series[index * n / BATCHES..(index + 1) * n / BATCHES];
        batch.iter().sum::<f64>() / batch.len() as f64
    };
    let (_, half) = (0..BATCHES).map(batch).collect::<Samples>().mean95()?;
    Some((mean, half))
}

/// The share of ones in a series in the order of time (a value may be -1 where something is
/// subtracted). Its 95 % interval is that of [`batch_mean95`], at least 3 in n to either side: a
/// share of 3/n yields none in n trials one time in twenty.
#[must_use]
pub(crate) fn share95(series: &[f64]) -> Option<Estimate> {
    let (share, half) = batch_mean95(series)?;
    let half = half.max(3.0 / series.len() as f64);
    let ends = ((share - half).clamp(0.0, 1.0), (share + half).clamp(0.0, 1.0));
    Some(Estimate { median: share.clamp(0.0, 1.0), ci95: ends })
}

/// Probability that at least `some` of `all` events are of one kind, if each is with probability
/// `share` (0 to 1). It is 1 if `some` is 0, and if `share` is not a probability.
pub(crate) fn at_least(some: usize, all: usize, share: f64) -> f64 {
    let fewer = some.checked_sub(1).zip(Binomial::new(share, all as u64).ok());
    fewer.map_or(1.0, |(fewer, events)| events.sf(fewer as u64))
}

/// The index at or below a position; 0 for negative positions.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates, and positions are lengths of vectors"
)]
pub(crate) fn floor_index(position: f64) -> usize {
    position.max(0.0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_interval_of_a_ramp() {
        let samples: Samples = (0..101).map(f64::from).collect();
        let estimate = samples.estimate().unwrap();
        assert_eq!(estimate.median, 50.0);
        assert_eq!(estimate.ci95, (40.0, 60.0));
    }

    #[test]
    fn few_samples_give_their_range() {
        let samples = Samples::new(vec![3.0, 1.0, 2.0]);
        assert_eq!(samples.estimate().unwrap().ci95, (1.0, 3.0));
        assert_eq!(Samples::default().estimate(), None);
    }

    /// The median of `n` samples lies below the one of rank `low` (from 0) if at most `low` of them
    /// lie below it, each with probability one half.
    #[test]
    fn interval_of_few_samples_is_as_narrow_as_its_probability_allows() {
        let outside = |n: u32, low: u32| {
            let ways =
                |k: u32| (0..k).fold(1.0, |ways, i| ways * f64::from(n - i) / f64::from(i + 1));
            2.0 * (0..=low).map(ways).sum::<f64>() / 2_f64.powi(i32::try_from(n).unwrap())
        };
        for probability in [0.95, 0.999] {
            for n in 1..=80 {
                let samples: Samples = (0..n).map(f64::from).collect();
                let (low, high) = samples.interval(probability).unwrap();
                assert_eq!(low + high, f64::from(n - 1), "{n}");
                let low = u32::try_from(floor_index(low)).unwrap();
                assert!(low == 0 || outside(n, low) <= 1.0 - probability, "{n}: {low}");
                assert!(outside(n, low + 1) > 1.0 - probability, "{n}: {low} is not the narrowest");
            }
        }
        let ends = |n: u32| (0..n).map(f64::from).collect::<Samples>().interval(0.95).unwrap();
        assert_eq!([ends(8), ends(9), ends(11)], [(0.0, 7.0), (1.0, 7.0), (1.0, 9.0)]);
    }

    #[test]
    fn interval_holds_the_true_median_about_95_times_in_100() {
        // A fixed congruential sequence, so that every run of the test is the same.
        let mut state = 12345_u64;
        let mut uniform = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        let mut held = 0;
        for _ in 0..1000 {
            let samples: Samples = (0..60).map(|_| uniform().powi(3)).collect();
            let (low, high) = samples.estimate().unwrap().ci95;
            held += u32::from(low <= 0.125 && 0.125 <= high);
        }
        assert!((925..=985).contains(&held), "{held}");
    }

    #[test]
    fn mean_of_few_has_a_wide_interval() {
        // Student's t for 3 degrees of freedom is 3.182; the standard error here 0.6455.
        let (mean, half) = Samples::new(vec![1.0, 2.0, 3.0, 4.0]).mean95().unwrap();
        assert_eq!(mean, 2.5);
        assert!((half / 0.6455 - 3.182).abs() < 0.001, "{half}");
        assert!(Samples::new(vec![1.0]).mean95().is_none());
    }

    #[test]
    fn centre_ignores_outliers() {
        let mut values: Vec<f64> = (0..100).map(|i| f64::from(i % 10)).collect();
        values.push(1e9);
        let (mean, error) = Samples::new(values).centre().unwrap();
        assert!((mean - 4.5).abs() < 0.1, "{mean}");
        assert!((0.2..0.4).contains(&error), "{error}");
    }

    #[test]
    fn mean_of_a_series_in_runs_has_a_wide_interval() {
        let scattered: Vec<f64> = (0..1000).map(|i| f64::from(i % 2)).collect();
        let in_runs: Vec<f64> = (0..1000).map(|i| f64::from(i / 125 % 2)).collect();
        let (mean, scattered) = batch_mean95(&scattered).unwrap();
        assert_eq!((mean, scattered), (0.5, 0.0));
        let (mean, in_runs) = batch_mean95(&in_runs).unwrap();
        assert!(mean == 0.5 && in_runs > 0.1, "{in_runs}");
    }

    #[test]
    fn a_share_of_none_is_bounded_by_three_in_n() {
        assert_eq!(share95(&[0.0; 300]).unwrap().ci95, (0.0, 0.01));
        assert_eq!(share95(&[1.0; 300]).unwrap().ci95, (0.99, 1.0));
        assert_eq!(share95(&[]), None);
    }

    #[test]
    fn few_events_are_counted_exactly() {
        // Four of four at one in five: 0.0016; three or four of four: 0.0272.
        assert!((at_least(4, 4, 0.2) - 0.0016).abs() < 1e-9);
        assert!((at_least(3, 4, 0.2) - 0.0272).abs() < 1e-9);
        assert_eq!(at_least(0, 4, 0.2), 1.0);
        assert_eq!(at_least(1, 4, f64::NAN), 1.0);
    }

    #[test]
    fn values_that_are_not_finite_are_left_out() {
        assert_eq!(Samples::new(vec![f64::NAN, 1.0, f64::INFINITY]).values(), [1.0]);
    }
}
