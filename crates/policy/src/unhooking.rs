//! Decides which hooks are taken out of a running program: those that only cost.
//!
//! A hook costs each call a little, and helps only if calls move. So the hooks go of functions that
//! are called often, and whose calls have been too short to move for a while. Code is given back by
//! the page, so all hooks in a page go, or none: functions that are hardly called go with their
//! neighbours, and those that may move, or are not yet known, keep them. What is taken out stays
//! out until the program ends, although its calls might become longer.

use std::collections::BTreeMap;

use dimmer_processor::units::Nanos;

use crate::moving::Verdict;

/// For how long the calls of a page's functions must have been too short to move, if they are not
/// called very often.
const LONG_ENOUGH: Nanos = Nanos::from_ms(2000);

/// The least that is long enough, however often they are called. A guess.
const LEAST: Nanos = Nanos::from_ms(250);

/// Calls a second from which a hook costs: these take a millionth of a core, and a program has a
/// few thousand hooks. An estimate.
const OFTEN: f64 = 1000.0;

/// Calls a second from which calls are known after [`LONG_ENOUGH`], unless others are timed in
/// their place: those of the function in which they go on by a jump. Of more calls a second, as
/// many are enough as these are in that time.
const VERY_OFTEN: f64 = 100_000.0;

/// Calls a second up to which a function is called so rarely that it cannot gain much, however long
/// its calls are: a hundredth of a core by calls of a millisecond. A guess.
const RARELY: f64 = 10.0;

/// What a hook takes of a call (ns): hooks of 6.4 million calls a second took 1.5 % of a CPU in a
/// profile of an encoder (Granite Rapids).
const HOOK_NS: f64 = 2.3;

/// The part of all calls that may lose their hooks while work is counted in calls. A guess.
const FEW: f64 = 0.05;

/// A hook, and what was seen of its function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hook<P> {
    /// The page of code that it stands in.
    pub page: P,
    /// What its function's calls are to do.
    pub verdict: Verdict,
    /// For how long that was the verdict.
    pub for_ns: Nanos,
    /// Calls a second, lately.
    pub calls_per_s: f64,
}

/// The pages whose hooks are taken out.
pub fn pages<P: Copy + Ord>(hooks: &[Hook<P>]) -> Vec<P> {
    let mut pages: BTreeMap<P, Vec<&Hook<P>>> = BTreeMap::new();
    for hook in hooks {
        pages.entry(hook.page).or_default().push(hook);
    }
    pages.into_iter().filter(|(_, hooks)| go(hooks)).map(|(page, _)| page).collect()
}

/// Whether these hooks, all of a page, are taken out.
fn go<P>(hooks: &[&Hook<P>]) -> bool {
    let calls_per_s = hooks.iter().map(|hook| hook.calls_per_s).sum();
    let long_enough = long_enough_for(calls_per_s);
    let can_go = |hook: &&Hook<P>| match hook.verdict {
        Verdict::TooShort => hook.for_ns >= long_enough,
        Verdict::Unknown if hook.calls_per_s < RARELY => true,
        Verdict::Unknown if hook.calls_per_s < VERY_OFTEN => false,
        Verdict::Unknown => hook.for_ns >= long_enough_for(hook.calls_per_s),
        Verdict::CostsLess | Verdict::Move => false,
    };
    let costs = |hook: &&Hook<P>| match hook.verdict {
        Verdict::TooShort => hook.calls_per_s >= OFTEN,
        Verdict::Unknown => hook.calls_per_s >= VERY_OFTEN,
        Verdict::CostsLess | Verdict::Move => false,
    };
    hooks.iter().all(can_go) && hooks.iter().any(costs)
}

/// For how long the verdict must have been the same on what is called this often.
fn long_enough_for(calls_per_s: f64) -> Nanos {
    let part = (VERY_OFTEN / calls_per_s).min(1.0);
    LEAST.max(Nanos::rounded(LONG_ENOUGH.as_f64() * part))
}

/// The hooks that are about to be taken out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Going {
    /// Calls of their functions a second.
    pub calls_per_s: f64,
    /// Calls a second of all hooked functions.
    pub all_per_s: f64,
}

impl Going {
    /// Whether they count a good part of all calls. The number of calls is no measure of the
    /// program's work before they are out.
    #[must_use]
    pub fn are_many(&self) -> bool {
        self.calls_per_s > FEW * self.all_per_s
    }

    /// The part of a CPU's time that they take.
    #[must_use]
    pub fn takes(&self) -> f64 {
        self.calls_per_s * HOOK_NS * 1e-9
    }
}

/// The hooks that are about to be taken out.
pub fn about_to_go<P: Copy + Ord>(hooks: &[Hook<P>]) -> Going {
    let in_time: Vec<Hook<P>> =
        hooks.iter().map(|hook| Hook { for_ns: LONG_ENOUGH, ..*hook }).collect();
    let pages = pages(&in_time);
    let going = hooks.iter().filter(|hook| pages.binary_search(&hook.page).is_ok());
    Going {
        calls_per_s: going.map(|hook| hook.calls_per_s).sum(),
        all_per_s: hooks.iter().map(|hook| hook.calls_per_s).sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(page: u8, verdict: Verdict, calls_per_s: f64) -> Hook<u8> {
        Hook { page, verdict, for_ns: LONG_ENOUGH, calls_per_s }
    }

    #[test]
    fn hooks_go_that_cost_and_cannot_help() {
        let often = hook(1, Verdict::TooShort, 1e6);
        assert_eq!(pages(&[often]), [1]);
        // Not if they were judged a moment ago, nor if they cost next to nothing.
        assert!(pages(&[Hook { for_ns: Nanos::from_ms(200), ..often }]).is_empty());
        assert!(pages(&[Hook { calls_per_s: 999.0, ..often }]).is_empty());
        assert!(pages::<u8>(&[]).is_empty());
    }

    #[test]
    fn the_more_often_functions_are_called_the_sooner_their_hooks_go() {
        let after = |ms, calls_per_s| Hook {
            for_ns: Nanos::from_ms(ms),
            ..hook(1, Verdict::TooShort, calls_per_s)
        };
        for (ms, calls_per_s) in [(2000, 1e5), (1000, 2e5), (250, 8e5), (250, 1e9)] {
            assert_eq!(pages(&[after(ms, calls_per_s)]), [1], "{calls_per_s}");
            assert!(pages(&[after(ms - 1, calls_per_s)]).is_empty(), "{calls_per_s}");
        }
        // A page's hooks go together, so their calls count together.
        assert_eq!(pages(&[after(1000, 1.9e5), after(1000, 1e4)]), [1]);
        // The calls of one function are known by their own number.
        let unknown =
            |ms, calls_per_s| Hook { verdict: Verdict::Unknown, ..after(ms, calls_per_s) };
        assert_eq!(pages(&[unknown(1000, 2e5), after(250, 1e6)]), [1]);
        assert!(pages(&[unknown(999, 2e5), after(250, 1e6)]).is_empty());
    }

    #[test]
    fn calls_are_no_measure_while_many_of_them_are_about_to_lose_their_hooks() {
        let soon =
            |calls_per_s| Hook { for_ns: Nanos::ZERO, ..hook(1, Verdict::TooShort, calls_per_s) };
        let stays = hook(2, Verdict::Move, 1e6);
        let going = about_to_go(&[soon(1e5), stays]);
        assert_eq!(going, Going { calls_per_s: 1e5, all_per_s: 1.1e6 });
        assert!(going.are_many());
        assert!((going.takes() / 2.3e-4 - 1.0).abs() < 1e-9);
        assert!(!about_to_go(&[soon(1e4), stays]).are_many(), "few of all");
        let they_stay = [soon(1e5), stays, hook(1, Verdict::Move, 1.0)];
        assert!(!about_to_go(&they_stay).are_many());
        assert!(!about_to_go::<u8>(&[]).are_many());
    }

    #[test]
    fn a_page_keeps_its_hooks_if_one_may_help() {
        let often = hook(1, Verdict::TooShort, 1e6);
        for (verdict, goes) in [
            (Verdict::Unknown, true),
            (Verdict::TooShort, true),
            (Verdict::CostsLess, false),
            (Verdict::Move, false),
        ] {
            let other = |page| hook(page, verdict, 9.0);
            assert_eq!(pages(&[often, other(1)]) == [1], goes, "{verdict:?}");
            assert_eq!(pages(&[often, other(2)]), [1], "another page has no part in it");
        }
        // What is called often will soon be known, or never.
        assert!(pages(&[often, hook(1, Verdict::Unknown, 1e4)]).is_empty());
        assert!(pages(&[often, hook(1, Verdict::Unknown, 100.0)]).is_empty(), "perhaps long");
        let unknown = hook(1, Verdict::Unknown, 1e5);
        assert_eq!(pages(&[unknown]), [1]);
        assert!(pages(&[Hook { for_ns: Nanos::ZERO, ..unknown }]).is_empty());
    }
}
