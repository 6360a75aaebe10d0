//! Conditions around the measurements that the probe does not cause: the clock of the core, and
//! whether another hardware thread of the core is busy. In a virtual machine that thread often
//! belongs to another user and cannot be seen in any other way. Results vary between runs with
//! these conditions.

use crate::calibration::Calibration;
use crate::outcome::{Quantity, Surroundings};
use crate::stats::Samples;

/// Factor by which issue windows must take longer, relative to clock windows, before another
/// hardware thread is taken to be the reason. Without a busy one they differ by less than 1 %, with
/// one by 7 % (apparently a waiting loop) to 200 % (seen on a shared Emerald Rapids host).
const BUSY: f64 = 1.05;

/// Largest ratio of issue to clock windows at which no other hardware thread of the core was busy.
/// Assumes that the quickest twentieth of `ratios` had the core alone, if any had; `None` if there
/// are no ratios.
pub(crate) fn alone(ratios: &Samples) -> Option<f64> {
    ratios.quantile(0.05).map(|quickest| BUSY * quickest)
}

/// Samples of the scalar code before every burst and baseline of a probe.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    /// Clock of the core (GHz).
    clocks: Vec<f64>,
    /// Duration of issue windows over that of clock windows.
    issues: Vec<f64>,
}

impl Log {
    /// Adds the durations of typical windows at one time (ns).
    pub(crate) fn add(&mut self, calibration: &Calibration, clock_ns: f64, issue_ns: f64) {
        if clock_ns.is_finite() && issue_ns.is_finite() {
            self.clocks.push(calibration.ghz(clock_ns));
            self.issues.push(issue_ns / clock_ns);
        }
    }

    /// The result; `None` if nothing was added.
    pub(crate) fn told(self) -> Option<Surroundings> {
        let issues = Samples::new(self.issues);
        let alone = alone(&issues)?;
        let busy = issues.values().iter().filter(|issue| **issue > alone).count();
        Some(Surroundings {
            clock_ghz: Quantity::new(Samples::new(self.clocks))?,
            busy_sibling_share: busy as f64 / issues.len() as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sibling_shows_in_the_issue_windows() {
        let clocks = (0..100).map(|i| 3.0 + f64::from(i % 3) * 0.1).collect();
        let issues = (0..100).map(|i| if i < 30 { 0.9 } else { 0.58 }).collect();
        let told = Log { clocks, issues }.told().unwrap();
        assert_eq!(told.busy_sibling_share, 0.3);
        assert_eq!(told.clock_ghz.samples.quantile(1.0), Some(3.2));
    }

    #[test]
    fn nothing_measured_is_nothing_told() {
        assert_eq!(Log::default().told(), None);
    }
}
