//! Bins of a histogram.

/// Bins of equal width, from `low` on.
pub(super) struct Bins {
    pub(super) low: f64,
    pub(super) width: f64,
    pub(super) counts: Vec<usize>,
}

impl Bins {
    /// Bins for most of the values, which are in ascending order; values far outside are left out.
    pub(super) fn of(values: &[f64]) -> Self {
        let at = |share: f64| quantile(values, share);
        // If nearly all values are equal, only the tails have a spread.
        let tail = if at(0.9) > at(0.1) { 0.1 } else { 0.01 };
        // With a larger reach, most values would be squeezed into one or two bars.
        let reach = (at(1.0 - tail) - at(tail)) * 1.5;
        let (least, most) = (at(tail) - reach, at(1.0 - tail) + reach);
        let low = values.iter().find(|value| **value >= least).copied().unwrap_or(0.0);
        let high = values.iter().rfind(|value| **value <= most).copied().unwrap_or(0.0);
        let number = number_of_bins(values.len());
        // Equal values also get a bar with a width.
        let span = if high > low { high - low } else { low.abs().max(1.0) * 0.01 };
        let width = span / number as f64;
        let mut bins = Self { low, width, counts: vec![0; number] };
        for value in values.iter().filter(|value| (low..=high).contains(*value)) {
            let index = (1..number).rfind(|index| bins.edge(*index) <= *value).unwrap_or(0);
            bins.counts[index] += 1;
        }
        bins
    }

    /// The lower edge of a bin.
    pub(super) fn edge(&self, index: usize) -> f64 {
        self.low + self.width * index as f64
    }

    /// The upper edge of the last bin.
    pub(super) fn end(&self) -> f64 {
        self.edge(self.counts.len())
    }
}

/// About the square root of the number of values, within the number of bars that can be
/// distinguished.
fn number_of_bins(values: usize) -> usize {
    values.isqrt().clamp(8, 40)
}

/// The value below which a share of the values lies; 0 without values.
fn quantile(values: &[f64], share: f64) -> f64 {
    dimmer_probe::stats::Samples::new(values.to_vec()).quantile(share).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::Bins;

    #[test]
    fn every_value_near_the_bulk_is_counted_once() {
        let values: Vec<f64> = (0..500).map(f64::from).collect();
        assert_eq!(Bins::of(&values).counts.iter().sum::<usize>(), 500);
    }

    #[test]
    fn far_outlier_does_not_squeeze_the_bulk() {
        let mut values: Vec<f64> = (0..500).map(f64::from).collect();
        values.push(1e9);
        let bins = Bins::of(&values);
        assert_eq!(bins.counts.iter().sum::<usize>(), 500);
        assert!(bins.end() < 2500.0);
    }

    #[test]
    fn two_outliers_among_few_values_do_not_squeeze_the_bulk() {
        let mut values: Vec<f64> = (0..25).map(|value| 300.0 + f64::from(value) * 10.0).collect();
        values.extend([5_000.0, 9_000.0]);
        let bins = Bins::of(&values);
        assert_eq!(bins.counts.iter().sum::<usize>(), 25);
    }

    #[test]
    fn equal_values_make_one_bar() {
        let bins = Bins::of(&[7.0; 100]);
        assert_eq!(bins.counts.iter().max(), Some(&100));
        assert!(bins.width > 0.0);
    }
}
