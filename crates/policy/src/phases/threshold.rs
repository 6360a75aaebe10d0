//! The value that divides marks into fast and slow ones (paper 004 §3.2, §5.2.3).

use super::{Core, Profile};

/// A mark with a larger value is slow, any other fast.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Threshold(f64);

/// A threshold that is not a finite number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the threshold `{found}` is no number: accepted are finite numbers, such as 0.01")]
pub struct ThresholdError {
    /// What was found instead.
    pub found: String,
}

impl Threshold {
    /// Between parts of its speed that code keeps on a slow core: code is slow if it takes at most
    /// this much longer there.
    ///
    /// * `percent`: 0 and above; anything else counts as 0.
    #[must_use]
    pub fn allowing(percent: f64) -> Self {
        Self(100.0 / (100.0 + percent.max(0.0)))
    }

    /// A threshold chosen by hand; `None` if it is not finite.
    #[must_use]
    pub fn new(value: f64) -> Option<Self> {
        value.is_finite().then_some(Self(value))
    }

    /// A threshold from text, such as `SWP_THRESHOLD` of paper 004.
    ///
    /// # Errors
    /// If it is not a finite number.
    pub fn parse(text: &str) -> Result<Self, ThresholdError> {
        let number = text.trim().parse().ok().and_then(Self::new);
        number.ok_or_else(|| ThresholdError { found: text.to_owned() })
    }

    /// The middle of the largest gap between values; the lower one of equal gaps. `None` if no two
    /// values differ.
    ///
    /// # Source
    /// Paper 004 §5.2.3: "There is a clear gap in values between roughly 0.02 and 0.005."
    #[must_use]
    pub fn largest_gap(profile: &Profile) -> Option<Self> {
        let values = sorted(profile);
        let mut largest: Option<(f64, f64)> = None;
        for pair in values.windows(2) {
            if let [low, high] = *pair
                && largest.is_none_or(|(low_, high_)| high - low > high_ - low_)
            {
                largest = Some((low, high));
            }
        }
        largest.map(|(low, high)| Self::between(low, high))
    }

    /// The middle of two values; the lower one if they are so close that there is none.
    pub(super) fn between(low: f64, high: f64) -> Self {
        let middle = low + (high - low) / 2.0;
        Self(if middle < high { middle } else { low })
    }

    /// The core for a mark of this value (§4.1: slow "if the cache miss rate is larger than the
    /// threshold").
    #[must_use]
    pub fn core(self, value: f64) -> Core {
        if value > self.0 { Core::Slow } else { Core::Fast }
    }

    /// The number.
    #[must_use]
    pub const fn value(self) -> f64 {
        self.0
    }
}

/// The different values of a profile, the lowest first.
pub(super) fn sorted(profile: &Profile) -> Vec<f64> {
    let mut values: Vec<f64> = profile.values().map(|(_, value)| value).collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phases::any::Any;
    use crate::phases::{Graph, Mark, Metric};

    #[test]
    fn numbers_are_thresholds_and_nothing_else_is() {
        for (text, value) in [("0.01", 0.01), (" 3e-2\n", 0.03), ("0", 0.0), ("-1", -1.0)] {
            assert_eq!(Threshold::parse(text).unwrap().value(), value);
        }
        for text in ["", "NaN", "inf", "0,01", "0.01 x", "1e999"] {
            let error = Threshold::parse(text).unwrap_err();
            assert_eq!(error.found, text);
            assert!(error.to_string().contains("accepted are finite numbers"), "{error}");
        }
        assert_eq!(Threshold::new(f64::NAN), None);
    }

    #[test]
    fn values_without_a_gap_have_no_threshold() {
        let mut profile = Profile::default();
        assert_eq!(Threshold::largest_gap(&profile), None);
        for name in ["a", "b"] {
            profile.insert(Mark::new(name).unwrap(), 0.5);
        }
        assert_eq!(Threshold::largest_gap(&profile), None);
        // Neighbours: nothing lies between.
        profile.insert(Mark::new("c").unwrap(), 0.5_f64.next_up());
        let threshold = Threshold::largest_gap(&profile).unwrap();
        assert_eq!(threshold.core(0.5), Core::Fast);
        assert_eq!(threshold.core(0.5_f64.next_up()), Core::Slow);
    }

    #[test]
    fn of_equal_gaps_the_lower_one_counts() {
        let mut profile = Profile::default();
        for (name, value) in [("a", 0.0), ("b", 1.0), ("c", 2.0), ("d", 2.5)] {
            profile.insert(Mark::new(name).unwrap(), value);
        }
        assert_eq!(Threshold::largest_gap(&profile), Threshold::new(0.5));
    }

    #[test]
    fn no_gap_is_larger_than_the_one_around_the_threshold() {
        let mut any = Any::new(3);
        for _ in 0..500 {
            let graph: Graph = any.graph();
            let profile = Profile::of(&graph, Metric::L3MissRate);
            let Some(threshold) = Threshold::largest_gap(&profile) else { continue };
            let values = sorted(&profile);
            let above = values.iter().position(|value| *value > threshold.value()).unwrap();
            let gap = values[above] - values[above - 1];
            assert!(values.windows(2).all(|pair| pair[1] - pair[0] <= gap));
        }
    }
}
