//! The observations of `dimmer observe` as a page: what the calls cost, what to do about it, and
//! the distributions of calls and of the gaps after them.

use std::path::Path;

use maud::{Markup, html};

use super::text;
use super::{File, Function, Report};
use crate::machine::MachineDescription;
use crate::number::{counted, grouped, length, percent, time};
use crate::page::{Drawing as _, PageError, command, figure, page, unfold};
use crate::plot::{self, DrawError, Figure};

/// Maximum number of functions shown with plots.
const SHOWN: usize = 8;

/// The report as an HTML page.
pub(super) fn render(report: &Report, machine: &MachineDescription) -> Result<String, PageError> {
    let subject = report.command.join(" ");
    let shown = report.functions.iter().take(SHOWN);
    let articles: Vec<Markup> =
        shown.map(|one| article(one, report).of(&one.title)).collect::<Result<_, _>>()?;
    let main = html! {
        (facts(report, machine))
        @if !report.ways.is_empty() { (ways(report)) }
        @if !articles.is_empty() {
            section {
                h2 { "Functions, most time first" }
                @for one in &articles { (one) }
            }
        }
        (all(report))
        (files(report))
        (method(report))
    };
    let sentences = text::sentences(report);
    Ok(page(("Dimmer observe", &subject), &title(report), &sentences, &main, machine).into_string())
}

fn title(report: &Report) -> String {
    match report.lost {
        _ if report.functions.is_empty() => "No wide SIMD function was called.".to_owned(),
        None => "Wide SIMD functions are called; what that costs is not known.".to_owned(),
        Some(lost) if lost.share < 5e-4 => {
            "Wide SIMD functions are called, at next to no cost to the rest.".to_owned()
        }
        Some(lost) => format!(
            "Wide SIMD calls cost the code around them {} of its time.",
            percent(lost.share)
        ),
    }
}

fn facts(report: &Report, machine: &MachineDescription) -> Markup {
    let hooked: usize = report.files.iter().map(|file| file.hooked).sum();
    let model = report.model.as_ref();
    let facts = [
        ("Observed for", format!("{} s", grouped(report.lasted_s, 1))),
        ("On CPUs", format!("{} s", grouped(report.cpu_s, 1))),
        ("Processes", length(report.processes)),
        ("Threads with hooked calls", length(report.threads)),
        ("Functions hooked", length(hooked)),
        ("Chosen by", [&report.hooked_classes[..], &report.hooked_names].concat().join(", ")),
        ("Processor", machine.brand.clone()),
        ("Model", model.map_or_else(|| "none".to_owned(), |model| model.source.clone())),
    ];
    html! {
        section {
            h2 { "The run" }
            dl.facts {
                @for (term, value) in &facts { div { dt { (term) } dd { (value) } } }
            }
            p.command { (command(&machine.command)) }
        }
    }
}

fn ways(report: &Report) -> Markup {
    html! {
        section {
            h2 { "Ways out, the best first" }
            ul.skipped.ways {
                @for outlook in &report.ways {
                    @let (what, way) = text::words(outlook, report);
                    li {
                        (what)
                        @if let Some(line) = way { ": " (command(&line)) } @else { "." }
                    }
                }
            }
        }
    }
}

fn article(function: &Function, report: &Report) -> Result<Markup, DrawError> {
    let mut figures: Vec<Figure> = Vec::new();
    if let Some(lasted) = &function.lasted_ns {
        figures.extend(plot::spread("the time that a call takes", &lasted.histogram, None)?);
    }
    if let Some(gap) = &function.gap_after_ns {
        let kept = report.lost.map(|lost| (lost.kept_below_ns, "kept below"));
        figures.extend(plot::spread("the gap until the next call", &gap.histogram, kept)?);
    }
    let file = Path::new(&function.file).file_name().unwrap_or_default().to_string_lossy();
    let class = function.class.as_deref().unwrap_or("unknown");
    let lowest = report.model.as_ref().and_then(|model| model.levels.first());
    let level = function.level.as_ref().map(|level| {
        if Some(level) == lowest {
            format!(", asks for no license level above {level}")
        } else {
            format!(", asks for license level {level}")
        }
    });
    Ok(html! {
        article {
            div {
                h3 {
                    code { (function.title) }
                    span.label { (file) ", " (class) (level.unwrap_or_default()) }
                }
                p {
                    (grouped(function.calls as f64, 0)) " calls, "
                    (grouped(function.calls_per_s, 0)) " a second."
                    @if let Some(share) = function.time_share {
                        " They take " (percent(share)) " of the time on CPUs"
                        @if let Some(lost) = function.lost_share {
                            ", and cost the code after them " (percent(lost))
                        }
                        "."
                    }
                }
                p.quality {
                    (grouped(function.timed as f64, 0)) " of them timed; threads: " (length(function.threads))
                }
            }
            @if !figures.is_empty() {
                div.figures { @for one in &figures { (figure(one)) } }
            }
        }
    })
}

/// Every function that was called.
fn all(report: &Report) -> Markup {
    if report.functions.is_empty() {
        return html! {};
    }
    let header = text::HEADER.map(str::to_owned);
    let rows: Vec<Vec<String>> = report.functions.iter().map(text::row).collect();
    html! {
        section {
            h2 { "All of them" }
            p { "Times are medians; shares are parts of the program's time on CPUs." }
            (unfold(&counted(report.functions.len(), "function"), &header, &rows))
        }
    }
}

fn files(report: &Report) -> Markup {
    let header = [
        "file",
        "functions of these classes",
        "hooked",
        "of these not all calls counted",
        "problem",
    ]
    .map(str::to_owned);
    let row = |file: &File| {
        let numbers = [file.wide_functions, file.hooked, file.entered_unseen].map(length);
        let problem = file.problem.clone().unwrap_or_default();
        [file.path.clone()].into_iter().chain(numbers).chain([problem]).collect()
    };
    let rows: Vec<Vec<String>> = report.files.iter().map(row).collect();
    html! {
        section {
            h2 { "Files" }
            p { code { "dimmer scan" } " says why the other functions are not hooked, and why not all calls are counted." }
            (unfold(&counted(rows.len(), "file"), &header, &rows))
        }
    }
}

fn method(report: &Report) -> Markup {
    let is_marked = report.lost.is_some_and(|lost| lost.kept_below_ns > 0.0)
        && report.functions.iter().any(|function| function.gap_after_ns.is_some());
    let short = if is_marked { " (the mark in the plots of gaps)" } else { "" };
    html! {
        section {
            h2 { "How this is known" }
            p {
                "Calls are counted, every one of them, by a hook at the function's entry; some are timed, and \
                 stand for those around them. What the calls cost is not measured but computed, by the model of \
                 this processor that the probe has measured: a gap shorter than the level is kept"
                (short) " is spent at the lower clock, as the next call keeps the level; after a longer one the level \
                 was given back with a stall, and the next call was throttled until it was granted again."
            }
            p {
                "Where the effect comes and goes, as on a shared host, that is more than is really lost. "
                "Time " (time(0.0)) " means less than timing can tell."
            }
        }
    }
}
