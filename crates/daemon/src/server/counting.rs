//! Which clients' processes are counted, and when their counters are opened.
//!
//! Opening takes system calls for each thread, on the thread that serves all clients, so it is done
//! a little at a time. Each counter needs a file, and the number of files is limited: no user gets
//! them all.

use std::time::{Duration, Instant};

use tracing::{debug, warn};

use super::users::TooManyFiles;
use super::{Server, Wants};
use crate::counters::Counters;

/// Time for opening counters at once: when a client connects, and at each look. One more thread's
/// counters may be under way when it ends. A guess: half of the shortest period that the settings
/// allow.
pub(super) const AT_ONCE: Duration = Duration::from_micros(500);

impl Server {
    /// Counters for a process that connects, opened as far as the time allows; `None` if it is not
    /// counted. Their files do not count for the user yet.
    pub(super) fn count(&mut self, who: (i32, u32)) -> Option<Counters> {
        let counters = self.found.counted.as_ref()?.of_client(who);
        let counters = counters.inspect_err(|why| debug!(pid = who.0, %why, "not counted")).ok()?;
        self.open(counters, who, 0, Instant::now() + AT_ONCE)
    }

    /// Opens counters that are not all open: those of at least one thread, and more until `until`.
    pub(super) fn count_on(&mut self, until: Instant) {
        while let Some((number, (process, uid), counters)) = self.take_unopened() {
            let granted = counters.files();
            self.users.take_files(uid, granted);
            let counters = self.open(counters, (process, uid), granted, until);
            self.give(number, counters);
            if Instant::now() >= until {
                return;
            }
        }
    }

    /// Takes a client's counters that are not all open, with the client's number, process and user.
    /// Their files still count for the user.
    fn take_unopened(&mut self) -> Option<(u64, (i32, u32), Counters)> {
        self.peers.values_mut().find_map(|peer| {
            let Wants::Decisions(client) = &mut peer.wants else { return None };
            let counters = client.counters.take_if(|counters| !counters.is_open)?;
            Some((client.id.0, (client.process, client.user), counters))
        })
    }

    /// Gives a client its counters, and counts their files for its user.
    pub(super) fn give(&mut self, number: u64, counters: Option<Counters>) {
        let Some(peer) = self.peers.get_mut(&number) else { return };
        let Wants::Decisions(client) = &mut peer.wants else { return };
        self.users.add_files(client.user, counters.as_ref().map_or(0, Counters::files));
        client.counters = counters;
    }

    /// Opens the counters of at least one thread, and more until `until`. `None` if they cannot be
    /// opened or need more files than the user may have and than were granted.
    pub(super) fn open(
        &mut self,
        mut counters: Counters,
        (process, uid): (i32, u32),
        granted: usize,
        until: Instant,
    ) -> Option<Counters> {
        // A quarter of all files.
        let all = self.most_peers / 4;
        loop {
            let files = counters.files();
            if files > granted
                && let Err(TooManyFiles { most, has, is_first }) =
                    self.users.may_open(uid, files, all)
            {
                let why = format!("it takes {files} files, and of {most} its user has {has}");
                debug!(pid = process, why, "not counted");
                if is_first {
                    warn!(
                        uid,
                        most,
                        "this user's programs take as many counters as they may: others of it are not counted"
                    );
                }
                return None;
            }
            let opened = counters.open_next(&self.options.root);
            opened.inspect_err(|why| debug!(pid = process, %why, "not counted")).ok()?;
            if counters.is_open || Instant::now() >= until {
                return Some(counters);
            }
        }
    }
}
