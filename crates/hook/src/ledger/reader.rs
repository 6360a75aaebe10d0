//! The observer's side of a ledger.
//!
//! The file is read and written by `pread` and `pwrite`, never mapped: a process may truncate it,
//! replace it, or fill it with anything. Each number is bounded by its table. Bytes beyond the end
//! of the file read as zeros.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::OFlags;

use super::layout::{
    BACK, BETWEEN, CLAIMED, COUNTER_BYTES, COUNTERS, COUNTING, DECISION_BYTES, DECISIONS_AT,
    FILES_LEFT_OUT, HEAD, HEAD_BYTES, HOLDS_UNTIL, INSIDE, LEFT_OUT, LONGEST_TEXT, MAGIC, MAGIC_AT,
    MOVED, MOVES, OBJECT_BASE, OBJECT_BYTES, OBJECT_COUNT, OBJECT_PATH, OBJECT_PROBLEM, OBJECTS,
    OBJECTS_AT, PERIOD, PID, RECORD_BYTES, RECORD_END, RECORDS, RING, ROOM, SITE_BYTES, SITE_COUNT,
    SITES, SITES_AT, SLOT_COUNT, SLOTS, STAYS, TAIL, TAKES_OUT, TEXT_BYTES, TEXT_LENGTH, TEXTS_AT,
    TID, TO_WIDE, UNHOOK_ORDERS, USED_CORES, VERSION, VERSION_AT, WIDE_NS, WIDE_SET,
};
use super::phase_counts::PhaseCounts;
use super::{
    ENDING, ENOUGH, LedgerError, NoRoom, Object, SiteEntry, TimedCall, io_error, path_of, room,
    slot_at, u32_at, u64_at,
};
use crate::marks::is_mark_file;
use crate::overhead::Overhead;

/// The most names in a run's directory that are looked at: a program may make any number.
const MOST_NAMES: usize = 1 << 16;

/// The most ticks that hooks take for a timed call, or for a thousand counted ones: a tenth of a
/// millisecond. An estimate.
const MOST_OVERHEAD: u64 = 1 << 19;

/// F_SETSIG of fcntl(2) on x86.
const SET_SIGNAL: i32 = 10;

/// Part of the names of plans, also of those that are being written.
const PLAN: &[u8] = b".plan";

static EMPTY: [u8; RECORDS * RECORD_BYTES] = [0; RECORDS * RECORD_BYTES];

/// The ledger of another process.
#[derive(Debug)]
pub struct Ledger {
    file: File,
    path: PathBuf,
}

/// What a run's directory holds, by name.
#[derive(Debug, Default)]
pub struct Names {
    /// The ledgers.
    pub ledgers: Vec<PathBuf>,
    /// Files that name the reason why a process has no ledger.
    pub reasons: Vec<(PathBuf, NoRoom)>,
}

impl Names {
    /// Whether a file of this name may lie in a run's directory: a ledger, a reason, or a plan.
    #[must_use]
    pub fn are_of_run(path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        let is_ledger = path.extension().is_some_and(|ending| ending == ENDING);
        let is_plan = name.windows(PLAN.len()).any(|part| part == PLAN);
        is_ledger
            || is_plan
            || is_mark_file(name)
            || NoRoom::told_by(path).is_some()
            || name == ENOUGH.as_bytes()
    }
}

/// The head of a ledger at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Head([u8; HEAD_BYTES]);

impl Ledger {
    /// Opens the ledger of another process.
    ///
    /// # Errors
    /// If the file cannot be opened, or is not a ledger.
    pub fn open(path: &Path) -> Result<Self, LedgerError> {
        // These flags exclude pipes and devices: opening one could wait or have effects.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let flags = i32::try_from(flags.bits()).unwrap_or_default();
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
        let file = file.map_err(|source| io_error("open", path, source))?;
        let about = file.metadata().map_err(|source| io_error("examine", path, source))?;
        let is_own = about.uid() == rustix::process::geteuid().as_raw();
        let ledger = Self { file, path: path.to_path_buf() };
        if about.is_file() && is_own && ledger.head().is_some() {
            Ok(ledger)
        } else {
            Err(LedgerError::Foreign { path: path.to_path_buf() })
        }
    }

    /// The ledgers in `directory`, sorted by name.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn all_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
        Ok(Self::names_in(directory)?.ledgers)
    }

    /// The ledgers in `directory`, sorted by name, and the reasons why some processes have none.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn names_in(directory: &Path) -> io::Result<Names> {
        let mut names = Names::default();
        for entry in std::fs::read_dir(directory)?.take(MOST_NAMES) {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == ENDING) {
                names.ledgers.push(path);
            } else if let Some(why) = NoRoom::told_by(&path) {
                names.reasons.push((path, why));
            }
        }
        names.ledgers.sort();
        Ok(names)
    }

    /// Sets whether the ledgers in `directory` may grow and new ones may be made: neither if
    /// `is_limited`.
    ///
    /// # Errors
    /// If the directory cannot be written to.
    pub fn limit_run(directory: &Path, is_limited: bool) -> io::Result<()> {
        let path = directory.join(ENOUGH);
        if is_limited {
            OpenOptions::new().create(true).truncate(false).write(true).open(path).map(drop)
        } else {
            std::fs::remove_file(path)
        }
    }

    /// The ledger's file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Memory that the file takes (bytes).
    #[must_use]
    pub fn memory(&self) -> u64 {
        self.file.metadata().map_or(0, |about| about.blocks() * 512)
    }

    /// Whether no process can use the ledger any more: none has it open or mapped. False if the
    /// kernel cannot answer that.
    ///
    /// The kernel gives a write lease only for a file that is open nowhere else, and a mapping
    /// keeps it open (`check_conflicting_open` in Linux, fs/locks.c; fcntl(2), F_SETLEASE).
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        let file = self.file.as_raw_fd();
        // If a process opens the file meanwhile, the kernel sends this signal, which is ignored by
        // default.
        if control(file, SET_SIGNAL, libc::SIGURG) != 0 {
            return false;
        }
        let is_leased = control(file, libc::F_SETLEASE, libc::F_WRLCK) == 0;
        if is_leased {
            control(file, libc::F_SETLEASE, libc::F_UNLCK);
        }
        is_leased
    }

    /// The head as it is now; `None` if the file is not a ledger any more.
    #[must_use]
    pub fn head(&self) -> Option<Head> {
        let mut head = Head([0; HEAD_BYTES]);
        self.read(0, &mut head.0);
        let is_known = u64_at(&head.0, MAGIC_AT) == MAGIC && u32_at(&head.0, VERSION_AT) == VERSION;
        is_known.then_some(head)
    }

    /// Decides whether calls of the function with this number are moved from now on, in a process
    /// whose hooks can do that.
    pub fn decide(&self, site: usize, is_moved: bool) {
        if site < SITES {
            self.write(DECISIONS_AT + site * DECISION_BYTES, &[is_moved.into()]);
        }
    }

    /// Orders the processes to take out the hooks of these functions, besides those of earlier
    /// orders, if they can: their hooks can move calls, and stand in code pages without others
    /// (see [`crate::Hooks`]). They do so at timed calls. Calls that move do not count as hooked
    /// out, so decide first that they stay.
    pub fn unhook(&self, sites: &[usize]) {
        for site in sites.iter().filter(|site| **site < SITES) {
            self.write(DECISIONS_AT + site * DECISION_BYTES + TAKES_OUT, &[1]);
        }
        // Last: a process that sees the number reads the sites.
        let orders = self.u32(UNHOOK_ORDERS).wrapping_add(1);
        self.write(UNHOOK_ORDERS, &orders.to_le_bytes());
    }

    /// Makes moved calls go from now on to the first `threads` of the hardware threads that the
    /// process has for them.
    pub fn use_cores(&self, threads: usize) {
        let plus_one = u32::try_from(threads).map_or(u32::MAX, |threads| threads.saturating_add(1));
        self.write(USED_CORES, &plus_one.to_le_bytes());
    }

    /// Makes one of the program's sets of CPUs, by its number from 0, the wide one from now on;
    /// `None`: no CPU is wide.
    pub fn widen(&self, set: Option<usize>) {
        let number = set.and_then(|set| u32::try_from(set).ok()?.checked_add(1));
        let plus_one = number.unwrap_or(0);
        self.write(WIDE_SET, &plus_one.to_le_bytes());
    }

    /// Sets the time at which calls stop moving, whatever was decided (see [`crate::ticks`]). The
    /// observer renews it, so that calls stay once the observer is killed.
    pub fn hold_until(&self, ticks: u64) {
        self.write(HOLDS_UNTIL, &ticks.to_le_bytes());
    }

    /// The hooked files, by number.
    #[must_use]
    pub fn objects(&self) -> Vec<Object> {
        let count = self.head().map_or(0, |head| head.objects());
        let mut table = vec![0; count * OBJECT_BYTES];
        self.read(OBJECTS_AT, &mut table);
        let object = |record: &[u8]| Object {
            base: u64_at(record, OBJECT_BASE),
            path: path_of(&self.text(record, OBJECT_PATH)),
            problem: printable(&self.text(record, OBJECT_PROBLEM)),
        };
        table.chunks(OBJECT_BYTES).map(object).collect()
    }

    fn text(&self, record: &[u8], at: usize) -> Vec<u8> {
        let place = (u32_at(record, at) as usize).min(TEXT_BYTES);
        let length = u32_at(record, at + TEXT_LENGTH) as usize;
        let length = length.min(LONGEST_TEXT).min(TEXT_BYTES - place);
        let mut text = vec![0; length];
        self.read(TEXTS_AT + place, &mut text);
        text
    }

    /// The hooked functions, by number.
    #[must_use]
    pub fn sites(&self) -> Vec<SiteEntry> {
        let count = self.head().map_or(0, |head| head.sites());
        let mut table = vec![0; count * SITE_BYTES];
        self.read(SITES_AT, &mut table);
        table.chunks(SITE_BYTES).map(|record| SiteEntry::unpack(u64_at(record, 0))).collect()
    }

    /// The slot of this number, if a thread has claimed it.
    #[must_use]
    pub fn thread(&self, number: usize) -> Option<Thread<'_>> {
        let at = slot_at(number);
        (number < SLOTS && self.u32(at + CLAIMED) != 0).then_some(Thread { ledger: self, at })
    }

    /// The threads that made hooked calls. Some may have ended.
    pub fn threads(&self) -> impl Iterator<Item = Thread<'_>> {
        let slots = self.head().map_or(0, |head| head.slots());
        (0..slots).filter_map(|number| self.thread(number))
    }

    /// Reads from an offset. Bytes that cannot be read are zeros.
    fn read(&self, at: usize, bytes: &mut [u8]) {
        let mut done = 0;
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, (at + done) as u64) {
                Ok(0) => break,
                Ok(more) => done += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        bytes[done..].fill(0);
    }

    fn u32(&self, at: usize) -> u32 {
        let mut word = [0; 4];
        self.read(at, &mut word);
        u32::from_le_bytes(word)
    }

    /// Writes to a place that the process has written before. An error is ignored: the process goes
    /// on as before.
    fn write(&self, at: usize, bytes: &[u8]) {
        let _ = room::write(std::os::fd::AsFd::as_fd(&self.file), at, bytes);
    }
}

impl Head {
    /// What timing adds to times.
    #[must_use]
    pub fn overhead(&self) -> Overhead {
        let ticks = |at| u64_at(&self.0, at).min(MOST_OVERHEAD);
        Overhead { inside: ticks(INSIDE), between: ticks(BETWEEN), counting_1000: ticks(COUNTING) }
    }

    /// The number of hooked files.
    #[must_use]
    pub fn objects(&self) -> usize {
        (u32_at(&self.0, OBJECT_COUNT) as usize).min(OBJECTS)
    }

    /// The number of hooked functions.
    #[must_use]
    pub fn sites(&self) -> usize {
        (u32_at(&self.0, SITE_COUNT) as usize).min(SITES)
    }

    /// The number of slots, claimed or not.
    #[must_use]
    pub fn slots(&self) -> usize {
        (u32_at(&self.0, SLOT_COUNT) as usize).min(SLOTS)
    }

    /// Threads whose calls were not seen, because there was no slot for them.
    #[must_use]
    pub fn threads_left_out(&self) -> usize {
        u32_at(&self.0, LEFT_OUT) as usize
    }

    /// Whether there was no room to note all loaded files. Those left out are not hooked.
    #[must_use]
    pub fn is_full(&self) -> bool {
        u32_at(&self.0, FILES_LEFT_OUT) != 0
    }

    /// Whether calls of the process can move.
    #[must_use]
    pub fn moves(&self) -> bool {
        u32_at(&self.0, MOVES) != 0
    }
}

/// A thread that made hooked calls. It may have ended.
#[derive(Clone, Copy, Debug)]
pub struct Thread<'a> {
    ledger: &'a Ledger,
    at: usize,
}

/// What the slot of a thread held at one moment.
#[derive(Debug, Default)]
pub struct Look {
    bytes: Vec<u8>,
}

impl Thread<'_> {
    /// The kernel's id of the thread.
    #[must_use]
    pub fn tid(&self) -> u32 {
        self.ledger.u32(self.at + TID)
    }

    /// The number of its calls that were moved.
    #[must_use]
    pub fn moved(&self) -> u64 {
        let mut word = [0; 8];
        self.ledger.read(self.at + MOVED, &mut word);
        u64::from_le_bytes(word)
    }

    /// Sets the mean number of calls from one timed pair to the next. If it is one, all calls are
    /// timed.
    pub fn set_period(&self, calls: u32) {
        self.ledger.write(self.at + PERIOD, &calls.max(1).to_le_bytes());
    }

    /// Reads the slot into `look`, with the counters of the first `sites` functions.
    pub fn look(&self, sites: usize, look: &mut Look) {
        look.bytes.resize(COUNTERS + sites.min(SITES) * COUNTER_BYTES, 0);
        self.ledger.read(self.at, &mut look.bytes);
    }

    /// Takes the timed calls that were completed since the last time, in the order of their ends,
    /// and passes each to `take`.
    pub fn drain(&self, take: impl FnMut(TimedCall)) {
        let mut look = Look::default();
        self.look(0, &mut look);
        self.drain_seen(&look, take);
    }

    /// Likewise, for the calls in `look`.
    ///
    /// The thread may have written while the copy was made: the end of a record is read before what
    /// stands behind it, and written after it. A record without its start is left out.
    pub fn drain_seen(&self, look: &Look, mut take: impl FnMut(TimedCall)) {
        let (head, tail) = (u64_at(&look.bytes, HEAD), u64_at(&look.bytes, TAIL));
        // The values may be anything, but the ring holds no more records than this.
        let first = tail.max(head.saturating_sub(RECORDS as u64)).min(head);
        let place = |number: u64| usize::try_from(number % RECORDS as u64).unwrap_or_default();
        let mut next = first;
        while next < head {
            let record = &look.bytes[RING + place(next) * RECORD_BYTES..][..RECORD_BYTES];
            // Its thread has claimed the place and not yet filled it. It never will if a signal
            // handler has jumped out of there, so the wait is limited.
            if u64_at(record, RECORD_END) == 0 && head - next < RECORDS as u64 / 2 {
                break;
            }
            TimedCall::read(record).into_iter().for_each(&mut take);
            next += 1;
        }
        if next == tail {
            return;
        }
        // Emptied before the thread may fill these records again.
        let (begin, end) =
            (place(first), place(first) + usize::try_from(next - first).unwrap_or(0));
        for part in [begin..end.min(RECORDS), 0..end.saturating_sub(RECORDS)] {
            let at = self.at + RING + part.start * RECORD_BYTES;
            self.ledger.write(at, &EMPTY[..part.len() * RECORD_BYTES]);
        }
        self.ledger.write(self.at + TAIL, &next.to_le_bytes());
    }
}

impl Look {
    /// The kernel's id of the thread.
    #[must_use]
    pub fn tid(&self) -> u32 {
        u32_at(&self.bytes, TID)
    }

    /// The kernel's id of its process.
    #[must_use]
    pub fn process(&self) -> u32 {
        u32_at(&self.bytes, PID)
    }

    /// The number of its calls that were moved.
    #[must_use]
    pub fn moved(&self) -> u64 {
        u64_at(&self.bytes, MOVED)
    }

    /// Its wide phases.
    #[must_use]
    pub fn phases(&self) -> PhaseCounts {
        PhaseCounts {
            to_wide: u32_at(&self.bytes, TO_WIDE),
            back: u32_at(&self.bytes, BACK),
            stays: u32_at(&self.bytes, STAYS),
            wide_ns: u64_at(&self.bytes, WIDE_NS),
        }
    }

    /// The number of calls of each function, modulo 2³², by the function's number.
    pub fn calls(&self) -> impl Iterator<Item = u32> {
        let room = u32_at(&self.bytes, ROOM) as usize;
        let counters = self.bytes.get(COUNTERS..).unwrap_or_default().chunks_exact(COUNTER_BYTES);
        counters.take(room).map(|word| u32_at(word, 0))
    }
}

/// The observer's orders for calls that move.
#[derive(Clone, Copy, Debug)]
pub struct Orders<'a> {
    used_cores: &'a AtomicU32,
    wide_set: &'a AtomicU32,
    until: &'a AtomicU64,
}

impl<'a> Orders<'a> {
    pub(super) fn new(
        used_cores: &'a AtomicU32,
        wide_set: &'a AtomicU32,
        until: &'a AtomicU64,
    ) -> Self {
        Self { used_cores, wide_set, until }
    }

    /// The number of hardware threads in use, the first ones of those that calls move to; `None` if
    /// the observer has not decided. See [`Ledger::use_cores`].
    #[must_use]
    pub fn used_cores(&self) -> Option<usize> {
        self.used_cores.load(Ordering::Relaxed).checked_sub(1).map(|threads| threads as usize)
    }

    /// The number of the set of CPUs that is wide now, if one is. See [`Ledger::widen`].
    #[must_use]
    pub fn wide_set(&self) -> Option<usize> {
        self.wide_set.load(Ordering::Relaxed).checked_sub(1).map(|set| set as usize)
    }

    /// Whether the observer has limited the time for which its orders hold: it does so at its first
    /// look.
    #[must_use]
    pub fn are_limited(&self) -> bool {
        self.until.load(Ordering::Relaxed) != 0
    }

    /// Whether the observer's orders let calls move at this time; see [`Ledger::hold_until`].
    #[must_use]
    pub fn hold(&self, ticks: u64) -> bool {
        let until = self.until.load(Ordering::Relaxed);
        until == 0 || ticks < until
    }
}

fn control(file: RawFd, what: i32, value: i32) -> i32 {
    // SAFETY: these commands take a number, and the file is open.
    unsafe { libc::fcntl(file, what, value) }
}

/// The text without control characters, which a terminal would obey.
fn printable(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests;
