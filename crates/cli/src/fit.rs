//! `dimmer sim fit`: fits parameters of a scenario or of a model to measured values.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use dimmer_host::interrupt::Interrupt;
use dimmer_report::fit::Document;
use dimmer_study::fit::{Fit, FitError, Follower};

use crate::output::{self, Output};
use crate::{args, bad_input, exit, input, progress};

pub(crate) fn run(arguments: &args::Fit) -> anyhow::Result<ExitCode> {
    let json = arguments.json.open()?;
    let read = |path: &Path| input::text(path).map_err(|error| format!("{error:#}"));
    let fit = Fit::read(&arguments.fit, &read).map_err(bad_input)?;
    let (has_scenario, has_model) = fit.is_in();
    let files = [
        ("--emit-scenario", &arguments.emit_scenario, has_scenario),
        ("--emit-model", &arguments.emit_model, has_model),
    ];
    if let Some((option, ..)) = files.iter().find(|(_, file, has)| file.is_some() && !has) {
        return Err(bad_input(format!("{option}: no parameter is one of its keys")));
    }
    let [scenario, model] = files.map(|(_, file, _)| file.as_deref().map(Output::open).transpose());
    let (scenario, model) = (scenario?, model?);
    let to_standard = [&json, &scenario, &model].into_iter().flatten();
    if to_standard.filter(|output| output.is_standard()).count() > 1 {
        return Err(bad_input("one of --json and --emit-... goes to standard output, not several"));
    }
    let is_piped = [&scenario, &model].into_iter().flatten().any(Output::is_standard);
    let interrupt = Interrupt::install().context("cannot handle signals")?;
    let spinner = progress::spinner(progress::AT);
    progress::show(&spinner);
    let stops = || interrupt.is_set();
    let advances = |tried: usize| spinner.set_message(format!("{tried} values tried"));
    let follower = Follower { stops: &stops, advances: &advances };
    let jobs = arguments.jobs.map_or(0, usize::from);
    let fitted = fit.carry_out(&read, jobs, &follower);
    spinner.finish_and_clear();
    let fitted = match fitted {
        Err(FitError::Stopped) => {
            eprintln!("interrupted: nothing was fitted");
            return Ok(ExitCode::from(interrupt.exit_status().unwrap_or(exit::FAILED)));
        }
        Err(error @ FitError::Threads { .. }) => return Err(bad_input(error)),
        Err(error) => {
            return Err(bad_input(format!("{}: {error}", arguments.fit.display())));
        }
        Ok(fitted) => fitted,
    };
    let document = Document::new(&fit, &fitted);
    let text = if is_piped { String::new() } else { document.text(output::screen()) };
    output::show(json, &document, &text)?;
    scenario.map_or(Ok(()), |file| file.write(&fit.scenario(&fitted)))?;
    model.map_or(Ok(()), |file| file.write(&fit.model(&fitted)))?;
    Ok(ExitCode::from(if fitted.is_sound(&fit) { 0 } else { exit::NO }))
}
