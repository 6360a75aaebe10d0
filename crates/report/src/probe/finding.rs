//! Cards: one finding each, in plain words, with its plots.

use dimmer_probe::outcome::{Detail, Downclock, Episode, Outcome, Quantity, Throttle, Throttling};
use dimmer_probe::program::Counts;
use maud::{Markup, html};

use super::readings::readings;
use super::verdict::KernelFindings;
use super::words;
use crate::number::{counted, grouped, length, time};
use crate::page::{figure, prose, unfold};
use crate::plot::{self, DrawError, Figure, Scale};

/// A kernel with an effect: a card for each mode.
pub(super) fn kernel(kernel: &KernelFindings<'_>) -> Result<Markup, DrawError> {
    let cards: Vec<Markup> = kernel.transitions().map(card).collect::<Result<_, _>>()?;
    let sweep = plot::sweep(&kernel.episodes())?;
    Ok(html! {
        section {
            h2.kernel { code { (kernel.name) } span.label { (kernel.class) } }
            @if let Some(sweep) = &sweep {
                article {
                    div.words {
                        h3 { "Burst length" span.label { "cost by number of instructions" } }
                        p { (sweep.caption) }
                    }
                    div.figures { (figure(sweep)) }
                }
            }
            @for card in &cards { (card) }
        }
    })
}

/// A kernel without any effect, in few words.
pub(super) fn absent(kernel: &KernelFindings<'_>) -> Result<Markup, DrawError> {
    let mut evidence = Vec::new();
    for outcome in kernel.transitions() {
        evidence.extend(main_figure(outcome)?);
    }
    Ok(html! {
        article.without {
            h3 { code { (kernel.name) } span.label { (kernel.class) } }
            @for outcome in kernel.transitions() {
                p { b { (heading(outcome)) ". " } (prose(&words::verdict(outcome))) }
            }
            @if let Some(outcome) = kernel.transitions().next() {
                p.advice { (prose(&words::advice(outcome))) }
            }
            @if !evidence.is_empty() {
                details {
                    summary { "What was seen" }
                    @for evidence in &evidence { (figure(evidence)) }
                }
            }
        }
    })
}

/// The mode, and the burst's length if there is one.
fn heading(outcome: &Outcome) -> String {
    let title = words::title(outcome.mode).0;
    let burst = match &outcome.detail {
        Detail::Episode(episode) => episode.burst_instructions,
        Detail::Recurrence(recurrence) => recurrence.burst_instructions,
        _ => return title.to_owned(),
    };
    format!("{title}, {}", counted(burst as usize, "instruction"))
}

fn card(outcome: &Outcome) -> Result<Markup, DrawError> {
    let figures = if outcome.effect { figures(outcome)? } else { Vec::new() };
    let rows: Vec<Vec<String>> = readings(outcome)
        .into_iter()
        .filter_map(|reading| {
            let interval = reading.interval.unwrap_or_default();
            Some(vec![reading.label.to_owned(), reading.value?, interval])
        })
        .collect();
    let header = ["", "median", "95 % interval"].map(str::to_owned);
    Ok(html! {
        article {
            div.words {
                h3 { (heading(outcome)) span.label { (words::title(outcome.mode).1) } }
                p.verdict { (prose(&words::verdict(outcome))) }
                p.advice { (prose(&words::advice(outcome))) }
                p.quality {
                    (counted(outcome.repetitions, "repetition")) " on CPU " (outcome.cpu)
                    @if outcome.threads > 1 { ", " (outcome.threads) " CPUs in step" }
                    "; " (counted(outcome.disturbed_windows, "window")) " left out, "
                    (length(outcome.stolen_windows)) " stolen"
                }
                @if let Some(counts) = &outcome.counts { p.quality { (counters(counts)) } }
                (unfold("Numbers", &header, &rows))
            }
            @if !figures.is_empty() {
                div.figures { @for one in &figures { (figure(one)) } }
            }
        }
    })
}

/// The values of performance counters during the timing.
fn counters(counts: &Counts) -> String {
    let cycles = counts.of("cycles").filter(|_| counts.ns > 0.0);
    let clock = cycles.map(|cycles| {
        let ghz = grouped(cycles as f64 / counts.ns, 3);
        format!("Counters: {ghz} GHz over {}, scalar code included", time(counts.ns))
    });
    let others = counts.events.iter().filter(|(name, _)| *name != "cycles");
    let others = others.map(|(name, number)| format!("{name} {}", grouped(*number as f64, 0)));
    clock.into_iter().chain(others).collect::<Vec<_>>().join("; ")
}

fn figures(outcome: &Outcome) -> Result<Vec<Figure>, DrawError> {
    let mut figures: Vec<Figure> = main_figure(outcome)?.into_iter().collect();
    match &outcome.detail {
        Detail::Episode(episode) => figures.extend(of_episode(episode)?),
        Detail::Downclock(downclock) => figures.extend(of_downclock(downclock)?),
        Detail::Throttle(throttle) => figures.extend(of_throttle(throttle)?),
        Detail::Instructions(_) | Detail::Recurrence(_) | Detail::Levels(_) => {}
    }
    Ok(figures)
}

/// The plot that shows the effect, or that there is none.
fn main_figure(outcome: &Outcome) -> Result<Option<Figure>, DrawError> {
    match &outcome.detail {
        Detail::Episode(episode) => {
            let delay = episode.release_delay_ns.as_ref();
            let marks: Vec<_> = delay.map(|delay| ("nominal after", delay)).into_iter().collect();
            plot::clock(&episode.curve, "after the burst", &marks)
        }
        Detail::Downclock(downclock) => {
            let settle = downclock.settle_ns.as_ref();
            let marks: Vec<_> =
                settle.map(|settle| ("settled after", settle)).into_iter().collect();
            plot::clock(&downclock.curve, "after the first instruction", &marks)
        }
        Detail::Throttle(throttle) => plot::throughput(&throttle.throughput, Scale::Count),
        Detail::Instructions(instructions) => plot::response(instructions),
        Detail::Recurrence(recurrence) => plot::recurrence(recurrence),
        Detail::Levels(_) => Ok(None),
    }
}

fn histograms<'a>(
    quantities: impl IntoIterator<Item = (&'a str, Option<&'a Quantity>, Scale)>,
) -> Result<Vec<Figure>, DrawError> {
    let present = quantities.into_iter().filter_map(|(name, of, scale)| Some((name, of?, scale)));
    present.map(|(name, quantity, scale)| plot::histogram(name, quantity, scale)).collect()
}

fn throttled(throttling: Option<&Throttling>) -> Option<&Quantity> {
    throttling.map(|throttling| &throttling.throttled_ns)
}

fn of_episode(episode: &Episode) -> Result<Vec<Figure>, DrawError> {
    histograms([
        ("the cost after the burst", Some(&episode.extra_ns), Scale::Time),
        ("the return to the nominal clock", episode.release_delay_ns.as_ref(), Scale::Time),
        ("the stall", episode.release_stall_ns.as_ref(), Scale::Time),
        ("throttled execution", throttled(episode.throttling.as_ref()), Scale::Time),
    ])
}

fn of_downclock(downclock: &Downclock) -> Result<Vec<Figure>, DrawError> {
    let throughput = plot::throughput(&downclock.throughput, Scale::Time)?;
    let histograms = histograms([
        ("the time to the settled clock", downclock.settle_ns.as_ref(), Scale::Time),
        ("the stall", downclock.stall_ns.as_ref(), Scale::Time),
        ("throttled execution", throttled(downclock.throttling.as_ref()), Scale::Time),
    ])?;
    Ok(throughput.into_iter().chain(histograms).collect())
}

fn of_throttle(throttle: &Throttle) -> Result<Vec<Figure>, DrawError> {
    histograms([
        ("the time before throttling", throttle.pre_throttle_ns.as_ref(), Scale::Time),
        (
            "instructions before throttling",
            throttle.pre_throttle_instructions.as_ref(),
            Scale::Count,
        ),
        ("throttled execution", throttled(throttle.throttling.as_ref()), Scale::Time),
    ])
}
