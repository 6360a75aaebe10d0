//! The other end: connections of programs that watch or record a server.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dimmer_processor::text::json_problem;
use dimmer_protocol::{AnswerError, Client, Hello};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::state::State;

/// How long a watcher waits for the server.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why a watcher gets no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// There is no server.
    #[error("no policy server at {}; `dimmerd` is one", list(.0))]
    NoServer(Vec<PathBuf>),
    /// The server does not answer, or has gone.
    #[error("the policy server at {} {what}", path.display())]
    Silent {
        /// Path of the socket.
        path: PathBuf,
        /// What the server does.
        what: &'static str,
    },
    /// The connection fails.
    #[error("cannot talk to the policy server at {}", path.display())]
    System {
        /// Path of the socket.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The answer is not of this protocol.
    #[error("the policy server at {} is another version of Dimmer: {why}", path.display())]
    Foreign {
        /// Path of the socket.
        path: PathBuf,
        /// What is wrong with the answer.
        why: String,
    },
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" or ")
}

/// A connection to a server.
#[derive(Debug)]
pub struct Watch {
    client: Client,
    path: PathBuf,
}

impl Watch {
    /// Connects to the first server found, or to the named one.
    ///
    /// # Errors
    /// If there is no server, or this user may not connect to it.
    pub fn new(named: Option<&Path>) -> Result<Self, WatchError> {
        let paths = named.map_or_else(dimmer_protocol::candidates, |path| vec![path.to_owned()]);
        let mut refused = None;
        for path in &paths {
            match Client::connect(path) {
                Ok(client) => return Ok(Self { client, path: path.clone() }),
                Err(source) if source.kind() == io::ErrorKind::PermissionDenied => {
                    refused = Some(WatchError::System { path: path.clone(), source });
                }
                Err(_) => {}
            }
        }
        Err(refused.unwrap_or(WatchError::NoServer(paths)))
    }

    /// Path of the server's socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The current state of the server.
    ///
    /// # Errors
    /// If the server does not answer.
    pub fn state(&self) -> Result<State, WatchError> {
        self.ask(&Hello::Watch)?;
        let text = self.text(PATIENCE)?.ok_or_else(|| self.silent("does not answer"))?;
        serde_json::from_str(&text).map_err(|error| {
            if error.is_eof() {
                return self.silent("has ended in the middle of its answer");
            }
            WatchError::Foreign { path: self.path.clone(), why: json_problem(&error, 0) }
        })
    }

    /// Requests every step from now on, for [`Self::lines`].
    ///
    /// # Errors
    /// If the server has gone.
    pub fn record(&self) -> Result<(), WatchError> {
        self.ask(&Hello::Record)
    }

    /// The lines of a recording that arrive within that time; only whole lines.
    ///
    /// # Errors
    /// If the server has gone.
    pub fn lines(&self, within: Duration) -> Result<Option<String>, WatchError> {
        self.text(within)
    }

    fn ask(&self, hello: &Hello) -> Result<(), WatchError> {
        self.client.send(&hello.to_bytes()).map_err(|source| self.failed(source))
    }

    fn text(&self, within: Duration) -> Result<Option<String>, WatchError> {
        let until = Instant::now() + within;
        loop {
            if let Some(file) = self.client.text().map_err(|error| self.refused(error))? {
                return self.read(&file).map(Some);
            }
            if !self.wait(self.client.as_fd(), until)? {
                return Ok(None);
            }
        }
    }

    /// Reads a text to its end. It comes through a pipe, or lies complete in a file.
    fn read(&self, file: &OwnedFd) -> Result<String, WatchError> {
        /// Bytes per read: what a pipe holds.
        const PIECE: usize = 1 << 16;
        let mut bytes = Vec::new();
        let mut until = Instant::now() + PATIENCE;
        loop {
            if !self.wait(file.as_fd(), until)? {
                if Instant::now() < until {
                    // A signal interrupted the wait; the question was asked already.
                    continue;
                }
                return Err(self.silent("stops in the middle of its answer"));
            }
            until = Instant::now() + PATIENCE;
            let length = bytes.len();
            bytes.resize(length + PIECE, 0);
            let read = rustix::io::read(file, &mut bytes[length..]);
            let read = read.map_err(|error| self.failed(error.into()))?;
            bytes.truncate(length + read);
            if read == 0 {
                break;
            }
        }
        String::from_utf8(bytes).map_err(|error| WatchError::Foreign {
            path: self.path.clone(),
            why: error.to_string(),
        })
    }

    /// Waits until something can be read, or the other side has closed. Returns false on timeout,
    /// and on a signal, which the caller handles.
    fn wait(&self, file: BorrowedFd<'_>, until: Instant) -> Result<bool, WatchError> {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        match rustix::event::poll(&mut [PollFd::new(&file, PollFlags::IN)], Some(&left)) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(self.failed(error.into())),
        }
    }

    fn refused(&self, error: AnswerError) -> WatchError {
        match error {
            AnswerError::System(source) => self.failed(source),
            AnswerError::Closed => self.silent("has ended the connection"),
            AnswerError::Files => self.silent("does not answer the question"),
            error => WatchError::Foreign { path: self.path.clone(), why: error.to_string() },
        }
    }

    fn silent(&self, what: &'static str) -> WatchError {
        WatchError::Silent { path: self.path.clone(), what }
    }

    fn failed(&self, source: io::Error) -> WatchError {
        WatchError::System { path: self.path.clone(), source }
    }
}
