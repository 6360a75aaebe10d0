//! How dense wide SIMD code is in what a client ran, per license level, from whatever evidence
//! there is (paper 001 §4.2.2, §5.2).
//!
//! The paper uses the cycles for which a core held each level. They also count what other code left
//! behind (§5.2, "false positives"). Machines without these counters have other evidence. All of it
//! becomes a share of 0 to 1 for each level.

use dimmer_processor::units::LicenseLevel;

/// Number of license levels above L0 that are distinguished. Processors known today have up to
/// three. Levels above the last one count as the last one ([`place_of`]).
pub const LEVELS: usize = 4;

/// The place of a level among the [`LEVELS`] that are distinguished; `None` for L0. All levels
/// above the last one that is distinguished have its place: their code is at least as wide.
#[must_use]
pub fn place_of(level: LicenseLevel) -> Option<usize> {
    let above_l0 = usize::try_from(level.index()).unwrap_or(usize::MAX).checked_sub(1)?;
    Some(above_l0.min(LEVELS - 1))
}

/// The share of wide SIMD code (0 to 1) up to which code counts as scalar. A guess.
pub const NEGLIGIBLE: f64 = 0.01;

/// Evidence about the code that ran in a window, best first.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Evidence {
    /// Cycles for which the core held each level while the code ran (paper 001 §5.2).
    LicenseCycles {
        /// All cycles.
        all: u64,
        /// Of these, those at L1, L2, ...
        at: [u64; LEVELS],
    },
    /// Retired packed-arithmetic instructions.
    PackedArithmetic {
        /// All instructions.
        all: u64,
        /// Of these, those that ask for L1, L2, ..., as far as events distinguish them.
        at: [u64; LEVELS],
    },
    /// The clock measured by timing, as a part of the clock at L0.
    Clock(f64),
    /// The level that the most demanding instructions in the code ask for.
    Class(LicenseLevel),
    /// No evidence.
    #[default]
    None,
}

/// The share (0 to 1) of L1, L2, ... in what ran.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Density(pub [f64; LEVELS]);

impl Evidence {
    /// The density that the evidence shows; `None` if it shows nothing.
    ///
    /// `clocks`: those of L1, L2, ..., as parts of the clock at L0, falling. [`Evidence::Clock`]
    /// needs them: a clock between those of two levels counts as a mixture of both. A share above
    /// one, from counters read at different times, counts as one.
    #[must_use]
    pub fn density(&self, clocks: &[f64]) -> Option<Density> {
        match *self {
            Self::LicenseCycles { all, at } | Self::PackedArithmetic { all, at } => (all > 0)
                .then(|| Density(at.map(|part| (part as f64 / all as f64).clamp(0.0, 1.0)))),
            Self::Clock(ratio) => mixture(ratio, clocks),
            Self::Class(level) => {
                let mut density = Density::default();
                if let Some(place) = place_of(level) {
                    density.0[place] = 1.0;
                }
                Some(density)
            }
            Self::None => None,
        }
    }
}

impl Evidence {
    /// Combines the evidence about a region itself with the evidence about all code of its process,
    /// `process`.
    ///
    /// The clock right after a region is evidence about that region. A class (the region was marked
    /// or hooked for wide SIMD code) is weaker evidence than cycles at a level in its process. If
    /// the process has no such cycles, the region causes none (paper 001 §5.2 uses the process
    /// alone). Packed arithmetic is floating point only: it can show that the code is wider than
    /// what it was marked for, but its absence shows nothing.
    #[must_use]
    pub fn or_of_process(self, process: Self) -> Self {
        match (self, process) {
            (Self::Class(_) | Self::None, Self::LicenseCycles { all: 1.., .. }) => process,
            (Self::Class(level), Self::PackedArithmetic { .. }) => {
                let density = process.density(&[]).unwrap_or_default();
                let found = density.above(&[NEGLIGIBLE; LEVELS]);
                Self::Class(found.map_or(level, |found| found.max(level)))
            }
            _ => self,
        }
    }
}

/// The mixture of levels that has this mean clock.
fn mixture(ratio: f64, clocks: &[f64]) -> Option<Density> {
    if !ratio.is_finite() || ratio <= 0.0 || clocks.is_empty() {
        return None;
    }
    let mut density = Density::default();
    let mut above = 1.0;
    for (index, clock) in clocks.iter().copied().enumerate().take(LEVELS) {
        if ratio >= above {
            break;
        }
        // How far down from the level above. `above > ratio`, so a level that is no slower is
        // passed over.
        let part = if clock < above { ((above - ratio) / (above - clock)).min(1.0) } else { 1.0 };
        density.0[index] = part;
        if let Some(before) = index.checked_sub(1) {
            density.0[before] -= part;
        }
        above = clock;
    }
    Some(density)
}

impl Density {
    /// The most demanding level whose share is above that level's threshold.
    #[must_use]
    pub fn above(&self, thresholds: &[f64; LEVELS]) -> Option<LicenseLevel> {
        let index = (0..LEVELS).rev().find(|index| self.0[*index] > thresholds[*index])?;
        u32::try_from(index + 1).ok().map(LicenseLevel::new)
    }

    /// This density, moved towards a newer one by `part` (0 to 1) of the way.
    #[must_use]
    pub fn towards(&self, newer: &Self, part: f64) -> Self {
        let mut moved = *self;
        for (old, new) in moved.0.iter_mut().zip(newer.0) {
            *old += (new - *old) * part;
        }
        moved
    }

    /// The largest difference between the shares.
    #[must_use]
    pub fn distance(&self, other: &Self) -> f64 {
        self.0.iter().zip(other.0).map(|(one, other)| (one - other).abs()).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The i9-7940X: 3.3 and 2.5 of 3.8 GHz.
    const CLOCKS: [f64; 2] = [3.3 / 3.8, 2.5 / 3.8];

    #[track_caller]
    fn check(evidence: Evidence, expected: Option<[f64; 2]>) {
        let density = evidence.density(&CLOCKS);
        match (density, expected) {
            (Some(found), Some(expected)) => {
                let expected = Density([expected[0], expected[1], 0.0, 0.0]);
                assert!(found.distance(&expected) < 1e-9, "{found:?}");
            }
            (found, expected) => assert!(found.is_none() && expected.is_none(), "{found:?}"),
        }
    }

    #[test]
    fn counters_are_shares_of_all_and_none_without_any() {
        let at = [20, 50, 0, 0];
        check(Evidence::LicenseCycles { all: 100, at }, Some([0.2, 0.5]));
        check(Evidence::PackedArithmetic { all: 200, at }, Some([0.1, 0.25]));
        check(Evidence::LicenseCycles { all: 40, at }, Some([0.5, 1.0]));
        check(Evidence::LicenseCycles { all: 0, at }, None);
        check(Evidence::None, None);
    }

    #[test]
    fn cycles_of_the_process_count_where_the_region_tells_no_clock() {
        let cycles = Evidence::LicenseCycles { all: 100, at: [20, 0, 0, 0] };
        let none = Evidence::LicenseCycles { all: 0, at: [0; LEVELS] };
        let class = Evidence::Class(LicenseLevel::new(1));
        for own in [Evidence::None, class] {
            assert_eq!(own.or_of_process(cycles), cycles);
            assert_eq!(own.or_of_process(none), own, "it did not run");
            assert_eq!(own.or_of_process(Evidence::None), own);
        }
        assert_eq!(Evidence::Clock(0.9).or_of_process(cycles), Evidence::Clock(0.9));
    }

    #[test]
    fn packed_arithmetic_of_the_process_tells_how_wide_a_marked_region_is_and_refutes_nothing() {
        let class = |level| Evidence::Class(LicenseLevel::new(level));
        let packed = |at| Evidence::PackedArithmetic { all: 1000, at };
        for (at, level) in [([0; LEVELS], 1), ([500, 10, 0, 0], 1), ([0, 11, 0, 0], 2)] {
            assert_eq!(class(1).or_of_process(packed(at)), class(level), "{at:?}");
        }
        assert_eq!(class(2).or_of_process(packed([500, 0, 0, 0])), class(2));
        let none = Evidence::PackedArithmetic { all: 0, at: [0; LEVELS] };
        assert_eq!(class(1).or_of_process(none), class(1));
        for own in [Evidence::None, Evidence::Clock(0.9)] {
            assert_eq!(own.or_of_process(packed([0, 500, 0, 0])), own);
        }
    }

    #[test]
    fn a_clock_between_two_levels_is_a_mixture() {
        check(Evidence::Clock(1.0), Some([0.0, 0.0]));
        check(Evidence::Clock(1.2), Some([0.0, 0.0]));
        check(Evidence::Clock((1.0 + CLOCKS[0]) / 2.0), Some([0.5, 0.0]));
        check(Evidence::Clock(CLOCKS[0]), Some([1.0, 0.0]));
        check(Evidence::Clock(0.25 * CLOCKS[0] + 0.75 * CLOCKS[1]), Some([0.25, 0.75]));
        check(Evidence::Clock(0.1), Some([0.0, 1.0]));
        for nonsense in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
            check(Evidence::Clock(nonsense), None);
        }
        assert_eq!(Evidence::Clock(0.5).density(&[]), None);
        // A level that lowers nothing, as some models have.
        assert_eq!(Evidence::Clock(0.9).density(&[1.0, 0.9]), Some(Density([0.0, 1.0, 0.0, 0.0])));
    }

    #[test]
    fn levels_above_the_last_that_is_distinguished_count_as_that_one() {
        let places = [0, 1, 2, 4, 5, u32::MAX].map(|level| place_of(LicenseLevel::new(level)));
        assert_eq!(places, [None, Some(0), Some(1), Some(3), Some(3), Some(3)]);
    }

    #[test]
    fn a_class_is_all_of_its_level() {
        check(Evidence::Class(LicenseLevel::new(0)), Some([0.0, 0.0]));
        check(Evidence::Class(LicenseLevel::new(2)), Some([0.0, 1.0]));
        let far = Evidence::Class(LicenseLevel::new(u32::MAX)).density(&CLOCKS);
        assert_eq!(far, Some(Density([0.0, 0.0, 0.0, 1.0])));
    }

    #[test]
    fn the_most_demanding_level_above_its_threshold_counts() {
        let density = Density([0.6, 0.3, 0.0, 0.0]);
        let above = |one, two| density.above(&[one, two, 0.0, 0.0]).map(LicenseLevel::index);
        assert_eq!(above(0.1, 0.1), Some(2));
        assert_eq!(above(0.1, 0.3), Some(1));
        assert_eq!(above(0.6, 0.3), None);
    }
}
