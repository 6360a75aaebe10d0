//! What a simulation assumes where its model lacks a value. `docs/sim-json.md` describes the keys.

use dimmer_processor::model::{Assumed, Model};
use dimmer_sim::Governor;
use dimmer_sim::scenario::Scenario;
use serde::Serialize;

/// A value that the model lacks, and what is used in its place.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Assumption {
    pub(crate) key: String,
    pub(crate) value: String,
}

/// What the scenario assumes under these governors.
pub(crate) fn assumptions(
    scenario: &Scenario,
    model: &Model,
    governors: &[Governor],
) -> Vec<Assumption> {
    // A model that lacks a value for which nothing is assumed has no results.
    let assumed = scenario.assumed(model, governors).unwrap_or_default();
    assumed.into_iter().map(|Assumed { key, value }| Assumption { key, value }).collect()
}

/// The assumptions as text; empty if there are none.
pub(crate) fn told(assumptions: &[Assumption]) -> String {
    if assumptions.is_empty() {
        return String::new();
    }
    let each = assumptions.iter().map(|Assumption { key, value }| format!("  {key}: {value}\n"));
    format!("Assumed, because the model does not say it:\n{}", each.collect::<String>())
}
