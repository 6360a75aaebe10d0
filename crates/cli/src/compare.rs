//! `dimmer sim compare`: compares ways to run one workload, by what governs license levels
//! ([`governors`]) or by what moves marked regions ([`loops`]).

use std::process::ExitCode;

use comfy_table::{Cell, CellAlignment};
use dimmer_host::cpuid::Cpuid;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::machine::Machine;
use dimmer_host::root::Root;
use dimmer_probe::stats::Samples;
use dimmer_processor::model::Model;
use dimmer_sim::SimError;
use dimmer_sim::scenario::Scenario;
use rayon::prelude::*;
use serde::Serialize;

use crate::output::{self, Output};
use crate::report::MachineDescription;
use crate::{args, probe, sim};

pub(crate) mod governors;
pub(crate) mod loops;

pub(crate) fn run(arguments: &args::Compare) -> anyhow::Result<ExitCode> {
    let outputs = Outputs {
        begin: jiff::Zoned::now(),
        json: arguments.json.open()?,
        page: arguments.page.open()?,
    };
    let (scenario, model) = sim::read(&arguments.scenario, arguments.model.model.as_deref())?;
    if arguments.loops.is_empty() {
        governors::run(arguments, &scenario, &model, outputs)
    } else {
        loops::run(arguments, &scenario, &model, outputs)
    }
}

/// The common part of every comparison; `docs/sim-json.md` describes every key.
#[derive(Debug, Serialize)]
pub(crate) struct Study {
    schema: &'static str,
    pub(crate) scenario: String,
    pub(crate) source: String,
    pub(crate) model: String,
    /// Whether an interrupt ended the comparison before all runs were complete.
    partial: bool,
    /// For each way: the number of complete runs, and of requested ones.
    pub(crate) runs: u64,
    asked_runs: u64,
    /// The noun for a way.
    #[serde(skip)]
    way: &'static str,
}

impl Study {
    /// `asked`: the noun for a way, and the number of requested runs. `runs`: the number of
    /// complete ones.
    fn new(
        schema: &'static str,
        scenario: &Scenario,
        model: &Model,
        (way, asked_runs): (&'static str, u64),
        runs: usize,
    ) -> Self {
        let runs = u64::try_from(runs).unwrap_or(u64::MAX);
        Self {
            schema,
            scenario: scenario.name.clone(),
            source: scenario.source.clone(),
            model: model.identity.name.clone(),
            partial: runs < asked_runs,
            runs,
            asked_runs,
            way,
        }
    }

    /// How far the comparison got, if an interrupt ended it.
    pub(crate) fn told_partial(&self) -> Option<String> {
        let Self { runs, asked_runs, way, .. } = self;
        self.partial.then(|| {
            format!(
                "PARTIAL: interrupted when {runs} of {asked_runs} runs of each {way} were complete."
            )
        })
    }

    /// The first lines of the text, with `more` at the end of the sentence.
    fn heading(&self, more: &str) -> String {
        let Self { scenario, source, model, runs, way, .. } = self;
        let mut text = format!(
            "{scenario} ({source})\non a model of {model}, {runs} runs of each {way}{more}\n"
        );
        text.extend(self.told_partial().map(|told| told + "\n"));
        text + "\n"
    }
}

/// Where results go, and when the command started.
pub(crate) struct Outputs {
    begin: jiff::Zoned,
    json: Option<Output>,
    page: Option<Output>,
}

impl Outputs {
    /// Writes a comparison to the requested outputs.
    fn show(
        self,
        document: &impl Serialize,
        text: &str,
        page: impl FnOnce(&MachineDescription) -> anyhow::Result<String>,
        interrupt: &Interrupt,
    ) -> anyhow::Result<ExitCode> {
        if let Some(output) = self.page {
            let machine = Machine::read(&Root::live(), &Cpuid::instruction());
            output.write(&page(&probe::description(&machine, &self.begin))?)?;
        }
        output::show(self.json, document, text)?;
        Ok(output::end(interrupt))
    }
}

/// Runs each way with seeds 1 to `runs`. The results of each way are in the order of the seeds,
/// however many processors work on them. If `stops` returns true, only seeds that are complete for
/// all ways count. `one` returns `None` if it was stopped.
fn repeat<Way: Sync, T: Send + Clone>(
    ways: &[Way],
    runs: u64,
    stops: &(dyn Fn() -> bool + Sync),
    one: impl Fn(&Way, u64) -> Result<Option<T>, SimError> + Sync,
) -> Result<Vec<Vec<T>>, SimError> {
    let of_seed = |seed| -> Result<Option<Vec<T>>, SimError> {
        if stops() {
            return Ok(None);
        }
        ways.par_iter().map(|way| one(way, seed)).collect()
    };
    let seeds: Vec<Option<Vec<T>>> =
        (1..=runs).into_par_iter().map(of_seed).collect::<Result<_, _>>()?;
    let mut results = vec![Vec::new(); ways.len()];
    for of_ways in seeds.into_iter().flatten() {
        results.iter_mut().zip(of_ways).for_each(|(of, result)| of.push(result));
    }
    Ok(results)
}

/// A quantity over all runs.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Measured {
    pub(crate) median: f64,
    pub(crate) ci95: (f64, f64),
    pub(crate) p99: f64,
}

impl Measured {
    /// `None` without samples.
    pub(crate) fn new(samples: &Samples) -> Option<Self> {
        let ci95 = samples.estimate()?.ci95;
        Some(Self { median: samples.quantile(0.5)?, ci95, p99: samples.quantile(0.99)? })
    }

    /// An energy (J) as text.
    pub(crate) fn told_joules(&self) -> String {
        format!("{:.4} J", self.median)
    }

    /// A ratio as a difference in percent, with its interval if that is wide enough to be seen.
    pub(crate) fn told(&self) -> String {
        let percent = |ratio: f64| 100.0 * (ratio - 1.0);
        let (low, high) = (percent(self.ci95.0), percent(self.ci95.1));
        let interval =
            if high - low < 0.02 { String::new() } else { format!(" [{low:.2}, {high:.2}]") };
        format!("{:+.2} %{interval}", percent(self.median)).replace('-', "−")
    }
}

/// A right-aligned cell for a number.
fn right(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}
