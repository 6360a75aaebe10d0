//! `dimmer bench dev delegate|migrate-call|migrate|region`: the cost of moving work to another
//! core, and of marking what might be moved.

use std::process::ExitCode;

use dimmer_bench::moves::{self, Moves, Trips, Way};
use dimmer_bench::region;
use dimmer_host::root::Root;
use dimmer_probe::stats::Samples;
use serde::Serialize;

use crate::args::BenchMoves;
use crate::output;
use crate::report::number::grouped;

use super::hook::Measured;
use super::progress;

/// The time of one way; `docs/bench-json.md` describes every key.
#[derive(Debug, Serialize)]
struct WayJson {
    way: &'static str,
    round_trip_ns: Option<Quantiles>,
    round_trip_cycles: Option<f64>,
    ratio_to_pingpong: Option<Measured>,
}

#[derive(Debug, Serialize)]
struct Quantiles {
    p10: f64,
    median: f64,
    p90: f64,
    p99: f64,
}

/// Results of `dimmer bench dev delegate`, `migrate-call` and `migrate`.
#[derive(Debug, Serialize)]
struct MovesJson {
    schema: &'static str,
    home_cpu: u32,
    away_cpu: u32,
    rounds: u32,
    ratio_to_pingpong: Option<Measured>,
    cannot: Option<String>,
    ways: Vec<WayJson>,
}

/// Results of `dimmer bench dev region`.
#[derive(Debug, Serialize)]
struct RegionJson {
    schema: &'static str,
    rounds: u32,
    plain_ns: Option<Measured>,
    stay_ns: Option<Measured>,
    served_ns: Option<Measured>,
}

/// Measures the time to move work, and shows one of the ways beside the others.
pub(crate) fn run(root: &Root, arguments: &BenchMoves, way: Way) -> anyhow::Result<ExitCode> {
    let json = arguments.json.open()?;
    let bar = progress(arguments.rounds.into());
    let rounds = usize::try_from(arguments.rounds)?;
    let moves = moves::measure(root, rounds, || bar.inc(1))?;
    bar.finish_and_clear();
    let report = MovesJson::new(&moves, way, arguments.rounds);
    output::show(json, &report, &text(&report, way))?;
    Ok(ExitCode::SUCCESS)
}

/// Measures the cost of a region that stays.
pub(crate) fn region(arguments: &BenchMoves) -> anyhow::Result<ExitCode> {
    let json = arguments.json.open()?;
    let bar = progress(arguments.rounds.into());
    let rounds = region::measure(usize::try_from(arguments.rounds)?, || bar.inc(1));
    bar.finish_and_clear();
    let measured = |of: fn(&region::Round) -> f64| {
        rounds.iter().map(of).collect::<Samples>().estimate().map(Measured::new)
    };
    let report = RegionJson {
        schema: "dimmer/bench-region/1",
        rounds: arguments.rounds,
        plain_ns: measured(|round| round.plain_ns),
        stay_ns: measured(|round| round.region_ns - round.plain_ns),
        served_ns: measured(|round| round.served_ns - round.plain_ns),
    };
    let line = |what: &str, measured: Option<Measured>| {
        measured.map_or_else(String::new, |Measured { median, ci95: (low, high) }| {
            format!("{what:<52} {median:>7.2} ns  [{low:.2}, {high:.2}]\n")
        })
    };
    let text = line("a call of a function that does nothing", report.plain_ns)
        + &line("a region around it more, entered and left", report.stay_ns)
        + &line("the same where a policy server may decide", report.served_ns);
    output::show(json, &report, &text)?;
    Ok(ExitCode::SUCCESS)
}

/// The name in documents and JSON.
const fn name(way: Way) -> &'static str {
    match way {
        Way::PingPong => "ping-pong",
        Way::Delegate => "delegate",
        Way::Migrate => "migrate-call",
        Way::Migration => "migrate",
        Way::Channel => "channel",
        Way::Futex => "futex",
        Way::Spawn => "spawn",
        Way::Affinity => "sched_setaffinity",
    }
}

/// The parts of a round trip.
const fn description(way: Way) -> &'static str {
    match way {
        Way::PingPong => "a cache line there and back, and nothing else",
        Way::Delegate => "an empty closure, on the worker's stack",
        Way::Migrate => "an empty call, on the caller's stack, signals blocked and let in again",
        Way::Migration => "the thread itself there and back, signals blocked before",
        Way::Channel => "a message through crossbeam's bounded channel, and one back",
        Way::Futex => "a thread that sleeps is woken, and wakes the first",
        Way::Spawn => "a thread is started and ends",
        Way::Affinity => "the kernel moves the thread there and back",
    }
}

impl MovesJson {
    fn new(moves: &Moves, way: Way, rounds: u32) -> Self {
        let ratio = |trips: &Trips| trips.ratio.map(Measured::new);
        let ways = moves.trips.iter().map(|trips| {
            let quantile = |q: f64| trips.all.quantile(q);
            let quantiles = || {
                Some(Quantiles {
                    p10: quantile(0.1)?,
                    median: quantile(0.5)?,
                    p90: quantile(0.9)?,
                    p99: quantile(0.99)?,
                })
            };
            WayJson {
                way: name(trips.way),
                round_trip_ns: quantiles(),
                round_trip_cycles: quantile(0.5).map(|ns| ns * moves.cycles_per_ns),
                ratio_to_pingpong: ratio(trips),
            }
        });
        Self {
            schema: match way {
                Way::Migrate => "dimmer/bench-migrate-call/1",
                Way::Migration => "dimmer/bench-migrate/1",
                _ => "dimmer/bench-delegate/1",
            },
            home_cpu: moves.home.index(),
            away_cpu: moves.away.index(),
            rounds,
            ratio_to_pingpong: moves.of(way).and_then(ratio),
            cannot: moves.cannot_migrate.as_ref().map(ToString::to_string),
            ways: ways.collect(),
        }
    }
}

fn text(report: &MovesJson, asked: Way) -> String {
    let mut text = format!(
        "From CPU {} to CPU {} and back, {} rounds.\n\n{:<19}{:>11}{:>11}{:>11}{:>9}  {:<22}\n",
        report.home_cpu,
        report.away_cpu,
        report.rounds,
        "way",
        "median",
        "p10",
        "p99",
        "cycles",
        "of a ping-pong"
    );
    for way in &report.ways {
        let Some(ns) = &way.round_trip_ns else { continue };
        let ratio = way.ratio_to_pingpong.map_or_else(String::new, |Measured { median, ci95 }| {
            format!("{} [{}, {}]", grouped(median, 2), grouped(ci95.0, 2), grouped(ci95.1, 2))
        });
        let mark = if way.way == name(asked) { "*" } else { " " };
        text += &format!(
            "{mark}{:<18}{:>8} ns{:>8} ns{:>8} ns{:>9}  {ratio}\n",
            way.way,
            grouped(ns.median, 0),
            grouped(ns.p10, 0),
            grouped(ns.p99, 0),
            way.round_trip_cycles.map_or_else(|| "-".to_owned(), |cycles| grouped(cycles, 0)),
        );
    }
    text += "\n";
    for way in Way::ALL {
        text += &format!("{:<19}{}\n", name(way), description(way));
    }
    if let Some(why) = &report.cannot {
        text += &format!("\nThreads cannot migrate here: {why}\n");
    }
    text
}
