//! Two kinds of cores, and moving between them: what a threshold for least energy depends on.

use dimmer_processor::divisors::Divisors;
use dimmer_processor::model::{Missing, Model, PState};
use dimmer_processor::supply::{Activity, CoreState, SupplyPower};
use dimmer_processor::units::{MilliWatts, Nanos, whole};

use super::Core;

/// A kind of core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kind {
    /// How long CPU-bound code takes, over its time on the fast core. Finite, above 0.
    pub cpu_factor: f64,
    /// How long memory-bound code takes, over its time on the fast core. Finite, above 0.
    pub memory_factor: f64,
    /// The power of all that counts while CPU-bound code runs there, including that of the core
    /// that waits meanwhile.
    pub cpu_power: MilliWatts,
    /// The same while memory stalls the core.
    pub memory_power: MilliWatts,
}

/// Two kinds of cores, and moving between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// The fast core. Where the graph was measured there, its factors are 1.
    pub fast: Kind,
    /// The slow core.
    pub slow: Kind,
    /// The time of one migration, in which the program does not run. It takes the power of the fast
    /// core with CPU-bound code.
    pub migration: Nanos,
}

impl Machine {
    /// A package of this model with one core in each of these P-states, of which one executes and
    /// the other waits by MWAIT. The others are idle in the slow P-state. Where cores divide the
    /// clock of the fastest one, the slow one has the clock that it gets beside the fast one.
    /// Memory is as fast for either (paper 004 §3.1).
    ///
    /// # Errors
    /// [`Missing`]: the model does not have the power of its cores by voltage (`[supply]`).
    pub fn of(
        model: &Model,
        fast: &PState,
        slow: &PState,
        migration: Nanos,
    ) -> Result<Self, Missing> {
        let missing = || Missing {
            model: model.identity.name.clone(),
            key: "supply",
            needed_for: "the energy",
        };
        let power = SupplyPower::new(model).ok_or_else(missing)??;
        let ghz = |state: &PState| state.mhz.value as f64 / 1000.0;
        let fast_ghz = ghz(fast);
        let divisors = Divisors::new(model);
        let slow_ghz = divisors.map_or(ghz(slow), |divisors| divisors.ghz(ghz(slow), fast_ghz));
        let mw = |executing: Core, core: f64| {
            let state = |of: Core, ghz| {
                let executes = (of == executing).then_some(Activity { core, ..Activity::BUSY });
                CoreState { ghz, executes, waits: executes.is_none() }
            };
            let idle = CoreState { ghz: slow_ghz, executes: None, waits: false };
            let both = [state(Core::Fast, fast_ghz), state(Core::Slow, slow_ghz)];
            let cores = model.shape.cores.as_ref().map_or(2, |cores| cores.value as usize);
            let others = std::iter::repeat_n(idle, cores.saturating_sub(2));
            let states: Vec<CoreState> = both.into_iter().chain(others).collect();
            let of_cores = (0..states.len()).map(|core| power.core_mw(core, &states));
            MilliWatts::from_mw(whole(power.package_mw(&states) + of_cores.sum::<f64>()))
        };
        let kind = |core: Core, cpu_factor| Kind {
            cpu_factor,
            memory_factor: 1.0,
            cpu_power: mw(core, 1.0),
            memory_power: mw(core, power.stalled()),
        };
        Ok(Self {
            fast: kind(Core::Fast, 1.0),
            slow: kind(Core::Slow, fast_ghz / slow_ghz),
            migration,
        })
    }

    pub(super) fn kind(&self, core: Core) -> &Kind {
        match core {
            Core::Fast => &self.fast,
            Core::Slow => &self.slow,
        }
    }
}

#[cfg(test)]
mod tests {
    use dimmer_processor::model::{Domain, builtin};

    use super::*;

    fn model(name: &str) -> Model {
        Model::parse(std::path::Path::new(name), builtin(name).unwrap()).unwrap()
    }

    fn of(model: &Model) -> Result<Machine, Missing> {
        let [fast, .., slow] = model.pstates.as_slice() else { panic!("two P-states") };
        Machine::of(model, fast, slow, Nanos::from_ns(500))
    }

    #[test]
    fn a_slow_core_beside_a_fast_one_has_a_divided_clock() {
        let mut model = model("ryzen-1600x");
        let machine = of(&model).unwrap();
        assert!((machine.slow.cpu_factor - 2.5).abs() < 1e-9, "{machine:?}");
        model.clock.divisor_step = None;
        let machine = of(&model).unwrap();
        assert!((machine.slow.cpu_factor - 3600.0 / 833.0).abs() < 1e-9, "{machine:?}");
        assert_eq!((machine.fast.cpu_factor, machine.slow.memory_factor), (1.0, 1.0));
    }

    #[test]
    fn a_core_with_a_voltage_of_its_own_takes_less_power() {
        let mut model = model("ryzen-1600x");
        let one_rail = of(&model).unwrap();
        model.supply.domain.as_mut().unwrap().value = Domain::Core;
        let own = of(&model).unwrap();
        assert!(own.slow.cpu_power < one_rail.slow.cpu_power, "{own:?} {one_rail:?}");
        assert!(own.slow.memory_power < own.slow.cpu_power);
        assert!(own.slow.cpu_power < own.fast.cpu_power);
    }

    #[test]
    fn a_model_without_power_is_refused_by_its_missing_key() {
        let error = of(&model("fx-8120")).unwrap_err();
        assert!(error.to_string().contains("supply"), "{error}");
    }
}
