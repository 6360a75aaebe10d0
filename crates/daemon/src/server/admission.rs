//! Who is let in.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dimmer_protocol::{Credentials, Socket};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::SocketFlags;
use tracing::warn;

use super::{LISTENER, Peer, Server, WELCOMES, Wants};

/// For how long nobody is let in when the system has no room for another.
const PAUSE: Duration = Duration::from_millis(100);

/// How often that is told at most.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// When nobody is let in. The listener reports who waits as long as anybody does, and the server
/// would do nothing but try.
#[derive(Debug, Default)]
pub(super) struct Pause {
    until: Option<Instant>,
    told: Option<Instant>,
}

impl Server {
    /// Lets in some of those who wait to be.
    pub(super) fn accept(&mut self) {
        /// Of those who have gone, as many may wait to be closed. A guess: some looks' worth.
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

    /// Lets somebody in. Where the user's silent ones are as many as may be, the oldest has to go.
    pub(super) fn admit(&mut self, socket: Socket, who: Credentials) {
        let Credentials { process, user } = who;
        if let Some(oldest) = self.users.get(&user).and_then(super::User::too_silent) {
            // What it has said in the meantime counts.
            self.hear(oldest);
            if self.peers.get(&oldest).is_some_and(|peer| matches!(peer.wants, Wants::Unknown)) {
                self.part(oldest, "said nothing");
            }
        }
        if self.peers.len() >= self.most_peers {
            return;
        }
        let number = self.next_peer;
        let wanted = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        if epoll::add(&self.events, &socket, epoll::EventData::new_u64(number), wanted).is_err() {
            return;
        }
        self.next_peer += 1;
        self.users.entry(user).or_default().silent.insert(number);
        self.peers.insert(
            number,
            Peer { socket: Arc::new(socket), process, user, wants: Wants::Unknown },
        );
    }

    fn pause(&mut self, why: &str) {
        let now = Instant::now();
        if self.pause.told.is_none_or(|told| now.duration_since(told) >= TOLD_EVERY) {
            self.pause.told = Some(now);
            warn!(why, "nobody can be let in for now");
        }
        let _ = self.listen_for(epoll::EventFlags::empty());
        self.pause.until = Some(now + PAUSE);
    }

    /// Listens again if a pause is over; when it is, if not.
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
