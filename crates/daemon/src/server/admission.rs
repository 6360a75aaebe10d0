//! Admission of connections.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dimmer_protocol::{Credentials, Socket};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::SocketFlags;
use tracing::warn;

use super::{LISTENER, Peer, Server, WELCOMES, Wants};

/// How long no connection is admitted when the system has no room for another one.
const PAUSE: Duration = Duration::from_millis(100);

/// Minimum interval between log lines about that.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// A pause in admission. The listener's event stays ready as long as connections wait, and the
/// server would do nothing but try to accept them.
#[derive(Debug, Default)]
pub(super) struct Pause {
    until: Option<Instant>,
    told: Option<Instant>,
}

impl Server {
    /// Admits some of the waiting connections.
    pub(super) fn accept(&mut self) {
        /// Maximum number of ended connections that wait to be closed. A guess: some looks' worth.
        const UNCLOSED: usize = 1024;
        for _ in 0..WELCOMES {
            if self.closer.waiting() >= UNCLOSED {
                return self.pause("too many connections are not closed yet");
            }
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&self.listener, flags) {
                Ok(socket) => {
                    let socket = Socket::new(socket, &self.closer);
                    if let Ok(who) = dimmer_protocol::credentials(&socket) {
                        self.admit(socket, who);
                    }
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                Err(error) => return self.pause(&error.to_string()),
            }
        }
    }

    /// Admits the waiting connections of this process's own threads.
    pub(super) fn accept_internal(&mut self) {
        for socket in self.internal.coming() {
            let socket = Socket::new(socket, &self.closer);
            if let Ok(who) = dimmer_protocol::credentials(&socket) {
                self.admit(socket, who);
            }
        }
    }

    /// Admits a connection. If the user has as many silent ones as allowed, the oldest is closed.
    pub(super) fn admit(&mut self, socket: Socket, who: Credentials) {
        let Credentials { process, user } = who;
        if let Some(oldest) = self.users.too_silent(user) {
            // A request that it has sent in the meantime counts.
            self.hear(oldest);
            if self.peers.get(&oldest).is_some_and(|peer| matches!(peer.wants, Wants::Unknown)) {
                self.part(oldest, "said nothing");
            }
        }
        if self.peers.len() + self.unreceived.count() >= self.most_peers {
            return;
        }
        let number = self.next_peer;
        let wanted = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        if epoll::add(&self.events, &socket, epoll::EventData::new_u64(number), wanted).is_err() {
            return;
        }
        self.next_peer += 1;
        self.users.comes(user, number);
        self.peers.insert(
            number,
            Peer { socket: Arc::new(socket), process, user, wants: Wants::Unknown },
        );
    }

    fn pause(&mut self, why: &str) {
        let now = Instant::now();
        if self.pause.told.is_none_or(|told| now.duration_since(told) >= TOLD_EVERY) {
            self.pause.told = Some(now);
            warn!(why, "cannot let clients in for now");
        }
        let _ = self.listen_for(epoll::EventFlags::empty());
        self.pause.until = Some(now + PAUSE);
    }

    /// Listens again if a pause is over; otherwise returns when it will be.
    pub(super) fn end_pause(&mut self) -> Option<Instant> {
        let until = self.pause.until?;
        let now = Instant::now();
        let goes_on = if now < until {
            Some(until)
        } else {
            self.listen_for(epoll::EventFlags::IN).err().map(|_| now + PAUSE)
        };
        self.pause.until = goes_on;
        goes_on
    }

    fn listen_for(&self, what: epoll::EventFlags) -> rustix::io::Result<()> {
        epoll::modify(&self.events, &self.listener, epoll::EventData::new_u64(LISTENER), what)
    }
}
