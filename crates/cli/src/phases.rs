//! `dimmer phases`: the multi-phase tool of paper 000 §5.1.2, on a processor model.

use std::process::ExitCode;

use comfy_table::{Cell, CellAlignment};
use dimmer_policy::licence::hardware::Rules;
use dimmer_probe::stats::Samples;
use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::Model;
use dimmer_processor::units::LicenceLevel;
use dimmer_sim::{
    Extent, Governor, Machine, Moment, PS, Script, Segment, Settings, SimError, Step,
};
use rayon::prelude::*;

use crate::output::{self, Output};
use crate::report::table::{plain_table, styled};
use crate::{args, bad_input, model, sim};

/// A kind of phase: its name, its code, and how many instructions an iteration has.
const KINDS: [(&str, Segment, f64); 3] = [
    (
        "heavy 512 bit",
        Segment { class: InstructionClass::Heavy512, ipc: 2.0, ..Segment::SCALAR },
        31.0,
    ),
    (
        "heavy 512 bit, waiting",
        Segment {
            class: InstructionClass::Heavy512,
            ipc: 0.25,
            is_chained: true,
            ..Segment::SCALAR
        },
        1.0,
    ),
    ("scalar", Segment::SCALAR, 1.0),
];

/// A phase that is run.
#[derive(Clone, Copy, Debug)]
struct Phase {
    name: &'static str,
    us: u64,
    code: Segment,
    per_iteration: f64,
}

pub(crate) fn run(arguments: &args::Phases) -> anyhow::Result<ExitCode> {
    let csv = arguments.csv.as_deref().map(Output::open).transpose()?;
    let model = model::read(&arguments.model)?;
    let governor = sim::governor(arguments.governor);
    let phases = phases(&arguments.durations);
    if phases.is_empty() {
        return Err(bad_input("no phase lasts longer than 0: there is nothing to run"));
    }
    let runs =
        (1..=arguments.repeat).into_par_iter().map(|seed| once(&model, governor, seed, &phases));
    let runs: Vec<Vec<f64>> = runs.collect::<Result<_, SimError>>().map_err(bad_input)?;
    if let Some(csv) = csv {
        let is_standard = csv.is_standard();
        csv.write(&series(&phases, &runs)?)?;
        if is_standard {
            return Ok(ExitCode::SUCCESS);
        }
    }
    println!("on a model of {}, levels governed by {}", model.identity.name, governor.name());
    println!();
    let mut table = plain_table();
    table.set_header(["Phase", "µs", "iterations", "95 % interval", "p99"]);
    for (index, phase) in phases.iter().enumerate() {
        let iterations: Samples = runs.iter().map(|run| run[index]).collect();
        let quantile = |at| iterations.quantile(at).unwrap_or(f64::NAN);
        let (low, high) = iterations.estimate().map_or((f64::NAN, f64::NAN), |found| found.ci95);
        let cells = [
            phase.us.to_string(),
            format!("{:.0}", quantile(0.5)),
            format!("[{low:.0}, {high:.0}]"),
            format!("{:.0}", quantile(0.99)),
        ];
        let numbers = cells.map(|cell| Cell::new(cell).set_alignment(CellAlignment::Right));
        table.add_row(std::iter::once(Cell::new(phase.name)).chain(numbers));
    }
    let width = u16::try_from(output::width()).unwrap_or(u16::MAX);
    print!("{}", styled(table, width, output::colour()));
    Ok(ExitCode::SUCCESS)
}

/// The phases that take any time.
fn phases(durations: &[u64]) -> Vec<Phase> {
    let kinds = KINDS.into_iter().cycle();
    let all = durations.iter().zip(kinds).map(|(us, (name, code, per_iteration))| Phase {
        name,
        us: *us,
        code,
        per_iteration,
    });
    all.filter(|phase| phase.us > 0).collect()
}

/// The iterations of each phase.
fn once(
    model: &Model,
    governor: Governor,
    seed: u64,
    phases: &[Phase],
) -> Result<Vec<f64>, SimError> {
    let rules = Rules::new(model)?;
    let mut machine = Machine::new(model, Settings { governor, seed, ..Settings::default() }, ())?;
    let steps = phases.iter().enumerate().map(|(counter, phase)| {
        let extent = Extent::Time(phase.us * 1000 * PS);
        let code = Segment { counter, extent, ..phase.code };
        let step = Step::Run(code);
        (step, level(&rules, &code))
    });
    let script = Script::new(steps.collect(), 1);
    let script = if governor == Governor::User { script.calling() } else { script };
    machine.spawn("phases", Box::new(script), Some(0));
    machine.run(Moment::MAX)?;
    let done = machine.threads().next().map(|thread| thread.instructions.clone());
    let done = done.unwrap_or_default();
    let of = |(phase, done): (&Phase, f64)| done / phase.per_iteration;
    Ok(phases.iter().zip(done).map(of).collect())
}

fn level(rules: &Rules, code: &Segment) -> LicenceLevel {
    rules.level_of(&code.demand())
}

fn series(phases: &[Phase], runs: &[Vec<f64>]) -> anyhow::Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(["run", "phase", "code", "us", "iterations"])?;
    for (run, iterations) in runs.iter().enumerate() {
        for (index, (phase, iterations)) in phases.iter().zip(iterations).enumerate() {
            let (run, index) = ((run + 1).to_string(), (index + 1).to_string());
            let (us, iterations) = (phase.us.to_string(), format!("{iterations:.1}"));
            writer.write_record([&run, &index, phase.name, &us, &iterations])?;
        }
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}
