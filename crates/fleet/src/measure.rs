//! The costs that a probe measured: of each result, the one number that tells machines apart.

use std::fmt;

use serde_json::Value;

/// What was measured. Two probes measured the same if their keys are equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The kind of cost.
    pub cost: Cost,
    /// The kernel.
    pub kernel: String,
    /// How many CPUs ran it.
    pub threads: u64,
    /// Instructions in a burst, if there were bursts of one length.
    pub burst: Option<u64>,
}

/// A kind of cost. More is worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cost {
    /// Of an isolated burst, to the scalar code after it, the mean over all bursts (ns).
    Burst,
    /// Of recurring bursts, to the scalar code between them, at the worst gap (%).
    Recurrence,
    /// Of a long stretch: by how much its clock is below nominal (%).
    Stretch,
    /// Of a long stretch, to the scalar code after it, the mean over all stretches (ns).
    Release,
    /// How long a stretch is throttled at its start (ns).
    Throttle,
    /// By how much the clock is below that of scalar code on as many CPUs (%).
    Level,
}

impl Cost {
    /// The name in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Burst => "burst",
            Self::Recurrence => "recurrence",
            Self::Stretch => "stretch",
            Self::Release => "release",
            Self::Throttle => "throttle",
            Self::Level => "level",
        }
    }

    /// The unit: `ns` or `%`.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Burst | Self::Release | Self::Throttle => "ns",
            Self::Recurrence | Self::Stretch | Self::Level => "%",
        }
    }
}

/// A cost with its interval.
#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
    /// What was measured.
    pub key: Key,
    /// The median.
    pub median: f64,
    /// The ends of the interval that holds it with 95 % probability.
    pub interval: [f64; 2],
    /// Whether the probe found an effect there at all.
    pub has_effect: bool,
}

/// The least difference of clocks or of times of code that matters (percentage points): programs
/// differ by as much from run to run.
const LEAST_POINTS: f64 = 1.0;

/// The least difference of times that matters, as a share of the smaller one.
const LEAST_SHARE: f64 = 0.1;

/// The least difference of times that matters (ns). A guess: some times what a quiet probe can see,
/// and a thousandth of the time at ten thousand bursts a second.
const LEAST_NS: f64 = 100.0;

impl Measure {
    /// The costs in an entry of `results`. Entries of other modes have none.
    pub(crate) fn of(result: &Value) -> Vec<Self> {
        let text = |key: &str| result[key].as_str().unwrap_or_default();
        let key = |cost, threads: &Value| Key {
            cost,
            kernel: text("kernel").to_owned(),
            threads: threads.as_u64().unwrap_or(1),
            burst: result["burst_instructions"].as_u64(),
        };
        let has_effect = result["effect"] == true;
        let threads = &result["threads"];
        let measure = |key, quantity: &Value| {
            let (median, interval) = numbers(quantity)?;
            Some(Self { key, median, interval, has_effect })
        };
        let below = |cost, threads: &Value, ratio: &Value| {
            Some(measure(key(cost, threads), ratio)?.below_one())
        };
        match text("mode") {
            "episode" => {
                measure(key(Cost::Burst, threads), &result["mean_extra_ns"]).into_iter().collect()
            }
            "upclock" => {
                measure(key(Cost::Release, threads), &result["mean_extra_ns"]).into_iter().collect()
            }
            "recurrence" => {
                let gaps = result["gaps"].as_array().into_iter().flatten();
                let gaps = gaps.filter_map(|gap| {
                    measure(key(Cost::Recurrence, threads), &gap["slowdown_pct"])
                });
                gaps.max_by(|a, b| a.median.total_cmp(&b.median)).into_iter().collect()
            }
            "downclock" => {
                below(Cost::Stretch, threads, &result["clock_ratio"]).into_iter().collect()
            }
            "throttle" => {
                let throttled = measure(key(Cost::Throttle, threads), &result["throttled_ns"]);
                let none = || Self {
                    key: key(Cost::Throttle, threads),
                    median: 0.0,
                    interval: [0.0; 2],
                    has_effect,
                };
                vec![throttled.unwrap_or_else(none)]
            }
            "levels" => {
                let active = &result["active"];
                below(Cost::Level, active, &result["clock_ratio"]).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    /// What a ratio is below 1, in percent.
    fn below_one(self) -> Self {
        let below = |ratio: f64| 100.0 * (1.0 - ratio);
        let [low, high] = self.interval;
        Self { median: below(self.median), interval: [below(high), below(low)], ..self }
    }

    /// Whether this cost is surely higher than another one, by as much as matters, and the probe
    /// found an effect.
    #[must_use]
    pub fn is_worse_than(&self, other: &Self) -> bool {
        let least = match self.key.cost.unit() {
            "%" => LEAST_POINTS,
            _ => (LEAST_SHARE * other.median).max(LEAST_NS),
        };
        self.has_effect
            && self.interval[0] > other.interval[1]
            && self.median - other.median >= least
    }
}

/// The median and the interval of a quantity.
fn numbers(quantity: &Value) -> Option<(f64, [f64; 2])> {
    let end = |index: usize| quantity["ci95"][index].as_f64();
    Some((quantity["median"].as_f64()?, [end(0)?, end(1)?]))
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let burst = self.burst.map(|burst| format!(" of {burst} instructions")).unwrap_or_default();
        let kernel = &self.kernel;
        match self.cost {
            Cost::Burst => write!(f, "an isolated burst{burst}, {kernel}")?,
            Cost::Recurrence => write!(f, "recurring bursts{burst}, {kernel}")?,
            Cost::Stretch => write!(f, "the clock of a long stretch, {kernel}")?,
            Cost::Release => write!(f, "after a long stretch, {kernel}")?,
            Cost::Throttle => write!(f, "throttling at the start, {kernel}")?,
            Cost::Level => write!(f, "the settled clock, {kernel}")?,
        }
        if self.threads == 1 { Ok(()) } else { write!(f, ", on {} CPUs", self.threads) }
    }
}
