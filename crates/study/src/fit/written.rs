//! The scenario and the model with the fitted values in them.

use super::document::{Parameter, Text, Which};
use super::interval::{Found, Known};
use super::place::{replaced, written};
use super::{Fit, Fitted};

impl Fit {
    /// The scenario with the values that the runs tell, and a comment with their origin. Other
    /// parameters keep what stands there.
    #[must_use]
    pub fn scenario(&self, fitted: &Fitted) -> String {
        self.written(Which::Scenario, &self.scenario, fitted)
    }

    /// The model, likewise. Values have the interval and the fit as their source.
    #[must_use]
    pub fn model(&self, fitted: &Fitted) -> String {
        self.written(Which::Model, &self.model, fitted)
    }

    /// Whether a parameter is in the scenario, and whether one is in the model.
    #[must_use]
    pub fn is_in(&self) -> (bool, bool) {
        let has =
            |which| self.parameters.iter().flat_map(|of| &of.spots).any(|spot| spot.which == which);
        (has(Which::Scenario), has(Which::Model))
    }

    fn written(&self, which: Which, of: &Text, fitted: &Fitted) -> String {
        let mut changes = Vec::new();
        let mut comment =
            format!("# Of {}, fitted by `dimmer sim fit {}`:\n", of.name, self.path.display());
        for (parameter, found) in self.parameters.iter().zip(&fitted.parameters) {
            if parameter.spots.iter().all(|spot| spot.which != which) {
                continue;
            }
            comment += &format!("# * {}: {}\n", parameter.name, told(found));
            let Known::Within(low, high) = found.known() else { continue };
            for spot in parameter.spots.iter().filter(|spot| spot.which == which) {
                let number =
                    |value| written(rounded(parameter.written(spot, value)), spot.is_whole);
                let [value, low, high] = [found.value, low, high].map(number);
                let interval = format!("[{low}, {high}]");
                match (&spot.place.source, &spot.place.ci95) {
                    (Some(source), ci95) => {
                        let told = self.source(parameter);
                        changes.push((source.clone(), told));
                        let more = if ci95.is_none() {
                            format!(", ci95 = {interval}")
                        } else {
                            String::new()
                        };
                        changes.push((spot.place.span.clone(), value + &more));
                    }
                    (None, _) => changes.push((spot.place.span.clone(), value)),
                }
                changes.extend(spot.place.ci95.clone().map(|span| (span, interval)));
            }
        }
        let targets = self.targets.iter().filter(|target| !target.is_check);
        for target in targets {
            comment += &format!("# by {}: {} measured\n", target.name, target.measured.len());
        }
        if fitted.overall.is_misfit() {
            comment += "# NOT REPRODUCED: the differences are larger than scatter explains.\n";
        }
        let comment: String =
            comment.chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).collect();
        format!("{comment}\n{}", replaced(&of.text, changes))
    }

    /// The source of a fitted value, as a TOML string.
    fn source(&self, parameter: &Parameter) -> String {
        let told = format!(
            "fitted by `dimmer sim fit {}`, parameter {}, to measured values",
            self.path.display(),
            parameter.name
        );
        let plain: String = told.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        format!("\"{}\"", plain.replace('\\', "\\\\").replace('"', "\\\""))
    }
}

/// A number with six digits: no interval is known to more.
fn rounded(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

/// What is known of a parameter, in words.
fn told(found: &Found) -> String {
    let short = |value| format!("{:?}", rounded(value));
    match found.known() {
        Known::Within(low, high) => {
            let [value, low, high] = [found.value, low, high].map(short);
            format!("{value}, 95 % within {low} to {high}")
        }
        Known::AtLeast(low) => {
            format!("left as it was: the runs say only that it is {} or more", short(low))
        }
        Known::AtMost(high) => {
            format!("left as it was: the runs say only that it is {} or less", short(high))
        }
        Known::Nothing => "left as it was: the runs do not tell it".to_owned(),
    }
}
