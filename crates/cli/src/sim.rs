//! `dimmer sim`: simulates a workload on a processor model.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use comfy_table::{Cell, CellAlignment};
use dimmer_host::interrupt::Interrupt;
use dimmer_processor::model::Model;
use dimmer_processor::units::Nanos;
use dimmer_sim::scenario::{Latencies, Outcome, Scenario, ThreadOutcome};
use dimmer_sim::{Energy, Governor, Moment, Moving, Picos, Totals};
use serde::Serialize;

use crate::output::{self, Output};
use crate::report::table::{plain_table, styled};
use crate::{args, bad_input, input, model};

pub(crate) mod energy;
mod trace;

/// Microseconds in a picosecond.
const US: f64 = 1e-6;

/// The results; `docs/sim-json.md` describes every key.
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

pub(crate) fn run(arguments: &args::SimRun) -> anyhow::Result<ExitCode> {
    let json = arguments.json.open()?;
    let trace = arguments.trace.as_deref().map(Output::open).transpose()?;
    let is_piped = trace.as_ref().is_some_and(Output::is_standard);
    if is_piped && json.as_ref().is_some_and(Output::is_standard) {
        return Err(bad_input("--trace and --json: one of them goes to standard output, not both"));
    }
    let (scenario, model) = read(&arguments.scenario, arguments.model.model.as_deref())?;
    let governor = governor(arguments.governor);
    let moving = arguments.moving;
    let settings = scenario.settings(&model, governor, moving, arguments.seed);
    let settings = settings.map_err(bad_input)?;
    let interrupt = Interrupt::install().context("cannot handle signals")?;
    let traced = trace.is_some().then(trace::Trace::default);
    let (outcome, traced) =
        scenario.run_on(&model, settings, traced, &|| interrupt.is_set()).map_err(bad_input)?;
    if let (Some(trace), Some(traced)) = (trace, traced) {
        trace.write(&traced.encode(&scenario, &model, &outcome))?;
    }
    let rendered = || -> anyhow::Result<String> {
        let decide = (governor, moving);
        let document = document(&scenario, &model, decide, arguments.seed, &outcome);
        Ok(serde_json::to_string_pretty(&document)? + "\n")
    };
    match json {
        Some(json) if json.is_standard() => json.write(&rendered()?)?,
        json => {
            if !is_piped {
                print!("{}", text(&scenario, &model, governor, &outcome));
            }
            if let Some(json) = json {
                json.write(&rendered()?)?;
            }
        }
    }
    Ok(output::end(&interrupt))
}

/// Reads a scenario, and the model that it runs on.
pub(crate) fn read(path: &Path, model: Option<&str>) -> anyhow::Result<(Scenario, Model)> {
    let text = input::text(path);
    let scenario = Scenario::parse(path, &text.map_err(|error| bad_input(format!("{error:#}")))?);
    let scenario = scenario.map_err(bad_input)?;
    let model = model::read(model.unwrap_or(&scenario.model))?;
    Ok((scenario, model))
}

pub(crate) fn governor(governor: args::Governor) -> Governor {
    match governor {
        args::Governor::Hardware => Governor::Hardware,
        args::Governor::Avxfreq => Governor::AvxFreq,
        args::Governor::User => Governor::User,
        args::Governor::Oracle => Governor::Oracle,
        args::Governor::Predictive => Governor::Predictive,
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

fn document<'a>(
    scenario: &'a Scenario,
    model: &'a Model,
    (governor, moving): (Governor, Moving),
    seed: u64,
    outcome: &'a Outcome,
) -> Document<'a> {
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
        latencies_us: thread.latencies.as_ref().map(LatenciesDocument::new),
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
        threads: threads.collect(),
        cores: cores.collect(),
        packages: energy.map(of_packages),
        no_energy: outcome.energy.as_ref().err().map(ToString::to_string),
        unknown_idle_states: energy.map_or(&[], |energy| energy.unknown_states.as_slice()),
    }
}

fn text(scenario: &Scenario, model: &Model, governor: Governor, outcome: &Outcome) -> String {
    let mut text = format!(
        "{} ({})\non a model of {}, levels governed by {}\n{}\n",
        scenario.name,
        scenario.source,
        model.identity.name,
        governor.name(),
        partial(scenario, outcome)
    );
    let mut table = plain_table();
    table.set_header(["Thread", "code", "time", "instructions", "per ns"]);
    for thread in &outcome.threads {
        for phase in &thread.phases {
            let ns = phase.time.ns();
            let cells = [
                span(phase.time),
                format!("{:.4e}", phase.instructions),
                if ns > 0.0 { format!("{:.3}", phase.instructions / ns) } else { String::new() },
            ];
            let numbers = cells.map(|cell| Cell::new(cell).set_alignment(CellAlignment::Right));
            let names = [Cell::new(&thread.name), Cell::new(&phase.code)];
            table.add_row(names.into_iter().chain(numbers));
        }
    }
    let width = u16::try_from(output::width()).unwrap_or(u16::MAX);
    text.push_str(&styled(table, width, output::colour()));
    for thread in &outcome.threads {
        if let Some(Latencies { requests, p50, p99, p999, .. }) = thread.latencies {
            let [p50, p99, p999] = [p50, p99, p999].map(|ns| span(Nanos::from_ns(ns).picos()));
            let name = &thread.name;
            text.push_str(&format!(
                "\n{name}: {requests} requests, half within {p50}, 99 % within {p99}, 99.9 % within {p999}\n"
            ));
        }
    }
    let sum = |of: fn(&ThreadOutcome) -> u64| outcome.threads.iter().map(of).sum::<u64>();
    let (calls, moved) = (sum(|thread| thread.calls), sum(|thread| thread.moved));
    if calls > 0 {
        text.push_str(&format!(
            "\nMarked regions: {moved} of {calls} calls ran on dedicated cores\n"
        ));
    }
    text.push('\n');
    for (index, core) in outcome.cores.iter().enumerate() {
        text.push_str(&format!("Core {index}: {}\n", states(model, core)));
    }
    text + &energy::text(outcome)
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
