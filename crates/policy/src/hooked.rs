//! Which functions of a running program stay hooked, so that their calls can move.
//!
//! A hook costs each call some nanoseconds, whether or not the call moves. It can only bring
//! something if calls are longer than the way to another core and back
//! ([`crate::moving::Verdict`]). So hooks of functions are taken out whose calls are nearly all
//! shorter, and of those whose calls the hooks cannot time, which are never moved either. As
//! programs change their habits, hooks that cost next to nothing stay: those of the functions with
//! the fewest calls.

use crate::ways::WORTHWHILE;

/// Timed calls that a decision needs, as in [`crate::moving`].
const ENOUGH: u64 = 32;

/// The part of a function's timed calls that must be shorter than a move.
pub const NEARLY_ALL: f64 = 0.9;

/// A function's calls cannot be timed if this many times [`ENOUGH`] were due, and fewer than
/// [`ENOUGH`] were timed: by chance alone, six standard deviations less.
const DUE: u64 = 3;

/// What the hooks of all functions that are too short may take, in parts of the time: a tenth of
/// what is worthwhile.
const NEGLIGIBLE: f64 = WORTHWHILE / 10.0;

/// The number of runs that rely on what an earlier one has found. The next one hooks all functions
/// again, so that a program that has changed its habits is found out: at most a sixteenth of what
/// that costs is paid.
pub const RELIED_ON: u32 = 16;

/// What was seen of a hooked function.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Hooked {
    /// The number of its calls.
    pub calls: u64,
    /// The number of those that were timed in place.
    pub timed: u64,
    /// The time that [`NEARLY_ALL`] of these did not exceed (ns), if any was timed.
    pub nearly_all_ns: Option<f64>,
    /// What moving one there and back takes (ns).
    pub round_trip_ns: f64,
    /// The number of calls in the time for which the hooks' cost is summed up.
    pub recent: u64,
}

/// Why a hook brings nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Useless {
    /// Nearly all calls are over before a move would be.
    TooShort,
    /// Calls cannot be timed, such as those that go on in another function by a jump.
    Untimed,
}

impl Useless {
    /// The reason why a function's hook brings nothing; `None` if it may bring something.
    ///
    /// * `due_ratio`: the part of all functions' calls that were timed.
    fn new(seen: &Hooked, due_ratio: f64) -> Option<Self> {
        match seen.nearly_all_ns {
            Some(ns) if seen.timed >= ENOUGH => (ns < seen.round_trip_ns).then_some(Self::TooShort),
            _ => {
                let due = seen.calls as f64 * due_ratio;
                (due >= (DUE * ENOUGH) as f64 && seen.timed < ENOUGH).then_some(Self::Untimed)
            }
        }
    }
}

/// The hooks to take out, and why; those that stay are `None`.
///
/// * `hook_ns`: what a hook adds to a call (ns).
/// * `over_ns`: the time in which the [`Hooked::recent`] calls were made (ns).
///
/// # Cost
/// As for sorting the functions; allocates.
#[must_use]
pub fn take_out(all: &[Hooked], hook_ns: f64, over_ns: f64) -> Vec<Option<Useless>> {
    let sum = |of: fn(&Hooked) -> u64| all.iter().map(|seen| of(seen) as f64).sum::<f64>();
    let due_ratio = sum(|seen| seen.timed) / sum(|seen| seen.calls).max(1.0);
    let mut found: Vec<_> = all.iter().map(|seen| Useless::new(seen, due_ratio)).collect();
    let mut useless: Vec<usize> = (0..all.len()).filter(|at| found[*at].is_some()).collect();
    useless.sort_unstable_by_key(|at| all[*at].recent);
    // Those with the fewest calls stay, as long as all of these together cost next to nothing.
    let mut costs_ns = 0.0;
    for at in useless {
        costs_ns += all[at].recent as f64 * hook_ns;
        if costs_ns <= NEGLIGIBLE * over_ns {
            found[at] = None;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(recent: u64, timed: u64, nearly_all_ns: f64) -> Hooked {
        Hooked {
            calls: 10 * recent,
            timed,
            nearly_all_ns: (timed > 0).then_some(nearly_all_ns),
            round_trip_ns: 1000.0,
            recent,
        }
    }

    /// With hooks of 5 ns, over 100 ms: 20,000 calls are a thousandth of that.
    #[track_caller]
    fn check(all: &[Hooked], expected: &[Option<Useless>]) {
        assert_eq!(take_out(all, 5.0, 1e8), expected);
    }

    #[test]
    fn hooks_stay_whose_calls_may_be_long_enough_or_are_not_known() {
        let short = Some(Useless::TooShort);
        check(&[seen(1_000_000, 400, 999.0)], &[short]);
        check(&[seen(1_000_000, 400, 1000.0)], &[None]);
        check(&[seen(1_000_000, ENOUGH, 10.0)], &[short]);
        check(&[seen(1_000_000, ENOUGH - 1, 10.0)], &[None]);
        check(&[seen(1_000_000, 0, 0.0)], &[None]);
        check(&[], &[]);
    }

    #[test]
    fn hooks_that_cost_next_to_nothing_stay() {
        let short = Some(Useless::TooShort);
        check(&[seen(20_000, 400, 10.0)], &[None]);
        check(&[seen(20_001, 400, 10.0)], &[short]);
        // Not those that do so only one by one.
        let all = [9000, 60_000, 8000, 9500].map(|recent| seen(recent, 400, 10.0));
        check(&all, &[None, short, None, short]);
        // Others may cost more.
        check(&[seen(1_000_000, 400, 5000.0), seen(8000, 400, 10.0)], &[None, None]);
        // Without time there is no cost.
        assert_eq!(take_out(&[Hooked::default()], 5.0, 0.0), [None]);
    }

    #[test]
    fn hooks_are_taken_out_whose_calls_are_never_timed() {
        // One call in a thousand is timed, but for those of the second.
        let timed = seen(1_000_000, 10_000, 10.0);
        let untimed = |recent| Hooked { nearly_all_ns: None, timed: 0, ..seen(recent, 0, 0.0) };
        let (short, never) = (Some(Useless::TooShort), Some(Useless::Untimed));
        check(&[timed, untimed(1_000_000)], &[short, never]);
        // Ten of its calls would have been timed.
        check(&[timed, untimed(1000)], &[short, None]);
    }
}
