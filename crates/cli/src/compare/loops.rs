//! `dimmer sim compare --loops`: compares what moves marked regions, and whether they move.
//!
//! Governors are compared by how fast code runs. Moving regions also takes cores and makes threads
//! wait. So what counts here is the work that programs get done in the time: requests, or
//! instructions if a program serves no requests.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Context;
use comfy_table::Cell;
use dimmer_host::interrupt::Interrupt;
use dimmer_probe::stats::Samples;
use dimmer_processor::model::Model;
use dimmer_sim::scenario::{Outcome, Scenario, ThreadOutcome};
use dimmer_sim::{Course, Governor, Moment, Moving};
use serde::Serialize;

use super::{Measured, Outputs, Study, repeat, right};
use crate::output;
use crate::report::number::{SPACE, five_digits, grouped};
use crate::report::table::{plain_table, styled};
use crate::report::{MachineDescription, html};
use crate::{args, bad_input};

/// The comparison; `docs/sim-json.md` describes every key.
#[derive(Debug, Serialize)]
pub(crate) struct Document {
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

pub(crate) fn run(
    arguments: &args::Compare,
    scenario: &Scenario,
    model: &Model,
    outputs: Outputs,
) -> anyhow::Result<ExitCode> {
    let is_chosen = |moving: &Moving| *moving == Moving::None || arguments.loops.contains(moving);
    let loops: Vec<Moving> = Moving::all().into_iter().filter(is_chosen).collect();
    let interrupt = Interrupt::install().context("cannot handle signals")?;
    let moving = scenario.settings(model, Governor::Hardware, Moving::Always, 1);
    let moving = moving.map_err(bad_input)?.region_moves;
    let stops = || interrupt.is_set();
    let results = repeat(&loops, arguments.repeat, &stops, |moving, seed| {
        let settings = scenario.settings(model, Governor::Hardware, *moving, seed)?;
        let (outcome, course) = scenario.run_on(model, settings, Course::default(), &stops)?;
        Ok((!outcome.is_partial).then_some((outcome, course)))
    });
    let results = results.map_err(bad_input)?;
    let none = results.first().map(Vec::as_slice).unwrap_or_default();
    let asked = ("loop", arguments.repeat);
    let each = loops.iter().zip(&results);
    let document = Document {
        study: Study::new("dimmer/compare-loops/1", scenario, model, asked, none.len()),
        hand_over_ns: moving.map_or(0.0, |moves| 2.0 * moves.hand_over_ns),
        loops: each.map(|(moving, own)| compared(*moving, own, none)).collect(),
    };
    let page = |machine: &MachineDescription| html::moved::render(&document, machine);
    outputs.show(&document, &document.text(), page, &interrupt)
}

/// The work of a program in a run.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    is_serving: bool,
    requests: f64,
    instructions: f64,
    /// When its last thread finished, or the run ended.
    until: Moment,
    /// The longest 99th percentile of its threads' requests (ns).
    p99: u64,
}

impl Done {
    /// Work per second.
    fn rate(&self) -> f64 {
        let counted = if self.is_serving { self.requests } else { self.instructions };
        counted / (self.until.since_start().as_f64() / 1e12)
    }
}

fn done(outcome: &Outcome) -> BTreeMap<&str, Done> {
    let mut programs: BTreeMap<&str, Done> = BTreeMap::new();
    for thread in &outcome.threads {
        let ThreadOutcome { program, finished, phases, latencies, .. } = thread;
        let of = programs.entry(program.as_str()).or_default();
        of.is_serving |= latencies.is_some();
        of.until = of.until.max(finished.unwrap_or(outcome.end));
        of.instructions += phases.iter().map(|phase| phase.instructions).sum::<f64>();
        of.requests += latencies.map_or(0.0, |latencies| latencies.requests as f64);
        of.p99 = of.p99.max(latencies.map_or(0, |latencies| latencies.p99));
    }
    programs
}

fn compared(moving: Moving, own: &[Run], none: &[Run]) -> Compared {
    let own_done: Vec<_> = own.iter().map(|(outcome, _)| done(outcome)).collect();
    let none_done: Vec<_> = none.iter().map(|(outcome, _)| done(outcome)).collect();
    let first = own_done.first().cloned().unwrap_or_default();
    let rate = |of: &BTreeMap<&str, Done>, name: &str| of.get(name).map_or(0.0, Done::rate);
    let programs = first.iter().map(|(name, one)| {
        let rates: Samples = own_done.iter().map(|of| rate(of, name)).collect();
        let pairs = own_done.iter().zip(&none_done);
        let ratios: Samples = pairs.map(|(own, none)| rate(own, name) / rate(none, name)).collect();
        let serving = own_done.iter().filter_map(|of| of.get(name)).filter(|of| of.is_serving);
        let p99: Samples = serving.map(|of| of.p99 as f64 / 1e3).collect();
        Program {
            program: (*name).to_owned(),
            counted: if one.is_serving { "requests" } else { "instructions" },
            rate: Measured::new(&rates),
            ratio: Measured::new(&ratios),
            p99_us: Measured::new(&p99),
        }
    });
    let geometric = |own: &BTreeMap<&str, Done>, none: &BTreeMap<&str, Done>| {
        let logs = own.keys().map(|name| (rate(own, name) / rate(none, name)).ln());
        (logs.sum::<f64>() / own.len() as f64).exp()
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
    Compared {
        name: moving.name(),
        programs: programs.collect(),
        ratio: Measured::new(&ratios),
        moved: Measured::new(&moved.collect()),
        cores: Measured::new(&cores.collect()),
    }
}

impl Compared {
    /// Whether this is the mechanism that the others are compared with.
    pub(crate) fn is_none(&self) -> bool {
        self.name == Moving::None.name()
    }
}

impl Document {
    /// The time of a hand-over as text.
    pub(crate) fn told_hand_over(&self) -> String {
        format!("{:.2} µs", self.hand_over_ns / 1e3)
    }

    fn text(&self) -> String {
        let hand_over = self.told_hand_over();
        let mut text =
            self.study.heading(&format!("; handing a region over and back takes {hand_over}"));
        let mut table = plain_table();
        let mut header = vec!["Program".to_owned(), String::new()];
        header.extend(self.loops.iter().map(|compared| compared.name.to_owned()));
        table.set_header(header);
        let mut row = |head: [&str; 2], cell: &dyn Fn(&Compared) -> String| {
            let cells = self.loops.iter().map(|compared| right(cell(compared)));
            table.add_row(head.map(Cell::new).into_iter().chain(cells));
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
        let width = u16::try_from(output::width()).unwrap_or(u16::MAX);
        text.push_str(&styled(table, width, output::colour()));
        text.push_str("\nWhat programs get done under none, and how much more or less under the others: median and 95 % interval.\n");
        text
    }
}
