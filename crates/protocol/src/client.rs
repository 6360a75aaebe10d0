//! A client's side of the handshake: the question, the answer, and the memory that comes with it.
//!
//! The steps are separate, since clients differ in how they wait and in where the memory goes: the
//! programs' runtime never waits and keeps its own addresses. Nothing here waits, and up to the
//! mapping nothing allocates.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::memory::{Mapped, MemoryError};
use crate::packet::{Hello, PacketError, Welcome};
use crate::socket::{Files, connect, receive, send};
use crate::table::{LeasePage, Table};
use crate::ticks;

/// A connection to a server. `S` is its socket, owned or borrowed.
#[derive(Debug)]
pub struct Client<S = OwnedFd> {
    socket: S,
}

/// Why a server's answer is none.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// The socket fails.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The server has ended the connection.
    #[error("has ended the connection")]
    Closed,
    /// The answer has another number of files than the question has.
    #[error("does not answer the question")]
    Files,
    /// The answer is not a packet of this version of the protocol.
    #[error(transparent)]
    Packet(#[from] PacketError),
}

impl Client<OwnedFd> {
    /// Connects to the server at `path`, as [`connect`].
    ///
    /// # Errors
    /// If there is no server, or if it is busy.
    pub fn connect(path: &Path) -> io::Result<Self> {
        Ok(Self { socket: connect(path)? })
    }

    /// Connects to the first server that takes the question. `hello` is [`Hello::to_bytes`].
    #[must_use]
    pub fn of_first(sockets: &[PathBuf], hello: &[u8; Hello::BYTES]) -> Option<Self> {
        let asked = |path: &PathBuf| {
            let client = Self::connect(path).ok()?;
            client.send(hello).ok().map(|()| client)
        };
        sockets.iter().find_map(asked)
    }

    /// The socket.
    #[must_use]
    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }
}

impl<S: AsFd> Client<S> {
    /// The connection over a connected socket.
    pub const fn over(socket: S) -> Self {
        Self { socket }
    }

    /// Asks the server. `hello` is [`Hello::to_bytes`].
    ///
    /// # Errors
    /// If the server has gone.
    pub fn send(&self, hello: &[u8; Hello::BYTES]) -> io::Result<()> {
        send(self.socket.as_fd(), hello, &[])
    }

    /// The answer to [`Hello::Serve`]; `None`: it has not arrived yet.
    ///
    /// # Errors
    /// [`AnswerError`].
    pub fn memory(&self) -> Result<Option<MemoryFiles>, AnswerError> {
        match self.files()? {
            None => Ok(None),
            Some([Some(lease_page), Some(table)]) => Ok(Some(MemoryFiles { lease_page, table })),
            Some(_) => Err(AnswerError::Files),
        }
    }

    /// The answer to [`Hello::Watch`], or the next one to [`Hello::Record`]: a file of text, to be
    /// read to its end. `None`: it has not arrived yet.
    ///
    /// # Errors
    /// [`AnswerError`].
    pub fn text(&self) -> Result<Option<OwnedFd>, AnswerError> {
        match self.files()? {
            None => Ok(None),
            Some([Some(text), None]) => Ok(Some(text)),
            Some(_) => Err(AnswerError::Files),
        }
    }

    fn files(&self) -> Result<Option<Files>, AnswerError> {
        let mut bytes = [0; Welcome::BYTES];
        let Some((length, files)) = receive(&self.socket, &mut bytes)? else { return Ok(None) };
        if length == 0 {
            return Err(AnswerError::Closed);
        }
        // A packet that is longer than the room for it is foreign.
        Welcome::parse(bytes.get(..length).ok_or(PacketError::Foreign)?)?;
        Ok(Some(files))
    }
}

impl<S: AsFd> AsFd for Client<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The memory that a server gives a client, as files.
#[derive(Debug)]
pub struct MemoryFiles {
    /// The lease page, which the client can only read.
    pub lease_page: OwnedFd,
    /// The client's own table.
    pub table: OwnedFd,
}

impl MemoryFiles {
    /// Maps both.
    ///
    /// # Errors
    /// [`MemoryError`]: the files are not what the protocol says, or there is no room for them.
    pub fn map(&self) -> Result<Memory, MemoryError> {
        let lease_page = Mapped::<LeasePage>::new(self.lease_page.as_fd())?;
        let table = Mapped::<Table>::new(self.table.as_fd())?;
        if lease_page.is_known() && table.is_known() {
            Ok(Memory { lease_page, table })
        } else {
            Err(MemoryError::Foreign)
        }
    }
}

/// The memory that a server gives a client.
#[derive(Debug)]
pub struct Memory {
    /// The lease page, which the client can only read.
    pub lease_page: Mapped<LeasePage>,
    /// The client's own table.
    pub table: Mapped<Table>,
}

impl Memory {
    /// Whether the server's decisions hold now.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.lease_page.holds(ticks()) && !self.table.is_left()
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::SocketFlags;

    use super::*;
    use crate::{Owned, listen};

    #[test]
    fn each_answer_is_told_from_the_others() {
        let path = std::env::temp_dir().join(format!("dimmer-client-{}", std::process::id()));
        let hello = Hello::Serve { name: "p".to_owned() };
        assert!(Client::of_first(std::slice::from_ref(&path), &hello.to_bytes()).is_none());
        let listener = listen(&path).unwrap();
        let sockets = [path.with_extension("none"), path.clone()];
        let client = Client::of_first(&sockets, &hello.to_bytes()).unwrap();
        let server = rustix::net::accept_with(&listener, SocketFlags::CLOEXEC).unwrap();
        let mut bytes = [0; Hello::BYTES];
        assert_eq!(receive(&server, &mut bytes).unwrap().unwrap().0, Hello::BYTES);
        assert_eq!(Hello::parse(&bytes), Ok(hello));
        assert!(client.memory().unwrap().is_none() && client.text().unwrap().is_none());

        let (lease_page, table) =
            (Owned::<LeasePage>::new().unwrap(), Owned::<Table>::new().unwrap());
        let answer = |bytes: &[u8], files: &[BorrowedFd<'_>]| {
            send(server.as_fd(), bytes, files).unwrap();
        };
        let (welcome, both) = (Welcome.to_bytes(), [lease_page.as_fd(), table.as_fd()]);
        answer(&welcome, &both);
        let files = client.memory().unwrap().unwrap();
        // Nothing was written into them that says what they are.
        assert!(matches!(files.map(), Err(MemoryError::Foreign)));
        lease_page.write(&[1]);
        table.write();
        let memory = files.map().unwrap();
        assert!(!memory.holds());
        lease_page.renew(ticks() + (1 << 33));
        assert!(memory.holds());
        table.leave();
        assert!(!memory.holds());

        answer(&welcome, &both[..1]);
        assert!(client.text().unwrap().is_some());
        answer(&welcome, &both[..1]);
        assert!(matches!(client.memory(), Err(AnswerError::Files)));
        answer(&welcome, &both);
        assert!(matches!(client.text(), Err(AnswerError::Files)));
        answer(&welcome[1..], &both);
        assert!(matches!(client.memory(), Err(AnswerError::Packet(PacketError::Foreign))));
        answer(&[&welcome[..], &[0]].concat(), &both);
        assert!(matches!(client.memory(), Err(AnswerError::Packet(PacketError::Foreign))));
        drop(server);
        assert!(matches!(client.memory(), Err(AnswerError::Closed)));
        std::fs::remove_file(&path).unwrap();
    }
}
