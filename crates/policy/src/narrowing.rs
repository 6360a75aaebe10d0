//! Decides whether a program runs with narrower code, when the program starts.
//!
//! Code cannot be narrowed while it runs: libraries check only once which instructions there are.
//! So each run provides evidence for the next. A run with the program's own code shows, according
//! to a processor model, what narrower code would bring, from and to ([`ways`](crate::ways)). If
//! the middle of that range is worthwhile, the next run has narrower code and is measured: by the
//! time on CPUs per call of a function that is called in both forms, or otherwise per written byte.
//! From then on the measurement decides, not the model. If neither calls nor bytes can be compared,
//! the lower end of the model's range decides. Programs change their habits, so a run now and then
//! has its own code again.
//!
//! Only runs that do the same work are compared, such as runs with the same arguments: the time
//! that an interpreter takes per call of a function depends on its script.

use std::collections::{BTreeMap, BTreeSet};

use crate::ways::WORTHWHILE;

/// Runs with less time on CPUs than this (ns) are no evidence: a start takes some hundredths of a
/// second, and that would count for more than what is [`WORTHWHILE`].
const LEAST_ON_CPU_NS: f64 = 1e9;

/// After this many runs in a row with narrower code, one run has its own code. That takes a
/// sixteenth of what narrower code brings.
const NARROW_IN_A_ROW: usize = 15;

/// Number of runs that are remembered. At least one of them has the program's own code.
const REMEMBERED: usize = 2 * (NARROW_IN_A_ROW + 1);

/// Fewer written bytes than this are messages, not work.
const LEAST_WRITTEN: u64 = 1 << 20;

/// If the model expects a gain from narrower code, this many runs without one refute it. Fewer are
/// enough if they lose more than the model expects to win.
const REFUTED_BY: usize = 3;

/// The form of the code that a program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// The program's own code.
    #[default]
    Plain,
    /// Narrower code.
    Narrow,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// With success, or because it was ended from outside.
    #[default]
    Usual,
    /// By itself, with a status that reports failure.
    Failed,
    /// By a fault.
    Crashed,
}

/// What a run has shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shown {
    /// The form of its code.
    pub form: Form,
    /// Identifies the work, for example a digest of the arguments.
    pub work: u64,
    /// How it ended.
    pub end: End,
    /// Its time on CPUs (ns).
    pub on_cpu_ns: f64,
    /// The number of calls of each function. A function has the same name in all runs.
    pub calls: BTreeMap<String, u64>,
    /// The number of bytes that it wrote.
    pub written: u64,
    /// The part of its time on CPUs that narrower code would have saved according to a model, from
    /// and to; `None` for a run with narrower code, and if nothing is known.
    pub forecast: Option<(f64, f64)>,
}

impl Shown {
    /// Whether the run is evidence of how well its form does.
    fn counts(&self) -> bool {
        self.on_cpu_ns >= LEAST_ON_CPU_NS
    }

    /// How much work the run did.
    fn done(&self, unit: Unit<'_>) -> u64 {
        match unit {
            Unit::Calls(function) => self.calls.get(function).copied().unwrap_or(0),
            Unit::Bytes if self.written >= LEAST_WRITTEN => self.written,
            Unit::Bytes => 0,
        }
    }
}

/// Why a form is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// No run has shown what narrower code would bring.
    Unknown,
    /// A run with narrower code ended by a fault, or failed where the program's own code did not.
    /// From then on the program has its own code.
    Harmed,
    /// According to the model, narrower code would bring from and to this part of the time on CPUs.
    /// It was not tried yet, or not often enough, or the two forms did no work that could be
    /// compared.
    Forecast(f64, f64),
    /// Runs with narrower code took less time on CPUs for the same work, by this part; more, if it
    /// is negative.
    Measured(f64),
    /// According to the model, narrower code would bring from and to this part of the time on CPUs,
    /// but nothing narrows this program here.
    Impossible(f64, f64),
    /// The program has run with narrower code for long: this run checks whether that is still
    /// better.
    Check,
}

/// Chooses the form of a program's next run. That run does `work`; `runs` are the earlier runs, the
/// latest last. If nothing narrows the program (`can_narrow` is false), there is no narrower form:
/// it would be the program's own code, and a comparison of that with itself would show only noise.
///
/// # Cost
/// Proportional to the number of runs and their functions.
#[must_use]
pub fn next(runs: &[Shown], work: u64, can_narrow: bool) -> (Form, Reason) {
    let is_narrow = |run: &&Shown| run.form == Form::Narrow;
    if runs.iter().any(|run| is_harm(run, runs)) {
        return (Form::Plain, Reason::Harmed);
    }
    let alike = || runs.iter().filter(|run| run.work == work);
    let told: Vec<&Shown> = alike().filter(|run| run.counts()).collect();
    let plain = told.iter().rev().find(|run| run.form == Form::Plain);
    let is_number = |(least, most): &(f64, f64)| least.is_finite() && most.is_finite();
    let Some((least, most)) = plain.and_then(|run| run.forecast).filter(is_number) else {
        return (Form::Plain, Reason::Unknown);
    };
    let (forecast, expected) = (Reason::Forecast(least, most), (least + most) / 2.0);
    if expected < WORTHWHILE {
        return (Form::Plain, forecast);
    }
    if !can_narrow {
        return (Form::Plain, Reason::Impossible(least, most));
    }
    let is_tried = told.iter().any(|run| run.form == Form::Narrow);
    let reason = match measured(&told) {
        Some((gain, runs)) if gain <= 0.0 && (runs >= REFUTED_BY || gain < -expected) => {
            return (Form::Plain, Reason::Measured(gain));
        }
        Some((gain, _)) if gain > 0.0 => Reason::Measured(gain),
        None if is_tried && least < WORTHWHILE => return (Form::Plain, forecast),
        _ => forecast,
    };
    let in_a_row = alike().rev().take_while(is_narrow).count();
    if in_a_row < NARROW_IN_A_ROW { (Form::Narrow, reason) } else { (Form::Plain, Reason::Check) }
}

/// Adds a run that has just ended. Forgets the oldest runs, whatever their work, but keeps the
/// latest run that narrower code harmed.
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

/// Whether narrower code harmed this run.
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

/// The unit in which work is counted.
#[derive(Clone, Copy)]
enum Unit<'run> {
    /// Calls of this function.
    Calls(&'run str),
    /// Written bytes.
    Bytes,
}

/// The part of the time that runs with narrower code saved for the same work, from the medians of
/// both forms, and the number of these runs. Work is counted in calls of one function: the function
/// with the most calls in whichever form called it less. If no function was called in both forms,
/// work is counted in written bytes. `None` if the forms have neither in common.
fn measured(runs: &[&Shown]) -> Option<(f64, usize)> {
    let of = |form: Form| runs.iter().filter(move |run| run.form == form);
    let in_both = |unit: Unit<'_>| {
        let done = |form| of(form).fold(0_u64, |sum, run| sum.saturating_add(run.done(unit)));
        done(Form::Plain).min(done(Form::Narrow))
    };
    let names: BTreeSet<&str> =
        runs.iter().flat_map(|run| run.calls.keys().map(String::as_str)).collect();
    let most = names.into_iter().max_by_key(|function| in_both(Unit::Calls(function)));
    let mut units = most.map(Unit::Calls).into_iter().chain([Unit::Bytes]);
    let unit = units.find(|unit| in_both(*unit) > 0)?;
    let each = |form: Form| -> Vec<f64> {
        let done = of(form).filter(|run| run.done(unit) > 0);
        let mut each: Vec<f64> = done.map(|run| run.on_cpu_ns / run.done(unit) as f64).collect();
        each.sort_unstable_by(f64::total_cmp);
        each
    };
    // The lower one of two: a disturbance makes a run take longer.
    let median = |each: &[f64]| each.get(each.len().saturating_sub(1) / 2).copied();
    let (plain, narrow) = (each(Form::Plain), each(Form::Narrow));
    let gain = 1.0 - median(&narrow)? / median(&plain)?;
    gain.is_finite().then_some((gain, narrow.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `next` for a program that can be narrowed.
    fn next(runs: &[Shown], work: u64) -> (Form, Reason) {
        super::next(runs, work, true)
    }

    const FORECAST: (f64, f64) = (0.03, 0.07);
    const EXPECTED: Reason = Reason::Forecast(FORECAST.0, FORECAST.1);

    /// A run of a second with `calls` calls.
    fn run(form: Form, calls: u64, forecast: Option<(f64, f64)>) -> Shown {
        let calls = BTreeMap::from([("encrypt".to_owned(), calls), ("rare".to_owned(), 3)]);
        Shown { form, on_cpu_ns: 1e9, calls, forecast, ..Shown::default() }
    }

    fn plain(calls: u64) -> Shown {
        run(Form::Plain, calls, Some(FORECAST))
    }

    fn narrow(calls: u64) -> Shown {
        run(Form::Narrow, calls, None)
    }

    #[test]
    fn nothing_is_narrowed_before_a_run_has_told_that_it_pays() {
        assert_eq!(next(&[], 0), (Form::Plain, Reason::Unknown));
        assert_eq!(next(&[run(Form::Plain, 1000, None)], 0), (Form::Plain, Reason::Unknown));
        let hardly = run(Form::Plain, 1000, Some((-0.02, 0.03)));
        assert_eq!(next(&[hardly], 0), (Form::Plain, Reason::Forecast(-0.02, 0.03)));
        assert_eq!(next(&[plain(1000)], 0), (Form::Narrow, EXPECTED));
        // A run with little time on CPUs is no evidence.
        let short = Shown { on_cpu_ns: 9e8, ..plain(1000) };
        assert_eq!(next(&[short], 0), (Form::Plain, Reason::Unknown));
    }

    #[test]
    fn what_cannot_be_narrowed_is_told_from_what_need_not_be() {
        let next = |runs: &[Shown]| super::next(runs, 0, false);
        let impossible = Reason::Impossible(FORECAST.0, FORECAST.1);
        assert_eq!(next(&[plain(1000)]), (Form::Plain, impossible));
        // A comparison from a time when the program could be narrowed does not count now.
        assert_eq!(next(&[plain(1000), narrow(1100)]), (Form::Plain, impossible));
        assert_eq!(next(&[]), (Form::Plain, Reason::Unknown));
        let hardly = run(Form::Plain, 1000, Some((-0.02, 0.03)));
        assert_eq!(next(&[hardly]), (Form::Plain, Reason::Forecast(-0.02, 0.03)));
    }

    #[test]
    fn what_was_measured_decides_not_the_model() {
        let (form, reason) = next(&[plain(1000), narrow(1100)], 0);
        assert_eq!(form, Form::Narrow);
        assert!(matches!(reason, Reason::Measured(gain) if (gain - 1.0 / 11.0).abs() < 1e-12));
        // The run loses more than the model expects to win.
        let (form, reason) = next(&[plain(1000), narrow(900)], 0);
        assert_eq!(form, Form::Plain);
        assert!(matches!(reason, Reason::Measured(gain) if (gain + 1.0 / 9.0).abs() < 1e-12));
        // The runs lose little. That may be chance until it is seen again.
        let runs = [plain(1000), narrow(980), narrow(990), narrow(985)];
        assert_eq!(next(&runs[..3], 0), (Form::Narrow, EXPECTED));
        assert_eq!(next(&runs, 0).0, Form::Plain);
        // A disturbed run among others does not count.
        let runs = [plain(1000), narrow(1100), narrow(500), narrow(1090)];
        assert_eq!(next(&runs, 0).0, Form::Narrow);
        // Habits have changed: wide code costs nothing any more.
        let runs = [plain(1000), narrow(1100), run(Form::Plain, 1000, Some((0.0, 0.0)))];
        assert_eq!(next(&runs, 0), (Form::Plain, Reason::Forecast(0.0, 0.0)));
    }

    #[test]
    fn where_nothing_is_called_in_both_forms_the_model_decides() {
        let mut other = narrow(1000);
        other.calls = BTreeMap::from([("narrower kernel".to_owned(), 1000)]);
        assert_eq!(next(&[plain(1000), other.clone()], 0), (Form::Narrow, EXPECTED));
        // If narrower code may lose by the model, it is tried, but not kept if its effect cannot be
        // measured.
        let may_lose = run(Form::Plain, 1000, Some((-0.02, 0.1)));
        assert_eq!(next(std::slice::from_ref(&may_lose), 0).0, Form::Narrow);
        assert_eq!(next(&[may_lose.clone(), other.clone()], 0).0, Form::Plain);
        assert_eq!(next(&[may_lose.clone(), narrow(1010)], 0).0, Form::Narrow);
        // What both runs have written is evidence as well.
        let written = |run: &Shown, written| Shown { written, ..run.clone() };
        let runs = |narrower| [written(&may_lose, 100 << 20), written(&other, narrower)];
        assert!(matches!(next(&runs(105 << 20), 0), (Form::Narrow, Reason::Measured(_))));
        assert!(matches!(next(&runs(90 << 20), 0), (Form::Plain, Reason::Measured(_))));
        assert!(matches!(next(&runs(1000), 0), (Form::Plain, Reason::Forecast(..))));
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
            // A run with the program's own code that ends like this is no reason.
            assert_eq!(next(&[Shown { end, ..plain(1000) }], 0).0, Form::Narrow);
        }
        let fails = |run: Shown| Shown { end: End::Failed, ..run };
        let runs = [fails(plain(1000)), fails(narrow(1100))];
        assert_eq!(next(&runs, 0).0, Form::Narrow);
        // It is harm if the program's own code fails only at other work.
        let other = Shown { work: 1, ..fails(plain(1000)) };
        let runs = [plain(1000), fails(narrow(1100)), other];
        assert_eq!(next(&runs, 0), (Form::Plain, Reason::Harmed));
    }

    #[test]
    fn other_work_tells_nothing() {
        let other = |run: Shown| Shown { work: 1, ..run };
        // A hundredth of the calls in the same time, and nothing to win.
        let runs = [plain(1000), other(run(Form::Plain, 10, Some((0.0, 0.0))))];
        assert_eq!(next(&runs, 0), (Form::Narrow, EXPECTED));
        assert_eq!(next(&runs, 1), (Form::Plain, Reason::Forecast(0.0, 0.0)));
        assert_eq!(next(&runs, 2), (Form::Plain, Reason::Unknown));
        let runs = [plain(1000), other(plain(10)), other(narrow(11)), narrow(900)];
        assert_eq!(next(&runs, 0).0, Form::Plain);
        assert_eq!(next(&runs, 1).0, Form::Narrow);
        // Nor does other work interrupt a row of runs.
        let mut runs = vec![plain(1000)];
        for _ in 0..NARROW_IN_A_ROW {
            assert_eq!(next(&runs, 0).0, Form::Narrow);
            runs.extend([narrow(1100), other(plain(10))]);
        }
        assert_eq!(next(&runs, 0), (Form::Plain, Reason::Check));
    }

    #[test]
    fn anything_is_taken() {
        let odd = [f64::NAN, f64::INFINITY, -1.0, 0.0, f64::MAX];
        for on_cpu_ns in odd {
            for gain in odd {
                for calls in [0, 1, u64::MAX] {
                    let run = |form| Shown { on_cpu_ns, ..run(form, calls, Some((gain, -gain))) };
                    let (_, reason) = next(&[run(Form::Plain), run(Form::Narrow), plain(calls)], 0);
                    let figures = match reason {
                        Reason::Measured(gain) => [gain, 0.0],
                        Reason::Forecast(least, most) => [least, most],
                        _ => [0.0; 2],
                    };
                    assert!(figures.iter().all(|figure| figure.is_finite()), "{reason:?}");
                }
            }
        }
    }
}
