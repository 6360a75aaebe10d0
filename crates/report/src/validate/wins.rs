//! Where migration between cores wins, as text, Markdown, JSON (`docs/sim-json.md`) and a table of
//! the page.

use std::fmt::Write as _;

use dimmer_validate::wins::{self, Compared, PHASES_US, SHARES};
use maud::{Markup, html};
use serde::Serialize;

use crate::page::prose;
use crate::screen::Screen;
use crate::table::Table;

#[derive(Debug, Serialize)]
pub(super) struct WinsDocument {
    processor: &'static str,
    programs: Vec<ProgramDocument>,
}

#[derive(Debug, Serialize)]
struct ProgramDocument {
    memory_share: f64,
    phase_us: f64,
    saved_pct: Option<f64>,
}

impl WinsDocument {
    pub(super) fn new(compared: &Compared) -> Self {
        let programs = SHARES.iter().zip(&compared.saved).flat_map(|(share, saved)| {
            PHASES_US.iter().zip(saved).map(|(us, saved)| ProgramDocument {
                memory_share: *share,
                phase_us: *us,
                saved_pct: *saved,
            })
        });
        Self { processor: compared.processor, programs: programs.collect() }
    }
}

/// What the tables show.
const ABOUT: &str = "A program alternates between CPU-bound code and pointer chasing. Its power \
     with migration is compared with that at a fixed clock of 0.7 of the highest one at which it \
     takes as long, the other cores being off. Migration is between the clocks at which it is as \
     fast and takes least power. Each migration fetches an L1 cache (32 KiB) line by line. Shown \
     is how much less power migration takes (negative: more; \"too slow\": it cannot be as fast), by the part of its time on the fast \
     core for which the program waits for memory, and by the mean time of a phase there";

/// Headings of the columns.
fn headings() -> Vec<String> {
    let phases = PHASES_US.iter().map(|us| match *us {
        us if us >= 1000.0 => format!("{} ms", us / 1000.0),
        us => format!("{us} µs"),
    });
    ["processor", "memory"].map(str::to_owned).into_iter().chain(phases).collect()
}

/// A cell.
fn cell(saved: Option<f64>) -> String {
    // Adding 0 to a negative 0 drops its sign.
    saved.map_or("too slow".to_owned(), |saved| format!("{:+.0} %", saved.round() + 0.0))
}

/// The rows of all processors, cell by cell.
fn rows(compared: &[Compared]) -> impl Iterator<Item = Vec<String>> {
    compared.iter().flat_map(|one| {
        SHARES.iter().zip(&one.saved).map(move |(share, saved)| {
            let start = [one.processor.to_owned(), format!("{:.0} %", 100.0 * share)];
            start.into_iter().chain(saved.iter().map(|saved| cell(*saved))).collect()
        })
    })
}

/// The first processor on which migration wins somewhere, in a sentence.
pub(super) fn answer(compared: &[Compared]) -> String {
    let most = |one: &Compared| {
        one.saved.iter().flatten().flatten().copied().fold(f64::NEG_INFINITY, f64::max)
    };
    match compared.iter().find(|one| most(one) >= 0.5) {
        None => "On none of these processors does migration win.".to_owned(),
        Some(first) => format!(
            "Going from one processor to the next, migration first wins on \"{}\", by {:.0} % at most.",
            first.processor,
            most(first)
        ),
    }
}

/// The comparison as text.
pub fn text(compared: &[Compared], screen: Screen) -> String {
    let partial = if compared.len() < wins::PROCESSORS {
        format!(
            "PARTIAL: interrupted after {} of {} processors\n",
            compared.len(),
            wins::PROCESSORS
        )
    } else {
        String::new()
    };
    let mut table = Table::new(headings());
    for row in rows(compared) {
        table.row(row);
    }
    let answer = answer(compared);
    format!("\nwhere migration wins\n\n{}\n{answer}\n{partial}", table.render(screen))
}

/// The comparison as Markdown, as in `docs/VALIDATION.md`.
pub(super) fn markdown(compared: &[Compared]) -> String {
    let about = textwrap::fill(&format!("{ABOUT}. {}", answer(compared)), 100);
    let mut text =
        format!("\n## Where paper 004's migration wins\n\n{about}\n\n| processor | |\n|---|---|\n");
    for Compared { processor, meaning, .. } in compared {
        let _ = writeln!(text, "| {processor} | {meaning} |");
    }
    text.push('\n');
    let headings = headings();
    let _ = writeln!(text, "| {} |\n|{}", headings.join(" | "), "---|".repeat(headings.len()));
    for row in rows(compared) {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
    text
}

/// The comparison as a section of the page.
pub(super) fn section(compared: &[Compared]) -> Markup {
    html! {
        section {
            h2 { "Where migration wins" }
            p { (prose(ABOUT)) "." }
            p { (answer(compared)) }
            ul.skipped {
                @for Compared { processor, meaning, .. } in compared {
                    li { b { (processor) } ": " (prose(meaning)) "." }
                }
            }
            div.tables { @for one in compared { (table(one)) } }
        }
    }
}

/// A processor's table.
fn table(one: &Compared) -> Markup {
    let headings = headings();
    html! {
        div.scroll {
            h3 { (one.processor) }
            table.wins {
                thead { tr { @for heading in headings.iter().skip(1) { th { (heading) } } } }
                tbody {
                    @for (share, saved) in SHARES.iter().zip(&one.saved) {
                        tr {
                            th { (format!("{:.0} %", 100.0 * share)) }
                            @for saved in saved { td class=(colour(*saved)) { (cell(*saved)) } }
                        }
                    }
                }
            }
        }
    }
}

/// The class of a cell's colour.
fn colour(saved: Option<f64>) -> &'static str {
    match saved {
        None => "none",
        Some(saved) if saved >= 0.5 => "win",
        Some(saved) if saved > -0.5 => "even",
        Some(saved) if saved > -10.0 => "loss",
        Some(_) => "heavy-loss",
    }
}
