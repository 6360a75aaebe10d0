//! Axes: map values to places, linear or logarithmic, with ticks at round numbers.

use std::ops::Range;
use std::rc::Rc;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

/// One axis.
#[derive(Clone)]
pub(super) struct Axis {
    /// Both ends: values, or their decimal logarithms.
    range: Range<f64>,
    /// Values with a label.
    ticks: Vec<f64>,
    logarithmic: bool,
    format: Rc<dyn Fn(f64) -> String>,
}

impl Axis {
    /// An axis over `low..high` with three to six labels; `format` gets a value and the number of
    /// decimals that distinguish one tick from the next.
    pub(super) fn linear(
        low: f64,
        high: f64,
        format: impl Fn(f64, usize) -> String + 'static,
    ) -> Self {
        let span = if high > low { high - low } else { low.abs().max(1.0) * 0.1 };
        let (step, ticks) = linear_ticks(low, low + span);
        let decimals = decimals_of(step);
        Self {
            range: low..low + span,
            ticks,
            logarithmic: false,
            format: Rc::new(move |value| format(value, decimals)),
        }
    }

    /// An axis over positive values from `low` to `high`, with a label at every power of ten. If it
    /// contains only one power, the labels are at the series 1, 2, 5, 10.
    pub(super) fn logarithmic(
        low: f64,
        high: f64,
        format: impl Fn(f64) -> String + 'static,
    ) -> Self {
        let (start, end) = (low.log10(), high.max(low * 1.1).log10());
        let powers = multiples(1.0, start, end).into_iter().map(|power| 10_f64.powf(power));
        let mut ticks: Vec<f64> = powers.collect();
        if ticks.len() < 2 {
            let first = 10_f64.powf(start.floor());
            let series = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0].map(|round| round * first);
            let within = low * 0.999..=high * 1.001;
            ticks = series.into_iter().filter(|tick| within.contains(tick)).collect();
        }
        Self { range: start..end, ticks, logarithmic: true, format: Rc::new(format) }
    }

    /// The place of a value, from 0 to 1; values beyond an end are at that end.
    pub(super) fn place(&self, value: f64) -> f64 {
        let value = if self.logarithmic { value.max(f64::MIN_POSITIVE).log10() } else { value };
        let Range { start, end } = self.range;
        ((value - start) / (end - start)).clamp(0.0, 1.0)
    }

    /// The values at the ends.
    pub(super) fn ends(&self) -> Range<f64> {
        let value = |end: f64| if self.logarithmic { 10_f64.powf(end) } else { end };
        value(self.range.start)..value(self.range.end)
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (first, last): (i32, i32)) -> i32 {
        let pixel = f64::from(first) + f64::from(last - first) * self.place(*value);
        #[expect(clippy::cast_possible_truncation, reason = "between two numbers that fit")]
        let pixel = pixel.round() as i32;
        pixel
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // Lines between the labeled ones are not drawn.
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.ends()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format(value: &f64) -> String {
        value.to_string()
    }

    fn format_ext(&self, value: &f64) -> String {
        (self.format)(*value)
    }
}

/// The widest round step that gives three ticks in the range, and those ticks.
fn linear_ticks(low: f64, high: f64) -> (f64, Vec<f64>) {
    let [wider, finer] = [4.0, 8.0].map(|parts| {
        let step = round_step((high - low) / parts);
        (step, multiples(step, low, high))
    });
    if wider.1.len() >= 3 { wider } else { finer }
}

/// The smallest step of the series 1, 2, 5, 10 that is at least `step`.
fn round_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    let round = [1.0, 2.0, 5.0].into_iter().find(|round| round * power >= step * 0.999);
    round.unwrap_or(10.0) * power
}

/// Number of decimals that distinguish multiples of `step`.
fn decimals_of(step: f64) -> usize {
    (0..6)
        .find(|&decimals| step * 10_f64.powi(decimals) >= 0.999)
        .map_or(6, |decimals| usize::try_from(decimals).unwrap_or(0))
}

/// All multiples of `step` in the range; none if the range has no finite ends.
fn multiples(step: f64, low: f64, high: f64) -> Vec<f64> {
    if ![step, low, high].into_iter().all(f64::is_finite) {
        return Vec::new();
    }
    let first = (low / step - 1e-9).ceil();
    let within = |factor: &f64| factor * step <= high + step * 1e-9;
    std::iter::successors(Some(first), |factor| Some(factor + 1.0))
        .take_while(within)
        .map(|factor| factor * step)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_without_ends_have_few_ticks() {
        assert!(Axis::logarithmic(0.0, 10.0, |value| value.to_string()).ticks.len() < 8);
        assert!(multiples(1.0, f64::NEG_INFINITY, 1.0).is_empty());
        assert!(multiples(1.0, 0.0, f64::INFINITY).is_empty());
    }

    #[test]
    fn ticks_are_round_and_told_apart() {
        let axis = Axis::linear(0.93, 1.01, |value, decimals| format!("{value:.decimals$}"));
        let labels: Vec<String> = axis.ticks.iter().map(|tick| axis.format_ext(tick)).collect();
        assert_eq!(labels, ["0.94", "0.96", "0.98", "1.00"]);
    }

    #[test]
    fn few_labels_but_never_a_lonely_one() {
        for (low, high) in [(555.0, 1_390.0), (0.0, 2.2), (-3.1, 6.9), (0.0, 1.0), (0.41, 0.59)] {
            let ticks = Axis::linear(low, high, |value, _| value.to_string()).ticks;
            assert!((3..=6).contains(&ticks.len()), "{low} to {high}: {ticks:?}");
        }
    }

    #[test]
    fn logarithmic_axis_labels_powers_of_ten() {
        let axis = Axis::logarithmic(260.0, 4e6, |value| format!("{value:.0}"));
        let labels: Vec<String> = axis.ticks.iter().map(|tick| axis.format_ext(tick)).collect();
        assert_eq!(labels, ["1000", "10000", "100000", "1000000"]);
        assert_eq!(axis.place(0.0), 0.0);
    }

    #[test]
    fn short_logarithmic_axis_has_labels_between_powers_of_ten() {
        assert_eq!(Axis::logarithmic(1.0, 4.0, |value| value.to_string()).ticks, [1.0, 2.0]);
        assert_eq!(
            Axis::logarithmic(30.0, 250.0, |value| value.to_string()).ticks,
            [50.0, 100.0, 200.0]
        );
    }

    #[test]
    fn axis_of_one_value_has_an_extent() {
        let axis = Axis::linear(5.0, 5.0, |value, _| value.to_string());
        assert!(axis.range.start < axis.range.end);
        assert!(!axis.ticks.is_empty());
    }
}
