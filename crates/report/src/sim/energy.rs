//! The energy that a workload takes. `docs/sim-json.md` describes the keys.

use dimmer_processor::model::Model;
use dimmer_sim::scenario::Outcome;
use dimmer_sim::{CoreEnergy, Moment, PackageEnergy};
use serde::Serialize;

use super::US;

/// Energy of a package.
#[derive(Debug, Serialize)]
pub(super) struct Package {
    joules: f64,
    mean_watts: f64,
    waiting_joules: f64,
}

/// Energy of a core, beyond what it takes while it waits.
#[derive(Debug, Serialize)]
pub(super) struct Core<'a> {
    joules: f64,
    mean_watts: f64,
    pstates: Vec<AtPState<'a>>,
}

#[derive(Debug, Serialize)]
struct AtPState<'a> {
    name: &'a str,
    time_us: f64,
    joules: f64,
}

/// Average power from 0 to `end`; 0 if that is no time.
fn mean_watts(joules: f64, end: Moment) -> f64 {
    if end > 0 { joules / (end as f64 * US * 1e-6) } else { 0.0 }
}

impl Package {
    pub(super) fn new(energy: &PackageEnergy, end: Moment) -> Self {
        let PackageEnergy { joules, waiting_joules } = *energy;
        Self { joules, mean_watts: mean_watts(joules, end), waiting_joules }
    }
}

impl<'a> Core<'a> {
    pub(super) fn new(energy: &CoreEnergy, model: &'a Model, end: Moment) -> Self {
        let pstates = model.pstates.iter().zip(&energy.pstates).map(|(state, at)| AtPState {
            name: &state.name,
            time_us: at.time as f64 * US,
            joules: at.joules,
        });
        let (joules, pstates) = (energy.joules, pstates.collect());
        Self { joules, mean_watts: mean_watts(joules, end), pstates }
    }
}

/// The energy of packages and of their cores, or the reason why it is unknown.
pub(super) fn text(outcome: &Outcome) -> String {
    let energy = match &outcome.energy {
        Ok(energy) => energy,
        Err(error) => return format!("\nNo energy: {error}.\n"),
    };
    let mut text = String::from("\n");
    for (index, package) in energy.packages.iter().enumerate() {
        let PackageEnergy { joules, waiting_joules } = *package;
        text.push_str(&format!(
            "Package {index}: {}, {:.1} W on average; {} of it would have gone if all of its cores had waited\n",
            told(joules),
            mean_watts(joules, outcome.end),
            told(waiting_joules),
        ));
    }
    for (index, core) in energy.cores.iter().enumerate().filter(|(_, core)| core.joules > 0.0) {
        text.push_str(&format!(
            "Core {index}: {} more than waiting, {:.1} W on average\n",
            told(core.joules),
            mean_watts(core.joules, outcome.end),
        ));
    }
    if let Some(told) = told_unknown(&energy.unknown_states) {
        text.push_str(&format!("{told}\n"));
    }
    text
}

/// What the energy does not include about idle states, if anything.
pub(crate) fn told_unknown(states: &[String]) -> Option<String> {
    let states = states.join(", ");
    (!states.is_empty()).then(|| {
        format!(
            "Idle cores count as waiting: what they take in the model's idle states ({states}) is not known."
        )
    })
}

/// An energy with a suitable unit.
fn told(joules: f64) -> String {
    match joules {
        joules if joules >= 1.0 => format!("{joules:.3} J"),
        joules if joules >= 1e-3 => format!("{:.3} mJ", joules * 1e3),
        joules => format!("{:.3} µJ", joules * 1e6),
    }
}
