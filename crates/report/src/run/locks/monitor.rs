//! The performance monitor of a run in the document and the text of `dimmer run --boost`.
//! `docs/boost-json.md` describes the keys.

use std::collections::BTreeMap;

use dimmer_host::root::format_cpu_list;
use dimmer_launch::monitor::{Interval, Monitored};
use dimmer_processor::units::KiloHertz;
use serde::Serialize;

use crate::number::{grouped, percent, time};

/// Key `monitor`.
#[derive(Debug, Serialize)]
pub(super) struct MonitorEntry<'a> {
    cpus: String,
    missing: MissingEntry<'a>,
    clock_by: Option<&'static str>,
    intervals: Vec<IntervalEntry>,
}

/// Why something is not there; `null` if it is.
#[derive(Debug, Serialize)]
struct MissingEntry<'a> {
    idle: Option<&'a str>,
    clock: Option<&'a str>,
    energy: Option<&'a str>,
    cycles: Option<&'a str>,
    stalled: Option<&'a str>,
    cache_misses: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct IntervalEntry {
    lasted_ns: u64,
    clock_khz: Option<u64>,
    idle: BTreeMap<String, IdleEntry>,
    energy_uj: BTreeMap<String, u64>,
    cycles: Option<u64>,
    stalled_ratio: Option<f64>,
    cache_misses: Option<u64>,
}

#[derive(Debug, Serialize)]
struct IdleEntry {
    entries: u64,
    time_ns: u64,
}

impl<'a> MonitorEntry<'a> {
    pub(super) fn new(seen: &'a Monitored) -> Self {
        let [cycles, stalled, cache_misses] = &seen.not_of_program;
        Self {
            cpus: format_cpu_list(&seen.cpus),
            missing: MissingEntry {
                idle: seen.no_idle.as_deref(),
                clock: no_clock(seen),
                energy: seen.no_energy.as_deref(),
                cycles: cycles.as_deref(),
                stalled: stalled.as_deref(),
                cache_misses: cache_misses.as_deref(),
            },
            clock_by: match seen.base {
                Some(_) => Some("aperf-mperf"),
                None => seen.is_timed.then_some("timing"),
            },
            intervals: seen.intervals.iter().map(|one| IntervalEntry::new(one, seen)).collect(),
        }
    }
}

impl IntervalEntry {
    fn new(interval: &Interval, seen: &Monitored) -> Self {
        let [cycles, _, cache_misses] = interval.of_program;
        let idle = interval.spent.idle.iter().map(|(name, (entries, spent))| {
            (name.clone(), IdleEntry { entries: *entries, time_ns: spent.ns() })
        });
        Self {
            lasted_ns: interval.lasted.ns(),
            clock_khz: seen.clock(interval).map(KiloHertz::khz),
            idle: idle.collect(),
            energy_uj: interval.spent.energy.clone(),
            cycles,
            stalled_ratio: stalled(interval),
            cache_misses,
        }
    }
}

/// Why there is no clock.
fn no_clock(seen: &Monitored) -> Option<&str> {
    seen.no_clock.as_deref().filter(|_| !seen.is_timed)
}

/// The part of the program's cycles that were stalled.
fn stalled(interval: &Interval) -> Option<f64> {
    let [cycles, stalled, _] = interval.of_program;
    let cycles = cycles.filter(|cycles| *cycles > 0)?;
    Some(stalled? as f64 / cycles as f64)
}

/// All intervals in a few sentences.
pub(super) fn text(seen: &Monitored) -> String {
    let mut all = Interval::default();
    if let Some((first, others)) = seen.intervals.split_first() {
        all = first.clone();
        others.iter().for_each(|other| all.add(other));
    }
    let mut has = Vec::new();
    if seen.no_idle.is_none() {
        let states = all.spent.idle.iter().map(|(name, (entries, spent))| {
            format!("{name} {} times ({})", grouped(*entries as f64, 0), time(spent.ns() as f64))
        });
        has.push(format!("idle states entered: {}", states.collect::<Vec<_>>().join(", ")));
    }
    if let Some(clock) = seen.clock(&all) {
        let by = if seen.is_timed { ", by timing at the ends of intervals" } else { "" };
        has.push(format!("mean clock {} MHz{by}", grouped(clock.khz() as f64 / 1000.0, 0)));
    }
    has.extend(
        all.spent
            .energy
            .iter()
            .map(|(zone, uj)| format!("{zone} {} J", grouped(*uj as f64 / 1e6, 1))),
    );
    if let Some(cycles) = all.of_program[0].filter(|_| seen.not_of_program[0].is_none()) {
        has.push(format!("cycles of the program {}", grouped(cycles as f64, 0)));
    }
    if let Some(stalled) = stalled(&all).filter(|_| seen.not_of_program[1].is_none()) {
        has.push(format!("of these stalled {}", percent(stalled)));
    }
    if let Some(misses) = all.of_program[2].filter(|_| seen.not_of_program[2].is_none()) {
        has.push(format!("cache misses {}", grouped(misses as f64, 0)));
    }
    let mut text = format!(
        "Meanwhile, {}: {}.",
        match seen.cpus.as_slice() {
            [] => "on CPUs that are not known".to_owned(),
            cpus => format!("on CPUs {}", format_cpu_list(cpus)),
        },
        if has.is_empty() { "nothing was counted".to_owned() } else { has.join("; ") },
    );
    let [cycles, stalled, misses] = &seen.not_of_program;
    let mut missing: Vec<(Vec<&str>, &str)> = Vec::new();
    for (what, why) in [
        ("idle states", seen.no_idle.as_deref()),
        ("clock", no_clock(seen)),
        ("energy", seen.no_energy.as_deref()),
        ("cycles", cycles.as_deref()),
        ("stalled cycles", stalled.as_deref()),
        ("cache misses", misses.as_deref()),
    ] {
        let Some(why) = why else { continue };
        match missing.iter_mut().find(|(_, known)| *known == why) {
            Some((all, _)) => all.push(what),
            None => missing.push((vec![what], why)),
        }
    }
    for (what, why) in missing {
        text += &format!(" Not available: {}: {why}.", what.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use dimmer_host::monitor::Spent;
    use dimmer_processor::units::{CpuId, Nanos};
    use expect_test::expect;

    use super::*;

    fn interval() -> Interval {
        Interval {
            lasted: Nanos::from_us(200_000),
            spent: Spent {
                idle: [("C1".to_owned(), (12, Nanos::from_us(500)))].into(),
                clock: [4000, 3000],
                timed: [0; 2],
                energy: [("package-0".to_owned(), 2_500_000)].into(),
            },
            of_program: [Some(1000), Some(250), None],
        }
    }

    fn seen() -> Monitored {
        Monitored {
            cpus: [0, 1].map(CpuId::new).into(),
            intervals: vec![interval(), interval()],
            base: Some(KiloHertz::from_mhz(3000)),
            not_of_program: [None, None, Some("no such event".to_owned())],
            ..Monitored::default()
        }
    }

    #[test]
    fn what_was_counted_is_summed_up_and_what_was_not_has_its_reason() {
        expect!["Meanwhile, on CPUs 0-1: idle states entered: C1 24 times (1.00 ms); mean clock 4 000 MHz; package-0 5.0 J; cycles of the program 2 000; of these stalled 25.0 %. Not available: cache misses: no such event."].assert_eq(&text(&seen()));
        let nothing = Monitored {
            no_idle: Some("no driver".to_owned()),
            no_clock: Some("no file".to_owned()),
            no_energy: Some("no zone".to_owned()),
            not_of_program: [0, 1, 2].map(|_| Some("no counter".to_owned())),
            ..Monitored::default()
        };
        expect!["Meanwhile, on CPUs that are not known: nothing was counted. Not available: idle states: no driver. Not available: clock: no file. Not available: energy: no zone. Not available: cycles, stalled cycles, cache misses: no counter."].assert_eq(&text(&nothing));
    }

    #[test]
    fn a_clock_by_timing_says_so() {
        let mut timed = interval();
        (timed.spent.clock, timed.spent.timed) = ([0; 2], [7_400_000, 2]);
        let seen = Monitored {
            intervals: vec![timed],
            base: None,
            no_clock: Some("no file".to_owned()),
            is_timed: true,
            ..seen()
        };
        expect!["Meanwhile, on CPUs 0-1: idle states entered: C1 12 times (500 µs); mean clock 3 700 MHz, by timing at the ends of intervals; package-0 2.5 J; cycles of the program 1 000; of these stalled 25.0 %. Not available: cache misses: no such event."].assert_eq(&text(&seen));
        let document = serde_json::to_value(MonitorEntry::new(&seen)).unwrap();
        assert_eq!(document["clock_by"], "timing");
        assert_eq!(document["missing"]["clock"], serde_json::Value::Null);
        assert_eq!(document["intervals"][0]["clock_khz"], 3_700_000);
    }

    #[test]
    fn each_interval_is_in_the_document() {
        let document = serde_json::to_string(&MonitorEntry::new(&seen()).intervals[0]).unwrap();
        expect![[r#"{"lasted_ns":200000000,"clock_khz":4000000,"idle":{"C1":{"entries":12,"time_ns":500000}},"energy_uj":{"package-0":2500000},"cycles":1000,"stalled_ratio":0.25,"cache_misses":null}"#]].assert_eq(&document);
    }
}
