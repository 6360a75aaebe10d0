//! The ledger: a file in which a hooked process counts and times its calls. The observer reads it.
//!
//! A process makes a ledger when it starts ([`OwnLedger`]) and shares it with the children that it
//! forks; a program that it executes makes its own. The observer reads and writes the ledger by
//! `pread` and `pwrite` ([`Ledger`]), so nothing that a process does to its ledger can harm the
//! observer.
//!
//! | at | what | mapped by the process |
//! |---|---|---|
//! | 0 | head: magic number, version, numbers of slots, sites and objects, overhead | always |
//! | `OBJECTS_AT` | hooked files, 32 bytes each: base address, places of path and problem | no |
//! | `TEXTS_AT` | paths and problems | no |
//! | `SITES_AT` | hooked functions, 8 bytes each: file number above 48 bits of address | no |
//! | `DECISIONS_AT` | 4 bytes a function: do its calls move, does its hook go | if calls can move |
//! | `SLOTS_AT` | slots of [`SLOT_BYTES`], one for a thread | each when it is reserved |
//!
//! A slot:
//!
//! | at | what | written by |
//! |---|---|---|
//! | [`TID`], [`PID`] | thread and process | the thread |
//! | [`PERIOD`] | calls from one timed pair to the next, on average | the observer |
//! | [`CLAIMED`] | not zero: a thread has it | the thread |
//! | [`DROPPED`], [`MOVED`] | calls that could not be timed; calls that moved | the thread |
//! | `ROOM` | the number of sites that have a counter here | the process |
//! | [`TO_WIDE`] to [`WIDE_NS`] | the thread's wide phases | the process |
//! | [`HEAD`], [`TAIL`] | records put into the ring; records read | the thread; the observer |
//! | [`RING`] | [`RECORDS`] timed calls | the thread |
//! | [`COUNTERS`] | calls of each site, modulo 2³² | the thread |
//!
//! *Memory.* A page is reserved before it is used: the process writes it through the file. That
//! fails with an error if there is no room, where a first touch through a mapping would raise
//! SIGBUS. Pages that are never written stay holes. So a ledger takes some kilobytes, and 20 more
//! for each thread of a process in which something is hooked. [`room`] has the limits.
//!
//! A ring that is not read fills up. From then on calls are only counted.

mod layout;
mod own;
mod phase_counts;
mod reader;
mod room;

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use layout::{ADDRESS_BITS, PAGE, SLOTS_AT};
pub(crate) use layout::{
    BACK, CHAIN_AFTER, CHAIN_BEFORE, CLAIMED, COUNTER_BYTES, COUNTERS, DROPPED, FOLLOWS,
    GOES_ON_SHIFT, HEAD, INTERRUPTED, LEFT_OUT, MIGRATED_CALL, MOVED, PERIOD, PID, RECORD_BEGIN,
    RECORD_END, RECORD_FLAGS, RECORD_SHIFT, RECORD_SITE, RECORDS, RING, ROOM, SITES, SLOT_BYTES,
    SLOTS, STAYS, TAIL, TID, TO_WIDE, UNHOOK_ORDERS, WIDE_NS,
};
pub use own::OwnLedger;
pub(crate) use own::Slot;
pub use phase_counts::PhaseCounts;
pub use reader::{Head, Ledger, Look, Names, Orders, Thread};
pub(crate) use room::may_write;

/// The extension of a ledger's name.
const ENDING: &str = "ledger";

/// The name of the file that, if it exists, limits the ledgers of a run; see [`Ledger::limit_run`].
const ENOUGH: &str = "enough";

/// Errors of ledgers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// The ledger cannot be made, opened or mapped.
    #[error("cannot {what} the ledger {}", path.display())]
    Io {
        /// The action that failed, as a verb.
        what: &'static str,
        /// The ledger's file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is not a ledger, or was damaged.
    #[error("{} is no ledger of this version of Dimmer", path.display())]
    Foreign {
        /// The file's name.
        path: PathBuf,
    },
    /// There is no more room for files or functions.
    #[error("the ledger has room for {most} {what}, no more")]
    Full {
        /// What there is no more room for, as a plural noun.
        what: &'static str,
        /// The most that there is room for.
        most: usize,
    },
    /// No memory may be reserved for the ledger.
    #[error("the ledger cannot grow: {0}")]
    NoRoom(NoRoom),
}

/// Reasons why no memory is reserved for a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[non_exhaustive]
pub enum NoRoom {
    /// The process's limit on file sizes, RLIMIT_FSIZE.
    #[error("files of the process may not be long enough (ulimit -f)")]
    FileLimit,
    /// The file system would be too full; see `room`.
    #[error("less than a quarter of the file system of ledgers would be free")]
    FileSystem,
    /// The run's ledgers take enough; see [`Ledger::limit_run`].
    #[error("the ledgers of this run take as much memory as they may")]
    Run,
    /// The ledger cannot be written or mapped.
    #[error("the process cannot write or map it")]
    Refused,
    /// The process has given up rights to make system calls since it was started.
    #[error("the process has restricted its system calls (seccomp)")]
    Restricted,
    /// The process executes a program of 32 bits, or for another kind of processor, and that
    /// program was left alone.
    #[error("it runs a program of 32 bits, or for another kind of processor")]
    Machine,
    /// The process executes a program with a loader other than glibc's, and that program was left
    /// alone.
    #[error("its program has another loader than glibc's for x86-64, as programs of musl have")]
    Loader,
    /// The process executes a program that was built with a sanitizer, and that program was left
    /// alone.
    #[error("its program was built with a sanitizer, whose runtime has to be the first library")]
    Sanitizer,
}

impl NoRoom {
    /// The extensions of the names of ledgers that could not be made.
    const NAMES: [(Self, &'static str); 8] = [
        (Self::FileLimit, "file-limit"),
        (Self::FileSystem, "file-system"),
        (Self::Run, "run"),
        (Self::Refused, "refused"),
        (Self::Restricted, "restricted"),
        (Self::Machine, "machine"),
        (Self::Loader, "loader"),
        (Self::Sanitizer, "sanitizer"),
    ];

    /// The extension for this reason.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(why, _)| *why == self).map_or("refused", |(_, name)| name)
    }

    /// The reason that a file's extension names.
    fn told_by(path: &Path) -> Option<Self> {
        let ending = path.extension()?;
        Self::NAMES.iter().find(|(_, name)| ending == *name).map(|(why, _)| *why)
    }
}

/// A file whose functions are hooked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// The difference between addresses in memory and in the file.
    pub base: u64,
    /// The file, as the loader names it.
    pub path: PathBuf,
    /// Reason why nothing of the file is hooked, or not all that could be; empty if nothing went
    /// wrong. Without control characters.
    pub problem: String,
}

/// A hooked function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteEntry {
    /// The number of its file.
    pub object: usize,
    /// Its address in the file.
    pub address: u64,
}

impl SiteEntry {
    fn pack(object: usize, address: u64) -> u64 {
        (object as u64) << ADDRESS_BITS | address & ((1 << ADDRESS_BITS) - 1)
    }

    fn unpack(packed: u64) -> Self {
        let object = usize::try_from(packed >> ADDRESS_BITS).unwrap_or(usize::MAX);
        Self { object, address: packed & ((1 << ADDRESS_BITS) - 1) }
    }
}

/// A call that was timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedCall {
    /// The number of the function.
    pub site: usize,
    /// The number of the function that the call ended in. It differs from `site` if the call went
    /// on in another function by a jump.
    pub ended_in: usize,
    /// When the call started (ticks of the time-stamp counter).
    pub begin: u64,
    /// When the call ended (ticks of the time-stamp counter).
    pub end: u64,
    /// Whether this thread made no hooked call between the previous timed call and this one.
    pub follows: bool,
    /// Whether the kernel interrupted the call, as far as the processor lets programs see that.
    pub interrupted: bool,
    /// Whether the call was moved; its time then runs from leaving home to being back there.
    pub moved: bool,
    /// Duration of a chain of multiplications right after the call (ticks); zero if there was none.
    pub chain_after: u32,
    /// Duration of such a chain right before the call (ticks); zero if there was none.
    pub chain_before: u32,
}

impl TimedCall {
    /// Reads a record of the ring; `None` unless it is complete and possible.
    fn read(record: &[u8]) -> Option<Self> {
        let (begin, end) = (u64_at(record, RECORD_BEGIN), u64_at(record, RECORD_END));
        let site = u32_at(record, RECORD_SITE) as usize;
        let flags = u32_at(record, RECORD_FLAGS);
        let goes_on = (flags >> GOES_ON_SHIFT) as usize;
        let call = Self {
            site,
            ended_in: goes_on.checked_sub(1).unwrap_or(site),
            begin,
            end,
            follows: flags & FOLLOWS != 0,
            interrupted: flags & INTERRUPTED != 0,
            moved: flags & MIGRATED_CALL != 0,
            chain_after: u32_at(record, CHAIN_AFTER),
            chain_before: u32_at(record, CHAIN_BEFORE),
        };
        (begin != 0 && end >= begin).then_some(call)
    }
}

/// Offset of a slot.
fn slot_at(number: usize) -> usize {
    SLOTS_AT + number * SLOT_BYTES
}

/// Bytes of a slot with counters for `sites` sites, rounded up to pages.
fn slot_length(sites: usize) -> usize {
    (COUNTERS + sites * COUNTER_BYTES).next_multiple_of(PAGE)
}

/// The number at an offset; zero if `bytes` ends before.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
    word.map_or(0, |word| u32::from_le_bytes(*word))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>());
    word.map_or(0, |word| u64::from_le_bytes(*word))
}

fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

fn io_error(what: &'static str, path: &Path, source: impl Into<io::Error>) -> LedgerError {
    LedgerError::Io { what, path: path.to_path_buf(), source: source.into() }
}
