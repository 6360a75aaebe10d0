//! What runs assume where their model lacks values.

use dimmer_policy::license::Demand;
use dimmer_policy::license::hardware::Rules;
use dimmer_processor::model::{Assumed, Missing, Model};
use dimmer_processor::units::LicenseLevel;

use super::{Scenario, Thread};
use crate::program::Operation;
use crate::{Clocks, Governor, Segment, Specialise, Step};

/// What is used in the place of values that the model lacks, as far as this code depends on them on
/// this number of cores, under these governors; empty if the model has all of them.
///
/// # Errors
/// If the model lacks a value for which nothing is assumed.
pub fn assumed(
    model: &Model,
    code: &[Segment],
    cores: u32,
    governors: &[Governor],
) -> Result<Vec<Assumed>, Missing> {
    let rules = Rules::new(model)?;
    let of_package = model.shape.cores.as_ref().map(|cores| cores.value);
    let active = cores.min(of_package.unwrap_or(cores));
    let demands: Vec<Demand> = code.iter().map(Segment::demand).collect();
    let highest = demands.iter().map(|demand| rules.level_of(demand)).max();
    let highest = highest.unwrap_or(LicenseLevel::new(0));
    let asks = |segment: &&Segment| rules.level_of(&segment.demand()).index() > 0;
    let asking: Vec<&Segment> = code.iter().filter(asks).collect();
    let mut assumed = Clocks::new(model, active)?.assumed(highest);
    assumed.extend(rules.assumed(&demands, active));
    let request = &model.request;
    if !asking.is_empty() && request.throttle_factor.is_none() {
        assumed.push(Assumed::new("request.throttle_factor", "1"));
    }
    let is_chained = asking.iter().any(|segment| segment.is_chained);
    if is_chained && request.chained_throttle_factor.is_none() {
        let used = request.throttle_factor.as_ref().map_or(1.0, |factor| factor.value);
        let value = format!("{used}, the throttle_factor");
        assumed.push(Assumed::new("request.chained_throttle_factor", value));
    }
    if governors.iter().any(|governor| *governor != Governor::Hardware) {
        let used = model.levels.iter().zip(0..=highest.index()).skip(1);
        let lacking = used.filter(|(level, _)| level.reduced_mhz.is_none());
        assumed.extend(lacking.map(|(level, _)| {
            let key = format!("level.reduced_mhz ({})", level.name);
            Assumed::new(key, "100 MHz below L0")
        }));
        let is_asked = highest.index() > 0 && model.transitions.is_empty();
        if is_asked && model.clock.raise_period_ns.is_none() {
            let value = "none: what software raises is raised at once";
            assumed.push(Assumed::new("clock.raise_period_ns", value));
        }
    }
    if of_package.is_none() && cores > 1 {
        let value = format!("{cores}, in one package");
        assumed.push(Assumed::new("topology.cores", value));
    }
    Ok(assumed)
}

impl Scenario {
    /// What is used in the place of values that the model lacks, as far as the scenario depends on
    /// them under these governors; empty if the model has all of them. `docs/model.md` has the list
    /// ("Missing values").
    ///
    /// # Errors
    /// If the model lacks a value for which nothing is assumed.
    pub fn assumed(&self, model: &Model, governors: &[Governor]) -> Result<Vec<Assumed>, Missing> {
        let segments: Vec<Segment> = self.segments().collect();
        let mut assumed = assumed(model, &segments, self.cores, governors)?;
        assumed.extend(self.assumed_of_pstates(model));
        assumed.extend(self.assumed_of_moves(model));
        assumed.extend(self.assumed_of_traps());
        Ok(assumed)
    }

    /// The code of all threads.
    pub(super) fn segments(&self) -> impl Iterator<Item = Segment> {
        self.steps().filter_map(|step| match step {
            Step::Run(segment) => Some(*segment),
            _ => None,
        })
    }

    /// What changes of the P-state take where the model does not say it, if threads request any.
    fn assumed_of_pstates(&self, model: &Model) -> Vec<Assumed> {
        if self.pstates.is_empty() {
            return Vec::new();
        }
        let mut assumed = Vec::new();
        for one in &model.transitions {
            let mut lacks = |key: &str, value: &str| {
                let key = format!("transition.{key} ({} to {})", one.from, one.to);
                assumed.push(Assumed::new(key, value));
            };
            if one.request_ns.is_none() {
                lacks("request_ns", "1000 ns");
            }
            if one.total_ns.is_none() {
                lacks("total_ns", "the time of the request");
            }
        }
        assumed
    }

    /// What taking over threads costs where the model does not say it, if threads may change their
    /// CPU.
    fn assumed_of_moves(&self, model: &Model) -> Vec<Assumed> {
        let cpus = self.cores * self.threads_per_core;
        let migrates = |thread: &Thread| {
            let mut steps = thread.steps.operations.iter().filter_map(Operation::step);
            steps.any(|step| matches!(step, Step::Go(_)))
        };
        let free = self.threads.iter().filter(|thread| thread.cpu.is_none() || migrates(thread));
        if cpus < 2 || free.clone().next().is_none() {
            return Vec::new();
        }
        let is_cached = free.clone().any(|thread| thread.cached_kib > 0) && self.cores > 1;
        let packages = model.shape.cores.as_ref().map_or(1, |of| self.cores.div_ceil(of.value));
        let needed = [
            (true, "thread by the kernel"),
            (is_cached && !model.clusters.is_empty(), "cache-line within a cluster"),
            (is_cached, "cache-line within a package"),
            (is_cached && packages > 1, "cache-line between packages"),
        ];
        let is_lacking = |kind: &str| model.price(kind).is_none();
        let lacking = needed.iter().filter(|(is_needed, kind)| *is_needed && is_lacking(kind));
        lacking.map(|(_, kind)| Assumed::new(format!("move.ns ({kind})"), "0 ns")).collect()
    }

    /// What moving a thread to a wide core costs besides, which no model says, if there are any.
    fn assumed_of_traps(&self) -> Vec<Assumed> {
        let guesses = [
            ("a trap at wide code", Specialise::TRAP_NS),
            ("interrupting a wide core", Specialise::INTERRUPT_NS),
        ];
        let guessed = |(what, ns): (&str, f64)| Assumed::new(what, format!("{ns} ns, a guess"));
        guesses.into_iter().filter(|_| self.wide_cores.is_some()).map(guessed).collect()
    }
}
