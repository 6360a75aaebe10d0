//! How many steps a thread takes at most in a time.

/// A part of a thread's steps, with the least time that each takes (ps). Where a block's end or a
/// choice is passed, that counts as a step, too: simulating it costs about as much.
#[derive(Clone, Debug)]
pub(super) enum Effort {
    Step { least: f64 },
    Sequence(Vec<Effort>),
    Repeat { least: f64, most: f64, each: Box<Effort> },
    Choice(Vec<Effort>),
}

/// Steps taken, less what is spent for them, at a price.
#[derive(Clone, Copy, Debug)]
struct Surplus {
    /// At most, from the beginning to the end.
    whole: f64,
    /// At most, from the beginning to any step.
    begun: f64,
}

impl Surplus {
    /// One step before this.
    fn after_a_step(self) -> Self {
        Self { whole: 1.0 + self.whole, begun: 1.0 + self.begun.max(0.0) }
    }

    /// This, repeated.
    fn times(self, least: f64, most: f64) -> Self {
        if most == 0.0 {
            return Self { whole: 0.0, begun: 0.0 };
        }
        let whole = self.whole * if self.whole > 0.0 { most } else { least };
        Self { whole, begun: self.whole.max(0.0) * (most - 1.0) + self.begun }
    }
}

impl Effort {
    /// The least time that it takes (ps).
    pub(super) fn least(&self) -> f64 {
        match self {
            Self::Step { least } => *least,
            Self::Sequence(parts) => parts.iter().map(Self::least).sum(),
            Self::Repeat { least, each, .. } => least * each.least(),
            Self::Choice(branches) => branches.iter().map(Self::least).fold(f64::MAX, f64::min),
        }
    }

    /// Steps less their least times at a price (steps/ps).
    fn surplus(&self, price: f64) -> Surplus {
        match self {
            Self::Step { least } => Surplus { whole: 1.0 - price * least, begun: 1.0 },
            Self::Sequence(parts) => {
                let nothing = Surplus { whole: 0.0, begun: 0.0 };
                parts.iter().fold(nothing, |before, part| {
                    let Surplus { whole, begun } = part.surplus(price);
                    let begun = before.begun.max(before.whole + begun);
                    Surplus { whole: before.whole + whole, begun }
                })
            }
            Self::Repeat { least, most, each } => {
                each.surplus(price).after_a_step().times(*least, *most).after_a_step()
            }
            Self::Choice(branches) => {
                let each = branches.iter().map(|branch| branch.surplus(price));
                let most = each.reduce(|one, other| Surplus {
                    whole: one.whole.max(other.whole),
                    begun: one.begun.max(other.begun),
                });
                most.unwrap_or(Surplus { whole: 0.0, begun: 0.0 }).after_a_step()
            }
        }
    }

    /// The maximum number of steps in this number of rounds and in this time (ps).
    ///
    /// At any price of time, no steps exceed what their own time costs by more than the surplus;
    /// so with all the time, their number is at most the surplus plus the price of the time. The
    /// lowest such bound is returned. It is convex in the price, which bisection relies on.
    pub(super) fn most_steps(&self, rounds: f64, time: Option<f64>) -> f64 {
        // Prices (steps/ps) as logarithms: a step in many years, and more steps than a file has
        // in the time of one instruction.
        const PRICES: (f64, f64) = (-50.0, 28.0);
        const PARTS: u32 = 60;
        let bound =
            |price: f64, time: f64| self.surplus(price).times(rounds, rounds).begun + price * time;
        let free = bound(0.0, 0.0);
        let Some(time) = time else { return free };
        let (mut low, mut high) = PRICES;
        let mut least = free;
        for _ in 0..PARTS {
            let (one, other) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
            let (at_one, at_other) = (bound(one.exp(), time), bound(other.exp(), time));
            least = least.min(at_one).min(at_other);
            // Where both are equal, the price is too low to count beside the steps.
            if at_one < at_other {
                high = other;
            } else {
                low = one;
            }
        }
        least
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(least: f64) -> Effort {
        Effort::Step { least }
    }

    fn repeat(least: f64, most: f64, parts: Vec<Effort>) -> Effort {
        Effort::Repeat { least, most, each: Box::new(Effort::Sequence(parts)) }
    }

    #[track_caller]
    fn check(effort: &Effort, rounds: f64, time: Option<f64>, low: f64, high: f64) {
        let found = effort.most_steps(rounds, time);
        assert!((low..=high).contains(&found), "{found}, not {low} to {high}");
    }

    #[test]
    fn without_an_end_all_steps_count() {
        let both = Effort::Sequence(vec![step(10.0), step(0.0)]);
        check(&both, 1e9, None, 2e9, 2e9);
        check(&repeat(0.0, 1e3, vec![repeat(5.0, 1e3, vec![step(1.0)])]), 1.0, None, 2e6, 2.1e6);
    }

    #[test]
    fn time_bounds_what_takes_time() {
        let both = Effort::Sequence(vec![step(10.0), step(0.0)]);
        check(&both, 1e9, Some(1e6), 2e5, 2.01e5);
        check(&both, 10.0, Some(1e6), 20.0, 20.0);
        // A pass is a step, too.
        let thrice =
            repeat(1e9, 1e9, vec![repeat(1e9, 1e9, vec![repeat(1e9, 1e9, vec![step(1e6)])])]);
        check(&thrice, 1.0, Some(1e9), 1e3, 2.1e3);
        check(&thrice, 1.0, Some(1e18), 1e12, 2.1e12);
        // A block may take no time at all, but what stands beside it takes some.
        let varied = vec![repeat(0.0, 1e9, vec![step(100.0)]), step(100.0)];
        check(&Effort::Sequence(varied), 1e9, Some(1e6), 1e4, 3.1e4);
        // What takes no time is done as often as it can be.
        let idle = vec![repeat(0.0, 1e6, vec![step(0.0)]), step(100.0)];
        check(&Effort::Sequence(idle), 1e9, Some(1e4), 2e8, 2.1e8);
    }

    #[test]
    fn a_choice_may_always_be_the_worst() {
        let choice = Effort::Choice(vec![
            Effort::Sequence(vec![step(1e6)]),
            Effort::Sequence(vec![step(0.0), step(10.0)]),
        ]);
        assert_eq!(choice.least(), 10.0);
        check(&choice, 1e9, Some(1e6), 3e5, 3.01e5);
        check(&choice, 100.0, Some(1e6), 300.0, 300.0);
    }
}
