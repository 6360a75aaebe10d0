//! What trials have cost each of several users.
//!
//! The joint work of all programs hides what one user loses while others gain. So each user has an
//! account of what trials have cost that user, by the rates measured. Gains by chance make up for
//! losses by chance, so an account is a sum of both.

use std::collections::{BTreeMap, BTreeSet};

use super::work::gain;

/// The users whose work is measured, and their accounts.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Accounts {
    /// The user of each program; empty: all programs are one user's.
    pub(super) users: Vec<u32>,
    /// What trials have cost each user against none (ns of the user's work), those long ago less.
    lost: BTreeMap<u32, f64>,
}

impl Accounts {
    /// Whether there are several users. One alone has the account of the joint work.
    fn are_several(&self) -> bool {
        self.users.windows(2).any(|two| two[0] != two[1])
    }

    /// What each user loses by these rates of programs against others, for this long (ns).
    fn losses(&self, own: &[f64], other: &[f64], span: f64) -> BTreeMap<u32, f64> {
        let mut of_users: BTreeMap<u32, (Vec<f64>, Vec<f64>)> = BTreeMap::new();
        let users = self.users.iter().filter(|_| self.are_several());
        for ((user, own), other) in users.zip(own).zip(other) {
            let (owns, others) = of_users.entry(*user).or_default();
            owns.push(*own);
            others.push(*other);
        }
        let loss = |(user, (own, other)): (u32, (Vec<f64>, Vec<f64>))| {
            Some((user, -gain(&own, &other, &[])?.clamp(-1.0, 1.0) * span))
        };
        of_users.into_iter().filter_map(loss).collect()
    }

    /// Adds what a trial has cost.
    pub(super) fn add(&mut self, own: &[f64], other: &[f64], span: f64) {
        for (user, loss) in self.losses(own, other, span) {
            *self.lost.entry(user).or_default() += loss;
        }
    }

    /// Adds a loss of all users that was not measured (ns).
    pub(super) fn add_unmeasured(&mut self, lost: f64) {
        if self.are_several() {
            for user in &self.users.iter().copied().collect::<BTreeSet<_>>() {
                *self.lost.entry(*user).or_default() += lost;
            }
        }
    }

    /// Makes all losses less.
    pub(super) fn repay(&mut self, left: impl Fn(f64) -> f64) {
        self.lost.values_mut().for_each(|lost| *lost = left(*lost));
        self.lost.retain(|_, lost| lost.abs() >= 1.0);
    }

    /// What the user whose work is measured and who has lost the most has lost (ns).
    pub(super) fn most(&self) -> f64 {
        self.most_with(&[], &[], 0.0)
    }

    /// The same with a trial that is under way, by its rates so far.
    pub(super) fn most_with(&self, own: &[f64], other: &[f64], span: f64) -> f64 {
        let now = self.losses(own, other, span);
        let lost = |user: &u32| {
            let of = |map: &BTreeMap<u32, f64>| map.get(user).copied().unwrap_or(0.0);
            of(&self.lost) + of(&now)
        };
        let users = self.users.iter().filter(|_| self.are_several());
        users.map(lost).fold(0.0, f64::max)
    }
}
