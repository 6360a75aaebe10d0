//! `dimmer bench program`: what observing costs a program, and what narrower code gives back.
//! `docs/bench-json.md` describes the keys.

use std::fmt::Write as _;

use dimmer_bench::pairs;
use dimmer_bench::program::Run;
use dimmer_probe::stats::{Estimate, Samples};
use serde::Serialize;

use super::ways::{MovedEntry, OBSERVE, PLAIN, Regret, Turns};
use super::{ratio_of_rounds, signed};
use crate::estimate::entry;
use crate::number::{SPACE, grouped, interval};
use crate::screen::Screen;
use crate::shell;
use crate::table::Table;

/// The document `dimmer/bench-program/1`.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: &'static str,
    command: Vec<String>,
    rounds: usize,
    ways: Vec<Way>,
    /// Whether all plain runs had the same output and exit status.
    is_repeatable: bool,
    /// How far the policy server's CPU time is from that of the best of the other ways; `None`
    /// without a policy server.
    #[serde(skip_serializing_if = "Option::is_none")]
    regret: Option<Regret>,
}

#[derive(Debug, Serialize)]
struct Way {
    way: &'static str,
    #[serde(serialize_with = "entry")]
    lasted_s: Option<Estimate>,
    #[serde(serialize_with = "entry")]
    cpu_s: Option<Estimate>,
    /// Difference to the plain way, round by round.
    #[serde(serialize_with = "entry")]
    lasted_pct: Option<Estimate>,
    #[serde(serialize_with = "entry")]
    cpu_pct: Option<Estimate>,
    /// Whether all runs of this way had the output and exit status of the first plain run.
    is_same: bool,
    /// Which calls were moved, for ways that move calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    moved: Option<MovedEntry>,
}

impl Report {
    /// `ways`: the runs of `command`, plain ones first.
    pub fn new(command: Vec<String>, ways: &[Turns<Run>]) -> Self {
        let first = ways[PLAIN].runs.first().map(|run| run.outcome);
        let is_same = |runs: &[Run]| runs.iter().all(|run| Some(run.outcome) == first);
        let way = |way: usize| {
            let turns = &ways[way];
            let of = |value: fn(&Run) -> f64| {
                let values: Samples = turns.runs.iter().map(value).collect();
                let pairs = ways[PLAIN].runs.iter().zip(&turns.runs);
                let change =
                    pairs::change_pct(pairs.map(|(plain, own)| (value(plain), value(own))));
                (values.estimate(), change.filter(|_| way != PLAIN))
            };
            let (lasted_s, lasted_pct) = of(|run| run.lasted.as_secs_f64());
            let (cpu_s, cpu_pct) = of(|run| run.on_cpu.as_secs_f64());
            let is_same = is_same(&turns.runs);
            let moved = MovedEntry::new(&turns.accounts);
            Way { way: turns.way, lasted_s, cpu_s, lasted_pct, cpu_pct, is_same, moved }
        };
        // What ends in another way, as by a signal, did not do the program's work.
        let status = first.map(|outcome| outcome.status);
        let has_done =
            |turns: &Turns<Run>| turns.runs.iter().all(|run| Some(run.outcome.status) == status);
        Self {
            schema: "dimmer/bench-program/1",
            command,
            rounds: ways[PLAIN].runs.len(),
            ways: (0..ways.len()).map(way).collect(),
            is_repeatable: is_same(&ways[PLAIN].runs),
            regret: Regret::new(ways, has_done, |run| run.on_cpu.as_secs_f64()),
        }
    }

    /// Whether an observed program behaved otherwise than a plain one, which all behaved alike.
    pub fn is_changed(&self) -> bool {
        self.is_repeatable && !self.ways[OBSERVE].is_same
    }

    /// The results as text.
    pub fn text(&self, screen: Screen) -> String {
        let mut text = format!("{}, {} rounds\n\n", shell::line(&self.command), self.rounds);
        let mut table = Table::new(["way", "took", "than plain", "CPU time", "than plain"]);
        let seconds = |estimate: &Option<Estimate>| {
            let shown = |found: &Estimate| {
                format!("{}{SPACE}s{SPACE}{}", grouped(found.median, 2), interval(found, 2))
            };
            estimate.as_ref().map(shown).unwrap_or_default()
        };
        let change = |estimate: &Option<Estimate>| {
            let shown = |found: &Estimate| {
                format!("{}{SPACE}%{SPACE}{}", signed(found.median), interval(found, 1))
            };
            estimate.as_ref().map(shown).unwrap_or_default()
        };
        for way in &self.ways {
            table.row([
                way.way.to_owned(),
                seconds(&way.lasted_s),
                change(&way.lasted_pct),
                seconds(&way.cpu_s),
                change(&way.cpu_pct),
            ]);
        }
        text.push_str(&table.render(screen));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\n{}", self.sameness());
        for way in &self.ways {
            text.push_str(&way.moved.map_or_else(String::new, |moved| moved.text(way.way)));
        }
        if let Some(regret) = &self.regret {
            let _ = writeln!(text, "{}", regret.text());
        }
        text.push_str(&ratio_of_rounds(self.rounds));
        screen.shown(&text)
    }

    /// Whether all ways had the same output and exit status, as text.
    fn sameness(&self) -> String {
        if !self.is_repeatable {
            return "Output or exit status differ from one plain run to the next, so nothing can be said of the \
                    other ways'."
                .to_owned();
        }
        let other: Vec<&str> =
            self.ways.iter().filter(|way| !way.is_same).map(|way| way.way).collect();
        if other.is_empty() {
            return "Output and exit status were the same in all runs.".to_owned();
        }
        format!(
            "Output or exit status differ from the plain way's: {}. All others are the same.",
            other.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dimmer_bench::program::Outcome;

    use super::*;

    fn runs(outputs: [u64; 3], ms: u64) -> Vec<Run> {
        let run = |output| Run {
            lasted: Duration::from_millis(ms),
            on_cpu: Duration::from_millis(2 * ms),
            outcome: Outcome { status: 0, output, bytes: 1 },
        };
        outputs.map(run).to_vec()
    }

    fn text(ways: [Vec<Run>; 3]) -> String {
        let named = ["plain", "observe", "narrow"].into_iter().zip(ways);
        let turns: Vec<Turns<Run>> =
            named.map(|(way, runs)| Turns { way, runs, accounts: Vec::new() }).collect();
        Report::new(vec!["encode".to_owned()], &turns).text(Screen {
            width: 100,
            is_coloured: false,
            is_for_people: true,
        })
    }

    #[test]
    fn ways_are_compared_with_the_plain_one() {
        let text = text([runs([7; 3], 1000), runs([7; 3], 1020), runs([7; 3], 900)]);
        for part in ["encode, 3 rounds", "+2.0 %", "−10.0 %", "were the same in all runs", "75.0 %"]
        {
            assert!(text.contains(part), "no `{part}` in {text}");
        }
    }

    #[test]
    fn a_way_in_which_the_program_ended_otherwise_is_never_the_best() {
        let killed = |mut runs: Vec<Run>| {
            runs[1].outcome.status = 139;
            runs
        };
        let regret = |migrate: Vec<Run>, auto: Vec<Run>| {
            let plain = || runs([7; 3], 1000);
            let ways = ["plain", "observe", "narrow", "migrate", "auto"];
            let named = ways.into_iter().zip([plain(), plain(), plain(), migrate, auto]);
            let turns: Vec<Turns<Run>> =
                named.map(|(way, runs)| Turns { way, runs, accounts: Vec::new() }).collect();
            let report = Report::new(vec!["encode".to_owned()], &turns);
            serde_json::to_value(&report).unwrap()["regret"]["best"].clone()
        };
        assert_eq!(regret(runs([7; 3], 10), runs([7; 3], 1000)), "migrate");
        assert_eq!(regret(killed(runs([7; 3], 10)), runs([7; 3], 1000)), "plain");
        assert!(regret(runs([7; 3], 10), killed(runs([7; 3], 10))).is_null());
    }

    #[test]
    fn other_output_is_told_unless_plain_runs_differ_as_well() {
        let told = |plain, observe| text([runs(plain, 1), runs(observe, 1), runs([7; 3], 1)]);
        assert!(told([7; 3], [7, 7, 8]).contains("from the plain way's: observe. All"));
        assert!(told([7, 8, 7], [7; 3]).contains("from one plain run to the next"));
    }
}
