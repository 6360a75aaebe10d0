//! The study as a page: a heat map for each model, with a row for each scenario that unfolds to
//! its ranking. Links choose the model.

use std::collections::BTreeMap;

use dimmer_policy::ways::WORTHWHILE;
use maud::{Markup, html};

use super::{CaseEntry, Document, IntervalEntry, ModelEntry, Ranked};
use crate::machine::MachineDescription;
use crate::number::{SPACE, counted, grouped, length, signed, time};
use crate::page::{command, page, prose};

/// The gain, or loss, that has the full color.
const FULL: f64 = 0.2;

/// The study as an HTML page.
pub(super) fn render(document: &Document, machine: &MachineDescription) -> String {
    let mut models: Vec<&ModelEntry> =
        document.models.iter().filter(|model| !fitting(document, model).is_empty()).collect();
    // Those on which most is gained come first.
    let gains = |model: &ModelEntry| {
        fitting(document, model).into_iter().filter(|case| case.is_worthwhile()).count()
    };
    models.sort_by_cached_key(|model| std::cmp::Reverse(gains(model)));
    let main = html! {
        section.study {
            h2 { "Gain by workload and mechanism" }
            nav.models aria-label="Processor models" {
                @for model in &models { a href=(format!("#{}", id(model))) { (model.title) } }
            }
            @for model in &models { (heat_map(document, model)) }
            p.command { (command(&machine.command)) }
        }
        section {
            h2 { "The mechanisms" }
            dl.facts {
                @for mechanism in &document.mechanisms {
                    div { dt { (mechanism.name) } dd { (prose(mechanism.summary)) } }
                }
            }
        }
    };
    let mut sentences: Vec<String> =
        document.told_partial().into_iter().map(str::to_owned).collect();
    sentences.push(
        "A number is the work that programs get done, in percent more than under `none` with the \
         same seed: a mean over seeds. It is pale if its 95 % interval has 0 in it. Underlined: the \
         first place, or several whose difference may be none. A row unfolds to the ranking with its \
         reasons. Columns in italics are bounds: no machine can have them today."
            .to_owned(),
    );
    let about = ("Dimmer study", "mechanisms compared");
    page(about, &title(document), &sentences, &main, machine).into_string()
}

/// What is first how often, in one sentence.
fn title(document: &Document) -> String {
    let mut firsts: BTreeMap<&str, usize> = BTreeMap::new();
    let is_fit = |case: &&CaseEntry| !case.partial && !case.ranking.is_empty();
    let fit: Vec<&CaseEntry> = document.cases.iter().filter(is_fit).collect();
    for case in fit.iter().filter(|case| case.is_worthwhile()) {
        // Several in the first place are counted as the one with the best mean.
        if let Some(best) = case.best().first() {
            *firsts.entry(best.mechanism).or_default() += 1;
        }
    }
    let gains: usize = firsts.values().sum();
    let percent = grouped(100.0 * WORTHWHILE, 0);
    let pairs = counted(fit.len(), "pair");
    let open = fit.iter().filter(|case| case.is_open()).count();
    match firsts.iter().max_by_key(|(_, count)| **count) {
        None if open > 0 => format!(
            "On {} of {pairs} of workload and processor, more seeds must show whether a mechanism \
             gains {percent}{SPACE}%; on the others, none does.",
            length(open)
        ),
        None => format!(
            "No mechanism gains {percent}{SPACE}% on any of {pairs} of workload and processor."
        ),
        Some((name, count)) => format!(
            "Of {pairs} of workload and processor, a mechanism gains {percent}{SPACE}% or more on \
             {}: {name} most often, on {}.",
            length(gains),
            length(*count)
        ),
    }
}

/// The anchor of a model's heat map: names of files have characters that anchors may not have.
fn id(model: &ModelEntry) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    format!("model-{}", model.name.chars().map(plain).collect::<String>())
}

/// The cases of a model in which something was simulated.
fn fitting<'a>(document: &'a Document, model: &ModelEntry) -> Vec<&'a CaseEntry> {
    let is_one = |case: &&CaseEntry| case.model == model.name && !case.ranking.is_empty();
    document.cases.iter().filter(is_one).collect()
}

fn heat_map(document: &Document, model: &ModelEntry) -> Markup {
    let cases = fitting(document, model);
    let is_used = |name: &str| {
        cases.iter().any(|case| case.ranking.iter().any(|ranked| ranked.mechanism == name))
    };
    let columns = document.mechanisms.iter().filter(|of| of.name != "none" && is_used(of.name));
    let columns: Vec<(&str, bool)> = columns.map(|of| (of.name, of.is_bound)).collect();
    let refused: Vec<&CaseEntry> = document
        .cases
        .iter()
        .filter(|case| case.model == model.name && case.does_not_apply.is_some())
        .collect();
    html! {
        article.without.model id=(id(model)) {
            h3 { (model.title) }
            p {
                @match model.hold_us {
                    Some(us) => { "A level is kept for " (time(us * 1e3)) " after its last use." }
                    None => { "The model does not say how long a level is kept." }
                }
            }
            div.scroll tabindex="0" {
                div.map style=(format!("--columns: {}", columns.len())) {
                    div.row.head {
                        span { "Scenario" }
                        @for (name, is_bound) in &columns {
                            span.bound[*is_bound] { (breakable(name)) }
                        }
                    }
                    @for case in &cases {
                        details {
                            summary.row {
                                span { (case.scenario) }
                                @for (name, _) in &columns { (cell(case, name)) }
                            }
                            (unfolded(case))
                        }
                    }
                }
            }
            @if !refused.is_empty() {
                details {
                    summary { "Does not apply: " (counted(refused.len(), "scenario")) }
                    ul.skipped {
                        @for case in &refused {
                            li {
                                (case.scenario) ": "
                                (prose(case.does_not_apply.as_deref().unwrap_or_default()))
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A name that may break after its hyphens.
fn breakable(name: &str) -> Markup {
    html! {
        @for (index, part) in name.split('-').enumerate() {
            @if index > 0 { "-" wbr; }
            (part)
        }
    }
}

fn cell(case: &CaseEntry, mechanism: &str) -> Markup {
    let Some(ranked) = case.ranking.iter().find(|ranked| ranked.mechanism == mechanism) else {
        let why = case.others.iter().find(|other| other.mechanism == mechanism);
        let why = why.map_or("not run", |other| other.does_not_apply.as_str());
        return html! { span.absent title=(why) { "·" } };
    };
    let gain = ranked.gain.mean;
    let strength = 65.0 * (gain.abs() / FULL).min(1.0).sqrt();
    let has_zero = ranked.gain.has_zero();
    let kind = match (has_zero, gain > 0.0) {
        (true, _) => "none",
        (false, true) => "gain",
        (false, false) => "loss",
    };
    let is_first = case.best().iter().any(|best| best.mechanism == mechanism);
    html! {
        span class=(kind) style=(format!("--strength: {strength:.0}%")) {
            @if is_first { u { (signed(100.0 * gain, 1)) } } @else { (signed(100.0 * gain, 1)) }
        }
    }
}

impl IntervalEntry {
    /// Whether the difference may be none, as the ranking has it.
    fn has_zero(self) -> bool {
        dimmer_study::ranking::Interval { mean: self.mean, ci95: self.ci95 }.has_zero()
    }
}

fn unfolded(case: &CaseEntry) -> Markup {
    let has_p99 = case.ranking.iter().any(|ranked| ranked.p99_us.is_some());
    let has_energy = case.ranking.iter().any(|ranked| ranked.joules.is_some());
    html! {
        div.unfolded {
            table {
                thead {
                    tr {
                        @for title in ["Rank", "Mechanism", "Gain"] { th scope="col" { (title) } }
                        @if has_p99 { th scope="col" { "99 % within" } }
                        @if has_energy { th scope="col" { "Energy" } }
                        @for title in ["Cores", "Reason"] { th scope="col" { (title) } }
                    }
                }
                tbody { @for ranked in &case.ranking { (row(ranked, has_p99, has_energy)) } }
            }
            @for turn in &case.sensitivity { p.quality { (turn.told()) } }
            @for (mechanisms, why) in case.refused() {
                p.quality { b { (mechanisms) } " does not apply: " (prose(why)) "." }
            }
        }
    }
}

fn row(ranked: &Ranked, has_p99: bool, has_energy: bool) -> Markup {
    html! {
        tr {
            td { (ranked.rank.map_or("–".to_owned(), |rank| rank.to_string())) }
            td { (ranked.mechanism) }
            td {
                (signed(100.0 * ranked.gain.mean, 2)) (SPACE) "%"
                @if let Some((low, high)) = ranked.gain.ci95.filter(|(low, high)| low < high) {
                    span.interval {
                        "[" (grouped(100.0 * low, 2)) "," (SPACE) (grouped(100.0 * high, 2)) "]"
                    }
                }
            }
            @if has_p99 { td { (ranked.told_p99()) } }
            @if has_energy {
                td { (ranked.energy.map_or(String::new(), IntervalEntry::told)) }
            }
            td { (grouped(ranked.cores, 2)) }
            td.reason { (ranked.reason) }
        }
    }
}
