//! Strategies for a contended lock: what its threads do about their clocks and cores, and when.
//!
//! Implements the strategies of paper 002, sections 4.2 and 4.3, as tables: [`Strategy::acts`]
//! gives the acts of a thread at each [`Point`] of a lock. Whether a strategy pays is in
//! [`break_even`](crate::break_even), and [`choose`] picks one by that. The simulator runs all, and
//! so do the locks of crate `locks`.

mod choice;
pub mod site;

pub use choice::{Offers, Sample, choose};

/// A strategy for a lock that threads compete for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Threads spin while they wait. The processor chooses the clocks.
    Spin,
    /// Threads wait by MONITOR and MWAIT, which halts their cores.
    Mwait,
    /// Threads wait in the kernel, by futex.
    Futex,
    /// One thread takes the lock, at this speed. The others execute at the slowest P-state, and do
    /// not take it.
    One(Speed),
    /// The owner of the lock is fast, and all others are slow (`ownr`).
    Owner,
    /// Threads are fast, and slow while they wait (`wait`).
    Wait,
    /// As `Owner`, but the thread on the neighbour core of the module makes the requests (`dlgt`).
    Delegate,
    /// The owner of the lock migrates to a core that is always fast (`mgrt`).
    Migrate,
}

/// A clock that a thread asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speed {
    /// The slowest P-state.
    Slow,
    /// The fastest P-state that is not boosted.
    Base,
    /// The fastest P-state.
    Turbo,
}

/// A point in a thread's use of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// The thread starts, before it uses the lock.
    Starts,
    /// Another thread has the lock, so this one waits for it.
    Waits,
    /// The thread has got the lock.
    Acquires,
    /// The thread has released the lock.
    Releases,
}

impl Point {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Starts, Self::Waits, Self::Acquires, Self::Releases];
}

/// What a thread does about its clock or core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// It requests this speed for its core. A request that is in force already costs nothing.
    Request(Speed),
    /// It asks the thread on the neighbour core to request this speed for their module.
    RequestByNeighbour(Speed),
    /// It executes until it has the lock.
    Spin,
    /// It waits for the lock by MONITOR and MWAIT.
    Monitor,
    /// It leaves its CPU until it has the lock.
    Block,
    /// It migrates to the fast core.
    GoToFastCore,
    /// It migrates back.
    GoHome,
}

impl Strategy {
    /// All of them, [`Strategy::One`] at the base.
    pub const ALL: [Self; 8] = [
        Self::Spin,
        Self::Mwait,
        Self::Futex,
        Self::One(Speed::Base),
        Self::Owner,
        Self::Wait,
        Self::Delegate,
        Self::Migrate,
    ];

    /// The name in the paper.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Spin => "spin",
            Self::Mwait => "mwait",
            Self::Futex => "futex",
            Self::One(_) => "one",
            Self::Owner => "ownr",
            Self::Wait => "wait",
            Self::Delegate => "dlgt",
            Self::Migrate => "mgrt",
        }
    }

    /// The strategy of this name; `one` is at the base.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|strategy| strategy.name() == name)
    }

    /// Whether its threads request clocks.
    #[must_use]
    pub fn requests(self) -> bool {
        let requests = |act: &Act| matches!(act, Act::Request(_) | Act::RequestByNeighbour(_));
        Point::ALL.iter().any(|point| self.acts(*point).iter().any(requests))
    }

    /// What a thread does at this point, in this order.
    #[must_use]
    pub const fn acts(self, point: Point) -> &'static [Act] {
        use Act::{
            Block, GoHome, GoToFastCore, Monitor, Request, RequestByNeighbour as Neighbour, Spin,
        };
        use Speed::{Base, Slow, Turbo};
        match (self, point) {
            (Self::Mwait, Point::Waits) => &[Monitor],
            (Self::Futex, Point::Waits) => &[Block],
            (Self::Wait, Point::Waits) => &[Request(Slow), Spin],
            (_, Point::Waits) => &[Spin],
            (Self::One(Slow) | Self::Owner | Self::Migrate, Point::Starts) => &[Request(Slow)],
            (Self::One(Base), Point::Starts) => &[Request(Base)],
            (Self::One(Turbo) | Self::Wait, Point::Starts) => &[Request(Turbo)],
            (Self::Delegate, Point::Starts) => &[Neighbour(Slow)],
            (Self::Owner | Self::Wait, Point::Acquires) => &[Request(Turbo)],
            (Self::Owner, Point::Releases) => &[Request(Slow)],
            (Self::Delegate, Point::Acquires) => &[Neighbour(Turbo)],
            (Self::Delegate, Point::Releases) => &[Neighbour(Slow)],
            (Self::Migrate, Point::Acquires) => &[GoToFastCore],
            (Self::Migrate, Point::Releases) => &[GoHome],
            (Self::Spin | Self::Mwait | Self::Futex, Point::Starts)
            | (
                Self::Spin | Self::Mwait | Self::Futex | Self::One(_),
                Point::Acquires | Point::Releases,
            )
            | (Self::Wait, Point::Releases) => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(strategy: Strategy, points: &[Point]) -> Vec<Speed> {
        let acts = points.iter().flat_map(|point| strategy.acts(*point));
        let speed = |act: &Act| match act {
            Act::Request(speed) | Act::RequestByNeighbour(speed) => Some(*speed),
            _ => None,
        };
        acts.filter_map(speed).collect()
    }

    #[test]
    fn a_strategy_is_found_by_its_name() {
        for strategy in Strategy::ALL {
            assert_eq!(Strategy::named(strategy.name()), Some(strategy));
        }
        assert_eq!(Strategy::named("owner"), None);
    }

    #[test]
    fn strategies_that_only_wait_request_nothing() {
        let silent = Strategy::ALL.into_iter().filter(|strategy| !strategy.requests());
        let silent: Vec<&str> = silent.map(Strategy::name).collect();
        assert_eq!(silent, ["spin", "mwait", "futex"]);
    }

    /// A thread that waits does one thing until it has the lock, and does it last.
    #[test]
    fn every_strategy_waits_in_one_way_and_waits_last() {
        for strategy in Strategy::ALL {
            let acts = strategy.acts(Point::Waits);
            let waits = |act: &Act| matches!(act, Act::Spin | Act::Monitor | Act::Block);
            assert_eq!(acts.iter().filter(|act| waits(act)).count(), 1, "{}", strategy.name());
            assert!(acts.last().is_some_and(waits), "{}", strategy.name());
            for point in [Point::Starts, Point::Acquires, Point::Releases] {
                assert!(!strategy.acts(point).iter().any(waits), "{}", strategy.name());
            }
        }
    }

    /// Paper 002, section 4.3: with each of these the owner is fast, and threads that wait are
    /// slow, from the second section on as in the first.
    #[test]
    fn the_owner_is_fast_and_those_that_wait_are_slow() {
        use Point::{Acquires, Releases, Starts, Waits};
        for strategy in [Strategy::Owner, Strategy::Wait, Strategy::Delegate] {
            let round = [Waits, Acquires, Releases];
            for rounds in 0..3 {
                let before = [&[Starts][..], &round.repeat(rounds)].concat();
                let at = |until: &[Point]| {
                    requests(strategy, &[&before[..], until].concat()).last().copied()
                };
                assert_eq!(at(&[Waits]), Some(Speed::Slow), "{}", strategy.name());
                assert_eq!(at(&[Waits, Acquires]), Some(Speed::Turbo), "{}", strategy.name());
            }
        }
    }

    #[test]
    fn a_thread_that_migrates_comes_home_and_makes_no_request_at_the_lock() {
        let round = [Point::Waits, Point::Acquires, Point::Releases];
        assert!(requests(Strategy::Migrate, &round).is_empty());
        let acts: Vec<Act> =
            round.iter().flat_map(|at| Strategy::Migrate.acts(*at)).copied().collect();
        assert_eq!(acts, [Act::Spin, Act::GoToFastCore, Act::GoHome]);
        assert_eq!(requests(Strategy::One(Speed::Base), &[Point::Starts]), [Speed::Base]);
    }
}
