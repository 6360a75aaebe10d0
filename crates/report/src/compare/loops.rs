//! `dimmer sim compare --loops`: compares what moves marked regions or threads, and whether they
//! move.
//!
//! Governors are compared by how fast code runs. Moving regions also takes cores and makes threads
//! wait. So what counts here is the work that programs get done in the time: requests, or
//! instructions if a program serves no requests. `docs/sim-json.md` describes the keys.

mod page;

use std::collections::BTreeMap;

use dimmer_probe::stats::Samples;
use dimmer_processor::model::Model;
use dimmer_sim::scenario::{Outcome, Scenario, ThreadOutcome};
use dimmer_sim::{Course, Governor, Moment, Moving};
use dimmer_study::work::{Done, done};
use serde::Serialize;

use super::{Measured, Study};
use crate::machine::MachineDescription;
use crate::number::{SPACE, five_digits, grouped};
use crate::page::PageError;
use crate::screen::Screen;
use crate::sim::assumed;
use crate::table::{Cell, Table};

/// The document `dimmer/compare-loops/1`: what moves marked regions.
#[derive(Debug, Serialize)]
pub struct Document {
    #[serde(flatten)]
    pub(crate) study: Study,
    /// Time to hand a region over and back.
    hand_over_ns: f64,
    pub(crate) loops: Vec<Compared>,
}

/// The results of one loop, or of none.
#[derive(Debug, Serialize)]
pub(crate) struct Compared {
    #[serde(rename = "loop")]
    pub(crate) name: &'static str,
    pub(crate) programs: Vec<Program>,
    /// The geometric mean of the programs' work relative to `none`, run by run.
    pub(crate) ratio: Option<Measured>,
    /// The share of calls of marked regions that ran on dedicated cores.
    pub(crate) moved: Option<Measured>,
    /// Dedicated cores, averaged over time.
    pub(crate) cores: Option<Measured>,
    /// Traps at wide code, where cores are specialised, a second.
    pub(crate) traps: Option<Measured>,
}

/// The work of a program.
#[derive(Debug, Serialize)]
pub(crate) struct Program {
    pub(crate) program: String,
    /// The unit of work: `requests` or `instructions`.
    counted: &'static str,
    /// Work per second.
    rate: Option<Measured>,
    pub(crate) ratio: Option<Measured>,
    /// For requests, the longest 99th percentile of any of its threads (µs).
    p99_us: Option<Measured>,
}

/// A run: the work done, and the decisions.
type Run = (Outcome, Course);

fn compared(moving: Moving, own: &[Run], none: &[Run]) -> Compared {
    let own_done: Vec<_> = own.iter().map(|(outcome, _)| done(outcome)).collect();
    let none_done: Vec<_> = none.iter().map(|(outcome, _)| done(outcome)).collect();
    let first = own_done.first().cloned().unwrap_or_default();
    let rate = |of: &BTreeMap<&str, Done>, name: &str| of.get(name).map_or(0.0, Done::rate);
    let programs = first.iter().map(|(name, one)| {
        let rates: Samples = own_done.iter().map(|of| rate(of, name)).collect();
        let pairs = own_done.iter().zip(&none_done);
        let ratios: Samples = pairs.map(|(own, none)| rate(own, name) / rate(none, name)).collect();
        let served = own_done.iter().filter_map(|of| of.get(name)?.p99);
        let p99: Samples = served.map(|ns| ns as f64 / 1e3).collect();
        Program {
            program: (*name).to_owned(),
            counted: if one.is_serving { "requests" } else { "instructions" },
            rate: Measured::new(&rates),
            ratio: Measured::new(&ratios),
            p99_us: Measured::new(&p99),
        }
    });
    // A program that does nothing under none has no ratio.
    let geometric = |own: &BTreeMap<&str, Done>, none: &BTreeMap<&str, Done>| {
        let does = own.keys().filter(|name| rate(none, name) > 0.0);
        let logs: Vec<f64> = does.map(|name| (rate(own, name) / rate(none, name)).ln()).collect();
        (logs.iter().sum::<f64>() / logs.len().max(1) as f64).exp()
    };
    let ratios: Samples =
        own_done.iter().zip(&none_done).map(|(own, none)| geometric(own, none)).collect();
    let moved = own.iter().filter_map(|(outcome, _)| {
        let sum = |of: fn(&ThreadOutcome) -> u64| outcome.threads.iter().map(of).sum::<u64>();
        let (calls, moved) = (sum(|thread| thread.calls), sum(|thread| thread.moved));
        (calls > 0).then(|| moved as f64 / calls as f64)
    });
    let cores = own.iter().map(|(outcome, course)| {
        course.mean(Moment::START, outcome.end, |served| served.cores as f64)
    });
    let is_specialised = matches!(moving, Moving::Specialise(_));
    let traps = own.iter().filter(|_| is_specialised).map(|(outcome, _)| {
        let traps: u64 = outcome.threads.iter().map(|thread| thread.traps).sum();
        traps as f64 / (outcome.end.since_start().as_f64() / 1e12)
    });
    Compared {
        name: moving.name(),
        programs: programs.collect(),
        ratio: Measured::new(&ratios),
        moved: Measured::new(&moved.collect()),
        cores: Measured::new(&cores.collect()),
        traps: Measured::new(&traps.collect()),
    }
}

impl Compared {
    /// Whether this is the mechanism that the others are compared with.
    pub(crate) fn is_none(&self) -> bool {
        self.name == Moving::None.name()
    }
}

impl Document {
    /// `results`: the outcomes and decisions of each of `loops`, none first, run by run; `asked`:
    /// the runs of each that were asked for; `hand_over_ns`: the time to hand a region over and
    /// back.
    pub fn new(
        scenario: &Scenario,
        model: &Model,
        (asked, hand_over_ns): (u64, f64),
        loops: &[Moving],
        results: &[Vec<(Outcome, Course)>],
    ) -> Self {
        let none = results.first().map(Vec::as_slice).unwrap_or_default();
        let each = loops.iter().zip(results);
        let (schema, asked) = ("dimmer/compare-loops/1", ("loop", asked));
        Self {
            study: Study::new(schema, scenario, model, asked, none.len(), &[Governor::Hardware]),
            hand_over_ns,
            loops: each.map(|(moving, own)| compared(*moving, own, none)).collect(),
        }
    }

    /// The comparison as one HTML page with plots.
    ///
    /// # Errors
    /// [`PageError`]: a plot cannot be drawn.
    pub fn page(&self, machine: &MachineDescription) -> Result<String, PageError> {
        page::render(self, machine)
    }

    /// The time of a hand-over as text.
    pub(crate) fn told_hand_over(&self) -> String {
        format!("{:.2} µs", self.hand_over_ns / 1e3)
    }

    /// The comparison as text.
    pub fn text(&self, screen: Screen) -> String {
        let hand_over = self.told_hand_over();
        let mut text =
            self.study.heading(&format!("; handing a region over and back takes {hand_over}"));
        let mut header = vec!["Program".to_owned(), String::new()];
        header.extend(self.loops.iter().map(|compared| compared.name.to_owned()));
        let mut table = Table::new(header);
        let mut row = |head: [&str; 2], cell: &dyn Fn(&Compared) -> String| {
            let cells = self.loops.iter().map(|compared| Cell::right(cell(compared)));
            table.row(head.map(Cell::from).into_iter().chain(cells));
        };
        let told = |measured: Option<Measured>| measured.map(|one| one.told()).unwrap_or_default();
        let programs = self.loops.first().map(|first| first.programs.as_slice());
        for (index, program) in programs.unwrap_or_default().iter().enumerate() {
            let what = format!("{} a second", program.counted);
            row([&program.program, &what], &|compared| {
                let Program { rate, ratio, .. } = &compared.programs[index];
                if compared.is_none() {
                    rate.map(|rate| five_digits(rate.median)).unwrap_or_default()
                } else {
                    told(*ratio)
                }
            });
            if program.p99_us.is_some() {
                row([&program.program, "99 % of requests within"], &|compared| {
                    let p99 = compared.programs[index].p99_us;
                    p99.map(|p99| format!("{}{SPACE}µs", grouped(p99.median, 0)))
                        .unwrap_or_default()
                });
            }
        }
        row(["all of them", ""], &|compared| {
            if compared.is_none() { String::new() } else { told(compared.ratio) }
        });
        row(["calls that are moved", ""], &|compared| {
            compared.moved.map(|moved| format!("{:.1} %", 100.0 * moved.median)).unwrap_or_default()
        });
        row(["dedicated cores", ""], &|compared| {
            compared.cores.map(|cores| format!("{:.2}", cores.median)).unwrap_or_default()
        });
        if self.loops.iter().any(|compared| compared.traps.is_some()) {
            row(["traps at wide code a second", ""], &|compared| {
                compared.traps.map(|traps| five_digits(traps.median)).unwrap_or_default()
            });
        }
        text.push_str(&table.render(screen));
        text.push_str("\nWhat programs get done under none, and how much more or less under the others: median and 95 % interval.\n");
        text + &assumed::told(&self.study.assumptions)
    }
}
