//! `dimmer bench dev delegate|migrate-call|migrate|region`: the cost of moving work to another
//! core, and of marking what might be moved.

use std::process::ExitCode;

use dimmer_bench::moves::{self, Way};
use dimmer_bench::region;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::root::Root;
use dimmer_report::bench::{MovesReport, RegionReport};

use crate::args::BenchMoves;
use crate::{output, progress};

/// Measures the time to move work, and shows one of the ways beside the others.
pub(crate) fn run(
    root: &Root,
    arguments: &BenchMoves,
    way: Way,
    interrupt: &Interrupt,
) -> anyhow::Result<ExitCode> {
    let json = arguments.json.open()?;
    let bar = progress::bar(arguments.rounds.into());
    let rounds = usize::try_from(arguments.rounds)?;
    let moves = moves::measure(root, rounds, interrupt, || bar.inc(1));
    bar.finish_and_clear();
    let report = MovesReport::new(&moves?, way, arguments.rounds);
    output::show(json, &report, &report.text(output::screen()))?;
    Ok(ExitCode::SUCCESS)
}

/// Measures the cost of a region that stays.
pub(crate) fn region(arguments: &BenchMoves, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    let json = arguments.json.open()?;
    let bar = progress::bar(arguments.rounds.into());
    let rounds = region::measure(usize::try_from(arguments.rounds)?, interrupt, || bar.inc(1));
    bar.finish_and_clear();
    let report = RegionReport::new(&rounds?, arguments.rounds, region::asks_by());
    output::show(json, &report, &report.text())?;
    Ok(ExitCode::SUCCESS)
}
