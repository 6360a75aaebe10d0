//! Tables that stand by themselves: code, distributions, regions.

use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::Upper;
use serde::Deserialize;

use super::{MOST_CACHED_KIB, within};
use crate::Segment;
use crate::program::Distribution;

/// Instructions per cycle: from far below what any code has to more than any core retires.
const PER_CYCLE: (f64, f64) = (1e-6, 64.0);

/// Maximum time for which memory stalls an instruction (ns): a second.
const MOST_MEMORY_NS: f64 = 1e9;

/// Maximum power of code, relative to the model's busy core.
const MOST_ACTIVITY: f64 = 1000.0;

/// Maximum energy outside the core that an instruction causes (nJ): a joule.
const MOST_TRAFFIC_NJ: f64 = 1e9;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Code {
    pub(super) name: String,
    class: String,
    /// Instructions of all kinds.
    per_cycle: f64,
    /// Of the class.
    #[serde(default)]
    share: Option<f64>,
    #[serde(default)]
    chained: bool,
    #[serde(default)]
    dirty_upper: bool,
    #[serde(default)]
    memory_ns: f64,
    #[serde(default)]
    activity: Option<f64>,
    #[serde(default)]
    traffic_nj: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DistributionDocument {
    pub(super) name: String,
    quantiles: Vec<Vec<f64>>,
    #[serde(default)]
    correlation: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RegionDocument {
    pub(super) name: String,
    data_kib: i64,
}

impl DistributionDocument {
    /// The distribution.
    pub(super) fn check(&self) -> Result<Distribution, String> {
        let pairs = self.quantiles.iter().map(|pair| match pair.as_slice() {
            [probability, value] => Ok((*probability, *value)),
            other => {
                let count = other.len();
                Err(format!("`quantiles` has {count} numbers in a pair, expected [share, value]"))
            }
        });
        let distribution = pairs
            .collect::<Result<Vec<_>, _>>()
            .and_then(|pairs| Distribution::new(&pairs, self.correlation));
        distribution.map_err(|error| format!("distribution `{}`: {error}", self.name))
    }
}

impl Code {
    /// A segment of the code, without an extent.
    pub(super) fn segment(&self) -> Result<Segment, String> {
        let Self { name, .. } = self;
        let class = self.class.parse::<InstructionClass>();
        let class = class.map_err(|error| format!("code `{name}`: {error}"))?;
        let bounded = |key: &str, found: f64, (low, high): (f64, f64)| {
            let is_within = (low..=high).contains(&found);
            is_within.then_some(()).ok_or_else(|| {
                format!("code `{name}`: `{key}` is {found}, expected a number from {low} to {high}")
            })
        };
        bounded("per_cycle", self.per_cycle, PER_CYCLE)?;
        let share = self.share.unwrap_or(1.0);
        bounded("share", share, (0.0, 1.0))?;
        bounded("memory_ns", self.memory_ns, (0.0, MOST_MEMORY_NS))?;
        let activity = self.activity.unwrap_or(1.0);
        bounded("activity", activity, (0.0, MOST_ACTIVITY))?;
        bounded("traffic_nj", self.traffic_nj, (0.0, MOST_TRAFFIC_NJ))?;
        Ok(Segment {
            class,
            upper: if self.dirty_upper { Upper::Dirty } else { Upper::Any },
            ipc: self.per_cycle,
            share,
            is_chained: self.chained,
            memory_ns: self.memory_ns,
            activity,
            traffic_nj: self.traffic_nj,
            ..Segment::SCALAR
        })
    }
}

impl RegionDocument {
    /// The name, and what the region's code reads and writes (KiB).
    pub(super) fn check(self) -> Result<(String, u64), String> {
        let data_kib = within("data_kib", self.data_kib, 0, MOST_CACHED_KIB);
        let data_kib = data_kib.map_err(|error| format!("region `{}`: {error}", self.name))?;
        Ok((self.name, data_kib))
    }
}
