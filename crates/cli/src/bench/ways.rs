//! The ways in which `dimmer bench program` and `dimmer bench nginx` run a program, and what moving
//! its calls came to.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Context;
use dimmer_bench::daemon::Server;
use dimmer_bench::pairs::{self, Within};
use dimmer_policy::ways::WORTHWHILE;
use dimmer_probe::stats::{Estimate, Samples};
use dimmer_processor::units::CpuId;
use serde::{Deserialize, Serialize};

use super::daemon::beside;
use super::signed;
use crate::args::Moves;
use crate::input;
use crate::report::json::entry;
use crate::report::number::{SPACE, counted, grouped, interval, percent};

/// The ways that are always taken, by their place in results; those that move calls follow if they
/// are asked for.
pub(super) const PLAIN: usize = 0;
pub(super) const OBSERVE: usize = 1;
pub(super) const NARROW: usize = 2;

/// The way in which a policy server decides.
pub(super) const AUTO: &str = "auto";

/// A way to run a program.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) name: &'static str,
    /// What is put before the program's own command.
    pub(super) prefix: Vec<OsString>,
    /// Where `dimmer run` says which calls were moved, if any may be.
    account: Option<PathBuf>,
}

/// The ways, and the policy server that one of them needs; it ends with this.
#[derive(Debug)]
pub(super) struct Ways {
    pub(super) all: Vec<Way>,
    _server: Option<Server>,
}

impl Ways {
    /// All that are asked for. `observe` writes to `directory` what it observed, and each way that
    /// moves calls what became of them.
    ///
    /// `from`: the hardware threads that moved programs may use, and of these the one that calls
    /// are moved to; the program's own choice without it.
    pub(super) fn new(
        directory: &Path,
        moves: &Moves,
        from: Option<([CpuId; 2], CpuId)>,
    ) -> anyhow::Result<Self> {
        let own = std::env::current_exe().context("cannot find this program's own file")?;
        let with = |arguments: &[&str]| -> Vec<OsString> {
            let arguments = arguments.iter().map(OsString::from);
            std::iter::once(own.clone().into_os_string()).chain(arguments).collect()
        };
        let mut observe = with(&["observe", "--json"]);
        observe.extend([observed(directory).into_os_string(), "--".into()]);
        let narrow = with(&["run", "--mechanism", "narrow", "--"]);
        let still = |name, prefix| Way { name, prefix, account: None };
        let mut all =
            vec![still("plain", Vec::new()), still("observe", observe), still("narrow", narrow)];
        let asked = [("borrow", &moves.borrow), ("offload", &moves.offload), (AUTO, &moves.auto)];
        let mut server = None;
        for (name, hook) in asked.into_iter().filter(|(_, hook)| !hook.is_empty()) {
            let mut prefix: Vec<OsString> = Vec::new();
            if name == AUTO {
                let settings = from.map(|(_, to)| format!("[cores]\nlist = \"{to}\"\n"));
                let started =
                    Server::start(&beside("dimmerd")?, &settings.unwrap_or_default(), true)?;
                let mut socket = OsString::from(format!("{}=", dimmer_protocol::SOCKET));
                socket.push(started.socket());
                prefix.extend(["env".into(), socket]);
                server = Some(started);
            }
            if let Some((cpus, _)) = from {
                let list = cpus.map(|cpu| cpu.to_string()).join(",");
                prefix.extend(["taskset", "-c", &list].map(OsString::from));
            }
            prefix.extend(with(&["run", "--mechanism", name, "--hook", &hook.join(",")]));
            // To where a server has its calls moved, it says itself.
            if let Some((_, to)) = from.filter(|_| name != AUTO) {
                prefix.extend(["--cores".into(), to.to_string().into()]);
            }
            let account = directory.join(name).with_extension("json");
            prefix.extend(["--json".into(), account.clone().into_os_string(), "--".into()]);
            all.push(Way { name, prefix, account: Some(account) });
        }
        Ok(Self { all, _server: server })
    }
}

/// Where `observe` writes what it observed.
pub(super) fn observed(directory: &Path) -> PathBuf {
    directory.join("observe.json")
}

/// The keys of `dimmer run --json`, as far as this command reads them.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Account {
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

/// A way's runs, one for each round, and what became of calls in each that moves some.
#[derive(Clone, Debug)]
pub(super) struct Turns<R> {
    pub(super) way: &'static str,
    pub(super) runs: Vec<R>,
    pub(super) accounts: Vec<Account>,
}

impl<R> Turns<R> {
    pub(super) fn of(way: &Way) -> Self {
        Self { way: way.name, runs: Vec::new(), accounts: Vec::new() }
    }

    /// One more run, which has just ended.
    pub(super) fn add(&mut self, way: &Way, run: R) -> anyhow::Result<()> {
        self.runs.push(run);
        if let Some(path) = &way.account {
            let read =
                || -> anyhow::Result<Account> { Ok(serde_json::from_str(&input::kept(path)?)?) };
            self.accounts.push(read().context("cannot read which calls were moved")?);
        }
        Ok(())
    }
}

/// Which calls were moved, all rounds together, and what a policy server said of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct MovedEntry {
    /// Of the functions whose calls may move.
    pub(super) calls: u64,
    pub(super) moved: u64,
    /// The part of the time on CPUs that moving them has taken: the mean of the rounds in which
    /// that is known.
    pub(super) moving_ratio: Option<f64>,
    /// The part of the time in which a server wanted calls of a function moved, on average over
    /// functions; `null` without a server.
    pub(super) server_moves_ratio: Option<f64>,
    /// In how many rounds the program had narrower code, as it was decided.
    pub(super) narrow_rounds: usize,
}

impl MovedEntry {
    /// `None` of ways that move nothing.
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

    /// Of a way, for people.
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

/// How a policy server's way compares with the best of the others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Regret {
    /// Which that is, by its median.
    best: &'static str,
    /// How much more CPU time the server's way takes, round by round.
    #[serde(serialize_with = "entry")]
    more_pct: Option<Estimate>,
}

impl Regret {
    /// `None` without a server's way. `value`: what each run took; less is better.
    pub(super) fn new<R>(turns: &[Turns<R>], value: fn(&R) -> f64) -> Option<Self> {
        let auto = turns.iter().find(|turns| turns.way == AUTO)?;
        let median = |turns: &Turns<R>| {
            turns.runs.iter().map(value).collect::<Samples>().estimate().map(|found| found.median)
        };
        // Observing is none of the ways out.
        let others = turns
            .iter()
            .enumerate()
            .filter(|(place, turns)| *place != OBSERVE && turns.way != AUTO);
        let (best, _) = others
            .filter_map(|(_, turns)| Some((turns, median(turns)?)))
            .min_by(|(_, one), (_, other)| one.total_cmp(other))?;
        let pairs = best.runs.iter().zip(&auto.runs);
        let more_pct = pairs::change_pct(pairs.map(|(best, auto)| (value(best), value(auto))));
        Some(Self { best: best.way, more_pct })
    }

    /// The answer in a sentence.
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
        let borrow = [150.0; 6];
        let all = [
            turns("plain", &plain),
            turns("observe", &observe),
            turns("narrow", &borrow),
            turns("borrow", &borrow),
            turns(AUTO, auto),
        ];
        let regret = Regret::new(&all, |run| *run).unwrap();
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
        assert_eq!(Regret::new(&[turns("plain", &[1.0])], |run| *run), None);
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
            moved.text("offload").replace(SPACE, " "),
            "offload: 0 of 0 calls were moved (0.0 %).\n"
        );
    }
}
