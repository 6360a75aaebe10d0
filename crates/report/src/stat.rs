//! Counts of license levels, throttling and packed arithmetic. `docs/stat-json.md` describes the
//! document.

use dimmer_host::events::Counts;
use dimmer_host::perf::Countable;
use dimmer_launch::stat::{Clocks, Stat};
use serde::Serialize;

use crate::number::{five_digits, grouped, percent, time};
use crate::screen::Screen;
use crate::table::{Cell, Table};

/// The document `dimmer/stat/1`.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: &'static str,
    command: Vec<String>,
    status: Option<i32>,
    lasted_s: f64,
    cpu_s: Option<f64>,
    with_kernel: bool,
    no_license_events: Option<String>,
    counts: Vec<CountEntry>,
    clock: Option<ClockEntry>,
    clock_unknown: Option<String>,
    avx512: Option<Avx512Entry>,
}

/// An event.
#[derive(Debug, Serialize)]
struct CountEntry {
    event: &'static str,
    kind: &'static str,
    count: Option<u64>,
    unavailable: Option<String>,
    counted_pct: Option<f64>,
    per_s: Option<f64>,
    cycles_pct: Option<f64>,
}

/// The clock by timing (GHz).
#[derive(Debug, Serialize)]
struct ClockEntry {
    before_ghz: Option<f64>,
    least_ghz: Option<f64>,
    median_ghz: Option<f64>,
    looks: usize,
    after_ghz: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Avx512Entry {
    looks: u64,
    with_values: u64,
}

/// What kind of event it is.
const fn kind(event: &Countable) -> &'static str {
    match event {
        Countable::Event(event) => match event.counts {
            Counts::LicenseCycles(_) => "license",
            Counts::ThrottledCycles => "throttle",
            Counts::PackedArithmetic { .. } => "packed",
            Counts::TileCycles => "tile",
            _ => "other",
        },
        Countable::TaskClock | Countable::ContextSwitches | Countable::Migrations => "kernel",
        _ => "common",
    }
}

impl ClockEntry {
    fn new(clocks: &Clocks) -> Self {
        let mut sorted = clocks.meanwhile.clone();
        sorted.sort_by(f64::total_cmp);
        Self {
            before_ghz: clocks.before,
            least_ghz: sorted.first().copied(),
            median_ghz: sorted.get(sorted.len() / 2).copied(),
            looks: sorted.len(),
            after_ghz: clocks.after,
        }
    }
}

impl Report {
    /// What was counted.
    pub fn new(stat: &Stat) -> Self {
        let value = |wanted: &Countable| {
            let found = stat.counts.iter().find(|(event, _)| event == wanted);
            found.and_then(|(_, count)| Some(count.as_ref().ok()?.value as f64))
        };
        let cycles = value(&Countable::Cycles).filter(|cycles| *cycles > 0.0);
        let cpu_s = stat.on_cpu.map(|time| time.as_secs_f64());
        let on_cpu_s = cpu_s.filter(|time| *time > 0.0);
        let counts = stat.counts.iter().map(|(event, count)| {
            let count = count.as_ref();
            let value = count.ok().map(|count| count.value as f64);
            let is_of_cycles = matches!(kind(event), "license" | "throttle" | "tile");
            CountEntry {
                event: event.name(),
                kind: kind(event),
                count: count.ok().map(|count| count.value),
                unavailable: count.err().map(|why| why.why.clone()),
                counted_pct: count.ok().map(|count| count.counted_permille as f64 / 10.0),
                per_s: match event {
                    Countable::TaskClock => None,
                    _ => value.zip(on_cpu_s).map(|(value, time)| value / time),
                },
                cycles_pct: value
                    .zip(cycles)
                    .filter(|_| is_of_cycles)
                    .map(|(value, cycles)| value / cycles * 100.0),
            }
        });
        let clocks = stat.clocks.as_ref();
        Self {
            schema: "dimmer/stat/1",
            command: stat.command.clone(),
            status: stat.status.and_then(|status| status.code()),
            lasted_s: stat.lasted.as_secs_f64(),
            cpu_s,
            with_kernel: stat.has_kernel,
            no_license_events: stat.no_licenses.clone(),
            counts: counts.collect(),
            clock: clocks.and_then(|clocks| clocks.as_ref().ok()).map(ClockEntry::new),
            clock_unknown: clocks.and_then(|clocks| clocks.as_ref().err()).cloned(),
            avx512: stat
                .avx512
                .map(|avx512| Avx512Entry { looks: avx512.looks, with_values: avx512.with_values }),
        }
    }

    /// The counts as text.
    pub fn text(&self, screen: Screen) -> String {
        // The CPU time of programs is in the table.
        let is_in_table = self.counts.iter().any(|one| one.event == Countable::TaskClock.name());
        let busy = self.cpu_s.filter(|_| !is_in_table);
        let busy = busy.map(|cpu_s| format!(", busy for {}", time(cpu_s * 1e9)));
        let mut text = screen.fill(&format!(
            "{}, for {}{}{}:",
            self.command.join(" "),
            time(self.lasted_s * 1e9),
            busy.unwrap_or_default(),
            if self.with_kernel { "" } else { ", without the kernel's part" },
        ));
        let mut table = Table::new([
            Cell::right("count"),
            Cell::from("event"),
            Cell::right("a second of CPU time"),
            Cell::right("of cycles"),
            Cell::right("counted"),
        ]);
        for one in self.counts.iter().filter(|one| one.count.is_some()) {
            table.row([
                Cell::right(one.shown_count()),
                Cell::from(one.event),
                Cell::right(one.per_s.map(five_digits).unwrap_or_default()),
                Cell::right(one.cycles_pct.map(|pct| percent(pct / 100.0)).unwrap_or_default()),
                Cell::right(one.shown_part()),
            ]);
        }
        text += "\n";
        text += &table.render(screen);
        for note in self.notes() {
            text += "\n";
            text += &screen.fill(&note);
        }
        text
    }

    /// What was not counted, and what is known instead.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for (why, events) in self.missing() {
            notes.push(format!("Not counted: {} ({why}).", events.join(", ")));
        }
        if let Some(why) = &self.no_license_events {
            notes.push(format!("License levels are not counted: {why}."));
        }
        match (&self.clock, &self.clock_unknown) {
            (Some(clock), _) => notes.push(clock.text(self.lasted_s)),
            (None, Some(why)) => notes.push(format!("The clock by timing is not known: {why}.")),
            (None, None) => {}
        }
        if let Some(avx512) = &self.avx512 {
            notes.push(format!(
                "AVX-512 registers held values at {} of {} looks at threads.",
                grouped(avx512.with_values as f64, 0),
                grouped(avx512.looks as f64, 0),
            ));
        }
        notes
    }

    /// The events that were not counted, by reason, in order of first appearance.
    fn missing(&self) -> Vec<(&str, Vec<&'static str>)> {
        let mut groups: Vec<(&str, Vec<&'static str>)> = Vec::new();
        for one in &self.counts {
            let Some(why) = one.unavailable.as_deref() else { continue };
            match groups.iter_mut().find(|(other, _)| *other == why) {
                Some((_, events)) => events.push(one.event),
                None => groups.push((why, vec![one.event])),
            }
        }
        groups
    }
}

impl CountEntry {
    fn shown_count(&self) -> String {
        let count = self.count.unwrap_or_default() as f64;
        if self.event == Countable::TaskClock.name() { time(count) } else { grouped(count, 0) }
    }

    /// The part of the time in which it was counted, if that is not all.
    fn shown_part(&self) -> String {
        let part = self.counted_pct.filter(|pct| *pct < 100.0);
        part.map(|pct| percent(pct / 100.0)).unwrap_or_default()
    }
}

impl ClockEntry {
    fn text(&self, lasted_s: f64) -> String {
        let ghz = |value: Option<f64>| match value {
            Some(ghz) => format!("{} GHz", grouped(ghz, 2)),
            None => "not known".to_owned(),
        };
        let meanwhile = match self.looks {
            0 if lasted_s < 2.0 => "too short to measure meanwhile".to_owned(),
            0 => "meanwhile not known".to_owned(),
            looks => format!(
                "meanwhile {}, at least {} ({looks} looks)",
                ghz(self.median_ghz),
                ghz(self.least_ghz)
            ),
        };
        format!(
            "The clock by timing: before {}, {meanwhile}, after {}.",
            ghz(self.before_ghz),
            ghz(self.after_ghz)
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dimmer_host::events::documented;
    use dimmer_host::microarchitecture::Microarchitecture;
    use dimmer_host::tally::Count;
    use dimmer_host::unavailable::Unavailable;
    use dimmer_launch::stat::Avx512;

    use super::*;

    fn stat(counts: Vec<(Countable, Result<Count, Unavailable>)>) -> Stat {
        Stat {
            command: vec!["server".to_owned()],
            status: None,
            lasted: Duration::from_secs(2),
            on_cpu: Some(Duration::from_millis(500)),
            counts,
            has_kernel: true,
            no_licenses: None,
            clocks: None,
            avx512: None,
        }
    }

    const fn count(value: u64, counted_permille: u64) -> Result<Count, Unavailable> {
        Ok(Count { value, counted_permille })
    }

    #[test]
    fn levels_have_their_share_of_cycles_and_counts_their_rate() {
        let events = documented(Microarchitecture::SkylakeServer).unwrap();
        let event = |name: &str| {
            Countable::Event(*events.iter().find(|event| event.name.contains(name)).unwrap())
        };
        let report = Report::new(&stat(vec![
            (Countable::TaskClock, count(500_000_000, 1000)),
            (Countable::Cycles, count(1_000, 1000)),
            (event("LVL2"), count(250, 400)),
            (event("512B_PACKED_DOUBLE"), count(10, 1000)),
        ]));
        let shown = report.text(Screen::file(120));
        let line = |name: &str| shown.lines().find(|line| line.contains(name)).unwrap();
        assert!(line("LVL2_TURBO").contains("25.0 %"), "{shown}");
        assert!(line("LVL2_TURBO").contains("40.0 %"), "{shown}");
        assert!(line("512B_PACKED_DOUBLE").contains("20.000"), "{shown}");
        assert!(line("task-clock").contains("500 ms"), "{shown}");
    }

    #[test]
    fn without_counters_there_is_the_clock_and_a_reason() {
        let clocks = Clocks { before: Some(3.0), meanwhile: vec![2.0, 2.5, 2.6], after: None };
        let no = |why: &str| Err(Unavailable::new("it", why, "use another machine"));
        let report = Report::new(&Stat {
            clocks: Some(Ok(clocks)),
            avx512: Some(Avx512 { looks: 20, with_values: 5 }),
            no_licenses: Some("none".to_owned()),
            ..stat(vec![
                (Countable::Cycles, no("no PMU")),
                (Countable::Migrations, no("not permitted")),
                (Countable::Instructions, no("no PMU")),
            ])
        });
        let text = report.text(Screen::file(200));
        assert!(text.contains("\nNot counted: cycles, instructions (no PMU).\n"), "{text}");
        assert!(text.contains("\nNot counted: cpu-migrations (not permitted).\n"), "{text}");
        let clock =
            "before 3.00 GHz, meanwhile 2.50 GHz, at least 2.00 GHz (3 looks), after not known.";
        assert!(text.contains(clock), "{text}");
        assert!(text.contains("values at 5 of 20 looks"), "{text}");
    }

    #[test]
    fn rates_of_all_cpus_are_over_the_time_in_which_they_were_busy() {
        let report = Report::new(&Stat {
            command: vec!["all CPUs".to_owned()],
            ..stat(vec![(Countable::ContextSwitches, count(100, 1000))])
        });
        let text = report.text(Screen::file(120));
        assert!(text.starts_with("all CPUs, for 2000 ms, busy for 500 ms:\n"), "{text}");
        assert!(
            text.lines().any(|line| line.contains("context-switches") && line.contains("200.00"))
        );
        let idle = Stat {
            on_cpu: Some(Duration::ZERO),
            ..stat(vec![(Countable::ContextSwitches, count(100, 1000))])
        };
        let document = serde_json::to_value(Report::new(&idle)).unwrap();
        assert_eq!(document["cpu_s"], 0.0);
        assert!(document["counts"][0]["per_s"].is_null(), "{document}");
    }

    #[test]
    fn a_clock_that_was_not_measured_meanwhile_is_too_short_a_run_only_if_it_was_short() {
        let text = |seconds| {
            let clocks = Some(Ok(Clocks { before: Some(3.0), ..Clocks::default() }));
            let lasted = Duration::from_secs(seconds);
            Report::new(&Stat { clocks, lasted, ..stat(Vec::new()) }).text(Screen::file(200))
        };
        assert!(
            text(1).contains("before 3.00 GHz, too short to measure meanwhile, after not known.")
        );
        assert!(!text(60).contains("too short"), "{}", text(60));
    }
}
