//! `dimmer bench dev hooked-moves`: the time to run a hooked call of a leaf function on another
//! core, beside moving the call with its thread.

use std::process::ExitCode;

use dimmer_host::root::Root;
use dimmer_launch::trips;
use dimmer_report::bench::HookedMovesReport;

use crate::args::BenchHookedMoves;
use crate::bad_input;
use crate::output;
use crate::run::cores;

pub(crate) fn run(root: &Root, arguments: &BenchHookedMoves) -> anyhow::Result<ExitCode> {
    let json = arguments.json.open()?;
    let cpus = cores(root, arguments.cpus.cpus.as_ref())?;
    let took = trips::round_trips(root, &cpus).map_err(bad_input)?;
    let report = HookedMovesReport::new(&cpus, trips::CALLS, &took.delegated, &took.migrated);
    output::show(json, &report, &report.text())?;
    Ok(ExitCode::SUCCESS)
}
