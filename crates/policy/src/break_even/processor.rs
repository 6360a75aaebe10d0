//! The boosts of paper 002 on a processor, with the costs that its model gives.

use dimmer_processor::model::{Model, PState};
use dimmer_processor::units::{KiloHertz, Nanos, Picos};

use super::{Boost, Costs, NoBoost};

/// The two boosts of paper 002, section 4.4, on a processor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Boosts<'a> {
    /// The slowest P-state.
    pub slow: &'a PState,
    /// The P-state of the base clock.
    pub base: &'a PState,
    /// The next faster one.
    pub step: &'a PState,
    /// The fastest one.
    pub turbo: &'a PState,
    /// The strategy `ownr`: from the slowest P-state to the fastest one, and then the base.
    pub owner: Boost,
    /// One step: from the base to the next faster P-state and back.
    pub one_step: Boost,
}

/// What a model lacks for the break-even of a boost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the model of {model} lacks {}, which the break-even of a boost needs", lacks.join(", "))]
pub struct Lacks {
    /// The model's name.
    pub model: String,
    /// What it lacks, by keys of its file.
    pub lacks: Vec<String>,
}

impl<'a> Boosts<'a> {
    /// The boosts on this processor. A change to a slower P-state without `request_ns` is assumed
    /// to occupy the core for all of its time (assumption 4 of the paper).
    ///
    /// # Errors
    /// [`Lacks`] names the first key that is missing, or all missing changes between P-states.
    pub fn new(model: &'a Model) -> Result<Self, Lacks> {
        let error = |lacks| Lacks { model: model.identity.name.clone(), lacks };
        let one = |lacks: &str| error(vec![lacks.to_owned()]);
        let base_mhz = model.clock.base_mhz.as_ref().ok_or_else(|| one("`clock.base_mhz`"))?.value;
        let (Some(turbo), Some(slow)) = (model.pstates.first(), model.pstates.last()) else {
            return Err(one("`[[pstate]]`"));
        };
        let base = model.pstates.iter().position(|state| state.mhz.value == base_mhz);
        let base = base.ok_or_else(|| one("a `[[pstate]]` of the clock `base_mhz`"))?;
        let faster = base.checked_sub(1).and_then(|faster| model.pstates.get(faster));
        let step = faster.ok_or_else(|| one("a `[[pstate]]` above `base_mhz`"))?;
        let base = &model.pstates[base];

        let mut changes = Changes { model, lacks: Vec::new() };
        let owner = Costs { down: changes.down(base, slow), ..changes.costs([slow, turbo, base]) };
        let one_step = changes.costs([base, step, base]);
        if !changes.lacks.is_empty() {
            return Err(error(changes.lacks));
        }
        let boost = |[waiting, boosted]: [&PState; 2], costs| {
            let clock = |state: &PState| KiloHertz::from_mhz(state.mhz.value);
            Boost::new(clock(waiting), clock(base), clock(boosted), costs)
        };
        let unordered = |_: NoBoost| one("`[[pstate]]` in the order of their clocks");
        Ok(Self {
            slow,
            base,
            step,
            turbo,
            owner: boost([slow, turbo], owner).map_err(unordered)?,
            one_step: boost([base, step], one_step).map_err(unordered)?,
        })
    }
}

/// The changes between P-states, and what was asked for and is missing.
struct Changes<'a> {
    model: &'a Model,
    lacks: Vec<String>,
}

impl Changes<'_> {
    /// The costs of a boost from the first of these P-states to the second, then to the third,
    /// without that of the request for the first.
    fn costs(&mut self, [waiting, boosted, normal]: [&PState; 3]) -> Costs {
        let [request, total] = self.up(waiting, boosted);
        let back = self.down(boosted, normal);
        Costs { request, ramp: total - request, back, down: Picos::ZERO }
    }

    /// How long the request for a faster P-state occupies the core, and all of the change.
    fn up(&mut self, from: &PState, to: &PState) -> [Picos; 2] {
        let [request, total] = self.times(from, to);
        [self.known(request, "request_ns", from, to), self.known(total, "total_ns", from, to)]
    }

    /// How long the request for a slower P-state occupies the core.
    fn down(&mut self, from: &PState, to: &PState) -> Picos {
        if from.name == to.name {
            return Picos::ZERO;
        }
        let [request, total] = self.times(from, to);
        self.known(request.or(total), "request_ns` or `total_ns", from, to)
    }

    /// How long the request takes, and all of the change (ns).
    fn times(&self, from: &PState, to: &PState) -> [Option<u64>; 2] {
        let mut transitions = self.model.transitions.iter();
        let found = transitions.find(|one| one.from == from.name && one.to == to.name);
        let value = |ns: &dimmer_processor::model::Sourced<u64>| ns.value;
        found.map_or([None; 2], |one| {
            [one.request_ns.as_ref().map(value), one.total_ns.as_ref().map(value)]
        })
    }

    /// This time, if it is known; else it is noted as missing.
    fn known(&mut self, ns: Option<u64>, key: &str, from: &PState, to: &PState) -> Picos {
        if ns.is_none() {
            let (from, to) = (&from.name, &to.name);
            let lacks = format!("`{key}` of a `[[transition]]` from {from} to {to}");
            if !self.lacks.contains(&lacks) {
                self.lacks.push(lacks);
            }
        }
        Nanos::from_ns(ns.unwrap_or_default()).picos()
    }
}
