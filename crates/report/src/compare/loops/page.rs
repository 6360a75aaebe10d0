//! The result of `dimmer sim compare --loops` as a page: each loop compared with regions that
//! stay.

use maud::html;

use super::super::Measured;
use super::{Compared, Document};
use crate::machine::MachineDescription;
use crate::number::{length, percent};
use crate::page::{Drawing as _, PageError, command, figure, page, prose};
use crate::plot::{self, DrawError, Figure, Way};

/// What is compared.
const KIND: &str = "loop";

/// The comparison as an HTML page.
pub(super) fn render(
    document: &Document,
    machine: &MachineDescription,
) -> Result<String, PageError> {
    let figures = figures(document).of("the comparison")?;
    let facts = [
        ("Scenario", document.study.scenario.clone()),
        ("Recreates", document.study.source.clone()),
        ("Processor", format!("a model of {}", document.study.model)),
        ("Handing a region over and back", document.told_hand_over()),
        ("Runs of each loop", length(usize::try_from(document.study.runs).unwrap_or(usize::MAX))),
    ];
    let percent = |of: Option<Measured>| of.map(|of| format!("{:.1} %", 100.0 * of.median));
    let number = |of: Option<Measured>| of.map(|of| format!("{:.2}", of.median));
    let main = html! {
        section {
            h2 { "The comparison" }
            dl.facts { @for (term, value) in &facts { div { dt { (term) } dd { (prose(value)) } } } }
            p.command { (command(&machine.command)) }
        }
        section {
            h2 { "Over leaving marked regions where they are" }
            div.figures { @for one in &figures { (figure(one)) } }
        }
        section {
            h2 { "What that takes" }
            table {
                thead {
                    tr {
                        th { "loop" }
                        th { "calls that are moved" }
                        th { "dedicated cores" }
                        th { "traps at wide code a second" }
                    }
                }
                tbody {
                    @for one in &document.loops {
                        tr {
                            td { (one.name) }
                            td { (percent(one.moved).unwrap_or_default()) }
                            td { (number(one.cores).unwrap_or_default()) }
                            td { (number(one.traps).unwrap_or_default()) }
                        }
                    }
                }
            }
        }
    };
    let mut sentences: Vec<String> = document.study.told_partial().into_iter().collect();
    sentences.push(
        "`none` leaves marked regions where they are, `thresholds` is the policy server of paper 001, `trials` tries each program's regions \
         with and without, `auto` all regions of all programs at once, and `always` moves all of them. Under `specialise` threads run on wide cores from their first 512-bit \
         instruction to their next system call, as in paper 003; under `specialise-learning`, as many cores are wide as the load asks for, \
         phases that ended too soon make the next ones longer, and threads stay near their data; under `specialise-told` the processor reports what asks for a level. \
         `core-scheduling` lets wide code share a core with its like alone. Under `phases` threads migrate at marks between a fast and a \
         slow core, as in paper 004."
            .to_owned(),
    );
    let about = ("Dimmer compare", document.study.scenario.as_str());
    sentences.extend(document.study.told_assumptions());
    Ok(page(about, &title(document), &sentences, &main, machine).into_string())
}

/// The best loop in one sentence.
fn title(document: &Document) -> String {
    if document.study.runs == 0 {
        return "Nothing was complete yet.".to_owned();
    }
    let others = document.loops.iter().filter(|one| !one.is_none());
    let told = others.filter_map(|one| Some((one.name, one.ratio.as_ref()?.median)));
    match told.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, ratio)| *ratio > 1.001) {
        Some((mechanism, ratio)) => {
            format!("Under {mechanism} programs get {} more done.", percent(ratio - 1.0))
        }
        None => "Programs get most done where regions stay.".to_owned(),
    }
}

fn figures(document: &Document) -> Result<Vec<Figure>, DrawError> {
    let ways = |measured: &dyn Fn(&Compared) -> Option<Measured>| -> Vec<Way> {
        let way = |one: &Compared| {
            let Measured { median, ci95, .. } = measured(one)?;
            Some(Way { name: one.name.to_owned(), ratio: median, ci95 })
        };
        document.loops.iter().filter(|one| !one.is_none()).filter_map(way).collect()
    };
    let programs = document.loops.first().map(|first| first.programs.as_slice());
    let programs = programs.unwrap_or_default();
    let mut figures = Vec::new();
    if programs.len() > 1 {
        let ways = ways(&|one| one.ratio);
        figures.push(plot::ratios("All programs", ("how much more they get done", KIND), &ways)?);
    }
    for (index, program) in programs.iter().enumerate() {
        let ways = ways(&|one| one.programs[index].ratio);
        figures.push(plot::ratios(&program.program, ("how much more it gets done", KIND), &ways)?);
    }
    Ok(figures)
}
