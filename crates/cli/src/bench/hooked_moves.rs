//! `dimmer bench dev hooked-moves`: the time of a hooked call of a leaf function on another core,
//! beside moving the call with its thread.

use std::process::ExitCode;

use dimmer_bench::hooked;
use dimmer_host::root::{Root, format_cpu_list};
use dimmer_probe::stats::Samples;
use serde::Serialize;

use super::hook::Measured;
use crate::args::BenchHookedMoves;
use crate::bad_input;
use crate::output;
use crate::run::cores;

/// The results; `docs/bench-json.md` describes every key.
#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    cpus: String,
    calls: usize,
    /// A call of an empty function, handed to a worker while its thread waits.
    delegated_ns: Option<Measured>,
    /// The same call, moved with its thread.
    migrated_ns: Option<Measured>,
}

pub(crate) fn run(root: &Root, arguments: &BenchHookedMoves) -> anyhow::Result<ExitCode> {
    let json = arguments.json.open()?;
    let cpus = cores(root, arguments.cpus.cpus.as_deref())?;
    let trips = hooked::round_trips(root, &cpus).map_err(bad_input)?;
    let measured = |samples: &Samples| samples.estimate().map(Measured::new);
    let report = Report {
        schema: "dimmer/bench-hooked-moves/1",
        cpus: format_cpu_list(&cpus),
        calls: hooked::CALLS,
        delegated_ns: measured(&trips.lent),
        migrated_ns: measured(&trips.moved),
    };
    output::show(json, &report, &report.text())?;
    Ok(ExitCode::SUCCESS)
}

impl Report {
    fn text(&self) -> String {
        let line = |what: &str, measured: Option<Measured>| {
            measured.map_or_else(String::new, |Measured { median, ci95: (low, high) }| {
                format!("{what:<52} {median:>7.0} ns  [{low:.0}, {high:.0}]\n")
            })
        };
        [
            line("a hooked call, delegated: its registers go", self.delegated_ns),
            line("a hooked call, migrated: its thread goes", self.migrated_ns),
        ]
        .concat()
    }
}
