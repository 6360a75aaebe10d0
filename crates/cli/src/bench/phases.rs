//! `dimmer bench phases`: what marks and migrations at them cost here, and what they gain.

use std::process::ExitCode;

use dimmer_bench::phases;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::root::Root;
use dimmer_report::bench::PhasesReport;

use crate::args::BenchMoves;
use crate::{output, progress};

pub(crate) fn run(
    root: &Root,
    arguments: &BenchMoves,
    interrupt: &Interrupt,
) -> anyhow::Result<ExitCode> {
    let json = arguments.json.open()?;
    let bar = progress::bar(arguments.rounds.into());
    let rounds = usize::try_from(arguments.rounds)?;
    let phases = phases::measure(root, rounds, interrupt, || bar.inc(1));
    bar.finish_and_clear();
    let report = PhasesReport::new(&phases?, arguments.rounds);
    output::show(json, &report, &report.text())?;
    Ok(ExitCode::SUCCESS)
}
