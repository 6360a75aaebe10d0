//! Whose calls may be moved, if the cores for them are taken from other users.
//!
//! A program's reports about itself are trusted as far as they cost only that program's user. But
//! the programs of all users are kept off a dedicated core, and the user for whom it is dedicated
//! may lie about what that brings. So that user's own evidence does not count here. If the machine
//! has time left, by the server's own measurement, nothing is taken from other users. Otherwise
//! other users lose something. Their own performance shows how much, when a core is dedicated and
//! when it goes back (as in [`super::loops::trials`], a switchback). If they lose what is
//! worthwhile, the user's calls stay, until that result is so old that it is tried once more.
//!
//! Users who report nothing are not asked, so a mere connection hinders no other user. A user who
//! pretends to lose can keep others' calls where they are while the machine has no time left: that
//! takes nothing that the others would have without a server.

use std::collections::BTreeMap;

use super::UserId;
use crate::ways::WORTHWHILE;

/// Number of samples that are enough for a result. A guess.
const ENOUGH: f64 = 3.0;

/// Number of windows for which a result counts, before it is measured again. A guess, at which a
/// user who takes from others does so in some of a hundred windows.
const KNOWN_WINDOWS: u32 = 70;

/// A loss that one sample is enough to show. A guess: several times the usual noise between
/// windows.
const PLAIN_LOSS: f64 = 3.0 * WORTHWHILE;

/// After this many windows without a result, a user's calls stay for one window, to get one: the
/// second is the first window in which they are moved from start to end.
const UNKNOWN_WINDOWS: u32 = 2;

/// At most this much of a user's gain counts against another's loss. Without a bound, a user who
/// lies would make up for all losses. A guess: the largest change that is no jump of the load,
/// [`super::loops::trials::Settings::least_jump`].
const MOST_GAIN: f64 = 0.05;

/// Least time left for nothing to be taken, as a number of hardware threads. A guess.
const LEAST_IDLE: f64 = 0.25;

/// What a user did in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Seen {
    /// Whether calls were moved.
    pub(super) is_moved: bool,
    /// The change of performance since the window before (natural logarithm), the mean of clients.
    pub(super) change: Option<f64>,
}

/// What is known about a user.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Known {
    /// What others gain (below zero: lose) by a core that is dedicated for this user.
    gain: f64,
    samples: f64,
    /// Number of windows for which the gain still counts as known.
    known_windows: u32,
    /// Number of windows in which calls were moved without a known result.
    unknown_windows: u32,
    is_denied: bool,
    /// The change of this user's own performance since a core was dedicated or went back, if it was
    /// reported all the time.
    since: Option<f64>,
}

/// What is known about users.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Shares {
    known: BTreeMap<UserId, Known>,
    /// Whether a core is dedicated, and the number of windows since that changed.
    phase: (bool, u32),
    /// Users whose calls were moved when a core was last dedicated.
    moved: Vec<UserId>,
}

impl Shares {
    /// Whether a user's calls have to stay.
    pub(super) fn is_denied(&self, user: UserId) -> bool {
        self.known.get(&user).is_some_and(|known| known.is_denied)
    }

    /// Ends a window in which a core was dedicated or not. `idle`: the time that was left on the
    /// hardware threads that are not dedicated, as a number of threads, as far as the server can
    /// measure it. Returns whether any user's share has changed.
    pub(super) fn window(
        &mut self,
        users: &BTreeMap<UserId, Seen>,
        is_dedicated: bool,
        idle: Option<f64>,
    ) -> bool {
        self.learn(users, is_dedicated);
        // A core that is not dedicated yet would take part of the time that is left.
        let taken = if is_dedicated { 0.0 } else { 1.0 };
        let is_left = idle.is_some_and(|idle| idle >= taken + LEAST_IDLE);
        let is_settled = is_dedicated && self.moved.iter().any(|user| self.is_agreed(*user));
        let mut is_changed = false;
        for user in users.keys() {
            let has_others =
                users.iter().any(|(other, seen)| other != user && seen.change.is_some());
            let Some(known) = self.known.get_mut(user) else { continue };
            let is_taken = has_others && !is_left;
            if !is_taken {
                known.unknown_windows = 0;
            }
            let denied = is_taken
                && if known.known_windows > 0 {
                    known.gain < -WORTHWHILE
                } else {
                    known.unknown_windows >= UNKNOWN_WINDOWS && !is_settled
                };
            is_changed |= known.is_denied != denied;
            known.is_denied = denied;
        }
        is_changed
    }

    /// Whether others are known not to lose by a user's moved calls.
    fn is_agreed(&self, user: UserId) -> bool {
        let known = self.known.get(&user);
        known.is_some_and(|known| known.known_windows > 0 && known.gain >= -WORTHWHILE)
    }

    /// Learns from the window about the users for whom a core was dedicated or went back.
    fn learn(&mut self, users: &BTreeMap<UserId, Seen>, is_dedicated: bool) {
        let (was_dedicated, windows) = self.phase;
        let is_new = was_dedicated != is_dedicated;
        self.phase = (is_dedicated, if is_new { 1 } else { windows.saturating_add(1) });
        self.known.retain(|user, _| users.contains_key(user));
        for (user, seen) in users {
            let known = self.known.entry(*user).or_default();
            if known.known_windows == 1 {
                (known.gain, known.samples) = (0.0, 0.0);
            }
            known.known_windows = known.known_windows.saturating_sub(1);
            let before = if is_new { Some(0.0) } else { known.since };
            known.since = before.zip(seen.change).map(|(before, change)| before + change);
            known.unknown_windows += u32::from(seen.is_moved && known.known_windows == 0);
        }
        let moved = users.iter().filter(|(_, seen)| seen.is_moved).map(|(user, _)| *user);
        let moved: Vec<UserId> = moved.collect();
        if !moved.is_empty() {
            self.moved = moved;
        }
        // The first window that is entirely in the new state, against the last one in the old
        // state.
        if self.phase.1 == 2 {
            let sign = if is_dedicated { 1.0 } else { -1.0 };
            for user in self.moved.clone() {
                let gain = self.others(user, sign);
                self.sample(user, gain);
            }
        }
    }

    /// What others have gained by a core that was dedicated, or lost by one that went back: the
    /// mean over users who reported anything.
    fn others(&self, user: UserId, sign: f64) -> Option<f64> {
        let others = self.known.iter().filter(|(other, _)| **other != user);
        let gains = others.filter_map(|(_, known)| known.since).map(|since| sign * since);
        let (mut sum, mut count) = (0.0, 0.0);
        for gain in gains.filter(|gain| gain.is_finite()) {
            sum += gain.clamp(-std::f64::consts::LN_2, MOST_GAIN);
            count += 1.0;
        }
        (count > 0.0).then(|| sum / count)
    }

    fn sample(&mut self, user: UserId, gain: Option<f64>) {
        let Some(known) = self.known.get_mut(&user) else { return };
        known.unknown_windows = 0;
        let Some(gain) = gain else { return };
        known.gain = (known.gain * known.samples + gain) / (known.samples + 1.0);
        known.samples += 1.0;
        if known.samples >= ENOUGH || known.gain < -PLAIN_LOSS {
            known.known_windows = KNOWN_WINDOWS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIAR: UserId = UserId(1);
    const HONEST: UserId = UserId(2);
    const THIRD: UserId = UserId(3);

    /// Runs windows in which the liar wants its calls moved all the time. Others' performance is
    /// higher by these gains while its calls are moved. Returns the part of windows in which they
    /// are moved.
    fn share(others: &[(UserId, f64)], idle: Option<f64>, windows: u32) -> f64 {
        let (mut shares, mut was, mut count) = (Shares::default(), false, 0);
        for _ in 0..windows {
            let is_moved = !shares.is_denied(LIAR);
            let step = f64::from(u8::from(is_moved)) - f64::from(u8::from(was));
            let own = Seen { is_moved, change: Some(step * std::f64::consts::LN_2) };
            let others = others
                .iter()
                .map(|(user, gain)| (*user, Seen { is_moved: false, change: Some(step * gain) }));
            shares.window(&others.chain([(LIAR, own)]).collect(), is_moved, idle);
            was = is_moved;
            count += u32::from(is_moved);
        }
        f64::from(count) / f64::from(windows)
    }

    #[test]
    fn a_user_from_whom_others_lose_has_hardly_a_share() {
        for loss in [-0.02, -0.1, -0.5] {
            let share = share(&[(HONEST, loss)], None, 2000);
            assert!(share > 0.0 && share < 0.08, "{loss} {share}");
        }
        // An accomplice of another name does not help, whatever gain it claims.
        let with_accomplice = share(&[(HONEST, -0.2), (THIRD, 0.69)], Some(0.0), 2000);
        assert!(with_accomplice < 0.05, "{with_accomplice}");
    }

    #[test]
    fn where_others_lose_nothing_or_gain_calls_are_moved() {
        for gain in [0.0, 0.005, 0.1] {
            let share = share(&[(HONEST, gain)], None, 2000);
            assert!(share > 0.95, "{gain} {share}");
        }
    }

    #[test]
    fn nothing_is_taken_where_there_is_time_left_or_nobody_else() {
        assert!((share(&[(HONEST, -0.5)], Some(1.25), 100) - 1.0).abs() < 1e-9);
        assert!((share(&[], None, 100) - 1.0).abs() < 1e-9);
        assert!(share(&[(HONEST, -0.5)], Some(0.2), 1000) < 0.05);
    }

    #[test]
    fn users_who_tell_nothing_hinder_nobody() {
        let mut shares = Shares::default();
        for _ in 0..100 {
            let users = BTreeMap::from([
                (LIAR, Seen { is_moved: true, change: Some(0.0) }),
                (HONEST, Seen::default()),
            ]);
            shares.window(&users, true, None);
            assert!(!shares.is_denied(LIAR));
        }
    }

    #[test]
    fn one_who_was_there_only_with_another_is_looked_at_when_that_one_goes() {
        let (mut shares, mut was) = (Shares::default(), [false; 2]);
        // Others lose by the liar alone.
        let mut windows = |wanted: [bool; 2], count: usize| {
            let window = |_| {
                let moved = [0, 1].map(|at| wanted[at] && !shares.is_denied([LIAR, THIRD][at]));
                let loses = |moved: [bool; 2]| f64::from(u8::from(moved == [true, false]));
                let honest = 0.1 * (loses(was) - loses(moved));
                was = moved;
                let users = BTreeMap::from([
                    (LIAR, Seen { is_moved: moved[0], change: Some(0.0) }),
                    (THIRD, Seen { is_moved: moved[1], change: Some(0.0) }),
                    (HONEST, Seen { is_moved: false, change: Some(honest) }),
                ]);
                shares.window(&users, moved != [false; 2], Some(0.0));
                moved
            };
            (0..count).map(window).collect::<Vec<_>>()
        };
        windows([false, false], 3);
        assert!(windows([false, true], 50)[20..].iter().all(|moved| moved[1]));
        // While another user is known to do no harm, a core is there anyway.
        assert!(windows([true, true], 10).iter().all(|moved| moved[0]));
        // Then the core is the liar's alone: that is known after some windows, and for long.
        let alone = windows([true, false], 100);
        let share = alone.iter().filter(|moved| moved[0]).count();
        assert!(share < 15, "{share}");
    }
}
