//! The history of states for the lines of the screen. As in figure 6.3 of paper 001: the metric,
//! the threshold, and what is moved. In addition the number of dedicated cores, which the paper's
//! prototype did not have.

use std::collections::{BTreeMap, VecDeque};

use dimmer_watch::state::State;

use super::rows::{Key, Row};

/// States kept for the overall series: more than the widest terminal shows.
const LOOKS: usize = 300;

/// States kept for each region; there may be tens of thousands of regions.
const LOOKS_OF_REGION: usize = 60;

/// Values, the newest last; `None` where nothing could be seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Series(VecDeque<Option<f32>>);

impl Series {
    #[expect(clippy::cast_possible_truncation, reason = "as fine as a terminal can show")]
    fn push(&mut self, value: Option<f64>, most: usize) {
        if self.0.len() >= most {
            self.0.pop_front();
        }
        self.0.push_back(value.map(|value| value as f32));
    }

    /// The last `count` values, or fewer if there are fewer, the newest last.
    pub(super) fn last(&self, count: usize) -> impl DoubleEndedIterator<Item = Option<f64>> + '_ {
        self.0.iter().skip(self.0.len().saturating_sub(count)).map(|value| value.map(f64::from))
    }

    /// The minimum and maximum of the last `count` values.
    pub(super) fn range(&self, count: usize) -> Option<(f64, f64)> {
        let values = self.last(count).flatten();
        values.fold(None, |range, value| {
            let (least, most) = range.unwrap_or((value, value));
            Some((value.min(least), value.max(most)))
        })
    }
}

/// The history.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    /// Number of dedicated CPUs.
    pub(super) dedicated: Series,
    /// The share of all calls that were moved.
    pub(super) moved: Series,
    /// The threshold of L1.
    pub(super) threshold: Series,
    /// Each program's progress: its own metric, or, without one, calls of its regions per second.
    pub(super) performance: BTreeMap<u64, Series>,
    /// The share of each region's calls that were moved.
    pub(super) regions: BTreeMap<Key, Series>,
}

impl History {
    /// Adds a state.
    pub(super) fn add(&mut self, state: &State, rows: &[Row]) {
        self.dedicated.push(Some(state.cores.dedicated as f64), LOOKS);
        let (mut calls, mut moved) = (0.0, 0.0);
        let mut programs: BTreeMap<u64, f64> = BTreeMap::new();
        for row in rows {
            let Some(region) = &row.region else { continue };
            let of_region = self.regions.entry(row.key).or_default();
            of_region.push(region.moved_ratio, LOOKS_OF_REGION);
            calls += region.calls_per_s;
            moved += region.calls_per_s * region.moved_ratio.unwrap_or(0.0);
            *programs.entry(row.key.0).or_default() += region.calls_per_s;
        }
        self.moved.push((calls > 0.0).then(|| moved / calls), LOOKS);
        let threshold = state.policy.thresholds.as_ref().and_then(|levels| levels.first().copied());
        self.threshold.push(threshold, LOOKS);
        for client in &state.clients {
            let rate = programs.get(&client.client).copied();
            let of_program = self.performance.entry(client.client).or_default();
            of_program.push(client.metric.or(rate), LOOKS);
        }
        let rows: std::collections::BTreeSet<Key> = rows.iter().map(|row| row.key).collect();
        self.regions.retain(|key, _| rows.contains(key));
        let clients: std::collections::BTreeSet<u64> =
            state.clients.iter().map(|client| client.client).collect();
        self.performance.retain(|client, _| clients.contains(client));
    }

    /// Adds a gap, since no state could be read.
    pub(super) fn miss(&mut self) {
        for series in [&mut self.dedicated, &mut self.moved, &mut self.threshold] {
            series.push(None, LOOKS);
        }
        self.performance.values_mut().for_each(|series| series.push(None, LOOKS));
        self.regions.values_mut().for_each(|series| series.push(None, LOOKS_OF_REGION));
    }
}
