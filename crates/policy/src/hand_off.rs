//! What handing a call to another core, and coming back, takes: the longer that core has had
//! nothing to do, the longer it takes to wake up.

/// The time that a call takes longer on another core (ns), by the time for which that core had
/// nothing to do.
#[derive(Clone, Debug, PartialEq)]
pub struct HandOff {
    /// The measured gaps, from the shortest to the longest, and what handing over takes after each.
    after: Vec<(f64, f64)>,
}

impl HandOff {
    /// From pairs of a gap and what handing over takes after it (ns). `None` without a pair.
    #[must_use]
    pub fn new(measured: impl IntoIterator<Item = (f64, f64)>) -> Option<Self> {
        let mut after: Vec<_> = measured.into_iter().collect();
        after.sort_by(|a, b| a.0.total_cmp(&b.0));
        (!after.is_empty()).then_some(Self { after })
    }

    /// What it takes after a gap (ns): in proportion between two gaps that were measured, and as
    /// after the nearest one beyond them.
    #[must_use]
    pub fn after_ns(&self, gap_ns: f64) -> f64 {
        let next = self.after.partition_point(|(gap, _)| *gap < gap_ns);
        let longer = self.after.get(next);
        let shorter = next.checked_sub(1).and_then(|index| self.after.get(index));
        match (shorter, longer) {
            (Some(a), Some(b)) => a.1 + (b.1 - a.1) * (gap_ns - a.0) / (b.0 - a.0),
            (Some(one), None) | (None, Some(one)) => one.1,
            (None, None) => f64::NAN,
        }
    }

    /// Its mean over gaps (ns), each with the number of calls after it; that of calls back to back
    /// if there is no gap.
    #[must_use]
    pub fn mean_ns(&self, gaps: impl IntoIterator<Item = (f64, f64)>) -> f64 {
        let (calls, sum) = gaps.into_iter().fold((0.0, 0.0), |(calls, sum), (gap_ns, count)| {
            (calls + count, sum + count * self.after_ns(gap_ns))
        });
        if calls > 0.0 { sum / calls } else { self.after_ns(0.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another core that sleeps after some 0.1 ms.
    fn sleepy() -> HandOff {
        HandOff::new([(1e6, 80_000.0), (0.0, 2000.0), (1e5, 4000.0)]).unwrap()
    }

    #[test]
    fn a_core_that_had_nothing_to_do_for_longer_takes_longer() {
        let takes = |gap| sleepy().after_ns(gap);
        assert_eq!([0.0, 1e5, 1e6].map(takes), [2000.0, 4000.0, 80_000.0]);
        assert_eq!([5e4, 5.5e5].map(takes), [3000.0, 42_000.0]);
        assert_eq!([-1.0, 1e9].map(takes), [2000.0, 80_000.0]);
    }

    #[test]
    fn the_mean_counts_calls() {
        assert_eq!(sleepy().mean_ns([(0.0, 3.0), (1e6, 1.0)]), 21_500.0);
        assert_eq!(sleepy().mean_ns([]), 2000.0);
        assert_eq!(HandOff::new([]), None);
    }
}
