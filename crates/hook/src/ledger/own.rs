//! A process's side of its ledger.
//!
//! Only the head, the slots, and (where calls can move) the decisions are mapped: each mapping
//! counts for programs that lock their memory (`mlockall`) or limit it (`ulimit -v`). The rest is
//! written through the file, which is opened by its path each time. The program could find, close
//! or replace a descriptor that stays open.

use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::layout::{
    BETWEEN, CLAIMED, COUNTERS, COUNTING, DECISION_BYTES, DECISIONS_AT, FILES_LEFT_OUT,
    HOLDS_UNTIL, INSIDE, LONGEST_TEXT, MAGIC, MAGIC_AT, MOVES, OBJECT_BASE, OBJECT_BYTES,
    OBJECT_COUNT, OBJECT_PATH, OBJECT_PROBLEM, OBJECTS, OBJECTS_AT, PAGE, PERIOD, ROOM, SITE_BYTES,
    SITE_COUNT, SITES, SITES_AT, SITES_TAKEN, SLOT_BYTES, SLOT_COUNT, SLOTS, TAKES_OUT, TEXT_BYTES,
    TEXT_PLACE_BYTES, TEXT_USED, TEXTS_AT, USED_CORES, VERSION, VERSION_AT, WIDE_SET,
};
use super::reader::Orders;
use super::room::{self, Opened};
use super::{ENDING, ENOUGH, LedgerError, NoRoom, SiteEntry, io_error, slot_at, slot_length};
use crate::overhead::Overhead;

/// The most ledgers that a process makes while none of them is removed. It makes one for each
/// program that it executes.
const ATTEMPTS: u32 = 1000;

/// The ledger that this process writes.
#[derive(Debug)]
pub struct OwnLedger {
    head: Mapped,
    decisions: OnceLock<Mapped>,
    path: PathBuf,
    /// See [`room::check`].
    enough: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

/// A slot that was reserved.
#[derive(Debug)]
pub(crate) struct Slot {
    /// Its number in the file.
    pub(crate) number: usize,
    memory: Mapped,
}

/// A part of the file, mapped as long as this lives.
#[derive(Debug)]
struct Mapped {
    memory: NonNull<u8>,
    length: usize,
}

// SAFETY: all access to the memory is atomic.
unsafe impl Send for Mapped {}
// SAFETY: all access to the memory is atomic.
unsafe impl Sync for Mapped {}

impl OwnLedger {
    /// Makes an empty ledger in `directory`, for this process. If that fails, a file there names
    /// the reason for the observer, if possible.
    ///
    /// # Errors
    /// If no file can be made, no memory reserved, or no mapping made.
    pub fn create(directory: &Path) -> Result<Self, LedgerError> {
        let process = std::process::id();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        // A process that executes another program makes a second ledger.
        let mut attempt = 0_u32;
        let (file, path) = loop {
            let path = directory.join(format!("{process}-{attempt}.{ENDING}"));
            match rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => break (Opened::new(file), path),
                Err(rustix::io::Errno::EXIST) if attempt < ATTEMPTS => attempt += 1,
                Err(error) => return Err(io_error("make", &path, error)),
            }
        };
        let made = Self::fill(&file, &path, directory.join(ENOUGH));
        made.inspect_err(|error| tell_why(&path, error))
    }

    fn fill(file: &Opened, path: &Path, enough: PathBuf) -> Result<Self, LedgerError> {
        let file = file.as_fd();
        room::check(file, &enough).map_err(LedgerError::NoRoom)?;
        let mut head = vec![0; PAGE];
        head[MAGIC_AT..][..8].copy_from_slice(&MAGIC.to_le_bytes());
        head[VERSION_AT..][..4].copy_from_slice(&VERSION.to_le_bytes());
        room::write(file, 0, &head).map_err(LedgerError::NoRoom)?;
        let identity = identity(file).map_err(|error| io_error("examine", path, error))?;
        let head = Mapped::new(file, 0, PAGE).map_err(|error| io_error("map", path, error))?;
        Ok(Self { head, decisions: OnceLock::new(), path: path.to_path_buf(), enough, identity })
    }

    /// Reports to the observer that the process goes on without its ledger. Does nothing if another
    /// process counts there, with which this one shares the ledger by a fork.
    pub(crate) fn give_up(&self, why: &LedgerError) {
        if self.head.u32(SITE_COUNT).load(Ordering::Relaxed) == 0 {
            tell_why(&self.path, why);
        }
    }

    /// The ledger's file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the head is mapped.
    pub(crate) fn memory(&self) -> *mut u8 {
        self.head.memory.as_ptr()
    }

    /// Opens the file again. Fails if it is another file by now.
    fn open(&self) -> Result<Opened, LedgerError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let failed = |error| io_error("open", &self.path, error);
        let file = rustix::fs::open(&self.path, flags, Mode::empty()).map_err(failed)?;
        let file = Opened::new(file);
        if identity(file.as_fd()).map_err(failed)? == self.identity {
            Ok(file)
        } else {
            Err(LedgerError::Foreign { path: self.path.clone() })
        }
    }

    pub(crate) fn set_overhead(&self, overhead: Overhead) {
        self.head.u64(INSIDE).store(overhead.inside, Ordering::Relaxed);
        self.head.u64(BETWEEN).store(overhead.between, Ordering::Relaxed);
        self.head.u64(COUNTING).store(overhead.counting_1000, Ordering::Relaxed);
    }

    /// Notes files whose functions are about to be hooked, given with their base addresses: as many
    /// as there is room for. Returns their numbers.
    ///
    /// # Errors
    /// If nothing can be noted.
    pub(crate) fn add_objects(
        &self,
        objects: &[(u64, &Path)],
    ) -> Result<Range<usize>, LedgerError> {
        let full = || LedgerError::Full { what: "files", most: OBJECTS };
        let count = self.head.u32(OBJECT_COUNT);
        let room = OBJECTS.saturating_sub(count.load(Ordering::Relaxed) as usize);
        let mut bytes =
            TEXT_BYTES.saturating_sub(self.head.u32(TEXT_USED).load(Ordering::Relaxed) as usize);
        let mut texts = Vec::new();
        let mut records = Vec::new();
        for (base, path) in objects.iter().take(room) {
            let text = cut(path.as_os_str().as_bytes());
            let Some(rest) = bytes.checked_sub(text.len()) else { break };
            bytes = rest;
            records.push((*base, texts.len(), text.len()));
            texts.extend_from_slice(text);
        }
        let file = self.open()?;
        let place = self.add_text(file.as_fd(), &texts)?;
        let first = count.fetch_add(word(records.len()), Ordering::Relaxed) as usize;
        // Another process, which shares the ledger by a fork, may have come first.
        if first + records.len() > OBJECTS {
            return Err(full());
        }
        let mut table = vec![0; records.len() * OBJECT_BYTES];
        for (record, (base, at, length)) in table.chunks_mut(OBJECT_BYTES).zip(&records) {
            record[OBJECT_BASE..][..8].copy_from_slice(&base.to_le_bytes());
            record[OBJECT_PATH..][..TEXT_PLACE_BYTES]
                .copy_from_slice(&text_at(place + at, *length));
        }
        room::write(file.as_fd(), OBJECTS_AT + first * OBJECT_BYTES, &table)
            .map_err(LedgerError::NoRoom)?;
        Ok(first..first + records.len())
    }

    /// Counts a file that cannot be noted.
    pub(crate) fn leave_out_file(&self) {
        self.head.u32(FILES_LEFT_OUT).fetch_add(1, Ordering::Relaxed);
    }

    /// Notes the reason why a file is not hooked as it could be.
    pub(crate) fn set_problem(&self, object: usize, problem: &str) {
        let noted = self.open().and_then(|file| {
            let text = cut(problem.as_bytes());
            let place = text_at(self.add_text(file.as_fd(), text)?, text.len());
            let at = OBJECTS_AT + object * OBJECT_BYTES + OBJECT_PROBLEM;
            room::write(file.as_fd(), at, &place).map_err(LedgerError::NoRoom)
        });
        // Without room, the report of the file has fewer hooked functions and no reason.
        drop(noted);
    }

    /// Writes texts. Returns their place.
    fn add_text(&self, file: BorrowedFd<'_>, text: &[u8]) -> Result<usize, LedgerError> {
        let length = word(text.len());
        let place = self.head.u32(TEXT_USED).fetch_add(length, Ordering::Relaxed);
        if place as usize + text.len() > TEXT_BYTES {
            self.head.u32(TEXT_USED).fetch_sub(length, Ordering::Relaxed);
            return Err(LedgerError::Full { what: "bytes of names", most: TEXT_BYTES });
        }
        room::write(file, TEXTS_AT + place as usize, text).map_err(LedgerError::NoRoom)?;
        Ok(place as usize)
    }

    /// Maps the decisions. From now on this process has them in memory.
    pub(crate) fn map_decisions(&self) -> Result<(), LedgerError> {
        let file = self.open()?;
        let mapped = Mapped::new(file.as_fd(), DECISIONS_AT, SITES * DECISION_BYTES)
            .map_err(|error| io_error("map", &self.path, error))?;
        let _ = self.decisions.set(mapped);
        self.head.u32(MOVES).store(1, Ordering::Relaxed);
        Ok(())
    }

    /// Notes functions that are about to be hooked, by their addresses in the file. Returns their
    /// numbers. Each of `slots` has counters for them then. Their calls are moved if `are_moved`,
    /// in a process that has decisions.
    ///
    /// # Errors
    /// If there is no room. Then nothing is noted.
    pub(crate) fn add_sites(
        &self,
        object: usize,
        addresses: &[u64],
        are_moved: bool,
        slots: &mut dyn Iterator<Item = &'static Slot>,
    ) -> Result<Range<u32>, LedgerError> {
        let full = || LedgerError::Full { what: "functions", most: SITES };
        let taken = self.head.u32(SITES_TAKEN);
        let number = u32::try_from(addresses.len()).map_err(|_| full())?;
        let file = self.open()?;
        let file = file.as_fd();
        room::check(file, &self.enough).map_err(LedgerError::NoRoom)?;
        let grown = taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |first| {
            first.checked_add(number).filter(|end| *end as usize <= SITES)
        });
        let first = grown.map_err(|_| full())?;
        let sites = first..first + number;
        let noted = || -> Result<(), NoRoom> {
            for slot in slots {
                slot.grow(file, sites.end as usize)?;
            }
            if self.decisions.get().is_some() {
                let decisions = u32::from(are_moved).to_le_bytes().repeat(addresses.len());
                room::write(file, DECISIONS_AT + first as usize * DECISION_BYTES, &decisions)?;
            }
            let packed = |address: &u64| SiteEntry::pack(object, *address).to_le_bytes();
            let table: Vec<u8> = addresses.iter().flat_map(packed).collect();
            room::write(file, SITES_AT + first as usize * SITE_BYTES, &table)
        };
        noted().map_err(LedgerError::NoRoom)?;
        // A child of a fork may do this at the same time, with numbers of its own.
        // Ordering: pairs with the load in `site_count`. Observers read the file, and check what
        // they read.
        self.head.u32(SITE_COUNT).fetch_max(sites.end, Ordering::Release);
        Ok(sites)
    }

    /// The number of functions that were noted.
    pub(crate) fn site_count(&self) -> usize {
        // Ordering: pairs with the maximum in `add_sites`: the decisions of these sites are
        // written.
        self.head.u32(SITE_COUNT).load(Ordering::Acquire) as usize
    }

    /// Reserves a slot for another thread.
    ///
    /// # Errors
    /// If there is no room.
    pub(crate) fn reserve_slot(&self) -> Result<Slot, LedgerError> {
        let full = || LedgerError::Full { what: "threads", most: SLOTS };
        let count = self.head.u32(SLOT_COUNT);
        if count.load(Ordering::Relaxed) as usize >= SLOTS {
            return Err(full());
        }
        let file = self.open()?;
        let file = file.as_fd();
        room::check(file, &self.enough).map_err(LedgerError::NoRoom)?;
        let number = count.fetch_add(1, Ordering::Relaxed) as usize;
        if number >= SLOTS {
            return Err(full());
        }
        let sites = self.head.u32(SITES_TAKEN).load(Ordering::Relaxed);
        let at = slot_at(number);
        let length = slot_length(sites as usize);
        room::reserve(file, at, at + length).map_err(LedgerError::NoRoom)?;
        let memory = Mapped::new(file, at, SLOT_BYTES)
            .map_err(|error| io_error("map", &self.path, error))?;
        memory.u32(PERIOD).store(1, Ordering::Relaxed);
        // Ordering: pairs with the load in `grow`: the counters are reserved.
        memory.u32(ROOM).store(sites, Ordering::Release);
        Ok(Slot { number, memory })
    }

    /// The observer's orders for calls that move.
    pub(crate) fn orders(&self) -> Orders<'_> {
        let [used_cores, wide_set] = [USED_CORES, WIDE_SET].map(|at| self.head.u32(at));
        Orders::new(used_cores, wide_set, self.head.u64(HOLDS_UNTIL))
    }

    /// Address of the decision for a function; `None` in a process without decisions.
    pub(crate) fn decision_at(&self, site: u32) -> Option<u64> {
        Some(self.decision(site)?.as_ptr() as u64)
    }

    /// Decides whether calls of a function move, in a process that has decisions.
    pub(crate) fn decide(&self, site: u32, is_moved: bool) {
        if let Some(decision) = self.decision(site) {
            decision.store(is_moved.into(), Ordering::Relaxed);
        }
    }

    /// Whether the observer has ordered that the hook of this function be taken out.
    pub(crate) fn takes_out(&self, site: u32) -> bool {
        let word = self.decision(site).map_or(0, |decision| decision.load(Ordering::Relaxed));
        word.to_le_bytes()[TAKES_OUT] != 0
    }

    fn decision(&self, site: u32) -> Option<&AtomicU32> {
        let decisions = self.decisions.get()?;
        let at = site as usize * DECISION_BYTES;
        (at < SITES * DECISION_BYTES).then(|| decisions.u32(at))
    }
}

impl Slot {
    /// Address of its counters, valid as long as this lives.
    pub(crate) fn counters(&self) -> *mut u8 {
        self.memory.place(COUNTERS)
    }

    /// Whether a thread has claimed it.
    pub(crate) fn is_claimed(&self) -> bool {
        self.memory.u32(CLAIMED).load(Ordering::Relaxed) != 0
    }

    /// Reserves counters for `sites` sites. Leaves what was reserved before as it is: another
    /// process that shares the slot, by a fork, may have reserved it.
    fn grow(&self, file: BorrowedFd<'_>, sites: usize) -> Result<(), NoRoom> {
        let room = self.memory.u32(ROOM);
        // Ordering: pairs with the store in `reserve_slot` and the maximum below, perhaps of
        // another process.
        let had = room.load(Ordering::Acquire) as usize;
        if had < sites {
            let at = slot_at(self.number);
            room::reserve(file, at + slot_length(had), at + slot_length(sites))?;
            let sites = u32::try_from(sites).unwrap_or(u32::MAX);
            // Ordering: pairs with the load above: the counters are reserved.
            room.fetch_max(sites, Ordering::Release);
        }
        Ok(())
    }
}

impl Mapped {
    fn new(file: BorrowedFd<'_>, at: usize, length: usize) -> rustix::io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let anywhere = std::ptr::null_mut();
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let memory = unsafe {
            rustix::mm::mmap(anywhere, length, access, MapFlags::SHARED, file, at as u64)
        }?;
        let memory = NonNull::new(memory.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self { memory, length })
    }

    fn u32(&self, at: usize) -> &AtomicU32 {
        let place = self.place(at).cast();
        // SAFETY: the place lies in the mapping, which lives as long as this; all offsets of
        // numbers are aligned.
        unsafe { AtomicU32::from_ptr(place) }
    }

    fn u64(&self, at: usize) -> &AtomicU64 {
        let place = self.place(at).cast();
        // SAFETY: the place lies in the mapping and is aligned, as in `u32`.
        unsafe { AtomicU64::from_ptr(place) }
    }

    /// Address of the byte at an offset.
    fn place(&self, at: usize) -> *mut u8 {
        debug_assert!(at < self.length, "{at}");
        // SAFETY: all offsets are constants of the layout, or products with numbers below their
        // limits, so they lie within the mapping.
        unsafe { self.memory.as_ptr().add(at) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own. Hooked code uses no mapping that is dropped:
        // `Hooks` and the pool of slots keep theirs until the process ends.
        let unmapped = unsafe { rustix::mm::munmap(self.memory.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// Cuts a text to the longest that is allowed.
fn cut(text: &[u8]) -> &[u8] {
    &text[..text.len().min(LONGEST_TEXT)]
}

/// The place of a text and its length, in the form of an object's record.
fn text_at(place: usize, length: usize) -> [u8; TEXT_PLACE_BYTES] {
    (u64::from(word(length)) << 32 | u64::from(word(place))).to_le_bytes()
}

/// A number of the ledger. They all have 32 bits.
fn word(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn identity(file: BorrowedFd<'_>) -> rustix::io::Result<(u64, u64)> {
    let status = rustix::fs::fstat(file)?;
    Ok((status.st_dev, status.st_ino))
}

/// Renames the file of a ledger that could not be made: the extension names the reason.
fn tell_why(path: &Path, error: &LedgerError) {
    let why = match error {
        LedgerError::NoRoom(why) => *why,
        _ => NoRoom::Refused,
    };
    if rustix::fs::rename(path, path.with_extension(why.name())).is_err() {
        let _ = rustix::fs::unlink(path);
    }
}
