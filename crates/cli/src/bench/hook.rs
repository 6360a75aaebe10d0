//! `dimmer bench dev hook`: the time of a hooked call, beside the same call without a hook.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::Context;
use dimmer_hook::{Hooks, OwnLedger, Round};
use dimmer_probe::stats::{Estimate, Samples};
use serde::Serialize;

use crate::args::BenchHook;
use crate::output;

/// Number of rounds. In each of them all kinds of calls take their turn.
const ROUNDS: usize = 41;

/// Calls of each kind in a round: some milliseconds.
const CALLS: u32 = 1_000_000;

/// The results; `docs/bench-json.md` describes every key.
#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    rounds: usize,
    calls: u32,
    /// A call without a hook.
    plain_ns: Option<Measured>,
    /// Extra time of a call hooked as `dimmer observe` does it.
    call_ns: Option<Measured>,
    /// Extra time if no calls are timed.
    counted_ns: Option<Measured>,
    /// Extra time if all calls are timed.
    timed_ns: Option<Measured>,
}

/// A measured quantity with its 95 % interval.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Measured {
    pub(super) median: f64,
    pub(super) ci95: (f64, f64),
}

pub(crate) fn run(arguments: &BenchHook) -> anyhow::Result<ExitCode> {
    let json = arguments.json.open()?;
    let directory = tempfile::tempdir().context("cannot make a directory for the ledger")?;
    let ledger = OwnLedger::create(directory.path())?;
    let rounds = Hooks::new(ledger, BTreeSet::new(), None).trial(ROUNDS, CALLS)?;
    let report = Report::new(&rounds);
    output::show(json, &report, &report.text())?;
    Ok(ExitCode::SUCCESS)
}

impl Report {
    fn new(rounds: &[Round]) -> Self {
        let measured = |of: fn(&Round) -> f64| {
            let samples: Samples = rounds.iter().map(of).collect();
            samples.estimate().map(Measured::new)
        };
        Self {
            schema: "dimmer/bench-hook/1",
            rounds: rounds.len(),
            calls: CALLS,
            plain_ns: measured(|round| round.plain_ns),
            call_ns: measured(|round| round.observed_ns - round.plain_ns),
            counted_ns: measured(|round| round.counted_ns - round.plain_ns),
            timed_ns: measured(|round| round.timed_ns - round.plain_ns),
        }
    }

    fn text(&self) -> String {
        let line = |what: &str, measured: Option<Measured>| {
            measured.map_or_else(String::new, |Measured { median, ci95: (low, high) }| {
                format!("{what:<52} {median:>7.2} ns  [{low:.2}, {high:.2}]\n")
            })
        };
        [
            line("a call without a hook", self.plain_ns),
            line("a hooked call more, as observed", self.call_ns),
            line("a hooked call more, if it is only counted", self.counted_ns),
            line("a hooked call more, if it is timed", self.timed_ns),
        ]
        .concat()
    }
}

impl Measured {
    pub(super) fn new(estimate: Estimate) -> Self {
        Self { median: estimate.median, ci95: estimate.ci95 }
    }
}
