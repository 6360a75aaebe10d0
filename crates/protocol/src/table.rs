//! The layout of the shared memory. All of it is atomic, so that neither side has to trust the
//! other.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::VERSION;

/// How long a decision to move work holds after the server's last sign of life.
pub const LEASE: Duration = Duration::from_millis(100);

/// Maximum of what is left of a lease (ticks of the time-stamp counter): 1 s, the longest that a
/// server grants, at any rate of the counter.
const LONGEST: u64 = 1 << 33;

/// Whether a lease that ends at the time `until` lasts at the time `now` (ticks). A lease with more
/// left than any server grants is from before the counter started again, as it does when a machine
/// wakes up or a process moves to another one: its server may have ended long ago.
#[inline]
pub(crate) fn lasts(until: u64, now: u64) -> bool {
    until.wrapping_sub(now).wrapping_sub(1) < LONGEST
}

/// Maximum number of a client's sites that the server decides for; calls of further sites are not
/// moved.
pub const SITES: usize = 1024;

/// Maximum number of CPUs on the lease page.
pub const LEASE_CORES: usize = 256;

/// Maximum length of a site's name (bytes). Longer names lose their start, since names differ at
/// the end.
pub const NAME_BYTES: usize = 120;

/// The decision that calls stay where they are. All values other than [`DELEGATE`] and [`MIGRATE`]
/// mean the same.
pub const STAY: u32 = 0;
/// The decision that closures run on a dedicated core.
pub const DELEGATE: u32 = 1;
/// The decision that the thread itself migrates there.
pub const MIGRATE: u32 = 2;

/// The first bytes of a file: "dimmer" and the kind of the file.
const LEASE_PAGE: u64 = u64::from_le_bytes(*b"dimmerbn");
/// The first bytes of a file with a [`Table`].
const TABLE: u64 = u64::from_le_bytes(*b"dimmertb");

/// The data that the server publishes to all clients; they cannot write it.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct LeasePage {
    magic: AtomicU64,
    version: AtomicU32,
    /// Number of cores that are dedicated now: the first of the list.
    in_use: AtomicU32,
    /// Until when decisions hold (ticks of the time-stamp counter).
    lease: AtomicU64,
    /// Time of the policy's last decision (ticks).
    decided: AtomicU64,
    /// Maximum number of cores that may ever be dedicated.
    length: AtomicU32,
    cores: [AtomicU32; LEASE_CORES],
}

/// A client's sites.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct Table {
    /// The data that belongs to no site.
    pub head: Head,
    /// By site: [`STAY`], [`DELEGATE`] or [`MIGRATE`]. Only the server writes them.
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

/// The server's data for one client.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct ByServer {
    magic: AtomicU64,
    version: AtomicU32,
    /// Nonzero: the server has abandoned this table; the client may connect again.
    is_left: AtomicU32,
}

/// The client's data other than its sites.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct ByClient {
    /// Number of sites; written after the site that it adds.
    sites: AtomicU32,
    /// Whether the program itself reports the work that it completes.
    is_explicit: AtomicU32,
    /// Completed work, in the program's own unit.
    done: AtomicU64,
    /// How long the program's threads were on wide cores in all, of a client that asks for cores
    /// (ticks).
    wide: AtomicU64,
}

/// A site: its statistics and its name.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Site {
    /// Entries so far, estimated from the sampled ones.
    calls: AtomicU64,
    /// Number of sampled entries that stayed.
    stayed: AtomicU64,
    /// Total duration of those entries (ticks).
    stayed_ticks: AtomicU64,
    /// Number of entries that were moved.
    moved: AtomicU64,
    /// Total duration of those entries, including the moves (ticks).
    moved_ticks: AtomicU64,
    /// Number of clock measurements around regions that stayed.
    clocks: AtomicU64,
    /// Total duration of the chains of multiplications right before those regions (ticks).
    before_ticks: AtomicU64,
    /// The same right after them.
    after_ticks: AtomicU64,
    line: AtomicU32,
    name_length: AtomicU32,
    name: [AtomicU64; NAME_BYTES / 8],
}

/// A site's statistics since its program started: sums that only grow, if the client is honest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Entries, estimated from the sampled ones.
    pub calls: u64,
    /// Number of sampled entries that stayed.
    pub stayed: u64,
    /// Total duration of those entries (ticks of the time-stamp counter).
    pub stayed_ticks: u64,
    /// Number of entries that were moved.
    pub moved: u64,
    /// Total duration of those entries, including the moves (ticks).
    pub moved_ticks: u64,
    /// Number of clock measurements around regions that stayed.
    pub clocks: u64,
    /// Total duration of the chains of multiplications right before those regions (ticks).
    pub before_ticks: u64,
    /// The same right after them.
    pub after_ticks: u64,
}

// Server and client may be of different builds: the layout is part of the protocol, and `VERSION`
// changes with it. That is also why the alignments are numbers here, and no type of a crate.
const _: () = {
    assert!(offset_of!(LeasePage, magic) == 0 && offset_of!(LeasePage, version) == 8);
    assert!(offset_of!(LeasePage, in_use) == 12 && offset_of!(LeasePage, lease) == 16);
    assert!(offset_of!(LeasePage, decided) == 24 && offset_of!(LeasePage, length) == 32);
    assert!(offset_of!(LeasePage, cores) == 36 && size_of::<LeasePage>() == 4096);
    assert!(offset_of!(Head, server) == 0 && offset_of!(Head, client) == 128);
    assert!(offset_of!(ByServer, magic) == 0 && offset_of!(ByServer, version) == 8);
    assert!(offset_of!(ByServer, is_left) == 12 && size_of::<Head>() == 4096);
    assert!(offset_of!(ByClient, sites) == 0 && offset_of!(ByClient, is_explicit) == 4);
    assert!(offset_of!(ByClient, done) == 8 && offset_of!(ByClient, wide) == 16);
    assert!(offset_of!(Table, head) == 0 && offset_of!(Table, decisions) == 4096);
    assert!(offset_of!(Table, sites) == 8192);
    assert!(size_of::<Table>() == 4096 + SITES * 4 + SITES * 256);
    assert!(offset_of!(Site, calls) == 0 && offset_of!(Site, stayed) == 8);
    assert!(offset_of!(Site, stayed_ticks) == 16 && offset_of!(Site, moved) == 24);
    assert!(offset_of!(Site, moved_ticks) == 32 && offset_of!(Site, clocks) == 40);
    assert!(offset_of!(Site, before_ticks) == 48 && offset_of!(Site, after_ticks) == 56);
    assert!(offset_of!(Site, line) == 64 && offset_of!(Site, name_length) == 68);
    assert!(offset_of!(Site, name) == 72 && size_of::<Site>() == 256);
};

impl LeasePage {
    /// Turns zeroed memory into a lease page: `cores` may be dedicated, none is yet.
    pub fn write(&self, cores: &[u32]) {
        for (place, core) in self.cores.iter().zip(cores) {
            place.store(*core, Ordering::Relaxed);
        }
        let length = u32::try_from(cores.len().min(LEASE_CORES)).unwrap_or(0);
        self.length.store(length, Ordering::Relaxed);
        self.version.store(VERSION, Ordering::Relaxed);
        // Ordering: pairs with the load below: a page with the number is filled.
        self.magic.store(LEASE_PAGE, Ordering::Release);
    }

    /// Whether it is a lease page of this version.
    #[must_use]
    pub fn is_known(&self) -> bool {
        // Ordering: pairs with the store above.
        self.magic.load(Ordering::Acquire) == LEASE_PAGE
            && self.version.load(Ordering::Relaxed) == VERSION
    }

    /// Makes decisions hold until `until` (ticks). With 0, they stop holding.
    pub fn renew(&self, until: u64) {
        // Ordering: pairs with the load in `holds`: decisions that were written before are in
        // force.
        self.lease.store(until, Ordering::Release);
    }

    /// Whether decisions hold at the time `now` (ticks).
    #[must_use]
    #[inline]
    pub fn holds(&self, now: u64) -> bool {
        // Ordering: pairs with the store above.
        lasts(self.lease.load(Ordering::Acquire), now)
    }

    /// Records that the policy has decided at the time `at` (ticks). Its decisions are written
    /// afterwards.
    pub fn note_decided(&self, at: u64) {
        // Ordering: pairs with the load below: the decisions of that time are visible.
        self.decided.store(at, Ordering::Release);
    }

    /// Time of the policy's last decision (ticks).
    #[must_use]
    pub fn decided(&self) -> u64 {
        // Ordering: pairs with the store above.
        self.decided.load(Ordering::Acquire)
    }

    /// Dedicates `count` cores, the first of the list.
    pub fn dedicate(&self, count: usize) {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.in_use.store(count.min(self.length.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    /// Number of dedicated cores.
    #[must_use]
    #[inline]
    pub fn dedicated(&self) -> usize {
        self.in_use.load(Ordering::Relaxed) as usize
    }

    /// The CPUs that may be dedicated, in the order in which they are used.
    pub fn cores(&self) -> impl Iterator<Item = u32> + '_ {
        let length = self.length.load(Ordering::Relaxed) as usize;
        self.cores.iter().take(length).map(|core| core.load(Ordering::Relaxed))
    }
}

impl Table {
    /// Turns zeroed memory into a table without sites.
    pub fn write(&self) {
        self.head.server.version.store(VERSION, Ordering::Relaxed);
        // Ordering: pairs with the load below: a table with the number is filled.
        self.head.server.magic.store(TABLE, Ordering::Release);
    }

    /// Whether it is a table of this version.
    #[must_use]
    pub fn is_known(&self) -> bool {
        let server = &self.head.server;
        // Ordering: pairs with the store above.
        server.magic.load(Ordering::Acquire) == TABLE
            && server.version.load(Ordering::Relaxed) == VERSION
    }

    /// Abandons the client: the server's decisions no longer move anything, and the client may
    /// connect again.
    pub fn leave(&self) {
        for decision in &self.decisions {
            decision.store(STAY, Ordering::Relaxed);
        }
        // Ordering: pairs with the load below: the server writes nothing afterwards.
        self.head.server.is_left.store(1, Ordering::Release);
    }

    /// Whether the server has abandoned it.
    #[must_use]
    pub fn is_left(&self) -> bool {
        // Ordering: pairs with the store above.
        self.head.server.is_left.load(Ordering::Acquire) != 0
    }

    /// Adds a site with this name, at this line of its file. Returns its index, if there is room.
    /// Calls must not overlap.
    pub fn add(&self, name: &[u8], line: u32) -> Option<usize> {
        let place = self.head.client.sites.load(Ordering::Relaxed);
        self.sites.get(place as usize)?.describe(name, line);
        // Ordering: pairs with the load in `length`: the name of the site is written.
        self.head.client.sites.store(place + 1, Ordering::Release);
        Some(place as usize)
    }

    /// Number of sites, limited to [`SITES`].
    #[must_use]
    pub fn length(&self) -> usize {
        // Ordering: pairs with the stores in `add` and `take_over`.
        (self.head.client.sites.load(Ordering::Acquire) as usize).min(SITES)
    }

    /// Copies the sites of `names`, with the current sums of `other`. Nothing else may use this
    /// table yet.
    pub fn take_over(&self, names: &Self, other: &Self) {
        let length = names.length();
        let theirs = names.sites[..length].iter().zip(&other.sites);
        for (mine, (named, summed)) in self.sites.iter().zip(theirs) {
            let (name, length) = named.name();
            mine.describe(&name[..length], named.line());
            mine.set(&summed.sums());
        }
        let [mine, theirs] = [self, other].map(|table| &table.head.client);
        mine.is_explicit.store(theirs.is_explicit.load(Ordering::Relaxed), Ordering::Relaxed);
        mine.done.store(theirs.done.load(Ordering::Relaxed), Ordering::Relaxed);
        // Ordering: pairs with the load in `length`: the sites were copied.
        mine.sites.store(u32::try_from(length).unwrap_or(0), Ordering::Release);
    }
}

impl ByClient {
    /// Adds to the program's completed work, in the program's own unit.
    pub fn add_done(&self, amount: u64) {
        self.is_explicit.store(1, Ordering::Relaxed);
        self.done.fetch_add(amount, Ordering::Relaxed);
    }

    /// Sets how long the program's threads were on wide cores in all (ticks).
    pub fn set_wide(&self, ticks: u64) {
        self.wide.store(ticks, Ordering::Relaxed);
    }

    /// How long the program's threads were on wide cores in all (ticks).
    #[must_use]
    pub fn wide(&self) -> u64 {
        self.wide.load(Ordering::Relaxed)
    }

    /// The completed work so far, if the program reports it.
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

    /// The site's name, which may be any bytes, and its length.
    #[must_use]
    pub fn name(&self) -> ([u8; NAME_BYTES], usize) {
        let mut name = [0; NAME_BYTES];
        for (bytes, word) in name.chunks_exact_mut(8).zip(&self.name) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        (name, (self.name_length.load(Ordering::Relaxed) as usize).min(NAME_BYTES))
    }

    /// The line of the site in its file.
    #[must_use]
    pub fn line(&self) -> u32 {
        self.line.load(Ordering::Relaxed)
    }

    /// Adds to the number of entries.
    #[inline]
    pub fn add_calls(&self, calls: u64) {
        self.calls.fetch_add(calls, Ordering::Relaxed);
    }

    /// Adds an entry that stayed, with its duration (ticks).
    #[inline]
    pub fn add_stayed(&self, ticks: u64) {
        self.stayed.fetch_add(1, Ordering::Relaxed);
        self.stayed_ticks.fetch_add(ticks, Ordering::Relaxed);
    }

    /// Adds an entry that was moved, with its duration including the moves (ticks).
    #[inline]
    pub fn add_moved(&self, ticks: u64) {
        self.moved.fetch_add(1, Ordering::Relaxed);
        self.moved_ticks.fetch_add(ticks, Ordering::Relaxed);
    }

    /// Adds the durations of a chain of multiplications right before and right after a region
    /// (ticks).
    pub fn add_clock(&self, before: u64, after: u64) {
        self.before_ticks.fetch_add(before, Ordering::Relaxed);
        self.after_ticks.fetch_add(after, Ordering::Relaxed);
        self.clocks.fetch_add(1, Ordering::Relaxed);
    }

    /// The site's statistics so far.
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

    /// Sets the site's statistics, for callers that count elsewhere.
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
    /// The increase since an earlier reading. A sum that has shrunk, because the client lies,
    /// counts as zero.
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
