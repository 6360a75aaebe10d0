//! Connections of this process's own threads. A thread that connected to the socket's path would
//! need the right to do so, which the server's user may lack: the socket may be a service
//! manager's, and open to one group alone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use dimmer_protocol::Client;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

/// Connects threads of this process to its server.
#[derive(Clone, Debug)]
pub struct Connector {
    sockets: Sender<OwnedFd>,
    wake: Arc<OwnedFd>,
}

impl Connector {
    /// A connection, which the server admits as any other one.
    ///
    /// # Errors
    /// If the system refuses, or the server has gone.
    pub fn connect(&self) -> io::Result<Client> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (own, servers) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        self.sockets.send(servers).map_err(|_| io::ErrorKind::ConnectionRefused)?;
        rustix::io::write(&self.wake, &1_u64.to_ne_bytes())?;
        Ok(Client::over(own))
    }
}

/// The server's side.
#[derive(Debug)]
pub(super) struct Internal {
    connector: Connector,
    coming: Receiver<OwnedFd>,
}

impl Internal {
    pub(super) fn new() -> io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (sockets, coming) = channel();
        Ok(Self { connector: Connector { sockets, wake }, coming })
    }

    pub(super) fn connector(&self) -> Connector {
        self.connector.clone()
    }

    /// The connections since the last call.
    pub(super) fn coming(&self) -> Vec<OwnedFd> {
        let _ = rustix::io::read(&self.connector.wake, &mut [0; 8]);
        self.coming.try_iter().collect()
    }
}

impl AsFd for Internal {
    /// Readable when a thread connects.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connector.wake.as_fd()
    }
}
