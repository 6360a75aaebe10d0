//! The results of `dimmer sim predict-lock`, in words and as JSON. `docs/sim-json.md` describes the
//! document.

use dimmer_policy::break_even::{Boost, Boosts, Verdict, cycles};
use dimmer_processor::model::PState;
use dimmer_processor::units::Nanos;
use serde::Serialize;

use crate::number::{grouped, time};
use crate::screen::Screen;
use crate::table::{Cell, Table};

/// A critical section, and what boosting it gains on a processor.
#[derive(Clone, Copy, Debug)]
pub struct Prediction<'a> {
    /// The processor's name.
    pub model: &'a str,
    /// The boosts that it has.
    pub boosts: Boosts<'a>,
    /// How long the section takes at the base clock.
    pub section: Nanos,
    /// How long the thread waits for the lock before it.
    pub wait: Nanos,
    /// The part of the section's time in which memory stalls it; 0 to 1.
    pub memory_share: f64,
}

/// The document `dimmer/predict-lock/1`.
#[derive(Debug, Serialize)]
struct Document<'a> {
    schema: &'static str,
    model: &'a str,
    section_ns: u64,
    wait_ns: u64,
    memory_share: f64,
    boosts: [Entry<'a>; 2],
}

/// A boost, and whether it pays for the section.
#[derive(Debug, Serialize)]
struct Entry<'a> {
    boost: &'static str,
    waiting: &'a str,
    boosted: &'a str,
    normal: &'a str,
    boosted_mhz: u64,
    /// The shortest section that gains; `None` if none does.
    shortest_ns: Option<f64>,
    /// The same in cycles of the boosted clock.
    shortest_cycles: Option<u64>,
    least_wait_ns: f64,
    pays: bool,
    #[serde(skip)]
    verdict: Verdict,
}

impl<'a> Prediction<'a> {
    /// The document `dimmer/predict-lock/1`.
    pub fn document(&self) -> impl Serialize + use<'a> {
        Document {
            schema: "dimmer/predict-lock/1",
            model: self.model,
            section_ns: self.section.ns(),
            wait_ns: self.wait.ns(),
            memory_share: self.memory_share,
            boosts: self.entries(),
        }
    }

    /// The results as text.
    pub fn text(&self, screen: Screen) -> String {
        let entries = self.entries();
        let base = self.boosts.base;
        let stalls = grouped(100.0 * self.memory_share, 0);
        let mut text = screen.fill(&format!(
            "On {}: a critical section of {} at the base clock ({}, {} MHz), of which memory stalls \
             {stalls} %, after a wait of {}",
            self.model,
            time(self.section.ns() as f64),
            base.name,
            base.mhz.value,
            time(self.wait.ns() as f64),
        ));
        text.push('\n');
        let mut table = Table::new(["Boost", "gains from", "in cycles", "after a wait of"]);
        for entry in &entries {
            let gains = entry.shortest_ns.map_or("–".to_owned(), time);
            let cycles = entry.shortest_cycles.map_or("–".to_owned(), |cycles| {
                format!("{} at {} MHz", grouped(cycles as f64, 0), entry.boosted_mhz)
            });
            let wait = match entry.least_wait_ns {
                0.0 => "any length".to_owned(),
                ns => time(ns),
            };
            let name = Cell::from(entry.words());
            table.row([name].into_iter().chain([gains, cycles, wait].map(Cell::right)));
        }
        text += &table.render(screen);
        text.push('\n');
        for entry in &entries {
            text += &screen.fill(&self.sentence(entry));
        }
        text
    }

    fn entries(&self) -> [Entry<'a>; 2] {
        let Boosts { slow, base, step, turbo, owner, one_step } = self.boosts;
        [
            self.entry("owner", [slow, turbo], &owner),
            self.entry("one-step", [base, step], &one_step),
        ]
    }

    fn entry(
        &self,
        boost: &'static str,
        [waiting, boosted]: [&'a PState; 2],
        costs: &Boost,
    ) -> Entry<'a> {
        let shortest = costs.shortest(self.memory_share);
        let verdict = costs.verdict(self.section.picos(), self.wait.picos(), self.memory_share);
        Entry {
            boost,
            waiting: &waiting.name,
            boosted: &boosted.name,
            normal: &self.boosts.base.name,
            boosted_mhz: boosted.mhz.value,
            shortest_ns: shortest.map(|shortest| shortest.ns()),
            shortest_cycles: shortest.map(|shortest| cycles(shortest, costs.boosted())),
            least_wait_ns: costs.least_wait().ns(),
            pays: verdict == Verdict::Pays,
            verdict,
        }
    }

    /// Whether the boost pays, and why.
    fn sentence(&self, entry: &Entry<'_>) -> String {
        let name = if entry.boost == "owner" { "The owner's boost" } else { "One step" };
        let (section, wait) = (time(self.section.ns() as f64), time(self.wait.ns() as f64));
        match (entry.verdict, entry.shortest_ns) {
            (Verdict::Pays, _) => format!("{name} pays for a section of {section}."),
            (Verdict::ShortWait, _) => format!(
                "{name} does not pay: the request for {} takes {}, longer than the wait of {wait}.",
                entry.waiting,
                time(entry.least_wait_ns),
            ),
            (Verdict::ShortSection, Some(shortest)) => format!(
                "{name} does not pay: the section of {section} is {} too short.",
                time(shortest - self.section.ns() as f64),
            ),
            (Verdict::ShortSection, None) => {
                format!("{name} never pays: a faster clock does not shorten the section.")
            }
        }
    }
}

impl Entry<'_> {
    /// The boost by its P-states.
    fn words(&self) -> String {
        let Self { waiting, boosted, normal, .. } = self;
        if waiting == normal {
            format!("one step: {normal}, {boosted} inside")
        } else {
            format!("owner: {waiting} while waiting, {boosted} inside")
        }
    }
}
