//! Resources of each user at the server, limited so that no user can take another's.

use std::collections::BTreeSet;

use dimmer_policy::server::timing::Reference;

use super::Server;

/// Maximum number of a user's connections that have not sent a request. A client sends one at once:
/// a guess that leaves room for a busy machine.
const SILENT: usize = 16;

/// Maximum number of a user's connections that watch or record. A guess: people with screens, and
/// collectors of metrics.
const WATCHERS: usize = 64;

/// Maximum number of connections that watch or record in all. A guess: some users' worth.
const ALL_WATCHERS: usize = 512;

/// One user's share of a common resource: half of what the others leave, so that something is left
/// for each new user.
pub(super) const fn share(all: usize, of_others: usize) -> usize {
    all.saturating_sub(of_others) / 2
}

impl Server {
    /// One user's share of a common resource.
    pub(super) fn share(&self, user: u32, all: usize, of: impl Fn(&User) -> usize) -> usize {
        let others = self.users.iter().filter(|(other, _)| **other != user);
        share(all, others.map(|(_, other)| of(other)).sum())
    }

    /// Turns a silent connection into one that watches or records.
    ///
    /// # Errors
    /// If too many connections do so.
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

/// The resources of one user.
#[derive(Debug, Default)]
pub(super) struct User {
    /// Number of clients that are served.
    pub(super) clients: usize,
    /// Number of sites of all clients.
    pub(super) sites: usize,
    /// Number of files of all counters of the clients.
    pub(super) files: usize,
    /// Whether the log has reported that the files have reached their limit.
    pub(super) is_told: bool,
    /// Connections that have not sent a request, by number: the oldest is first.
    pub(super) silent: BTreeSet<u64>,
    /// Number of connections that watch or record.
    pub(super) watchers: usize,
    /// The clock that the clocks of its clients are compared with.
    pub(super) reference: Reference,
}

impl User {
    /// The oldest silent connection, if there are as many as allowed. It has to send a request or
    /// be closed before another one is admitted.
    pub(super) fn too_silent(&self) -> Option<u64> {
        self.silent.first().copied().filter(|_| self.silent.len() >= SILENT)
    }

    /// Whether the user has no connection left.
    pub(super) fn is_gone(&self) -> bool {
        self.clients == 0 && self.silent.is_empty() && self.watchers == 0
    }
}
