//! Ends of connections.
//!
//! A file that was sent and not received is in flight. The kernel limits the files in flight of the
//! server's user (`ETOOMANYREFS`, unix(7)): at the limit, no client gets an answer any more. Files
//! stay in flight when the server closes its end of the connection. So an ended connection counts
//! for the other side's user until that side has received everything, or has closed its end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dimmer_protocol::Socket;
use rustix::event::epoll;
use rustix::net::{Shutdown, shutdown};
use tracing::info;

use super::{Server, Wants};
use crate::counters::Counters;
use dimmer_watch::record::Line;

/// Interval of the checks whether ended connections were received. A guess: a check takes a system
/// call for each connection.
const PERIOD: Duration = Duration::from_millis(100);

/// Ended connections whose other side has not received everything, with its user.
#[derive(Debug, Default)]
pub(super) struct Unreceived {
    connections: Vec<(u32, Arc<Socket>)>,
    /// Time of the next check.
    next: Option<Instant>,
}

impl Unreceived {
    /// Number of connections. Each is a file of this process.
    pub(super) fn count(&self) -> usize {
        self.connections.len()
    }
}

/// Whether anything that was sent has not been received yet.
fn is_unreceived(socket: &Socket) -> bool {
    dimmer_protocol::is_all_received(socket).is_ok_and(|is_all| !is_all)
}

impl Server {
    /// Removes a peer that has gone or must go.
    pub(super) fn part(&mut self, number: u64, why: &str) {
        let Some(peer) = self.peers.remove(&number) else { return };
        // Closing a file removes it from epoll only if this was the last copy; a passed-on file has
        // others.
        let _ = epoll::delete(&self.events, &peer.socket);
        // The teller and the moderator may have the socket, too. They can send nothing from now on,
        // and the moderator ends the requests. A recording still gets the lines before its end.
        if !matches!(peer.wants, Wants::Record) {
            let _ = shutdown(&peer.socket, Shutdown::Both);
        }
        if is_unreceived(&peer.socket) {
            self.users.leaves_unreceived(peer.user);
            self.unreceived.connections.push((peer.user, peer.socket));
        }
        match &peer.wants {
            Wants::Unknown => self.users.silent_leaves(peer.user, number),
            Wants::Watch { asks } => {
                self.users.watcher_leaves(peer.user);
                if let Some(order) = asks {
                    self.requests.withdraw(*order);
                }
            }
            Wants::Record => self.users.watcher_leaves(peer.user),
            Wants::Clocks(_) => self.users.clocks_leave(peer.user),
            Wants::Decisions(client) => {
                let files = client.counters.as_ref().map_or(0, Counters::files);
                self.users.client_leaves(peer.user, client.sites.len(), files);
            }
        }
        let Wants::Decisions(mut client) = peer.wants else { return };
        self.look_at_last(&mut client);
        client.table.leave();
        client.table.free();
        self.policy.leave(client.id);
        self.note(Line::Leave { client: number });
        for (program, site) in self.names.leave(client.program, &client.sites) {
            self.policy.forget(program, site);
            self.note(Line::Forget { program: program.0, site: site.map(|site| site.0) });
        }
        info!(pid = client.process, uid = client.user, name = client.name, "client {why}");
        if self.dedicated > 0 && !self.has_clients() {
            // No look follows that would give the cores back.
            self.dedicate(0);
        }
    }

    /// Closes ended connections that were received by now, if it is time to check that. Returns the
    /// time of the next check, if there are any connections left.
    pub(super) fn close_received(&mut self, now: Instant) -> Option<Instant> {
        let Unreceived { connections, next } = &mut self.unreceived;
        if next.is_none_or(|next| next <= now) {
            connections.retain(|(user, socket)| {
                let is_unreceived = is_unreceived(socket);
                if !is_unreceived {
                    self.users.was_received(*user);
                }
                is_unreceived
            });
            *next = Some(now + PERIOD);
        }
        next.filter(|_| !connections.is_empty())
    }
}
