//! The machine's processor: what its model says of rules, clocks and delays, ready to be used. It
//! does not change while the machine runs.

use dimmer_policy::license::hardware::Rules;
use dimmer_processor::model::{CState, Cluster, Model};
use dimmer_processor::units::{LicenseLevel, Nanos};

use super::{L0, Settings, index};
use crate::core::Factors;
use crate::governor::Governor;
use crate::{Clocks, Picos, SimError};

/// A processor model, as the machine uses it.
#[derive(Debug)]
pub(super) struct Processor {
    rules: Rules,
    clocks: Clocks,
    /// Clocks of the processor's own levels while a governor in software decides.
    residual: Clocks,
    /// Whether the processor decides alone.
    is_alone: bool,
    /// What throttling leaves of the rate of independent and of dependent instructions.
    throttle: [f64; 2],
    /// The share of the core's throughput that each of several busy hardware threads gets.
    smt_share: f64,
    /// How much longer code takes between bursts for which the lowest level is kept, as a part of
    /// its time at L0.
    kept_slowdown: f64,
    /// How much longer code takes in each recurrence of long bursts.
    long_slowdowns: Vec<f64>,
    stall: Picos,
    /// The time from one decision about raised clocks to the next; 0 if they are raised at once.
    raise_period: Picos,
    hold: Nanos,
    /// Cores of a package; at least one.
    of_package: usize,
    /// Idle states as (idle time from which the state pays, wake-up time), by rising idle time;
    /// empty if idle states are off.
    idle_states: Vec<(Picos, Picos)>,
    /// The idle time from which a core is in the idle state that the fastest P-states need; `None`
    /// if they need none.
    deep_from: Option<Picos>,
    /// The wake-up time of a core that waits by MWAIT.
    mwait: Picos,
    /// Work per cycle of each core of a package, relative to the fastest cluster's cores.
    capacities: Vec<f64>,
}

impl Processor {
    /// The processor of this model.
    ///
    /// # Errors
    /// If the model lacks what it needs.
    pub(super) fn new(model: &Model, settings: &Settings) -> Result<Self, SimError> {
        let of_package = model.shape.cores.as_ref().map_or(settings.cores, |cores| cores.value);
        let of_package = of_package.max(1);
        let clocks = Clocks::new(model, settings.cores.min(of_package))?;
        let request = &model.request;
        let throttle = request.throttle_factor.as_ref().map(|factor| factor.value);
        let chained = request.chained_throttle_factor.as_ref().map(|factor| factor.value);
        let span = |ns: Option<u64>| Nanos::from_ns(ns.unwrap_or(0));
        let shallowest = model.cstates.iter().map(exit).min();
        Ok(Self {
            rules: Rules::new(model)?,
            residual: clocks.reduced(model),
            clocks,
            is_alone: settings.governor == Governor::Hardware,
            throttle: [throttle, chained.or(throttle)].map(|factor| factor.unwrap_or(1.0)),
            smt_share: settings.smt_share,
            kept_slowdown: model.release.recurrence_slowdown.as_ref().map_or(0.0, |of| of.value),
            long_slowdowns: model.long_recurrences.iter().map(|long| long.slowdown.value).collect(),
            stall: span(request.stall_ns.as_ref().map(|stall| stall.value)).picos(),
            raise_period: span(model.clock.raise_period_ns.as_ref().map(|ns| ns.value)).picos(),
            of_package: index(of_package),
            hold: span(model.release.hold_ns.as_ref().map(|hold| hold.value)),
            capacities: capacities(model),
            idle_states: if settings.idle_states { idle_states(model) } else { Vec::new() },
            deep_from: deep_from(model, settings.idle_states),
            mwait: span(shallowest.filter(|_| settings.idle_states)).picos(),
        })
    }

    /// Which code asks for which level, and how.
    pub(super) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Number of levels, L0 included.
    pub(super) fn levels(&self) -> usize {
        self.clocks.levels()
    }

    /// The clock of a level (GHz) while this many cores are active.
    pub(super) fn ghz(&self, level: LicenseLevel, active: u32) -> f64 {
        self.clocks.ghz(level, active)
    }

    /// The clock (GHz) between bursts for which a level is kept: measured for the level that takes
    /// most off the clock, for others in proportion to that.
    pub(super) fn kept_ghz(&self, level: LicenseLevel, active: u32) -> f64 {
        let fastest = self.clocks.ghz(L0, active);
        let taken = |level| (1.0 - self.clocks.ghz(level, active) / fastest).max(0.0);
        let levels = (0..self.clocks.levels()).filter_map(|level| u32::try_from(level).ok());
        let most = levels.map(LicenseLevel::new).map(taken).fold(0.0, f64::max);
        let part = if most > 0.0 { taken(level) / most } else { 0.0 };
        fastest / (1.0 + part * self.kept_slowdown)
    }

    /// The clock (GHz) between long bursts, by the `[[long_recurrence]]` of this number.
    pub(super) fn between_long_ghz(&self, number: usize, active: u32) -> f64 {
        let slowdown = self.long_slowdowns.get(number).copied().unwrap_or(0.0);
        self.clocks.ghz(L0, active) / (1.0 + slowdown)
    }

    /// The clock (GHz) while the processor is at `own` and a governor in software has set `set`.
    pub(super) fn governed_ghz(&self, own: LicenseLevel, set: LicenseLevel, active: u32) -> f64 {
        self.residual.ghz(own, active).min(self.clocks.ghz(set, active))
    }

    /// How much longer code takes at a level than at L0, as a part of its time at L0.
    pub(super) fn slower(&self, level: LicenseLevel, active: u32) -> f64 {
        let ratio = self.clocks.ghz(L0, active) / self.clocks.ghz(level, active);
        (ratio - 1.0).max(0.0)
    }

    /// The package of a core.
    pub(super) fn package(&self, core: usize) -> usize {
        core / self.of_package
    }

    /// The packages that this number of cores takes.
    pub(super) fn packages(&self, cores: usize) -> usize {
        cores.div_ceil(self.of_package)
    }

    /// The cores of a package, of all those of the machine.
    pub(super) fn cores_of(&self, package: usize, cores: usize) -> std::ops::Range<usize> {
        let first = package * self.of_package;
        first..(first + self.of_package).min(cores)
    }

    /// Whether a package has cores beyond those of the machine: they are idle.
    pub(super) fn has_more_cores(&self, package: usize, cores: usize) -> bool {
        self.cores_of(package, cores).len() < self.of_package
    }

    /// Whether any clock differs between two numbers of active cores.
    pub(super) fn differs(&self, active: u32, other: u32) -> bool {
        self.clocks.differ(active, other)
    }

    /// What the rate of a core's instructions depends on beside the clock.
    pub(super) fn factors(&self, core: usize) -> Factors<'_> {
        let [throttle, chained_throttle] = self.throttle;
        let clocks = if self.is_alone { &self.clocks } else { &self.residual };
        Factors {
            rules: &self.rules,
            throttle,
            chained_throttle,
            smt_share: self.smt_share,
            clocks,
            capacity: self.capacities.get(core % self.of_package).copied().unwrap_or(1.0),
        }
    }

    /// How long the core stands still when software changes the clock.
    pub(super) fn stall(&self) -> Picos {
        self.stall
    }

    /// The time from one decision of the power control about clocks that software asks to raise to
    /// the next; 0 if they are raised at once.
    pub(super) fn raise_period(&self) -> Picos {
        self.raise_period
    }

    /// How long the processor holds a level.
    pub(super) fn hold(&self) -> Nanos {
        self.hold
    }

    /// The idle time from which a core is in the idle state that the fastest P-states need; `None`
    /// if they need none.
    pub(super) fn deep_from(&self) -> Option<Picos> {
        self.deep_from
    }

    /// How long a core takes to wake up that waits by MWAIT: in the shallowest idle state.
    pub(super) fn mwait(&self) -> Picos {
        self.mwait
    }

    /// How long a core takes to wake up that was idle for so long.
    pub(super) fn wake_up(&self, idle: Picos) -> Picos {
        let deepest = self.idle_states.iter().rev().find(|(pays_from, _)| *pays_from <= idle);
        deepest.map_or(Picos::ZERO, |(_, wakes)| *wakes)
    }
}

/// Work per cycle of each core of a package that is in a cluster.
fn capacities(model: &Model) -> Vec<f64> {
    let ratio = |cluster: &Cluster| cluster.capacity_ratio.as_ref().map_or(1.0, |of| of.value);
    model.clusters_of_cores().map(|(_, cluster)| ratio(cluster)).collect()
}

/// The wake-up time of an idle state (ns).
fn exit(state: &CState) -> u64 {
    state.exit_ns.value
}

/// The idle time from which an idle state pays.
fn pays_from(state: &CState) -> Picos {
    let ns = state.residency_ns.as_ref().map_or(state.exit_ns.value, |residency| residency.value);
    Nanos::from_ns(ns).picos()
}

/// The idle time from which a core is in the idle state that the model's fastest P-states need, if
/// they need one. Where cores enter no idle states, every idle core counts.
fn deep_from(model: &Model, has_idle_states: bool) -> Option<Picos> {
    let needed = model.pstates.iter().find_map(|state| state.needs_idle.as_ref())?;
    if !has_idle_states {
        return Some(Picos::ZERO);
    }
    model.cstates.iter().find(|state| state.name == needed.value).map(pays_from)
}

/// The model's idle states as (time from which they pay, wake-up time), by rising time.
fn idle_states(model: &Model) -> Vec<(Picos, Picos)> {
    let state = |state: &CState| (pays_from(state), Nanos::from_ns(exit(state)).picos());
    let mut states: Vec<(Picos, Picos)> = model.cstates.iter().map(state).collect();
    states.sort_unstable();
    states
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use dimmer_processor::model::builtin;

    use super::*;

    fn processor(name: &str, settings: &Settings) -> Processor {
        let model = Model::parse(Path::new(name), builtin(name).unwrap()).unwrap();
        Processor::new(&model, settings).unwrap()
    }

    #[test]
    fn a_governor_in_software_sits_on_reduced_clocks() {
        let [l1, l2] = [1, 2].map(LicenseLevel::new);
        let processor = processor("i9-7940x", &Settings::default());
        assert!(processor.ghz(L0, 1) > processor.ghz(l1, 1));
        assert!(processor.ghz(l1, 1) > processor.ghz(l2, 1));
        assert!(processor.governed_ghz(l2, L0, 1) > processor.ghz(l2, 1));
        assert!(processor.governed_ghz(l2, l2, 1) <= processor.ghz(l2, 1));
        assert_eq!((processor.slower(L0, 1), processor.levels()), (0.0, 3));
        let ratio = processor.ghz(L0, 1) / processor.ghz(l2, 1);
        assert!((processor.slower(l2, 1) - (ratio - 1.0)).abs() < 1e-12);
    }

    #[test]
    fn the_deepest_idle_state_that_pays_is_woken_from() {
        let off = processor("i9-7940x", &Settings::default());
        assert_eq!(off.wake_up(Picos::MAX), Picos::ZERO);
        let settings = Settings { idle_states: true, ..Settings::default() };
        let on = processor("i9-7940x", &settings);
        assert_eq!(on.wake_up(Picos::ZERO), Picos::ZERO);
        let wakes: Vec<Picos> =
            [1e3, 1e4, 1e5, 1e6].map(|ns| on.wake_up(Picos::from_ns(ns))).into();
        assert!(wakes.is_sorted() && wakes[3] > wakes[0], "{wakes:?}");
    }
}
