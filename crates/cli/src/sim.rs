//! `dimmer sim run`: simulates a workload on a processor model.

use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use dimmer_host::interrupt::Interrupt;
use dimmer_processor::model::Model;
use dimmer_report::sim::{Run, Trace};
use dimmer_sim::scenario::Scenario;
use dimmer_sim::{Governor, Moment, SimError};
use dimmer_study::builtin::{self, BuiltinError};

use crate::output::{self, Output};
use crate::{args, bad_input, input, model, progress};

pub(crate) fn run(arguments: &args::SimRun) -> anyhow::Result<ExitCode> {
    let json = arguments.json.open()?;
    let trace = arguments.trace.as_deref().map(Output::open).transpose()?;
    let is_piped = trace.as_ref().is_some_and(Output::is_standard);
    if is_piped && json.as_ref().is_some_and(Output::is_standard) {
        return Err(bad_input("--trace and --json: one of them goes to standard output, not both"));
    }
    let path = &arguments.scenario;
    let (scenario, model) = read(path, arguments.model.name())?;
    let governor = governor(arguments.governor);
    let moving = arguments.moving;
    let settings = scenario.settings(&model, governor, moving, arguments.seed);
    let settings = settings.map_err(|error| wrong(path, error))?;
    let interrupt = Interrupt::install().context("cannot handle signals")?;
    let traced = trace.is_some().then(Trace::default);
    let (bar, begun) = (progress::bar(1000), Instant::now());
    let stops = |now: Moment| {
        if let Some(end) = scenario.end().filter(|_| begun.elapsed() > progress::SHOWN_AFTER) {
            let done = now.since_start().as_f64() / end.since_start().as_f64();
            bar.set_position(progress::thousandths(done));
        }
        interrupt.is_set()
    };
    let ran = scenario.run_on(&model, settings, traced, &stops);
    bar.finish_and_clear();
    let (outcome, traced) = ran.map_err(|error| wrong(path, error))?;
    if let (Some(trace), Some(traced)) = (trace, traced) {
        trace.write(&traced.encode(&scenario, &model, &outcome))?;
    }
    let seed = arguments.seed;
    let run = Run { scenario: &scenario, model: &model, governor, moving, seed, outcome: &outcome };
    let text = if is_piped { String::new() } else { run.text(output::screen()) };
    output::show(json, &run.document(), &text)?;
    Ok(output::end(&interrupt))
}

/// Reads a scenario, and the model that it runs on.
pub(crate) fn read(path: &Path, model: Option<&str>) -> anyhow::Result<(Scenario, Model)> {
    let scenario = scenario(path)?;
    let model = match model {
        Some(model) => model::read(model)?,
        None => model::read(&scenario.model)
            .map_err(|error| bad_input(scenario.refuse_model(format_args!("{error:#}"))))?,
    };
    Ok((scenario, model))
}

/// A scenario cannot be simulated.
pub(crate) fn wrong(path: &Path, error: SimError) -> anyhow::Error {
    match error {
        // Names its file.
        SimError::Scenario(error) => bad_input(error),
        error => bad_input(format!("{}: {error}", path.display())),
    }
}

/// The scenario that comes with Dimmer and has this name, or that of this file.
pub(crate) fn scenario(path: &Path) -> anyhow::Result<Scenario> {
    match builtin::scenario(&path.to_string_lossy()) {
        Err(error @ BuiltinError::Unknown(_)) => {
            let found = std::fs::symlink_metadata(path);
            if found.is_err_and(|error| error.kind() == ErrorKind::NotFound) {
                return Err(bad_input(error));
            }
        }
        found => return found.map_err(bad_input),
    }
    let text = |path: &Path| input::text(path).map_err(|error| format!("{error:#}"));
    let scenario = Scenario::parse_with(path, &text(path).map_err(bad_input)?, &text);
    scenario.map_err(bad_input)
}

pub(crate) fn governor(governor: args::Governor) -> Governor {
    match governor {
        args::Governor::Hardware => Governor::Hardware,
        args::Governor::Avxfreq => Governor::AvxFreq,
        args::Governor::User => Governor::User,
        args::Governor::Oracle => Governor::Oracle,
        args::Governor::Predictive => Governor::Predictive,
    }
}
