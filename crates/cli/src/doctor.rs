//! `dimmer doctor`: which commands work on this machine, and the survey of its capabilities.

use std::process::ExitCode;

use anyhow::Context;
use dimmer_host::capability::Survey;
use dimmer_host::cpuid::Cpuid;
use dimmer_host::journal::{self, Owner};
use dimmer_host::root::Root;
use dimmer_report::doctor::{self, Verdict};

use crate::args::{Doctor, Use};
use crate::{exit, output};

pub(crate) fn run(root: &Root, arguments: &Doctor) -> anyhow::Result<ExitCode> {
    let json = arguments.json.open()?;
    let cpuid = Cpuid::of(root).context("cannot tell what processor this is")?;
    let survey = Survey::take(root, &cpuid);
    let is_all = arguments.all || output::is_verbose();
    let mut text = doctor::text(&survey, is_all, output::screen());
    if journal::pending(root).iter().any(|one| one.owner != Owner::Kept) {
        text +=
            "\nA run that was killed has left this machine changed: `dimmer restore` undoes it.\n";
    }
    output::show(json, &doctor::document(&survey), &text)?;
    let fails = |asked: &&Use| asked.0.verdict(&survey).0 == Verdict::No;
    let failing: Vec<&str> =
        arguments.require.iter().filter(fails).map(|one| one.0.name()).collect();
    if failing.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    error!("required, and does not work here: {}", failing.join(", "));
    Ok(ExitCode::from(exit::NO))
}
