//! The result of `dimmer sim compare` as a page: each governor next to the processor's own.

use maud::html;

use super::super::Measured;
use super::{Compared, Document, Phase};
use crate::machine::MachineDescription;
use crate::number::{length, percent};
use crate::page::{Drawing as _, PageError, command, figure, page, prose};
use crate::plot::{self, DrawError, Figure, Way};

/// What is compared.
const KIND: &str = "governor";

/// The comparison as an HTML page.
pub(super) fn render(
    document: &Document,
    machine: &MachineDescription,
) -> Result<String, PageError> {
    let figures = figures(document).of("the comparison")?;
    let mut facts = vec![
        ("Scenario", document.study.scenario.clone()),
        ("Recreates", document.study.source.clone()),
        ("Processor", format!("a model of {}", document.study.model)),
        (
            "Runs of each governor",
            length(usize::try_from(document.study.runs).unwrap_or(usize::MAX)),
        ),
    ];
    let hardware = document.governors.iter().find(|governor| governor.is_hardware());
    if let Some(joules) = hardware.and_then(|hardware| hardware.joules) {
        facts.push(("Energy of a run under hardware", joules.told_joules()));
    }
    let main = html! {
        section {
            h2 { "The comparison" }
            dl.facts { @for (term, value) in &facts { div { dt { (term) } dd { (prose(value)) } } } }
            p.command { (command(&machine.command)) }
        }
        section {
            h2 { "Over the processor's own governor" }
            div.figures { @for one in &figures { (figure(one)) } }
        }
    };
    let mut sentences: Vec<String> = document.study.told_partial().into_iter().collect();
    sentences.push(
        "`hardware` is what the processor does by itself, `avxfreq` does the same in the kernel, with a timer that leaves bursts \
         shorter than its period at the first level; the program reports its phases to `user`, `oracle` knows the future and takes the fastest of all ways, `predictive` learns it."
            .to_owned(),
    );
    if document.governors.iter().any(|governor| governor.below_us > 0.0) {
        sentences.push(document.told_below());
    }
    sentences.extend(document.told_lack());
    sentences.extend(document.study.told_assumptions());
    let about = ("Dimmer compare", document.study.scenario.as_str());
    Ok(page(about, &title(document), &sentences, &main, machine).into_string())
}

/// The best governor in one sentence.
fn title(document: &Document) -> String {
    if document.study.runs == 0 {
        return "Nothing was complete yet.".to_owned();
    }
    let others = document.governors.iter().filter(|governor| !governor.is_hardware());
    // A governor under which code runs faster than allowed is not the best.
    let sound = others.filter(|governor| governor.below_us == 0.0);
    let told =
        sound.filter_map(|governor| Some((governor.governor, governor.ratio.as_ref()?.median)));
    let best = told.max_by(|a, b| a.1.total_cmp(&b.1));
    match best.filter(|(_, ratio)| *ratio > 1.001) {
        Some((governor, ratio)) => {
            format!("Under {governor} the same work is done {} faster.", percent(ratio - 1.0))
        }
        None if document.governors.iter().any(|governor| governor.below_us > 0.0) => {
            "No governor that keeps to the levels of the code does the work faster than the \
             processor's own."
                .to_owned()
        }
        None => "No governor does the work faster than the processor's own.".to_owned(),
    }
}

/// A governor's name, marked if code runs below its level under it.
fn told_name(governor: &Compared) -> String {
    let mark = if governor.below_us > 0.0 { " (below levels)" } else { "" };
    format!("{}{mark}", governor.governor)
}

/// The thread and code of a phase, with its number if there are several such phases.
fn phase_title(phases: &[Phase], index: usize, phase: &Phase) -> String {
    let is_same = |other: &&Phase| other.thread == phase.thread && other.code == phase.code;
    let title = format!("{}, {}", phase.thread, phase.code);
    if phases.iter().filter(is_same).count() < 2 {
        return title;
    }
    let own = phases.iter().take(index + 1).filter(|other| other.thread == phase.thread);
    format!("{title} (phase {})", own.count())
}

fn figures(document: &Document) -> Result<Vec<Figure>, DrawError> {
    let others = || document.governors.iter().filter(|governor| !governor.is_hardware());
    let ways = |measured: &dyn Fn(&Compared) -> Option<Measured>| -> Vec<Way> {
        let way = |governor: &Compared| {
            let Measured { median, ci95, .. } = measured(governor)?;
            Some(Way { name: told_name(governor), ratio: median, ci95 })
        };
        others().filter_map(way).collect()
    };
    let mut figures =
        vec![plot::ratios("All of the work", ("how much faster", KIND), &ways(&|one| one.ratio))?];
    let energies = ways(&|governor| governor.energy_ratio);
    if !energies.is_empty() {
        let what = "how much more of it (more is worse)";
        figures.push(plot::ratios("Energy for the same work", (what, KIND), &energies)?);
    }
    let Some(first) = document.governors.first() else { return Ok(figures) };
    for (index, phase) in first.phases.iter().enumerate() {
        let ways = ways(&|governor| governor.phases[index].ratio);
        let title = phase_title(&first.phases, index, phase);
        figures.push(plot::ratios(&title, ("more instructions in the same time", KIND), &ways)?);
    }
    for (index, latency) in first.latencies.iter().enumerate() {
        let ways = ways(&|governor| governor.latencies[index].ratio);
        let title = format!("{}, latency of 99 % of requests", latency.thread);
        figures.push(plot::ratios(&title, ("longer (more is worse)", KIND), &ways)?);
    }
    Ok(figures)
}
