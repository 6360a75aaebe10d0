//! `dimmer run`: runs an unmodified program so that its wide SIMD code costs less.

mod mechanism;

use std::process::ExitCode;

use dimmer_host::pstate::words::Cpus;
use dimmer_host::root::Root;
use dimmer_launch::Request;
use dimmer_launch::account::Summary;
use dimmer_launch::named::Wanted;
use dimmer_launch::phases::Guide;
use dimmer_processor::units::CpuId;
use dimmer_report::run as report;
use dimmer_report::timeline::Timeline;

use crate::args::Run;
use crate::output::{self, Output};
use crate::{exit, not_launched};

pub(crate) fn run(root: &Root, arguments: &Run, to: Option<Output>) -> anyhow::Result<ExitCode> {
    let asked = mechanism::asked(arguments)?;
    let json = arguments.json.open()?;
    let trace = arguments.trace.as_deref().map(Output::open).transpose()?;
    let guide = arguments.phases.as_ref().map(|profile| {
        Guide::new(profile.as_deref(), arguments.threshold.as_deref(), arguments.slower)
    });
    let request = Request {
        command: arguments.command.clone(),
        phases: guide.transpose().map_err(not_launched)?,
        functions: mechanism::functions(arguments).map(Wanted::parse).collect(),
        boosting: arguments.boost.unwrap_or_default(),
        is_counted: arguments.counters,
        sections: arguments.section.clone(),
        model: arguments.model.model.clone(),
        cpus: arguments.cpus.cpus.clone().map(|cpus| cpus.0),
        is_dedicated: arguments.dedicate,
        width: arguments.width,
        only: arguments.only.clone(),
        is_traced: trace.is_some(),
    };
    let screen = output::error_screen();
    let mut print = |note| {
        if let Some(text) = report::note(&note, screen) {
            eprint!("{text}");
        }
    };
    let ended = dimmer_launch::run(root, &asked, &request, &mut print);
    let mut ended = ended.map_err(not_launched)?;
    if let Some(summary) = &ended.summary {
        output::report(to, &report::summary(summary, screen))?;
    }
    if let Some(to) = trace {
        let traced = ended.summary.as_mut().and_then(Summary::take_traced).unwrap_or_default();
        let title = dimmer_launch::program::shown(&arguments.command).join(" ");
        let timeline = Timeline::new(&title, &traced.observed, |at| traced.names.get(at).cloned());
        output::timeline(to, &timeline)?;
    }
    if let Some(json) = json {
        let how = dimmer_launch::mechanism::how(&asked).unwrap_or_default();
        match ended.summary.unwrap_or_else(|| Summary::nothing(how)) {
            Summary::Calls(account) => json.write_json(&report::document(&account))?,
            Summary::Threads(threads) => json.write_json(&report::threads::document(&threads))?,
            Summary::Phases(phases) => json.write_json(&report::phases::document(&phases))?,
            Summary::Locks(locks) => json.write_json(&report::locks::document(&locks))?,
        }
    }
    match ended.not_given_back {
        Some(error) => Err(error.into()),
        None => Ok(exit::of_program(ended.status)),
    }
}

/// The CPUs that calls move to: the requested ones, or those of one core.
pub(crate) fn cores(root: &Root, asked: Option<&Cpus>) -> anyhow::Result<Vec<CpuId>> {
    dimmer_launch::cores(root, asked.map(|cpus| &*cpus.0)).map_err(not_launched)
}
