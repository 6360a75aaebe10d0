//! Decisions of the policy server for functions of a program that nobody changed. `dimmer run` is its client on the program's behalf: it
//! carries what the hooks have counted into the memory that the server reads, and the server's decisions into the ledgers.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dimmer_observe::Tally;
use dimmer_processor::units::CpuId;
use dimmer_protocol::{BORROW, Beacon, Hello, Mapped, OFFLOAD, Sums, Table, Welcome};

use crate::launch;
use crate::named::Planned;

/// For how long a server is waited for; it answers within a millisecond.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often a server is looked for that has gone.
const RETRY: Duration = Duration::from_secs(1);

/// A program's functions, as the server sees them.
#[derive(Debug)]
pub(super) struct Served {
    program: String,
    functions: Vec<String>,
    connection: Option<Connection>,
    tried: Instant,
}

#[derive(Debug)]
struct Connection {
    /// Open as long as the server is to decide.
    _socket: OwnedFd,
    beacon: Mapped<Beacon>,
    table: Mapped<Table>,
}

impl Served {
    /// Has a server decide for these functions, if one listens.
    pub(super) fn connect(program: &launch::Program, functions: &[Planned]) -> Option<Self> {
        let name = program.file.file_name().unwrap_or_default();
        let program = name.to_string_lossy().into_owned();
        let functions: Vec<String> =
            functions.iter().map(|planned| planned.title.clone()).collect();
        let connection = Connection::new(&program, &functions)?;
        Some(Self { program, functions, connection: Some(connection), tried: Instant::now() })
    }

    /// The cores that the server may dedicate.
    pub(super) fn cores(&self) -> Vec<CpuId> {
        let beacon = self.connection.as_ref().map(|connection| &connection.beacon);
        beacon.map_or_else(Vec::new, |beacon| beacon.cores().map(CpuId::new).collect())
    }

    /// Looks for a server, where the one before has gone.
    pub(super) fn tend(&mut self) {
        let is_there = self.connection.as_ref().is_some_and(Connection::holds);
        if !is_there && self.tried.elapsed() >= RETRY {
            self.tried = Instant::now();
            self.connection = Connection::new(&self.program, &self.functions);
        }
    }

    /// What has become of a function's calls since the program began.
    pub(super) fn tell(&self, function: usize, tally: &Tally) {
        let Some(connection) = &self.connection else { return };
        let Some(site) = connection.table.sites.get(function) else { return };
        let ticks = |ns: f64| whole(ns * dimmer_protocol::ticks_per_ns());
        site.set(&Sums {
            calls: tally.calls,
            stayed: whole(tally.lasted.calls()),
            stayed_ticks: ticks(tally.lasted.sum()),
            moved: whole(tally.moved.calls()).min(tally.calls),
            moved_ticks: ticks(tally.moved.sum()),
            ..Sums::default()
        });
    }

    /// Whether a function's calls are to be moved now.
    pub(super) fn moves(&self, function: usize) -> bool {
        let Some(connection) = &self.connection else { return false };
        let word = connection.table.decisions.get(function);
        let word = word.map(|word| word.load(Ordering::Relaxed));
        matches!(word, Some(OFFLOAD | BORROW))
            && connection.holds()
            && connection.beacon.dedicated() > 0
    }
}

impl Connection {
    fn new(program: &str, functions: &[String]) -> Option<Self> {
        let connect = |path| dimmer_protocol::connect(path).ok();
        let socket = dimmer_protocol::candidates().iter().find_map(|path| connect(path))?;
        let hello = Hello::Serve { name: program.to_owned() };
        dimmer_protocol::send(socket.as_fd(), &hello.to_bytes(), &[]).ok()?;
        let begin = Instant::now();
        let (beacon, table) = loop {
            let mut bytes = [0; Welcome::BYTES];
            match dimmer_protocol::receive(&socket, &mut bytes).ok()? {
                Some((_, [Some(beacon), Some(table)])) => {
                    Welcome::parse(&bytes).ok()?;
                    break (beacon, table);
                }
                Some(_) => return None,
                None if begin.elapsed() >= PATIENCE => return None,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        let beacon = Mapped::<Beacon>::new(beacon.as_fd()).ok()?;
        let table = Mapped::<Table>::new(table.as_fd()).ok()?;
        if !beacon.is_known() || !table.is_known() {
            return None;
        }
        // Those for which there is no room stay.
        for name in functions {
            table.add(name.as_bytes(), 0);
        }
        Some(Self { _socket: socket, beacon, table })
    }

    /// Whether what the server has decided counts.
    fn holds(&self) -> bool {
        self.beacon.holds(dimmer_protocol::ticks()) && !self.table.is_left()
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates, and is nothing where it is no number"
)]
fn whole(value: f64) -> u64 {
    value as u64
}
