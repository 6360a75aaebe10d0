//! What lies in shared memory, and where. All of it is atomic, so that neither side has to believe
//! the other.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::VERSION;

/// For how long a decision to move work holds after the server was last seen alive.
pub const LEASE: Duration = Duration::from_millis(100);

/// How many sites of a client the server decides for; others stay where they are.
pub const SITES: usize = 1024;

/// How many hardware threads the lease page can name.
pub const LEASE_CORES: usize = 256;

/// How many bytes of a site's name there is room for; longer ones lose their begin, as what tells
/// them apart is at the end.
pub const NAME_BYTES: usize = 120;

/// The decision that calls stay where they are. All others but [`OFFLOAD`] and [`BORROW`] mean the
/// same.
pub const STAY: u32 = 0;
/// The decision that closures run on a dedicated core.
pub const OFFLOAD: u32 = 1;
/// The decision that the thread itself goes there.
pub const BORROW: u32 = 2;

/// "dimmer" and what it is, as the first bytes of a file.
const LEASE_PAGE: u64 = u64::from_le_bytes(*b"dimmerbn");
/// As above.
const TABLE: u64 = u64::from_le_bytes(*b"dimmertb");

/// What the server tells all clients; they cannot write it.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct LeasePage {
    magic: AtomicU64,
    version: AtomicU32,
    /// How many of the cores are dedicated now: the first of the list.
    in_use: AtomicU32,
    /// Until when decisions hold (ticks of the time-stamp counter).
    lease: AtomicU64,
    /// When the policy has decided last (ticks).
    decided: AtomicU64,
    /// How many cores may ever be dedicated.
    length: AtomicU32,
    cores: [AtomicU32; LEASE_CORES],
}

/// A client's sites.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct Table {
    /// What is not of a site.
    pub head: Head,
    /// By site: [`STAY`], [`OFFLOAD`] or [`BORROW`]. Only the server writes them.
    pub decisions: [AtomicU32; SITES],
    /// Only the client writes them.
    pub sites: [Site; SITES],
}

/// The first page of a table.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct Head {
    /// The server's part.
    pub server: ByServer,
    /// The client's part.
    pub client: ByClient,
}

/// What the server tells one client.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct ByServer {
    magic: AtomicU64,
    version: AtomicU32,
    /// Not zero: the server has left this table; the client may connect anew.
    is_left: AtomicU32,
}

/// What a client tells beside its sites.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct ByClient {
    /// How many sites there are; written after the site that it adds.
    sites: AtomicU32,
    /// Whether the program says itself what it gets done.
    is_explicit: AtomicU32,
    /// What it has got done, in a unit of its own.
    done: AtomicU64,
}

/// A site: what it has seen, and its name.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Site {
    /// Entries so far, estimated from those that were looked at.
    calls: AtomicU64,
    /// How many of those that stayed were looked at.
    stayed: AtomicU64,
    /// How long those took (ticks).
    stayed_ticks: AtomicU64,
    /// How many entries were moved.
    moved: AtomicU64,
    /// How long those took, with the way (ticks).
    moved_ticks: AtomicU64,
    /// How often the clock was told around a region that stayed.
    clocks: AtomicU64,
    /// How long a chain of multiplications took right before those regions, together (ticks).
    before_ticks: AtomicU64,
    /// The same right after them.
    after_ticks: AtomicU64,
    line: AtomicU32,
    name_length: AtomicU32,
    name: [AtomicU64; NAME_BYTES / 8],
}

/// What a site has seen since its program began: sums that only grow, if the client is honest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Entries, estimated from those that were looked at.
    pub calls: u64,
    /// How many of those that stayed were looked at.
    pub stayed: u64,
    /// How long those took (ticks of the time-stamp counter).
    pub stayed_ticks: u64,
    /// How many entries were moved.
    pub moved: u64,
    /// How long those took, with the way (ticks).
    pub moved_ticks: u64,
    /// How often the clock was told around a region that stayed.
    pub clocks: u64,
    /// How long a chain of multiplications took right before those regions, together (ticks).
    pub before_ticks: u64,
    /// The same right after them.
    pub after_ticks: u64,
}

const _: () = assert!(size_of::<LeasePage>() == 4096);
const _: () = assert!(size_of::<Head>() == 4096 && size_of::<Site>() == 256);
const _: () = assert!(size_of::<Table>() == 4096 + SITES * 4 + SITES * 256);
const _: () = assert!(std::mem::offset_of!(Table, decisions) == 4096);
const _: () = assert!(std::mem::offset_of!(Table, sites) == 8192);
const _: () =
    assert!(std::mem::offset_of!(Site, line) == 64 && std::mem::offset_of!(Site, name) == 72);

impl LeasePage {
    /// Makes empty memory a lease page: these cores may be dedicated, none is.
    pub fn write(&self, cores: &[u32]) {
        for (place, core) in self.cores.iter().zip(cores) {
            place.store(*core, Ordering::Relaxed);
        }
        let length = u32::try_from(cores.len().min(LEASE_CORES)).unwrap_or(0);
        self.length.store(length, Ordering::Relaxed);
        self.version.store(VERSION, Ordering::Relaxed);
        self.magic.store(LEASE_PAGE, Ordering::Release);
    }

    /// Whether it is one of this version.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.magic.load(Ordering::Acquire) == LEASE_PAGE
            && self.version.load(Ordering::Relaxed) == VERSION
    }

    /// Lets decisions hold until then (ticks). 0: no longer.
    pub fn renew(&self, until: u64) {
        self.lease.store(until, Ordering::Release);
    }

    /// Whether decisions hold at that moment (ticks).
    #[must_use]
    #[inline]
    pub fn holds(&self, now: u64) -> bool {
        now < self.lease.load(Ordering::Acquire)
    }

    /// The policy has decided at that moment (ticks); what it says is written afterwards.
    pub fn note_decided(&self, at: u64) {
        self.decided.store(at, Ordering::Release);
    }

    /// When the policy has decided last (ticks).
    #[must_use]
    pub fn decided(&self) -> u64 {
        self.decided.load(Ordering::Acquire)
    }

    /// Dedicates so many cores, the first of the list.
    pub fn dedicate(&self, count: usize) {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.in_use.store(count.min(self.length.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    /// How many cores are dedicated.
    #[must_use]
    #[inline]
    pub fn dedicated(&self) -> usize {
        self.in_use.load(Ordering::Relaxed) as usize
    }

    /// The hardware threads that may be dedicated, those that are first.
    pub fn cores(&self) -> impl Iterator<Item = u32> + '_ {
        let length = self.length.load(Ordering::Relaxed) as usize;
        self.cores.iter().take(length).map(|core| core.load(Ordering::Relaxed))
    }
}

impl Table {
    /// Makes empty memory a table without sites.
    pub fn write(&self) {
        self.head.server.version.store(VERSION, Ordering::Relaxed);
        self.head.server.magic.store(TABLE, Ordering::Release);
    }

    /// Whether it is one of this version.
    #[must_use]
    pub fn is_known(&self) -> bool {
        let server = &self.head.server;
        server.magic.load(Ordering::Acquire) == TABLE
            && server.version.load(Ordering::Relaxed) == VERSION
    }

    /// Leaves the client alone: nothing moves any more by what the server has decided, and the
    /// client may connect anew.
    pub fn leave(&self) {
        for decision in &self.decisions {
            decision.store(STAY, Ordering::Relaxed);
        }
        self.head.server.is_left.store(1, Ordering::Release);
    }

    /// Whether the server has left it.
    #[must_use]
    pub fn is_left(&self) -> bool {
        self.head.server.is_left.load(Ordering::Acquire) != 0
    }

    /// Adds a site, of this name and at this line of its file; its place, if there is room. One at
    /// a time.
    pub fn add(&self, name: &[u8], line: u32) -> Option<usize> {
        let place = self.head.client.sites.load(Ordering::Relaxed);
        self.sites.get(place as usize)?.describe(name, line);
        self.head.client.sites.store(place + 1, Ordering::Release);
        Some(place as usize)
    }

    /// How many sites there are, no more than there is room for.
    #[must_use]
    pub fn length(&self) -> usize {
        (self.head.client.sites.load(Ordering::Acquire) as usize).min(SITES)
    }

    /// Takes over the sites of another table, names and sums, as they are at that moment. Nobody
    /// else uses this one yet.
    pub fn take_over(&self, other: &Self) {
        let length = other.length();
        for (mine, theirs) in self.sites.iter().zip(&other.sites[..length]) {
            let (name, length) = theirs.name();
            mine.describe(&name[..length], theirs.line());
            mine.set(&theirs.sums());
        }
        let [mine, theirs] = [self, other].map(|table| &table.head.client);
        mine.is_explicit.store(theirs.is_explicit.load(Ordering::Relaxed), Ordering::Relaxed);
        mine.done.store(theirs.done.load(Ordering::Relaxed), Ordering::Relaxed);
        mine.sites.store(u32::try_from(length).unwrap_or(0), Ordering::Release);
    }
}

impl ByClient {
    /// The program has got so much done, in a unit of its own.
    pub fn add_done(&self, amount: u64) {
        self.is_explicit.store(1, Ordering::Relaxed);
        self.done.fetch_add(amount, Ordering::Relaxed);
    }

    /// What it has got done so far, if it says so.
    #[must_use]
    pub fn done(&self) -> Option<u64> {
        let is_explicit = self.is_explicit.load(Ordering::Relaxed) != 0;
        is_explicit.then(|| self.done.load(Ordering::Relaxed))
    }
}

impl Site {
    fn describe(&self, name: &[u8], line: u32) {
        let name = &name[name.len().saturating_sub(NAME_BYTES)..];
        let mut words = name.chunks(8).map(|chunk| {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(bytes)
        });
        for word in &self.name {
            word.store(words.next().unwrap_or(0), Ordering::Relaxed);
        }
        self.line.store(line, Ordering::Relaxed);
        self.name_length.store(u32::try_from(name.len()).unwrap_or(0), Ordering::Relaxed);
    }

    /// Its name, any bytes, and how many of them count.
    #[must_use]
    pub fn name(&self) -> ([u8; NAME_BYTES], usize) {
        let mut name = [0; NAME_BYTES];
        for (bytes, word) in name.chunks_exact_mut(8).zip(&self.name) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        (name, (self.name_length.load(Ordering::Relaxed) as usize).min(NAME_BYTES))
    }

    /// The line of its file where it stands.
    #[must_use]
    pub fn line(&self) -> u32 {
        self.line.load(Ordering::Relaxed)
    }

    /// So many more entries.
    #[inline]
    pub fn add_calls(&self, calls: u64) {
        self.calls.fetch_add(calls, Ordering::Relaxed);
    }

    /// An entry that stayed has taken so long (ticks).
    #[inline]
    pub fn add_stayed(&self, ticks: u64) {
        self.stayed.fetch_add(1, Ordering::Relaxed);
        self.stayed_ticks.fetch_add(ticks, Ordering::Relaxed);
    }

    /// An entry that was moved has taken so long with the way (ticks).
    #[inline]
    pub fn add_moved(&self, ticks: u64) {
        self.moved.fetch_add(1, Ordering::Relaxed);
        self.moved_ticks.fetch_add(ticks, Ordering::Relaxed);
    }

    /// A chain of multiplications has taken so long right before a region, and so long right after
    /// it (ticks).
    pub fn add_clock(&self, before: u64, after: u64) {
        self.before_ticks.fetch_add(before, Ordering::Relaxed);
        self.after_ticks.fetch_add(after, Ordering::Relaxed);
        self.clocks.fetch_add(1, Ordering::Relaxed);
    }

    /// What it has seen so far.
    #[must_use]
    pub fn sums(&self) -> Sums {
        let read = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
        Sums {
            calls: read(&self.calls),
            stayed: read(&self.stayed),
            stayed_ticks: read(&self.stayed_ticks),
            moved: read(&self.moved),
            moved_ticks: read(&self.moved_ticks),
            clocks: read(&self.clocks),
            before_ticks: read(&self.before_ticks),
            after_ticks: read(&self.after_ticks),
        }
    }

    /// Says what it has seen so far, for who counts elsewhere.
    pub fn set(&self, sums: &Sums) {
        let write = |sum: &AtomicU64, value| sum.store(value, Ordering::Relaxed);
        write(&self.calls, sums.calls);
        write(&self.stayed, sums.stayed);
        write(&self.stayed_ticks, sums.stayed_ticks);
        write(&self.moved, sums.moved);
        write(&self.moved_ticks, sums.moved_ticks);
        write(&self.clocks, sums.clocks);
        write(&self.before_ticks, sums.before_ticks);
        write(&self.after_ticks, sums.after_ticks);
    }
}

impl Sums {
    /// What was added since an earlier look. A sum that has shrunk, as the client lies, counts as
    /// nothing.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            calls: self.calls.saturating_sub(before.calls),
            stayed: self.stayed.saturating_sub(before.stayed),
            stayed_ticks: self.stayed_ticks.saturating_sub(before.stayed_ticks),
            moved: self.moved.saturating_sub(before.moved),
            moved_ticks: self.moved_ticks.saturating_sub(before.moved_ticks),
            clocks: self.clocks.saturating_sub(before.clocks),
            before_ticks: self.before_ticks.saturating_sub(before.before_ticks),
            after_ticks: self.after_ticks.saturating_sub(before.after_ticks),
        }
    }
}
