//! `dimmer bench dev auto`: a program under `dimmer run --auto`, beside the same without it.

use std::process::ExitCode;

use dimmer_bench::auto::{Comparison, words};
use dimmer_host::interrupt::Interrupt;
use dimmer_report::bench::AutoReport;

use crate::args::BenchAuto;
use crate::{output, progress};

pub(super) fn run(arguments: &BenchAuto, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    let BenchAuto { metric, function, rounds, model, json, command } = arguments;
    let json = json.open()?;
    let auto = &words(function, model.model.as_deref())?;
    let bar = progress::bar((*rounds).into());
    let compared = Comparison { command, auto, metric: *metric, rounds: usize::try_from(*rounds)? };
    let measured = compared.measure(interrupt, || bar.inc(1));
    bar.finish_and_clear();
    let is_partial = interrupt.is_set();
    let report = AutoReport::new(command, *metric, &measured?, is_partial);
    output::show(json, &report, &report.text(output::screen()))?;
    Ok(interrupt.exit_status().map_or(ExitCode::SUCCESS, ExitCode::from))
}
