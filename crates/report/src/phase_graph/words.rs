//! What is known of a graph, in words.

use dimmer_policy::phases::{Core, Counts, Finding, Metric};

use super::{By, PhaseGraph, Solved};
use crate::number::{SPACE, counted, grouped, length, percent, time};

/// The name of a metric as an option and a key have it.
pub(super) const fn key(metric: Metric) -> &'static str {
    match metric {
        Metric::L3MissRate => "l3-misses",
        Metric::L2Rate => "l2",
        Metric::Cpi => "cpi",
    }
}

/// A metric as the heading of a column.
pub(super) const fn heading(metric: Metric) -> &'static str {
    match metric {
        Metric::L3MissRate => "miss rate",
        Metric::L2Rate => "L2 rate",
        Metric::Cpi => "CPI",
    }
}

/// What a metric is.
pub const fn meaning(metric: Metric) -> &'static str {
    match metric {
        Metric::L3MissRate => "L3 misses per instruction",
        Metric::L2Rate => "L2 latency per instruction",
        Metric::Cpi => "cycles per instruction",
    }
}

pub(super) const fn core(core: Core) -> &'static str {
    match core {
        Core::Fast => "fast",
        Core::Slow => "slow",
    }
}

/// A rate as the text of a graph has it.
pub(super) fn rate(value: f64) -> String {
    grouped(value, 6)
}

/// The number of calls.
pub(super) fn calls(counts: &Counts) -> String {
    counted(usize::try_from(counts.calls).unwrap_or(usize::MAX), "call")
}

/// What the share of an edge is a share of.
pub(super) fn share_heading(shown: &PhaseGraph) -> &'static str {
    if shown.shares.is_some_and(|shares| shares.is_of_cycles()) {
        "share of cycles"
    } else {
        "share of time"
    }
}

/// The share of an edge, if it is known.
pub(super) fn share(shown: &PhaseGraph, counts: &Counts) -> Option<String> {
    shown.shares.map(|shares| percent(shares.of_edge(counts)))
}

/// All numbers of an edge, a line each.
pub(super) fn numbers(shown: &PhaseGraph, counts: &Counts) -> Vec<String> {
    let per_call = |what: Option<u64>, name: &str| {
        what.map(|count| {
            format!("{} {name} a call", grouped(count as f64 / counts.calls as f64, 0))
        })
    };
    let heading = share_heading(shown);
    let spent = &counts.spent;
    let rates = [Metric::L3MissRate, Metric::L2Rate, Metric::Cpi].map(|metric| {
        metric.of(counts).map(|value| format!("{} {}", rate(value), meaning(metric)))
    });
    [
        Some(calls(counts)),
        share(shown, counts).map(|share| format!("{share} {}", &heading["share ".len()..])),
        spent.time.map(|all| format!("{} a call", time(all.as_f64() / counts.calls as f64))),
        per_call(spent.instructions, "instructions"),
    ]
    .into_iter()
    .chain(rates)
    .flatten()
    .collect()
}

/// The threshold in a sentence.
pub(super) fn threshold(shown: &PhaseGraph) -> String {
    let Some(threshold) = shown.found.threshold else {
        return if shown.has_counters() {
            "No two marks have different values, so no threshold divides them.".to_owned()
        } else {
            format!(
                "The graph has no counts of {}, so no mark has a value, and no threshold divides \
                 them.",
                meaning(shown.found.metric)
            )
        };
    };
    let marks = |core| counted(shown.marks_for(core), "mark");
    let (by, effect) = match &shown.found.by {
        By::Gap => ("in the largest gap", String::new()),
        By::Hand => ("by hand", String::new()),
        By::Energy(solved) => ("for least energy", energy(solved)),
    };
    format!(
        "The threshold {}, {by}: {} slow, {} fast.{effect}",
        rate(threshold.value()),
        marks(Core::Slow),
        marks(Core::Fast),
    )
}

/// What the threshold of least energy is expected to bring.
fn energy(solved: &Solved) -> String {
    let Solved { model, fast, slow, time_ratio, energy_ratio } = solved;
    let percent = |ratio: &f64| format!("{:+.1} %", 100.0 * (ratio - 1.0));
    format!(
        " By the model of {model}, with a core in {fast} and one in {slow}, the program takes {} \
         energy and {} time against the fast core alone.",
        percent(energy_ratio),
        percent(time_ratio)
    )
}

/// How many edges have a finding.
pub(super) fn sum(shown: &PhaseGraph) -> String {
    let edges = counted(shown.found.graph.edges().count(), "edge");
    match shown.found.findings.len() {
        0 => format!("None of {edges} should be looked at."),
        some => format!("{} of {edges} should be looked at.", length(some)),
    }
}

/// By what edges are too short, or why none is.
pub(super) fn shortest(shown: &PhaseGraph) -> String {
    let has_times = shown.found.graph.edges().any(|edge| edge.2.spent.time.is_some());
    match shown.found.migration {
        _ if !has_times => "No edge has a time: none was compared with a migration.".to_owned(),
        None => "The time of a migration is not known: no edge was compared with it.".to_owned(),
        Some(migration) => {
            format!("A migration there and back takes {}.", time(migration.as_f64()))
        }
    }
}

/// The kind of a finding as a key.
pub(super) const fn kind(finding: &Finding) -> &'static str {
    match finding {
        Finding::Unexpected { .. } => "unexpected",
        Finding::TooShort { .. } => "too-short",
        Finding::Mixed { .. } => "mixed",
        Finding::Diverse { .. } => "diverse",
        _ => "other",
    }
}

/// A finding in a sentence, with the marks between backticks.
pub(super) fn sentence(finding: &Finding, shown: &PhaseGraph) -> String {
    let (start, end) = finding.edge();
    let what = match finding {
        Finding::Unexpected { calls, of, .. } => format!(
            "unexpected: {} of {} calls from its start",
            grouped(*calls as f64, 0),
            grouped(*of as f64, 0)
        ),
        Finding::TooShort { time: mean, .. } => {
            let migration = shown.found.migration.map_or(f64::NAN, |time| time.as_f64());
            format!(
                "too short: {} a call, a migration there and back takes {}",
                time(mean.as_f64()),
                time(migration)
            )
        }
        Finding::Mixed { value, .. } => {
            let threshold = shown.found.threshold.map_or(f64::NAN, |threshold| threshold.value());
            format!("too mixed: {} is near the threshold {}", rate(*value), rate(threshold))
        }
        Finding::Diverse { value, mean, .. } => format!(
            "diverse: {}, the mean of the edges from its start is {}",
            rate(*value),
            rate(*mean)
        ),
        _ => String::new(),
    };
    let advice = finding.add_mark_between().map_or(String::new(), |(start, end)| {
        format!("; add a mark between `{start}` and `{end}`")
    });
    format!("`{start}`{SPACE}-> `{end}` is {what}{advice}.")
}
