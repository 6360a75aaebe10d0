//! The results of `dimmer sim run`: a workload on a processor model. `docs/sim-json.md` describes
//! the document.

pub(crate) mod assumed;
pub(crate) mod energy;
mod trace;

use dimmer_processor::model::Model;
use dimmer_processor::units::Nanos;
use dimmer_sim::scenario::{Latencies, Outcome, Scenario, ThreadOutcome};
use dimmer_sim::{Energy, Governor, Moment, Moving, Picos, Totals};
use serde::Serialize;

pub use trace::Trace;

use crate::screen::Screen;
use crate::table::{Cell, Table};

/// Microseconds in a picosecond.
const US: f64 = 1e-6;

/// The document `dimmer/sim/1`.
#[derive(Debug, Serialize)]
struct Document<'a> {
    schema: &'static str,
    scenario: &'a str,
    source: &'a str,
    model: &'a str,
    governor: &'static str,
    #[serde(rename = "loop")]
    moving: &'static str,
    seed: u64,
    /// Whether an interrupt ended the simulation early.
    partial: bool,
    end_us: f64,
    asked_us: Option<f64>,
    segments: u64,
    assumptions: Vec<assumed::Assumption>,
    #[serde(skip_serializing_if = "Option::is_none")]
    oracle_way: Option<&'static str>,
    threads: Vec<Thread<'a>>,
    cores: Vec<Core<'a>>,
    packages: Option<Vec<energy::Package>>,
    no_energy: Option<String>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    unknown_idle_states: &'a [String],
}

#[derive(Debug, Serialize)]
struct Thread<'a> {
    name: &'a str,
    finished_us: Option<f64>,
    phases: Vec<Phase<'a>>,
    calls: u64,
    moved: u64,
    traps: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    latencies_us: Option<LatenciesDocument>,
}

#[derive(Debug, Serialize)]
struct LatenciesDocument {
    requests: u64,
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    longest: f64,
}

#[derive(Debug, Serialize)]
struct Phase<'a> {
    code: &'a str,
    instructions: f64,
    time_us: f64,
}

#[derive(Debug, Serialize)]
struct Core<'a> {
    levels: Vec<Level<'a>>,
    throttled_us: f64,
    still_us: f64,
    governor_us: f64,
    delayed_us: f64,
    idle_us: f64,
    below_us: f64,
    changes: u64,
    interrupts: u64,
    energy: Option<energy::Core<'a>>,
}

#[derive(Debug, Serialize)]
struct Level<'a> {
    name: &'a str,
    time_us: f64,
}

/// A simulation, and what came of it.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// The workload.
    pub scenario: &'a Scenario,
    /// The processor.
    pub model: &'a Model,
    /// What governs license levels.
    pub governor: Governor,
    /// What moves marked regions.
    pub moving: Moving,
    /// The seed of the random numbers.
    pub seed: u64,
    /// What came of it.
    pub outcome: &'a Outcome,
}

impl<'a> Run<'a> {
    /// The document `dimmer/sim/1`.
    pub fn document(&self) -> impl Serialize + use<'a> {
        document(self)
    }

    /// The results as text.
    pub fn text(&self, screen: Screen) -> String {
        text(self, screen)
    }
}

impl LatenciesDocument {
    fn new(latencies: &Latencies) -> Self {
        let us = |ns: u64| ns as f64 / 1e3;
        let Latencies { requests, mean, p50, p90, p99, p999, longest } = *latencies;
        Self {
            requests,
            mean: mean / 1e3,
            p50: us(p50),
            p90: us(p90),
            p99: us(p99),
            p999: us(p999),
            longest: us(longest),
        }
    }
}

fn document<'a>(run: &Run<'a>) -> Document<'a> {
    let Run { scenario, model, governor, moving, seed, outcome } = *run;
    let us = |span: Picos| span.as_f64() * US;
    let at_us = |moment: Moment| us(moment.since_start());
    let threads = outcome.threads.iter().map(|thread| Thread {
        name: &thread.name,
        finished_us: thread.finished.map(at_us),
        phases: thread
            .phases
            .iter()
            .map(|phase| Phase {
                code: &phase.code,
                instructions: phase.instructions,
                time_us: us(phase.time),
            })
            .collect(),
        calls: thread.calls,
        moved: thread.moved,
        traps: thread.traps,
        latencies_us: thread
            .latencies
            .as_ref()
            .and_then(Latencies::if_any)
            .map(LatenciesDocument::new),
    });
    let energy = outcome.energy.as_ref().ok();
    let of_core = |core| Some(energy::Core::new(energy?.cores.get(core)?, model, outcome.end));
    let of_packages = |energy: &Energy| {
        energy.packages.iter().map(|one| energy::Package::new(one, outcome.end)).collect()
    };
    let cores = outcome.cores.iter().enumerate().map(|(index, core)| Core {
        levels: model
            .levels
            .iter()
            .zip(&core.level)
            .map(|(level, time)| Level { name: &level.name, time_us: us(*time) })
            .collect(),
        throttled_us: us(core.throttled),
        still_us: us(core.still),
        governor_us: us(core.stolen),
        delayed_us: us(core.delayed),
        idle_us: us(core.idle),
        below_us: us(core.below),
        changes: core.changes,
        interrupts: core.interrupts,
        energy: of_core(index),
    });
    Document {
        schema: "dimmer/sim/1",
        scenario: &scenario.name,
        source: &scenario.source,
        model: &model.identity.name,
        governor: governor.name(),
        moving: moving.name(),
        seed,
        partial: outcome.is_partial,
        end_us: at_us(outcome.end),
        asked_us: scenario.end().map(at_us),
        segments: outcome.segments,
        assumptions: assumed::assumptions(scenario, model, &[governor]),
        oracle_way: outcome.oracle_way.map(way),
        threads: threads.collect(),
        cores: cores.collect(),
        packages: energy.map(of_packages),
        no_energy: outcome.energy.as_ref().err().map(ToString::to_string),
        unknown_idle_states: energy.map_or(&[], |energy| energy.unknown_states.as_slice()),
    }
}

fn text(run: &Run<'_>, screen: Screen) -> String {
    let Run { scenario, model, governor, outcome, .. } = *run;
    let mut text = format!(
        "{} ({})\non a model of {}, levels governed by {}\n{}\n",
        scenario.name,
        scenario.source,
        model.identity.name,
        governor.name(),
        partial(scenario, outcome)
    );
    let mut table = Table::new(["Thread", "code", "time", "instructions", "per ns"]);
    for thread in &outcome.threads {
        for phase in &thread.phases {
            let ns = phase.time.ns();
            let cells = [
                span(phase.time),
                format!("{:.4e}", phase.instructions),
                if ns > 0.0 { format!("{:.3}", phase.instructions / ns) } else { String::new() },
            ];
            let numbers = cells.map(Cell::right);
            let names = [Cell::from(thread.name.as_str()), phase.code.as_str().into()];
            table.row(names.into_iter().chain(numbers));
        }
    }
    text.push_str(&table.render(screen));
    for thread in &outcome.threads {
        let Some(latencies) = thread.latencies else { continue };
        let name = &thread.name;
        let Latencies { requests, p50, p99, p999, .. } = latencies;
        if requests == 0 {
            text.push_str(&format!("\n{name}: served no request\n"));
            continue;
        }
        let [p50, p99, p999] = [p50, p99, p999].map(|ns| span(Nanos::from_ns(ns).picos()));
        text.push_str(&format!(
            "\n{name}: {requests} requests, half within {p50}, 99 % within {p99}, 99.9 % within {p999}\n"
        ));
    }
    let sum = |of: fn(&ThreadOutcome) -> u64| outcome.threads.iter().map(of).sum::<u64>();
    let (calls, moved) = (sum(|thread| thread.calls), sum(|thread| thread.moved));
    if calls > 0 {
        text.push_str(&format!(
            "\nMarked regions: {moved} of {calls} calls ran on dedicated cores\n"
        ));
    }
    let traps = sum(|thread| thread.traps);
    if traps > 0 {
        text.push_str(&format!("\nThreads were trapped at wide code {traps} times\n"));
    }
    text.push('\n');
    for (index, core) in outcome.cores.iter().enumerate() {
        text.push_str(&format!("Core {index}: {}\n", states(model, core)));
    }
    if let Some(chosen) = outcome.oracle_way {
        text.push_str(&format!("\nThe oracle's way: {}\n", way(chosen)));
    }
    text.push_str(&energy::text(outcome));
    let assumed = assumed::told(&assumed::assumptions(scenario, model, &[governor]));
    if assumed.is_empty() { text } else { text + "\n" + &assumed }
}

/// The name of the way that the oracle chose.
pub(crate) fn way(governor: Governor) -> &'static str {
    if governor == Governor::Oracle { "break-even" } else { governor.name() }
}

/// How far the simulation got, if an interrupt ended it.
fn partial(scenario: &Scenario, outcome: &Outcome) -> String {
    if !outcome.is_partial {
        return String::new();
    }
    let done = span(outcome.end.since_start());
    let asked = match scenario.end() {
        Some(end) => format!("{done} of {} were simulated", span(end.since_start())),
        None => {
            let threads = &outcome.threads;
            let finished = threads.iter().filter(|thread| thread.finished.is_some()).count();
            format!(
                "{done} were simulated, and {finished} of {} threads had finished",
                threads.len()
            )
        }
    };
    format!("PARTIAL: interrupted when {asked}.\n")
}

/// The time that a core spent in each state, without the states that did not occur.
fn states(model: &Model, core: &Totals) -> String {
    let all = core.level.iter().sum::<Picos>()
        + core.throttled
        + core.still
        + core.stolen
        + core.delayed
        + core.idle;
    let levels =
        model.levels.iter().zip(&core.level).map(|(level, time)| (level.name.as_str(), *time));
    let others = [
        ("throttled", core.throttled),
        ("standing still", core.still),
        ("for the governor", core.stolen),
        ("waking up and taking over threads", core.delayed),
        ("idle", core.idle),
    ];
    let parts = levels.chain(others).filter(|(_, time)| *time > Picos::ZERO).map(|(name, time)| {
        format!("{name} {} ({:.2} %)", span(time), 100.0 * time.as_f64() / all.as_f64())
    });
    let parts: Vec<String> = parts.collect();
    let below = if core.below > Picos::ZERO {
        format!("; {} of it below the level that the code asks for", span(core.below))
    } else {
        String::new()
    };
    format!("{}; {} changes of level{below}", parts.join(", "), core.changes)
}

/// A time with a suitable unit.
fn span(time: Picos) -> String {
    match time.as_f64() * US {
        us if us >= 1e6 => format!("{:.3} s", us / 1e6),
        us if us >= 1e3 => format!("{:.3} ms", us / 1e3),
        us => format!("{us:.3} µs"),
    }
}
