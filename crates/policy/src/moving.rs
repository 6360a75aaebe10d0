//! Which functions' calls to move to another core, in programs that nobody changed.
//!
//! A call is moved with its thread, or, of a leaf function, by itself; the two have their own
//! prices. A moved call costs its thread a round trip, and gives back what the call costs the code
//! after it. So a call that is shorter than the round trip is left alone, whatever it costs: its
//! thread would travel for longer than it works. And one that is known to cost the code after it
//! less than that loses as well.
//!
//! Programs change their habits, and calls are timed only where they are. So calls that are moved
//! are looked at anew now and then, for which they stay for a short while.

/// So many calls have to be timed before it is decided.
const ENOUGH: u64 = 32;

/// After so many steps, calls that are moved stay until it is decided anew.
const STEPS_MOVED: u32 = 50;

/// What was seen of a function's calls where they are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Calls {
    /// How many were timed.
    pub timed: u64,
    /// How long one takes (ns): the median.
    pub lasted_ns: Option<f64>,
    /// How many were timed that were moved.
    pub moved: u64,
    /// How long one takes that is moved (ns), the way and what the data need to follow it included;
    /// the median, if any was timed.
    pub moved_ns: Option<f64>,
    /// What one costs the code after it (ns), if that is known and to count.
    pub costs_ns: Option<f64>,
}

/// What becomes of a function's calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// Too few were timed: they stay for the time being.
    #[default]
    Unknown,
    /// They are moved.
    Move,
    /// They stay, as they are over before they would have travelled.
    TooShort,
    /// They stay, as moving them takes more than they cost the code after them.
    CostsLess,
}

impl Verdict {
    /// The verdict on calls, where moving one there and back takes so long (ns).
    #[must_use]
    pub fn new(calls: &Calls, round_trip_ns: f64) -> Self {
        match *calls {
            Calls { timed, lasted_ns: Some(lasted), moved_ns, costs_ns, .. } if timed >= ENOUGH => {
                let price = moved_ns.map_or(round_trip_ns, |moved| moved - lasted);
                if lasted.total_cmp(&round_trip_ns).is_lt() {
                    Self::TooShort
                } else if costs_ns.is_some_and(|costs| costs < price) {
                    Self::CostsLess
                } else {
                    Self::Move
                }
            }
            _ => Self::Unknown,
        }
    }
}

/// What a policy server says of a function's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// None is asked, as whoever started the program wants its calls moved: what is seen of them
    /// decides alone.
    Unasked,
    /// One is to be asked, and none was there when the program began: only calls that are known to
    /// cost more than moving takes are moved.
    Missing,
    /// They are to stay; so they do while a server that was there is gone.
    Stay,
    /// They are to be moved, if nothing that is seen of them speaks against it.
    Move,
}

/// The decision for one function, step by step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Decision {
    /// The last verdict that was not [`Verdict::Unknown`], if there was one.
    verdict: Verdict,
    /// What it was decided by.
    seen: Calls,
    /// For how many more steps calls are moved.
    steps_left: u32,
}

impl Decision {
    /// A step: `calls` are those since the last verdict, where they stayed. Whether this is a new
    /// verdict.
    pub fn step(&mut self, calls: &Calls, round_trip_ns: f64) -> bool {
        if self.steps_left > 1 {
            self.steps_left -= 1;
            // What moving takes here was not known when it began.
            let moved = Calls { moved: calls.moved, moved_ns: calls.moved_ns, ..self.seen };
            let is_refuted =
                moved.moved >= ENOUGH && Verdict::new(&moved, round_trip_ns) == Verdict::CostsLess;
            if is_refuted {
                (self.verdict, self.seen, self.steps_left) = (Verdict::CostsLess, moved, 0);
            }
            return is_refuted;
        }
        self.steps_left = 0;
        let verdict = Verdict::new(calls, round_trip_ns);
        if verdict == Verdict::Unknown {
            return false;
        }
        (self.verdict, self.seen) = (verdict, *calls);
        if verdict == Verdict::Move {
            self.steps_left = STEPS_MOVED;
        }
        true
    }

    /// Whether calls are moved now: both what was seen of them and the server have to be for it.
    #[must_use]
    pub const fn moves(&self, word: Word) -> bool {
        let is_wanted = match word {
            Word::Unasked | Word::Move => true,
            Word::Missing => self.seen.costs_ns.is_some(),
            Word::Stay => false,
        };
        self.steps_left > 0 && is_wanted
    }

    /// What it was decided by.
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
        assert_eq!(Verdict::new(&seen(900.0, Some(1e6)), 1000.0), Verdict::TooShort);
        assert_eq!(Verdict::new(&seen(5000.0, Some(800.0)), 1000.0), Verdict::CostsLess);
        assert_eq!(Verdict::new(&seen(5000.0, Some(2750.0)), 1000.0), Verdict::Move);
        // The data have to follow.
        let moved = |moved| Calls { moved_ns: Some(moved), ..seen(5000.0, Some(2750.0)) };
        assert_eq!(Verdict::new(&moved(15_000.0), 1000.0), Verdict::CostsLess);
        assert_eq!(Verdict::new(&moved(7000.0), 1000.0), Verdict::Move);
    }

    #[test]
    fn nothing_is_decided_by_few_calls() {
        assert_eq!(Verdict::new(&Calls::default(), 1000.0), Verdict::Unknown);
        let few = Calls { timed: ENOUGH - 1, ..seen(1e6, None) };
        assert_eq!(Verdict::new(&few, 1000.0), Verdict::Unknown);
        assert_eq!(Verdict::new(&Calls { timed: ENOUGH, ..few }, 1000.0), Verdict::Move);
    }

    #[test]
    fn whatever_habits_change_to_is_followed_within_bounds() {
        let mut decision = Decision::default();
        for (lasted, is_moved) in [(100.0, false), (9000.0, true), (100.0, false), (9000.0, true)] {
            let mut step = || {
                // While they are moved none are timed.
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
            [Word::Unasked, Word::Missing, Word::Stay, Word::Move].map(|word| decision.moves(word))
        };
        assert_eq!(moved(decision), [false; 4]);
        decision.step(&seen(900.0, None), 1000.0);
        assert_eq!(moved(decision), [false; 4]);
        decision.step(&seen(5000.0, None), 1000.0);
        assert_eq!(moved(decision), [true, false, false, true]);
        let mut priced = Decision::default();
        priced.step(&seen(5000.0, Some(2750.0)), 1000.0);
        assert_eq!(moved(priced), [true, true, false, true]);
    }

    #[test]
    fn calls_come_back_as_soon_as_it_is_seen_that_moving_takes_more_than_they_cost() {
        let mut decision = Decision::default();
        assert!(decision.step(&seen(5000.0, Some(2750.0)), 1000.0));
        let moved = |moved, ns| Calls { moved, moved_ns: Some(ns), ..Calls::default() };
        // It takes less than they cost, or too few were timed.
        for calls in [moved(ENOUGH, 7000.0), moved(ENOUGH - 1, 9000.0)] {
            assert!(!decision.step(&calls, 1000.0) && decision.moves(Word::Missing), "{calls:?}");
        }
        assert!(decision.step(&moved(ENOUGH, 9000.0), 1000.0));
        assert_eq!(
            (decision.verdict(), decision.moves(Word::Missing)),
            (Verdict::CostsLess, false)
        );
        // Where nobody knows what they cost, they are moved as they were told to.
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
}
