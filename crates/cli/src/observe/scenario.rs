//! `dimmer observe --scenario`: writes the scenario, after a simulation of it and of the recorded
//! steps.

use std::path::Path;
use std::time::{Duration, SystemTime};

use dimmer_processor::model::{Model, Sourced};
use dimmer_report::observe::Run;
use dimmer_report::observe::scenario::{Check, Traced, Written};
use dimmer_sim::scenario::{Outcome, Scenario};
use dimmer_sim::{Governor, Picos};

use crate::args::Observe;
use crate::bad_input;
use crate::model;
use crate::output::Output;

/// The model of a scenario if no other is known: the processor of most papers' experiments.
const MODEL: &str = "i9-7940x";

/// The seed of the simulations that check a scenario.
const SEED: u64 = 1;

/// Writes a scenario of this run.
///
/// # Errors
/// If the trace is not enough for one, or the file cannot be written.
pub(super) fn write(
    to: Output,
    arguments: &Observe,
    run: &Run<'_>,
    in_kernel: Duration,
    begun: SystemTime,
) -> anyhow::Result<()> {
    let name = arguments.model.name().unwrap_or(MODEL);
    let model = model::read(name)?;
    let time = humantime::format_rfc3339_seconds(begun).to_string();
    let written = Written::new(Traced {
        run,
        in_kernel,
        date: time.split('T').next().unwrap_or_default(),
        model: name,
        cores: cores(&model),
        request: arguments.request.as_deref(),
    });
    let written = written.map_err(bad_input)?;
    let check = above_lowest(&written.recorded(), &model)
        .zip(above_lowest(&written.text(None), &model))
        .map(|(recorded, scenario)| Check { recorded, scenario });
    to.write(&written.text(check))
}

/// The cores of a model; one if it does not give their number.
fn cores(model: &Model) -> usize {
    let number = |of: &Option<Sourced<u32>>| of.as_ref().map_or(1, |number| number.value);
    let all = number(&model.shape.packages).saturating_mul(number(&model.shape.cores));
    usize::try_from(all).unwrap_or(usize::MAX)
}

/// The share of the time in which cores execute code above the lowest level, in a simulation;
/// `None` if the model lacks what it takes.
fn above_lowest(text: &str, model: &Model) -> Option<f64> {
    let scenario = Scenario::parse(Path::new("scenario"), text).ok()?;
    let run = scenario.run(model, Governor::Hardware, SEED, (), &|_| false);
    let (outcome, ()) = run.ok()?;
    Some(share_above(&outcome))
}

fn share_above(outcome: &Outcome) -> f64 {
    let sum = |from: usize| {
        let levels = outcome.cores.iter().flat_map(|core| core.level.iter().skip(from));
        levels.copied().map(Picos::ns).sum::<f64>()
    };
    let (all, above) = (sum(0), sum(1));
    if all > 0.0 { above / all } else { 0.0 }
}
