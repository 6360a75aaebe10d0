//! What moving a call of the program to another core, and back, would take; for the keys see
//! `docs/observe-json.md`.

use dimmer_policy::hand_off::HandOff;
use dimmer_probe::stats::Estimate;
use serde::Serialize;

use super::Run;
use crate::estimate::{EstimateEntry, rounded};

/// What moving takes, as measured after the program's end.
#[derive(Debug, Serialize)]
pub(crate) struct Entry {
    /// After each gap without a call, in ascending order.
    pub(crate) after: Vec<After>,
    /// The mean over the gaps between the observed calls.
    pub(crate) mean_ns: f64,
}

/// What moving takes after a gap.
#[derive(Debug, Serialize)]
pub(crate) struct After {
    pub(crate) gap_ns: f64,
    pub(crate) took_ns: EstimateEntry,
}

/// The mean over the gaps between the observed calls (ns); `None` if it was not measured what
/// moving takes.
pub(super) fn mean_ns(run: &Run<'_>) -> Option<f64> {
    let measured = run.hand_off.iter().map(|(gap_ns, took)| (*gap_ns, took.median));
    let tallies = run.observed.functions();
    let gaps = tallies.values().flat_map(|tally| tally.gap_after.iter());
    Some(HandOff::new(measured)?.mean_ns(gaps))
}

impl Entry {
    pub(super) fn new(run: &Run<'_>) -> Option<Self> {
        let after =
            |(gap_ns, took): &(f64, Estimate)| After { gap_ns: *gap_ns, took_ns: (*took).into() };
        Some(Self {
            after: run.hand_off.iter().map(after).collect(),
            mean_ns: rounded(mean_ns(run)?),
        })
    }
}
