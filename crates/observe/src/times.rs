//! Histograms of times that are small as long as they hold few values: a program has thousands of
//! functions, and tens of threads may call each.

/// Buckets for each doubling: each bucket is 4.4 % wide.
const PER_DOUBLING: f64 = 16.0;

/// A histogram of times in nanoseconds. Each time stands for a number of calls. Buckets are 4.4 %
/// wide; sums are exact.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Times {
    /// Each bucket that holds a call, and how many, in ascending order.
    buckets: Vec<(i32, f64)>,
    measured: u64,
    calls: f64,
    sum: f64,
}

impl Times {
    /// Adds a time (ns) that stands for `calls` calls. A value that is negative or not finite
    /// counts as 0.
    pub fn add(&mut self, ns: f64, calls: f64) {
        let ns = if ns.is_finite() { ns.max(0.0) } else { 0.0 };
        #[expect(clippy::cast_possible_truncation, reason = "a logarithm of a finite number")]
        let bucket = (ns.max(0.5).log2() * PER_DOUBLING).floor() as i32;
        match self.buckets.binary_search_by_key(&bucket, |(own, _)| *own) {
            Ok(at) => self.buckets[at].1 += calls,
            Err(at) => self.buckets.insert(at, (bucket, calls)),
        }
        self.measured += 1;
        self.calls += calls;
        self.sum += ns * calls;
    }

    /// Adds all values of another histogram.
    pub fn merge(&mut self, other: &Self) {
        if self.buckets.is_empty() {
            self.buckets.clone_from(&other.buckets);
        } else if !other.buckets.is_empty() {
            self.buckets = merged(&self.buckets, &other.buckets);
        }
        self.measured += other.measured;
        self.calls += other.calls;
        self.sum += other.sum;
    }

    /// The values that were added since the histogram equalled `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut buckets = self.buckets.clone();
        let mut others = earlier.buckets.iter().peekable();
        for (bucket, count) in &mut buckets {
            while others.next_if(|(other, _)| other < bucket).is_some() {}
            *count -= others.next_if(|(other, _)| other == bucket).map_or(0.0, |(_, count)| *count);
        }
        // A rounding error in the difference of two sums is not a call.
        buckets.retain(|(_, count)| *count > 1e-6);
        Self {
            calls: buckets.iter().map(|(_, count)| count).sum(),
            buckets,
            measured: self.measured.saturating_sub(earlier.measured),
            sum: (self.sum - earlier.sum).max(0.0),
        }
    }

    /// The same times, each of which stands for `factor` as many calls.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        let scaled = |(bucket, count): &(i32, f64)| (*bucket, count * factor);
        Self {
            buckets: self.buckets.iter().map(scaled).collect(),
            measured: self.measured,
            calls: self.calls * factor,
            sum: self.sum * factor,
        }
    }

    /// Number of times that were added.
    #[must_use]
    pub fn measured(&self) -> u64 {
        self.measured
    }

    /// Number of calls for which the times stand.
    #[must_use]
    pub fn calls(&self) -> f64 {
        self.calls
    }

    /// Sum over all calls for which the times stand (ns).
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// The mean (ns); `None` if the histogram is empty.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (self.calls > 0.0).then(|| self.sum / self.calls)
    }

    /// The time below which this share of the calls lies (ns), accurate to half a bucket; `None` if
    /// the histogram is empty.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let wanted = share.clamp(0.0, 1.0) * self.calls;
        let mut below = 0.0;
        for (middle, count) in self.iter() {
            below += count;
            if below >= wanted {
                return Some(middle);
            }
        }
        self.iter().last().map(|(middle, _)| middle)
    }

    /// The middle of each bucket (ns) and the number of calls in it, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        let middle = |bucket: i32| ((f64::from(bucket) + 0.5) / PER_DOUBLING).exp2();
        self.buckets.iter().map(move |(bucket, count)| (middle(*bucket), *count))
    }
}

/// The sum of two lists of buckets in ascending order.
fn merged(one: &[(i32, f64)], other: &[(i32, f64)]) -> Vec<(i32, f64)> {
    let mut all = Vec::with_capacity(one.len() + other.len());
    let mut others = other.iter().copied().peekable();
    for &(bucket, count) in one {
        while let Some(before) = others.next_if(|(other, _)| *other < bucket) {
            all.push(before);
        }
        let same = others.next_if(|(other, _)| *other == bucket).map_or(0.0, |(_, count)| count);
        all.push((bucket, count + same));
    }
    all.extend(others);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_a_bucket_and_means_exactly() {
        let mut times = Times::default();
        (1..=1000).for_each(|n| times.add(f64::from(n), 1.0));
        assert!((times.quantile(0.5).unwrap() / 500.0 - 1.0).abs() < 0.045);
        assert!((times.quantile(0.99).unwrap() / 990.0 - 1.0).abs() < 0.045);
        assert_eq!(times.mean(), Some(500.5));
        assert_eq!(times.measured(), 1000);
    }

    #[test]
    fn each_time_counts_for_its_calls() {
        let mut times = Times::default();
        times.add(10.0, 90.0);
        times.add(1000.0, 10.0);
        assert_eq!((times.sum(), times.mean()), (10_900.0, Some(109.0)));
        assert!(times.quantile(0.8).unwrap() < 11.0);
        assert!(times.quantile(0.95).unwrap() > 950.0);
    }

    #[test]
    fn sums_and_differences_are_those_of_all_times() {
        let of = |all: &[f64]| {
            let mut times = Times::default();
            all.iter().for_each(|ns| times.add(*ns, 2.0));
            times
        };
        let few = [&[][..], &[100.0], &[3.0, 100.0, 9000.0], &[1.0, 99.0, 1e6], &[1e6, 7.0]];
        for one in few {
            for other in few {
                let mut sum = of(one);
                sum.merge(&of(other));
                assert_eq!(sum, of(&[one, other].concat()), "{one:?} and {other:?}");
                assert_eq!(sum.since(&of(one)), of(other), "{one:?} and {other:?}");
            }
        }
    }

    #[test]
    fn nothing_has_no_quantile() {
        assert_eq!(Times::default().quantile(0.5), None);
        assert_eq!(Times::default().mean(), None);
    }

    #[test]
    fn what_is_no_time_counts_as_none() {
        let mut times = Times::default();
        times.add(f64::NAN, 1.0);
        times.add(-3.0, 1.0);
        assert_eq!((times.measured(), times.mean()), (2, Some(0.0)));
    }
}
