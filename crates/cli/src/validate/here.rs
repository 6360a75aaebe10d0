//! `dimmer sim validate --here`: compares the predictions of a model of this machine with
//! measurements.

mod text;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use dimmer_host::cpuid::Cpuid;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::machine::Machine;
use dimmer_host::root::Root;
use dimmer_probe::interleaved::{self, Measured, Pattern};
use dimmer_probe::stats::{Estimate, Samples};
use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::Model;
use dimmer_validate::here::{self, Lack};
use rayon::prelude::*;
use serde::Serialize;

use crate::output;
use crate::progress::Progress;
use crate::{args, bad_input, measured, probe};

/// Instructions in a burst.
const BURSTS: [u32; 3] = [10, 100, 1000];

/// Scalar code between two bursts (ns).
const SCALAR_NS: [f64; 6] = [300.0, 1e3, 3e3, 10e3, 30e3, 100e3];

/// Default number of measurements of each point: some 20 s in all.
const ROUNDS: usize = 12;

/// If the median error of the predictions is larger than this, the report lists what the model
/// lacks (percentage points).
const GOOD_POINTS: f64 = 2.0;

/// Predictions and measurements; `docs/sim-json.md` describes every key.
#[derive(Debug, Serialize)]
struct Document {
    schema: &'static str,
    machine: String,
    cpu: u32,
    model: String,
    model_from: String,
    rounds: usize,
    /// Whether an interrupt ended it, so that some points have fewer rounds.
    partial: bool,
    /// Classes for which the model has no rule.
    without_rule: Vec<&'static str>,
    /// Classes that request no level by the model.
    without_level: Vec<&'static str>,
    points: Vec<Point>,
    median_absolute_error_points: Option<f64>,
    preemptions: u64,
    lacks: Vec<LackDocument>,
}

#[derive(Debug, Serialize)]
struct Point {
    kernel: String,
    class: &'static str,
    burst: u32,
    scalar_us: f64,
    predicted_pct: f64,
    measured_pct: Option<Interval>,
    error_points: Option<f64>,
    windows: usize,
    windows_left_out: usize,
    series: usize,
    series_left_out: usize,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Interval {
    median: f64,
    ci95: [f64; 2],
}

#[derive(Debug, Serialize)]
struct LackDocument {
    key: String,
    is_guess: bool,
}

pub(super) fn run(arguments: &args::Validate) -> anyhow::Result<ExitCode> {
    let json = arguments.json.open()?;
    let machine = Machine::read(&Root::live(), &Cpuid::instruction());
    let cpu = measured::cpu(&machine, arguments.cpu.cpu)?;
    let kept = crate::model::choose(arguments.model.as_deref(), &machine)?;
    measured::check_clock(&machine)?;
    let interrupt = Interrupt::install().context("cannot handle signals")?;
    let mut silicon = measured::silicon(&machine, cpu)?;
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
    let points = grid.iter().zip(&predicted).zip(&found.patterns);
    let points = points.map(|((pattern, predicted), found)| point(pattern, *predicted, found));
    let points: Vec<Point> = points.collect();
    let errors = points.iter().filter_map(|point| point.error_points).map(f64::abs);
    let median_absolute_error_points = errors.collect::<Samples>().quantile(0.5);
    let classes: Vec<InstructionClass> = kernels.iter().map(|kernel| kernel.class).collect();
    let is_good = median_absolute_error_points.is_none_or(|error| error <= GOOD_POINTS);
    let lacks = if is_good { Vec::new() } else { here::lacks(&model, &classes) };
    let lacks = lacks.into_iter().map(|Lack { key, is_guess }| LackDocument { key, is_guess });
    let document = Document {
        schema: "dimmer/validate-here/1",
        machine: machine.identity.brand.clone(),
        cpu: cpu.index(),
        without_rule: without_rule(&model, &classes),
        without_level: without_level(&model, &classes)?,
        model: model.identity.name,
        model_from,
        rounds,
        partial: found.interrupted,
        points,
        median_absolute_error_points,
        preemptions: found.preemptions,
        lacks: lacks.collect(),
    };
    output::show(json, &document, &text::render(&document))?;
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

/// The classes for which the model has no rule.
fn without_rule(model: &Model, classes: &[InstructionClass]) -> Vec<&'static str> {
    let unknown = classes.iter().filter(|class| !here::has_rule(model, **class));
    unknown.map(|class| class.name()).collect()
}

/// The classes that request no level by the model.
fn without_level(model: &Model, classes: &[InstructionClass]) -> anyhow::Result<Vec<&'static str>> {
    let mut without = Vec::new();
    for class in classes.iter().filter(|class| here::has_rule(model, **class)) {
        if !here::asks_for_level(model, *class).map_err(bad_input)? {
            without.push(class.name());
        }
    }
    Ok(without)
}

fn point(pattern: &Pattern, predicted: f64, measured: &Measured) -> Point {
    let slowdown = Samples::new(measured.slowdowns.clone()).estimate();
    let percent = slowdown.map(|slowdown| slowdown.scaled(100.0));
    Point {
        kernel: pattern.kernel.name.clone(),
        class: pattern.kernel.class.name(),
        burst: pattern.burst,
        scalar_us: pattern.scalar_ns / 1000.0,
        predicted_pct: predicted * 100.0,
        measured_pct: percent.map(|Estimate { median, ci95 }| {
            let (low, high) = ci95;
            Interval { median, ci95: [low, high] }
        }),
        error_points: percent.map(|percent| predicted * 100.0 - percent.median),
        windows: measured.windows,
        windows_left_out: measured.left_out,
        series: measured.slowdowns.len(),
        series_left_out: measured.unsettled,
    }
}
