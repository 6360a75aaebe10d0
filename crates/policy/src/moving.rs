//! Decides which functions' calls move to another core, in an unmodified program.
//!
//! A call moves with its thread; a call of a leaf function can move by itself. The two have
//! different prices. A moved call costs its thread a round trip, and gives back what the call costs
//! the code after it. A call is left alone if it is known to cost the code after it less than the
//! round trip. One that is shorter than the round trip is left alone unless it is known to cost
//! more than twice that: on a Xeon with AMX (docs/RESULTS.md), a sieve gains whose bursts of 0.1 to
//! 0.5 us move, at some gaps.
//!
//! Programs change their habits, and calls are timed only at home. So moved calls stay at home for
//! a short while now and then, to be timed again.

use dimmer_processor::units::Nanos;

/// Number of timed calls that a decision needs.
pub const ENOUGH: u64 = 32;

/// Number of timed calls that suffice if all were shorter than the round trip: if half of a
/// function's calls were longer, that would be so by chance once in 256 times.
const ENOUGH_ALIKE: u64 = 8;

/// How many times the price a call that is shorter than the round trip must cost to be moved: the
/// model alone says so, and what it takes in place hardly makes up for an error. A guess.
const SURELY: f64 = 2.0;

/// Number of steps for which calls are moved. Then they stay until the next decision.
const STEPS_MOVED: u32 = 50;

/// Number of steps for which calls stay because moved ones took too long. Then that is forgotten,
/// until as many as a decision needs were moved again: it may have been a busy moment. A guess: a
/// minute at least.
const STEPS_PRICED: u32 = 600;

/// How long nothing has changed in a program that is followed loosely. A guess: most of what can be
/// known of its calls is known by then.
const SETTLED: Nanos = Nanos::from_ms(2000);

/// Whether a program is followed loosely: looked at less often, and with fewer calls timed. What
/// moves has not changed for `unchanged`, and no hooks are about to be taken out that count a good
/// part of its calls (`is_counting`, [`crate::unhooking::Going::are_many`]).
#[must_use]
pub fn is_settled(unchanged: Nanos, is_counting: bool) -> bool {
    is_counting && unchanged >= SETTLED
}

/// What was seen of a function's calls.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Calls {
    /// Number of calls that were timed at home.
    pub timed: u64,
    /// How long one call takes at home (ns): the median.
    pub lasted_ns: Option<f64>,
    /// How long the longest of them took (ns).
    pub longest_ns: Option<f64>,
    /// Number of timed calls that were moved, since there were last enough for a price.
    pub moved: u64,
    /// How long one moved call takes (ns), including the way and the time that its data need to
    /// follow: the median, if any was timed.
    pub moved_ns: Option<f64>,
    /// What one call costs the code after it (ns), if that is known and is to count.
    pub costs_ns: Option<f64>,
}

/// What happens to a function's calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// Too few calls were timed: they stay for the time being.
    #[default]
    Unknown,
    /// The calls are moved.
    Move,
    /// The calls stay: one takes less time than the round trip, and is not known to cost much more.
    TooShort,
    /// The calls stay: moving them takes more than they cost the code after them.
    CostsLess,
}

impl Verdict {
    /// The verdict on calls, if moving one there and back takes `round_trip_ns`.
    #[must_use]
    pub fn new(calls: &Calls, round_trip_ns: f64) -> Self {
        let Calls { timed, lasted_ns: Some(lasted), longest_ns, moved_ns, costs_ns, .. } = *calls
        else {
            return Self::Unknown;
        };
        let are_alike = longest_ns.is_some_and(|longest| longest < round_trip_ns);
        if timed < if are_alike { ENOUGH_ALIKE } else { ENOUGH } {
            return Self::Unknown;
        }
        let price = moved_ns.map_or(round_trip_ns, |moved| moved - lasted);
        let is_short = lasted < round_trip_ns;
        match costs_ns {
            // So few calls do not show what they cost.
            Some(costs) if is_short && costs >= SURELY * round_trip_ns.min(price) => {
                if timed < ENOUGH {
                    Self::Unknown
                } else if costs >= SURELY * price {
                    Self::Move
                } else {
                    // What it took to move them may change.
                    Self::CostsLess
                }
            }
            _ if is_short => Self::TooShort,
            Some(costs) if costs < price => Self::CostsLess,
            Some(_) | None => Self::Move,
        }
    }
}

/// What a policy server wants for a function's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// No server is asked, because the program was started with its calls to be moved: what is seen
    /// of them decides alone.
    Unasked,
    /// The calls are to stay. They also stay while a server that was there is gone.
    Stay,
    /// The calls are to be moved, unless what is seen of them speaks against it.
    Move,
}

/// The decision for one function, step by step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Decision {
    /// The last verdict that was not [`Verdict::Unknown`], if there was one.
    verdict: Verdict,
    /// The calls that led to that verdict.
    seen: Calls,
    /// Number of steps for which calls are still moved.
    steps_left: u32,
    /// What moved calls have last been seen to take (ns).
    price_ns: Option<f64>,
    /// Number of steps since then for which calls have stayed because that is too much.
    stayed: u32,
}

impl Decision {
    /// Makes one step. `calls` is what was seen since the last verdict, and of moved calls, since
    /// the last verdict with [`ENOUGH`] of them. Returns whether there is a new verdict.
    pub fn step(&mut self, calls: &Calls, round_trip_ns: f64) -> bool {
        let price_ns = calls.moved_ns.filter(|_| calls.moved >= ENOUGH);
        if price_ns.is_some() {
            (self.price_ns, self.stayed) = (price_ns, 0);
        }
        if self.steps_left > 1 {
            self.steps_left -= 1;
            // The price of moving these calls was not known when they were first moved.
            let moved = Calls { moved: calls.moved, moved_ns: price_ns, ..self.seen };
            let is_refuted =
                price_ns.is_some() && Verdict::new(&moved, round_trip_ns) != Verdict::Move;
            if is_refuted {
                (self.verdict, self.seen, self.steps_left) = (Verdict::CostsLess, moved, 0);
            }
            return is_refuted;
        }
        self.steps_left = 0;
        if self.verdict == Verdict::CostsLess {
            self.stayed = self.stayed.saturating_add(1);
        }
        let is_forgotten = self.stayed >= STEPS_PRICED;
        let calls = Calls { moved_ns: self.price_ns.filter(|_| !is_forgotten), ..*calls };
        let verdict = Verdict::new(&calls, round_trip_ns);
        if verdict == Verdict::Unknown {
            return false;
        }
        (self.verdict, self.seen) = (verdict, calls);
        if verdict == Verdict::Move {
            self.steps_left = STEPS_MOVED;
        }
        true
    }

    /// Whether calls are moved now: both the verdict and the server have to favor it.
    #[must_use]
    pub const fn moves(&self, word: Word) -> bool {
        let is_wanted = match word {
            Word::Unasked | Word::Move => true,
            Word::Stay => false,
        };
        self.steps_left > 0 && is_wanted
    }

    /// The last verdict that was not [`Verdict::Unknown`], if there was one.
    #[must_use]
    pub const fn verdict(&self) -> Verdict {
        self.verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(lasted: f64, costs_ns: Option<f64>) -> Calls {
        Calls { timed: 1000, lasted_ns: Some(lasted), costs_ns, ..Calls::default() }
    }

    #[test]
    fn calls_are_moved_that_are_longer_than_the_way_and_cost_more_than_it() {
        assert_eq!(Verdict::new(&seen(5000.0, None), 1000.0), Verdict::Move);
        assert_eq!(Verdict::new(&seen(900.0, None), 1000.0), Verdict::TooShort);
        assert_eq!(Verdict::new(&seen(900.0, Some(800.0)), 1000.0), Verdict::TooShort);
        assert_eq!(Verdict::new(&seen(900.0, Some(1900.0)), 1000.0), Verdict::TooShort);
        assert_eq!(Verdict::new(&seen(900.0, Some(2100.0)), 1000.0), Verdict::Move);
        assert_eq!(Verdict::new(&seen(5000.0, Some(800.0)), 1000.0), Verdict::CostsLess);
        assert_eq!(Verdict::new(&seen(5000.0, Some(2750.0)), 1000.0), Verdict::Move);
        // The time of a moved call includes the way of its data.
        let moved = |moved| Calls { moved_ns: Some(moved), ..seen(5000.0, Some(2750.0)) };
        assert_eq!(Verdict::new(&moved(15_000.0), 1000.0), Verdict::CostsLess);
        assert_eq!(Verdict::new(&moved(7000.0), 1000.0), Verdict::Move);
    }

    #[test]
    fn a_program_is_followed_loosely_once_nothing_changes() {
        assert!(is_settled(Nanos::from_ms(2000), true));
        assert!(!is_settled(Nanos::from_ms(1999), true));
        assert!(!is_settled(Nanos::from_ms(60_000), false), "hooks are about to go");
    }

    #[test]
    fn nothing_is_decided_by_few_calls() {
        assert_eq!(Verdict::new(&Calls::default(), 1000.0), Verdict::Unknown);
        let few = Calls { timed: ENOUGH - 1, ..seen(1e6, None) };
        assert_eq!(Verdict::new(&few, 1000.0), Verdict::Unknown);
        assert_eq!(Verdict::new(&Calls { timed: ENOUGH, ..few }, 1000.0), Verdict::Move);
        let alike = Calls { timed: 8, longest_ns: Some(999.0), ..seen(100.0, None) };
        assert_eq!(Verdict::new(&alike, 1000.0), Verdict::TooShort, "all of eight");
        for other in [
            Calls { timed: 7, ..alike },
            Calls { longest_ns: Some(1000.0), ..alike },
            Calls { costs_ns: Some(5000.0), ..alike },
        ] {
            assert_eq!(Verdict::new(&other, 1000.0), Verdict::Unknown, "{other:?}");
        }
    }

    #[test]
    fn whatever_habits_change_to_is_followed_within_bounds() {
        let mut decision = Decision::default();
        for (lasted, is_moved) in [(100.0, false), (9000.0, true), (100.0, false), (9000.0, true)] {
            let mut step = || {
                // While calls are moved, none are timed at home.
                let calls = if decision.moves(Word::Unasked) {
                    Calls::default()
                } else {
                    seen(lasted, None)
                };
                decision.step(&calls, 1000.0);
                decision.moves(Word::Unasked)
            };
            for _ in 0..=STEPS_MOVED {
                step();
            }
            let moved = (0..STEPS_MOVED).filter(|_| step()).count();
            assert!(if is_moved { moved >= 48 } else { moved == 0 }, "{lasted} {moved}");
        }
    }

    #[test]
    fn calls_are_moved_that_neither_their_times_nor_the_server_keep() {
        let mut decision = Decision::default();
        let moved = |decision: Decision| {
            [Word::Unasked, Word::Stay, Word::Move].map(|word| decision.moves(word))
        };
        assert_eq!(moved(decision), [false; 3]);
        decision.step(&seen(900.0, None), 1000.0);
        assert_eq!(moved(decision), [false; 3]);
        decision.step(&seen(5000.0, None), 1000.0);
        assert_eq!(moved(decision), [true, false, true]);
    }

    #[test]
    fn calls_come_back_as_soon_as_it_is_seen_that_moving_takes_more_than_they_cost() {
        let mut decision = Decision::default();
        assert!(decision.step(&seen(5000.0, Some(2750.0)), 1000.0));
        let moved = |moved, ns| Calls { moved, moved_ns: Some(ns), ..Calls::default() };
        // Moving takes less than the calls cost, or too few calls were timed.
        for calls in [moved(ENOUGH, 7000.0), moved(ENOUGH - 1, 9000.0)] {
            assert!(!decision.step(&calls, 1000.0) && decision.moves(Word::Unasked), "{calls:?}");
        }
        assert!(decision.step(&moved(ENOUGH, 9000.0), 1000.0));
        assert_eq!(
            (decision.verdict(), decision.moves(Word::Unasked)),
            (Verdict::CostsLess, false)
        );
        // If the cost of calls is not known, they are moved, as was asked.
        let mut named = Decision::default();
        named.step(&seen(5000.0, None), 1000.0);
        assert!(!named.step(&moved(1000, 1e6), 1000.0) && named.moves(Word::Unasked));
    }

    #[test]
    fn what_is_moved_is_looked_at_anew_now_and_then() {
        let mut decision = Decision::default();
        let mut moved = 0;
        const STEPS: u32 = 1000;
        for _ in 0..STEPS {
            let calls =
                if decision.moves(Word::Unasked) { Calls::default() } else { seen(5000.0, None) };
            decision.step(&calls, 1000.0);
            moved += u32::from(decision.moves(Word::Unasked));
        }
        assert!((STEPS - STEPS / STEPS_MOVED - 1..STEPS).contains(&moved), "{moved}");
        assert_eq!(decision.verdict(), Verdict::Move);
    }

    #[test]
    fn what_moved_calls_took_is_forgotten_after_a_while() {
        for lasted in [5000.0, 500.0] {
            let mut decision = Decision::default();
            let home = seen(lasted, Some(8000.0));
            let moved = |took| Calls { moved: ENOUGH, moved_ns: Some(took), ..home };
            assert!(decision.step(&home, 1000.0));
            for _ in 0..2 {
                assert_eq!(decision.verdict(), Verdict::Move);
                assert!(decision.step(&moved(50_000.0), 1000.0));
                for _ in 1..STEPS_PRICED {
                    decision.step(&home, 1000.0);
                    assert_eq!(decision.verdict(), Verdict::CostsLess, "{lasted}");
                }
                // Until enough have moved again.
                let few = Calls { moved: ENOUGH - 1, ..moved(50_000.0) };
                for _ in 0..2 * STEPS_PRICED {
                    decision.step(&few, 1000.0);
                    assert_eq!(decision.verdict(), Verdict::Move, "{lasted}");
                }
            }
            // Now they take less, and stay for a while without being moved.
            for calls in [moved(lasted + 1000.0), home] {
                for _ in 0..2 * STEPS_PRICED {
                    decision.step(&calls, 1000.0);
                    assert_eq!(decision.verdict(), Verdict::Move, "{lasted}");
                }
            }
        }
    }
}
