//! How many cores to dedicate (paper 001 §4.2.1, §4.3.3): one core is saturated before the next is
//! added.
//!
//! A core is added if the dedicated ones work nearly all the time. A core is removed if they work
//! little on average: if the rest would still be clearly below that limit. The gap between the two
//! limits keeps the number still. The last core has no rest: it goes at the average at which one of
//! two would go. As the first core comes as soon as something is to be moved, the last one stays as
//! long as something is. Dimmer's own loops, whose trials need the core back, give it back by time
//! instead ([`Settings::unused`]).
//!
//! At least one core stays normal. The paper's prototype stops at one and leaves its thresholds
//! open, so all numbers here are guesses. [`crate::dedicated`] chooses *which* cores.

use std::collections::BTreeMap;

use dimmer_processor::units::{Nanos, Time};

use super::UserId;

/// When cores are added and removed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Number of cores for clients, dedicated ones included.
    pub cores: usize,
    /// At most this many are dedicated, and always fewer than `cores`.
    pub most: usize,
    /// The period over which utilisation is measured.
    pub period: Nanos,
    /// The utilisation of the dedicated cores (0 to 1) at which another core is added.
    pub saturated: f64,
    /// A core is removed if the rest would still have less than this utilisation. Below
    /// `saturated`.
    pub spare: f64,
    /// How long the last core stays after something was last to be moved. `None`: as the paper has
    /// it, until nothing is to be moved and the core has worked little for a period.
    pub unused: Option<Nanos>,
}

impl Settings {
    /// For a machine, or a program's share of it, of `cores` cores.
    #[must_use]
    pub const fn of(cores: usize) -> Self {
        Self {
            cores,
            most: cores.saturating_sub(1),
            period: Nanos::from_ms(1000),
            saturated: 0.9,
            spare: 0.7,
            unused: None,
        }
    }

    /// Number of cores that may be dedicated.
    #[must_use]
    pub fn may(&self) -> usize {
        self.most.min(self.cores.saturating_sub(1))
    }
}

/// The number of dedicated cores.
#[derive(Clone, Debug, PartialEq)]
pub struct Cores {
    settings: Settings,
    now: usize,
    /// When the period started.
    begun: Time,
    /// How long dedicated cores have worked since then for each user, as its programs report (ns).
    busy_ns: BTreeMap<UserId, f64>,
    /// When something was last to be moved.
    used: Time,
}

impl Cores {
    /// Starts without dedicated cores.
    #[must_use]
    pub const fn new(settings: Settings, now: Time) -> Self {
        Self { settings, now: 0, begun: now, busy_ns: BTreeMap::new(), used: now }
    }

    /// Number of dedicated cores.
    #[must_use]
    pub const fn dedicated(&self) -> usize {
        self.now
    }

    /// Records that dedicated cores have worked for a user for `ns`, as the user's programs report.
    /// With several users, each counts for at most an equal part of the dedicated cores: others
    /// give up another core only if their work needs it, too.
    pub fn worked(&mut self, user: UserId, ns: u64) {
        *self.busy_ns.entry(user).or_default() += ns as f64;
    }

    /// How many cores have worked over `elapsed`.
    fn working(&self, elapsed: Nanos) -> f64 {
        let users = self.busy_ns.values().filter(|ns| **ns > 0.0).count();
        let most = if users > 1 { self.now as f64 / users as f64 } else { f64::INFINITY };
        self.busy_ns.values().map(|ns| (ns / elapsed.as_f64()).min(most)).sum()
    }

    /// Whether a core goes back after a period in which this many cores have worked.
    fn is_one_too_many(&self, working: f64, is_wanted: bool) -> bool {
        let Settings { spare, unused, .. } = self.settings;
        match self.now {
            0 => false,
            // Two cores become one below an average of `spare / 2`.
            1 => unused.is_none() && !is_wanted && working < spare / 2.0,
            cores => working < spare * (cores - 1) as f64,
        }
    }

    /// When the next step is due, if cores are dedicated.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Time> {
        (self.now > 0).then(|| self.begun + self.settings.period)
    }

    /// Returns the number of cores to dedicate now. `is_wanted`: whether anything is to be
    /// moved.
    pub fn step(&mut self, now: Time, is_wanted: bool) -> usize {
        if now < self.begun {
            // The clock has gone back.
            (self.begun, self.used) = (now, now);
            self.busy_ns.clear();
        }
        if is_wanted {
            self.used = now;
        } else if self.settings.unused.is_some_and(|unused| now - self.used >= unused) {
            self.now = 0;
        }
        if self.now == 0 {
            // The first period starts with the first core.
            self.now = usize::from(is_wanted).min(self.settings.may());
            self.begun = now;
            self.busy_ns.clear();
            return self.now;
        }
        let elapsed = now - self.begun;
        if elapsed > Nanos::ZERO && elapsed >= self.settings.period {
            let working = self.working(elapsed);
            if working >= self.settings.saturated * self.now as f64 {
                self.now = (self.now + 1).min(self.settings.may());
            } else if self.is_one_too_many(working, is_wanted) {
                self.now -= 1;
            }
            self.begun = now;
            self.busy_ns.clear();
        }
        self.now
    }
}

#[cfg(test)]
mod tests {
    use dimmer_processor::units::nearest;

    use super::*;

    const SECOND: Nanos = Nanos::from_ms(1000);

    fn at(seconds: u64) -> Time {
        Time::START + seconds * SECOND
    }

    /// The number of dedicated cores after each second, of `cores` cores, while this much work (in
    /// cores) is moved.
    fn numbers(cores: usize, work: impl Fn(u64) -> f64) -> Vec<usize> {
        let mut state = Cores::new(Settings::of(cores), at(0));
        state.step(at(0), work(0) > 0.0);
        let second = |second: u64| {
            let done = work(second).min(state.dedicated() as f64);
            state.worked(UserId(0), nearest(done * SECOND.as_f64()));
            state.step(at(second), done > 0.0)
        };
        (1..=60).map(second).collect()
    }

    #[test]
    fn one_is_saturated_before_the_next_is_added() {
        assert_eq!(numbers(8, |_| 0.5), [1; 60]);
        assert_eq!(numbers(8, |_| 2.5)[..4], [2, 3, 3, 3]);
        assert_eq!(numbers(8, |_| 2.5)[59], 3);
    }

    #[test]
    fn whatever_is_moved_steadily_the_number_comes_to_rest() {
        for tenths in 1_u32..70 {
            let numbers = numbers(8, |_| f64::from(tenths) / 10.0);
            assert!(numbers[10..].iter().all(|number| *number == numbers[10]), "{numbers:?}");
            assert!(numbers[10] < 8);
        }
    }

    #[test]
    fn cores_go_back_one_by_one_and_the_last_when_nothing_is_to_be_moved() {
        let numbers = numbers(8, |second| {
            if second < 10 {
                3.5
            } else if second < 30 {
                0.2
            } else {
                0.0
            }
        });
        // The last one stays while something is moved, however little that is.
        assert_eq!((numbers[8], numbers[20], numbers[28], numbers[29]), (4, 1, 1, 0));
    }

    /// A core that is dedicated at the start, and has worked for this part of the first second, at
    /// whose end nothing is to be moved: the number of cores each half second from then on.
    fn last(unused: Option<Nanos>, worked: f64) -> [usize; 4] {
        let mut state = Cores::new(Settings { unused, ..Settings::of(8) }, at(0));
        state.step(at(0), true);
        state.worked(UserId(0), nearest(worked * SECOND.as_f64()));
        [2, 3, 4, 5].map(|half: u64| state.step(Time::START + half * (SECOND / 2), false))
    }

    #[test]
    fn the_last_core_goes_back_after_a_period_of_little_work_or_after_a_time() {
        assert_eq!(last(None, 0.36), [1, 1, 0, 0]);
        assert_eq!(last(None, 0.34), [0; 4]);
        for worked in [0.0, 0.34, 0.36] {
            assert_eq!(last(Some(2 * SECOND), worked), [1, 1, 0, 0]);
            assert_eq!(last(Some(Nanos::ZERO), worked), [0; 4]);
        }
    }

    #[test]
    fn the_last_normal_core_is_never_dedicated() {
        for cores in 0_usize..4 {
            let numbers = numbers(cores, |_| 99.0);
            assert!(numbers.iter().all(|number| *number <= cores.saturating_sub(1)), "{cores}");
        }
    }

    #[test]
    fn what_one_of_several_users_tells_adds_no_core() {
        let cores = |honest: u64| {
            let mut state = Cores::new(Settings::of(8), at(0));
            state.step(at(0), true);
            let second = |second: u64| {
                state.worked(UserId(1), u64::MAX);
                state.worked(UserId(2), honest);
                state.step(at(second), true)
            };
            (1..=20).map(second).last()
        };
        // A user who claims everything counts for at most half of each core. A user alone is
        // trusted.
        assert_eq!((cores(SECOND.ns() / 5), cores(0)), (Some(1), Some(7)));
    }

    #[test]
    fn a_clock_that_jumps_changes_nothing() {
        let mut state = Cores::new(Settings::of(8), at(100));
        state.step(at(100), true);
        for now in [0, u64::MAX, 5, 5, u64::MAX - 1, 1] {
            state.worked(UserId(0), u64::MAX);
            assert!((1..8).contains(&state.step(Time::from_ns(now), true)));
        }
    }
}
