//! `dimmer sim validate --here`: the predictions of a model of this machine beside measurements.
//! `docs/sim-json.md` describes the keys.

mod text;

use dimmer_host::machine::Machine;
use dimmer_probe::interleaved::{Found, Measured, Pattern};
use dimmer_probe::stats::{Estimate, Samples};
use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::{Missing, Model};
use dimmer_processor::units::CpuId;

use dimmer_validate::here::{self, Lack};
use serde::Serialize;

use crate::screen::Screen;

/// If the median error of the predictions is larger than this, the report lists what the model
/// lacks (percentage points).
const GOOD_POINTS: f64 = 2.0;

/// The document `dimmer/validate-here/1`: predictions and measurements.
#[derive(Debug, Serialize)]
pub struct Document {
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

impl Document {
    /// `grid`: what was predicted and measured, point by point; `rounds`: the measurements of each
    /// point that were asked for; `from`: where the model comes from.
    ///
    /// # Errors
    /// If the model lacks what the simulator needs.
    pub fn new(
        (machine, cpu): (&Machine, CpuId),
        (model, from): (&Model, String),
        rounds: usize,
        grid: &[Pattern],
        predicted: &[f64],
        found: &Found,
    ) -> Result<Self, Missing> {
        let points = grid.iter().zip(predicted).zip(&found.patterns);
        let points = points.map(|((pattern, predicted), found)| point(pattern, *predicted, found));
        let points: Vec<Point> = points.collect();
        let errors = points.iter().filter_map(|point| point.error_points).map(f64::abs);
        let median_absolute_error_points = errors.collect::<Samples>().quantile(0.5);
        let mut classes: Vec<InstructionClass> = Vec::new();
        for pattern in grid {
            if !classes.contains(&pattern.kernel.class) {
                classes.push(pattern.kernel.class);
            }
        }
        let is_good = median_absolute_error_points.is_none_or(|error| error <= GOOD_POINTS);
        let lacks = if is_good { Vec::new() } else { here::lacks(model, &classes) };
        let lacks = lacks.into_iter().map(|Lack { key, is_guess }| LackDocument { key, is_guess });
        Ok(Self {
            schema: "dimmer/validate-here/1",
            machine: machine.identity.brand.clone(),
            cpu: cpu.index(),
            without_rule: without_rule(model, &classes),
            without_level: without_level(model, &classes)?,
            model: model.identity.name.clone(),
            model_from: from,
            rounds,
            partial: found.interrupted,
            points,
            median_absolute_error_points,
            preemptions: found.preemptions,
            lacks: lacks.collect(),
        })
    }

    /// The comparison as text.
    pub fn text(&self, screen: Screen) -> String {
        text::render(self, screen)
    }
}

/// The classes for which the model has no rule.
fn without_rule(model: &Model, classes: &[InstructionClass]) -> Vec<&'static str> {
    let unknown = classes.iter().filter(|class| !here::has_rule(model, **class));
    unknown.map(|class| class.name()).collect()
}

/// The classes that request no level by the model.
fn without_level(
    model: &Model,
    classes: &[InstructionClass],
) -> Result<Vec<&'static str>, Missing> {
    let mut without = Vec::new();
    for class in classes.iter().filter(|class| here::has_rule(model, **class)) {
        if !here::asks_for_level(model, *class)? {
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
