//! What a package takes at which clocks of its cores, worked out from the loads that a model gives.
//!
//! All cores of a package are fed with the voltage of the fastest one (paper 002 §2.1), so power is
//! told by that one's clock, the rail's: what the package takes while all cores wait, and what each
//! core that executes adds. The latter grows linearly with the core's own clock, as dynamic power
//! does at one voltage (paper 002 §2.1: V² f C). The numbers solve the model's loads exactly; what
//! lies between two P-states is interpolated, and what lies beyond the loads is not known. Code
//! that waits for memory, or is wide, is not told apart.

use crate::model::{Missing, Model, Power};

/// Powers are published to a tenth of a watt, so nothing below that is above a limit (mW).
const RESOLUTION_MW: f64 = 100.0;

/// Power of a package by the clocks of its cores.
#[derive(Clone, Debug, PartialEq)]
pub struct PowerCurve {
    /// Fastest first.
    points: Vec<Point>,
    /// Rated power (mW).
    limit_mw: Option<f64>,
    base_ghz: f64,
}

/// A P-state as the rail's.
#[derive(Clone, Debug, PartialEq)]
struct Point {
    ghz: f64,
    /// The package while all cores wait (mW).
    waiting_mw: f64,
    /// What a core that executes adds at this clock (mW).
    busy_mw: Option<f64>,
    /// A slower clock, and what it adds there; between the two it is linear, below in proportion.
    slow: Option<(f64, f64)>,
    loads: Vec<Load>,
}

/// Cores that executed when power was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Load {
    /// At the rail's clock.
    busy: f64,
    /// At a slower one (GHz).
    slow: f64,
    slow_ghz: f64,
    mw: f64,
}

impl PowerCurve {
    /// What follows from the model's loads.
    ///
    /// # Errors
    /// If it has none that says how many cores execute, or too few to tell what waiting cores take.
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

    /// What the package takes while all of its cores wait (mW), the rail being at this clock;
    /// `None` where the model does not say.
    #[must_use]
    pub fn waiting_mw(&self, rail_ghz: f64) -> Option<f64> {
        self.between(rail_ghz, |point| Some(point.waiting_mw))
    }

    /// What a core that executes at a clock adds to that (mW), the rail being at another, at least
    /// as fast; `None` where the model does not say.
    #[must_use]
    pub fn core_mw(&self, ghz: f64, rail_ghz: f64) -> Option<f64> {
        self.between(rail_ghz, |point| point.core_mw(ghz.min(rail_ghz) / rail_ghz * point.ghz))
    }

    /// Whether as much was going on in a load of the model: as many cores executing, at clocks as
    /// high as these (GHz). What lies beyond is not known.
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

    /// What the package takes while cores execute at these clocks (mW), the fastest being the
    /// rail's; `None` where the model does not say.
    #[must_use]
    pub fn package_mw(&self, rail_ghz: f64, busy: &[f64]) -> Option<f64> {
        let cores = busy.iter().map(|ghz| self.core_mw(*ghz, rail_ghz)).sum::<Option<f64>>();
        self.covers(rail_ghz, busy).then_some(self.waiting_mw(rail_ghz)? + cores?)
    }

    /// Whether the package's rated power lets cores execute at these clocks (GHz). The guaranteed
    /// clock always may be; clocks above it may where power is known to be low enough, or where
    /// nothing is known of any core that executes at them.
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

    /// A value at a clock between two P-states.
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
    /// The numbers that give each load its power; `None` if they say nothing about waiting cores.
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
            // Two loads, and slower cores taken to add in proportion to their clock.
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

    /// The power (W) of a load by the curve.
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
        // Half of the cores, and a clock half of the way from one P-state to the next.
        check("i7-4770", &[3.4; 2], 35.0);
        check("i7-4770", &[2.7; 4], 38.0);
    }

    #[test]
    fn what_no_load_reaches_is_not_known() {
        let i7 = curve("i7-4770");
        assert_eq!(i7.waiting_mw(3.9), Some(25_000.0));
        assert_eq!((i7.core_mw(3.9, 3.9), i7.core_mw(3.7, 3.7)), (None, None));
        // Three cores at the highest clock of which one module has been measured.
        assert_eq!(curve("fx-8120").package_mw(4.0, &[4.0; 3]), None);
        assert_eq!(curve("fx-8120").waiting_mw(4.1), None);
    }

    /// Paper 002 §2.1: one module at P0 if the others are at P6 or wait; integer loads on all cores
    /// run at P2.
    #[test]
    fn rated_power_limits_what_is_above_the_base_clock() {
        let fx = curve("fx-8120");
        let module = [4.0, 4.0, 1.4, 1.4, 1.4, 1.4, 1.4, 1.4];
        assert!(fx.allows(&[4.0]) && fx.allows(&[4.0; 2]) && fx.allows(&module));
        assert!(!fx.allows(&[4.0; 3]) && !fx.allows(&[3.4; 8]) && !fx.allows(&[4.0, 1.9, 1.9]));
        assert!(fx.allows(&[3.1; 8]) && fx.allows(&[]));
        // Of P39 nothing is known but what waiting takes.
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
