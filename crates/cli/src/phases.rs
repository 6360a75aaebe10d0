//! `dimmer sim phases`: the multi-phase tool of paper 000 §5.1.2, on this machine or on a processor
//! model.

mod machine;

use std::process::ExitCode;

use anyhow::Context;
use dimmer_host::interrupt::Interrupt;
use dimmer_policy::license::hardware::Rules;
use dimmer_processor::model::Model;
use dimmer_processor::units::Nanos;
use dimmer_report::phases as report;
use dimmer_sim::{
    Ended, Extent, Governor, Machine, Moment, Script, Segment, Settings, SimError, Step,
};
use rayon::prelude::*;

use crate::output::{self, Output};
use crate::{args, bad_input, model, sim};

/// Default number of runs on a model.
const RUNS: u64 = 30;

/// What a phase executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Heavy,
    Waiting,
    Scalar,
}

impl Kind {
    /// In the order of the durations.
    const ALL: [Self; 3] = [Self::Heavy, Self::Waiting, Self::Scalar];

    /// The name, with the width of wide code in bits.
    fn name(self, bits: u32) -> String {
        match self {
            Self::Heavy => format!("heavy {bits} bit"),
            Self::Waiting => format!("heavy {bits} bit, waiting"),
            Self::Scalar => "scalar".to_owned(),
        }
    }

    /// The code for the simulator, and the number of instructions in an iteration.
    fn simulated(self) -> (Segment, f64) {
        match self {
            Self::Heavy => (Segment::FMA_512, f64::from(dimmer_probe::phases::UNROLLED)),
            Self::Waiting => (Segment::CHAINED_512, 1.0),
            Self::Scalar => (Segment::SCALAR, 1.0),
        }
    }
}

/// A phase to run.
#[derive(Clone, Copy, Debug)]
struct Phase {
    kind: Kind,
    us: u64,
}

pub(crate) fn run(arguments: &args::Phases) -> anyhow::Result<ExitCode> {
    let csv = arguments.csv.as_deref().map(Output::open).transpose()?;
    let phases = phases(&arguments.durations);
    if phases.is_empty() {
        return Err(bad_input("no phase lasts longer than 0: there is nothing to run"));
    }
    match arguments.model.name() {
        Some(name) => simulate(arguments, name, &phases, csv),
        None => machine::run(arguments, &phases, csv),
    }
}

fn simulate(
    arguments: &args::Phases,
    model: &str,
    phases: &[Phase],
    csv: Option<Output>,
) -> anyhow::Result<ExitCode> {
    let model = model::read(model)?;
    let governor = sim::governor(arguments.governor);
    let interrupt = Interrupt::install().context("cannot handle signals")?;
    let asked = arguments.repeat.unwrap_or(RUNS);
    let runs = (1..=asked).into_par_iter();
    let runs = runs.map(|seed| once(&model, governor, seed, phases, &|| interrupt.is_set()));
    let runs: Vec<Option<Vec<f64>>> = runs.collect::<Result<_, SimError>>().map_err(bad_input)?;
    let runs: Vec<Vec<f64>> = runs.into_iter().flatten().collect();
    let partial = format!("interrupted when {} of {asked} runs were complete", runs.len());
    let is_partial = u64::try_from(runs.len()).is_ok_and(|complete| complete < asked);
    let named = named(phases, 512);
    if let Some(csv) = csv {
        let is_standard = csv.is_standard();
        csv.write(&report::simulated(&named, &runs)?)?;
        if is_standard {
            if is_partial {
                eprintln!("PARTIAL: {partial}.");
            }
            return Ok(output::end(&interrupt));
        }
    }
    let partial = if is_partial { format!("PARTIAL: {partial}.\n") } else { String::new() };
    let of = |index: usize| runs.iter().map(|run| run[index]).collect();
    output::print(&format!(
        "on a model of {}, levels governed by {}\n{partial}\n{}",
        model.identity.name,
        governor.name(),
        report::table(&named, of, output::screen())
    ))?;
    Ok(output::end(&interrupt))
}

/// The phases with a duration above 0.
fn phases(durations: &[u64]) -> Vec<Phase> {
    let all = durations.iter().zip(Kind::ALL.into_iter().cycle());
    all.map(|(us, kind)| Phase { kind, us: *us }).filter(|phase| phase.us > 0).collect()
}

/// The iterations of each phase on a model; `None` if `stops` ends the run early.
fn once(
    model: &Model,
    governor: Governor,
    seed: u64,
    phases: &[Phase],
    stops: &dyn Fn() -> bool,
) -> Result<Option<Vec<f64>>, SimError> {
    if stops() {
        return Ok(None);
    }
    let rules = Rules::new(model)?;
    let mut machine = Machine::new(model, Settings { governor, seed, ..Settings::default() }, ())?;
    let steps = phases.iter().enumerate().map(|(counter, phase)| {
        let extent = Extent::Time(Nanos::from_us(phase.us).picos());
        let code = Segment { counter, extent, ..phase.kind.simulated().0 };
        (Step::Run(code), rules.level_of(&code.demand()))
    });
    let script = Script::new(steps.collect(), 1).under(governor);
    machine.spawn("phases", Box::new(script), Some(0));
    if machine.run_unless(Moment::MAX, &|_| stops())? == Ended::Stopped {
        return Ok(None);
    }
    let done = machine.threads().next().map(|thread| thread.instructions.clone());
    let done = done.unwrap_or_default();
    let of = |(phase, done): (&Phase, f64)| done / phase.kind.simulated().1;
    Ok(Some(phases.iter().zip(done).map(of).collect()))
}

/// The phases by name, with wide code of this width.
fn named(phases: &[Phase], bits: u32) -> Vec<report::Phase> {
    let named = phases.iter().map(|Phase { kind, us }| (kind.name(bits), *us));
    named.map(|(name, us)| report::Phase { name, us }).collect()
}
