//! The work of several programs, and how much more it is than in another window.

use std::collections::BTreeMap;

use dimmer_processor::units::{Nanos, Time};

/// Work done, for each program in a unit of its own, as a rate (a second). Units are counted whole.
pub(super) type Rates = Vec<f64>;

/// The rates between two times; `None` if they are the same.
pub(super) fn rates(since: Time, from: &[f64], now: Time, work: &[f64]) -> Option<Rates> {
    let span = (now - since).as_f64();
    (span > 0.0)
        .then(|| work.iter().zip(from).map(|(now, from)| (now - from) / span * 1e9).collect())
}

/// How much more work is done than elsewhere: the mean over users of the mean over their programs
/// of the difference over the mean of both, -2 to 2. That is ln(own / other) where they differ
/// little, and bounded where a program happens to have done nothing. `None` if no program has done
/// anything.
pub(super) fn gain(own: &[f64], other: &[f64], users: &[u32]) -> Option<f64> {
    let mut of_users: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
    let users = users.iter().copied().chain(std::iter::repeat(0));
    for ((own, other), user) in own.iter().zip(other).zip(users) {
        let mean = f64::midpoint(*own, *other);
        if mean > 0.0 && mean.is_finite() {
            let (sum, count) = of_users.entry(user).or_default();
            (*sum, *count) = (*sum + (own - other) / mean, *count + 1.0);
        }
    }
    let sum: f64 = of_users.values().map(|(sum, count)| sum / count).sum();
    (!of_users.is_empty()).then(|| (sum / of_users.len() as f64).clamp(-2.0, 2.0))
}

/// The variance of [`gain`] between two windows because units are counted whole: a count is off by
/// up to one, of which the variance is a quarter at most. In a part of a window it is greater, by
/// the square.
pub(super) fn counting(windows: [&Rates; 2], users: &[u32], window: Nanos) -> f64 {
    let mut of_users: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
    let users = users.iter().copied().chain(std::iter::repeat(0));
    for ((one, other), user) in windows[0].iter().zip(windows[1]).zip(users) {
        // One of the two windows may have no unit.
        let due = f64::midpoint(*one, *other) * window.as_f64() / 1e9;
        if due > 0.0 {
            let (sum, count) = of_users.entry(user).or_default();
            // No program's gain is beyond 2 to either side.
            (*sum, *count) = (*sum + (0.25 / (due * due)).min(4.0), *count + 1.0);
        }
    }
    let sum: f64 = of_users.values().map(|(sum, count)| sum / (count * count)).sum();
    sum / (of_users.len().max(1) as f64).powi(2)
}

/// The part of the other's work that is lost by a gain, if it is a loss.
pub(super) fn lost(gain: f64) -> f64 {
    let gain = gain.clamp(-2.0, 2.0);
    (1.0 - (2.0 + gain) / (2.0 - gain)).clamp(0.0, 1.0)
}
