//! Summary of a program's calls, for people, and as JSON with schema `dimmer/run/1`, which
//! `docs/migrate.md` describes.

use std::fmt::Write as _;

use dimmer_policy::moving::Verdict;
use serde::Serialize;

use super::leaves::NoLeaf;
use dimmer_report::number::{counted, percent, time};

/// Maximum number of functions shown for each verdict: those with the most calls.
const MOST_TOLD: usize = 10;

/// The summary of a run.
#[derive(Debug, Serialize)]
pub(super) struct Account {
    pub(super) schema: &'static str,
    /// Calls of all functions that may move, and how many of them moved.
    pub(super) calls: u64,
    pub(super) moved: u64,
    /// The share of CPU time spent on moving calls; `None` if no call was timed in place.
    pub(super) moving_ratio: Option<f64>,
    /// Whether a policy server took part in the decisions.
    pub(super) is_served: bool,
    /// Whether the program was given narrower code.
    pub(super) is_narrow: bool,
    /// The share of CPU time that narrower code would have given back by the model, from and to.
    pub(super) narrow_gain_ratio: Option<(f64, f64)>,
    pub(super) functions: Vec<Function>,
    /// The code of the next run, if it differs.
    #[serde(skip)]
    pub(super) next: Option<String>,
    /// How the calls were to move, as named in messages.
    #[serde(skip)]
    pub(super) how: &'static str,
    /// Functions whose calls stayed because they are no leaf functions.
    #[serde(skip)]
    pub(super) others: Vec<NoLeaf>,
    /// Problems, each with its file.
    #[serde(skip)]
    pub(super) problems: Vec<String>,
}

/// A function whose calls may move.
#[derive(Debug, Serialize)]
pub(super) struct Function {
    pub(super) name: String,
    pub(super) calls: u64,
    /// Median durations at the last verdict: of calls in place, and of moved calls.
    pub(super) lasted_ns: Option<f64>,
    pub(super) moved_ns: Option<f64>,
    /// The verdict from the observed calls alone.
    #[serde(serialize_with = "name")]
    pub(super) verdict: Verdict,
    /// The share of the time in which the server wanted the calls moved; `None` without a server.
    pub(super) server_moves_ratio: Option<f64>,
    /// What kept the calls in place, whatever the verdict.
    #[serde(skip)]
    pub(super) kept: Option<Kept>,
}

/// What keeps calls in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// The program has narrower code.
    Narrow,
    /// A server should have decided, but there was neither a server nor a model.
    NobodyDecides,
}

impl Account {
    /// The summary for a program in which nothing can move.
    pub(super) fn nothing(how: &'static str) -> Self {
        Self::new(how, Vec::new())
    }

    pub(super) fn new(how: &'static str, functions: Vec<Function>) -> Self {
        Self {
            schema: "dimmer/run/1",
            calls: 0,
            moved: 0,
            moving_ratio: None,
            is_served: false,
            is_narrow: false,
            narrow_gain_ratio: None,
            functions,
            next: None,
            how,
            others: Vec::new(),
            problems: Vec::new(),
        }
    }

    pub(super) fn text(&self) -> String {
        let taken =
            self.moving_ratio.filter(|_| self.moved > 0).map_or_else(String::new, |ratio| {
                format!("; that took some {} of its time on CPUs", percent(ratio))
            });
        let mut text =
            format!("{}: {} of {} calls were moved{taken}.\n", self.how, self.moved, self.calls);
        let mut verdicts: Vec<&str> = self.functions.iter().map(Function::words).collect();
        verdicts.sort_unstable();
        verdicts.dedup();
        for verdict in verdicts {
            let of_it = |function: &&Function| function.words() == verdict;
            let mut functions: Vec<&Function> = self.functions.iter().filter(of_it).collect();
            functions.sort_by_key(|function| std::cmp::Reverse(function.calls));
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {verdict}:");
            for function in functions.iter().take(MOST_TOLD) {
                let time = |ns: Option<f64>| ns.map_or_else(|| "-".to_owned(), time);
                let _ = writeln!(
                    text,
                    "    {:<40} {:>10} calls {:>9} each, {:>9} moved",
                    function.name,
                    function.calls,
                    time(function.lasted_ns),
                    time(function.moved_ns),
                );
            }
            let others = functions.get(MOST_TOLD..).unwrap_or_default();
            if !others.is_empty() {
                let called: u64 =
                    others.iter().map(|function| function.calls).fold(0, u64::saturating_add);
                let number = counted(others.len(), "other");
                let _ = writeln!(text, "    {number:<40} {called:>10} calls");
            }
        }
        if !self.others.is_empty() {
            text.push_str("  stayed, as it is not known to be a leaf function:\n");
        }
        for other in self.others.iter().take(MOST_TOLD) {
            let _ = writeln!(text, "    {:<40} {}", other.title, other.why);
        }
        if let Some(rest) = self.others.len().checked_sub(MOST_TOLD).filter(|rest| *rest > 0) {
            let _ = writeln!(text, "    {}", counted(rest, "other"));
        }
        if let Some(next) = &self.next {
            let _ = writeln!(text, "  {next}");
        }
        for problem in &self.problems {
            let _ = writeln!(text, "  {problem}");
        }
        text
    }
}

impl Function {
    fn words(&self) -> &'static str {
        match self.verdict {
            _ if self.kept == Some(Kept::Narrow) => "stayed, as their code is narrower",
            Verdict::Move if self.server_moves_ratio == Some(0.0) => {
                "stayed, as the policy server has not had them moved"
            }
            Verdict::Move if self.kept.is_some() => {
                "stayed, as neither a policy server nor a processor model says that moving them pays"
            }
            Verdict::Move => "moved",
            Verdict::Unknown => "stayed, as too few calls were timed",
            Verdict::TooShort => "stayed, as a call is over before it would have travelled",
            Verdict::CostsLess => {
                "stayed, as moving a call takes more than it costs the code after it"
            }
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn name<S: serde::Serializer>(verdict: &Verdict, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(match verdict {
        Verdict::Move => "move",
        Verdict::Unknown => "unknown",
        Verdict::TooShort => "too short",
        Verdict::CostsLess => "costs less",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str, calls: u64, verdict: Verdict, server: Option<f64>) -> Function {
        let (lasted_ns, moved_ns) = (Some(5000.0), None);
        let name = name.to_owned();
        let (kept, server_moves_ratio) = (None, server);
        Function { name, calls, lasted_ns, moved_ns, verdict, server_moves_ratio, kept }
    }

    #[test]
    fn functions_are_told_by_what_became_of_them() {
        let functions = vec![
            function("rare", 7, Verdict::Move, Some(0.5)),
            function("often", 9000, Verdict::Move, Some(0.5)),
            function("kept", 8000, Verdict::Move, Some(0.0)),
            function("short", 6, Verdict::TooShort, Some(1.0)),
        ];
        let mut account = Account::new("Delegate, migrate", functions);
        (account.calls, account.moved) = (17_013, 4500);
        let text = account.text();
        assert!(text.starts_with("Delegate, migrate: 4500 of 17013 calls were moved.\n"), "{text}");
        let place = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part} in {text}"));
        assert!(place("  moved:") < place("often") && place("often") < place("rare"), "{text}");
        assert!(place("the policy server has not") < place("kept"));
        assert!(place("before it would have travelled") < place("short"));
        account.moving_ratio = Some(0.012);
        let text = account.text().replace('\u{a0}', " ");
        assert!(
            text.contains(
                "4500 of 17013 calls were moved; that took some 1.2 % of its time on CPUs.\n"
            ),
            "{text}"
        );
        let json = serde_json::to_value(&account).unwrap();
        assert_eq!(json["functions"][3]["verdict"], "too short");
        assert_eq!(json["functions"][1]["server_moves_ratio"], 0.5);
    }

    #[test]
    fn a_long_list_is_cut_and_the_rest_summed_up() {
        let functions = (0..15).map(|_| function("f", 2, Verdict::Unknown, None)).collect();
        let text = Account::new("Migrate", functions).text();
        let rest = text.lines().last().unwrap().replace('\u{a0}', " ");
        assert!(rest.contains("5 others") && rest.ends_with("10 calls"), "{text}");
        assert_eq!(Account::nothing("Migrate").text(), "Migrate: 0 of 0 calls were moved.\n");
    }
}
