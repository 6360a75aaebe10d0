//! The ledger: a file that hooked processes write counts and times into, and whoever observes them reads.
//!
//! All of it is mapped memory. A process makes one when it starts and shares it with the children that
//! it forks; a program that it executes makes its own. Each thread has a slot, claimed at its first
//! hooked call and never given back, so what ended threads did stays there:
//!
//! | at | what |
//! |---|---|
//! | 0 | head: magic number, version, numbers of slots, sites and objects, overhead |
//! | [`OBJECTS_AT`] | hooked files: base address, path, what went wrong |
//! | [`SITES_AT`] | hooked functions: file and address |
//! | [`SLOTS_AT`] | per thread: head, ring of timed calls, counter per site |
//!
//! The file has holes wherever nothing was written. Nobody waits for anybody: a ring that nobody
//! reads fills up, and from then on calls are only counted.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

use crate::trial::Overhead;

/// "dimmerlg", as the first bytes of the file.
const MAGIC: u64 = u64::from_le_bytes(*b"dimmerlg");
/// Changes with the layout.
const VERSION: u32 = 5;

const VERSION_AT: usize = 8;
/// The number of slots claimed; more than [`SLOTS`] if there were too few.
pub(crate) const NEXT_SLOT: usize = 12;
const SITE_COUNT: usize = 16;
const OBJECT_COUNT: usize = 20;
/// How many of the hardware threads that calls move to are used now, plus one; 0 where nobody says (32 bits). Written by the observer.
const EMPLOYED: usize = 24;
/// What timing adds to calls, and to gaps, and what counting takes (64 bits each).
const INSIDE: usize = 32;
const BETWEEN: usize = 40;
const COUNTING: usize = 48;
/// Until when calls may move, in ticks of the time-stamp counter (64 bits); 0 where nobody says. Written by the observer, again and again.
const HOLDS_UNTIL: usize = 56;

/// Where the hooked files are.
const OBJECTS_AT: usize = 4096;
/// How many there may be.
const OBJECTS: usize = 512;
/// Base address (8 bytes), lengths of path and problem (2 each), path, problem.
const OBJECT_BYTES: usize = 4096;
const OBJECT_TEXT: usize = 16;

/// Where the hooked functions are.
const SITES_AT: usize = OBJECTS_AT + OBJECTS * OBJECT_BYTES;
/// How many there may be.
pub(crate) const SITES: usize = 32_768;
/// Address in the file (8 bytes), number of the file (4), decision (4).
const SITE_BYTES: usize = 16;
/// Where in it is whether its calls are moved (32 bits: 0 or 1); written by the observer, read by each call.
const DECISION: usize = 12;

/// Where the slots begin.
pub(crate) const SLOTS_AT: usize = SITES_AT + SITES * SITE_BYTES;
/// How many threads have one.
pub(crate) const SLOTS: usize = 512;
/// Bytes of a slot.
pub(crate) const SLOT_BYTES: usize = COUNTERS + SITES * 4;

/// In a slot, who claimed it: thread and process (32 bits each).
pub(crate) const TID: usize = 0;
pub(crate) const PID: usize = 4;
/// How many calls pass on average from one pair of timed calls to the next (32 bits); written by the
/// observer. One: all are timed.
pub(crate) const PERIOD: usize = 8;
/// Calls that could not be timed although it was their turn (64 bits).
pub(crate) const DROPPED: usize = 16;
/// Calls that were moved (64 bits).
pub(crate) const MOVED: usize = 24;
/// How many records were ever put into the ring; the next goes to this number modulo [`RECORDS`].
pub(crate) const HEAD: usize = 64;
/// How many of them were read; written by the observer.
pub(crate) const TAIL: usize = 128;
/// Where the ring is.
pub(crate) const RING: usize = 4096;
/// Its records.
pub(crate) const RECORDS: usize = 2048;
/// Begin and end (8 bytes each; no end: not yet complete), site (4), flags (4), how long
/// the chain after it took and the one before it (4 each).
pub(crate) const RECORD_BYTES: usize = 32;
/// The call follows the one before it in the ring.
const FOLLOWS: u32 = 1;
/// It was interrupted.
const INTERRUPTED: u32 = 2;
/// It was moved, and timed with the way.
pub(crate) const AWAY_CALL: u32 = 4;
/// Where in the flags the number of the function is that it went on in, plus one; zero if it did not.
pub(crate) const GOES_ON_SHIFT: u32 = 8;
/// The number of calls for each site, modulo 2³² (32 bits each): hot ones share a core's nearest cache with the program.
pub(crate) const COUNTERS: usize = RING + RECORDS * RECORD_BYTES;

const _: () = assert!(RECORDS.is_power_of_two() && SLOTS_AT.is_multiple_of(4096));
const _: () = assert!(SLOT_BYTES.is_multiple_of(4096));

const FILE_BYTES: usize = SLOTS_AT + SLOTS * SLOT_BYTES;

/// The ending of a ledger's name.
const ENDING: &str = "ledger";

/// What is wrong with a ledger.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// It cannot be made, opened or mapped.
    #[error("cannot {what} the ledger {}", path.display())]
    Io {
        /// What cannot be done.
        what: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Somebody else's file.
    #[error("{} is no ledger of this version of Dimmer", path.display())]
    Foreign {
        /// Which file.
        path: PathBuf,
    },
    /// There is no more room for files or functions.
    #[error("the ledger has room for {most} {what}, no more")]
    Full {
        /// Of what.
        what: &'static str,
        /// How many.
        most: usize,
    },
}

/// A mapped ledger.
#[derive(Debug)]
pub struct Ledger {
    memory: NonNull<u8>,
    path: PathBuf,
}

// SAFETY: all access to the memory is atomic, or to text that is written before the count that makes it
// visible.
unsafe impl Send for Ledger {}
// SAFETY: as above.
unsafe impl Sync for Ledger {}

/// A hooked file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// What has to be added to addresses in the file.
    pub base: u64,
    /// The file, as the loader calls it.
    pub path: PathBuf,
    /// Why nothing of it, or not all that could be, is hooked; empty if nothing went wrong.
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

/// A call that was timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedCall {
    /// The number of the function.
    pub site: usize,
    /// The number of the function that it ended in: another one if it went on there by a jump.
    pub ended_in: usize,
    /// When it began (ticks of the time-stamp counter).
    pub begin: u64,
    /// When it ended.
    pub end: u64,
    /// Whether no hooked call of this thread lies between the one timed before and this one.
    pub follows: bool,
    /// Whether the kernel interrupted it, as far as the processor lets that be seen.
    pub interrupted: bool,
    /// Whether it was moved; its time is then that from leaving home to being back there.
    pub moved: bool,
    /// How long a chain of multiplications took right after it (ticks); zero if there was none.
    pub chain_after: u32,
    /// The same right before it.
    pub chain_before: u32,
}

impl Ledger {
    /// Makes an empty ledger in `directory`, for this process.
    ///
    /// # Errors
    /// Where there can be no file.
    pub fn create(directory: &Path) -> Result<Self, LedgerError> {
        let process = std::process::id();
        // A process that executes another program makes a second one.
        let mut attempt = 0_u32;
        let (file, path) = loop {
            let path = directory.join(format!("{process}-{attempt}.{ENDING}"));
            match OpenOptions::new().read(true).write(true).create_new(true).open(&path) {
                Ok(file) => break (file, path),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => attempt += 1,
                Err(source) => return Err(LedgerError::Io { what: "make", path, source }),
            }
        };
        file.set_len(FILE_BYTES as u64).map_err(|source| io_error("lengthen", &path, source))?;
        let ledger = Self::map(&file, path)?;
        ledger.u32(VERSION_AT).store(VERSION, Ordering::Relaxed);
        ledger.u64(0).store(MAGIC, Ordering::Release);
        Ok(ledger)
    }

    /// Opens the ledger of another process.
    ///
    /// # Errors
    /// If it cannot be opened, or is none.
    pub fn open(path: &Path) -> Result<Self, LedgerError> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(|source| io_error("open", path, source))?;
        let length = file.metadata().map_err(|source| io_error("examine", path, source))?.len();
        let foreign = || LedgerError::Foreign { path: path.to_path_buf() };
        if length != FILE_BYTES as u64 {
            return Err(foreign());
        }
        let ledger = Self::map(&file, path.to_path_buf())?;
        let magic = ledger.u64(0).load(Ordering::Acquire);
        let version = ledger.u32(VERSION_AT).load(Ordering::Relaxed);
        if (magic, version) == (MAGIC, VERSION) { Ok(ledger) } else { Err(foreign()) }
    }

    /// The ledgers in `directory`, by name.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn all_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(directory)? {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == ENDING) {
                paths.push(path);
            }
        }
        paths.sort();
        Ok(paths)
    }

    fn map(file: &File, path: PathBuf) -> Result<Self, LedgerError> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, of a file as long, where the kernel likes.
        let memory = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), FILE_BYTES, access, MapFlags::SHARED, file, 0)
        };
        let memory = memory.map_err(|error| io_error("map", &path, error.into()))?;
        match NonNull::new(memory.cast()) {
            Some(memory) => Ok(Self { memory, path }),
            None => Err(LedgerError::Foreign { path }),
        }
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn memory(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    /// What timing adds to times.
    #[must_use]
    pub fn overhead(&self) -> Overhead {
        let ticks = |at| self.u64(at).load(Ordering::Relaxed);
        Overhead { inside: ticks(INSIDE), between: ticks(BETWEEN), counting_1000: ticks(COUNTING) }
    }

    pub(crate) fn set_overhead(&self, overhead: Overhead) {
        self.u64(INSIDE).store(overhead.inside, Ordering::Relaxed);
        self.u64(BETWEEN).store(overhead.between, Ordering::Relaxed);
        self.u64(COUNTING).store(overhead.counting_1000, Ordering::Relaxed);
    }

    /// Notes a file whose functions are about to be hooked; its number.
    ///
    /// # Errors
    /// If there is no room.
    pub(crate) fn add_object(&self, base: u64, path: &Path) -> Result<usize, LedgerError> {
        let number = self.u32(OBJECT_COUNT).fetch_add(1, Ordering::Relaxed) as usize;
        if number >= OBJECTS {
            return Err(LedgerError::Full { what: "files", most: OBJECTS });
        }
        let at = OBJECTS_AT + number * OBJECT_BYTES;
        self.u64(at).store(base, Ordering::Relaxed);
        self.write_text(at, 0, path.as_os_str().as_bytes());
        Ok(number)
    }

    /// Notes why a file is not hooked as it could be.
    pub(crate) fn set_problem(&self, object: usize, problem: &str) {
        let at = OBJECTS_AT + object * OBJECT_BYTES;
        self.write_text(at, 1, problem.as_bytes());
    }

    /// Notes a function that is about to be hooked; its number.
    ///
    /// # Errors
    /// If there is no room.
    pub(crate) fn add_site(&self, object: usize, address: u64) -> Result<u32, LedgerError> {
        let number = self.u32(SITE_COUNT).fetch_add(1, Ordering::Relaxed);
        if number as usize >= SITES {
            return Err(LedgerError::Full { what: "functions", most: SITES });
        }
        let at = SITES_AT + number as usize * SITE_BYTES;
        self.u32(at + 8).store(u32::try_from(object).unwrap_or(u32::MAX), Ordering::Relaxed);
        self.u64(at).store(address, Ordering::Release);
        Ok(number)
    }

    /// Decides whether calls of the function of this number are moved from now on, in a process whose hooks can do that.
    pub fn decide(&self, site: usize, is_moved: bool) {
        if site < SITES {
            let at = SITES_AT + site * SITE_BYTES + DECISION;
            self.u32(at).store(is_moved.into(), Ordering::Relaxed);
        }
    }

    /// Has calls that move go to so many of the hardware threads that the process knows of from now on, the first of them.
    pub fn employ(&self, threads: usize) {
        let plus_one = u32::try_from(threads).map_or(u32::MAX, |threads| threads.saturating_add(1));
        self.u32(EMPLOYED).store(plus_one, Ordering::Relaxed);
    }

    /// Has calls move until then at the latest ([`crate::ticks`]), whatever was decided: whoever decides says so again and again, and when they are
    /// killed calls stay.
    pub fn hold_until(&self, ticks: u64) {
        self.u64(HOLDS_UNTIL).store(ticks, Ordering::Relaxed);
    }

    /// What the observer says of calls that move.
    pub(crate) fn orders(&self) -> Orders<'_> {
        Orders { employed: self.u32(EMPLOYED), until: self.u64(HOLDS_UNTIL) }
    }

    /// Where in memory the decision for a function is.
    pub(crate) fn decision_at(&self, site: u32) -> u64 {
        self.place(SITES_AT + site as usize * SITE_BYTES + DECISION) as u64
    }

    /// The hooked files, by number.
    #[must_use]
    pub fn objects(&self) -> Vec<Object> {
        let count = (self.u32(OBJECT_COUNT).load(Ordering::Acquire) as usize).min(OBJECTS);
        let object = |number| {
            let at = OBJECTS_AT + number * OBJECT_BYTES;
            Object {
                base: self.u64(at).load(Ordering::Relaxed),
                path: PathBuf::from(OsStr::from_bytes(&self.read_text(at, 0))),
                problem: String::from_utf8_lossy(&self.read_text(at, 1)).into_owned(),
            }
        };
        (0..count).map(object).collect()
    }

    /// The hooked functions, by number.
    #[must_use]
    pub fn sites(&self) -> Vec<SiteEntry> {
        let count = (self.u32(SITE_COUNT).load(Ordering::Acquire) as usize).min(SITES);
        let site = |number| {
            let at = SITES_AT + number * SITE_BYTES;
            let address = self.u64(at).load(Ordering::Acquire);
            SiteEntry { object: self.u32(at + 8).load(Ordering::Relaxed) as usize, address }
        };
        (0..count).map(site).collect()
    }

    /// The threads that made hooked calls, in the order of their first.
    pub fn threads(&self) -> impl Iterator<Item = Thread<'_>> {
        let claimed = self.u32(NEXT_SLOT).load(Ordering::Acquire) as usize;
        let thread = |number| Thread { ledger: self, at: SLOTS_AT + number * SLOT_BYTES };
        (0..claimed.min(SLOTS)).map(thread)
    }

    /// Threads whose calls were not seen, because there were too many threads; too many rather than too
    /// few, since each looks again now and then.
    #[must_use]
    pub fn threads_left_out(&self) -> usize {
        (self.u32(NEXT_SLOT).load(Ordering::Relaxed) as usize).saturating_sub(SLOTS)
    }

    /// The first text at an object is its path, the second its problem.
    fn write_text(&self, object: usize, which: usize, text: &[u8]) {
        let room = (OBJECT_BYTES - OBJECT_TEXT) / 2;
        let text = &text[..text.len().min(room)];
        let at = object + OBJECT_TEXT + which * room;
        for (index, byte) in text.iter().enumerate() {
            let place = self.place(at + index);
            // SAFETY: a place in the mapping, see there.
            unsafe { place.write_volatile(*byte) };
        }
        let length = u32::try_from(text.len()).unwrap_or_default();
        self.u32(object + 8 + 4 * which).store(length, Ordering::Release);
    }

    fn read_text(&self, object: usize, which: usize) -> Vec<u8> {
        let room = (OBJECT_BYTES - OBJECT_TEXT) / 2;
        let length = self.u32(object + 8 + 4 * which).load(Ordering::Acquire) as usize;
        let at = object + OBJECT_TEXT + which * room;
        let byte = |index| {
            let place = self.place(at + index);
            // SAFETY: a place in the mapping, see there.
            unsafe { place.read_volatile() }
        };
        (0..length.min(room)).map(byte).collect()
    }

    fn u32(&self, at: usize) -> &AtomicU32 {
        let place = self.place(at).cast();
        // SAFETY: a place in the mapping, which lives as long as this; all offsets of numbers are aligned.
        unsafe { AtomicU32::from_ptr(place) }
    }

    fn u64(&self, at: usize) -> &AtomicU64 {
        let place = self.place(at).cast();
        // SAFETY: as in `u32`.
        unsafe { AtomicU64::from_ptr(place) }
    }

    /// The byte at an offset.
    fn place(&self, at: usize) -> *mut u8 {
        debug_assert!(at < FILE_BYTES, "{at}");
        // SAFETY: all offsets are sums of the constants above with numbers below their limits, so they lie
        // within the mapping.
        unsafe { self.memory().add(at) }
    }
}

/// What the observer says of calls that move.
#[derive(Clone, Copy, Debug)]
pub struct Orders<'a> {
    employed: &'a AtomicU32,
    until: &'a AtomicU64,
}

impl Orders<'_> {
    /// How many of the hardware threads that calls move to are used now, the first of them, if anybody has said that; see
    /// [`Ledger::employ`].
    #[must_use]
    pub fn employed(&self) -> Option<usize> {
        self.employed.load(Ordering::Relaxed).checked_sub(1).map(|threads| threads as usize)
    }

    /// Whether calls may move at this time, for all that the observer has said; see [`Ledger::hold_until`].
    #[must_use]
    pub fn hold(&self, ticks: u64) -> bool {
        let until = self.until.load(Ordering::Relaxed);
        until == 0 || ticks < until
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's own, and `Hooks`, whose code uses it without a borrow, never
        // drops its ledger.
        let unmapped = unsafe { rustix::mm::munmap(self.memory().cast(), FILE_BYTES) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// A thread that made hooked calls, perhaps ended.
#[derive(Clone, Copy, Debug)]
pub struct Thread<'a> {
    ledger: &'a Ledger,
    at: usize,
}

impl Thread<'_> {
    /// Its number, as the kernel counts.
    #[must_use]
    pub fn tid(&self) -> u32 {
        self.ledger.u32(self.at + TID).load(Ordering::Relaxed)
    }

    /// Its process.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.ledger.u32(self.at + PID).load(Ordering::Relaxed)
    }

    /// How often it called the function of this number, modulo 2³².
    #[must_use]
    pub fn calls(&self, site: usize) -> u32 {
        if site >= SITES {
            return 0;
        }
        self.ledger.u32(self.at + COUNTERS + 4 * site).load(Ordering::Relaxed)
    }

    /// How many of its calls were moved.
    #[must_use]
    pub fn moved(&self) -> u64 {
        self.ledger.u64(self.at + MOVED).load(Ordering::Relaxed)
    }

    /// From now on a pair of calls is timed in so many, on average; of all calls if it is one.
    pub fn set_period(&self, calls: u32) {
        self.ledger.u32(self.at + PERIOD).store(calls.max(1), Ordering::Relaxed);
    }

    /// Takes the timed calls that are complete since the last time, in the order of their ends, and gives
    /// each to `take`.
    pub fn drain(&self, mut take: impl FnMut(TimedCall)) {
        let head = self.ledger.u64(self.at + HEAD).load(Ordering::Acquire);
        let tail = self.ledger.u64(self.at + TAIL);
        let first = tail.load(Ordering::Relaxed);
        // Whatever stands there: the ring holds no more.
        let first = first.max(head.saturating_sub(RECORDS as u64)).min(head);
        let mut next = first;
        while next < head {
            let index = usize::try_from(next % RECORDS as u64).unwrap_or_default();
            let at = self.at + RING + index * RECORD_BYTES;
            let end = self.ledger.u64(at + 8).swap(0, Ordering::Acquire);
            // Its thread has claimed the place and not yet filled it. If it never will, since a signal's
            // handler jumped out of there, do not wait for it for ever.
            if end == 0 && head - next < RECORDS as u64 / 2 {
                break;
            }
            let flags = self.ledger.u32(at + 20).load(Ordering::Relaxed);
            let site = self.ledger.u32(at + 16).load(Ordering::Relaxed) as usize;
            let goes_on = (flags >> GOES_ON_SHIFT) as usize;
            let call = TimedCall {
                site,
                ended_in: goes_on.checked_sub(1).unwrap_or(site),
                begin: self.ledger.u64(at).load(Ordering::Relaxed),
                end,
                follows: flags & FOLLOWS != 0,
                interrupted: flags & INTERRUPTED != 0,
                moved: flags & AWAY_CALL != 0,
                chain_after: self.ledger.u32(at + 24).load(Ordering::Relaxed),
                chain_before: self.ledger.u32(at + 28).load(Ordering::Relaxed),
            };
            if call.begin != 0 && call.end >= call.begin {
                take(call);
            }
            next += 1;
        }
        tail.store(next, Ordering::Release);
    }
}

fn io_error(what: &'static str, path: &Path, source: io::Error) -> LedgerError {
    LedgerError::Io { what, path: path.to_path_buf(), source }
}
