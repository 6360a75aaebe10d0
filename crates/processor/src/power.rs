//! The power of a package at given clocks of its cores, computed from a model's loads.
//!
//! All cores of a package share the voltage of the fastest one (paper 002 §2.1). Power therefore
//! depends on that core's clock, called the rail's clock. The power of a package is its power while
//! all cores wait plus what each executing core adds. This addition grows linearly with the core's
//! own clock, as dynamic power does at a fixed voltage (paper 002 §2.1: V² f C). The numbers solve
//! the model's loads exactly. Values between two P-states are interpolated; values beyond the loads
//! are unknown. Code that waits for memory, and wide code, are not distinguished.

use crate::model::{Missing, Model, Power};

/// Powers are published to a tenth of a watt, so a smaller excess over a limit does not count (mW).
const RESOLUTION_MW: f64 = 100.0;

/// Power of a package by the clocks of its cores.
#[derive(Clone, Debug, PartialEq)]
pub struct PowerCurve {
    /// The points, fastest first.
    points: Vec<Point>,
    /// Rated power (mW).
    limit_mw: Option<f64>,
    base_ghz: f64,
}

/// A P-state of the rail.
#[derive(Clone, Debug, PartialEq)]
struct Point {
    ghz: f64,
    /// Power of the package while all cores wait (mW).
    waiting_mw: f64,
    /// Power that an executing core adds at this clock (mW).
    busy_mw: Option<f64>,
    /// A slower clock (GHz), and the power that a core adds there (mW). Between the two clocks the
    /// power is linear; below, it is proportional to the clock.
    slow: Option<(f64, f64)>,
    loads: Vec<Load>,
}

/// The cores that executed during a measurement of power.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Load {
    /// Number of cores at the rail's clock.
    busy: f64,
    /// Number of cores at a slower clock (`slow_ghz`, GHz).
    slow: f64,
    slow_ghz: f64,
    mw: f64,
}

impl PowerCurve {
    /// Computes the curve from the model's loads.
    ///
    /// # Errors
    /// [`Missing`]: no load has a number of executing cores, or there are too few loads to compute
    /// the power of waiting cores.
    pub fn new(model: &Model) -> Result<Self, Missing> {
        let mhz_of = |name: &str| {
            let state = model.pstates.iter().find(|state| state.name == name);
            state.map(|state| state.mhz.value as f64)
        };
        let load = |power: &Power| {
            let (slow, slow_ghz) = match &power.slow {
                Some((cores, pstate)) => (f64::from(*cores), mhz_of(pstate)? / 1000.0),
                None => (0.0, 0.0),
            };
            let busy = f64::from(power.busy_cores?);
            Some(Load { busy, slow, slow_ghz, mw: power.package_mw.value as f64 })
        };
        let point = |state: &crate::model::PState| {
            let of_state = model.power.iter().filter(|power| power.pstate == state.name);
            Point::solve(state.mhz.value as f64 / 1000.0, of_state.filter_map(load).collect())
        };
        let mut points: Vec<Point> = model.pstates.iter().filter_map(point).collect();
        points.sort_by(|one, other| other.ghz.total_cmp(&one.ghz));
        if points.is_empty() {
            return Err(Missing {
                model: model.identity.name.clone(),
                key: if model.power.is_empty() { "power" } else { "power.busy_cores" },
                needed_for: "the energy",
            });
        }
        let limit_mw = model.clock.tdp_mw.as_ref().map(|limit| limit.value as f64);
        let base_ghz = model.clock.base_mhz.as_ref().map_or(0.0, |mhz| mhz.value as f64 / 1000.0);
        Ok(Self { points, limit_mw, base_ghz })
    }

    /// Power of the package while all of its cores wait (mW), at this rail clock; `None` if the
    /// model lacks it.
    #[must_use]
    pub fn waiting_mw(&self, rail_ghz: f64) -> Option<f64> {
        self.between(rail_ghz, |point| Some(point.waiting_mw))
    }

    /// Power that a core executing at a clock adds (mW), at a rail clock that is at least as fast;
    /// `None` if the model lacks it.
    #[must_use]
    pub fn core_mw(&self, ghz: f64, rail_ghz: f64) -> Option<f64> {
        self.between(rail_ghz, |point| point.core_mw(ghz.min(rail_ghz) / rail_ghz * point.ghz))
    }

    /// Whether a load of the model has at least as many cores executing, at clocks at least as high
    /// as these (GHz). Power beyond the loads is unknown.
    #[must_use]
    pub fn covers(&self, rail_ghz: f64, busy: &[f64]) -> bool {
        let Some(point) = self.points.iter().rfind(|point| point.ghz >= rail_ghz) else {
            return false;
        };
        point.loads.iter().any(|load| {
            let fast = busy.iter().filter(|ghz| **ghz > load.slow_ghz).count();
            fast as f64 <= load.busy && busy.len() as f64 <= load.busy + load.slow
        })
    }

    /// Power of the package while cores execute at these clocks (mW), the fastest of which is the
    /// rail's; `None` if the model lacks it.
    #[must_use]
    pub fn package_mw(&self, rail_ghz: f64, busy: &[f64]) -> Option<f64> {
        let cores = busy.iter().map(|ghz| self.core_mw(*ghz, rail_ghz)).sum::<Option<f64>>();
        self.covers(rail_ghz, busy).then_some(self.waiting_mw(rail_ghz)? + cores?)
    }

    /// Whether the package's rated power lets cores execute at these clocks (GHz). The guaranteed
    /// clock is always allowed. Clocks above it are allowed if the power is known to be low enough,
    /// or if nothing is known of executing cores at them.
    #[must_use]
    pub fn allows(&self, busy: &[f64]) -> bool {
        let rail_ghz = busy.iter().copied().fold(0.0, f64::max);
        let Some(limit_mw) = self.limit_mw.filter(|_| rail_ghz > self.base_ghz) else {
            return true;
        };
        let point = self.points.iter().rfind(|point| point.ghz >= rail_ghz);
        if point.is_none_or(|point| point.busy_mw.is_none()) {
            return true;
        }
        self.package_mw(rail_ghz, busy).is_some_and(|mw| mw < limit_mw + RESOLUTION_MW)
    }

    /// Interpolates a value at a clock between two P-states.
    fn between(&self, ghz: f64, of: impl Fn(&Point) -> Option<f64>) -> Option<f64> {
        let above = self.points.iter().rfind(|point| point.ghz >= ghz)?;
        if above.ghz == ghz {
            return of(above);
        }
        let below = self.points.iter().find(|point| point.ghz < ghz)?;
        let share = (ghz - below.ghz) / (above.ghz - below.ghz);
        Some(of(below)? * (1.0 - share) + of(above)? * share)
    }
}

impl Point {
    /// Solves for the numbers that give each load its power; `None` if the power of waiting cores
    /// does not follow.
    fn solve(ghz: f64, loads: Vec<Load>) -> Option<Self> {
        let alike = || loads.iter().filter(|load| load.slow == 0.0);
        let fewest = alike().min_by(|one, other| one.busy.total_cmp(&other.busy))?;
        let most = alike().max_by(|one, other| one.busy.total_cmp(&other.busy))?;
        let with_slow = loads.iter().find(|load| load.slow > 0.0);
        let (busy_mw, slow) = match (most.busy > fewest.busy, with_slow) {
            (true, with_slow) => {
                let busy_mw = (most.mw - fewest.mw) / (most.busy - fewest.busy);
                let slow = with_slow.map(|load| {
                    let rest = load.mw - fewest.mw - busy_mw * (load.busy - fewest.busy);
                    (load.slow_ghz, (rest / load.slow).max(0.0))
                });
                (Some(busy_mw), slow)
            }
            // Two loads, assuming that slower cores add power in proportion to their clock.
            (false, Some(load)) => {
                let as_busy = load.busy + load.slow * load.slow_ghz / ghz - fewest.busy;
                let busy_mw = (load.mw - fewest.mw) / as_busy;
                (Some(busy_mw).filter(|mw| mw.is_finite() && *mw >= 0.0), None)
            }
            (false, None) => (None, None),
        };
        let waiting_mw = match busy_mw {
            Some(busy_mw) => fewest.mw - busy_mw * fewest.busy,
            None if fewest.busy == 0.0 => fewest.mw,
            None => return None,
        };
        Some(Self { ghz, waiting_mw, busy_mw, slow, loads })
    }

    fn core_mw(&self, ghz: f64) -> Option<f64> {
        let busy_mw = self.busy_mw?;
        Some(match self.slow {
            Some((slow_ghz, slow_mw)) if ghz < slow_ghz => slow_mw * ghz / slow_ghz,
            Some((slow_ghz, slow_mw)) if slow_ghz < self.ghz => {
                slow_mw + (busy_mw - slow_mw) * (ghz - slow_ghz) / (self.ghz - slow_ghz)
            }
            _ => busy_mw * ghz / self.ghz,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::builtin;

    fn model(name: &str) -> Model {
        Model::parse(std::path::Path::new(name), builtin(name).unwrap()).unwrap()
    }

    fn curve(name: &str) -> PowerCurve {
        PowerCurve::new(&model(name)).unwrap()
    }

    /// Checks a load's power (W) on the curve.
    #[track_caller]
    fn check(name: &str, busy: &[f64], expected: f64) {
        let rail = busy.iter().copied().fold(0.0, f64::max);
        let found = curve(name).package_mw(rail, busy).unwrap() / 1000.0;
        assert!((found - expected).abs() < 1e-9, "{found} {expected}");
    }

    /// Paper 002 Table 2, rows of ALU operations and of one core or module, and Table 3.
    #[test]
    fn loads_of_a_model_are_reproduced() {
        check("fx-8120", &[4.0], 120.1);
        check("fx-8120", &[3.1], 90.9);
        check("fx-8120", &[3.1; 8], 122.6);
        check("fx-8120", &[1.4; 8], 41.2);
        for (ghz, watts) in [(4.0, 125.0), (3.4, 119.8), (3.1, 100.5), (2.3, 65.5)] {
            check("fx-8120", &[ghz, ghz, 1.4, 1.4, 1.4, 1.4, 1.4, 1.4], watts);
        }
        check("i7-4770", &[3.4; 4], 51.0);
        check("i7-4770", &[0.8; 4], 12.0);
    }

    #[test]
    fn what_lies_between_loads_is_interpolated() {
        // Half of the cores, and a clock halfway between two P-states.
        check("i7-4770", &[3.4; 2], 35.0);
        check("i7-4770", &[2.7; 4], 38.0);
    }

    #[test]
    fn what_no_load_reaches_is_not_known() {
        let i7 = curve("i7-4770");
        assert_eq!(i7.waiting_mw(3.9), Some(25_000.0));
        assert_eq!((i7.core_mw(3.9, 3.9), i7.core_mw(3.7, 3.7)), (None, None));
        // Three cores at the highest clock, at which only one module was measured.
        assert_eq!(curve("fx-8120").package_mw(4.0, &[4.0; 3]), None);
        assert_eq!(curve("fx-8120").waiting_mw(4.1), None);
    }

    /// Paper 002 §2.1: one module runs at P0 if the others are at P6 or wait; integer loads on all
    /// cores run at P2.
    #[test]
    fn rated_power_limits_what_is_above_the_base_clock() {
        let fx = curve("fx-8120");
        let module = [4.0, 4.0, 1.4, 1.4, 1.4, 1.4, 1.4, 1.4];
        assert!(fx.allows(&[4.0]) && fx.allows(&[4.0; 2]) && fx.allows(&module));
        assert!(!fx.allows(&[4.0; 3]) && !fx.allows(&[3.4; 8]) && !fx.allows(&[4.0, 1.9, 1.9]));
        assert!(fx.allows(&[3.1; 8]) && fx.allows(&[]));
        // Of P39, only the waiting power is known.
        assert!(curve("i7-4770").allows(&[3.9; 4]));
    }

    #[test]
    fn a_model_without_such_loads_is_told_what_it_lacks() {
        let lacks = |name| PowerCurve::new(&model(name)).unwrap_err().to_string();
        assert_eq!(
            lacks("i9-7940x"),
            "the model of Intel Core i9-7940X does not say `power`, which the energy needs"
        );
        assert!(lacks("ryzen-1600x").contains("`power.busy_cores`"));
    }
}
