//! `dimmer bench dev hook`: the time of a hooked call, beside the same call without a hook.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::Context;
use dimmer_bench::BenchError;
use dimmer_hook::{Hooks, OwnLedger};
use dimmer_host::interrupt::Interrupt;
use dimmer_report::bench::HookReport;

use crate::args::BenchHook;
use crate::output;

/// Number of rounds. In each of them all kinds of calls take their turn.
const ROUNDS: usize = 41;

/// Calls of each kind in a round: some milliseconds.
const CALLS: u32 = 1_000_000;

pub(crate) fn run(arguments: &BenchHook, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    let json = arguments.json.open()?;
    let directory = tempfile::tempdir().context("cannot make a directory for the ledger")?;
    let ledger = OwnLedger::create(directory.path())?;
    let hooks = Hooks::new(ledger, BTreeSet::new(), None);
    let rounds = hooks.trial(ROUNDS, CALLS, || !interrupt.is_set())?;
    if interrupt.is_set() {
        return Err(BenchError::Interrupted.into());
    }
    let report = HookReport::new(&rounds, CALLS);
    output::show(json, &report, &report.text())?;
    Ok(ExitCode::SUCCESS)
}
