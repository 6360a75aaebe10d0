//! The governor that knows what will run: the best that any other could do with the same changes of the clock.

use dimmer_processor::units::LicenceLevel;

/// What changes of level cost, and what a level takes off the clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// Giving a level back and asking for it again, together (ns): two standstills, the throttled time, the calls.
    pub changes_ns: f64,
    /// The part of its time that code loses at the level.
    pub slower: f64,
}

impl Prices {
    /// The time from which on it pays to give the level back and ask for it again (ns): what paper 000 §2.3 calls the break-even time
    /// of power states. Infinite where the level takes nothing off the clock.
    #[must_use]
    pub fn break_even_ns(&self) -> f64 {
        if self.slower > 0.0 { self.changes_ns / self.slower } else { f64::INFINITY }
    }

    /// What a gap costs (ns) if the level is given back once `hold_ns` of it have passed.
    #[must_use]
    pub fn of_gap(&self, gap_ns: f64, hold_ns: f64) -> f64 {
        if gap_ns <= hold_ns {
            gap_ns * self.slower
        } else {
            hold_ns * self.slower + self.changes_ns
        }
    }
}

/// The level for code that asks for `asked`, on a core that has `held`, if the next code to ask for a level comes in `gap_ns` (not
/// at all: infinite): the one asked for, or the one held if giving it back would not pay.
#[must_use]
pub fn level(
    asked: LicenceLevel,
    held: LicenceLevel,
    gap_ns: f64,
    prices: &Prices,
) -> LicenceLevel {
    if asked < held && gap_ns < prices.break_even_ns() { held } else { asked }
}

#[cfg(test)]
mod tests {
    use super::*;

    const L0: LicenceLevel = LicenceLevel::new(0);
    const L2: LicenceLevel = LicenceLevel::new(2);
    /// Two standstills of 10 us and a third off the clock.
    const PRICES: Prices = Prices { changes_ns: 20_000.0, slower: 1.0 / 3.0 };

    #[test]
    fn a_level_is_given_back_where_that_pays() {
        assert!((PRICES.break_even_ns() - 60_000.0).abs() < 1e-6);
        assert_eq!(level(L0, L2, 59_000.0, &PRICES), L2);
        assert_eq!(level(L0, L2, 61_000.0, &PRICES), L0);
        assert_eq!(level(L0, L2, f64::INFINITY, &PRICES), L0);
    }

    #[test]
    fn what_is_asked_for_is_granted() {
        assert_eq!(level(L2, L0, 0.0, &PRICES), L2);
        assert_eq!(level(L2, L2, 1e9, &PRICES), L2);
    }

    #[test]
    fn a_level_that_costs_nothing_is_kept() {
        let free = Prices { slower: 0.0, ..PRICES };
        assert_eq!(level(L0, L2, 1e12, &free), L2);
    }

    /// No hold costs less than knowing the gap.
    #[test]
    fn the_oracle_is_never_beaten() {
        for gap in (0..500).map(|us| f64::from(us) * 1000.0) {
            let kept = level(L0, L2, gap, &PRICES) == L2;
            let own = PRICES.of_gap(gap, if kept { f64::INFINITY } else { -1.0 });
            for hold in (0..100).map(|us| f64::from(us) * 10_000.0) {
                assert!(own <= PRICES.of_gap(gap, hold) + PRICES.slower + 1e-6, "{gap} {hold}");
            }
        }
    }
}
