//! How many steps a thread takes in a time, by what it usually draws and chooses.

/// The share from which on the time of a branch counts: what is rarer may not come for long.
const COUNTS_FROM: f64 = 0.1;

/// A part of a thread's steps. Where a block's end or a choice is passed, that counts as a step,
/// too: simulating it costs about as much.
#[derive(Clone, Debug)]
pub(super) enum Effort {
    /// The least time and the usual time that it takes (ps).
    Step {
        least: f64,
        usual: f64,
    },
    Sequence(Vec<Effort>),
    /// The least number of passes, and the mean.
    Repeat {
        least: f64,
        mean: f64,
        each: Box<Effort>,
    },
    /// Branches, each with its share of 1.
    Choice(Vec<(f64, Effort)>),
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
    fn times(self, times: f64) -> Self {
        if times == 0.0 {
            return Self { whole: 0.0, begun: 0.0 };
        }
        let before = (times - 1.0).max(0.0);
        Self { whole: self.whole * times, begun: self.whole.max(0.0) * before + self.begun }
    }
}

impl Effort {
    /// The least time that it takes (ps).
    pub(super) fn least(&self) -> f64 {
        match self {
            Self::Step { least, .. } => *least,
            Self::Sequence(parts) => parts.iter().map(Self::least).sum(),
            Self::Repeat { least, each, .. } => least * each.least(),
            Self::Choice(branches) => {
                branches.iter().map(|(_, branch)| branch.least()).fold(f64::MAX, f64::min)
            }
        }
    }

    /// Steps less their usual times at a price (steps/ps).
    fn surplus(&self, price: f64) -> Surplus {
        match self {
            Self::Step { usual, .. } => Surplus { whole: 1.0 - price * usual, begun: 1.0 },
            Self::Sequence(parts) => {
                let nothing = Surplus { whole: 0.0, begun: 0.0 };
                parts.iter().fold(nothing, |before, part| {
                    let Surplus { whole, begun } = part.surplus(price);
                    let begun = before.begun.max(before.whole + begun);
                    Surplus { whole: before.whole + whole, begun }
                })
            }
            Self::Repeat { mean, each, .. } => {
                each.surplus(price).after_a_step().times(*mean).after_a_step()
            }
            Self::Choice(branches) => {
                let nothing = Surplus { whole: 0.0, begun: 0.0 };
                let all = branches.iter().fold(nothing, |all, (share, branch)| {
                    let Surplus { whole, begun } = branch.surplus(price);
                    let counts = if *share < COUNTS_FROM { whole.max(0.0) } else { whole };
                    Surplus { whole: all.whole + share * counts, begun: all.begun.max(begun) }
                });
                all.after_a_step()
            }
        }
    }

    /// The number of steps in this number of rounds and in this time (ps): at most as many, if
    /// draws and choices are as usual.
    ///
    /// At any price of time, no steps exceed what their own time costs by more than the surplus;
    /// so with all the time, their number is at most the surplus plus the price of the time. The
    /// lowest such bound is returned. It is convex in the price, which bisection relies on.
    pub(super) fn steps(&self, rounds: f64, time: Option<f64>) -> f64 {
        // Prices (steps/ps) as logarithms: a step in many years, and more steps than a file has
        // in the time of one instruction.
        const PRICES: (f64, f64) = (-50.0, 28.0);
        const PARTS: u32 = 60;
        let bound = |price: f64, time: f64| self.surplus(price).times(rounds).begun + price * time;
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

    fn step(usual: f64) -> Effort {
        Effort::Step { least: usual, usual }
    }

    fn repeat(mean: f64, parts: Vec<Effort>) -> Effort {
        Effort::Repeat { least: mean, mean, each: Box::new(Effort::Sequence(parts)) }
    }

    #[track_caller]
    fn check(effort: &Effort, rounds: f64, time: Option<f64>, low: f64, high: f64) {
        let found = effort.steps(rounds, time);
        assert!((low..=high).contains(&found), "{found}, not {low} to {high}");
    }

    #[test]
    fn without_an_end_all_steps_count() {
        let both = Effort::Sequence(vec![step(10.0), step(0.0)]);
        check(&both, 1e9, None, 2e9, 2e9);
        check(&repeat(1e3, vec![repeat(1e3, vec![step(1.0)])]), 1.0, None, 2e6, 2.1e6);
    }

    #[test]
    fn time_bounds_what_takes_time() {
        let both = Effort::Sequence(vec![step(10.0), step(0.0)]);
        check(&both, 1e9, Some(1e6), 2e5, 2.01e5);
        check(&both, 10.0, Some(1e6), 20.0, 20.0);
        // A pass is a step, too.
        let thrice = repeat(1e9, vec![repeat(1e9, vec![repeat(1e9, vec![step(1e6)])])]);
        check(&thrice, 1.0, Some(1e9), 1e3, 2.1e3);
        check(&thrice, 1.0, Some(1e18), 1e12, 2.1e12);
        // A block seldom has a pass, but what stands beside it takes time.
        let varied = vec![repeat(0.01, vec![step(100.0)]), step(100.0)];
        check(&Effort::Sequence(varied), 1e9, Some(1e6), 1e4, 3.1e4);
        // What takes no time is done as often as it can be.
        let idle = vec![repeat(1e6, vec![step(0.0)]), step(100.0)];
        check(&Effort::Sequence(idle), 1e9, Some(1e4), 2e8, 2.1e8);
    }

    #[test]
    fn branches_count_by_their_shares() {
        let choice = |share: f64| {
            Effort::Choice(vec![
                (share, Effort::Sequence(vec![step(1e6)])),
                (1.0 - share, Effort::Sequence(vec![step(0.0), step(10.0)])),
            ])
        };
        assert_eq!(choice(0.5).least(), 10.0);
        // 2.5 steps in half of 1e6 ps.
        check(&choice(0.5), 1e9, Some(1e9), 5e3, 5.1e3);
        check(&choice(0.5), 100.0, Some(1e9), 250.0, 251.0);
        // What is rare may not come for long: 3 steps in 10 ps.
        check(&choice(0.001), 1e9, Some(1e6), 2.9e5, 3.1e5);
    }
}
