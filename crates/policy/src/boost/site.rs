//! Strategies at the lock sites of a program that was not written for them: which clock a thread
//! requests there, and at which sites that pays.
//!
//! Follows paper 002, sections 4.3 and 5.1. Such a thread has no point at which it starts, and what
//! it does without a lock is not known to be unimportant. So after the section it requests nothing,
//! as `Dyn` and `Own` of section 5.1 do, where [`Strategy`](super::Strategy) has its threads slow.

use dimmer_processor::units::Picos;

use super::{Point, Speed};

/// What the threads of a program request at a site.
///
/// | | while it waits | with the lock | afterwards |
/// |---|---|---|---|
/// | `Nothing` | | | |
/// | `One` | | turbo | |
/// | `Owner` | slow | turbo | |
/// | `Wait` | slow | turbo | turbo |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum AtSite {
    /// Nothing: the machine decides about the clock.
    #[default]
    Nothing = 0,
    /// A faster clock for the section alone: one step of the paper's figure 3d.
    One = 1,
    /// The owner of the lock is fast, and those that wait are slow (`ownr`).
    Owner = 2,
    /// Threads are fast from their first section on, and slow while they wait (`wait`).
    Wait = 3,
}

impl AtSite {
    /// Those that request something.
    pub const ALL: [Self; 3] = [Self::One, Self::Owner, Self::Wait];

    /// The name, as in the paper.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::One => "one",
            Self::Owner => "ownr",
            Self::Wait => "wait",
        }
    }

    /// The one of this number; `Nothing` for a number that stands for none.
    #[must_use]
    pub const fn of_number(number: u32) -> Self {
        match number {
            1 => Self::One,
            2 => Self::Owner,
            3 => Self::Wait,
            _ => Self::Nothing,
        }
    }

    /// What a thread requests at this point; `None`: nothing.
    #[must_use]
    pub const fn speed(self, point: Point) -> Option<Speed> {
        match (self, point) {
            (Self::Owner | Self::Wait, Point::Waits) => Some(Speed::Slow),
            (Self::One | Self::Owner | Self::Wait, Point::Acquires)
            | (Self::Wait, Point::Releases) => Some(Speed::Turbo),
            _ => None,
        }
    }
}

/// What a thread requests that waits at a site of the first kind, holds locks of the second kind,
/// and has requested `rest` since its last section. Of several, the wait counts, since the thread
/// does nothing else then; and then the sections.
#[must_use]
pub fn requested(
    waiting: AtSite,
    mut held: impl Iterator<Item = AtSite>,
    rest: Option<Speed>,
) -> Option<Speed> {
    let inside = || held.find_map(|site| site.speed(Point::Acquires));
    waiting.speed(Point::Waits).or_else(inside).or(rest)
}

/// What has happened at a site since the last decision.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Use {
    /// How often the lock was acquired.
    pub acquisitions: u64,
    /// How many of these had to wait.
    pub contended: u64,
    /// How many sections have ended.
    pub holds: u64,
    /// How many of these had another thread wait for the lock at their end.
    pub wanted: u64,
    /// How long the sections lasted in the mean.
    pub mean: Picos,
    /// For how much of that the faster clock was in force, in the mean.
    pub fast: Picos,
}

/// What a faster clock for a section has to offer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gain {
    /// The shortest section that gains, at the clock without a request; `None`: none gains.
    pub shortest: Option<Picos>,
    /// The faster clock divided by that.
    pub speedup: f64,
}

/// The least number of sections for a decision, as `auto` of the locks has it. A guess.
const LEAST: u64 = 31;

/// From this part on of sections that begin or end with another thread waiting, a site is a
/// sequential bottleneck. A guess, as for the locks.
const BOTTLENECK: f64 = 0.5;

/// What the threads request from now on at a site of this use; `None` before there were enough
/// sections.
///
/// A section that had the faster clock counts as long as it would be without it, if memory stalls
/// none of it: boosted sites are decided about as others are.
///
/// It is `One` or `Nothing`: threads that wait for a lock of the C library sleep, so a slow clock
/// for them would only slow down what else runs on their core.
#[must_use]
pub fn decide(seen: &Use, gain: Gain) -> Option<AtSite> {
    if seen.holds < LEAST {
        return None;
    }
    let share = |of: u64, all: u64| of as f64 / all.max(1) as f64;
    let is_bottleneck = share(seen.contended, seen.acquisitions) >= BOTTLENECK
        || share(seen.wanted, seen.holds) >= BOTTLENECK;
    let unboosted = seen.mean.as_f64() + seen.fast.as_f64() * (gain.speedup - 1.0);
    let is_long = gain.shortest.is_some_and(|shortest| unboosted >= shortest.as_f64());
    let pays = is_bottleneck && is_long;
    Some(if pays { AtSite::One } else { AtSite::Nothing })
}

#[cfg(test)]
mod tests {
    use dimmer_processor::units::Nanos;

    use super::*;

    fn us(us: u64) -> Picos {
        Nanos::from_ns(us * 1000).picos()
    }

    #[test]
    fn every_number_stands_for_a_strategy_or_none() {
        for site in AtSite::ALL {
            assert_eq!(AtSite::of_number(site as u32), site);
            assert_eq!(site.speed(Point::Acquires), Some(Speed::Turbo));
            assert_eq!(site.speed(Point::Starts), None);
        }
        assert_eq!([0, 4, u32::MAX].map(AtSite::of_number), [AtSite::Nothing; 3]);
    }

    #[test]
    fn a_wait_counts_before_sections_and_these_before_the_rest() {
        use AtSite::{Nothing, One, Owner};
        let of = |waiting, held: &[AtSite], rest| requested(waiting, held.iter().copied(), rest);
        let (slow, turbo) = (Some(Speed::Slow), Some(Speed::Turbo));
        assert_eq!(of(Nothing, &[], None), None);
        assert_eq!(of(Nothing, &[Nothing, Nothing], None), None);
        assert_eq!(of(Nothing, &[One, Nothing], None), turbo);
        assert_eq!(of(Owner, &[One], None), slow);
        assert_eq!(of(One, &[One], None), turbo);
        assert_eq!(of(One, &[], None), None);
        assert_eq!(of(Nothing, &[], turbo), turbo);
        assert_eq!(of(Owner, &[], turbo), slow);
    }

    #[test]
    fn only_a_long_section_of_a_bottleneck_pays() {
        let fast = Picos::ZERO;
        let mean = us(100);
        let long = Use { acquisitions: 40, contended: 0, holds: 40, wanted: 20, mean, fast };
        #[track_caller]
        fn check(seen: Use, expected: Option<AtSite>) {
            let gain = Gain { shortest: Some(us(100)), speedup: 1.5 };
            assert_eq!(decide(&seen, gain), expected);
        }
        check(long, Some(AtSite::One));
        check(Use { mean: us(99), ..long }, Some(AtSite::Nothing));
        check(Use { wanted: 19, ..long }, Some(AtSite::Nothing));
        check(Use { wanted: 0, contended: 20, ..long }, Some(AtSite::One));
        check(Use { holds: 30, wanted: 30, ..long }, None);
        check(Use::default(), None);
        let none = Gain { shortest: None, speedup: 1.5 };
        assert_eq!(decide(&long, none), Some(AtSite::Nothing));
        // The same section with the faster clock for its last 60 µs, once 90 µs: it stays boosted.
        check(Use { mean: us(70), fast: us(60), ..long }, Some(AtSite::One));
        check(Use { mean: us(70), fast: us(59), ..long }, Some(AtSite::Nothing));
    }
}
