//! `dimmer bench offload`: what it takes to have a hooked call of a leaf function run on another
//! core, beside moving the call with its thread.

use std::process::ExitCode;

use dimmer_bench::hooked;
use dimmer_host::root::{Root, format_cpu_list};
use dimmer_probe::stats::Samples;
use serde::Serialize;

use super::hook::Measured;
use crate::args::BenchOffload;
use crate::bad_input;
use crate::output::{self, Output};
use crate::run::cores;

/// What was found; `docs/bench-json.md` describes every key.
#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    cpus: String,
    calls: usize,
    /// A call of a function that does nothing, handed over while its thread waits.
    offloaded_ns: Option<Measured>,
    /// The same with its thread.
    borrowed_ns: Option<Measured>,
}

pub(crate) fn run(root: &Root, arguments: &BenchOffload) -> anyhow::Result<ExitCode> {
    let json = arguments.json.as_deref().map(Output::open).transpose()?;
    let cpus = cores(root, arguments.cores.as_deref())?;
    let trips = hooked::round_trips(root, &cpus).map_err(bad_input)?;
    let measured = |samples: &Samples| samples.estimate().map(Measured::new);
    let report = Report {
        schema: "dimmer/bench-offload/1",
        cpus: format_cpu_list(&cpus),
        calls: hooked::CALLS,
        offloaded_ns: measured(&trips.lent),
        borrowed_ns: measured(&trips.moved),
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
            line("a hooked call, offloaded: its registers go", self.offloaded_ns),
            line("a hooked call, borrowed: its thread goes", self.borrowed_ns),
        ]
        .concat()
    }
}
