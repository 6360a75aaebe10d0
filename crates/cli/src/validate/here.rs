//! `dimmer sim validate --here`: compares the predictions of a model of this machine with
//! measurements.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use dimmer_host::cpuid::Cpuid;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::machine::Machine;
use dimmer_host::root::Root;
use dimmer_probe::interleaved::{self, Pattern};
use dimmer_processor::model::Model;
use dimmer_report::validate::Here;
use dimmer_validate::here;
use rayon::prelude::*;

use crate::output;
use crate::progress::Progress;
use crate::{args, bad_input, measured, probe};

/// Instructions in a burst. The longest slow the code between them on Emerald Rapids, where those
/// of the probe's usual length do not (docs/RESULTS.md).
const BURSTS: [u32; 4] = [10, 100, 1000, 65_536];

/// Scalar code between two bursts (ns): on Emerald Rapids, bursts 182 to 191 us apart or more are
/// isolated ones (docs/RESULTS.md), so the longest shows whether that is predicted.
const SCALAR_NS: [f64; 7] = [300.0, 1e3, 3e3, 10e3, 30e3, 100e3, 300e3];

/// Default number of measurements of each point: some 45 s in all.
const ROUNDS: usize = 12;

pub(super) fn run(arguments: &args::Validate) -> anyhow::Result<ExitCode> {
    let json = arguments.json.open()?;
    let machine = Machine::read(&Root::live(), &Cpuid::instruction());
    let cpu = measured::cpu(&machine, arguments.cpu.cpu)?;
    let kept = crate::model::choose(arguments.model.name(), &machine)?;
    measured::check_clock(&machine)?;
    let interrupt = Interrupt::install().context("cannot handle signals")?;
    let mut silicon = dimmer_probe::machine::silicon(&machine, cpu, true)?;
    let kernels = interleaved::kernels(&silicon);
    if kernels.is_empty() {
        anyhow::bail!("there is no wide code to compare with here: no AVX2");
    }
    let model = match kept {
        Some(kept) => Some(kept),
        None => probe::calibrate(&machine, cpu, &kernels, &interrupt)?
            .map(|model| (model, "a quick probe just now".to_owned())),
    };
    let Some((model, model_from)) = model else { return Ok(nothing(&interrupt)) };
    let grid = kernels.iter().flat_map(|kernel| {
        BURSTS.into_iter().flat_map(move |burst| {
            SCALAR_NS.map(|scalar_ns| Pattern { kernel: kernel.clone(), burst, scalar_ns })
        })
    });
    let grid: Vec<Pattern> = grid.collect();
    // Before the measurement, so that no prediction can depend on it.
    let predicted = predict(&model, &grid)?;
    let rounds = arguments.repeat.map_or(ROUNDS, |n| usize::try_from(n).unwrap_or(usize::MAX));
    let mut progress = Progress::new(interrupt.clone(), Duration::ZERO);
    let found = interleaved::run(&mut silicon, cpu, &grid, rounds, &mut progress);
    progress.finish();
    let found = found?;
    if found.patterns.iter().all(|measured| measured.windows == 0) {
        return Ok(nothing(&interrupt));
    }
    let (of, by) = ((&machine, cpu), (&model, model_from));
    let document = Here::new(of, by, rounds, &grid, &predicted, &found).map_err(bad_input)?;
    output::show(json, &document, &document.text(output::screen()))?;
    Ok(match interrupt.exit_status() {
        Some(status) => {
            eprintln!("interrupted: what was measured so far has been told");
            ExitCode::from(status)
        }
        None => ExitCode::SUCCESS,
    })
}

fn nothing(interrupt: &Interrupt) -> ExitCode {
    eprintln!("interrupted: nothing was complete yet");
    interrupt.exit_status().map_or(ExitCode::SUCCESS, ExitCode::from)
}

/// The slowdown of each point by the model (a share).
fn predict(model: &Model, grid: &[Pattern]) -> anyhow::Result<Vec<f64>> {
    let one = |pattern: &Pattern| {
        let pattern = here::Pattern {
            class: pattern.kernel.class,
            burst: pattern.burst,
            scalar_ns: pattern.scalar_ns,
            learning: pattern.learning(),
            measured: pattern.measured(),
        };
        here::slowdown(model, &pattern)
    };
    grid.par_iter().map(one).collect::<Result<_, _>>().map_err(|error| {
        bad_input(format!(
            "{error}; `dimmer probe` may measure it, --model FILE takes another model"
        ))
    })
}
