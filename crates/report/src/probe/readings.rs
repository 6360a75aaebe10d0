//! The labeled numbers of an outcome: the columns of the terminal table and the figures of a card.

use dimmer_probe::mode::Mode;
use dimmer_probe::outcome::{
    Detail, Downclock, Episode, Instructions, Levels, Outcome, Quantity, Recurrence, Throttle,
    Throttling,
};
use dimmer_probe::stats::Estimate;

use super::words::{absent, dip, worst_gap};
use crate::number::{count, grouped, interval, percent, percent_estimate, time, time_estimate};

/// One labeled number.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Reading {
    /// What the number is, in one to three words.
    pub(super) label: &'static str,
    /// The number with its unit; `None` if there is none.
    pub(super) value: Option<String>,
    /// The 95 % interval without the unit; `None` if there is none.
    pub(super) interval: Option<String>,
    /// Where the number is shown.
    pub(super) role: Role,
}

/// Where a reading is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Describes an effect: shown everywhere, but missing without an effect.
    Effect,
    /// Describes the question: shown everywhere.
    Question,
    /// Shown only if there is room.
    Detail,
}

impl Reading {
    fn new(label: &'static str, value: Option<String>) -> Self {
        Self { label, value, interval: None, role: Role::Effect }
    }

    fn estimate(label: &'static str, texts: Option<(String, String)>) -> Self {
        let (value, interval) = texts.unzip();
        Self { interval, ..Self::new(label, value) }
    }

    fn time(label: &'static str, ns: Option<&Quantity>) -> Self {
        Self::estimate(label, ns.map(|ns| time_estimate(&ns.estimate)))
    }

    fn percent(label: &'static str, ratio: Option<&Estimate>) -> Self {
        Self::estimate(label, ratio.map(percent_estimate))
    }

    fn number(label: &'static str, number: Option<&Estimate>, decimals: usize) -> Self {
        let texts =
            |number: &Estimate| (grouped(number.median, decimals), interval(number, decimals));
        Self::estimate(label, number.map(texts))
    }

    fn role(self, role: Role) -> Self {
        Self { role, ..self }
    }

    fn burst(instructions: u32) -> Self {
        Self::new("burst", Some(count(instructions))).role(Role::Question)
    }
}

/// The numbers of one outcome; the labels depend on the mode alone. The first one is the verdict:
/// it says so if there is no effect. Then numbers that only describe an effect are missing.
pub(super) fn readings(outcome: &Outcome) -> Vec<Reading> {
    let mut readings = match &outcome.detail {
        Detail::Episode(episode) => of_episode(episode, outcome.mode),
        Detail::Downclock(downclock) => of_downclock(downclock),
        Detail::Throttle(throttle) => of_throttle(throttle),
        Detail::Instructions(instructions) => of_instructions(instructions),
        Detail::Recurrence(recurrence) => of_recurrence(recurrence),
        Detail::Levels(levels) => return of_levels(levels),
    };
    if !outcome.effect {
        for reading in readings.iter_mut().filter(|reading| reading.role == Role::Effect) {
            (reading.value, reading.interval) = (None, None);
        }
        if let Some(verdict) = readings.first_mut() {
            verdict.value = Some(absent(outcome));
        }
    }
    readings
}

fn of_throttling(throttling: Option<&Throttling>) -> [Reading; 2] {
    [
        Reading::time("throttled", throttling.map(|throttling| &throttling.throttled_ns)),
        Reading::percent("at", throttling.map(|throttling| &throttling.throttle_factor)),
    ]
}

fn of_episode(episode: &Episode, mode: Mode) -> Vec<Reading> {
    let extra = Reading::time("cost after", Some(&episode.extra_ns));
    let delay = Reading::time("nominal in", episode.release_delay_ns.as_ref());
    // The long burst of an upclock serves to measure the delay; an episode's burst serves to
    // measure the cost.
    let (first, second) = if mode == Mode::Upclock { (delay, extra) } else { (extra, delay) };
    let mut readings = vec![
        first,
        Reading::burst(episode.burst_instructions),
        second,
        Reading::percent("of bursts", episode.effect_share.as_ref()),
        Reading::percent("clock after", Some(&episode.clock_ratio_after.estimate)),
        Reading::time("stall", episode.release_stall_ns.as_ref()),
    ];
    let [throttled, factor] = of_throttling(episode.throttling.as_ref());
    readings.extend([
        throttled,
        factor.role(Role::Detail),
        Reading::percent("issue after", Some(&episode.issue_ratio_after.estimate))
            .role(Role::Detail),
        Reading::time("burst takes", Some(&episode.burst_ns)).role(Role::Detail),
    ]);
    readings
}

fn of_downclock(downclock: &Downclock) -> Vec<Reading> {
    let lowest = downclock.lowest.as_ref();
    let settled = Reading::time("lower clock after", downclock.settle_ns.as_ref());
    let without = if dip(downclock).is_some() { "clock returns" } else { "clock stays" };
    let value = settled.value.clone().or_else(|| Some(without.to_owned()));
    let mut readings = vec![
        Reading { value, ..settled },
        Reading::percent("at clock", Some(&downclock.clock_ratio.estimate)),
        Reading::percent("lowest", lowest.map(|lowest| &lowest.clock_ratio.estimate)),
        Reading::time("lowest in", lowest.map(|lowest| &lowest.after_ns)),
        Reading::percent("of stretches", downclock.effect_share.as_ref()),
        Reading::time("stall", downclock.stall_ns.as_ref()),
    ];
    readings.extend(of_throttling(downclock.throttling.as_ref()));
    let per_cycle = Some(&downclock.instructions_per_cycle.estimate);
    readings.extend([
        Reading::number("per cycle", per_cycle, 3).role(Role::Detail),
        Reading::new("watched for", Some(time(downclock.observed_ns))).role(Role::Detail),
    ]);
    readings
}

fn of_throttle(throttle: &Throttle) -> Vec<Reading> {
    let instructions = throttle.pre_throttle_instructions.as_ref();
    let mut readings = vec![
        Reading::time("begins after", throttle.pre_throttle_ns.as_ref()),
        Reading::number("after instructions", instructions.map(|before| &before.estimate), 0),
    ];
    readings.extend(of_throttling(throttle.throttling.as_ref()));
    readings
}

fn of_instructions(instructions: &Instructions) -> Vec<Reading> {
    let number = |quantile: Option<&(f64, f64)>| {
        quantile.map(|(share, number)| format!("{} ({})", count(*number), percent(*share)))
    };
    vec![
        Reading::number("half need", instructions.median.as_ref(), 0),
        Reading::new("few suffice", number(instructions.quantiles.first())),
        Reading::new("most suffice", number(instructions.quantiles.last())),
    ]
}

fn of_recurrence(recurrence: &Recurrence) -> Vec<Reading> {
    let worst = worst_gap(recurrence);
    let percentage = |estimate: &Estimate| estimate.scaled(0.01);
    let change = recurrence.regime_change_us.map(|change| change.scaled(1e3));
    vec![
        match worst {
            Some(gap) => Reading::percent("slows by up to", Some(&percentage(&gap.slowdown_pct))),
            None => Reading::new("slows by up to", Some("not measurably".to_owned())),
        },
        Reading::burst(recurrence.burst_instructions),
        Reading::new("at a gap of", worst.map(|gap| time(gap.gap_us * 1e3))),
        Reading::estimate("changes at", change.as_ref().map(time_estimate)),
    ]
}

fn of_levels(levels: &Levels) -> Vec<Reading> {
    let ghz = Reading::number("clock", Some(&levels.clock_ghz), 3);
    vec![
        Reading { value: ghz.value.map(|value| value + "\u{a0}GHz"), ..ghz },
        Reading::percent("of scalar clock", Some(&levels.clock_ratio)),
        Reading::new("active CPUs", Some(levels.active.to_string())),
        Reading::number("per cycle", Some(&levels.instructions_per_cycle), 3),
    ]
}
