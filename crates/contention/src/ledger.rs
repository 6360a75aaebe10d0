//! The file in which a process counts what happens at its sites: a head and a table of fixed size,
//! in the byte order of the machine.

use std::sync::atomic::{AtomicU32, AtomicU64};

/// The first bytes of each such file.
pub const MAGIC: [u8; 8] = *b"dimlocks";

/// Changes with each change of the layout. Both sides come from the same build.
pub const VERSION: u32 = 5;

/// Maximum number of sites of a process. A guess: the browsers and databases looked at have some
/// hundreds.
pub const SITES: usize = 1024;

/// Maximum length of the name of a site's file (bytes). Sites in files with longer names have none.
pub const PATH: usize = 240;

/// What a site waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// A mutex.
    Mutex = 1,
    /// A lock for reading.
    Read = 2,
    /// A lock for writing.
    Write = 3,
    /// A condition variable. What is held afterwards is its mutex.
    Condition = 4,
    /// A barrier. Nothing is held afterwards.
    Barrier = 5,
    /// A function: from a call of it to its return. Nothing is waited for.
    Function = 6,
    /// From the return of a function to the next call of another one. What is waited for is the
    /// first one's return.
    Section = 7,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::Mutex,
        Self::Read,
        Self::Write,
        Self::Condition,
        Self::Barrier,
        Self::Function,
        Self::Section,
    ];

    /// Whether the site is that of a section by functions, which the user has named.
    #[must_use]
    pub const fn is_by_functions(self) -> bool {
        matches!(self, Self::Function | Self::Section)
    }
}

/// The head of the file.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Head {
    pub(crate) magic: [u8; 8],
    pub(crate) version: u32,
    /// The process, as it sees itself.
    pub(crate) process: u32,
    /// Acquisitions at sites that had no room in the table.
    pub(crate) unplaced: AtomicU64,
    /// Holds whose end was not seen, because the thread held too many locks.
    pub(crate) unended: AtomicU64,
    /// Whether the process has stopped before its end ([`crate::stop`]).
    pub(crate) stopped: AtomicU64,
    /// How long it takes to read the counters of a section, at its begin and its end together
    /// (ticks); 0 if no thread has counters.
    pub(crate) reading: AtomicU64,
    /// The events of the processor that a thread counts, a bit each, and [`USER_ONLY`].
    pub(crate) events: AtomicU64,
    /// Why an event is not counted, a byte each: the number of the error, or [`NOT_READABLE`].
    pub(crate) refused: AtomicU64,
}

/// Number of the processor's events that are counted.
pub const EVENTS: usize = 5;

/// Bit of a ledger's events: they are counted in user mode only.
pub const USER_ONLY: u64 = 1 << 32;

/// Stands for an error: the kernel lets no program read the counter.
pub const NOT_READABLE: u8 = u8::MAX;

/// What is measured of the sections of a site, in the order of its sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// How many sections were measured.
    Sampled,
    /// How many of these lasted for less time than reading the counters takes.
    Short,
    /// How long they lasted (ticks).
    Time,
    /// Their page faults.
    Faults,
    /// How often the thread gave up its CPU in them, to wait.
    Sleeps,
    /// For how many of them the processor's events were counted throughout.
    Counted,
    /// Their cycles. This and the next ones: of those that were counted.
    Cycles,
    /// Their cycles of the reference clock.
    Reference,
    /// Their stalled cycles.
    Stalled,
    /// Their misses of the last cache.
    Misses,
    /// Their instructions.
    Instructions,
    /// How long those lasted that were counted and in which the thread kept its CPU (ticks).
    SteadyTime,
    /// The cycles of these.
    SteadyCycles,
}

/// Number of [`Measure`]s.
pub const MEASURES: usize = Measure::SteadyCycles as usize + 1;

/// A site. All zero if it is free.
///
/// What each acquisition uses lies in the first of its cache lines, what only boosted ones use in
/// the second, and what only measured ones use in the last ones.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Site {
    /// The [`Kind`] in the uppermost byte, and below it the return address of the call.
    pub(crate) key: AtomicU64,
    /// How often the lock was taken, or the wait ended.
    pub(crate) acquisitions: AtomicU64,
    /// How many of them had to wait.
    pub(crate) contended: AtomicU64,
    /// How long these waited (ticks).
    pub(crate) waited: AtomicU64,
    /// How many holds that began here have ended.
    pub(crate) holds: AtomicU64,
    /// How long these lasted (ticks).
    pub(crate) held: AtomicU64,
    /// The longest of them (ticks).
    pub(crate) longest: AtomicU64,
    /// What threads request here: the number of a `policy::boost::site::AtSite`. The observer
    /// writes it.
    pub(crate) strategy: AtomicU32,
    /// Length of the name in `path`; written after it.
    pub(crate) path_length: AtomicU32,
    /// How many of the holds ended while another thread waited for the lock, or may have. Only seen
    /// of mutexes, and only of holds whose own acquisition did not wait.
    pub(crate) wanted: AtomicU64,
    /// Requests at waits, at acquisitions, and at releases; the last end a request.
    pub(crate) requests: [AtomicU64; 3],
    /// How many holds ended with the fast clock requested.
    pub(crate) boosted: AtomicU64,
    /// For how many of these the request was carried out before their end.
    pub(crate) carried: AtomicU64,
    /// How long these lasted from then on (ticks).
    pub(crate) fast: AtomicU64,
    /// Offset of the call in its file, or its address if the code comes from no file. Of a section
    /// by functions: its number.
    pub(crate) offset: AtomicU64,
    pub(crate) path: [AtomicU64; PATH / 8],
    /// How long threads were outside of the section, from its end to the next wait for it (ticks).
    pub(crate) outside: AtomicU64,
    /// By [`Measure`].
    pub(crate) measures: [AtomicU64; MEASURES],
    pub(crate) reserved: [u64; 4],
}

/// Size of the file (bytes).
pub const BYTES: usize = size_of::<Head>() + SITES * size_of::<Site>();

/// Offset in the file of the strategy of the site with this index.
#[must_use]
pub const fn strategy_at(index: usize) -> usize {
    size_of::<Head>() + index * size_of::<Site>() + std::mem::offset_of!(Site, strategy)
}

const _: () = assert!(size_of::<Head>() == 64 && size_of::<Site>() == 512);
