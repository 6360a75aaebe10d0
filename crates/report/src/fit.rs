//! The result of `dimmer sim fit`, in words and as JSON. `docs/fit-json.md` describes the document.

use dimmer_study::fit::{Fit, Fitted, Found, Known, Parameter, RelativeError, Residual, Target};
use serde::Serialize;

use crate::number::{SPACE, counted, grouped, signed};
use crate::screen::Screen;
use crate::table::{Cell, Colour, Table};

/// The document `dimmer/fit-result/1`.
#[derive(Debug, Serialize)]
pub struct Document {
    schema: &'static str,
    scenario: String,
    model: String,
    seeds: u64,
    parameters: Vec<ParameterEntry>,
    targets: Vec<TargetEntry>,
    residual: ResidualEntry,
    /// Whether all parameters have intervals, and no residual contradicts.
    is_sound: bool,
    /// Values of the parameters that were tried, and runs that were simulated.
    tried: usize,
    runs: usize,
}

/// A parameter.
#[derive(Debug, Serialize)]
struct ParameterEntry {
    name: String,
    keys: Vec<String>,
    is_factor: bool,
    low: f64,
    high: f64,
    /// `within`, `at-least`, `at-most` or `unknown`.
    known: &'static str,
    /// Only of `within`.
    value: Option<f64>,
    ci95: (Option<f64>, Option<f64>),
    profile: (Option<f64>, Option<f64>),
    bootstrap: Option<(f64, f64)>,
    #[serde(skip)]
    told: Known,
}

/// A target.
#[derive(Debug, Serialize)]
struct TargetEntry {
    name: String,
    metric: &'static str,
    mechanism: &'static str,
    over: Option<&'static str>,
    /// Whether it was held back.
    is_check: bool,
    values: usize,
    measured: f64,
    standard_error: Option<f64>,
    ours: f64,
    ours_range: (f64, f64),
    difference_pct: f64,
    difference_errors: Option<f64>,
    agrees: Option<bool>,
}

/// The residual of all fitted targets.
#[derive(Debug, Serialize)]
struct ResidualEntry {
    chi_squared: Option<f64>,
    freedom: usize,
    probability: Option<f64>,
    rms_ratio: f64,
    estimated_error_ratio: Option<f64>,
    assumed_error_ratio: Option<f64>,
    is_misfit: bool,
}

impl ParameterEntry {
    fn new(parameter: &Parameter, found: &Found) -> Self {
        let Parameter { name, keys, low, high, is_factor, .. } = parameter;
        let told = found.known();
        let (known, ci95) = match told {
            Known::Within(low, high) => ("within", (Some(low), Some(high))),
            Known::AtLeast(low) => ("at-least", (Some(low), None)),
            Known::AtMost(high) => ("at-most", (None, Some(high))),
            Known::Nothing => ("unknown", (None, None)),
        };
        Self {
            name: name.clone(),
            keys: keys.clone(),
            is_factor: *is_factor,
            low: *low,
            high: *high,
            known,
            value: matches!(told, Known::Within(..)).then_some(found.value),
            ci95,
            profile: found.profile,
            bootstrap: found.bootstrap,
            told,
        }
    }

    fn row(&self) -> [Cell; 3] {
        let name =
            Cell::from(format!("{}{}", self.name, if self.is_factor { ", times" } else { "" }));
        let bounds = format!("{} to {}", short(self.low), short(self.high));
        let told = match self.told {
            Known::Within(low, high) => {
                let value = self.value.unwrap_or_default();
                Cell::from(format!("{} [{}, {}]", short(value), short(low), short(high)))
            }
            Known::AtLeast(low) => {
                let told = format!("at least {}; no upper end within the bounds", short(low));
                Cell::from(told).coloured(Colour::Yellow)
            }
            Known::AtMost(high) => {
                let told = format!("at most {}; no lower end within the bounds", short(high));
                Cell::from(told).coloured(Colour::Yellow)
            }
            Known::Nothing => {
                let told = "not identified: all values within the bounds are as good";
                Cell::from(told).coloured(Colour::Yellow)
            }
        };
        [name, told, bounds.into()]
    }
}

impl TargetEntry {
    fn new(target: &Target, residual: &Residual) -> Self {
        let Residual { ours, range, measured, standard_error, errors, agrees } = *residual;
        Self {
            name: target.name.clone(),
            metric: target.metric.name(),
            mechanism: target.mechanism.name(),
            over: target.over.map(|over| over.name()),
            is_check: target.is_check,
            values: target.measured.len(),
            measured,
            standard_error,
            ours,
            ours_range: range,
            difference_pct: residual.difference_pct(),
            difference_errors: errors,
            agrees,
        }
    }

    fn row(&self) -> [Cell; 6] {
        let (low, high) = self.ours_range;
        let error = self.standard_error.map_or(String::new(), |of| format!(" ± {}", short(of)));
        let agrees = match self.agrees {
            Some(true) => Cell::from("yes").coloured(Colour::Green),
            Some(false) => Cell::from("NO").coloured(Colour::Yellow),
            None => Cell::from("not known"),
        };
        [
            Cell::from(self.name.as_str()),
            Cell::right(format!("{} [{}, {}]", short(self.ours), short(low), short(high))),
            Cell::right(format!("{}{error}", short(self.measured))),
            Cell::right(format!("{}{SPACE}%", signed(self.difference_pct, 1))),
            Cell::right(self.difference_errors.map_or("–".to_owned(), |of| signed(of, 1))),
            agrees,
        ]
    }
}

impl Document {
    /// A fit and its result.
    #[must_use]
    pub fn new(fit: &Fit, fitted: &Fitted) -> Self {
        let parameters = fit.parameters.iter().zip(&fitted.parameters);
        let targets = fit.targets.iter().zip(&fitted.targets);
        let of = &fitted.overall;
        let (estimated, assumed) = match of.relative_error {
            Some(RelativeError::Estimated(error)) => (Some(error), None),
            Some(RelativeError::Assumed(error)) => (None, Some(error)),
            None => (None, None),
        };
        let (scenario, model) = fit.names();
        Self {
            schema: "dimmer/fit-result/1",
            scenario: scenario.to_owned(),
            model: model.to_owned(),
            seeds: fit.seeds,
            parameters: parameters.map(|(of, found)| ParameterEntry::new(of, found)).collect(),
            targets: targets.map(|(of, residual)| TargetEntry::new(of, residual)).collect(),
            residual: ResidualEntry {
                chi_squared: of.chi_squared,
                freedom: of.freedom,
                probability: of.probability,
                rms_ratio: of.rms_ratio,
                estimated_error_ratio: estimated,
                assumed_error_ratio: assumed,
                is_misfit: of.is_misfit(),
            },
            is_sound: fitted.is_sound(fit),
            tried: fitted.tried,
            runs: fitted.runs,
        }
    }

    /// The result as text.
    #[must_use]
    pub fn text(&self, screen: Screen) -> String {
        let mut text = format!("{} on {}\n\n", self.scenario, self.model);
        let mut table = Table::new(["Parameter", "fitted, 95 % interval", "searched"]);
        self.parameters.iter().for_each(|of| table.row(of.row()));
        text += &table.render(screen);
        for (is_check, title) in [(false, "Fitted"), (true, "Held back")] {
            let mut rows = self.targets.iter().filter(|of| of.is_check == is_check).peekable();
            if rows.peek().is_none() {
                continue;
            }
            let header =
                [title, "simulated [range]", "measured", "difference", "in errors", "agrees"];
            let mut table = Table::new(header);
            rows.for_each(|of| table.row(of.row()));
            text += &format!("\n{}", table.render(screen));
        }
        let unknown = self.parameters.iter().filter(|of| of.value.is_none()).count();
        if unknown > 1 {
            let told = "Several parameters are open: the runs may tell a combination of them, but \
                        not each. Hold one at a known value, or measure something that only one of \
                        them changes.";
            text += &format!("\n{}", screen.fill(told));
        }
        let tried = counted(self.tried, "value");
        let more = format!(
            "Range: over all tried values that the runs allow. In errors: in standard errors of \
             both together. {tried} of the parameters tried, {} simulated.",
            counted(self.runs, "run")
        );
        format!("{text}\n{}{}", screen.fill(&self.verdict()), screen.fill(&more))
    }

    /// What the residual says.
    fn verdict(&self) -> String {
        let ResidualEntry { freedom, probability, rms_ratio, is_misfit, .. } = &self.residual;
        let rms = format!("{}{SPACE}%", grouped(100.0 * rms_ratio, 2));
        let freedom = counted(*freedom, "more target");
        if let Some(error) = self.residual.assumed_error_ratio {
            let percent = grouped(100.0 * error, 0);
            return format!(
                "Residual {rms} (root mean square). Each target was measured once, and there are \
                 no more targets than parameters, so intervals assume that measured values are \
                 right to {percent}{SPACE}%; whether the scenario is right is not known."
            );
        }
        if let Some(error) = self.residual.estimated_error_ratio {
            let percent = grouped(100.0 * error, 2);
            return format!(
                "Residual {rms} (root mean square). Each target was measured once, so intervals \
                 take the differences themselves as the error of a value \
                 ({percent}{SPACE}%, by {freedom} than parameters); whether that is scatter or the \
                 scenario is not known."
            );
        }
        match probability {
            _ if *is_misfit => format!(
                "NOT REPRODUCED: residual {rms} (root mean square). With the right scenario and \
                 model, scatter would make it this large in {} of 1000 cases. No values within the \
                 bounds give what was measured, so something else in the scenario or the model is \
                 wrong, and the intervals hold only if it does not matter.",
                rare(1000.0 * probability.unwrap_or_default())
            ),
            Some(probability) => format!(
                "Residual {rms} (root mean square), which scatter explains: it would be larger in \
                 {} of 100 cases ({freedom} than free parameters).",
                grouped(100.0 * probability, 0)
            ),
            None => format!(
                "Residual {rms} (root mean square), which says nothing: there are no more targets \
                 than parameters. Targets that are held back (`check = true`) do."
            ),
        }
    }
}

/// A number of cases that is small.
fn rare(cases: f64) -> String {
    if cases < 0.1 { "fewer than 0.1".to_owned() } else { grouped(cases, 1) }
}

/// A number with four digits.
fn short(value: f64) -> String {
    let digits = value.abs().log10().floor();
    if value == 0.0 || !digits.is_finite() {
        return grouped(value, 0);
    }
    if !(-4.0..9.0).contains(&digits) {
        return format!("{value:.3e}");
    }
    let decimals = (3.0 - digits).max(0.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 7")]
    let decimals = decimals as usize;
    grouped(value, decimals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits() {
        let shown = [0.0, 0.012_345, 1.0, 123.456, 12_345.6, 1e12, -3.0].map(short);
        let expected = ["0", "0.01235", "1.000", "123.5", "12\u{a0}346", "1.000e12", "−3.000"];
        assert_eq!(shown, expected);
    }
}
