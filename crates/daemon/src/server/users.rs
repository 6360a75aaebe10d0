//! What each user has of the server, so that no user can take what is another's.

use std::collections::BTreeSet;

use dimmer_policy::server::timing::Reference;

use super::Server;

/// How many of a user's may be connected without having said what for. Who connects says so at
/// once: a guess that leaves room for a busy machine.
const SILENT: usize = 16;

/// How many of a user's may watch or record. A guess: people with screens, and what collects
/// metrics.
const WATCHERS: usize = 64;

/// How many may watch or record in all. A guess: some users' worth.
const ALL_WATCHERS: usize = 512;

/// How many of something that there is for all one user may have: half of what the others leave, so
/// that something is left for each who comes.
pub(super) const fn share(all: usize, of_others: usize) -> usize {
    all.saturating_sub(of_others) / 2
}

impl Server {
    /// How many of something that there is for all one user may have.
    pub(super) fn share(&self, user: u32, all: usize, of: impl Fn(&User) -> usize) -> usize {
        let others = self.users.iter().filter(|(other, _)| **other != user);
        share(all, others.map(|(_, other)| of(other)).sum())
    }

    /// A silent one watches or records from now on.
    ///
    /// # Errors
    /// If too many do.
    pub(super) fn watch(&mut self, number: u64, user: u32) -> Result<(), String> {
        let most = WATCHERS.min(self.share(user, ALL_WATCHERS, |user| user.watchers));
        let user = self.users.entry(user).or_default();
        if user.watchers >= most {
            return Err(format!("this user has {most} watchers already"));
        }
        user.silent.remove(&number);
        user.watchers += 1;
        Ok(())
    }
}

/// What one user has.
#[derive(Debug, Default)]
pub(super) struct User {
    /// Clients that are served.
    pub(super) clients: usize,
    /// Sites of all of them.
    pub(super) sites: usize,
    /// Files of all of their counters.
    pub(super) files: usize,
    /// Whether the log tells that these are as many as may be.
    pub(super) is_told: bool,
    /// Those who have not said what they want, by number: the oldest is first.
    pub(super) silent: BTreeSet<u64>,
    /// Those who watch or record.
    pub(super) watchers: usize,
    /// The clock that its clients' are compared with.
    pub(super) reference: Reference,
}

impl User {
    /// Who has to speak or go before another one can be let in: the oldest silent one, if there are
    /// as many as may be.
    pub(super) fn too_silent(&self) -> Option<u64> {
        self.silent.first().copied().filter(|_| self.silent.len() >= SILENT)
    }

    /// Whether nothing is left of it.
    pub(super) fn is_gone(&self) -> bool {
        self.clients == 0 && self.silent.is_empty() && self.watchers == 0
    }
}
