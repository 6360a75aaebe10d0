//! The table `[phases]`: how threads migrate at marks.

use dimmer_policy::phases::{Leader, Mark, Plan, Profile, Settings, Threshold};
use dimmer_processor::model::Model;
use dimmer_processor::units::{Nanos, Time};
use serde::Deserialize;

use super::document::within;
use crate::region_moves::Guided;
use crate::{Guide, SimError};

/// The largest threshold, and value of a profile.
const MOST: f64 = 1e9;

/// The part of its speed that code keeps on a slow core where neither core is better, if the
/// scenario does not say. A guess: what many accept as the price of less power.
const KEEPS: f64 = 0.9;

/// The table as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PhasesDocument {
    fast_cpu: i64,
    slow_cpu: i64,
    threshold: f64,
    profile: Vec<(String, f64)>,
    keeps: Option<f64>,
}

/// How threads migrate at marks, apart from the numbers of these.
#[derive(Clone, Debug)]
pub(super) struct Phases {
    fast_cpu: usize,
    slow_cpu: usize,
    threshold: Threshold,
    profile: Profile,
    keeps: Threshold,
}

impl PhasesDocument {
    pub(super) fn check(self) -> Result<Phases, String> {
        let cpu = |key, cpu| within(key, cpu, 0_usize, usize::MAX);
        let value = |key: &str, value: f64| {
            let is_value = (0.0..=MOST).contains(&value);
            is_value
                .then_some(value)
                .ok_or_else(|| format!("`{key}` is {value}, expected a number from 0 to {MOST}"))
        };
        let mut profile = Profile::default();
        for (name, number) in &self.profile {
            let mark = mark(name)?;
            if profile.value(&mark).is_some() {
                return Err(format!("`profile` has mark `{name}` twice"));
            }
            profile.insert(mark, value("profile", *number)?);
        }
        let threshold = value("threshold", self.threshold)?;
        let keeps = self.keeps.unwrap_or(KEEPS);
        let is_part = (0.0..=1.0).contains(&keeps);
        let keeps = Threshold::new(keeps).filter(|_| is_part);
        Ok(Phases {
            keeps: keeps.ok_or("`keeps` is expected to be a part of speed, from 0 to 1")?,
            fast_cpu: cpu("fast_cpu", self.fast_cpu)?,
            slow_cpu: cpu("slow_cpu", self.slow_cpu)?,
            threshold: Threshold::new(threshold).ok_or("`threshold` is not finite")?,
            profile,
        })
    }
}

/// The mark of this name.
pub(super) fn mark(name: &str) -> Result<Mark, String> {
    Mark::new(name).map_err(|error| error.to_string())
}

impl Phases {
    /// Checks that the CPUs exist, and that threads pass the marks.
    pub(super) fn fits(&self, cpus: usize, marks: &[String]) -> Result<(), String> {
        for (key, cpu) in [("fast_cpu", self.fast_cpu), ("slow_cpu", self.slow_cpu)] {
            if cpu >= cpus {
                return Err(format!("`{key}` is {cpu}, expected 0 to {}", cpus - 1));
            }
        }
        if self.fast_cpu == self.slow_cpu {
            return Err("`fast_cpu` and `slow_cpu` are the same, expected two CPUs".to_owned());
        }
        let unknown =
            self.profile.values().find(|(mark, _)| !marks.iter().any(|known| known == mark.name()));
        match unknown {
            None => Ok(()),
            Some((mark, _)) => {
                Err(format!("`profile`: no step passes `{mark}`, expected {}", marks.join(", ")))
            }
        }
    }

    /// What a machine needs of it.
    ///
    /// * `marks`: the name of each mark, by its number.
    ///
    /// # Errors
    /// If the model lacks the price of a migration.
    pub(super) fn of_machine(
        &self,
        guided: Guided,
        marks: &[String],
        model: &Model,
    ) -> Result<crate::Phases, SimError> {
        const KIND: &str = "thread in user mode";
        let price = model.price(KIND);
        let ns = model.require(price, "move (thread in user mode)", "migrations at marks")?;
        let marks: Vec<Mark> = marks.iter().filter_map(|name| mark(name).ok()).collect();
        let cost = Nanos::rounded(*ns);
        let guide = match guided {
            Guided::Profile => {
                let settings = Settings::by_threshold(self.threshold, cost);
                Guide::Plan(Plan::of_profile(&self.profile, &marks, settings))
            }
            Guided::Learning => {
                let settings = Settings::learning(self.keeps, cost);
                Guide::Leader(Leader::new(settings, Time::START))
            }
        };
        Ok(crate::Phases { guide, fast_cpu: self.fast_cpu, slow_cpu: self.slow_cpu })
    }
}
