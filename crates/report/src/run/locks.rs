//! What `dimmer run --boost` shows of the locks of a program. `docs/boost-json.md` describes the
//! document.

use std::fmt::Write as _;

use dimmer_launch::locks::{Advice, BreakEven, Carried, Kind, LockSite, Locks};
use dimmer_policy::break_even::Verdict;
use serde::Serialize;

use measured::{CountersEntry, MeasuredEntry};
use monitor::MonitorEntry;

use super::threads::more;
use crate::number::{counted, grouped, percent, time};
use crate::screen::Screen;
use crate::table::{Cell, Table};

/// Maximum number of sites shown.
const MOST_TOLD: usize = 20;

/// The document `dimmer/boost/1`.
pub fn document(locks: &Locks) -> impl Serialize {
    Document {
        schema: "dimmer/boost/1",
        processes: locks.processes,
        unplaced: locks.unplaced,
        unended: locks.unended,
        stopped: locks.stopped,
        model: locks.advice.as_ref().and_then(|advice| advice.model.as_deref()),
        boosts: boosts(locks).map(BoostEntry::new).collect(),
        requests: locks.carried.as_ref().map(RequestsEntry::new),
        sites: locks.sites.iter().map(|site| SiteEntry::new(site, locks)).collect(),
        counters: locks.counters.as_ref().map(CountersEntry::new),
        monitor: locks.monitored.as_deref().map(MonitorEntry::new),
        problems: &locks.problems,
    }
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    schema: &'static str,
    processes: usize,
    unplaced: u64,
    unended: u64,
    stopped: usize,
    model: Option<&'a str>,
    boosts: Vec<BoostEntry>,
    requests: Option<RequestsEntry>,
    sites: Vec<SiteEntry<'a>>,
    counters: Option<CountersEntry<'a>>,
    monitor: Option<MonitorEntry<'a>>,
    problems: &'a [String],
}

#[derive(Debug, Serialize)]
struct BoostEntry {
    boost: &'static str,
    shortest_ns: Option<f64>,
    least_wait_ns: f64,
}

/// What became of the clocks that threads requested.
#[derive(Debug, Serialize)]
struct RequestsEntry {
    back_end: &'static str,
    carried_out: u64,
    refused: u64,
    unplaced: u64,
    took_ns: u64,
    delay_ns: u64,
    slow_ns: u64,
    fast_ns: u64,
}

impl RequestsEntry {
    fn new(carried: &Carried) -> Self {
        Self {
            back_end: carried.back_end,
            carried_out: carried.requests,
            refused: carried.refused,
            unplaced: carried.unplaced,
            took_ns: carried.took.ns(),
            delay_ns: carried.delay.ns(),
            slow_ns: carried.slow.ns(),
            fast_ns: carried.fast.ns(),
        }
    }
}

#[derive(Debug, Serialize)]
struct SiteEntry<'a> {
    kind: &'static str,
    function: Option<&'a str>,
    file: Option<String>,
    offset: u64,
    acquisitions: u64,
    contended: u64,
    waited_ns: u64,
    holds: u64,
    held_ns: u64,
    longest_ns: u64,
    wanted: u64,
    strategy: &'static str,
    slow_requests: u64,
    fast_requests: u64,
    ended_requests: u64,
    boosted: u64,
    boosted_in_time: u64,
    fast_ns: u64,
    outside_ns: Option<u64>,
    measured: Option<MeasuredEntry>,
    pays: Vec<&'static str>,
}

impl BoostEntry {
    fn new(one: BreakEven) -> Self {
        Self {
            boost: one.name,
            shortest_ns: one.shortest.map(|shortest| shortest.ns()),
            least_wait_ns: one.least_wait.ns(),
        }
    }
}

impl<'a> SiteEntry<'a> {
    fn new(site: &'a LockSite, locks: &Locks) -> Self {
        Self {
            kind: name(site.kind),
            function: site.function.as_deref(),
            file: site.file.as_ref().map(|file| file.to_string_lossy().into_owned()),
            offset: site.offset,
            acquisitions: site.acquisitions,
            contended: site.contended,
            waited_ns: site.waited.ns(),
            holds: site.holds,
            held_ns: site.held.ns(),
            longest_ns: site.longest.ns(),
            wanted: site.wanted,
            strategy: site.strategy.name(),
            slow_requests: site.requests[0],
            fast_requests: site.requests[1],
            ended_requests: site.requests[2],
            boosted: site.boosted,
            boosted_in_time: site.carried,
            fast_ns: site.fast.ns(),
            outside_ns: (site.kind == Kind::Section).then(|| site.outside.ns()),
            measured: site.measured.as_ref().map(MeasuredEntry::new),
            pays: pays(site, locks.advice.as_ref()),
        }
    }
}

/// The boosts that there are.
fn boosts(locks: &Locks) -> impl Iterator<Item = BreakEven> {
    locks.advice.iter().flat_map(|advice| advice.boosts.iter().copied())
}

/// The boosts that pay for the holds that begin at a site.
fn pays(site: &LockSite, advice: Option<&Advice>) -> Vec<&'static str> {
    let boosts = advice.iter().flat_map(|advice| &advice.boosts).zip(&site.verdicts);
    boosts.filter(|(_, verdict)| **verdict == Verdict::Pays).map(|(one, _)| one.name).collect()
}

const fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Mutex => "mutex",
        Kind::Read => "read",
        Kind::Write => "write",
        Kind::Condition => "condition",
        Kind::Barrier => "barrier",
        Kind::Function => "function",
        Kind::Section => "section",
    }
}

/// The summary as text.
pub fn text(locks: &Locks, screen: Screen) -> String {
    let sum =
        |of: fn(&LockSite) -> u64| locks.sites.iter().map(of).fold(0, u64::saturating_add) as f64;
    let [all, contended] = [sum(|site| site.acquisitions), sum(|site| site.contended)];
    let mut text = screen.fill(&format!(
        "Boost: {} of {} acquisitions at {} had to wait, {} in all.",
        grouped(contended, 0),
        grouped(all, 0),
        counted(locks.sites.len(), "site"),
        time(sum(|site| site.waited.ns())),
    ));
    if !locks.sites.is_empty() {
        text += &table(locks).render(screen);
        let mut others = String::new();
        more(&mut others, locks.sites.len().saturating_sub(MOST_TOLD));
        text += &others;
        for site in locks.sites.iter().filter(|site| site.kind == Kind::Section) {
            text += &screen.fill(&outside(site));
        }
        text += &screen.fill(&advised(locks));
    }
    if let Some(carried) = &locks.carried {
        text += &screen.fill(&requested(locks, carried));
    }
    if let Some(counters) = &locks.counters {
        text += &measured::text(locks, counters, screen);
    }
    if let Some(seen) = &locks.monitored {
        text += &screen.fill(&monitor::text(seen));
    }
    for (number, what) in [
        (locks.unplaced, "acquisitions at sites for which there was no room"),
        (locks.unended, "holds whose end was not seen"),
    ] {
        if number > 0 {
            text += &screen.fill(&format!("Not in it: {} {what}.", grouped(number as f64, 0)));
        }
    }
    if locks.stopped > 0 {
        let number = grouped(locks.stopped as f64, 0);
        text += &screen.fill(&format!(
            "Observed only until they gave up time stamps or system calls: processes: {number}."
        ));
    }
    for problem in &locks.problems {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {problem}");
    }
    text
}

fn table(locks: &Locks) -> Table {
    // This machine's break-even is in the text below.
    let has_advice = locks.advice.as_ref().is_some_and(|advice| advice.model.is_some());
    let is_boosted = locks.carried.is_some();
    let last = has_advice.then_some("pays for").into_iter();
    let last = last.chain(is_boosted.then_some("in time"));
    let header = ["Function", "file", "kind", "taken", "waited", "for", "held", "at most"];
    let mut table = Table::new(header.into_iter().chain(last));
    for site in locks.sites.iter().take(MOST_TOLD) {
        let file = site.file.as_deref().and_then(|file| file.file_name());
        let file = file.map_or("–".into(), |file| file.to_string_lossy().into_owned());
        let waited = if site.acquisitions > 0 {
            percent(site.contended as f64 / site.acquisitions as f64)
        } else {
            "–".to_owned()
        };
        let held = site.mean_held_ns();
        let numbers = [
            grouped(site.acquisitions as f64, 0),
            waited,
            time(site.waited.ns() as f64),
            held.map_or("–".to_owned(), time),
            held.map_or("–".to_owned(), |_| time(site.longest.ns() as f64)),
        ];
        let function = dimmer_scan::title(site.function.as_deref(), site.offset);
        let boosts = match pays(site, locks.advice.as_ref()) {
            none if none.is_empty() => "–".to_owned(),
            some => some.join(", "),
        };
        table.row(
            [Cell::from(function), Cell::from(file), Cell::from(name(site.kind))]
                .into_iter()
                .chain(numbers.map(Cell::right))
                .chain(has_advice.then_some(Cell::from(boosts)))
                .chain(is_boosted.then(|| Cell::right(in_time(site)))),
        );
    }
    table
}

/// What a thread does with its time, by a section.
fn outside(site: &LockSite) -> String {
    format!(
        "{}: threads waited for it for {}, were in it for {}, and outside for {} until the next wait.",
        dimmer_scan::title(site.function.as_deref(), site.offset),
        time(site.waited.ns() as f64),
        time(site.held.ns() as f64),
        time(site.outside.ns() as f64),
    )
}

/// How many of the boosted holds had their clock before they ended.
fn in_time(site: &LockSite) -> String {
    if site.boosted == 0 {
        return "–".to_owned();
    }
    format!("{} of {}", grouped(site.carried as f64, 0), grouped(site.boosted as f64, 0))
}

/// What threads requested, and what became of it.
fn requested(locks: &Locks, carried: &Carried) -> String {
    let sum = |index: usize| {
        let requests = locks.sites.iter().map(|site| site.requests[index]);
        grouped(requests.fold(0, u64::saturating_add) as f64, 0)
    };
    if locks.sites.iter().all(|site| site.requests == [0; 3]) {
        return format!("Threads requested no clock, by {}.", carried.back_end);
    }
    let count = |number: u64| grouped(number as f64, 0);
    let mut text = format!(
        "Threads requested the fast clock {} times, the slow one {} times, and ended these {} \
         times, by {}. {} were carried out, {} after the request, which took its thread {} (medians); others were followed by the \
         next one first. The fast clock stayed requested for {}, the slow one for {}.",
        sum(1),
        sum(0),
        sum(2),
        carried.back_end,
        count(carried.requests),
        time(carried.delay.ns() as f64),
        time(carried.took.ns() as f64),
        time(carried.fast.ns() as f64),
        time(carried.slow.ns() as f64),
    );
    for (number, what) in [
        (carried.refused, "the machine did not take"),
        (carried.unplaced, "had no room on the board"),
    ] {
        if number > 0 {
            // Writing to a string cannot fail.
            let _ = write!(text, " {} {what}.", count(number));
        }
    }
    text
}

/// From which length of a hold on a faster clock pays.
fn advised(locks: &Locks) -> String {
    let Some(advice) = &locks.advice else {
        return "--model MODEL shows which of these are held so long that a faster clock for the \
                holder would pay; `dimmer sim model list` lists models."
            .to_owned();
    };
    let is_paid = |site: &&LockSite| site.verdicts.contains(&Verdict::Pays);
    let mut paid = format!(
        "By its mean, that is so for {} of {}.",
        locks.sites.iter().filter(is_paid).count(),
        counted(locks.sites.len(), "site"),
    );
    let stalled = locks.sites.iter().filter(|site| site.stalled_ratio().is_some()).count();
    if stalled > 0 {
        // Writing to a string cannot fail.
        let _ = write!(paid, " Measured stalls count, at {}.", counted(stalled, "site"));
    }
    let from = boosts(locks).map(|one| match one.shortest {
        None => format!("{} never gains", one.name),
        Some(shortest) => {
            let wait = match one.least_wait.ns() {
                0.0 => String::new(),
                wait => format!(" after a wait of at least {}", time(wait)),
            };
            format!("{} gains from {} on{wait}", one.name, time(shortest.ns()))
        }
    });
    match &advice.model {
        Some(model) => format!(
            "A faster clock for the holder on {model}, if memory stalls none of its time: {}. \
             {paid}",
            from.collect::<Vec<_>>().join("; "),
        ),
        None => match boosts(locks).find_map(|one| one.shortest) {
            Some(shortest) => format!(
                "Boost sections longer than {} here, if memory stalls none of their time. {paid}",
                time(shortest.ns()),
            ),
            None => "No section gains by a faster clock here.".to_owned(),
        },
    }
}

mod measured;
mod monitor;
#[cfg(test)]
mod tests;
