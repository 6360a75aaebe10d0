//! Estimates in documents: a median and its 95 % interval, as `docs/observe-json.md`,
//! `docs/probe-json.md` and `docs/bench-json.md` have them.

use dimmer_probe::stats::Estimate;
use serde::Serialize;

/// An estimate, rounded.
#[derive(Debug, Serialize)]
pub(crate) struct EstimateEntry {
    pub(crate) median: f64,
    ci95: [f64; 2],
}

impl From<Estimate> for EstimateEntry {
    fn from(estimate: Estimate) -> Self {
        let (low, high) = estimate.ci95;
        Self { median: rounded(estimate.median), ci95: [rounded(low), rounded(high)] }
    }
}

impl EstimateEntry {
    pub(crate) fn estimate(&self) -> Estimate {
        Estimate { median: self.median, ci95: (self.ci95[0], self.ci95[1]) }
    }
}

/// Rounds to six significant digits: more than any interval here deserves.
pub(crate) fn rounded(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

/// Writes an estimate, if there is one, as [`EstimateEntry`].
pub(crate) fn entry<S: serde::Serializer>(
    estimate: &Option<Estimate>,
    to: S,
) -> Result<S::Ok, S::Error> {
    estimate.map(EstimateEntry::from).serialize(to)
}

/// An estimate with all its digits.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Measured {
    pub(crate) median: f64,
    pub(crate) ci95: (f64, f64),
}

impl Measured {
    pub(crate) fn new(estimate: Estimate) -> Self {
        Self { median: estimate.median, ci95: estimate.ci95 }
    }
}
