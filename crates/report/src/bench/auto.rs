//! `dimmer bench dev auto`: a program under `dimmer run --auto` beside the same without it.
//! `docs/bench-json.md` describes the keys.

use std::ffi::OsString;

use dimmer_bench::auto::{Metric, NARROW, Round, gain_pct, is_narrow};
use dimmer_probe::stats::{Estimate, Samples};
use serde::Serialize;

use super::{ratio_of_rounds, signed};
use crate::estimate::entry;
use crate::number::{SPACE, interval};
use crate::screen::Screen;
use crate::shell;

/// The document `dimmer/bench-auto/1`.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: &'static str,
    partial: bool,
    command: Vec<String>,
    metric: &'static str,
    rounds: usize,
    /// What the program does a second, without Dimmer and with it.
    #[serde(serialize_with = "entry")]
    none: Option<Estimate>,
    #[serde(serialize_with = "entry")]
    auto: Option<Estimate>,
    /// How much more that is, round by round.
    #[serde(serialize_with = "entry")]
    gain_pct: Option<Estimate>,
    is_narrow: bool,
}

impl Report {
    /// * `rounds`: what `command` did in each round.
    /// * `partial`: whether the user has interrupted them.
    pub fn new(command: &[OsString], metric: Metric, rounds: &[Round], partial: bool) -> Self {
        let estimate =
            |of: fn(&Round) -> f64| rounds.iter().map(of).collect::<Samples>().estimate();
        Self {
            schema: "dimmer/bench-auto/1",
            partial,
            command: command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            metric: metric.name(),
            rounds: rounds.len(),
            none: estimate(|round| round.none),
            auto: estimate(|round| round.auto),
            gain_pct: gain_pct(rounds),
            is_narrow: is_narrow(rounds),
        }
    }

    /// The results as text.
    pub fn text(&self, screen: Screen) -> String {
        let mut text = format!("{}, {} rounds\n\n", shell::line(&self.command), self.rounds);
        for (name, did) in [("none", self.none), ("auto", self.auto)] {
            let did = did.map_or_else(String::new, |did| {
                let (low, high) = did.ci95;
                format!("{:>12.5}  [{low:.5}, {high:.5}]", did.median)
            });
            text += &format!("{name:<6}{did} a second\n");
        }
        if let Some(gain) = &self.gain_pct {
            let by = format!("{}{SPACE}%{SPACE}{}", signed(gain.median), interval(gain, 1));
            text += &format!("\nUnder --auto the program does {by} more.\n");
        }
        if self.partial {
            text += "Interrupted: these are the rounds that were done.\n";
        }
        if !self.is_narrow {
            text += &format!(
                "The interval is not narrower than {NARROW}{SPACE}%: more rounds may help.\n"
            );
        }
        text += &ratio_of_rounds(self.rounds);
        screen.shown(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gain_is_shown_with_its_interval_and_whether_that_is_narrow() {
        let report = |auto: [f64; 6]| {
            let rounds = auto.map(|auto| Round { none: 100.0, auto });
            Report::new(&["server".into()], Metric::Output, &rounds, false)
        };
        let near = report([99.0, 99.5, 99.5, 99.5, 99.5, 100.0]);
        let text = near.text(Screen::file(100)).replace('\u{a0}', " ");
        assert!(text.starts_with("server, 6 rounds\n") && text.contains("% "), "{text}");
        assert!(!text.contains("more rounds may help"), "{text}");
        let json = serde_json::to_value(&near).unwrap();
        assert_eq!(
            (&json["metric"], &json["gain_pct"]["median"]),
            (&"output".into(), &(-0.5).into())
        );
        let apart = report([90.0, 99.5, 99.5, 99.5, 99.5, 110.0]).text(Screen::file(100));
        assert!(apart.contains("more rounds may help"), "{apart}");
    }
}
