//! What `dimmer run --boost` shows of the locks of a program. `docs/boost-json.md` describes the
//! document.

use std::fmt::Write as _;

use dimmer_launch::locks::{Advice, BreakEven, Kind, LockSite, Locks};
use dimmer_policy::break_even::Verdict;
use serde::Serialize;

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
        model: locks.advice.as_ref().map(|advice| advice.model.as_str()),
        boosts: locks.advice.iter().flat_map(|advice| advice.boosts.map(BoostEntry::new)).collect(),
        sites: locks.sites.iter().map(|site| SiteEntry::new(site, locks)).collect(),
        problems: &locks.problems,
    }
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    schema: &'static str,
    processes: usize,
    unplaced: u64,
    unended: u64,
    model: Option<&'a str>,
    boosts: Vec<BoostEntry>,
    sites: Vec<SiteEntry<'a>>,
    problems: &'a [String],
}

#[derive(Debug, Serialize)]
struct BoostEntry {
    boost: &'static str,
    shortest_ns: Option<f64>,
    least_wait_ns: f64,
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
            pays: pays(site, locks.advice.as_ref()),
        }
    }
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
        text += &screen.fill(&advised(locks));
    }
    for (number, what) in [
        (locks.unplaced, "acquisitions at sites for which there was no room"),
        (locks.unended, "holds whose end was not seen"),
    ] {
        if number > 0 {
            text += &screen.fill(&format!("Not in it: {} {what}.", grouped(number as f64, 0)));
        }
    }
    for problem in &locks.problems {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {problem}");
    }
    text
}

fn table(locks: &Locks) -> Table {
    let has_advice = locks.advice.is_some();
    let last = has_advice.then_some("pays for");
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
                .chain(has_advice.then_some(Cell::from(boosts))),
        );
    }
    table
}

/// From which length of a hold on a faster clock pays.
fn advised(locks: &Locks) -> String {
    let Some(advice) = &locks.advice else {
        return "--model MODEL shows which of these are held so long that a faster clock for the \
                holder would pay; `dimmer sim model list` lists models."
            .to_owned();
    };
    let from = advice.boosts.map(|one| match one.shortest {
        None => format!("{} never gains", one.name),
        Some(shortest) => {
            let wait = match one.least_wait.ns() {
                0.0 => String::new(),
                wait => format!(" after a wait of at least {}", time(wait)),
            };
            format!("{} gains from {} on{wait}", one.name, time(shortest.ns()))
        }
    });
    let is_paid = |site: &&LockSite| site.verdicts.contains(&Verdict::Pays);
    format!(
        "A faster clock for the holder on {}, if memory stalls none of its time: {}. By its mean, \
         that is so for {} of {}.",
        advice.model,
        from.join("; "),
        locks.sites.iter().filter(is_paid).count(),
        counted(locks.sites.len(), "site"),
    )
}
