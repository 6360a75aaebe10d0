//! `dimmer bench dev lock`: what locks cost, alone and contended.

use std::process::ExitCode;

use dimmer_bench::lock::{self, LockError};
use dimmer_host::interrupt::Interrupt;
use dimmer_host::root::Root;
use dimmer_report::bench::LockReport;

use crate::args::BenchLock;
use crate::{bad_input, output, progress};

pub(crate) fn run(
    root: &Root,
    arguments: &BenchLock,
    interrupt: &Interrupt,
) -> anyhow::Result<ExitCode> {
    let threads = lock::thread_counts(arguments.threads).map_err(|error| match error {
        LockError::TooManyThreads { .. } => bad_input(error),
        error => error.into(),
    })?;
    let json = arguments.json.open()?;
    let bar = progress::bar(arguments.rounds.into());
    let rounds = usize::try_from(arguments.rounds)?;
    let locks = lock::measure(root, &threads, rounds, interrupt, || bar.inc(1));
    bar.finish_and_clear();
    let report = LockReport::new(&locks?, arguments.rounds);
    output::show(json, &report, &report.text(output::screen()))?;
    Ok(ExitCode::SUCCESS)
}
