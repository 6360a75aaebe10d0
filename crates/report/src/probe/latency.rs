//! What `dimmer probe --mode latency,pstate` measured, as a text and as the document
//! `dimmer/probe-latency/1`, whose keys `docs/probe-latency-json.md` describes.

use dimmer_bench::latencies::Latencies;
use dimmer_bench::moves::{Moves, Way};
use dimmer_probe::latency::{Found, Latency, Relation, What};
use dimmer_probe::outcome::Quantity;
use dimmer_probe::stats::{Estimate, Samples};
use dimmer_probe::transition::{Measured, Pair, Point};
use dimmer_processor::units::CpuId;
use serde::Serialize;

use super::json::{MachineEntry, QuantityEntry};
use crate::estimate::{EstimateEntry, rounded};
use crate::machine::MachineDescription;
use crate::number::{grouped, length, time, time_estimate};
use crate::screen::Screen;
use crate::table::{Cell, Table};

/// The moves of the runtime, by the names in documents: there and back.
const MOVES: [(Way, &str, &str); 3] = [
    (Way::Delegate, "runtime-delegate", "Dimmer's runtime executes an empty closure there"),
    (Way::Migrate, "runtime-migrate-call", "it executes an empty call there, on the same stack"),
    (Way::Migration, "runtime-migrate", "it moves the thread there and back"),
];

/// The document.
#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    machine: MachineEntry<'a>,
    tsc_ghz: Option<f64>,
    offset_bound_ns: Option<f64>,
    latencies: Vec<LatencyEntry>,
    transitions: Option<TransitionsEntry>,
    skipped: Vec<SkippedEntry>,
    interrupted: bool,
}

#[derive(Serialize)]
struct LatencyEntry {
    what: &'static str,
    from_cpu: u32,
    to_cpu: Option<u32>,
    relation: Option<&'static str>,
    latency_ns: Option<QuantityEntry>,
    samples: usize,
    left_out: usize,
    is_steady: Option<bool>,
}

#[derive(Serialize)]
struct SkippedEntry {
    what: String,
    reason: String,
}

#[derive(Serialize)]
struct TransitionsEntry {
    cpu: u32,
    requested_by: String,
    points: Vec<PointEntry>,
    pairs: Vec<PairEntry>,
}

#[derive(Serialize)]
struct PointEntry {
    clock_khz: u64,
    window_ns: Option<QuantityEntry>,
    speed_ratio: Option<EstimateEntry>,
}

#[derive(Serialize)]
struct PairEntry {
    from_khz: u64,
    to_khz: u64,
    is_distinct: bool,
    request_ns: Option<QuantityEntry>,
    transition_ns: Option<QuantityEntry>,
    unseen: usize,
}

fn quantity(samples: &Samples) -> Option<QuantityEntry> {
    Quantity::new(samples.clone()).map(|quantity| QuantityEntry::from(&quantity))
}

impl From<&Latency> for LatencyEntry {
    fn from(latency: &Latency) -> Self {
        Self {
            what: latency.what.name(),
            from_cpu: latency.from.index(),
            to_cpu: latency.to.map(|(cpu, _)| cpu.index()),
            relation: latency.to.map(|(_, relation)| relation.name()),
            latency_ns: quantity(&latency.ns),
            samples: latency.ns.len(),
            left_out: latency.left_out,
            is_steady: Some(latency.is_steady),
        }
    }
}

/// The runtime's moves, as far as it can move.
fn moves(moves: &Moves) -> impl Iterator<Item = LatencyEntry> {
    MOVES.into_iter().filter_map(|(way, what, _)| {
        let trips = moves.of(way)?;
        Some(LatencyEntry {
            what,
            from_cpu: moves.home.index(),
            to_cpu: Some(moves.away.index()),
            relation: None,
            latency_ns: quantity(&trips.all),
            samples: trips.all.len(),
            left_out: 0,
            is_steady: None,
        })
    })
}

fn transitions(measured: &Measured) -> TransitionsEntry {
    let points = &measured.transitions.points;
    let khz = |index: usize| points.get(index).map_or(0, |point| point.clock.khz());
    TransitionsEntry {
        cpu: measured.cpu.index(),
        requested_by: measured.by.clone(),
        points: points.iter().map(|point| point_entry(point, points)).collect(),
        pairs: measured
            .transitions
            .pairs
            .iter()
            .map(|pair| PairEntry {
                from_khz: khz(pair.from),
                to_khz: khz(pair.to),
                is_distinct: pair.is_distinct,
                request_ns: quantity(&pair.request_ns),
                transition_ns: quantity(&pair.transition_ns),
                unseen: pair.unseen,
            })
            .collect(),
    }
}

fn point_entry(point: &Point, points: &[Point]) -> PointEntry {
    let ratio = points.first().and_then(|first| point.ratio_to(first));
    PointEntry {
        clock_khz: point.clock.khz(),
        window_ns: quantity(&point.window_ns),
        speed_ratio: ratio.map(EstimateEntry::from),
    }
}

/// What is missing.
fn skipped(found: &Latencies) -> Vec<SkippedEntry> {
    let entry = |what: &str, reason: &str| SkippedEntry {
        what: what.to_owned(),
        reason: reason.to_owned(),
    };
    let own = found.latency.iter().flat_map(|latency| &latency.skipped);
    let mut skipped: Vec<_> = own.map(|one| entry(one.what, &one.reason)).collect();
    if let Some(Err(reason)) = &found.moves {
        skipped.push(entry("moves by the runtime", reason));
    }
    if let Some(Ok(moves)) = &found.moves
        && let Some(why) = &moves.cannot_migrate
    {
        skipped.push(entry("migration by the runtime", &why.to_string()));
    }
    if let Some(Err(reason)) = &found.pstate {
        skipped.push(entry("operating points", reason));
    }
    skipped
}

fn entries(found: &Latencies) -> Vec<LatencyEntry> {
    let own = found.latency.iter().flat_map(|latency| &latency.latencies);
    let of_runtime = found.moves.iter().flatten().flat_map(moves);
    own.map(LatencyEntry::from).chain(of_runtime).collect()
}

fn measured(found: &Latencies) -> Option<&Measured> {
    found.pstate.as_ref()?.as_ref().ok()
}

/// The document `dimmer/probe-latency/1`.
pub fn document<'a>(
    found: &Latencies,
    machine: &'a MachineDescription,
) -> impl Serialize + use<'a> {
    let latency = found.latency.as_ref();
    let is_cut = |found: &Found| found.interrupted;
    let pstate = measured(found);
    Document {
        schema: "dimmer/probe-latency/1",
        machine: machine.into(),
        tsc_ghz: latency.map(|latency| rounded(latency.tsc.ghz())),
        offset_bound_ns: latency.and_then(|latency| latency.offset_bound_ns).map(rounded),
        latencies: entries(found),
        transitions: pstate.map(transitions),
        skipped: skipped(found),
        interrupted: latency.is_some_and(is_cut)
            || pstate.is_some_and(|measured| measured.transitions.interrupted),
    }
}

/// What a name stands for.
const fn description(what: What) -> &'static str {
    match what {
        What::Line => "a cache line to the other CPU and back",
        What::WaitSpin => "a write until a spinning thread sees it, looking without a pause",
        What::WaitPause => "the same, with PAUSE between looks",
        What::WaitYield => "the same, with sched_yield between looks",
        What::WaitUmwaitC01 => "the same, by UMWAIT in C0.1",
        What::WaitUmwaitC02 => "the same, by UMWAIT in C0.2",
        What::WaitMwaitxC0 => "the same, by MWAITX with the hint for C0",
        What::WaitMwaitxC1 => "the same, by MWAITX with the hint for C1",
        What::Wake => "FUTEX_WAKE until it returns, of a thread that slept for 0.1 ms",
        What::Woken => "FUTEX_WAKE until that thread runs",
        What::WakeLong => "the same as futex-wake, after 5 ms of sleep",
        What::WokenLong => "the same as futex-woken, after 5 ms of sleep",
        What::Migrate => "sched_setaffinity to the other CPU, which is idle",
        What::MigrateAwake => "the same, to a CPU that is kept awake",
        What::Stamps => "two time stamps, which are taken off what follows",
        What::Call => "a system call that does next to nothing",
        What::FutexWait => "FUTEX_WAIT on a word that differs, which returns at once",
        What::FutexWake => "FUTEX_WAKE without a thread to wake",
        What::Yield => "sched_yield with nothing else to run",
        What::Pause => "a PAUSE",
        What::TpauseC01 => "TPAUSE in C0.1: how long after its deadline it ends",
        What::TpauseC02 => "TPAUSE in C0.2: the same",
    }
}

/// The results as text.
#[must_use]
pub fn text(found: &Latencies, screen: Screen) -> String {
    let mut text = String::new();
    if let Some(latency) = &found.latency {
        text += "Latencies: what waiting, waking and moving cost\n";
        text += &table(&entries(found), screen);
        text += &format!("\n{}\n", legend(found));
        for (one, other, relation) in pairs(latency) {
            text += &format!("CPUs {one} and {other} are {}.\n", relation.words());
        }
        if let Some(bound) = latency.offset_bound_ns {
            text += &screen.fill(&format!(
                "Times until another CPU sees something are wrong by at most {}: the counters of \
                 two CPUs are compared by cache lines.",
                time(bound)
            ));
        }
    }
    if let Some(measured) = measured(found) {
        text += if text.is_empty() { "" } else { "\n" };
        text += &points(measured, screen);
    }
    for one in skipped(found) {
        text += &screen.fill(&format!("Not here: {}: {}", one.what, one.reason));
    }
    screen.shown(&text)
}

/// The pairs of CPUs, once each.
fn pairs(found: &Found) -> Vec<(CpuId, CpuId, Relation)> {
    let mut pairs: Vec<(CpuId, CpuId, Relation)> = Vec::new();
    for latency in &found.latencies {
        let Some((to, relation)) = latency.to else { continue };
        let pair = (latency.from.min(to), latency.from.max(to), relation);
        if !pairs.contains(&pair) {
            pairs.push(pair);
        }
    }
    pairs
}

fn table(entries: &[LatencyEntry], screen: Screen) -> String {
    let heads = ["CPUs", "median", "95 % interval", "middle half", "95 % below"];
    let heads = heads.into_iter().map(Cell::from).chain([Cell::right("samples"), Cell::from("")]);
    let mut table = Table::new([Cell::from("what")].into_iter().chain(heads));
    table.set_least_width(0, 20);
    table.set_least_width(1, 7);
    for entry in entries {
        let to = entry.to_cpu.map(|cpu| format!(" to {cpu}")).unwrap_or_default();
        let [median, interval, half, most] = cells(entry.latency_ns.as_ref());
        let unsteady = (entry.is_steady == Some(false)).then(|| "not steady".to_owned());
        let missing = (entry.left_out > 0).then(|| format!("{} left out", entry.left_out));
        let notes: Vec<String> = unsteady.into_iter().chain(missing).collect();
        table.row([
            Cell::from(entry.what),
            Cell::from(format!("{}{to}", entry.from_cpu)),
            Cell::right(median),
            Cell::from(interval),
            Cell::from(half),
            Cell::right(most),
            Cell::right(length(entry.samples)),
            Cell::from(notes.join(", ")),
        ]);
    }
    table.render(screen)
}

/// Median, interval, quartiles and the 95th percentile.
fn cells(quantity: Option<&QuantityEntry>) -> [String; 4] {
    let Some(quantity) = quantity else {
        return ["-".to_owned(), String::new(), String::new(), String::new()];
    };
    let (median, interval) = time_estimate(&quantity.estimate());
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), time);
    let quartiles = quantity.p25.zip(quantity.p75).unwrap_or((f64::NAN, f64::NAN));
    let (_, half) = time_estimate(&Estimate { ci95: quartiles, ..quantity.estimate() });
    [median, interval, half, number(quantity.p95)]
}

fn legend(found: &Latencies) -> String {
    let mut lines: Vec<(&str, &str)> = Vec::new();
    for latency in found.latency.iter().flat_map(|latency| &latency.latencies) {
        let line = (latency.what.name(), description(latency.what));
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    if let Some(Ok(moves)) = &found.moves {
        let had = MOVES.into_iter().filter(|(way, ..)| moves.of(*way).is_some());
        lines.extend(had.map(|(_, name, description)| (name, description)));
    }
    let line = |(name, description): (&str, &str)| format!("{name:<21}{description}\n");
    lines.into_iter().map(line).collect()
}

fn points(measured: &Measured, screen: Screen) -> String {
    let mut text =
        format!("Operating points of CPU {}, requested by {}\n", measured.cpu, measured.by);
    let found = &measured.transitions;
    let mhz = |point: &Point| grouped(point.clock.khz() as f64 / 1e3, 0);
    let mut table = Table::new(["MHz", "a window takes", "95 % interval", "faster than the first"]);
    for point in &found.points {
        let window = quantity(&point.window_ns);
        let [median, interval, ..] = cells(window.as_ref());
        let ratio = found.points.first().and_then(|first| point.ratio_to(first));
        let ratio = ratio.map_or_else(String::new, |ratio| grouped(ratio.median, 3));
        table.row([
            Cell::right(mhz(point)),
            Cell::right(median),
            Cell::from(interval),
            Cell::right(ratio),
        ]);
    }
    text += &table.render(screen);
    text += "\nTransitions: the request, and from its start until the new clock is there\n";
    let heads = ["MHz", "request", "95 % interval", "new clock", "95 % interval", ""];
    let mut table = Table::new(heads);
    for pair in &found.pairs {
        let ends =
            [pair.from, pair.to].map(|index| found.points.get(index).map_or_else(String::new, mhz));
        let [request, of_request, ..] = cells(quantity(&pair.request_ns).as_ref());
        let [there, of_there, ..] = cells(quantity(&pair.transition_ns).as_ref());
        table.row([
            Cell::from(ends.join(" to ")),
            Cell::right(request),
            Cell::from(of_request),
            Cell::right(there),
            Cell::from(of_there),
            Cell::from(note(pair)),
        ]);
    }
    text + &table.render(screen)
}

fn note(pair: &Pair) -> String {
    if !pair.is_distinct {
        "both run at the same speed".to_owned()
    } else if pair.unseen > 0 {
        format!("{} not seen", pair.unseen)
    } else {
        String::new()
    }
}

#[cfg(test)]
mod tests;
