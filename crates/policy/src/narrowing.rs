//! Whether a program is to run with narrower code, decided when it starts.
//!
//! Code cannot be narrowed while it runs: libraries ask once which instructions there are. So each run tells the next. A run with its own
//! code shows, by a processor's model, what narrower code would bring at least ([`ways`](crate::ways)). If that is worthwhile the next
//! run has it, and is measured: by the time on CPUs for each call of a function that is called in both forms. From then on what was
//! measured decides, not the model. As programs change their habits, a run now and then has its own code again.
//!
//! Only runs with the same work are compared, as are those with the same arguments: what an interpreter takes for each call of a function
//! is a matter of its script.

use std::collections::{BTreeMap, BTreeSet};

use crate::ways::WORTHWHILE;

/// Runs with less time on CPUs than this (ns) tell nothing: starting takes some hundredths of a second, which would count for more than
/// what is [`WORTHWHILE`].
const LEAST_ON_CPU_NS: f64 = 1e9;

/// After so many runs with narrower code one has its own: it takes a sixteenth of what narrower code brings.
const NARROW_IN_A_ROW: usize = 15;

/// So many runs are remembered, which holds one of the program's own code at least.
const REMEMBERED: usize = 2 * (NARROW_IN_A_ROW + 1);

/// A model that says that narrower code pays is refuted by so many runs, or by fewer that lose as much as it says is won.
const REFUTED_BY: usize = 3;

/// Which code a program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// Its own.
    #[default]
    Plain,
    /// Narrower.
    Narrow,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// Well, or because somebody ended it.
    #[default]
    Usual,
    /// By itself, telling that it has failed.
    Failed,
    /// By a fault.
    Crashed,
}

/// What a run has shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shown {
    /// Which code ran.
    pub form: Form,
    /// What it was to do: a number for each work, such as a digest of arguments.
    pub work: u64,
    /// How it ended.
    pub end: End,
    /// Its time on CPUs (ns).
    pub on_cpu_ns: f64,
    /// How often functions were called, by names that are the same in all runs.
    pub calls: BTreeMap<String, u64>,
    /// The part of its time on CPUs that narrower code would have given back at least, by a model; `None` of runs that had it, and
    /// where nothing is known.
    pub least_gain: Option<f64>,
}

impl Shown {
    /// Whether it says anything of how well the form does.
    fn counts(&self) -> bool {
        self.on_cpu_ns >= LEAST_ON_CPU_NS
    }

    /// Time on CPUs for each call of a function (ns).
    fn each_ns(&self, function: &str) -> Option<f64> {
        let calls = self.calls.get(function).filter(|calls| **calls > 0)?;
        Some(self.on_cpu_ns / *calls as f64)
    }
}

/// Why a form is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// No run has told what narrower code would bring.
    Unknown,
    /// A run with narrower code ended by a fault, or failed where its own code did not: the program has its own from then on.
    Harmed,
    /// The model says that narrower code would bring at least this part of the time on CPUs, and it was not tried yet, or nothing was
    /// called in both forms.
    Forecast(f64),
    /// Runs with narrower code took this part less time on CPUs for the same work; more, if it is negative.
    Measured(f64),
    /// It has run with narrower code for long: is that still the better one?
    Anew,
}

/// Which code the next run of a program has that is to do this work, after these, the latest of which is the last.
///
/// # Cost
/// In proportion to runs and their functions.
#[must_use]
pub fn next(runs: &[Shown], work: u64) -> (Form, Reason) {
    let is_narrow = |run: &&Shown| run.form == Form::Narrow;
    if runs.iter().any(|run| is_harm(run, runs)) {
        return (Form::Plain, Reason::Harmed);
    }
    let alike = || runs.iter().filter(|run| run.work == work);
    let told: Vec<&Shown> = alike().filter(|run| run.counts()).collect();
    let plain = told.iter().rev().find(|run| run.form == Form::Plain);
    let Some(least) = plain.and_then(|run| run.least_gain).filter(|gain| gain.is_finite()) else {
        return (Form::Plain, Reason::Unknown);
    };
    if least < WORTHWHILE {
        return (Form::Plain, Reason::Forecast(least));
    }
    let reason = match measured(&told) {
        Some((gain, runs)) if gain <= 0.0 && (runs >= REFUTED_BY || gain < -least) => {
            return (Form::Plain, Reason::Measured(gain));
        }
        Some((gain, _)) if gain > 0.0 => Reason::Measured(gain),
        _ => Reason::Forecast(least),
    };
    let in_a_row = alike().rev().take_while(is_narrow).count();
    if in_a_row < NARROW_IN_A_ROW { (Form::Narrow, reason) } else { (Form::Plain, Reason::Anew) }
}

/// One more run, which has just ended. The oldest are forgotten, whatever their work, but not that narrower code did harm.
pub fn remember(runs: &mut Vec<Shown>, run: Shown) {
    runs.push(run);
    while runs.len() > REMEMBERED {
        let is_last_harm = |place: usize| {
            is_harm(&runs[place], runs)
                && !runs[place + 1..].iter().any(|later| is_harm(later, runs))
        };
        let oldest = (0..runs.len()).find(|place| !is_last_harm(*place)).unwrap_or(0);
        runs.remove(oldest);
    }
}

/// Whether it had narrower code and came to grief by that.
fn is_harm(run: &Shown, runs: &[Shown]) -> bool {
    let fails_anyway = || {
        let mut plain = runs.iter().filter(|run| run.form == Form::Plain);
        plain.any(|plain| plain.work == run.work && plain.end == End::Failed)
    };
    run.form == Form::Narrow
        && match run.end {
            End::Usual => false,
            End::Failed => !fails_anyway(),
            End::Crashed => true,
        }
}

/// By which part runs with narrower code took less time for each call of a function, the medians of both forms compared, and how many
/// such runs there are; of the function that was called most in whichever form called it less. `None` if none was called in both.
fn measured(runs: &[&Shown]) -> Option<(f64, usize)> {
    let each = |form: Form, function: &str| -> Vec<f64> {
        let of_form = runs.iter().filter(|run| run.form == form);
        let mut each: Vec<f64> = of_form.filter_map(|run| run.each_ns(function)).collect();
        each.sort_unstable_by(f64::total_cmp);
        each
    };
    let calls = |form: Form, function: &str| -> u64 {
        let of_form = runs.iter().filter(|run| run.form == form);
        let calls = of_form.filter_map(|run| run.calls.get(function));
        calls.fold(0, |sum, calls| sum.saturating_add(*calls))
    };
    let names: BTreeSet<&str> =
        runs.iter().flat_map(|run| run.calls.keys().map(String::as_str)).collect();
    let in_both = |function: &str| calls(Form::Plain, function).min(calls(Form::Narrow, function));
    let counted = names.into_iter().map(|function| (in_both(function), function));
    let (_, function) = counted.filter(|(calls, _)| *calls > 0).max()?;
    // The lower one of two: what disturbs a run makes it take longer.
    let median = |each: &[f64]| each.get(each.len().saturating_sub(1) / 2).copied();
    let (plain, narrow) = (each(Form::Plain, function), each(Form::Narrow, function));
    let gain = 1.0 - median(&narrow)? / median(&plain)?;
    gain.is_finite().then_some((gain, narrow.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of a second with so many calls.
    fn run(form: Form, calls: u64, least_gain: Option<f64>) -> Shown {
        let calls = BTreeMap::from([("encrypt".to_owned(), calls), ("rare".to_owned(), 3)]);
        Shown { form, on_cpu_ns: 1e9, calls, least_gain, ..Shown::default() }
    }

    fn plain(calls: u64) -> Shown {
        run(Form::Plain, calls, Some(0.05))
    }

    fn narrow(calls: u64) -> Shown {
        run(Form::Narrow, calls, None)
    }

    #[test]
    fn nothing_is_narrowed_before_a_run_has_told_that_it_pays() {
        assert_eq!(next(&[], 0), (Form::Plain, Reason::Unknown));
        assert_eq!(next(&[run(Form::Plain, 1000, None)], 0), (Form::Plain, Reason::Unknown));
        let hardly = run(Form::Plain, 1000, Some(0.009));
        assert_eq!(next(&[hardly], 0), (Form::Plain, Reason::Forecast(0.009)));
        assert_eq!(next(&[plain(1000)], 0), (Form::Narrow, Reason::Forecast(0.05)));
        // What has hardly run tells nothing.
        let short = Shown { on_cpu_ns: 9e8, ..plain(1000) };
        assert_eq!(next(&[short], 0), (Form::Plain, Reason::Unknown));
    }

    #[test]
    fn what_was_measured_decides_not_the_model() {
        let (form, reason) = next(&[plain(1000), narrow(1100)], 0);
        assert_eq!(form, Form::Narrow);
        assert!(matches!(reason, Reason::Measured(gain) if (gain - 1.0 / 11.0).abs() < 1e-12));
        // It loses more than the model says is won.
        let (form, reason) = next(&[plain(1000), narrow(900)], 0);
        assert_eq!(form, Form::Plain);
        assert!(matches!(reason, Reason::Measured(gain) if (gain + 1.0 / 9.0).abs() < 1e-12));
        // It loses little, which may have been chance, until it is seen again.
        let runs = [plain(1000), narrow(980), narrow(990), narrow(985)];
        assert_eq!(next(&runs[..3], 0), (Form::Narrow, Reason::Forecast(0.05)));
        assert_eq!(next(&runs, 0).0, Form::Plain);
        // A disturbed run among others does not count.
        let runs = [plain(1000), narrow(1100), narrow(500), narrow(1090)];
        assert_eq!(next(&runs, 0).0, Form::Narrow);
        // Habits have changed: nothing is lost any more.
        let runs = [plain(1000), narrow(1100), run(Form::Plain, 1000, Some(0.0))];
        assert_eq!(next(&runs, 0), (Form::Plain, Reason::Forecast(0.0)));
    }

    #[test]
    fn where_nothing_is_called_in_both_forms_the_model_decides() {
        let mut other = narrow(1000);
        other.calls = BTreeMap::from([("narrower kernel".to_owned(), 1000)]);
        assert_eq!(next(&[plain(1000), other], 0), (Form::Narrow, Reason::Forecast(0.05)));
    }

    #[test]
    fn its_own_code_is_looked_at_anew_now_and_then() {
        let mut runs = Vec::new();
        let mut narrow_runs = 0;
        for _ in 0..320 {
            let (form, _) = next(&runs, 0);
            narrow_runs += usize::from(form == Form::Narrow);
            let run = if form == Form::Narrow { narrow(1100) } else { plain(1000) };
            remember(&mut runs, run);
            assert!(runs.len() <= REMEMBERED);
        }
        assert_eq!(narrow_runs, 320 / (NARROW_IN_A_ROW + 1) * NARROW_IN_A_ROW);
    }

    #[test]
    fn a_program_that_narrower_code_harms_has_its_own_whatever_its_work() {
        for end in [End::Crashed, End::Failed] {
            let harm = Shown { end, on_cpu_ns: 1e6, ..narrow(1) };
            let mut runs = vec![plain(1000), harm.clone(), harm];
            for _ in 0..3 * REMEMBERED {
                assert_eq!(next(&runs, 0), (Form::Plain, Reason::Harmed));
                assert_eq!(next(&runs, 1), (Form::Plain, Reason::Harmed));
                remember(&mut runs, plain(1000));
            }
            assert_eq!(runs.len(), REMEMBERED);
            assert_eq!(runs.iter().filter(|run| run.form == Form::Narrow).count(), 1);
            // One that ends so by itself is no reason.
            assert_eq!(next(&[Shown { end, ..plain(1000) }], 0).0, Form::Narrow);
        }
        let fails = |run: Shown| Shown { end: End::Failed, ..run };
        let runs = [fails(plain(1000)), fails(narrow(1100))];
        assert_eq!(next(&runs, 0).0, Form::Narrow);
        // Not so if it is other work that fails.
        let other = Shown { work: 1, ..fails(plain(1000)) };
        let runs = [plain(1000), fails(narrow(1100)), other];
        assert_eq!(next(&runs, 0), (Form::Plain, Reason::Harmed));
    }

    #[test]
    fn other_work_tells_nothing() {
        let other = |run: Shown| Shown { work: 1, ..run };
        // A hundredth of the calls in the same time, and nothing to be won.
        let runs = [plain(1000), other(run(Form::Plain, 10, Some(0.0)))];
        assert_eq!(next(&runs, 0), (Form::Narrow, Reason::Forecast(0.05)));
        assert_eq!(next(&runs, 1), (Form::Plain, Reason::Forecast(0.0)));
        assert_eq!(next(&runs, 2), (Form::Plain, Reason::Unknown));
        let runs = [plain(1000), other(plain(10)), other(narrow(11)), narrow(900)];
        assert_eq!(next(&runs, 0).0, Form::Plain);
        assert_eq!(next(&runs, 1).0, Form::Narrow);
        // Nor does it end what runs in a row.
        let mut runs = vec![plain(1000)];
        for _ in 0..NARROW_IN_A_ROW {
            assert_eq!(next(&runs, 0).0, Form::Narrow);
            runs.extend([narrow(1100), other(plain(10))]);
        }
        assert_eq!(next(&runs, 0), (Form::Plain, Reason::Anew));
    }

    #[test]
    fn anything_is_taken() {
        let odd = [f64::NAN, f64::INFINITY, -1.0, 0.0, f64::MAX];
        for on_cpu_ns in odd {
            for gain in odd {
                for calls in [0, 1, u64::MAX] {
                    let run = |form| Shown { on_cpu_ns, ..run(form, calls, Some(gain)) };
                    let (_, reason) = next(&[run(Form::Plain), run(Form::Narrow), plain(calls)], 0);
                    if let Reason::Measured(gain) | Reason::Forecast(gain) = reason {
                        assert!(gain.is_finite(), "{reason:?}");
                    }
                }
            }
        }
    }
}
