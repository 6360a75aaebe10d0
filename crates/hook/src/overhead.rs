//! What hooks add to the times that they measure.

/// What timing adds to the measured times (ticks).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overhead {
    /// Added to each call.
    pub inside: u64,
    /// Added to the gap between two timed calls.
    pub between: u64,
    /// Time to count a thousand calls that are not timed.
    pub counting_1000: u64,
}

impl Overhead {
    /// The part of a thread's time that hooks took (ticks), for `calls` calls of which `timed` were
    /// timed.
    #[must_use]
    pub fn of(&self, calls: u64, timed: u64) -> f64 {
        let timing = self.inside.saturating_add(self.between) as f64 * timed as f64;
        timing + self.counting_1000 as f64 / 1000.0 * calls.saturating_sub(timed) as f64
    }
}
