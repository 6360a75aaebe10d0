//! Mechanisms: what is done about wide SIMD code, as a scenario, a governor and what moves code.
//! `docs/study-json.md` describes how they are kept in the cache.

use dimmer_policy::server::loops::{thresholds, trials};
use dimmer_processor::model::Model;
use dimmer_processor::units::LicenseLevel;
use dimmer_sim::scenario::Scenario;
use dimmer_sim::{Governor, Guided, Moving, Settings, SimError, Specialising};
use serde::{Deserialize, Serialize};

/// The kind of move whose price a migrated call takes, each way.
const IN_USER_MODE: &str = "thread in user mode";

/// A mechanism of a study.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mechanism {
    /// Nothing is done: the processor governs its levels. All others are compared with it.
    #[default]
    None,
    /// The widest code in registers of half the width.
    Narrow,
    /// Calls of marked regions run on dedicated cores.
    Delegate,
    /// The same at the price of migrating a thread in user mode.
    Migrate,
    /// The daemon's loop decides which regions move.
    Trials,
    /// The loop of paper 001 decides which regions move.
    Thresholds,
    /// Wide cores as in paper 003.
    Specialise,
    /// Wide cores by Dimmer's rules.
    SpecialiseLearning,
    /// The same on the processor that paper 003 wishes for.
    SpecialiseTold,
    /// Threads with 512-bit code share a core with their like alone.
    CoreScheduling,
    /// Lock owners request clocks, as the scenario has it.
    Boost,
    /// Threads migrate at marks by a profile.
    Phases,
    /// Threads migrate at marks by what they learn.
    PhasesLearning,
    /// The governor of paper 000 §4.1.
    Avxfreq,
    /// The program announces its code to a governor.
    User,
    /// A governor that learns what will run.
    Predictive,
    /// A governor that knows what will run.
    Oracle,
}

/// What is simulated for a mechanism.
#[derive(Clone, Debug)]
pub struct Way {
    /// The workload.
    pub scenario: Scenario,
    /// What governs license levels.
    pub governor: Governor,
    /// What moves code.
    pub moving: Moving,
}

impl Way {
    /// The settings of the machine with a seed.
    ///
    /// # Errors
    /// As [`Scenario::settings`].
    pub fn settings(&self, model: &Model, seed: u64) -> Result<Settings, SimError> {
        self.scenario.settings(model, self.governor, self.moving, seed)
    }
}

impl Mechanism {
    /// All mechanisms, the one that the others are compared with first.
    pub const ALL: [Self; 17] = [
        Self::None,
        Self::Narrow,
        Self::Delegate,
        Self::Migrate,
        Self::Trials,
        Self::Thresholds,
        Self::Specialise,
        Self::SpecialiseLearning,
        Self::SpecialiseTold,
        Self::CoreScheduling,
        Self::Boost,
        Self::Phases,
        Self::PhasesLearning,
        Self::Avxfreq,
        Self::User,
        Self::Predictive,
        Self::Oracle,
    ];

    /// The name on the command line and in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Narrow => "narrow",
            Self::Delegate => "delegate",
            Self::Migrate => "migrate",
            Self::Trials => "trials",
            Self::Thresholds => "thresholds",
            Self::Specialise => "specialise",
            Self::SpecialiseLearning => "specialise-learning",
            Self::SpecialiseTold => "specialise-told",
            Self::CoreScheduling => "core-scheduling",
            Self::Boost => "boost",
            Self::Phases => "phases",
            Self::PhasesLearning => "phases-learning",
            Self::Avxfreq => "avxfreq",
            Self::User => "user",
            Self::Predictive => "predictive",
            Self::Oracle => "oracle",
        }
    }

    /// The mechanism in a few words.
    #[must_use]
    pub const fn summary(self) -> &'static str {
        match self {
            Self::None => {
                "the processor governs its license levels; the others are compared with it"
            }
            Self::Narrow => "the widest code in registers of half the width, at half the speed",
            Self::Delegate => "all calls of marked regions run on dedicated cores",
            Self::Migrate => "the same at the price of migrating a thread in user mode",
            Self::Trials => "the daemon's policy loop, `trials`, decides which regions move",
            Self::Thresholds => "the policy loop of paper 001 decides which regions move",
            Self::Specialise => "wide cores as in paper 003",
            Self::SpecialiseLearning => "wide cores whose number and phases follow the load",
            Self::SpecialiseTold => "the same on the processor that paper 003 wishes for",
            Self::CoreScheduling => "threads with 512-bit code share a core with their like alone",
            Self::Boost => "lock owners request clocks, as the scenario has it",
            Self::Phases => "threads migrate at marks by the scenario's profile",
            Self::PhasesLearning => "threads migrate at marks by what they learn",
            Self::Avxfreq => "the governor of paper 000 in the kernel, by counters and a timer",
            Self::User => "the program announces its code to the governor",
            Self::Predictive => "a governor that learns what will run",
            Self::Oracle => "a governor that knows what will run: a bound",
        }
    }

    /// The mechanism of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mechanism| mechanism.name() == name)
    }

    /// Whether no machine can have it today: it knows the future, or needs another processor. It is
    /// a bound for the others, and has no rank.
    #[must_use]
    pub const fn is_bound(self) -> bool {
        matches!(self, Self::Oracle | Self::SpecialiseTold)
    }

    /// What to simulate for it.
    ///
    /// # Errors
    /// Why it does not apply to the workload on the processor, in words.
    pub fn on(self, scenario: &Scenario, model: &Model) -> Result<Way, String> {
        self.fits(scenario, model)?;
        // Only `boost` runs the requests that a scenario's lock owners make.
        let is_boosted = scenario.has_locks() && scenario.requests_pstates();
        let plain = if is_boosted && self != Self::Boost {
            scenario.without_requests()
        } else {
            scenario.clone()
        };
        let scenario = match self {
            Self::Narrow => plain.narrowed().ok_or("no code is wider than 128 bits")?,
            Self::Migrate => {
                let lacks =
                    || format!("not simulated: the model has no price of a `{IN_USER_MODE}`");
                let price = model.price(IN_USER_MODE).ok_or_else(lacks)?;
                plain.with_hand_over_ns(2.0 * price.value)
            }
            _ => plain,
        };
        let governor = match self {
            Self::Avxfreq => Governor::AvxFreq,
            Self::User => Governor::User,
            Self::Predictive => Governor::Predictive,
            Self::Oracle => Governor::Oracle,
            _ => Governor::Hardware,
        };
        let moving = match self {
            Self::Delegate | Self::Migrate => Moving::Always,
            Self::Trials => Moving::Loop(&trials::DEFINITION),
            Self::Thresholds => Moving::Loop(&thresholds::DEFINITION),
            Self::Specialise => Moving::Specialise(Specialising::Paper),
            Self::SpecialiseLearning => Moving::Specialise(Specialising::Learning),
            Self::SpecialiseTold => Moving::Specialise(Specialising::Told),
            Self::CoreScheduling => Moving::CoreScheduling,
            Self::Phases => Moving::Phases(Guided::Profile),
            Self::PhasesLearning => Moving::Phases(Guided::Learning),
            _ => Moving::None,
        };
        let way = Way { scenario, governor, moving };
        let settings = way.settings(model, 1).map_err(|error| error.to_string())?;
        let machine = way.scenario.machine_of(model, settings, ());
        machine.map_err(|error| error.to_string())?;
        Ok(way)
    }

    /// # Errors
    /// Why there is nothing that the mechanism could act on.
    fn fits(self, scenario: &Scenario, model: &Model) -> Result<(), String> {
        let requires = |has: bool, why: &str| if has { Ok(()) } else { Err(why.to_owned()) };
        match self {
            Self::None | Self::Narrow | Self::Phases | Self::PhasesLearning => Ok(()),
            Self::Delegate | Self::Migrate | Self::Trials | Self::Thresholds => {
                requires(scenario.has_regions(), "the scenario has no marked regions to move")?;
                requires(scenario.cores() > 1, "the scenario has one core: none can be dedicated")
            }
            Self::Specialise | Self::SpecialiseLearning | Self::CoreScheduling => {
                requires(scenario.has_512_bit_code(), "no code has 512-bit registers")
            }
            Self::Boost => {
                requires(scenario.has_locks(), "the scenario has no locks to boost")?;
                let why =
                    "not simulated: no thread of the scenario requests a P-state at its locks";
                requires(scenario.requests_pstates(), why)
            }
            Self::SpecialiseTold | Self::Avxfreq | Self::User | Self::Predictive | Self::Oracle => {
                let highest = scenario.highest_level(model).map_err(|error| error.to_string())?;
                let why = "no code of the scenario asks for a license level on this model";
                requires(highest > LicenseLevel::new(0), why)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use dimmer_processor::model::builtin;

    use super::*;
    use crate::builtin::scenario;

    #[track_caller]
    fn check(mechanism: &str, name: &str, on: &str, expected: &str) {
        let scenario = scenario(name).unwrap();
        let model = Model::parse(Path::new(on), builtin(on).unwrap()).unwrap();
        let found = Mechanism::named(mechanism).unwrap().on(&scenario, &model);
        match found {
            Ok(way) => {
                assert_eq!(format!("{} {}", way.governor.name(), way.moving.name()), expected)
            }
            Err(why) => assert_eq!(why, expected),
        }
    }

    #[test]
    fn what_fits_is_what_simulator_and_daemon_run() {
        check("delegate", "nginx-avx512", "i9-7940x", "hardware always");
        check("trials", "nginx-avx512", "i9-7940x", "hardware trials");
        check("predictive", "nginx-avx512", "i9-7940x", "predictive none");
        check("specialise", "nginx-specialised", "xeon-gold-6130", "hardware specialise");
        check("phases", "phases-chase", "ryzen-1600x", "hardware phases");
        check("boost", "boosted-section", "fx-8120", "hardware none");
    }

    #[test]
    fn what_does_not_apply_has_its_reason() {
        let on = "i9-7940x";
        check(
            "delegate",
            "multiphase-worst-case",
            on,
            "the scenario has no marked regions to move",
        );
        check("boost", "nginx-avx512", on, "the scenario has no locks to boost");
        check("narrow", "phases-chase", "ryzen-1600x", "no code is wider than 128 bits");
        let none = "no code of the scenario asks for a license level on this model";
        check("oracle", "nginx-avx512", "zen-5", none);
        let muqss = "core specialisation needs `scheduler = \"muqss\"`, which knows classes of \
                     threads, in the scenario";
        check("specialise", "nginx-avx512", on, muqss);
        let few = "16 cores were asked for, but the model of Intel Core i9-7940X has 14";
        check("none", "nginx-specialised", on, few);
        let price = "not simulated: the model has no price of a `thread in user mode`";
        check("migrate", "nginx-avx512", on, price);
    }

    #[test]
    fn without_the_requests_of_its_lock_owners_a_scenario_is_another() {
        let scenario = scenario("boosted-section").unwrap();
        let model = Model::parse(Path::new("fx"), builtin("fx-8120").unwrap()).unwrap();
        let plain = Mechanism::None.on(&scenario, &model).unwrap().scenario;
        assert!(scenario.requests_pstates() && !plain.requests_pstates() && plain.has_locks());
    }

    #[test]
    fn narrower_code_asks_for_lower_levels() {
        let scenario = scenario("multiphase-worst-case").unwrap();
        let model = Model::parse(Path::new("i9"), builtin("i9-7940x").unwrap()).unwrap();
        let narrow = Mechanism::Narrow.on(&scenario, &model).unwrap().scenario;
        let level = |of: &Scenario| of.highest_level(&model).unwrap().index();
        assert_eq!((level(&scenario), level(&narrow)), (2, 1));
        assert!(scenario.has_512_bit_code() && !narrow.has_512_bit_code());
    }

    #[test]
    fn names_are_found_again() {
        for mechanism in Mechanism::ALL {
            assert_eq!(Mechanism::named(mechanism.name()), Some(mechanism));
        }
    }
}
