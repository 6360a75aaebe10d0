//! Power by supply voltage and by what cores execute, from a model's `[supply]`.
//!
//! Dynamic power is V² f C (paper 002 §2.1), with a switched capacitance C that depends on the code
//! and falls while memory stalls it. What is awake besides the cores (caches, the network between
//! them) takes power by the square of the voltage alone. Powers are beyond that of a processor
//! whose cores are all idle, as paper 004 measures them (§5.1).

use crate::model::{Domain, Missing, Model, Sourced};

/// What an executing core does, on average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Activity {
    /// Switched capacitance, relative to that of the model's busy core.
    pub core: f64,
    /// Power outside the cores that what it executes causes (mW).
    pub traffic_mw: f64,
}

impl Activity {
    /// The model's busy core.
    pub const BUSY: Self = Self { core: 1.0, traffic_mw: 0.0 };
}

/// The state of a core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoreState {
    /// Its clock (GHz), also while it executes nothing.
    pub ghz: f64,
    /// What it executes; `None`: nothing.
    pub executes: Option<Activity>,
    /// Whether it waits by MWAIT while it executes nothing.
    pub waits: bool,
}

impl CoreState {
    fn is_awake(&self) -> bool {
        self.executes.is_some() || self.waits
    }
}

/// Power by supply voltage and activity.
#[derive(Clone, Debug, PartialEq)]
pub struct SupplyPower {
    /// Whether each core has a voltage of its own.
    is_per_core: bool,
    awake_mw: f64,
    core_mw: f64,
    stalled: f64,
    waiting_mw: f64,
    /// Clocks and voltages of P-states, by rising clock (GHz, V).
    points: Vec<(f64, f64)>,
    /// Relative power of each core of a package.
    ratios: Vec<f64>,
}

impl SupplyPower {
    /// The power of this model; `None` if it has no `[supply]`.
    ///
    /// # Errors
    /// [`Missing`]: the model has one, but lacks the power of a core, the part of it that remains
    /// while memory stalls, or all voltages.
    pub fn new(model: &Model) -> Option<Result<Self, Missing>> {
        (model.supply != crate::model::Supply::default()).then(|| Self::of(model))
    }

    fn of(model: &Model) -> Result<Self, Missing> {
        const FOR: &str = "the energy";
        let supply = &model.supply;
        let mw = |value: &Option<Sourced<u64>>| value.as_ref().map_or(0.0, |mw| mw.value as f64);
        let core_mw = *model.require(supply.core_mw.as_ref(), "supply.core_mw", FOR)?;
        let stalled = *model.require(supply.stalled_ratio.as_ref(), "supply.stalled_ratio", FOR)?;
        let point = |state: &crate::model::PState| {
            Some((state.mhz.value as f64 / 1000.0, state.mv.as_ref()?.value as f64 / 1000.0))
        };
        let mut points: Vec<(f64, f64)> = model.pstates.iter().filter_map(point).collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        if points.is_empty() {
            let model = model.identity.name.clone();
            return Err(Missing { model, key: "pstate.mv", needed_for: FOR });
        }
        let ratio = |cluster: &crate::model::Cluster| {
            cluster.power_ratio.as_ref().map_or(1.0, |ratio| ratio.value)
        };
        Ok(Self {
            is_per_core: supply.domain.as_ref().map(|domain| domain.value) == Some(Domain::Core),
            awake_mw: mw(&supply.awake_mw),
            core_mw: core_mw as f64,
            stalled,
            waiting_mw: mw(&supply.waiting_mw),
            points,
            ratios: model.clusters_of_cores().map(|(_, cluster)| ratio(cluster)).collect(),
        })
    }

    /// The part of a busy core's power that remains while memory stalls it.
    #[must_use]
    pub fn stalled(&self) -> f64 {
        self.stalled
    }

    /// The voltage that a clock needs (V): linear between P-states, and that of the slowest or the
    /// fastest one beyond them.
    #[must_use]
    pub fn volts(&self, ghz: f64) -> f64 {
        let above = self.points.partition_point(|(clock, _)| *clock < ghz);
        match (
            above.checked_sub(1).and_then(|below| self.points.get(below)),
            self.points.get(above),
        ) {
            (Some(below), Some(above)) => {
                below.1 + (above.1 - below.1) * (ghz - below.0) / (above.0 - below.0)
            }
            (Some(only), None) | (None, Some(only)) => only.1,
            (None, None) => 0.0,
        }
    }

    /// Power of a package that is awake, without its cores (mW); 0 if all of these are idle.
    #[must_use]
    pub fn package_mw(&self, cores: &[CoreState]) -> f64 {
        let is_awake = cores.iter().any(CoreState::is_awake);
        if is_awake { self.awake_mw * self.rail(cores).powi(2) } else { 0.0 }
    }

    /// Power that the core with this index in its package adds (mW).
    #[must_use]
    pub fn core_mw(&self, core: usize, cores: &[CoreState]) -> f64 {
        let Some(state) = cores.get(core) else { return 0.0 };
        let volts = if self.is_per_core { self.volts(state.ghz) } else { self.rail(cores) };
        let ratio = self.ratios.get(core).copied().unwrap_or(1.0);
        match state.executes {
            Some(Activity { core, traffic_mw }) => {
                self.core_mw * ratio * core * state.ghz * volts.powi(2) + traffic_mw
            }
            None if state.waits => self.waiting_mw * ratio * volts.powi(2),
            None => 0.0,
        }
    }

    /// The voltage of what cores share: that of the fastest core, or if cores have voltages of
    /// their own, that of the fastest one that is awake.
    fn rail(&self, cores: &[CoreState]) -> f64 {
        let counts = |core: &&CoreState| !self.is_per_core || core.is_awake();
        let volts = cores.iter().filter(counts).map(|core| self.volts(core.ghz));
        volts.fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::builtin;

    fn model() -> Model {
        let text = builtin("ryzen-1600x").unwrap();
        Model::parse(std::path::Path::new("ryzen-1600x"), text).unwrap()
    }

    const IDLE: CoreState = CoreState { ghz: 3.6, executes: None, waits: false };
    const SLOW: CoreState = CoreState { ghz: 1.44, executes: Some(Activity::BUSY), waits: false };

    #[test]
    fn one_rail_has_the_voltage_of_the_fastest_core_even_if_it_is_idle() {
        let power = SupplyPower::new(&model()).unwrap().unwrap();
        let beside = power.core_mw(1, &[IDLE, SLOW]);
        let alone = power.core_mw(0, &[SLOW]);
        let square = (1.2 / power.volts(1.44)).powi(2);
        assert!((beside / alone - square).abs() < 1e-9, "{beside} {alone}");
        assert_eq!(power.package_mw(&[IDLE, IDLE]), 0.0);
    }

    #[test]
    fn a_core_with_a_voltage_of_its_own_does_not_pay_for_others() {
        let mut model = model();
        model.supply.domain.as_mut().unwrap().value = Domain::Core;
        let power = SupplyPower::new(&model).unwrap().unwrap();
        assert_eq!(power.core_mw(1, &[IDLE, SLOW]), power.core_mw(0, &[SLOW]));
        assert_eq!(power.package_mw(&[IDLE, SLOW]), power.package_mw(&[SLOW]));
        let waits = CoreState { waits: true, ..IDLE };
        assert!(power.package_mw(&[waits, SLOW]) > power.package_mw(&[SLOW]));
    }

    #[test]
    fn voltages_lie_between_those_of_p_states() {
        let power = SupplyPower::new(&model()).unwrap().unwrap();
        let volts = [0.1, 0.833, 3.05, 3.6, 4.0].map(|ghz| power.volts(ghz));
        for (volts, expected) in volts.into_iter().zip([0.8, 0.8, 1.1, 1.2, 1.2]) {
            assert!((volts - expected).abs() < 1e-9, "{volts} {expected}");
        }
    }

    #[test]
    fn a_model_says_what_it_lacks() {
        let mut model = model();
        model.supply.core_mw = None;
        let error = SupplyPower::new(&model).unwrap().unwrap_err().to_string();
        assert!(error.contains("`supply.core_mw`"), "{error}");
        model.supply = crate::model::Supply::default();
        assert!(SupplyPower::new(&model).is_none());
    }
}
