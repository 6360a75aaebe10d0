//! Decisions of the policy server for functions of an unmodified program. `dimmer run` is its
//! client on behalf of the program: it copies the counts of the hooks into the memory that the
//! server reads, and the server's decisions into the ledgers.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dimmer_host::root::format_cpu_list;
use dimmer_observe::Tally;
use dimmer_policy::moving::Word;
use dimmer_processor::units::{CpuId, whole};
use dimmer_protocol::{DELEGATE, Hello, LeasePage, MIGRATE, Mapped, SITES, Sums, Table, Welcome};

use crate::launch;
use crate::named::Planned;

/// Longest wait for a server; it answers within a millisecond.
const PATIENCE: Duration = Duration::from_secs(1);

/// Interval of the attempts to reach a server again.
const RETRY: Duration = Duration::from_secs(1);

/// A program's functions, as the server sees them.
#[derive(Debug)]
pub(super) struct Served {
    program: String,
    functions: Vec<String>,
    /// The CPUs that calls go to. Of a server's cores, only those count that both lists start with.
    /// If empty, the user has named other CPUs, and the server only decides how many of them are
    /// used.
    cpus: Vec<CpuId>,
    /// Whether calls could go to the server's cores at the last check.
    fits: bool,
    connection: Connection,
    tried: Instant,
}

/// The state of the connection to a server.
#[derive(Debug)]
enum Connection {
    /// There is no server.
    None,
    /// A server was asked, and has not answered.
    Asked(OwnedFd),
    /// A server decides.
    Made(Made),
}

#[derive(Debug)]
struct Made {
    /// Open as long as the server shall decide.
    _socket: OwnedFd,
    lease_page: Mapped<LeasePage>,
    table: Mapped<Table>,
    /// Whether the functions were named to the server. That happens after their counts so far were
    /// written, so that the server does not take these for current ones.
    is_named: bool,
}

impl Served {
    /// Lets a server decide for these functions, if one listens.
    pub(super) fn connect(program: &launch::Program, functions: &[Planned]) -> Option<Self> {
        let name = program.file.file_name().unwrap_or_default();
        let program = name.to_string_lossy().into_owned();
        let functions = functions.iter().map(|planned| planned.title.clone()).collect();
        let connection = Connection::ask(&program);
        let (cpus, tried) = (Vec::new(), Instant::now());
        let mut served = Self { program, functions, cpus, fits: true, connection, tried };
        while matches!(served.connection, Connection::Asked(_)) {
            if served.tried.elapsed() >= PATIENCE {
                return None;
            }
            std::thread::sleep(Duration::from_millis(1));
            served.connection.hear(served.functions.len());
        }
        served.made().is_some().then_some(served)
    }

    fn made(&self) -> Option<&Made> {
        match &self.connection {
            Connection::Made(made) => Some(made),
            Connection::None | Connection::Asked(_) => None,
        }
    }

    /// The CPUs that the server may dedicate, in the order of use.
    pub(super) fn cores(&self) -> Vec<CpuId> {
        self.made().map_or_else(Vec::new, |made| made.lease_page.cores().map(CpuId::new).collect())
    }

    /// Restricts calls to these CPUs, which the program received at its start. If a server
    /// dedicates others, as a later one may, no call moves to those.
    pub(super) fn heed_only(&mut self, cpus: &[CpuId]) {
        self.cpus = cpus.to_vec();
    }

    /// The number of these CPUs that the server has dedicated now; 0 if no server is alive.
    pub(super) fn dedicated(&self) -> usize {
        let made = self.made().filter(|made| made.holds());
        made.map_or(0, |made| made.lease_page.dedicated().min(usable(&made.lease_page, &self.cpus)))
    }

    /// Looks for a server if the previous one is gone. Never waits. Returns the reason why calls
    /// cannot go to the server's cores, if it is new.
    pub(super) fn tend(&mut self) -> Option<String> {
        self.connection.hear(self.functions.len());
        let is_there = self.made().is_some_and(Made::holds);
        if !is_there && self.tried.elapsed() >= RETRY {
            self.tried = Instant::now();
            self.connection = Connection::ask(&self.program);
        }
        let made = self.made().filter(|made| made.holds())?;
        let (fits, its) = (usable(&made.lease_page, &self.cpus) > 0, self.cores());
        let why = (self.fits && !fits).then(|| misfit(&its, &self.cpus));
        self.fits = fits;
        why
    }

    /// Names the functions to the server. Call it after the counts of all functions were written.
    pub(super) fn publish(&mut self) {
        let Connection::Made(made) = &mut self.connection else { return };
        if !made.is_named {
            made.is_named = true;
            // Functions for which there is no room stay.
            for name in &self.functions {
                made.table.add(name.as_bytes(), 0);
            }
        }
    }

    /// Writes the counts of a function's calls since the program's start.
    pub(super) fn tell(&self, function: usize, tally: &Tally) {
        let Some(site) = self.made().and_then(|made| made.table.sites.get(function)) else {
            return;
        };
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

    /// The server's decision for a function's calls now.
    pub(super) fn word(&self, function: usize) -> Word {
        let Some(made) = self.made() else { return Word::Stay };
        let word = made.table.decisions.get(function);
        let word = word.map(|word| word.load(Ordering::Relaxed));
        let moves = matches!(word, Some(DELEGATE | MIGRATE));
        if moves && self.dedicated() > 0 { Word::Move } else { Word::Stay }
    }
}

impl Connection {
    /// Asks the first server that listens.
    fn ask(program: &str) -> Self {
        let ask = |path: &PathBuf| {
            let socket = dimmer_protocol::connect(path).ok()?;
            let hello = Hello::Serve { name: program.to_owned() };
            dimmer_protocol::send(socket.as_fd(), &hello.to_bytes(), &[]).ok()?;
            Some(socket)
        };
        dimmer_protocol::candidates().iter().find_map(ask).map_or(Self::None, Self::Asked)
    }

    /// Takes the server's answer for this number of functions, if it has come.
    fn hear(&mut self, functions: usize) {
        let Self::Asked(socket) = self else { return };
        let mut bytes = [0; Welcome::BYTES];
        let answer = dimmer_protocol::receive(&socket, &mut bytes);
        if matches!(answer, Ok(None)) {
            return;
        }
        let Self::Asked(socket) = std::mem::replace(self, Self::None) else { return };
        if let Ok(Some((_, [Some(lease_page), Some(table)]))) = answer
            && Welcome::parse(&bytes).is_ok()
            && let Some(made) = Made::new(socket, (&lease_page, &table), functions)
        {
            *self = Self::Made(made);
        }
    }
}

impl Made {
    fn new(
        socket: OwnedFd,
        (lease_page, table): (&OwnedFd, &OwnedFd),
        functions: usize,
    ) -> Option<Self> {
        let lease_page = Mapped::<LeasePage>::new(lease_page.as_fd()).ok()?;
        let table = Mapped::<Table>::new(table.as_fd()).ok()?;
        let is_known = lease_page.is_known() && table.is_known();
        let has_memory = is_known && table.has_memory(0..functions.min(SITES));
        has_memory.then_some(Self { _socket: socket, lease_page, table, is_named: false })
    }

    /// Whether the server's decisions are valid.
    fn holds(&self) -> bool {
        self.lease_page.holds(dimmer_protocol::ticks()) && !self.table.is_left()
    }
}

/// The number of the server's cores that calls can go to: those that both lists start with.
fn usable(lease_page: &LeasePage, own: &[CpuId]) -> usize {
    if own.is_empty() {
        return usize::MAX;
    }
    let its = lease_page.cores().map(CpuId::new);
    its.zip(own).take_while(|(its, own)| its == *own).count()
}

/// The message that no call can go to the server's cores, since the program was given others.
fn misfit(its: &[CpuId], own: &[CpuId]) -> String {
    if its.is_empty() {
        return "no call moves: the policy server has no core to dedicate (`dimmer top` says why)"
            .to_owned();
    }
    format!(
        "no call moves: the policy server dedicates cpu {}, and calls of this program can move to cpu {} alone, as it was told at its begin; \
         started anew, it goes to the server's",
        format_cpu_list(its),
        format_cpu_list(own)
    )
}

#[cfg(test)]
mod tests {
    use dimmer_protocol::Owned;

    use super::*;

    fn cpus(numbers: &[u32]) -> Vec<CpuId> {
        numbers.iter().copied().map(CpuId::new).collect()
    }

    #[test]
    fn calls_go_to_those_of_a_servers_cores_that_the_program_knows() {
        let lease_page = Owned::<LeasePage>::new().unwrap();
        lease_page.write(&[7, 3, 6]);
        let usable = |own: &[u32]| usable(&lease_page, &cpus(own));
        assert_eq!((usable(&[7]), usable(&[7, 3, 6]), usable(&[7, 3, 6, 2])), (1, 3, 3));
        assert_eq!((usable(&[7, 6]), usable(&[3]), usable(&[3, 7])), (1, 0, 0));
        assert_eq!(usable(&[]), usize::MAX);
    }

    #[test]
    fn both_lists_are_told_where_they_do_not_fit() {
        let told = misfit(&cpus(&[6, 7]), &cpus(&[2]));
        assert!(told.contains("dedicates cpu 6-7,") && told.contains("to cpu 2 alone"), "{told}");
    }
}
