//! Requests that `dimmerd` moderates: it decides for programs that do not know of each other, and
//! carries requests out. A thread writes its request on a board and rings by a packet.
//!
//! When the server has gone, the program says so once and uses the machine's own back end. It
//! notices that by the lease on the board, also while its requests stay the same.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use dimmer_host::cpufreq::{self, clocks::Clocks};
use dimmer_host::journal::{JournalError, Report};
use dimmer_host::root::Root;
use dimmer_host::unavailable::Unavailable;
use dimmer_processor::units::{CpuId, KiloHertz};
use dimmer_protocol::{BELL, CLOCKS, Client, Clocks as Board, Hello, Mapped, OnBoard, clocks_mark};
use rustix::event::{PollFd, PollFlags, poll};

use super::{BackEnd, Refused, Thread, direct};
use crate::Request;
use crate::fast_core::dedicated_thread;
use crate::machine;

/// The longest wait for the server's answer: only the process's first request waits. A guess.
const PATIENCE: Duration = Duration::from_millis(200);

/// A connection to a server that moderates.
#[derive(Debug)]
pub(crate) struct Server {
    root: Root,
    socket: OwnedFd,
    board: Mapped<Board>,
    /// The process that has connected: its children have copies of the connection.
    process: u32,
    /// The place of each thread on the board; `None` once requests have ended.
    places: Mutex<Option<BTreeMap<u32, usize>>>,
    /// The machine's own back end, once the server has gone.
    instead: OnceLock<Result<Box<dyn BackEnd>, Unavailable>>,
}

/// Connects to the first server that moderates; `None` if there is none. A made-up machine has the
/// server that `DIMMER_SOCKET` names, or none.
pub(crate) fn open(root: &Root) -> Option<Server> {
    let is_live = root.path("/") == Path::new("/");
    if !is_live && dimmer_protocol::variable(dimmer_protocol::SOCKET).is_none() {
        return None;
    }
    let name = std::env::current_exe().ok();
    let name = name.and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
    let hello = Hello::Clocks { name: name.unwrap_or_default() }.to_bytes();
    let until = Instant::now() + PATIENCE;
    let (socket, board) = first(&dimmer_protocol::candidates(), &hello, until)?;
    Some(Server {
        root: root.clone(),
        socket,
        board,
        process: std::process::id(),
        places: Mutex::new(Some(BTreeMap::new())),
        instead: OnceLock::new(),
    })
}

/// The first of these servers that answers with a board.
fn first(
    sockets: &[PathBuf],
    hello: &[u8; Hello::BYTES],
    until: Instant,
) -> Option<(OwnedFd, Mapped<Board>)> {
    sockets.iter().find_map(|socket| {
        // Without it, no server there moderates, and to connect might start one.
        std::fs::symlink_metadata(clocks_mark(socket)).ok()?;
        let client = Client::connect(socket).ok()?;
        client.send(hello).ok()?;
        let file = loop {
            if let Some(file) = client.text().ok()? {
                break file;
            }
            let left = until.checked_duration_since(Instant::now())?;
            let _ = poll(&mut [PollFd::new(&client, PollFlags::IN)], left.try_into().ok().as_ref());
        };
        let board = Mapped::<Board>::new(file.as_fd()).ok()?;
        Some((client.into_socket(), board))
    })
}

impl Server {
    /// The policy of cpufreq that a CPU belongs to.
    fn policy(&self, cpu: CpuId) -> Option<cpufreq::Policy> {
        cpufreq::policies(&self.root).into_iter().find(|policy| policy.cpus.contains(&cpu))
    }

    /// The machine's own back end, if the server has gone.
    fn instead(&self) -> Option<&dyn BackEnd> {
        self.instead.get().and_then(|chosen| chosen.as_deref().ok())
    }

    /// Notices that the server has gone: says so, once, and chooses another back end.
    fn leave(&self) {
        self.instead.get_or_init(|| {
            let chosen = direct(&self.root);
            let then = match &chosen {
                Ok(back_end) => format!("requests go by {} from now on", back_end.name()),
                Err(missing) => format!("there is no other back end: {}", missing.why),
            };
            let remedy = "start the program again once dimmerd runs";
            let why = format!("dimmerd has ended; {then}");
            machine::report(Unavailable::new("clocks that dimmerd moderates", why, remedy));
            chosen
        });
    }
}

/// Whether the server has ended the connection. After other errors it may still read the board: the
/// same request by another back end would be in force twice.
fn has_gone(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected)
}

/// Whether it is a thread of this process, or a CPU that is dedicated
/// ([`dedicated_thread`]).
fn is_own(thread: Thread) -> bool {
    let is_dedicated = thread.id == dedicated_thread(thread.cpu);
    is_dedicated || Path::new(&format!("/proc/self/task/{}", thread.id)).exists()
}

impl BackEnd for Server {
    fn name(&self) -> &'static str {
        self.instead().map_or("dimmerd", |instead| instead.name())
    }

    fn follows_threads(&self) -> bool {
        self.instead().is_some_and(|instead| instead.follows_threads())
    }

    fn request(&self, thread: Thread, request: Option<Request>) -> Result<(), Refused> {
        if let Some(instead) = self.instead() {
            return instead.request(thread, request);
        }
        if self.process != std::process::id() {
            return Err(Refused::Unknown);
        }
        {
            let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
            let places = places.as_mut().ok_or(Refused::Unknown)?;
            let taken = places.get(&thread.id).copied();
            let free = || (0..CLOCKS).find(|place| !places.values().any(|own| own == place));
            let place = match (taken, request) {
                (None, None) => return Ok(()),
                (taken, _) => taken.or_else(free).ok_or(Refused::Unknown)?,
            };
            let (id, cpu) = (thread.id, thread.cpu.index());
            let word = |own: Request| OnBoard { thread: id, cpu, number: own.number() };
            self.board.set(place, request.map(word));
            match request {
                Some(_) => places.insert(id, place),
                None => places.remove(&id),
            };
        }
        match dimmer_protocol::send(self.socket.as_fd(), &BELL, &[]) {
            Err(error) if has_gone(&error) => {
                self.leave();
                let instead = self.instead().ok_or(Refused::Unknown)?;
                instead.request(thread, request)
            }
            // A socket that is full rings already, and the server reads all boards at intervals.
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// The server refuses requests for threads of other programs.
    fn request_for(&self, thread: Thread, request: Option<Request>) -> Result<(), Refused> {
        if let Some(instead) = self.instead() {
            return instead.request_for(thread, request);
        }
        if request.is_some() && !is_own(thread) {
            return Err(Refused::Unknown);
        }
        self.request(thread, request)
    }

    fn is_for(&self, thread: Thread) -> Option<bool> {
        if let Some(instead) = self.instead() {
            return instead.is_for(thread);
        }
        // In a child of fork, a thread of its parent may have had the lock.
        if self.process != std::process::id() {
            return None;
        }
        let guard = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let place = *guard.as_ref()?.get(&thread.id)?;
        Some(self.board.get(place)?.cpu == thread.cpu.index())
    }

    fn follow(&self, thread: Thread) -> Result<(), Refused> {
        if let Some(instead) = self.instead() {
            return instead.follow(thread);
        }
        if self.process != std::process::id() {
            return Ok(());
        }
        {
            let guard = self.places.lock().unwrap_or_else(PoisonError::into_inner);
            let place = guard.as_ref().and_then(|places| places.get(&thread.id)).copied();
            let Some(place) = place else { return Ok(()) };
            let word = self.board.get(place);
            self.board.set(place, word.map(|own| OnBoard { cpu: thread.cpu.index(), ..own }));
        }
        // A socket that is full rings already; a server that has gone is noticed by requests.
        let _ = dimmer_protocol::send(self.socket.as_fd(), &BELL, &[]);
        Ok(())
    }

    fn way(&self) -> Option<u8> {
        match self.instead.get() {
            Some(_) => Some(1),
            None => self.board.is_attended().then_some(0),
        }
    }

    fn clocks(&self, cpu: CpuId) -> Option<Clocks> {
        Clocks::of(&self.root, &self.policy(cpu)?)
    }

    fn clock(&self, cpu: CpuId) -> Option<KiloHertz> {
        cpufreq::clock(&self.root, &self.policy(cpu)?)
    }

    fn end(&self) -> Result<Report, JournalError> {
        if self.process != std::process::id() {
            return Ok(Report::default());
        }
        {
            let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
            if places.take().is_some() {
                // The server undoes what it finds gone.
                (0..CLOCKS).for_each(|place| self.board.set(place, None));
                let _ = dimmer_protocol::send(self.socket.as_fd(), &BELL, &[]);
            }
        }
        self.instead().map_or_else(|| Ok(Report::default()), BackEnd::end)
    }
}

#[cfg(test)]
mod tests {
    use dimmer_protocol::{Owned, Welcome};
    use rustix::net::{SocketFlags, accept_with};

    use super::*;

    /// A socket, without the mark; a server that refuses; one whose packets are none; and one that
    /// answers with a board.
    #[test]
    fn of_the_servers_the_first_that_answers_with_a_board_is_asked() {
        let directory = tempfile::tempdir().expect("a directory");
        let paths: Vec<PathBuf> = ["none", "unmarked", "refuses", "foreign", "moderates"]
            .map(|name| directory.path().join(name))
            .into();
        let hello = Hello::Clocks { name: "test".to_owned() }.to_bytes();
        let listeners: Vec<OwnedFd> = paths[1..]
            .iter()
            .map(|path| dimmer_protocol::listen(path).expect("a socket"))
            .collect();
        for path in &paths[2..] {
            std::fs::write(clocks_mark(path), "").expect("a mark");
        }
        let until = Instant::now() + Duration::from_secs(60);
        let (_socket, board) = std::thread::scope(|scope| {
            let asks = scope.spawn(|| first(&paths, &hello, until));
            let accept = |at: usize| loop {
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                match accept_with(&listeners[at], flags) {
                    Ok(socket) => return socket,
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            };
            drop(accept(1));
            let foreign = accept(2);
            dimmer_protocol::send(foreign.as_fd(), b"nonsense", &[]).expect("sent");
            let moderates = accept(3);
            let own = Owned::<Board>::new().expect("a board");
            own.set(3, Some(OnBoard { thread: 7, cpu: 1, number: 100 }));
            dimmer_protocol::send(moderates.as_fd(), &Welcome.to_bytes(), &[own.as_fd()])
                .expect("sent");
            asks.join().expect("no panic").expect("a board")
        });
        assert_eq!(board.all().count(), 1);
        // Nothing has connected to the server without a mark: that could have started it.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        assert!(accept_with(&listeners[0], flags).is_err());
        assert!(first(&paths[..2], &hello, until).is_none());
    }

    #[test]
    fn only_a_connection_that_has_ended_is_left() {
        use rustix::io::Errno;
        for gone in [Errno::PIPE, Errno::CONNRESET, Errno::NOTCONN] {
            assert!(has_gone(&gone.into()), "{gone}");
        }
        for other in [Errno::AGAIN, Errno::NOBUFS, Errno::NOMEM, Errno::INTR] {
            assert!(!has_gone(&other.into()), "{other}");
        }
    }

    #[test]
    fn requests_are_for_own_threads_and_dedicated_cpus() {
        let on = |id| Thread { id, cpu: CpuId::new(3) };
        assert!(is_own(on(std::process::id())) && is_own(on(u32::MAX - 3)));
        assert!(!is_own(on(u32::MAX - 4)) && !is_own(on(1)));
    }
}
