//! The graph as tables of text.

use dimmer_policy::phases::{Core, Counts, Metric};

use super::{PhaseGraph, words};
use crate::number::grouped;
use crate::screen::Screen;
use crate::table::{Cell, Colour, Table};

/// In a cell whose number was not counted.
const ABSENT: &str = "no counters";

pub(super) fn render(shown: &PhaseGraph, screen: Screen) -> String {
    let findings = shown
        .found
        .findings
        .iter()
        .map(|finding| screen.fill(&format!("- {}", words::sentence(finding, shown))));
    format!(
        "{}\nprofile, by {}\n\n{}\n{}\nassessment\n\n{}{}{}",
        edges(shown, screen),
        words::meaning(shown.found.metric),
        profile(shown, screen),
        screen.fill(&words::threshold(shown)),
        screen.fill(&words::sum(shown)),
        screen.fill(&words::shortest(shown)),
        findings.collect::<String>(),
    )
}

/// The headings of the table of edges.
pub(super) fn headings(shown: &PhaseGraph) -> Vec<&'static str> {
    let metric = words::heading(shown.found.metric);
    let mut headings = vec!["start", "end", "calls", words::share_heading(shown), metric];
    headings.extend((metric != "CPI").then_some("CPI"));
    headings
}

/// The numbers of an edge, for the headings after `end`.
pub(super) fn numbers(shown: &PhaseGraph, counts: &Counts) -> Vec<String> {
    let rate = |metric: Metric| metric.of(counts).map_or_else(|| ABSENT.to_owned(), words::rate);
    let mut cells = vec![
        grouped(counts.calls as f64, 0),
        words::share(shown, counts).unwrap_or_else(|| "–".to_owned()),
        rate(shown.found.metric),
    ];
    cells.extend((shown.found.metric != Metric::Cpi).then(|| rate(Metric::Cpi)));
    cells
}

fn edges(shown: &PhaseGraph, screen: Screen) -> String {
    let heading = |(place, heading): (usize, &str)| {
        if place < 2 { Cell::from(heading) } else { Cell::right(heading) }
    };
    let mut table = Table::new(headings(shown).into_iter().enumerate().map(heading));
    for (start, end, counts) in shown.found.graph.edges() {
        let names = [start, end].map(|mark| Cell::from(mark.name()));
        table.row(names.into_iter().chain(numbers(shown, counts).into_iter().map(Cell::right)));
    }
    table.render(screen)
}

fn profile(shown: &PhaseGraph, screen: Screen) -> String {
    let mut table = Table::new([Cell::from("mark"), Cell::right("value"), Cell::from("core")]);
    for mark in shown.found.graph.marks() {
        let core = shown.core(mark);
        let cell = Cell::from(core.map_or("–", words::core));
        let is_slow = core == Some(Core::Slow);
        table.row([
            Cell::from(mark.name()),
            Cell::right(shown.found.profile.value(mark).map_or("–".to_owned(), words::rate)),
            if is_slow { cell.coloured(Colour::Cyan) } else { cell },
        ]);
    }
    table.render(screen)
}
