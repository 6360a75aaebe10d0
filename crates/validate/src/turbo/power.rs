//! Power of a package whose modules may be in the deep idle state that threads reach by `futex`
//! (paper 002 §4.2). No load of table 2 has such modules, so the simulator's energy does not know
//! them.
//!
//! What is used is what the paper states: 14.24 W for the northbridge, P = V² f C for each module
//! (§2.1), with the C of arithmetic on all modules (table 2), and a voltage for all that is that of
//! the fastest one. A module halts if neither of its cores executes. A module that waits in a
//! shallower state takes as much as one by `mwait`, which the loads of one core give: a third of
//! what these leave beside the northbridge and the module at work. One in the deep state takes
//! nothing. The paper does not have the power of a module of which one core works: it is taken for
//! that of two.

use dimmer_processor::model::Model;
use dimmer_processor::power::PowerCurve;
use dimmer_processor::units::Nanos;
use dimmer_sim::Moment;

/// Power of the northbridge (W): paper 002 §2.1.
const NORTHBRIDGE_W: f64 = 14.24;

/// Cores of a module.
const CORES: usize = 2;

/// Modules and what they take.
#[derive(Debug)]
pub(super) struct Modules {
    curve: PowerCurve,
    /// Clocks (GHz) with their voltages (V), fastest first.
    volts: Vec<(f64, f64)>,
    count: usize,
    /// C (W for 1 V² and 1 GHz).
    switched: f64,
    /// Whether a module at work takes no more than one that waits by `mwait`, the least that the
    /// loads leave.
    is_least: bool,
    /// The idle time from which a core is in the deep state.
    deep_from: Nanos,
}

/// What a core does, from a moment on.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Core {
    Executes { ghz: f64 },
    Waits,
    IsDeep,
}

impl Modules {
    /// Those of a model; `None` if it lacks what their power follows from.
    pub(super) fn new(model: &Model, is_least: bool) -> Option<Self> {
        let count = model.clusters.len();
        let volt = |state: &dimmer_processor::model::PState| {
            Some((state.mhz.value as f64 / 1e3, state.mv.as_ref()?.value as f64 / 1e3))
        };
        let volts: Vec<(f64, f64)> = model.pstates.iter().filter_map(volt).collect();
        let base = model.clock.base_mhz.as_ref()?.value as f64 / 1e3;
        let (_, base_volts) = *volts.iter().find(|(ghz, _)| *ghz == base)?;
        let curve = PowerCurve::new(model).ok()?;
        let all_w = curve.package_mw(base, &vec![base; CORES * count])? / 1e3;
        let module_w = (all_w - NORTHBRIDGE_W) / count as f64;
        let deep = model.cstates.last()?;
        let deep_from = deep.residency_ns.as_ref().map_or(deep.exit_ns.value, |ns| ns.value);
        Some(Self {
            curve,
            volts,
            count,
            switched: module_w / (base_volts * base_volts * base),
            is_least,
            deep_from: Nanos::from_ns(deep_from),
        })
    }

    /// The mean power from one moment to another (W).
    ///
    /// * `clocks`: each change of a core's clock (GHz), 0 if it executes nothing.
    pub(super) fn watts(&self, clocks: &[(Moment, usize, f64)], window: [Moment; 2]) -> f64 {
        let mut cores = vec![Core::Waits; CORES * self.count];
        let mut joules = 0.0;
        let mut since = window[0];
        let mut rail = self.volts.last().map_or(0.0, |(ghz, _)| *ghz);
        for (at, core, state) in self.changes(clocks) {
            let until = at.clamp(since, window[1]);
            joules += self.power(&cores, rail) * (until - since).ns();
            since = until;
            cores[core] = state;
            rail = fastest(&cores).unwrap_or(rail);
        }
        joules += self.power(&cores, rail) * (window[1] - since).ns();
        joules / (window[1] - window[0]).ns()
    }

    /// What cores do, and from when on, in the order of time.
    fn changes(&self, clocks: &[(Moment, usize, f64)]) -> Vec<(Moment, usize, Core)> {
        let mut changes = Vec::new();
        for core in 0..CORES * self.count {
            let mut own: Vec<(Moment, f64)> = vec![(Moment::START, 0.0)];
            own.extend(clocks.iter().filter(|one| one.1 == core).map(|(at, _, ghz)| (*at, *ghz)));
            own.dedup_by_key(|(_, ghz)| *ghz);
            for (index, (at, ghz)) in own.iter().enumerate() {
                let state = if *ghz > 0.0 { Core::Executes { ghz: *ghz } } else { Core::Waits };
                changes.push((*at, core, state));
                let deep = *at + self.deep_from.picos();
                let ends = own.get(index + 1).is_some_and(|(next, _)| *next <= deep);
                if state == Core::Waits && !ends {
                    changes.push((deep, core, Core::IsDeep));
                }
            }
        }
        changes.sort_by_key(|(at, ..)| *at);
        changes
    }

    /// Power of the package (W), at the voltage of this clock.
    fn power(&self, cores: &[Core], rail: f64) -> f64 {
        let loads = self.curve.package_mw(rail, &[rail]).map_or(f64::NAN, |mw| mw / 1e3);
        let loads = loads - NORTHBRIDGE_W;
        let volts = self.volts(rail);
        let works = |ghz: f64| match self.is_least {
            true => loads / self.count as f64,
            false => volts * volts * ghz * self.switched,
        };
        let waits = (loads - works(rail)) / (self.count - 1) as f64;
        let module = |cores: &[Core]| match fastest(cores) {
            Some(ghz) => works(ghz),
            None if cores.iter().all(|core| *core == Core::IsDeep) => 0.0,
            None => waits,
        };
        NORTHBRIDGE_W + cores.chunks(CORES).map(module).sum::<f64>()
    }

    /// The voltage of a clock: that of P-states, linear between them.
    fn volts(&self, ghz: f64) -> f64 {
        let above = self.volts.iter().rfind(|(of, _)| *of >= ghz);
        let below = self.volts.iter().find(|(of, _)| *of <= ghz);
        match (above, below) {
            (Some((high, most)), Some((low, least))) if high > low => {
                least + (most - least) * (ghz - low) / (high - low)
            }
            (Some((_, volts)), _) => *volts,
            _ => f64::NAN,
        }
    }
}

/// The clock of the fastest core that executes (GHz).
fn fastest(cores: &[Core]) -> Option<f64> {
    let clock = |core: &Core| match core {
        Core::Executes { ghz } => Some(*ghz),
        Core::Waits | Core::IsDeep => None,
    };
    cores.iter().filter_map(clock).reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Paper;

    fn modules() -> Modules {
        Modules::new(&Paper::Turbo.model().unwrap(), false).unwrap()
    }

    fn at(us: u64) -> Moment {
        Moment::START + Nanos::from_us(us).picos()
    }

    #[track_caller]
    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 0.01, "{found}, expected {expected}");
    }

    /// Table 2: one core at work while the others wait by mwait, and arithmetic on all.
    #[test]
    fn loads_without_deep_idle_modules_are_those_of_the_table() {
        let waits = [Core::Waits; 7];
        for (ghz, watts) in [(4.0, 120.1), (3.4, 116.5), (3.1, 90.9), (1.4, 32.8)] {
            let cores = [&[Core::Executes { ghz }][..], &waits].concat();
            close(modules().power(&cores, ghz), watts);
        }
        close(modules().power(&[Core::Executes { ghz: 3.1 }; 8], 3.1), 122.6);
    }

    /// 14.24 W and 27.09 W, which is (122.6 W - 14.24 W) / 4.
    #[test]
    fn modules_in_the_deep_state_take_nothing() {
        let mut cores = [Core::IsDeep; 8];
        close(modules().power(&cores, 3.1), 14.24);
        cores[3] = Core::Executes { ghz: 3.1 };
        close(modules().power(&cores, 3.1), 14.24 + 27.09);
        // Of the module beside it, one core is not deep yet.
        cores[4] = Core::Waits;
        close(modules().power(&cores, 3.1), 14.24 + 27.09 + (90.9 - 14.24 - 27.09) / 3.0);
    }

    /// A core that waits for 22 021 ns is in the deep state from then on.
    #[test]
    fn power_is_a_mean_over_time() {
        let modules = modules();
        let clocks = [(at(0), 0, 3.1), (at(100), 0, 0.0)];
        let [works, waits] = [27.09, (90.9 - 14.24 - 27.09) / 3.0];
        let waited = 22.021;
        let joules = 3.0 * waits * waited + works * 100.0 + waits * waited;
        close(modules.watts(&clocks, [at(0), at(200)]), 14.24 + joules / 200.0);
        close(modules.watts(&clocks, [at(50), at(100)]), 14.24 + works);
    }
}
