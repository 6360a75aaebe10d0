//! The break-even of a level, for a governor that is given what will run next on its core.
//!
//! It decides by what a gap costs ([`Prices::of_gap`]): no time to hold the level costs less than
//! its choice, at these prices. What it does not see are the processor's own levels below it, which
//! may make it better to leave requests to the processor, and other cores. The simulator compares
//! whole runs for that.

use dimmer_processor::units::LicenseLevel;

use super::Change;

/// A stretch between two pieces of code that ask for a level, as long as it takes at the clock of
/// L0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gap {
    /// Its length at the clock of L0 (ns).
    pub ns: f64,
    /// How long code runs in it at that clock, less its waits for memory: the part that becomes
    /// longer as the clock falls (ns).
    pub scaled_ns: f64,
}

/// What changes of level cost, and by how much code takes longer at a level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// Releasing a level and asking for it again, together (ns): two standstills and the calls.
    pub changes_ns: f64,
    /// How much longer code takes at the level than at L0, as a part of its time at L0: the clock
    /// of L0 over that of the level, less 1.
    pub slower: f64,
}

impl Prices {
    /// The cost of a gap (ns) if the level is released once `hold_ns` of it have passed: the time
    /// by which it takes longer than at the clock of L0.
    #[must_use]
    pub fn of_gap(&self, gap: &Gap, hold_ns: f64) -> f64 {
        let lost = gap.scaled_ns * self.slower;
        let kept_ns = gap.ns + lost;
        if kept_ns <= hold_ns { lost } else { lost * hold_ns / kept_ns + self.changes_ns }
    }
}

/// Other code runs. Returns the level to set, if it differs from the level held. `gap` looks ahead
/// until some code asks for more than this code does; it is called only if that matters.
#[must_use]
pub fn runs(change: &Change, gap: impl FnOnce() -> Gap, prices: &Prices) -> Option<LicenseLevel> {
    let Change { asked, held, .. } = *change;
    let gap = if asked < held { gap() } else { Gap::default() };
    Some(level(asked, held, &gap, prices)).filter(|level| *level != held)
}

/// The level for code that asks for `asked`, on a core that holds `held`: the level asked for, or
/// the level held if releasing it would not pay in the gap to come. Paper 000 §2.3 calls that the
/// break-even of power states.
fn level(asked: LicenseLevel, held: LicenseLevel, gap: &Gap, prices: &Prices) -> LicenseLevel {
    let is_kept = asked < held && prices.of_gap(gap, f64::INFINITY) <= prices.changes_ns;
    if is_kept { held } else { asked }
}

#[cfg(test)]
mod tests {
    use super::*;

    const L0: LicenseLevel = LicenseLevel::new(0);
    const L2: LicenseLevel = LicenseLevel::new(2);
    /// Two standstills of 10 us, and a third off the clock, so that code takes half as long again:
    /// the break-even is 40 us.
    const PRICES: Prices = Prices { changes_ns: 20_000.0, slower: 0.5 };

    fn busy(ns: f64) -> Gap {
        Gap { ns, scaled_ns: ns }
    }

    #[test]
    fn a_level_is_given_back_where_that_pays() {
        assert_eq!(level(L0, L2, &busy(39_000.0), &PRICES), L2);
        assert_eq!(level(L0, L2, &busy(41_000.0), &PRICES), L0);
    }

    #[test]
    fn waiting_loses_nothing_at_a_lower_clock() {
        let waiting = Gap { ns: 1e9, scaled_ns: 30_000.0 };
        assert_eq!(level(L0, L2, &waiting, &PRICES), L2);
    }

    #[test]
    fn what_is_asked_for_is_granted() {
        assert_eq!(level(L2, L0, &busy(0.0), &PRICES), L2);
        assert_eq!(level(L2, L2, &busy(1e9), &PRICES), L2);
    }

    #[test]
    fn a_level_that_costs_nothing_is_kept() {
        let free = Prices { slower: 0.0, ..PRICES };
        assert_eq!(level(L0, L2, &busy(1e12), &free), L2);
    }

    #[test]
    fn only_changes_are_set_and_the_future_is_asked_for_only_where_it_matters() {
        let change = |asked, held| Change { asked, had: L0, held };
        let unasked = || unreachable!("nothing is given back");
        assert_eq!(runs(&change(L2, L0), unasked, &PRICES), Some(L2));
        assert_eq!(runs(&change(L2, L2), unasked, &PRICES), None);
        assert_eq!(runs(&change(L0, L2), || busy(39_000.0), &PRICES), None);
        assert_eq!(runs(&change(L0, L2), || busy(41_000.0), &PRICES), Some(L0));
    }

    /// No hold time costs less than knowing the gap, by the times that it takes to execute a gap:
    /// at two thirds of the clock while the level is held, at the whole clock from then on.
    #[test]
    fn no_time_to_hold_costs_less_than_the_choice() {
        let takes = |gap: &Gap, hold_ns: f64| {
            let work_at_level = hold_ns * (2.0 / 3.0);
            if gap.ns <= work_at_level {
                return gap.ns * 1.5;
            }
            hold_ns + (gap.ns - work_at_level) + PRICES.changes_ns
        };
        for gap in (0..500).map(|us| busy(f64::from(us) * 1000.0)) {
            let is_kept = level(L0, L2, &gap, &PRICES) == L2;
            let own = takes(&gap, if is_kept { f64::INFINITY } else { 0.0 });
            for hold in (0..100).map(|us| f64::from(us) * 10_000.0) {
                assert!(own <= takes(&gap, hold) + 1e-6, "{gap:?} {hold}");
                let priced = gap.ns + PRICES.of_gap(&gap, hold);
                assert!((priced - takes(&gap, hold)).abs() < 1e-6, "{gap:?} {hold}");
            }
        }
    }
}
