//! `dimmer sim phases`: the multi-phase tool of paper 000 §5.1.2, on this machine or on a processor
//! model.

mod machine;

use std::process::ExitCode;

use anyhow::Context;
use comfy_table::{Cell, CellAlignment};
use dimmer_host::interrupt::Interrupt;
use dimmer_policy::license::hardware::Rules;
use dimmer_probe::stats::Samples;
use dimmer_processor::model::Model;
use dimmer_processor::units::Nanos;
use dimmer_sim::{
    Ended, Extent, Governor, Machine, Moment, Script, Segment, Settings, SimError, Step,
};
use rayon::prelude::*;

use crate::output::{self, Output};
use crate::report::table::{plain_table, styled};
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
    match &arguments.model {
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
    let names: Vec<String> = phases.iter().map(|phase| phase.kind.name(512)).collect();
    if let Some(csv) = csv {
        let is_standard = csv.is_standard();
        let rows = runs.iter().map(|run| run.iter().map(|done| [iterations(*done)]).collect());
        csv.write(&series(phases, &names, ["iterations"], rows)?)?;
        if is_standard {
            if is_partial {
                eprintln!("PARTIAL: {partial}.");
            }
            return Ok(output::end(&interrupt));
        }
    }
    println!("on a model of {}, levels governed by {}", model.identity.name, governor.name());
    if is_partial {
        println!("PARTIAL: {partial}.");
    }
    println!();
    let of = |index: usize| runs.iter().map(|run| run[index]).collect();
    print!("{}", table(phases, &names, of));
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
    if machine.run_unless(Moment::MAX, stops)? == Ended::Stopped {
        return Ok(None);
    }
    let done = machine.threads().next().map(|thread| thread.instructions.clone());
    let done = done.unwrap_or_default();
    let of = |(phase, done): (&Phase, f64)| done / phase.kind.simulated().1;
    Ok(Some(phases.iter().zip(done).map(of).collect()))
}

/// A row for each phase; `of` returns its iterations, run by run.
fn table(phases: &[Phase], names: &[String], of: impl Fn(usize) -> Samples) -> String {
    let mut table = plain_table();
    table.set_header(["Phase", "µs", "iterations", "95 % interval", "p99"]);
    for (index, (phase, name)) in phases.iter().zip(names).enumerate() {
        let iterations = of(index);
        let whole = |number: Option<f64>| number.map_or("–".to_owned(), |n| format!("{n:.0}"));
        let interval = iterations.estimate().map(|found| found.ci95);
        let cells = [
            phase.us.to_string(),
            whole(iterations.quantile(0.5)),
            interval.map_or("–".to_owned(), |(low, high)| format!("[{low:.0}, {high:.0}]")),
            whole(iterations.quantile(0.99)),
        ];
        let numbers = cells.map(|cell| Cell::new(cell).set_alignment(CellAlignment::Right));
        table.add_row(std::iter::once(Cell::new(name)).chain(numbers));
    }
    let width = u16::try_from(output::width()).unwrap_or(u16::MAX);
    styled(table, width, output::colour())
}

/// The runs as CSV: a line for each phase of each run, with the results under these headings.
fn series<const N: usize>(
    phases: &[Phase],
    names: &[String],
    headings: [&str; N],
    runs: impl Iterator<Item = Vec<[String; N]>>,
) -> anyhow::Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(["run", "phase", "code", "us"].iter().chain(&headings))?;
    for (run, found) in runs.enumerate() {
        for (index, ((phase, name), found)) in phases.iter().zip(names).zip(found).enumerate() {
            let (run, index) = ((run + 1).to_string(), (index + 1).to_string());
            let first = [run, index, name.clone(), phase.us.to_string()];
            writer.write_record(first.iter().chain(&found))?;
        }
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

/// The number of iterations as CSV has it.
fn iterations(done: f64) -> String {
    format!("{done:.1}")
}
