//! The graph as a page: the drawing, whose boxes lead to their marks, and tables.

use std::collections::{BTreeMap, BTreeSet};

use dimmer_policy::phases::{Core, Mark};
use maud::{Markup, html};

use super::{PhaseGraph, svg, text, words};
use crate::machine::MachineDescription;
use crate::number::{counted, length};
use crate::page::{command, page, prose};

pub(super) fn render(shown: &PhaseGraph, machine: &MachineDescription) -> String {
    let marks = shown.found.graph.marks();
    let places: BTreeMap<&Mark, usize> = marks.iter().copied().zip(1..).collect();
    let link = |mark: &Mark| format!("#mark-{}", places.get(mark).copied().unwrap_or_default());
    let main = html! {
        section {
            h2 { "The graph" }
            div.scroll tabindex="0" { (svg::render(shown, Some(&link))) }
            p.command { (command(&machine.command)) }
        }
        section {
            h2 { "Assessment" }
            p { (words::shortest(shown)) }
            ul.skipped {
                @for finding in shown.found.findings.iter().take(svg::MOST_EDGES) {
                    li { (prose(&words::sentence(finding, shown))) }
                }
            }
            (left_out(shown.found.findings.len().saturating_sub(svg::MOST_EDGES), "finding"))
        }
        section {
            h2 { "Profile, by " (words::meaning(shown.found.metric)) }
            (profile(shown, &marks))
        }
        section {
            h2 { "Edges" }
            (edges(shown, &link))
        }
    };
    let sentences = [words::threshold(shown), words::sum(shown)];
    let title = match shown.marks_for(Core::Slow) {
        0 => format!("A program of {}.", counted(marks.len(), "mark")),
        slow => {
            format!("{} of {} are slow.", length(slow), counted(marks.len(), "mark"))
        }
    };
    page(("Dimmer phases", "control-flow graph"), &title, &sentences, &main, machine).into_string()
}

/// How many of a list are not on the page, if any.
fn left_out(more: usize, noun: &str) -> Markup {
    html! {
        @if more > 0 {
            p.label { "Not on this page: " (counted(more, noun)) "; the JSON has all." }
        }
    }
}

/// The marks of the edges that are on the page.
fn profile(shown: &PhaseGraph, marks: &[&Mark]) -> Markup {
    let drawn: BTreeSet<&Mark> =
        shown.longest(svg::MOST_EDGES).iter().flat_map(|edge| [edge.0, edge.1]).collect();
    let rows: Vec<(usize, &Mark)> =
        (1..).zip(marks.iter().copied()).filter(|(_, mark)| drawn.contains(*mark)).collect();
    html! {
        div.scroll tabindex="0" {
            table.wins {
                thead { tr { th.name { "mark" } th { "value" } th { "core" } } }
                tbody {
                    @for (place, mark) in &rows {
                        tr id=(format!("mark-{place}")) {
                            th.name { (mark.name()) }
                            td { (shown.found.profile.value(mark).map_or("–".to_owned(), words::rate)) }
                            td { (shown.core(mark).map_or("–", words::core)) }
                        }
                    }
                }
            }
        }
        (left_out(marks.len() - rows.len(), "mark"))
    }
}

fn edges(shown: &PhaseGraph, link: &dyn Fn(&Mark) -> String) -> Markup {
    html! {
        div.scroll tabindex="0" {
            table.wins {
                thead {
                    tr {
                        @for (place, heading) in text::headings(shown).iter().enumerate() {
                            th.name[place < 2] { (heading) }
                        }
                    }
                }
                tbody {
                    @for (start, end, counts) in shown.longest(svg::MOST_EDGES) {
                        tr {
                            th.name { a href=(link(start)) { (start.name()) } }
                            th.name { a href=(link(end)) { (end.name()) } }
                            @for cell in text::numbers(shown, counts) { td { (cell) } }
                        }
                    }
                }
            }
        }
        (left_out(shown.found.graph.edges().count().saturating_sub(svg::MOST_EDGES), "edge"))
    }
}
