//! What `dimmer run` tells: notes while the program runs, and the summary of its calls.
//! `docs/migrate.md` describes the document.

pub mod locks;
mod narrow;
mod notes;
pub mod phases;
pub mod threads;

use std::fmt::Write as _;

use dimmer_launch::account::{Account, Function, Next, Summary};
use dimmer_launch::trials::Tried;
use dimmer_policy::headroom::RuledOut;
use dimmer_policy::moving::Verdict;
use dimmer_policy::narrowing::Reason;
use serde::Serialize;

pub use notes::note;

/// The summary of a run as text.
pub fn summary(summary: &Summary, screen: Screen) -> String {
    match summary {
        Summary::Calls(account) => text(account, screen),
        Summary::Threads(threads) => threads::text(threads, screen),
        Summary::Phases(phases) => phases::text(phases, screen),
        Summary::Locks(locks) => locks::text(locks, screen),
    }
}

use crate::number::{counted, percent, time};
use crate::screen::Screen;
use notes::{name, words};

/// Maximum number of functions shown for each verdict: those with the most calls.
const MOST_TOLD: usize = 10;

/// The document `dimmer/run/1`.
pub fn document(account: &Account) -> impl Serialize {
    Document::new(account)
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    schema: &'static str,
    calls: u64,
    moved: u64,
    moving_ratio: Option<f64>,
    is_served: bool,
    is_narrow: bool,
    narrow_gain_ratio: Option<(f64, f64)>,
    tried: Vec<TriedEntry>,
    functions: Vec<FunctionEntry<'a>>,
}

/// What trials have shown of a mechanism.
#[derive(Debug, Serialize)]
struct TriedEntry {
    mechanism: &'static str,
    times: u64,
    in_force_s: f64,
    gain: Option<f64>,
    gain_open: Option<f64>,
    is_chosen: bool,
    ruled_out: Option<&'static str>,
}

/// A function whose calls may move.
#[derive(Debug, Serialize)]
struct FunctionEntry<'a> {
    name: &'a str,
    calls: u64,
    lasted_ns: Option<f64>,
    moved_ns: Option<f64>,
    verdict: &'static str,
    is_unhooked: bool,
    server_moves_ratio: Option<f64>,
}

impl<'a> Document<'a> {
    fn new(account: &'a Account) -> Self {
        Self {
            schema: "dimmer/run/1",
            calls: account.calls,
            moved: account.moved,
            moving_ratio: account.moving_ratio,
            is_served: account.is_served,
            is_narrow: account.is_narrow,
            narrow_gain_ratio: account.narrow_gain_ratio,
            tried: account.tried.iter().map(TriedEntry::new).collect(),
            functions: account.functions.iter().map(FunctionEntry::new).collect(),
        }
    }
}

impl TriedEntry {
    fn new(tried: &Tried) -> Self {
        Self {
            mechanism: tried.mechanism.name(),
            times: tried.times,
            in_force_s: tried.in_force.as_f64() / 1e9,
            gain: tried.gain.map(|gain| gain.mean),
            gain_open: tried.gain.map(|gain| gain.open),
            is_chosen: tried.is_chosen,
            ruled_out: tried.ruled_out.map(RuledOut::name),
        }
    }
}

impl<'a> FunctionEntry<'a> {
    fn new(function: &'a Function) -> Self {
        Self {
            name: &function.name,
            calls: function.calls,
            lasted_ns: function.lasted_ns,
            moved_ns: function.moved_ns,
            verdict: match function.verdict {
                Verdict::Move => "move",
                Verdict::Unknown => "unknown",
                Verdict::TooShort => "too short",
                Verdict::CostsLess => "costs less",
            },
            is_unhooked: function.is_unhooked,
            server_moves_ratio: function.server_moves_ratio,
        }
    }
}

/// The summary as text.
pub fn text(account: &Account, screen: Screen) -> String {
    screen.shown(&told(account))
}

fn told(account: &Account) -> String {
    let taken =
        account.moving_ratio.filter(|_| account.moved > 0).map_or_else(String::new, |ratio| {
            format!("; that took some {} of its time on CPUs", percent(ratio))
        });
    let mut text = format!(
        "{}: {} of {} calls were moved{taken}.\n",
        name(account.how),
        account.moved,
        account.calls
    );
    if !account.tried.is_empty() {
        text.push_str(&tried(&account.tried));
    }
    let verdict = |function: &Function| verdict(account, function);
    let mut verdicts: Vec<&str> = account.functions.iter().map(verdict).collect();
    verdicts.sort_unstable();
    verdicts.dedup();
    for what in verdicts {
        let of_it = |function: &&Function| verdict(function) == what;
        let mut functions: Vec<&Function> = account.functions.iter().filter(of_it).collect();
        functions.sort_by_key(|function| std::cmp::Reverse(function.calls));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {what}:");
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
    if !account.others.is_empty() {
        text.push_str("  stayed, as it is not known to be a leaf function:\n");
    }
    for other in account.others.iter().take(MOST_TOLD) {
        let _ = writeln!(text, "    {:<40} {}", other.title, other.why);
    }
    if let Some(rest) = account.others.len().checked_sub(MOST_TOLD).filter(|rest| *rest > 0) {
        let _ = writeln!(text, "    {}", counted(rest, "other"));
    }
    if let Some(next) = account.next.and_then(next) {
        let _ = writeln!(text, "  {next}");
    }
    for problem in &account.problems {
        let _ = writeln!(text, "  {problem}");
    }
    text
}

/// A sentence with the code of the next run, and the reason; `None` if there is no reason to change
/// anything.
fn next(next: Next) -> Option<String> {
    if let Reason::Impossible(least, most) = next.reason {
        let [least, most] = [least, most].map(percent);
        return Some(format!(
            "Narrower code would by the model give back {least} to {most} of the CPU time, but nothing narrows this program here \
             (dimmer run --narrow says why), so it keeps its own."
        ));
    }
    Some(format!("The next run has {}.", words(next.form, next.reason)?))
}

/// What became of each mechanism, a line each.
fn tried(all: &[Tried]) -> String {
    let mut text = "  by trials of each mechanism:\n".to_owned();
    for one in all {
        let gain = one.gain.map_or_else(String::new, |gain| {
            let [mean, open] = [gain.mean, gain.open].map(|part| 100.0 * part);
            format!(", gain {mean:+.1} % within {open:.1}")
        });
        let note = match (one.is_chosen, one.ruled_out) {
            (true, _) => "; in force at the end",
            (_, Some(RuledOut::NoCalls)) => "; no call is worth a move",
            (_, Some(RuledOut::Busy)) => "; not tried at the end: the CPUs were too busy to gain",
            (_, Some(RuledOut::Unmeasured) | None) => "",
        };
        let (name, times) = (one.mechanism.name(), one.times);
        let lasted = one.in_force.as_f64() / 1e9;
        // Writing to a string cannot fail.
        let _ = writeln!(text, "    {name:<21} {times:>5} times, {lasted:.1} s{gain}{note}");
    }
    text
}

/// What became of a function's calls.
fn verdict(account: &Account, function: &Function) -> &'static str {
    match function.verdict {
        _ if account.is_narrow => "stayed, as their code is narrower",
        Verdict::Move if function.server_moves_ratio == Some(0.0) => {
            "stayed, as the policy server has not had them moved"
        }
        Verdict::Move if !account.tried.is_empty() => "moved while that was in force",
        Verdict::Move => "moved",
        _ if function.is_unhooked => {
            "stayed, and perhaps counted only until they were seen to be short or rare"
        }
        Verdict::Unknown => "stayed, as too few calls were timed",
        Verdict::TooShort => {
            "stayed, as a call is over before it would have moved, and is not known to cost more"
        }
        Verdict::CostsLess => "stayed, as moving a call takes more than it costs the code after it",
    }
}

#[cfg(test)]
mod tests {
    use dimmer_launch::mechanism::How;
    use dimmer_launch::trials::Switched;
    use dimmer_policy::auto::Gain;
    use dimmer_processor::units::Nanos;

    use super::*;

    fn function(name: &str, calls: u64, verdict: Verdict, server: Option<f64>) -> Function {
        let (lasted_ns, moved_ns) = (Some(5000.0), None);
        let name = name.to_owned();
        let server_moves_ratio = server;
        Function {
            name,
            calls,
            lasted_ns,
            moved_ns,
            verdict,
            is_unhooked: false,
            server_moves_ratio,
        }
    }

    fn of(functions: Vec<Function>) -> Account {
        let how = How { migrates: true, delegates: true, is_auto: true, ..How::default() };
        Account { functions, ..Account::nothing(how) }
    }

    #[test]
    fn functions_are_told_by_what_became_of_them() {
        let functions = vec![
            function("rare", 7, Verdict::Move, Some(0.5)),
            function("often", 9000, Verdict::Move, Some(0.5)),
            function("kept", 8000, Verdict::Move, Some(0.0)),
            function("short", 6, Verdict::TooShort, Some(1.0)),
            Function { is_unhooked: true, ..function("hot", 5, Verdict::TooShort, None) },
        ];
        let mut account = of(functions);
        (account.calls, account.moved) = (17_013, 4500);
        let text = told(&account);
        assert!(text.starts_with("Delegate, migrate: 4500 of 17013 calls were moved.\n"), "{text}");
        let place = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part} in {text}"));
        assert!(place("  moved:") < place("often") && place("often") < place("rare"), "{text}");
        assert!(place("the policy server has not") < place("kept"));
        assert!(place("before it would have moved") < place("    short"), "{text}");
        assert!(place("counted only until") < place("    hot"), "{text}");
        account.moving_ratio = Some(0.012);
        let text = told(&account).replace('\u{a0}', " ");
        assert!(
            text.contains(
                "4500 of 17013 calls were moved; that took some 1.2 % of its time on CPUs.\n"
            ),
            "{text}"
        );
        let json = serde_json::to_value(Document::new(&account)).unwrap();
        assert_eq!(json["functions"][3]["verdict"], "too short");
        let is_unhooked = |function: usize| json["functions"][function]["is_unhooked"] == true;
        assert_eq!([3, 4].map(is_unhooked), [false, true]);
        assert_eq!(json["functions"][1]["server_moves_ratio"], 0.5);
    }

    #[test]
    fn trials_are_reported_with_what_they_have_shown() {
        let tried = |mechanism, times, gain: Option<(f64, f64)>, is_chosen| {
            let gain = gain.map(|(mean, open)| Gain { mean, open });
            let ruled_out = (times == 0).then_some(RuledOut::Busy);
            let in_force = Nanos::from_ms(100 * times);
            Tried { mechanism, times, in_force, gain, is_chosen, ruled_out }
        };
        let mut account = of(vec![function("f", 7, Verdict::Move, None)]);
        account.tried = vec![
            tried(Switched::Nothing, 12, None, false),
            tried(Switched::Delegate, 3, Some((-0.125, 0.01)), false),
            tried(Switched::Migrate, 9, Some((0.0825, 0.004)), true),
            tried(Switched::DelegateAndMigrate, 0, None, false),
        ];
        let text = told(&account);
        assert!(text.contains("none                     12 times, 1.2 s\n"), "{text}");
        assert!(
            text.contains("delegate                  3 times, 0.3 s, gain -12.5 % within 1.0\n")
        );
        let chosen = "9 times, 0.9 s, gain +8.2 % within 0.4; in force at the end\n";
        assert!(text.contains(chosen), "{text}");
        let ruled_out = "delegate and migrate      0 times, 0.0 s; not tried at the end: the";
        assert!(text.contains(ruled_out), "{text}");
        assert!(text.contains("  moved while that was in force:\n"), "{text}");
        let json = serde_json::to_value(Document::new(&account)).unwrap();
        assert_eq!(
            [0, 3].map(|one| json["tried"][one]["ruled_out"].as_str()),
            [None, Some("busy")]
        );
        assert_eq!(json["tried"][0]["gain"], serde_json::Value::Null);
        assert_eq!(json["tried"][1]["gain"], -0.125);
        assert_eq!(
            (&json["tried"][2]["is_chosen"], &json["tried"][2]["in_force_s"]),
            (&true.into(), &0.9.into())
        );
    }

    #[test]
    fn a_long_list_is_cut_and_the_rest_summed_up() {
        let functions = (0..15).map(|_| function("f", 2, Verdict::Unknown, None)).collect();
        let text = told(&of(functions));
        let rest = text.lines().last().unwrap().replace('\u{a0}', " ");
        assert!(rest.contains("5 others") && rest.ends_with("10 calls"), "{text}");
        assert_eq!(
            told(&Account::nothing(How { migrates: true, ..How::default() })),
            "Migrate: 0 of 0 calls were moved.\n"
        );
    }
}
