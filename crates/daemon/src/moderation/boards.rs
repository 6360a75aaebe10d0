//! The boards of all programs, and what of them counts.
//!
//! A user's programs cannot make the server do more than a bounded amount of work between two
//! decisions, so they do not delay those about other users' requests by more than that: the server
//! follows [`WORDS`] words of a user, and verifies [`CHECKS`] new ones at a decision, and as many
//! known ones at a look. Words beyond count as refused; new ones beyond are verified later.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dimmer_processor::units::Time;
use dimmer_protocol::{CLOCKS, Clocks as Board, Mapped, OnBoard, Socket};
use dimmer_watch::state::ClockRequests;

use super::Process;

/// Maximum number of words that are followed of a user. A guess: two programs with full boards.
const WORDS: usize = 2 * CLOCKS;
/// Maximum number of words that are verified of a user at once. Each takes some ten microseconds
/// (a guess), so a user delays others by some milliseconds.
const CHECKS: usize = 256;
/// Maximum number of processes that are examined at a look.
const PROCESSES: usize = 64;

/// A program that asks.
#[derive(Debug)]
pub(super) struct Client {
    process: Process,
    board: Mapped<Board>,
    socket: Arc<Socket>,
    /// A number that no other client has meanwhile.
    index: u32,
    /// Requests as they were seen last, by place.
    known: BTreeMap<usize, Known>,
}

impl Client {
    pub(super) fn new(process: Process, board: Mapped<Board>, socket: Arc<Socket>) -> Self {
        Self { process, board, socket, index: 0, known: BTreeMap::new() }
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Ends the connection: the program notices that, and the server's loop.
    pub(super) fn hang_up(&self) {
        let _ = rustix::net::shutdown(&*self.socket, rustix::net::Shutdown::Both);
    }
}

/// A request as it was seen last.
#[derive(Clone, Copy, Debug)]
struct Known {
    own: OnBoard,
    since: Time,
    /// When its thread was started ([`Process::thread`]), as it was seen first. One that was
    /// started at another time is another thread.
    started: Option<u64>,
    /// When it was verified last, and whether it counts.
    verified: Option<(Time, bool)>,
}

impl Known {
    fn new(own: OnBoard, since: Time) -> Self {
        Self { own, since, started: None, verified: None }
    }

    /// What it is now that its client has this word. A request whose thread has moved keeps its
    /// turn, and is verified again; another one begins.
    fn now(&self, own: OnBoard, now: Time) -> Self {
        let is_moved = OnBoard { cpu: self.own.cpu, ..own } == self.own;
        match (own == self.own, is_moved) {
            (true, _) => *self,
            (false, true) => Self { started: self.started, ..Self::new(own, self.since) },
            (false, false) => Self::new(own, now),
        }
    }

    /// When its thread was started, if it counts.
    fn counts(&self) -> Option<u64> {
        self.started.filter(|_| self.verified.is_some_and(|(_, counts)| counts))
    }

    fn verify(&mut self, process: &Process, now: Time) {
        let started = process.thread(self.own);
        self.started = self.started.or(started);
        self.verified = Some((now, started.is_some() && self.started == started));
    }
}

/// A request that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The client.
    pub(super) client: u64,
    /// Its user.
    pub(super) user: u32,
    /// A number for the back end that no other request has.
    pub(super) id: u32,
    /// What the client has written.
    pub(super) own: OnBoard,
    /// Since when.
    pub(super) since: Time,
    started: u64,
}

/// All boards.
#[derive(Debug, Default)]
pub(super) struct Boards {
    clients: BTreeMap<u64, Client>,
    /// The first client whose process is examined next.
    next: u64,
}

impl Boards {
    pub(super) fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    pub(super) fn client(&self, number: u64) -> Option<&Client> {
        self.clients.get(&number)
    }

    pub(super) fn join(&mut self, number: u64, mut client: Client) {
        let taken: BTreeSet<u32> = self.clients.values().map(|client| client.index).collect();
        client.index = (0..).find(|index| !taken.contains(index)).unwrap_or(u32::MAX);
        self.clients.insert(number, client);
    }

    pub(super) fn leave(&mut self, number: u64) -> Option<Client> {
        self.clients.remove(&number)
    }

    /// Ends all connections.
    pub(super) fn hang_up(&mut self) {
        std::mem::take(&mut self.clients).values().for_each(Client::hang_up);
    }

    /// Clients whose process has ended: another one may have their connection, and their number.
    /// Examines some at a time.
    pub(super) fn ended(&mut self) -> Vec<u64> {
        let examined: Vec<(u64, bool)> = self
            .clients
            .range(self.next..)
            .take(PROCESSES)
            .map(|(number, client)| (*number, client.process.lives()))
            .collect();
        let last = examined.last().filter(|_| examined.len() >= PROCESSES);
        self.next = last.map_or(0, |(number, _)| number + 1);
        examined.into_iter().filter(|(_, lives)| !lives).map(|(number, _)| number).collect()
    }

    /// Reads all boards, and lets clients take the server for alive `until` then (ticks).
    /// `is_look`: also verifies requests again that are known. Returns the requests that count,
    /// and how many words each client has, with those that do not count as refused.
    pub(super) fn read(
        &mut self,
        now: Time,
        until: u64,
        is_look: bool,
    ) -> (Vec<Found>, BTreeMap<u64, ClockRequests>) {
        let mut counts: BTreeMap<u64, ClockRequests> = BTreeMap::new();
        let mut words: BTreeMap<u32, usize> = BTreeMap::new();
        for (number, client) in &mut self.clients {
            client.board.renew(until);
            let count = counts.entry(*number).or_default();
            let words = words.entry(client.process.user()).or_default();
            let before = std::mem::take(&mut client.known);
            for (place, own) in client.board.all() {
                count.requested += 1;
                if *words >= WORDS {
                    count.refused += 1;
                    continue;
                }
                *words += 1;
                let known =
                    before.get(&place).map_or(Known::new(own, now), |before| before.now(own, now));
                client.known.insert(place, known);
            }
        }
        self.verify_some(now, is_look);
        (self.found(&mut counts), counts)
    }

    /// Verifies as many requests of each user as is allowed at once: new ones, and at a look those
    /// that were verified the longest time ago.
    fn verify_some(&mut self, now: Time, is_look: bool) {
        // Since when, the client and the place of each.
        type Places = Vec<(Time, u64, usize)>;
        let mut of_user: BTreeMap<u32, [Places; 2]> = BTreeMap::new();
        for (number, client) in &self.clients {
            let [new, old] = of_user.entry(client.process.user()).or_default();
            for (place, known) in &client.known {
                match known.verified {
                    None => new.push((known.since, *number, *place)),
                    Some((at, _)) if is_look => old.push((at, *number, *place)),
                    Some(_) => {}
                }
            }
        }
        for mut places in of_user.into_values().flatten() {
            places.sort_unstable();
            for (_, number, place) in places.into_iter().take(CHECKS) {
                let Some(client) = self.clients.get_mut(&number) else { continue };
                if let Some(known) = client.known.get_mut(&place) {
                    known.verify(&client.process, now);
                }
            }
        }
    }

    /// The requests that count; of several for a thread, the first.
    fn found(&self, counts: &mut BTreeMap<u64, ClockRequests>) -> Vec<Found> {
        let mut all = Vec::new();
        for (number, client) in &self.clients {
            let mut threads = BTreeSet::new();
            for (place, known) in &client.known {
                if known.verified.is_none() {
                    // It waits for that.
                    continue;
                }
                let Some(started) = known.counts().filter(|_| threads.insert(known.own.thread))
                else {
                    counts.entry(*number).or_default().refused += 1;
                    continue;
                };
                let room = u32::try_from(CLOCKS).unwrap_or(u32::MAX);
                let place = u32::try_from(*place).unwrap_or(u32::MAX);
                all.push(Found {
                    client: *number,
                    user: client.process.user(),
                    id: client.index.saturating_mul(room).saturating_add(place),
                    own: known.own,
                    since: known.since,
                    started,
                });
            }
        }
        all
    }

    /// Whether the request still counts.
    pub(super) fn verify(&self, found: &Found) -> bool {
        let client = self.clients.get(&found.client);
        client.is_some_and(|client| client.process.thread(found.own) == Some(found.started))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::sync::mpsc::{Sender, channel};

    use dimmer_host::affinity;
    use dimmer_protocol::{Closer, Owned};
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;

    /// Client 1, whose process is this one, and the memory that its program writes.
    fn boards() -> (Boards, Mapped<Board>) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let socket = Arc::new(Socket::new(pair.unwrap().0, &Closer::new().unwrap()));
        let user = rustix::process::geteuid().as_raw();
        let process = Process::of(std::process::id().cast_signed(), user).unwrap();
        let board = Owned::<Board>::new().unwrap();
        let written = Mapped::new(board.as_fd()).unwrap();
        let mut boards = Boards::default();
        boards.join(1, Client::new(process, board.into_memory(), socket));
        (boards, written)
    }

    fn read(boards: &mut Boards, is_look: bool) -> (Vec<Found>, ClockRequests) {
        let until = dimmer_protocol::ticks() + (1 << 33);
        let (found, mut counts) = boards.read(Time::from_ns(1), until, is_look);
        (found, counts.remove(&1).unwrap())
    }

    /// A thread of this process that waits, and what ends it.
    fn thread() -> (u32, Sender<()>, std::thread::JoinHandle<()>) {
        let (tell, told) = channel();
        let (end, ended) = channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()).unwrap();
            let _ = ended.recv();
        });
        (told.recv().unwrap(), end, thread)
    }

    fn own_cpu() -> u32 {
        affinity::allowed().unwrap()[0].index()
    }

    #[test]
    fn a_request_of_a_thread_counts_once_and_until_the_thread_ends() {
        let (mut boards, board) = boards();
        let (thread, end, handle) = thread();
        let own = OnBoard { thread, cpu: own_cpu(), number: 100 };
        board.set(3, Some(own));
        board.set(9, Some(OnBoard { number: 101, ..own }));
        let (found, counts) = read(&mut boards, false);
        assert_eq!(found.iter().map(|found| found.own).collect::<Vec<_>>(), [own]);
        assert_eq!((counts.requested, counts.refused), (2, 1));
        assert!(board.is_attended() && boards.verify(&found[0]));
        drop(end);
        handle.join().unwrap();
        // It is found out at the next look, and before the request is made of the machine.
        assert!(!boards.verify(&found[0]));
        assert_eq!(read(&mut boards, true).0, []);
    }

    /// The thread has been started at another time than the one that requested.
    #[test]
    fn a_later_thread_with_the_same_number_is_another_one() {
        let (mut boards, board) = boards();
        board.set(0, Some(OnBoard { thread: std::process::id(), cpu: own_cpu(), number: 100 }));
        let (found, _) = read(&mut boards, false);
        let known = boards.clients.get_mut(&1).unwrap().known.get_mut(&0).unwrap();
        known.started = Some(found[0].started + 1);
        for _ in 0..3 {
            assert_eq!(read(&mut boards, true).0, []);
        }
        let earlier = Found { started: found[0].started + 1, ..found[0] };
        assert!(boards.verify(&found[0]) && !boards.verify(&earlier));
    }

    #[test]
    fn a_user_has_some_words_verified_at_once_and_is_followed_up_to_a_limit() {
        let (mut boards, board) = boards();
        let none = OnBoard { thread: 1, cpu: 0, number: 1 };
        (0..CLOCKS).for_each(|place| board.set(place, Some(none)));
        let mut refused = Vec::new();
        for _ in 0..=CLOCKS / CHECKS {
            refused.push(usize::try_from(read(&mut boards, false).1.refused).unwrap());
        }
        assert_eq!(refused, [CHECKS, 2 * CHECKS, 2 * CHECKS]);
        // Words that change are new ones: at most as many are verified as before.
        (0..CLOCKS).for_each(|place| board.set(place, Some(OnBoard { number: 2, ..none })));
        assert_eq!(usize::try_from(read(&mut boards, false).1.refused).unwrap(), CHECKS);
        for number in 2..5 {
            let (more, board) = self::boards();
            let client = more.clients.into_values().next().unwrap();
            boards.join(number, client);
            (0..CLOCKS).for_each(|place| board.set(place, Some(none)));
        }
        let (_, counts) = boards.read(Time::from_ns(2), 0, false);
        assert_eq!(counts.values().map(|own| own.requested).sum::<u64>(), 4 * CLOCKS as u64);
        let followed = boards.clients.values().map(|client| client.known.len()).sum::<usize>();
        assert_eq!(followed, WORDS);
        assert_eq!((counts[&3].refused, counts[&4].refused), (CLOCKS as u64, CLOCKS as u64));
    }

    /// Random words, half of them about this process: none counts but those for its own threads and
    /// for CPUs that these may use, and for dedicated CPUs.
    #[test]
    fn random_words_count_for_own_threads_only() {
        let (mut boards, board) = boards();
        let seed = fastrand::u64(..);
        let mut chance = fastrand::Rng::with_seed(seed);
        let allowed = affinity::allowed().unwrap();
        let (thread, end, handle) = thread();
        for _ in 0..30 {
            for place in 0..CLOCKS {
                let cpu = if chance.bool() { chance.u32(0..8) } else { chance.u32(..) & 0xff_ffff };
                let thread = match chance.u8(..4) {
                    0 => chance.u32(..),
                    1 => u32::MAX - chance.u32(0..8),
                    _ => [std::process::id(), thread][chance.usize(0..2)],
                };
                board.set(place, Some(OnBoard { thread, cpu, number: chance.u8(..) }));
            }
            for found in read(&mut boards, chance.bool()).0 {
                let own = found.own;
                let is_own = [std::process::id(), thread].contains(&own.thread)
                    && allowed.iter().any(|cpu| cpu.index() == own.cpu);
                let is_dedicated = own.thread == u32::MAX - own.cpu && own.number == 103;
                assert!(is_own || is_dedicated, "{seed}: {found:?}");
            }
        }
        drop(end);
        handle.join().unwrap();
    }

    #[test]
    fn clients_have_numbers_of_their_own() {
        let mut all = boards().0;
        for number in 2..5 {
            all.join(number, boards().0.clients.into_values().next().unwrap());
        }
        all.leave(2);
        all.join(9, boards().0.clients.into_values().next().unwrap());
        let indices: BTreeSet<u32> = all.clients.values().map(|client| client.index).collect();
        assert_eq!(indices, BTreeSet::from([0, 1, 2, 3]));
    }
}
