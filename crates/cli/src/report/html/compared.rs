//! What `dimmer compare` found, as a page: each governor beside the processor's own.

use anyhow::Context;
use maud::html;

use super::finding::figure;
use super::page;
use super::plot::{self, DrawError, Figure, Way};
use crate::compare::{Compared, Document, Measured};
use crate::report::MachineDescription;
use crate::report::number::length;

/// The comparison as an HTML page.
///
/// # Errors
/// If a plot cannot be drawn, which happens in memory and has no cause to fail.
pub(crate) fn render(document: &Document, machine: &MachineDescription) -> anyhow::Result<String> {
    let figures = figures(document).context("cannot draw the comparison")?;
    let facts = [
        ("Scenario", document.scenario.clone()),
        ("Recreates", document.source.clone()),
        ("Processor", format!("a model of {}", document.model)),
        ("Runs of each governor", length(usize::try_from(document.runs).unwrap_or(usize::MAX))),
    ];
    let main = html! {
        section {
            h2 { "The comparison" }
            dl.facts { @for (term, value) in &facts { div { dt { (term) } dd { (value) } } } }
            p.command { code { (machine.command) } }
        }
        section {
            h2 { "Over the processor's own governor" }
            div.figures { @for one in &figures { (figure(one)) } }
        }
    };
    let sentences = vec![
        "`hardware` is what the processor does by itself, `avxfreq` does the same in the kernel, with a timer that leaves bursts \
         shorter than its period at the first level; `user` is told by the program, `oracle` knows what will run, `predictive` learns it."
            .to_owned(),
    ];
    let about = ("Dimmer compare", document.scenario.as_str());
    Ok(page(about, &title(document), &sentences, &main, machine).into_string())
}

/// The best governor in one sentence.
fn title(document: &Document) -> String {
    let others = document.governors.iter().filter(|governor| !governor.is_hardware());
    let best = others.max_by(|a, b| a.ratio.median.total_cmp(&b.ratio.median));
    match best.filter(|best| best.ratio.median > 1.001) {
        Some(best) => {
            let percent = 100.0 * (best.ratio.median - 1.0);
            format!("Under {} the same work is done {percent:.1} % faster.", best.governor)
        }
        None => "No governor does the work faster than the processor's own.".to_owned(),
    }
}

fn figures(document: &Document) -> Result<Vec<Figure>, DrawError> {
    let others = || document.governors.iter().filter(|governor| !governor.is_hardware());
    let way = |governor: &Compared, measured: &Measured| Way {
        name: governor.governor,
        ratio: measured.median,
        ci95: measured.ci95,
    };
    let all: Vec<Way> = others().map(|governor| way(governor, &governor.ratio)).collect();
    let mut figures = vec![plot::ratios("All of the work", "how much faster", &all)?];
    let Some(first) = document.governors.first() else { return Ok(figures) };
    for (index, phase) in first.phases.iter().enumerate() {
        let ways: Vec<Way> =
            others().map(|governor| way(governor, &governor.phases[index].ratio)).collect();
        let title = format!("{}, {}", phase.thread, phase.code);
        figures.push(plot::ratios(&title, "more instructions in the same time", &ways)?);
    }
    for (index, latency) in first.latencies.iter().enumerate() {
        let ways: Vec<Way> =
            others().map(|governor| way(governor, &governor.latencies[index].ratio)).collect();
        let title = format!("{}, latency of 99 % of requests", latency.thread);
        figures.push(plot::ratios(&title, "longer (more is worse)", &ways)?);
    }
    Ok(figures)
}
