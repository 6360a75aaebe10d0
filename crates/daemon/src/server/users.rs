//! Resources of each user at the server, limited so that no user can take another's.
//!
//! A user is known as long as it has a connection. A connection is silent until it has sent its
//! request; then it is a client's, or it watches or records.

use std::collections::{BTreeSet, HashMap};

use dimmer_policy::server::timing::Reference;

/// Maximum number of a user's connections that have not sent a request. A client sends one at once:
/// a guess that leaves room for a busy machine.
const SILENT: usize = 16;

/// Maximum number of a user's connections that watch or record. A guess: people with screens, and
/// collectors of metrics.
const WATCHERS: usize = 64;

/// Maximum number of connections that watch or record in all. A guess: some users' worth.
const ALL_WATCHERS: usize = 512;

/// Maximum number of a user's programs whose clocks are moderated, and of all users' programs: all
/// of their boards are read at each decision. Guesses.
const CLOCKS: usize = 64;
const ALL_CLOCKS: usize = 1024;

/// One user's share of a common resource: half of what the others leave, so that something is left
/// for each new user.
const fn share(all: usize, of_others: usize) -> usize {
    all.saturating_sub(of_others) / 2
}

/// All users that have a connection.
#[derive(Debug, Default)]
pub(super) struct Users {
    known: HashMap<u32, User>,
    /// Number of sites of all users.
    sites: usize,
}

/// The resources of one user.
#[derive(Debug, Default)]
struct User {
    /// Number of clients that are served.
    clients: usize,
    /// Number of sites of all clients.
    sites: usize,
    /// Number of files of all counters of the clients.
    files: usize,
    /// Whether the log has reported that the files have reached their limit.
    is_told: bool,
    /// Connections that have not sent a request, by number: the oldest is first.
    silent: BTreeSet<u64>,
    /// Number of connections that watch or record.
    watchers: usize,
    /// Number of programs whose clocks are moderated.
    clocks: usize,
    /// Number of ended connections over which it has not received everything. They count as
    /// connections of each kind.
    unreceived: usize,
    /// The clock that the clocks of its clients are compared with.
    reference: Reference,
}

/// Why a counter's files are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooManyFiles {
    /// The files that the user may have.
    pub(super) most: usize,
    /// The files that it has.
    pub(super) has: usize,
    /// Whether this is the first refusal since the user came.
    pub(super) is_first: bool,
}

impl Users {
    /// One user's share of a common resource.
    fn share(&self, user: u32, all: usize, of: impl Fn(&User) -> usize) -> usize {
        let others = self.known.iter().filter(|(other, _)| **other != user);
        share(all, others.map(|(_, other)| of(other)).sum())
    }

    fn of(&mut self, user: u32) -> &mut User {
        self.known.entry(user).or_default()
    }

    /// Whether any client is served.
    pub(super) fn has_clients(&self) -> bool {
        self.known.values().any(|user| user.clients > 0)
    }

    /// A connection of the user has come. It is silent.
    pub(super) fn comes(&mut self, user: u32, connection: u64) {
        self.of(user).silent.insert(connection);
    }

    /// The user's oldest silent connection, if there are as many as allowed. It has to send a
    /// request or be closed before another one is admitted.
    pub(super) fn too_silent(&self, user: u32) -> Option<u64> {
        let silent = &self.known.get(&user)?.silent;
        silent.first().copied().filter(|_| silent.len() >= SILENT)
    }

    /// Whether the user may have another client, of `most` for each user, while there may be
    /// `connections` in all.
    ///
    /// # Errors
    /// If the user has as many clients as it may have.
    pub(super) fn may_serve(
        &self,
        user: u32,
        most: usize,
        connections: usize,
    ) -> Result<(), String> {
        let count = |user: &User| user.clients + user.unreceived;
        let most = most.min(self.share(user, connections, count));
        if self.known.get(&user).is_some_and(|user| count(user) >= most) {
            return Err(format!("this user has {most} clients already"));
        }
        Ok(())
    }

    /// A silent connection is a client's from now on.
    pub(super) fn serves(&mut self, user: u32, connection: u64) {
        let user = self.of(user);
        user.silent.remove(&connection);
        user.clients += 1;
    }

    /// A silent connection watches or records from now on.
    ///
    /// # Errors
    /// If too many connections do so.
    pub(super) fn watches(&mut self, user: u32, connection: u64) -> Result<(), String> {
        let most = WATCHERS.min(self.share(user, ALL_WATCHERS, |user| user.watchers));
        let user = self.of(user);
        if user.watchers + user.unreceived >= most {
            return Err(format!("this user has {most} watchers already"));
        }
        user.silent.remove(&connection);
        user.watchers += 1;
        Ok(())
    }

    /// A silent connection is one of a program whose clocks are moderated from now on.
    ///
    /// # Errors
    /// If there are too many such programs.
    pub(super) fn asks_for_clocks(&mut self, user: u32, connection: u64) -> Result<(), String> {
        let most = CLOCKS.min(self.share(user, ALL_CLOCKS, |user| user.clocks));
        let user = self.of(user);
        if user.clocks + user.unreceived >= most {
            return Err(format!("this user has {most} programs that ask for clocks already"));
        }
        user.silent.remove(&connection);
        user.clocks += 1;
        Ok(())
    }

    /// A program whose clocks were moderated has gone.
    pub(super) fn clocks_leave(&mut self, user: u32) {
        let known = self.of(user);
        known.clocks = known.clocks.saturating_sub(1);
        self.forget_if_gone(user);
    }

    /// A silent connection has gone.
    pub(super) fn silent_leaves(&mut self, user: u32, connection: u64) {
        self.of(user).silent.remove(&connection);
        self.forget_if_gone(user);
    }

    /// A connection that watches or records has gone.
    pub(super) fn watcher_leaves(&mut self, user: u32) {
        let known = self.of(user);
        known.watchers = known.watchers.saturating_sub(1);
        self.forget_if_gone(user);
    }

    /// A client with this number of sites and of files for counters has gone.
    pub(super) fn client_leaves(&mut self, user: u32, sites: usize, files: usize) {
        let known = self.of(user);
        known.clients = known.clients.saturating_sub(1);
        known.sites = known.sites.saturating_sub(sites);
        known.files = known.files.saturating_sub(files);
        self.sites = self.sites.saturating_sub(sites);
        self.forget_if_gone(user);
    }

    /// A connection has ended over which the user has not received everything.
    pub(super) fn leaves_unreceived(&mut self, user: u32) {
        self.of(user).unreceived += 1;
    }

    /// The user has received everything over such a connection, or has closed it.
    pub(super) fn was_received(&mut self, user: u32) {
        let known = self.of(user);
        known.unreceived = known.unreceived.saturating_sub(1);
        self.forget_if_gone(user);
    }

    fn forget_if_gone(&mut self, user: u32) {
        let is_gone = |user: &User| {
            let ended = user.unreceived;
            user.clients + user.silent.len() + user.watchers + user.clocks + ended == 0
        };
        if self.known.get(&user).is_some_and(is_gone) {
            self.known.remove(&user);
        }
    }

    /// How many more sites the user may have, of `most` for each user and `all` for all of them.
    pub(super) fn room_for_sites(&self, user: u32, most: usize, all: usize) -> usize {
        let own = self.known.get(&user).map_or(0, |user| user.sites);
        most.min(share(all, self.sites - own)).saturating_sub(own)
    }

    /// A client of the user has this number of new sites.
    pub(super) fn add_sites(&mut self, user: u32, sites: usize) {
        self.of(user).sites += sites;
        self.sites += sites;
    }

    /// Whether a client's counters may have `files` files, beside those that the user has. `all`:
    /// the files for all users' counters. A user gets half of what others leave, so that something
    /// is left for each new user.
    ///
    /// # Errors
    /// If these are too many.
    pub(super) fn may_open(
        &mut self,
        user: u32,
        files: usize,
        all: usize,
    ) -> Result<(), TooManyFiles> {
        let most = self.share(user, all, |user| user.files);
        let known = self.of(user);
        if known.files + files > most {
            let is_first = !std::mem::replace(&mut known.is_told, true);
            return Err(TooManyFiles { most, has: known.files, is_first });
        }
        Ok(())
    }

    /// Counts files of counters for the user.
    pub(super) fn add_files(&mut self, user: u32, files: usize) {
        self.of(user).files += files;
    }

    /// Files of counters no longer count for the user.
    pub(super) fn take_files(&mut self, user: u32, files: usize) {
        let known = self.of(user);
        known.files = known.files.saturating_sub(files);
    }

    /// The clock that the clocks of the user's clients are compared with (ticks of a chain).
    pub(super) fn reference(&self, user: u32) -> Option<f64> {
        self.known.get(&user)?.reference.ticks()
    }

    /// A chain took `ticks` before a region of the user.
    pub(super) fn note_clock(&mut self, user: u32, ticks: f64) {
        self.of(user).reference.note(ticks);
    }

    /// Ends a look at all clients.
    pub(super) fn end_look(&mut self) {
        self.known.values_mut().for_each(|user| user.reference.turn());
    }
}

#[cfg(test)]
impl Users {
    /// Number of users that are known.
    pub(super) fn count(&self) -> usize {
        self.known.len()
    }

    /// Whether files of this user were refused.
    pub(super) fn was_refused(&self, user: u32) -> bool {
        self.known.get(&user).is_some_and(|user| user.is_told)
    }

    /// The clients, sites, files and watchers of a user; `None` if it is not known.
    pub(super) fn numbers(&self, user: u32) -> Option<[usize; 4]> {
        let User { clients, sites, files, watchers, .. } = self.known.get(&user)?;
        Some([*clients, *sites, *files, *watchers])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_known_as_long_as_it_has_a_connection() {
        let mut users = Users::default();
        users.comes(7, 1);
        users.comes(7, 2);
        users.comes(7, 3);
        users.serves(7, 1);
        assert!(users.has_clients());
        users.watches(7, 2).unwrap();
        users.add_sites(7, 5);
        users.add_files(7, 3);
        users.client_leaves(7, 5, 3);
        assert!(!users.has_clients());
        assert_eq!(users.numbers(7), Some([0, 0, 0, 1]));
        users.watcher_leaves(7);
        users.silent_leaves(7, 3);
        assert_eq!((users.count(), users.sites), (0, 0));
    }

    #[test]
    fn the_oldest_silent_connection_makes_room_once_there_are_as_many_as_allowed() {
        let mut users = Users::default();
        for connection in 10..9 + SILENT as u64 {
            users.comes(7, connection);
        }
        assert_eq!(users.too_silent(7), None);
        users.comes(7, 99);
        users.comes(8, 1);
        assert_eq!((users.too_silent(7), users.too_silent(8)), (Some(10), None));
        users.serves(7, 10);
        assert_eq!(users.too_silent(7), None);
    }

    #[test]
    fn each_user_leaves_something_to_the_next() {
        let mut users = Users::default();
        let mut taken = Vec::new();
        for user in 0..4 {
            users.comes(user, u64::from(user));
            let mut sites = 0;
            while users.room_for_sites(user, usize::MAX, 1000) > 0 {
                users.add_sites(user, 1);
                sites += 1;
            }
            taken.push(sites);
        }
        assert_eq!(taken, [500, 250, 125, 62]);
        assert_eq!(users.room_for_sites(9, 20, 1000), 20);
    }

    #[test]
    fn files_beyond_the_share_are_refused_and_said_once() {
        let mut users = Users::default();
        users.comes(7, 1);
        assert_eq!(users.may_open(7, 50, 100), Ok(()));
        users.add_files(7, 50);
        let refused = |is_first| Err(TooManyFiles { most: 50, has: 50, is_first });
        assert_eq!(users.may_open(7, 1, 100), refused(true));
        assert_eq!(users.may_open(7, 1, 100), refused(false));
        users.take_files(7, 50);
        assert_eq!(users.may_open(7, 1, 100), Ok(()));
        // Others get half of what is left.
        users.add_files(7, 50);
        assert_eq!(users.may_open(8, 25, 100), Ok(()));
        assert!(users.may_open(8, 26, 100).is_err());
    }

    #[test]
    fn programs_that_ask_for_clocks_are_limited_and_no_clients() {
        let mut users = Users::default();
        let ask = |users: &mut Users, user: u32| {
            let all = (0..).take_while(|number| users.asks_for_clocks(user, *number).is_ok());
            all.count()
        };
        assert_eq!(ask(&mut users, 7), CLOCKS);
        assert!(!users.has_clients());
        let all: Vec<usize> = (100..130).map(|user| ask(&mut users, user)).collect();
        assert_eq!(all[..3], [CLOCKS; 3]);
        assert!(all.iter().sum::<usize>() < ALL_CLOCKS, "{all:?}");
        (0..CLOCKS).for_each(|_| users.clocks_leave(7));
        assert_eq!(users.numbers(7), None);
    }

    #[test]
    fn clients_and_watchers_are_limited() {
        let mut users = Users::default();
        for connection in 0..2 {
            assert_eq!(users.may_serve(7, 2, 100), Ok(()));
            users.comes(7, connection);
            users.serves(7, connection);
        }
        assert!(users.may_serve(7, 2, 100).unwrap_err().contains("2 clients already"));
        // Connections that others have count as well.
        assert!(users.may_serve(8, 9, 2).is_ok() && users.may_serve(7, 9, 2).is_err());
        let watches = |users: &mut Users, user: u32| {
            (0..).take_while(|connection| users.watches(user, *connection).is_ok()).count()
        };
        assert_eq!(watches(&mut users, 7), WATCHERS);
        let left = users.share(9, ALL_WATCHERS, |user| user.watchers);
        assert_eq!(left, (ALL_WATCHERS - WATCHERS) / 2);
    }
}
