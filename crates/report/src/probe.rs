//! The findings of `dimmer probe` in four forms: JSON and CSV for programs, a table and a page for
//! people.
//!
//! Only converts [`Findings`] and puts them into words; `docs/probe-json.md` describes JSON and
//! CSV.

mod csv;
mod finding;
mod json;
pub mod latency;
mod levels;
mod page;
mod readings;
mod table;
mod textfile;
mod verdict;
mod words;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use dimmer_host::machine::Machine;
use dimmer_probe::kernel;
use dimmer_probe::outcome::Findings;
use serde::Serialize;

use crate::machine::MachineDescription;
use crate::page::PageError;
use crate::screen::Screen;

/// The findings as text, the verdict first.
pub fn text(findings: &Findings, screen: Screen) -> String {
    table::render(findings, screen)
}

/// The kernels, with what this machine lacks for those that it cannot run.
pub fn kernels(machine: &Machine) -> String {
    let mut text = String::new();
    let has = |name: &str| machine.features.iter().any(|feature| feature.name() == name);
    for kernel in kernel::all() {
        let missing: Vec<&str> =
            kernel.needs.iter().map(|feature| feature.name()).filter(|name| !has(name)).collect();
        let note = if missing.is_empty() {
            String::new()
        } else {
            format!("not here: no {}", missing.join(", "))
        };
        let line = format!("{:<34} {:<10} {note}", kernel.name, kernel.class.name());
        text += &(line.trim_end().to_owned() + "\n");
    }
    text
}

/// The document `dimmer/probe/2`.
pub fn document<'a>(
    findings: &'a Findings,
    machine: &'a MachineDescription,
) -> impl Serialize + use<'a> {
    json::document(findings, machine)
}

/// The findings as metrics for the textfile collector of Prometheus' node_exporter.
pub fn textfile(findings: &Findings, machine: &MachineDescription) -> String {
    textfile::render(findings, machine)
}

/// The findings as one HTML page with plots.
///
/// # Errors
/// [`PageError`]: a plot cannot be drawn.
pub fn page(findings: &Findings, machine: &MachineDescription) -> Result<String, PageError> {
    page::render(findings, machine)
}

/// Raw series as CSV, for plots and for statistics other than ours: the content of each file by its
/// name.
///
/// # Errors
/// A row cannot be written, which happens in memory and has no cause to fail.
pub fn series(findings: &Findings) -> Result<BTreeMap<String, Vec<u8>>, ::csv::Error> {
    csv::series(findings)
}
