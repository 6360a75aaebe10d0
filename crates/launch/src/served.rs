//! Decisions of the policy server for functions of an unmodified program. `dimmer run` is its
//! client on behalf of the program: it copies the counts of the hooks into the memory that the
//! server reads, and the server's decisions into the ledgers.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dimmer_observe::Tally;
use dimmer_policy::moving::Word;
use dimmer_processor::units::{CpuId, whole};
use dimmer_protocol::{Client, DELEGATE, Hello, LeasePage, MIGRATE, Memory, SITES, Sums};

use crate::named::Planned;
use crate::program::Program;

/// Longest wait for a server; it answers within a millisecond.
const PATIENCE: Duration = Duration::from_secs(1);

/// Interval of the attempts to reach a server again.
const RETRY: Duration = Duration::from_secs(1);

/// A program's functions, as the server sees them.
#[derive(Debug)]
pub(crate) struct Served {
    /// The first packet to a server.
    hello: [u8; Hello::BYTES],
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
    Asked(Client),
    /// A server decides.
    Made(Made),
}

#[derive(Debug)]
struct Made {
    /// Open as long as the server shall decide.
    _client: Client,
    memory: Memory,
    /// Whether the functions were named to the server. That happens after their counts so far were
    /// written, so that the server does not take these for current ones.
    is_named: bool,
}

impl Served {
    /// Asks for decisions for these functions, and waits for the answer if a server listens.
    /// `hello`: the request, by the program's name.
    pub(crate) fn ask(
        hello: fn(String) -> Hello,
        program: &Program,
        functions: &[Planned],
    ) -> Self {
        let name = program.file.file_name().unwrap_or_default();
        let hello = hello(name.to_string_lossy().into_owned()).to_bytes();
        let functions = functions.iter().map(|planned| planned.title.clone()).collect();
        let connection = Connection::ask(&hello);
        let (cpus, tried) = (Vec::new(), Instant::now());
        let mut served = Self { hello, functions, cpus, fits: true, connection, tried };
        while matches!(served.connection, Connection::Asked(_)) && tried.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
            served.connection.hear(served.functions.len());
        }
        served
    }

    /// Whether a server has answered.
    pub(crate) fn is_there(&self) -> bool {
        self.made().is_some()
    }

    fn made(&self) -> Option<&Made> {
        match &self.connection {
            Connection::Made(made) => Some(made),
            Connection::None | Connection::Asked(_) => None,
        }
    }

    /// The CPUs that the server may dedicate, in the order of use.
    pub(crate) fn cores(&self) -> Vec<CpuId> {
        self.made()
            .map_or_else(Vec::new, |made| made.memory.lease_page.cores().map(CpuId::new).collect())
    }

    /// Restricts calls to these CPUs, which the program received at its start. If a server
    /// dedicates others, as a later one may, no call moves to those.
    pub(crate) fn follow_only(&mut self, cpus: &[CpuId]) {
        self.cpus = cpus.to_vec();
    }

    /// The number of these CPUs that the server has dedicated now; 0 if no server is alive.
    pub(crate) fn dedicated(&self) -> usize {
        let made = self.made().filter(|made| made.memory.holds());
        made.map_or(0, |made| {
            made.memory.lease_page.dedicated().min(usable(&made.memory.lease_page, &self.cpus))
        })
    }

    /// Looks for a server if the previous one is gone. Never waits. Returns the server's cores and
    /// the program's if, from now on, calls cannot go to the server's.
    pub(crate) fn tend(&mut self) -> Option<(Vec<CpuId>, Vec<CpuId>)> {
        self.connection.hear(self.functions.len());
        let is_there = self.made().is_some_and(|made| made.memory.holds());
        if !is_there && self.tried.elapsed() >= RETRY {
            self.tried = Instant::now();
            self.connection = Connection::ask(&self.hello);
        }
        let made = self.made().filter(|made| made.memory.holds())?;
        let (fits, its) = (usable(&made.memory.lease_page, &self.cpus) > 0, self.cores());
        let misfit = (self.fits && !fits).then(|| (its, self.cpus.clone()));
        self.fits = fits;
        misfit
    }

    /// Names the functions to the server. Call it after the counts of all functions were written.
    pub(crate) fn publish(&mut self) {
        let Connection::Made(made) = &mut self.connection else { return };
        if !made.is_named {
            made.is_named = true;
            // Functions for which there is no room stay.
            for name in &self.functions {
                made.memory.table.add(name.as_bytes(), 0);
            }
        }
    }

    /// The CPUs that the server gives a program that asks for cores; empty while it gives none.
    /// `None` without a live server, or if the server may dedicate none.
    pub(crate) fn given(&self) -> Option<Vec<CpuId>> {
        self.made().filter(|made| made.memory.holds())?;
        let mut cores = Some(self.cores()).filter(|cores| !cores.is_empty())?;
        let has_any = (0..self.functions.len()).any(|one| self.word(one) == Word::Move);
        cores.truncate(if has_any { self.dedicated() } else { 0 });
        Some(cores)
    }

    /// Writes the number and time of a function's calls since the program's start, for a program
    /// whose calls stay and whose threads move.
    pub(crate) fn tell_calls(&self, function: usize, tally: &Tally) {
        self.write(function, &Sums { moved: 0, moved_ticks: 0, ..sums(tally) });
    }

    /// Adds to the time that threads of the program were on the server's cores.
    pub(crate) fn add_wide(&self, time: Duration) {
        let Some(made) = self.made() else { return };
        let ticks = whole(time.as_secs_f64() * 1e9 * dimmer_protocol::ticks_per_ns());
        let client = &made.memory.table.head.client;
        client.set_wide(client.wide().saturating_add(ticks));
    }

    /// Writes the counts of a function's calls since the program's start.
    pub(crate) fn tell(&self, function: usize, tally: &Tally) {
        self.write(function, &sums(tally));
    }

    fn write(&self, function: usize, sums: &Sums) {
        if let Some(site) = self.made().and_then(|made| made.memory.table.sites.get(function)) {
            site.set(sums);
        }
    }

    /// The server's decision for a function's calls now.
    pub(crate) fn word(&self, function: usize) -> Word {
        let Some(made) = self.made() else { return Word::Stay };
        let word = made.memory.table.decisions.get(function);
        let word = word.map(|word| word.load(Ordering::Relaxed));
        let moves = matches!(word, Some(DELEGATE | MIGRATE));
        if moves && self.dedicated() > 0 { Word::Move } else { Word::Stay }
    }
}

impl Connection {
    /// Asks the first server that listens.
    fn ask(hello: &[u8; Hello::BYTES]) -> Self {
        let asked = Client::of_first(&dimmer_protocol::candidates(), hello);
        asked.map_or(Self::None, Self::Asked)
    }

    /// Takes the server's answer for this number of functions, if it has come.
    fn hear(&mut self, functions: usize) {
        let Self::Asked(client) = self else { return };
        let answer = client.memory();
        if matches!(answer, Ok(None)) {
            return;
        }
        let Self::Asked(client) = std::mem::replace(self, Self::None) else { return };
        let memory = answer.ok().flatten().and_then(|files| files.map().ok());
        let has_memory = |memory: &Memory| memory.table.has_memory(0..functions.min(SITES));
        if let Some(memory) = memory.filter(has_memory) {
            *self = Self::Made(Made { _client: client, memory, is_named: false });
        }
    }
}

/// Calls in the protocol's form.
fn sums(tally: &Tally) -> Sums {
    let ticks = |ns: f64| whole(ns * dimmer_protocol::ticks_per_ns());
    Sums {
        calls: tally.calls,
        stayed: whole(tally.lasted.calls()),
        stayed_ticks: ticks(tally.lasted.sum()),
        moved: whole(tally.moved.calls()).min(tally.calls),
        moved_ticks: ticks(tally.moved.sum()),
        ..Sums::default()
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
}
