//! `dimmer bench dev delegate|migrate-call|migrate|region`: the cost of moving work to another
//! core, and of marking what might be moved. `docs/bench-json.md` describes the keys.

use dimmer_bench::moves::{Moves, Trips, Way};
use dimmer_bench::region;
use dimmer_probe::stats::Samples;
use serde::Serialize;

use super::line;
use crate::estimate::Measured;
use crate::number::grouped;
use crate::screen::Screen;
use crate::table::{Cell, Table};

/// The time of one way.
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

/// The document of `dimmer bench dev delegate`, `migrate-call` and `migrate`.
#[derive(Debug, Serialize)]
pub struct MovesReport {
    schema: &'static str,
    home_cpu: u32,
    away_cpu: u32,
    rounds: u32,
    ratio_to_pingpong: Option<Measured>,
    cannot: Option<String>,
    ways: Vec<WayJson>,
    /// The way that was asked for.
    #[serde(skip)]
    asked: Way,
}

/// The document `dimmer/bench-region/1`.
#[derive(Debug, Serialize)]
pub struct RegionReport {
    schema: &'static str,
    rounds: u32,
    plain_ns: Option<Measured>,
    stay_ns: Option<Measured>,
    served_ns: Option<Measured>,
    request_ns: Option<Measured>,
    asks_by: Option<&'static str>,
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

impl MovesReport {
    /// `way`: the way that was asked for, beside all others.
    pub fn new(moves: &Moves, way: Way, rounds: u32) -> Self {
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
            asked: way,
        }
    }
    /// The results as text.
    pub fn text(&self, screen: Screen) -> String {
        let mut text = format!(
            "From CPU {} to CPU {} and back, {} rounds.\n\n",
            self.home_cpu, self.away_cpu, self.rounds
        );
        let heads = ["median", "p10", "p99", "cycles"].map(Cell::right);
        let ends = [Cell::from("way")].into_iter().chain(heads);
        let mut table = Table::new(ends.chain(["of a ping-pong".into()]));
        for way in &self.ways {
            let Some(ns) = &way.round_trip_ns else { continue };
            let ratio = way.ratio_to_pingpong.map_or_else(String::new, |ratio| {
                let [median, low, high] =
                    [ratio.median, ratio.ci95.0, ratio.ci95.1].map(|value| grouped(value, 2));
                format!("{median} [{low}, {high}]")
            });
            let mark = if way.way == name(self.asked) { "*" } else { " " };
            let times = [ns.median, ns.p10, ns.p99].map(|ns| grouped(ns, 0) + "\u{a0}ns");
            let cycles = way.round_trip_cycles.map(|cycles| grouped(cycles, 0));
            let numbers = times.into_iter().chain([cycles.unwrap_or_else(|| "-".to_owned())]);
            let first = [Cell::from(format!("{mark}{}", way.way))].into_iter();
            table.row(first.chain(numbers.map(Cell::right)).chain([ratio.into()]));
        }
        text += &table.render(screen);
        text += "\n";
        for way in Way::ALL {
            text += &format!("{:<19}{}\n", name(way), description(way));
        }
        if let Some(why) = &self.cannot {
            text += &format!("\nThreads cannot migrate here: {why}\n");
        }
        text
    }
}

impl RegionReport {
    /// `asked`: the number of rounds that were asked for; `asks_by`: how threads ask for clocks.
    pub fn new(rounds: &[region::Round], asked: u32, asks_by: Option<&'static str>) -> Self {
        let measured = |of: fn(&region::Round) -> f64| {
            rounds.iter().map(of).collect::<Samples>().estimate().map(Measured::new)
        };
        Self {
            schema: "dimmer/bench-region/1",
            rounds: asked,
            plain_ns: measured(|round| round.plain_ns),
            stay_ns: measured(|round| round.region_ns - round.plain_ns),
            served_ns: measured(|round| round.served_ns - round.plain_ns),
            request_ns: measured(|round| round.request_ns - round.plain_ns),
            asks_by,
        }
    }

    /// The results as text.
    pub fn text(&self) -> String {
        [
            line("a call of a function that does nothing", self.plain_ns, 2),
            line("a region around it more, entered and left", self.stay_ns, 2),
            line("the same where a policy server may decide", self.served_ns, 2),
            line("a request for the same clock as before, more", self.request_ns, 2),
            match self.asks_by {
                Some(name) => format!("Threads ask for clocks by {name} here.\n"),
                None => "There is no way to ask for clocks here.\n".to_owned(),
            },
        ]
        .concat()
    }
}
