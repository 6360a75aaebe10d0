//! The findings of `dimmer probe` in four forms: JSON and CSV for programs, a table and a page for
//! people.
//!
//! Only converts [`Findings`] and puts them into words; `docs/probe-json.md` describes JSON and
//! CSV.

mod csv;
mod finding;
mod json;
mod levels;
mod page;
mod readings;
mod table;
mod verdict;
mod words;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use dimmer_probe::outcome::Findings;
use serde::Serialize;

use crate::machine::MachineDescription;
use crate::page::PageError;
use crate::screen::Screen;

/// The findings as text, the verdict first.
pub fn text(findings: &Findings, screen: Screen) -> String {
    table::render(findings, screen)
}

/// The document `dimmer/probe/2`.
pub fn document<'a>(
    findings: &'a Findings,
    machine: &'a MachineDescription,
) -> impl Serialize + use<'a> {
    json::document(findings, machine)
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
