//! The results of `dimmer sim compare`: ways to run one workload, by what governs license levels
//! ([`Governors`]) or by what moves marked regions ([`Loops`]). `docs/sim-json.md` describes the
//! documents.

mod governors;
mod loops;

use dimmer_probe::stats::Samples;
use dimmer_processor::model::Model;
use dimmer_sim::Governor;
use dimmer_sim::scenario::Scenario;
use serde::Serialize;

pub use governors::Document as Governors;
pub use loops::Document as Loops;

use crate::number::{SPACE, grouped, signed};
use crate::sim::assumed::{Assumption, assumptions};

/// The common part of every comparison.
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
    /// What is assumed where the model lacks a value.
    pub(crate) assumptions: Vec<Assumption>,
    /// The noun for a way.
    #[serde(skip)]
    way: &'static str,
}

impl Study {
    /// `asked`: the noun for a way, and the number of requested runs. `runs`: the number of
    /// complete ones. `governors`: those of license levels in any of them.
    fn new(
        schema: &'static str,
        scenario: &Scenario,
        model: &Model,
        (way, asked_runs): (&'static str, u64),
        runs: usize,
        governors: &[Governor],
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
            assumptions: assumptions(scenario, model, governors),
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

    /// What is assumed, a sentence for each value.
    pub(crate) fn told_assumptions(&self) -> impl Iterator<Item = String> {
        self.assumptions.iter().map(|Assumption { key, value }| {
            format!("Assumed, because the model does not say it: {key}: {value}.")
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
        let interval = if high - low < 0.02 {
            String::new()
        } else {
            format!(" [{},{SPACE}{}]", grouped(low, 2), grouped(high, 2))
        };
        format!("{}{SPACE}%{interval}", signed(percent(self.median), 2))
    }
}
