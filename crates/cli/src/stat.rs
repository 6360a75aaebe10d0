//! `dimmer stat`: license levels, throttling and packed arithmetic of programs, counted.

use std::process::ExitCode;

use dimmer_host::root::Root;
use dimmer_launch::stat::{self, Subject};
use dimmer_report::stat::Report;

use crate::args::Stat;
use crate::output::{self, Output};
use crate::{exit, not_launched};

pub(crate) fn run(root: &Root, arguments: &Stat, to: Option<Output>) -> anyhow::Result<ExitCode> {
    let json = arguments.json.open()?;
    let subject = match arguments.process.pid {
        Some(pid) => Subject::Process(pid),
        None if arguments.all => Subject::All,
        None => Subject::Command(&arguments.command),
    };
    let stat = stat::stat(root, &subject, arguments.duration.duration).map_err(not_launched)?;
    let report = Report::new(&stat);
    let Some(status) = stat.status else {
        output::show(json, &report, &report.text(output::screen()))?;
        return Ok(ExitCode::SUCCESS);
    };
    // Standard output is the program's.
    output::report(to, &report.text(output::error_screen()))?;
    if let Some(json) = json {
        json.write_json(&report)?;
    }
    Ok(exit::of_program(status))
}
