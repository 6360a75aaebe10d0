//! A program under `dimmer run --auto`, beside the same program without it, in turn, until it is
//! known well enough how much more it does.

use std::ffi::{OsStr, OsString};
use std::str::FromStr;

use dimmer_host::interrupt::Interrupt;
use dimmer_probe::stats::Estimate;

use crate::error::BenchError;
use crate::pairs::{self, ENOUGH, change_pct};
use crate::program::run_and_read;

/// The variable with the words to put before the program that a command starts.
pub const WORDS: &str = "DIMMER_AUTO";

/// The interval of the gain is to be narrower than this (percent of the work).
pub const NARROW: f64 = 2.0;

/// What a program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// One over the time that it takes.
    Time,
    /// The last word that it prints.
    Output,
}

impl Metric {
    /// The name for users.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Output => "output",
        }
    }
}

impl FromStr for Metric {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = [Self::Time, Self::Output].into_iter().find(|metric| metric.name() == name);
        known.ok_or("expected time or output")
    }
}

/// The words of `dimmer run --auto` by this program, to put before a command.
///
/// * `functions`: those whose calls may move; if empty, those that the model chooses.
/// * `model`: a name or a file; `None`: what `dimmer probe` has stored.
///
/// # Errors
/// [`BenchError::System`]: this program's own file is not known.
pub fn words(functions: &[String], model: Option<&str>) -> Result<Vec<OsString>, BenchError> {
    let own = std::env::current_exe().map_err(BenchError::system("find this program's file"))?;
    let named = if functions.is_empty() { "" } else { "=" };
    let flag = format!("--auto{named}{}", functions.join(","));
    let mut words: Vec<OsString> = vec![own.into(), "run".into(), flag.into()];
    words.extend(model.map(|model| format!("--model={model}").into()));
    words.push("--".into());
    Ok(words)
}

/// What to compare.
#[derive(Clone, Debug)]
pub struct Comparison<'a> {
    /// The program and its arguments.
    pub command: &'a [OsString],
    /// The words to put before it: `dimmer run --auto --`.
    pub auto: &'a [OsString],
    /// What it does.
    pub metric: Metric,
    /// The most rounds.
    pub rounds: usize,
}

/// What the program did in a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Round {
    /// A second, without Dimmer.
    pub none: f64,
    /// A second, under `dimmer run --auto`.
    pub auto: f64,
}

/// How much more is done under `dimmer run --auto`, in percent: median with interval.
#[must_use]
pub fn gain_pct(rounds: &[Round]) -> Option<Estimate> {
    change_pct(rounds.iter().map(|round| (round.none, round.auto)))
}

/// Whether the interval of the gain is narrow. Fewer rounds than [`ENOUGH`] have none.
#[must_use]
pub fn is_narrow(rounds: &[Round]) -> bool {
    let width = gain_pct(rounds).map(|gain| gain.ci95.1 - gain.ci95.0);
    rounds.len() >= ENOUGH && width.is_some_and(|width| width < NARROW)
}

impl Comparison<'_> {
    /// Runs rounds until the interval of the gain is narrow, or there are as many as there may be.
    /// The user's interrupt ends them sooner, after at least one. `ran` is called after each round.
    ///
    /// # Errors
    /// [`BenchError`]: a program that fails or does not print its result, or the user's interrupt
    /// in the first round.
    pub fn measure(
        &self,
        interrupt: &Interrupt,
        mut ran: impl FnMut(),
    ) -> Result<Vec<Round>, BenchError> {
        let mut rounds = Vec::new();
        while rounds.len() < self.rounds && !is_narrow(&rounds) {
            match self.round(rounds.len(), interrupt) {
                Ok(round) => rounds.push(round),
                Err(BenchError::Interrupted) if !rounds.is_empty() => break,
                Err(error) => return Err(error),
            }
            ran();
        }
        Ok(rounds)
    }

    fn round(&self, number: usize, interrupt: &Interrupt) -> Result<Round, BenchError> {
        let mut did = [0.0; 2];
        for way in pairs::order(number, did.len()) {
            did[way] = self.run(way == 1, interrupt)?;
        }
        Ok(Round { none: did[0], auto: did[1] })
    }

    /// What the program does a second, in a run of its own.
    fn run(&self, is_auto: bool, interrupt: &Interrupt) -> Result<f64, BenchError> {
        let words = if is_auto { self.auto } else { &[] };
        let joined = words.join(OsStr::new(" "));
        let (prefix, variable) = match self.metric {
            Metric::Time => (words, None),
            Metric::Output => (&[][..], Some((WORDS, joined.as_os_str()))),
        };
        let (run, output) = run_and_read(prefix, self.command, variable, interrupt)?;
        let program = || self.command.first().map_or_else(String::new, shown);
        let said = || String::from_utf8_lossy(&output).into_owned();
        if run.outcome.status != 0 {
            let said = format!("exit status {}, {}", run.outcome.status, said());
            return Err(BenchError::Failed { program: program(), said });
        }
        let did = match self.metric {
            Metric::Time => Some(1.0 / run.lasted.as_secs_f64()),
            Metric::Output => {
                said().split_whitespace().next_back().and_then(|word| word.parse().ok())
            }
        };
        let did = did.filter(|did: &f64| did.is_finite() && *did > 0.0);
        did.ok_or_else(|| BenchError::NoResult { program: program(), said: said() })
    }
}

fn shown(word: &OsString) -> String {
    word.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(metric: Metric, script: &str, rounds: usize) -> Result<Vec<Round>, BenchError> {
        let command = ["sh", "-c", script].map(OsString::from);
        let auto = ["env", "UNDER=auto"].map(OsString::from);
        let comparison = Comparison { command: &command, auto: &auto, metric, rounds };
        comparison.measure(&Interrupt::install().unwrap(), || ())
    }

    #[test]
    fn a_command_prints_what_the_program_did_that_it_starts_behind_the_words() {
        let script = "did=$($DIMMER_AUTO sh -c 'echo ${UNDER:-none}'); \
                      echo result; test $did = auto && echo 110 || echo 100";
        let rounds = compare(Metric::Output, script, 50).unwrap();
        assert_eq!(rounds, vec![Round { none: 100.0, auto: 110.0 }; ENOUGH]);
        assert_eq!(gain_pct(&rounds).unwrap().median, 10.0);
    }

    #[test]
    fn the_words_come_before_a_command_that_is_timed() {
        let rounds = compare(Metric::Time, "test \"${UNDER:-none}\" != auto || sleep 0.5", 2);
        assert!(rounds.unwrap().iter().all(|round| round.auto < 2.0));
    }

    #[test]
    fn a_metric_that_there_is_not_is_refused_with_those_that_there_are() {
        for metric in [Metric::Time, Metric::Output] {
            assert_eq!(metric.name().parse(), Ok(metric));
        }
        assert_eq!("rate".parse::<Metric>(), Err("expected time or output"));
    }

    #[test]
    fn functions_and_a_model_are_passed_on() {
        let words = |functions: &[&str], model| {
            let functions: Vec<String> = functions.iter().map(|one| (*one).to_owned()).collect();
            super::words(&functions, model).unwrap()[1..].to_vec()
        };
        assert_eq!(words(&[], None), ["run", "--auto", "--"]);
        assert_eq!(
            words(&["f", "l.so:0x10"], Some("m")),
            ["run", "--auto=f,l.so:0x10", "--model=m", "--"]
        );
    }

    #[test]
    fn rounds_end_when_the_interval_is_narrow_or_there_are_too_many() {
        let round = |auto: f64| Round { none: 100.0, auto };
        assert!(!is_narrow(&[round(100.0); ENOUGH - 1]));
        assert!(is_narrow(&[round(100.0); ENOUGH]));
        let mut apart = [round(100.0); ENOUGH];
        apart[0] = round(103.0);
        assert!(!is_narrow(&apart));
        assert_eq!(compare(Metric::Output, "echo 1", 3).unwrap().len(), 3);
    }

    #[test]
    fn a_program_without_a_result_is_refused_with_what_it_said() {
        for (script, expected) in [
            ("echo no result", "no result"),
            ("echo -5", "-5"),
            ("echo nan", "nan"),
            ("true", "output"),
            ("echo broken; exit 7", "exit status 7, broken"),
        ] {
            let error = compare(Metric::Output, script, 3).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("sh"), "{error}");
        }
    }
}
