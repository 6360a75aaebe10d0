//! The governor that is given what will run next on its core. If one thread runs there, no other
//! governor that grants what is asked for could do better at the same prices.

use dimmer_processor::units::LicenseLevel;

use super::Change;

/// A stretch between two pieces of code that ask for a level.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gap {
    /// Its length (ns).
    pub ns: f64,
    /// How long code runs in it, less its waits for memory: the part that becomes longer as the
    /// clock falls (ns).
    pub scaled_ns: f64,
}

/// What changes of level cost, and how much a level takes off the clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// Releasing a level and asking for it again, together (ns): two standstills and the calls.
    pub changes_ns: f64,
    /// The part of the clock that the level takes away.
    pub slower: f64,
}

impl Prices {
    /// The cost of a gap (ns) if the level is released once `hold_ns` of it have passed.
    #[must_use]
    pub fn of_gap(&self, gap: &Gap, hold_ns: f64) -> f64 {
        if gap.ns <= hold_ns {
            gap.scaled_ns * self.slower
        } else {
            gap.scaled_ns * self.slower * hold_ns / gap.ns + self.changes_ns
        }
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
    /// Two standstills of 10 us and a third off the clock: the break-even is 60 us.
    const PRICES: Prices = Prices { changes_ns: 20_000.0, slower: 1.0 / 3.0 };

    fn busy(ns: f64) -> Gap {
        Gap { ns, scaled_ns: ns }
    }

    #[test]
    fn a_level_is_given_back_where_that_pays() {
        assert_eq!(level(L0, L2, &busy(59_000.0), &PRICES), L2);
        assert_eq!(level(L0, L2, &busy(61_000.0), &PRICES), L0);
    }

    #[test]
    fn waiting_loses_nothing_at_a_lower_clock() {
        let waiting = Gap { ns: 1e9, scaled_ns: 50_000.0 };
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
        assert_eq!(runs(&change(L0, L2), || busy(59_000.0), &PRICES), None);
        assert_eq!(runs(&change(L0, L2), || busy(61_000.0), &PRICES), Some(L0));
    }

    /// No hold time costs less than knowing the gap.
    #[test]
    fn the_oracle_is_never_beaten() {
        for gap in (0..500).map(|us| busy(f64::from(us) * 1000.0)) {
            let is_kept = level(L0, L2, &gap, &PRICES) == L2;
            let own = PRICES.of_gap(&gap, if is_kept { f64::INFINITY } else { -0.0 });
            for hold in (0..100).map(|us| f64::from(us) * 10_000.0) {
                assert!(own <= PRICES.of_gap(&gap, hold) + 1e-6, "{gap:?} {hold}");
            }
        }
    }
}
