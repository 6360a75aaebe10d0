//! Summaries of the ways in which `dimmer bench program` and `dimmer bench nginx` run a program.
//! `docs/bench-json.md` describes the keys.

use dimmer_bench::pairs::{self, Within};
use dimmer_launch::mechanism::{self, How};
use dimmer_policy::ways::WORTHWHILE;
use dimmer_probe::stats::{Estimate, Samples};
use serde::{Deserialize, Serialize};

use super::signed;
use crate::estimate::entry;
use crate::number::{SPACE, counted, grouped, interval, percent};

// Indices in the results of the ways that are always measured. Those that were asked for follow.

/// The program as it is.
pub const PLAIN: usize = 0;
/// Under `dimmer observe`.
pub const OBSERVE: usize = 1;
/// Under `dimmer run --narrow`.
pub const NARROW: usize = 2;

/// The way in which a policy server decides.
pub const AUTO: &str = "auto";

/// How a way moves calls or threads; `None` if it moves nothing.
pub(super) fn moves(way: &str) -> Option<How> {
    mechanism::ALL.iter().find(|mechanism| mechanism.name == way)?.moves
}

/// The keys of `dimmer run --json`, as far as this command reads them.
#[derive(Clone, Debug, Deserialize)]
pub struct Account {
    calls: u64,
    moved: u64,
    moving_ratio: Option<f64>,
    is_narrow: bool,
    functions: Vec<Function>,
}

#[derive(Clone, Debug, Deserialize)]
struct Function {
    server_moves_ratio: Option<f64>,
}

/// The keys of `dimmer observe --json` with the prediction, as far as this command reads them.
#[derive(Deserialize)]
struct Forecast {
    lost: Option<Lost>,
    lost_unknown: Option<String>,
}

#[derive(Deserialize)]
struct Lost {
    share: Option<f64>,
}

/// The share of CPU time that the JSON of `dimmer observe` predicts as lost, or why it
/// predicts none.
///
/// # Errors
/// The text is no such document.
pub fn lost(observed: &str) -> serde_json::Result<Result<f64, String>> {
    let forecast: Forecast = serde_json::from_str(observed)?;
    let share = forecast.lost.and_then(|lost| lost.share);
    Ok(share.ok_or_else(|| forecast.lost_unknown.unwrap_or_default()))
}

/// The runs of a way, one for each round.
#[derive(Clone, Debug)]
pub struct Turns<R> {
    /// The way's name.
    pub way: &'static str,
    /// The runs.
    pub runs: Vec<R>,
    /// Which calls each run moved; empty if the way moves none.
    pub accounts: Vec<Account>,
}

/// Which calls were moved in all rounds together, and the policy server's part in it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct MovedEntry {
    /// Calls of the functions whose calls may move.
    pub(super) calls: u64,
    pub(super) moved: u64,
    /// The share of CPU time spent on moving calls: the mean of the rounds in which it is known.
    pub(super) moving_ratio: Option<f64>,
    /// The share of the time in which the server wanted calls of a function moved, averaged over
    /// functions; `null` without a server.
    pub(super) server_moves_ratio: Option<f64>,
    /// The number of rounds in which the program was given narrower code.
    pub(super) narrow_rounds: usize,
}

impl MovedEntry {
    /// `None` for ways that move nothing.
    pub(super) fn new(accounts: &[Account]) -> Option<Self> {
        let sum = |of: fn(&Account) -> u64| accounts.iter().map(of).fold(0, u64::saturating_add);
        let functions = accounts.iter().flat_map(|account| &account.functions);
        let mean = |ratios: Vec<f64>| {
            (!ratios.is_empty()).then(|| ratios.iter().sum::<f64>() / ratios.len() as f64)
        };
        (!accounts.is_empty()).then(|| Self {
            calls: sum(|account| account.calls),
            moved: sum(|account| account.moved),
            moving_ratio: mean(
                accounts.iter().filter_map(|account| account.moving_ratio).collect(),
            ),
            server_moves_ratio: mean(
                functions.filter_map(|function| function.server_moves_ratio).collect(),
            ),
            narrow_rounds: accounts.iter().filter(|account| account.is_narrow).count(),
        })
    }

    /// The summary of a way as text.
    pub(super) fn text(&self, way: &str) -> String {
        let [moved, calls] = [self.moved, self.calls].map(|number| grouped(number as f64, 0));
        let share = percent(self.moved as f64 / self.calls.max(1) as f64);
        let taken =
            self.moving_ratio.filter(|_| self.moved > 0).map_or_else(String::new, |ratio| {
                format!("; that took some {} of the time on CPUs", percent(ratio))
            });
        let server = self.server_moves_ratio.map_or_else(String::new, |ratio| {
            format!("; the server wanted {} of the time moved", percent(ratio))
        });
        let narrow = match self.narrow_rounds {
            0 => String::new(),
            rounds => format!("; narrower code in {}", counted(rounds, "round")),
        };
        format!("{way}: {moved} of {calls} calls were moved ({share}){taken}{server}{narrow}.\n")
    }
}

/// How the policy server's way compares with the best of the others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Regret {
    /// The best other way, by its median.
    best: &'static str,
    /// How much more CPU time the server's way takes, round by round.
    #[serde(serialize_with = "entry")]
    more_pct: Option<Estimate>,
}

impl Regret {
    /// `None` without a server's way that did its work. `value` is the cost of a run; less is
    /// better. Ways that did not do their work, by `has_done`, are not compared.
    pub(super) fn new<R>(
        turns: &[Turns<R>],
        has_done: impl Fn(&Turns<R>) -> bool,
        value: fn(&R) -> f64,
    ) -> Option<Self> {
        let auto = turns.iter().find(|turns| turns.way == AUTO).filter(|turns| has_done(turns))?;
        let median = |turns: &Turns<R>| {
            turns.runs.iter().map(value).collect::<Samples>().estimate().map(|found| found.median)
        };
        // Observing avoids no cost, so it is not compared.
        let others = turns
            .iter()
            .enumerate()
            .filter(|(place, turns)| *place != OBSERVE && turns.way != AUTO && has_done(turns));
        let (best, _) = others
            .filter_map(|(_, turns)| Some((turns, median(turns)?)))
            .min_by(|(_, one), (_, other)| one.total_cmp(other))?;
        let pairs = best.runs.iter().zip(&auto.runs);
        let more_pct = pairs::change_pct(pairs.map(|(best, auto)| (value(best), value(auto))));
        Some(Self { best: best.way, more_pct })
    }

    /// The comparison in a sentence.
    pub(super) fn text(&self) -> String {
        let Some(more) = &self.more_pct else { return String::new() };
        let bound = percent(WORTHWHILE);
        let is = match pairs::within(more, 100.0 * WORTHWHILE) {
            Within::Yes => format!("is within {bound} of the best single way"),
            Within::No => format!("is more than {bound} from the best single way"),
            Within::Unknown => {
                format!("is not known to be within {bound} of the best single way")
            }
        };
        let range = interval(more, 1);
        format!("Auto {is} ({}): {}{SPACE}%{SPACE}{range}.", self.best, signed(more.median))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(way: &'static str, runs: &[f64]) -> Turns<f64> {
        Turns { way, runs: runs.to_vec(), accounts: Vec::new() }
    }

    #[track_caller]
    fn check(auto: &[f64], expected: &str) {
        let plain = [100.0, 110.0, 105.0, 100.0, 110.0, 105.0];
        let observe = [90.0; 6];
        let migrate = [150.0; 6];
        let all = [
            turns("plain", &plain),
            turns("observe", &observe),
            turns("narrow", &migrate),
            turns("migrate", &migrate),
            turns(AUTO, auto),
        ];
        let regret = Regret::new(&all, |_| true, |run| *run).unwrap();
        assert_eq!(regret.text().replace(SPACE, " "), expected);
    }

    #[test]
    fn the_server_is_compared_with_the_best_way_out_round_by_round() {
        let times = |factor: f64| [100.0, 110.0, 105.0, 100.0, 110.0, 105.0].map(|at| at * factor);
        check(
            &times(1.005),
            "Auto is within 1.0 % of the best single way (plain): +0.5 % [0.5, 0.5].",
        );
        check(
            &times(1.05),
            "Auto is more than 1.0 % from the best single way (plain): +5.0 % [5.0, 5.0].",
        );
        let [mut apart, far] = [times(1.0), times(1.02)];
        apart[3..].copy_from_slice(&far[3..]);
        check(
            &apart,
            "Auto is not known to be within 1.0 % of the best single way (plain): +1.0 % [0.0, 2.0].",
        );
        assert_eq!(Regret::new(&[turns("plain", &[1.0])], |_| true, |run| *run), None);
    }

    #[test]
    fn moved_calls_are_summed_up_over_rounds() {
        assert_eq!(MovedEntry::new(&[]), None);
        let account = |calls, moved, ratio| {
            let functions = vec![Function { server_moves_ratio: ratio }];
            let moving_ratio = ratio.map(|ratio| ratio / 10.0);
            Account { calls, moved, moving_ratio, is_narrow: moved == 0, functions }
        };
        let moved = MovedEntry::new(&[account(900, 10, Some(0.5)), account(100, 0, Some(0.0))]);
        assert_eq!(
            moved.unwrap().text("auto").replace(SPACE, " "),
            "auto: 10 of 1 000 calls were moved (1.0 %); that took some 2.5 % of the time on CPUs; the server wanted 25.0 % of the time moved; narrower code in 1 round.\n"
        );
        let own = Account { is_narrow: false, ..account(0, 0, None) };
        let moved = MovedEntry::new(&[own]).unwrap();
        assert_eq!(
            moved.text("delegate").replace(SPACE, " "),
            "delegate: 0 of 0 calls were moved (0.0 %).\n"
        );
    }

    #[test]
    fn a_forecast_may_be_absent() {
        let check = |text: &str, expected: Result<f64, &str>| {
            assert_eq!(lost(text).unwrap(), expected.map_err(str::to_owned), "{text}");
        };
        check(r#"{"lost": {"share": 0.052, "other": []}, "schema": "s"}"#, Ok(0.052));
        check(r#"{"lost": null, "lost_unknown": "no model"}"#, Err("no model"));
        check(r#"{"lost": {"share": null}}"#, Err(""));
        check(r#"{"lost": {}}"#, Err(""));
        check(r#"{"schema": "s"}"#, Err(""));
        assert!(lost("").is_err());
    }
}
