//! What counters say of the sections of a program's locks, in the document and the text of
//! `dimmer run --boost --counters`. `docs/boost-json.md` describes the keys.

use std::collections::BTreeMap;

use dimmer_launch::locks::{LockSite, Locks};
use dimmer_launch::measured::{Counters, Means, Measured, names};
use serde::Serialize;

use super::MOST_TOLD;
use crate::number::{counted, grouped, percent, time};
use crate::screen::Screen;
use crate::table::{Cell, Table};

/// Key `counters`.
#[derive(Debug, Serialize)]
pub(super) struct CountersEntry<'a> {
    reading_ns: Option<u64>,
    with_kernel: bool,
    missing: BTreeMap<&'static str, Option<&'a str>>,
}

/// Key `measured` of a site.
#[derive(Debug, Serialize)]
pub(super) struct MeasuredEntry {
    sampled: u64,
    time_ns: f64,
    is_too_short: bool,
    page_faults: Option<f64>,
    sleeps: Option<f64>,
    counted: Option<u64>,
    cycles: Option<f64>,
    clock_khz: Option<u64>,
    stalled_ratio: Option<f64>,
    cache_misses: Option<f64>,
    instructions: Option<f64>,
}

impl<'a> CountersEntry<'a> {
    pub(super) fn new(counters: &'a Counters) -> Self {
        Self {
            reading_ns: counters.reading.map(|reading| reading.ns()),
            with_kernel: !counters.is_user_only,
            missing: names()
                .into_iter()
                .zip(counters.missing.iter().map(Option::as_deref))
                .collect(),
        }
    }
}

impl MeasuredEntry {
    pub(super) fn new(measured: &Measured) -> Self {
        let means = measured.means;
        let mean = |of: fn(&Means) -> Option<f64>| means.as_ref().and_then(of);
        Self {
            sampled: measured.sampled,
            time_ns: measured.time_ns,
            is_too_short: means.is_none(),
            page_faults: means.map(|means| means.faults),
            sleeps: means.map(|means| means.sleeps),
            counted: means.map(|means| means.counted),
            cycles: mean(|means| means.cycles),
            clock_khz: means.and_then(|means| Some(means.clock?.khz())),
            stalled_ratio: mean(|means| means.stalled_ratio),
            cache_misses: mean(|means| means.misses),
            instructions: mean(|means| means.instructions),
        }
    }
}

/// The measured sections as a table, and what is not in it.
pub(super) fn text(locks: &Locks, counters: &Counters, screen: Screen) -> String {
    let measured: Vec<(&LockSite, &Measured)> =
        locks.sites.iter().filter_map(|site| Some((site, site.measured.as_ref()?))).collect();
    let sections = measured.iter().fold(0, |sum: u64, (_, one)| sum.saturating_add(one.sampled));
    let Some(reading) = counters.reading.filter(|_| sections > 0) else {
        return screen.fill("Counters: no section was measured.");
    };
    let mut text = screen.fill(&format!(
        "Counters: means of {} measured sections at {}. Reading them takes {}{}.",
        grouped(sections as f64, 0),
        counted(measured.len(), "site"),
        time(reading.ns() as f64),
        if counters.is_user_only { "; cycles and misses are those in user mode" } else { "" },
    ));
    text += &table(&measured, counters).render(screen);
    if measured.iter().any(|(_, one)| one.means.is_none()) {
        text += &screen
            .fill("Too short: half of the sections take less time than reading the counters.");
    }
    for (what, why) in missing(counters) {
        text += &screen.fill(&format!("Not available: {}: {why}.", what.join(", ")));
    }
    text
}

fn table(measured: &[(&LockSite, &Measured)], counters: &Counters) -> Table {
    type Column = (&'static str, fn(&Means) -> Option<String>);
    let [cycles, reference, stalled, misses, instructions] =
        [0, 1, 2, 3, 4].map(|at| counters.missing[at].is_none());
    let has_clock = cycles && (reference || !counters.is_user_only);
    let columns: [(bool, Column); 7] = [
        (true, ("faults", |means| Some(mean(means.faults)))),
        (true, ("waits", |means| Some(mean(means.sleeps)))),
        (cycles, ("cycles", |means| means.cycles.map(mean))),
        (
            has_clock,
            ("clock", |means| {
                means.clock.map(|clock| format!("{} MHz", grouped(clock.khz() as f64 / 1000.0, 0)))
            }),
        ),
        (stalled, ("stalled", |means| means.stalled_ratio.map(percent))),
        (misses, ("misses", |means| means.misses.map(mean))),
        (cycles && instructions, ("IPC", |means| Some(mean(means.instructions? / means.cycles?)))),
    ];
    let columns: Vec<Column> =
        columns.into_iter().filter_map(|(is_there, column)| is_there.then_some(column)).collect();
    let header = ["Function", "kind", "sections", "time"].into_iter();
    let mut table = Table::new(header.chain(columns.iter().map(|(name, _)| *name)));
    for (site, one) in measured.iter().take(MOST_TOLD) {
        let cells = columns.iter().enumerate().map(|(at, (_, of))| match &one.means {
            None if at == 0 => "too short".to_owned(),
            None => "–".to_owned(),
            Some(means) => of(means).unwrap_or_else(|| "–".to_owned()),
        });
        table.row(
            [
                Cell::from(dimmer_scan::title(site.function.as_deref(), site.offset)),
                Cell::from(super::name(site.kind)),
                Cell::right(grouped(one.sampled as f64, 0)),
                Cell::right(time(one.time_ns)),
            ]
            .into_iter()
            .chain(cells.map(Cell::right)),
        );
    }
    table
}

/// A mean of counts.
fn mean(value: f64) -> String {
    grouped(value, if value < 100.0 { 2 } else { 0 })
}

/// The events that are not counted, by the reason.
fn missing(counters: &Counters) -> Vec<(Vec<&'static str>, &str)> {
    let mut missing: Vec<(Vec<&str>, &str)> = Vec::new();
    for (name, why) in names().into_iter().zip(&counters.missing) {
        let Some(why) = why else { continue };
        match missing.iter_mut().find(|(_, known)| known == why) {
            Some((all, _)) => all.push(name),
            None => missing.push((vec![name], why)),
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use dimmer_processor::units::{KiloHertz, Nanos};
    use expect_test::{Expect, expect};

    use super::super::tests::site;
    use super::*;

    fn means() -> Means {
        Means {
            faults: 0.0,
            sleeps: 0.5,
            counted: 80,
            cycles: Some(48_000.4),
            clock: Some(KiloHertz::from_mhz(4000)),
            stalled_ratio: Some(0.25),
            misses: Some(12.34),
            instructions: Some(50_000.0),
        }
    }

    fn locks() -> Locks {
        let measured = Measured { sampled: 100, time_ns: 12_000.0, means: Some(means()) };
        let short = Measured { sampled: 7, time_ns: 60.0, means: None };
        let sites = [measured, short].map(|one| LockSite { measured: Some(one), ..site() });
        Locks { sites: sites.into(), ..Locks::default() }
    }

    fn counters() -> Counters {
        Counters { reading: Some(Nanos::from_ns(400)), ..Counters::default() }
    }

    #[track_caller]
    fn check(locks: &Locks, counters: &Counters, expected: Expect) {
        expected.assert_eq(&text(locks, counters, Screen::file(100)));
    }

    #[test]
    fn measured_sections_are_a_table_and_short_ones_have_no_numbers() {
        check(
            &locks(),
            &counters(),
            expect![[r#"
                Counters: means of 107 measured sections at 2 sites. Reading them takes 400 ns.
                Function  kind   sections  time     faults     waits  cycles  clock     stalled  misses  IPC
                take      mutex       100  12.0 µs       0.00   0.50   48000  4000 MHz   25.0 %   12.34  1.04
                take      mutex         7    60 ns  too short      –       –         –        –       –     –
                Too short: half of the sections take less time than reading the counters.
            "#]],
        );
    }

    #[test]
    fn what_is_not_counted_is_no_column_and_has_its_reason() {
        let no = |why: &str| Some(why.to_owned());
        let missing = [no("no PMU"), no("no PMU"), no("no event"), no("no PMU"), no("no PMU")];
        check(
            &locks(),
            &Counters { missing, ..counters() },
            expect![[r#"
                Counters: means of 107 measured sections at 2 sites. Reading them takes 400 ns.
                Function  kind   sections  time     faults     waits
                take      mutex       100  12.0 µs       0.00   0.50
                take      mutex         7    60 ns  too short      –
                Too short: half of the sections take less time than reading the counters.
                Not available: cycles, ref-cycles, cache-misses, instructions: no PMU.
                Not available: stalled-cycles-backend: no event.
            "#]],
        );
        check(
            &Locks { sites: vec![site()], ..Locks::default() },
            &counters(),
            expect![[r#"
            Counters: no section was measured.
        "#]],
        );
    }

    #[test]
    fn the_document_has_all_means_or_none() {
        let documents = locks()
            .sites
            .iter()
            .map(|site| {
                serde_json::to_string(&MeasuredEntry::new(site.measured.as_ref().unwrap())).unwrap()
            })
            .collect::<Vec<_>>()
            .join("\n");
        expect![[r#"
            {"sampled":100,"time_ns":12000.0,"is_too_short":false,"page_faults":0.0,"sleeps":0.5,"counted":80,"cycles":48000.4,"clock_khz":4000000,"stalled_ratio":0.25,"cache_misses":12.34,"instructions":50000.0}
            {"sampled":7,"time_ns":60.0,"is_too_short":true,"page_faults":null,"sleeps":null,"counted":null,"cycles":null,"clock_khz":null,"stalled_ratio":null,"cache_misses":null,"instructions":null}"#]].assert_eq(&documents);
        let counters = serde_json::to_string(&CountersEntry::new(&counters())).unwrap();
        expect![[r#"{"reading_ns":400,"with_kernel":true,"missing":{"cache-misses":null,"cycles":null,"instructions":null,"ref-cycles":null,"stalled-cycles-backend":null}}"#]].assert_eq(&counters);
    }
}
