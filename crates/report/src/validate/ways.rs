//! Ways out for wide code beside each other, as text, Markdown and JSON (`docs/sim-json.md`).

use std::fmt::Write as _;

use dimmer_validate::ways::{self, Compared, Way};
use serde::Serialize;

use crate::screen::Screen;
use crate::table::Table;

#[derive(Debug, Serialize)]
pub(super) struct WaysDocument {
    load: &'static str,
    /// What AVX-512 costs without any of the ways.
    loss_pct: f64,
    ways: Vec<WayDocument>,
}

#[derive(Debug, Serialize)]
struct WayDocument {
    #[serde(rename = "loop")]
    name: &'static str,
    loss_pct: f64,
    removed_pct: f64,
    done_pct: f64,
}

impl WaysDocument {
    pub(super) fn new(compared: &Compared) -> Self {
        let way = |(name, Way { loss, removed, done }): &(&'static str, Way)| WayDocument {
            name,
            loss_pct: *loss,
            removed_pct: *removed,
            done_pct: *done,
        };
        let ways = compared.ways.iter().map(way).collect();
        Self { load: compared.load, loss_pct: compared.loss, ways }
    }
}

const HEADINGS: [&str; 6] =
    ["workload", "AVX-512 costs", "way", "then", "removed", "all programs get done"];

/// The rows of all ways on each workload, cell by cell.
fn rows(compared: &[Compared]) -> impl Iterator<Item = [String; 6]> {
    let row = |one: &Compared, (name, way): &(&'static str, Way)| {
        [
            one.load.to_owned(),
            format!("{:.2} %", one.loss),
            (*name).to_owned(),
            // Adding 0 to a negative 0 drops its sign.
            format!("{:.2} %", (100.0 * way.loss).round() / 100.0 + 0.0),
            format!("{:.0} %", way.removed),
            format!("{:+.2} %", way.done),
        ]
    };
    compared.iter().flat_map(move |one| one.ways.iter().map(move |way| row(one, way)))
}

/// The ways as text.
pub fn text(compared: &[Compared], screen: Screen) -> String {
    let partial = if compared.len() < ways::WORKLOADS {
        format!("PARTIAL: interrupted after {} of {} workloads\n", compared.len(), ways::WORKLOADS)
    } else {
        String::new()
    };
    let mut table = Table::new(HEADINGS);
    for row in rows(compared) {
        table.row(row);
    }
    format!("\nspecialised cores\n\n{}\n{partial}", table.render(screen))
}

/// The ways as Markdown, as in `docs/VALIDATION.md`.
pub(super) fn markdown(compared: &[Compared]) -> String {
    let mut text = String::from(
        "\n## Paper 003's specialised cores beside Dimmer's\n\nOther ways out are beside them. \
         *AVX-512 costs* the web server throughput, and programs beside x265\nCPU time for the same \
         work, against AVX without AVX2. *All programs get done*: a geometric mean over\nprograms, \
         x265 included, against AVX-512 without any of the ways; of the web server with narrower\n\
         code, requests. Means of three runs.\n\n| way | |\n|---|---|\n",
    );
    for (name, meaning) in ways::MEANINGS {
        let _ = writeln!(text, "| `{name}` | {meaning} |");
    }
    text.push('\n');
    let _ = writeln!(text, "| {} |\n|---|---|---|---|---|---|", HEADINGS.join(" | "));
    for row in rows(compared) {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
    text
}
