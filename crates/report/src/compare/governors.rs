//! `dimmer sim compare --governors`: compares governors of license levels. `docs/sim-json.md`
//! describes the keys.

mod page;

use dimmer_probe::stats::Samples;
use dimmer_processor::model::Model;
use dimmer_sim::Governor;
use dimmer_sim::scenario::{Outcome, PhaseOutcome, Scenario, ThreadOutcome};
use serde::Serialize;

use super::{Measured, Study};
use crate::machine::MachineDescription;
use crate::page::PageError;
use crate::screen::Screen;
use crate::sim::{assumed, energy, way};
use crate::table::{Cell, Table};

/// The document `dimmer/compare/1`: governors of license levels.
#[derive(Debug, Serialize)]
pub struct Document {
    #[serde(flatten)]
    pub(crate) study: Study,
    /// Whether the model does not say what is left of the processor's own levels under governors in
    /// software, so that this is assumed.
    pub(crate) is_reduction_assumed: bool,
    /// The reason why there is no energy, if there is none.
    pub(crate) no_energy: Option<String>,
    /// Idle states of unknown power: cores in them count as waiting.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) unknown_idle_states: Vec<String>,
    pub(crate) governors: Vec<Compared>,
}

/// The results of one governor.
#[derive(Debug, Serialize)]
pub(crate) struct Compared {
    pub(crate) governor: &'static str,
    pub(crate) phases: Vec<Phase>,
    /// Speed relative to `hardware` for the same work: the time that its phases would take under
    /// `hardware` over the time that they take, run by run.
    pub(crate) ratio: Option<Measured>,
    /// Energy of all packages (J); `None` if unknown.
    pub(crate) joules: Option<Measured>,
    /// Energy for the same work, over that under `hardware`, run by run.
    pub(crate) energy_ratio: Option<Measured>,
    pub(crate) latencies: Vec<Latency>,
    /// Changes of level per run, of all cores.
    pub(crate) changes: f64,
    /// Time below the level that code requests, per run (µs).
    pub(crate) below_us: f64,
    /// Interrupts and calls per run.
    pub(crate) interrupts: f64,
    /// Under the oracle, the ways that it chose.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) ways: Vec<OracleWay>,
}

/// A way that the oracle chose, and in how many runs.
#[derive(Debug, Serialize)]
pub(crate) struct OracleWay {
    pub(crate) way: &'static str,
    pub(crate) in_runs: usize,
}

/// The speed of a step of a thread.
#[derive(Debug, Serialize)]
pub(crate) struct Phase {
    pub(crate) thread: String,
    pub(crate) code: String,
    /// Instructions per nanosecond; `None` if it never ran.
    pub(crate) rate: Option<Measured>,
    /// Rate over that under `hardware`, run by run.
    pub(crate) ratio: Option<Measured>,
}

/// How long a thread's requests take.
#[derive(Debug, Serialize)]
pub(crate) struct Latency {
    pub(crate) thread: String,
    pub(crate) p99_us: Option<Measured>,
    pub(crate) ratio: Option<Measured>,
}

fn compared(governor: Governor, own: &[Outcome], hardware: &[Outcome]) -> Compared {
    let rate_of = |outcome: &Outcome, thread: usize, phase: usize| {
        outcome.threads[thread].phases[phase].rate()
    };
    let mut phases = Vec::new();
    for (thread, of_thread) in own.iter().take(1).flat_map(|first| first.threads.iter().enumerate())
    {
        for (phase, of_phase) in of_thread.phases.iter().enumerate() {
            let rates: Samples =
                own.iter().filter_map(|outcome| rate_of(outcome, thread, phase)).collect();
            let pairs = own.iter().zip(hardware);
            let ratios: Samples = pairs
                .filter_map(|(own, other)| {
                    Some(rate_of(own, thread, phase)? / rate_of(other, thread, phase)?)
                })
                .collect();
            phases.push(Phase {
                thread: of_thread.name.clone(),
                code: of_phase.code.clone(),
                rate: Measured::new(&rates),
                ratio: Measured::new(&ratios),
            });
        }
    }
    let ratios: Samples =
        own.iter().zip(hardware).map(|(own, other)| own.speed_over(other)).collect();
    let energies: Samples = own.iter().filter_map(joules).collect();
    let pairs = own.iter().zip(hardware);
    let energy_ratios: Samples =
        pairs.filter_map(|(own, other)| energy_for_the_same(own, other)).collect();
    let latencies = latencies(own, hardware);
    let mean = |of: fn(&dimmer_sim::Totals) -> u64| {
        let sum: u64 = own.iter().flat_map(|outcome| &outcome.cores).map(of).sum();
        sum as f64 / own.len().max(1) as f64
    };
    let (changes, interrupts) = (mean(|core| core.changes), mean(|core| core.interrupts));
    let below_us = mean(|core| core.below.ps()) / 1e6;
    let ratio = Measured::new(&ratios);
    let (joules, energy_ratio) = (Measured::new(&energies), Measured::new(&energy_ratios));
    Compared {
        governor: governor.name(),
        phases,
        ratio,
        joules,
        energy_ratio,
        latencies,
        changes,
        below_us,
        interrupts,
        ways: oracle_ways(own),
    }
}

/// The ways that the oracle chose, in the order of governors.
fn oracle_ways(own: &[Outcome]) -> Vec<OracleWay> {
    let count = |way: Governor| own.iter().filter(|one| one.oracle_way == Some(way)).count();
    let ways = Governor::ALL.into_iter().map(|way| (way, count(way)));
    let ways = ways.filter(|(_, in_runs)| *in_runs > 0);
    ways.map(|(chosen, in_runs)| OracleWay { way: way(chosen), in_runs }).collect()
}

/// The request latencies of each thread that serves requests.
fn latencies(own: &[Outcome], hardware: &[Outcome]) -> Vec<Latency> {
    let p99 = |outcome: &Outcome, thread: usize| {
        Some(outcome.threads[thread].latencies?.if_any()?.p99 as f64 / 1e3)
    };
    let threads = own.first().map(|first| first.threads.as_slice()).unwrap_or_default();
    let serving = threads.iter().enumerate().filter(|(_, thread)| thread.latencies.is_some());
    let of = |(index, thread): (usize, &ThreadOutcome)| {
        let own_p99: Samples = own.iter().filter_map(|outcome| p99(outcome, index)).collect();
        let pairs = own.iter().zip(hardware);
        let ratios: Samples =
            pairs.filter_map(|(own, other)| Some(p99(own, index)? / p99(other, index)?)).collect();
        let (p99_us, ratio) = (Measured::new(&own_p99), Measured::new(&ratios));
        Latency { thread: thread.name.clone(), p99_us, ratio }
    };
    serving.map(of).collect()
}

/// The phases of all threads, step by step.
fn phases(outcome: &Outcome) -> impl Iterator<Item = &PhaseOutcome> {
    outcome.threads.iter().flat_map(|thread| &thread.phases)
}

/// Energy of all packages (J).
fn joules(outcome: &Outcome) -> Option<f64> {
    let energy = outcome.energy.as_ref().ok()?;
    Some(energy.packages.iter().map(|package| package.joules).sum())
}

/// The reason why the energy is missing in a run.
fn no_energy<'a>(mut outcomes: impl Iterator<Item = &'a Outcome>) -> Option<String> {
    outcomes.find_map(|outcome| outcome.energy.as_ref().err().map(ToString::to_string))
}

/// Energy of `own` over the energy that `other` would have taken for the same work: its own energy,
/// scaled to the work of `own`.
fn energy_for_the_same(own: &Outcome, other: &Outcome) -> Option<f64> {
    let (mut done, mut took) = (0.0, 0.0);
    for (own, other) in phases(own).zip(phases(other)) {
        if let Some(rate) = other.rate() {
            done += own.instructions / rate;
            took += other.time.ns();
        }
    }
    Some(joules(own)? / (joules(other)? * (done / took)))
}

impl Compared {
    /// Whether this is the governor that the others are compared with.
    pub(crate) fn is_hardware(&self) -> bool {
        self.governor == Governor::Hardware.name()
    }

    /// The entry for this governor: for the processor's own the value itself, for others the
    /// difference to it.
    fn own_or_ratio(&self, own: Option<String>, ratio: Option<Measured>) -> Option<String> {
        if self.is_hardware() { own } else { ratio.map(|ratio| ratio.told()) }
    }
}

impl Document {
    /// `results`: the outcomes of each of `governors`, the processor's own first, run by run;
    /// `asked`: the runs of each that were asked for.
    pub fn new(
        scenario: &Scenario,
        model: &Model,
        asked: u64,
        governors: &[Governor],
        results: &[Vec<Outcome>],
    ) -> Self {
        let hardware = results.first().map(Vec::as_slice).unwrap_or_default();
        let asked = ("governor", asked);
        let mut reduced = model.levels.iter().skip(1).map(|level| level.reduced_mhz.as_ref());
        let mut energies = results.iter().flatten().map(|outcome| outcome.energy.as_ref());
        let unknown = energies.find_map(|energy| Some(energy.ok()?.unknown_states.clone()));
        let each = governors.iter().zip(results);
        Self {
            study: Study::new(
                "dimmer/compare/1",
                scenario,
                model,
                asked,
                hardware.len(),
                governors,
            ),
            is_reduction_assumed: reduced.any(|mhz| mhz.is_none()),
            no_energy: no_energy(results.iter().flatten()),
            unknown_idle_states: unknown.unwrap_or_default(),
            governors: each.map(|(governor, own)| compared(*governor, own, hardware)).collect(),
        }
    }

    /// The comparison as one HTML page with plots.
    ///
    /// # Errors
    /// [`PageError`]: a plot cannot be drawn.
    pub fn page(&self, machine: &MachineDescription) -> Result<String, PageError> {
        page::render(self, machine)
    }

    /// The reason why there is no energy, or what the energy does not include.
    pub(crate) fn told_lack(&self) -> Option<String> {
        let lack = self.no_energy.as_ref().map(|lack| format!("No energy: {lack}."));
        lack.or_else(|| energy::told_unknown(&self.unknown_idle_states))
    }

    /// What it means that code ran below its level.
    fn told_below(&self) -> String {
        "Below its level: code ran faster than it may, as the governor had not seen it, or was not \
         told; a processor might not be stable then."
            .to_owned()
    }

    /// The comparison as text.
    pub fn text(&self, screen: Screen) -> String {
        let mut text = self.study.heading("");
        let numbered = self.governors.first().map(|first| first.phases.len()).unwrap_or(0);
        let mut header = vec!["Thread".to_owned(), "code".to_owned()];
        header.extend(self.governors.iter().map(|compared| compared.governor.to_owned()));
        let mut table = Table::new(header);
        for index in 0..numbered {
            let first = &self.governors[0].phases[index];
            let mut cells = vec![Cell::from(first.thread.as_str()), first.code.as_str().into()];
            for compared in &self.governors {
                let Phase { rate, ratio, .. } = &compared.phases[index];
                let own = rate.map(|rate| format!("{:.4} per ns", rate.median));
                cells.push(Cell::right(
                    compared.own_or_ratio(own, *ratio).unwrap_or("not run".to_owned()),
                ));
            }
            table.row(cells);
        }
        let serving = self.governors.first().map(|first| first.latencies.len()).unwrap_or(0);
        for index in 0..serving {
            let thread = &self.governors[0].latencies[index].thread;
            let mut cells =
                vec![Cell::from(thread.as_str()), Cell::from("99 % of requests within")];
            for compared in &self.governors {
                let Latency { p99_us, ratio, .. } = &compared.latencies[index];
                let own = p99_us.map(|p99| format!("{:.1} µs", p99.median));
                cells.push(Cell::right(
                    compared.own_or_ratio(own, *ratio).unwrap_or("none served".to_owned()),
                ));
            }
            table.row(cells);
        }
        let mut all = vec![Cell::from("all of the work"), Cell::from("")];
        let told = |compared: &Compared| {
            compared.own_or_ratio(Some(String::new()), compared.ratio).unwrap_or_default()
        };
        all.extend(self.governors.iter().map(|compared| Cell::right(told(compared))));
        table.row(all);
        if self.no_energy.is_none() {
            let mut energy = vec![Cell::from("energy for the same work"), Cell::from("")];
            let told = |compared: &Compared| {
                let own = compared.joules.map(|joules| joules.told_joules());
                compared.own_or_ratio(own, compared.energy_ratio).unwrap_or_default()
            };
            energy.extend(self.governors.iter().map(|compared| Cell::right(told(compared))));
            table.row(energy);
        }
        let mut changes = vec![Cell::from("changes of level a run"), Cell::from("")];
        let numbers = self.governors.iter().map(|compared| format!("{:.1}", compared.changes));
        changes.extend(numbers.map(Cell::right));
        table.row(changes);
        if self.governors.iter().any(|compared| compared.below_us > 0.0) {
            let mut below = vec![Cell::from("below its level a run"), Cell::from("")];
            let numbers =
                self.governors.iter().map(|compared| format!("{:.1} µs", compared.below_us));
            below.extend(numbers.map(Cell::right));
            table.row(below);
        }
        text.push_str(&table.render(screen));
        text.push_str("\nInstructions per nanosecond under hardware, and how much more or less under the others: median and 95 % interval.\n");
        if self.governors.iter().any(|compared| compared.below_us > 0.0) {
            text.push_str(&(self.told_below() + "\n"));
        }
        if let Some(told) = self.told_lack() {
            text.push_str(&format!("{told}\n"));
        }
        for compared in &self.governors {
            if !compared.ways.is_empty() {
                let ways = compared.ways.iter();
                let ways = ways.map(|OracleWay { way, in_runs }| format!("{way} in {in_runs}"));
                let ways: Vec<String> = ways.collect();
                text.push_str(&format!("The oracle's way, by runs: {}.\n", ways.join(", ")));
            }
        }
        text + &assumed::told(&self.study.assumptions)
    }
}
