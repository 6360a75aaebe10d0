//! Programs whose clocks are moderated: how they are accepted.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use dimmer_protocol::{Clocks, Mapped, Owned, Welcome};
use rustix::event::epoll;
use tracing::{debug, warn};

use super::{Options, Server, Wants};
use crate::moderation::{Mark, Moderation, Process};

/// Starts to moderate clocks, if the settings say so, or returns why that does not work.
pub(super) fn moderation(options: &Options) -> io::Result<Option<Result<Moderation, String>>> {
    if !options.settings.moderates() {
        Mark::forget(&options.socket);
        return Ok(None);
    }
    let cannot = |why: String| {
        warn!(why, "clocks cannot be moderated here");
        Ok(Some(Err(why)))
    };
    if let Err(missing) = dimmer_pace::prepare_for_server(&options.root) {
        return cannot(missing.why);
    }
    let mark = match Mark::new(&options.socket) {
        Ok(mark) => mark,
        Err(why) => return cannot(why),
    };
    let limits = options.settings.limits().map_err(io::Error::other)?;
    Ok(Some(Ok(Moderation::start(limits, mark)?)))
}

impl Server {
    /// Accepts a program whose clocks are moderated, or ends its connection: it goes on to another
    /// server, or without one. Any program may ask, so the log has it with `debug` only.
    pub(super) fn moderate(&mut self, number: u64, name: String) {
        let Some(peer) = self.peers.get(&number) else { return };
        let (process, user) = (peer.process, peer.user);
        debug!(pid = process, uid = user, name, "asks for clocks");
        if let Err(why) = self.try_to_moderate(number, name) {
            debug!(pid = process, uid = user, why, "gets no clocks");
            self.part(number, "was refused");
        }
    }

    fn try_to_moderate(&mut self, number: u64, name: String) -> Result<(), String> {
        let moderation = match &self.moderation {
            Some(Ok(moderation)) => moderation,
            Some(Err(why)) => return Err(why.clone()),
            None => return Err("`clocks.moderate` is false".to_owned()),
        };
        let Some(peer) = self.peers.get_mut(&number) else { return Ok(()) };
        let process = Process::of(peer.process, peer.user)?;
        self.users.asks_for_clocks(peer.user, number)?;
        peer.wants = Wants::Clocks(name);
        let board = Owned::<Clocks>::new().map_err(|error| error.to_string())?;
        let ended = epoll::EventFlags::RDHUP;
        epoll::modify(&self.events, &peer.socket, epoll::EventData::new_u64(number), ended)
            .map_err(|error| error.to_string())?;
        let memory = Mapped::new(board.as_fd()).map_err(|error| error.to_string())?;
        // The answer comes last: a program that has one counts on the moderator.
        moderation.join(number, process, memory, Arc::clone(&peer.socket))?;
        dimmer_protocol::send(peer.socket.as_fd(), &Welcome.to_bytes(), &[board.as_fd()])
            .map_err(|error| error.to_string())
    }
}
