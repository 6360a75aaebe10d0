//! The process's side: its file, made at the first call that is observed, and the site of a call.

use std::ffi::{CStr, OsStr};
use std::io::Write as _;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, fstatfs, open, unlink};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::{Resource, getpid, getrlimit};

use crate::ledger::{BYTES, Head, Kind, MAGIC, SITES, Site, VERSION};
use crate::{counters, held, origin, requests, sections, stop};

/// Maximum length of the name of a ledger (bytes): it lies on the stack of whatever thread first
/// takes a lock. The names of directories in memory have some 40.
const LONGEST_NAME: usize = 256;

/// The type of a file system in memory (`TMPFS_MAGIC` of the kernel).
const TMPFS: i64 = 0x0102_1994;

/// Attempts to find a name that no ledger has: a process that executes another program keeps its
/// number.
const ATTEMPTS: u32 = 64;

/// Places in the table where a site may lie, from that of its hash on.
const PROBES: usize = 64;

/// A file as it is mapped.
#[derive(Debug)]
#[repr(C)]
struct Ledger {
    head: Head,
    sites: [Site; SITES],
}

const _: () = assert!(size_of::<Ledger>() == BYTES);

/// This process's ledger: null before the first call, and [`NONE`] if it has none.
static LEDGER: AtomicPtr<Ledger> = AtomicPtr::new(NONE);

/// Stands for a ledger that cannot be had.
const NONE: *mut Ledger = std::ptr::without_provenance_mut(1);

/// The directory for ledgers, ended by zero.
static DIRECTORY: [AtomicU64; LONGEST_NAME / 8] = [const { AtomicU64::new(0) }; LONGEST_NAME / 8];

/// Observes from now on, in a file in this directory. Called once, before the process has threads.
pub fn begin(directory: &OsStr) {
    let bytes = directory.as_bytes();
    if bytes.len() >= LONGEST_NAME - 32 {
        return;
    }
    for (word, part) in DIRECTORY.iter().zip(bytes.chunks(8)) {
        // Relaxed: there is one thread.
        word.store(word_of(part), Ordering::Relaxed);
    }
    LEDGER.store(std::ptr::null_mut(), Ordering::Release);
}

/// Must be called in a child of fork(2), in its only thread: what happens from now on goes into a
/// ledger of its own.
pub fn forked() {
    held::forget();
    sections::forget();
    counters::forked();
    requests::forked();
    if LEDGER.load(Ordering::Relaxed) != NONE {
        LEDGER.store(std::ptr::null_mut(), Ordering::Release);
    }
}

/// The site of a call that returns to `caller`, or of the section of that number. `None` if nothing
/// is observed, or there is no room; a call that is lost by that is counted.
///
/// # Cost
/// Some nanoseconds. The first call of a site makes some system calls, and the first of a process
/// makes its ledger.
#[must_use]
pub fn site(caller: usize, kind: Kind) -> Option<&'static Site> {
    let ledger = ledger()?;
    let key = (kind as u64) << 56 | caller as u64;
    // Fibonacci hashing: the upper bits of the product depend on all bits of the key.
    let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let first = usize::try_from(hash).unwrap_or_default();
    for step in 0..PROBES {
        let site = &ledger.sites[(first + step) % SITES];
        let mut found = site.key.load(Ordering::Acquire);
        if found == 0 {
            let claimed = site.key.compare_exchange(0, key, Ordering::AcqRel, Ordering::Acquire);
            match claimed {
                Ok(_) => {
                    // What follows is no work of the program's.
                    counters::give_up();
                    if kind.is_by_functions() {
                        origin::note(site, caller as u64, &[]);
                    } else {
                        origin::describe(site, caller);
                    }
                    site.strategy.store(requests::strategy_of_new_sites(), Ordering::Relaxed);
                    found = key;
                }
                Err(other) => found = other,
            }
        }
        if found == key {
            return Some(site);
        }
    }
    ledger.head.unplaced.fetch_add(1, Ordering::Relaxed);
    None
}

/// Counts a hold whose end will not be seen.
pub(crate) fn count_unended() {
    if let Some(ledger) = ledger() {
        ledger.head.unended.fetch_add(1, Ordering::Relaxed);
    }
}

/// Notes which counters a thread has, and how long it takes to read them (ticks).
pub(crate) fn note_counters(reading: u64, events: u64, refused: u64) {
    if let Some(ledger) = ledger() {
        ledger.head.reading.fetch_max(reading, Ordering::Relaxed);
        ledger.head.events.fetch_or(events, Ordering::Relaxed);
        // The first thread's reasons.
        let first = &ledger.head.refused;
        let _ = first.compare_exchange(0, refused, Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl Site {
    /// Counts an acquisition, with how long it waited if it had to (ticks).
    pub fn acquired(&self, waited: Option<u64>) {
        // Relaxed: sums, which the reader takes as they are.
        self.acquisitions.fetch_add(1, Ordering::Relaxed);
        if let Some(waited) = waited {
            self.contended.fetch_add(1, Ordering::Relaxed);
            self.waited.fetch_add(waited, Ordering::Relaxed);
        }
    }

    /// Counts that a section from function to function begins, after the first one has taken so
    /// long (ticks), and whether another thread was in the section when that was called.
    pub(crate) fn entered(&self, waited: u64, was_taken: bool) {
        self.acquisitions.fetch_add(1, Ordering::Relaxed);
        self.contended.fetch_add(u64::from(was_taken), Ordering::Relaxed);
        self.waited.fetch_add(waited, Ordering::Relaxed);
    }

    /// Adds time that a thread was outside of a section from function to function (ticks).
    pub(crate) fn was_outside(&self, time: u64) {
        self.outside.fetch_add(time, Ordering::Relaxed);
    }

    /// Counts the end of a hold that began here (ticks), and whether another thread waited for it.
    pub(crate) fn released(&self, held: u64, was_wanted: bool) {
        self.holds.fetch_add(1, Ordering::Relaxed);
        self.held.fetch_add(held, Ordering::Relaxed);
        if held > self.longest.load(Ordering::Relaxed) {
            self.longest.fetch_max(held, Ordering::Relaxed);
        }
        if was_wanted {
            self.wanted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts the end of a hold with the fast clock requested, and for how long that was in force
    /// (ticks); `None`: not before its end.
    pub(crate) fn was_boosted(&self, fast: Option<u64>) {
        self.boosted.fetch_add(1, Ordering::Relaxed);
        if let Some(fast) = fast {
            self.carried.fetch_add(1, Ordering::Relaxed);
            self.fast.fetch_add(fast, Ordering::Relaxed);
        }
    }

    /// Takes back what was counted of a hold that goes on. Its length so far may stay as the
    /// longest: it will be longer.
    pub(crate) fn goes_on(&self, held: u64, boosted: Option<Option<u64>>) {
        self.holds.fetch_sub(1, Ordering::Relaxed);
        self.held.fetch_sub(held, Ordering::Relaxed);
        if let Some(fast) = boosted {
            self.boosted.fetch_sub(1, Ordering::Relaxed);
            if let Some(fast) = fast {
                self.carried.fetch_sub(1, Ordering::Relaxed);
                self.fast.fetch_sub(fast, Ordering::Relaxed);
            }
        }
    }
}

/// Makes the ledger, if there is none yet, so that [`note_stop`] finds one.
pub(crate) fn prepare_to_stop() {
    let _ = ledger();
}

/// Notes that the process has stopped.
pub(crate) fn note_stop() {
    let found = LEDGER.load(Ordering::Acquire);
    if !found.is_null() && found != NONE {
        // SAFETY: as in `ledger`.
        unsafe { &*found }.head.stopped.store(1, Ordering::Relaxed);
    }
}

fn ledger() -> Option<&'static Ledger> {
    if stop::has_stopped() {
        requests::end_own();
        return None;
    }
    // Acquire: pairs with the Release of the thread that made it.
    let mut found = LEDGER.load(Ordering::Acquire);
    if found.is_null() {
        found = make();
    }
    if found == NONE {
        return None;
    }
    // SAFETY: a ledger stays mapped as long as the process lives, and all of it that changes is
    // atomic.
    Some(unsafe { &*found })
}

/// Makes the ledger of this process. Two threads may both make one; that of the first stays.
#[cold]
fn make() -> *mut Ledger {
    let mut name = [0; LONGEST_NAME];
    let made = create(&mut name).unwrap_or(NONE);
    let null = std::ptr::null_mut();
    match LEDGER.compare_exchange(null, made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => made,
        Err(others) => {
            if made != NONE {
                // SAFETY: no other thread has seen it.
                let _ = unsafe { munmap(made.cast(), BYTES) };
                let _ = CStr::from_bytes_until_nul(&name).map(unlink);
            }
            others
        }
    }
}

/// Creates the file, under a name that it leaves in `name`, and maps it.
fn create(name: &mut [u8; LONGEST_NAME]) -> Option<*mut Ledger> {
    // A file beyond the limit would end the process by a signal.
    if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < BYTES as u64) {
        return None;
    }
    let process = getpid().as_raw_nonzero().get();
    let file = (0..ATTEMPTS).find_map(|attempt| match open_new(name, process, attempt) {
        Err(Errno::EXIST) => None,
        opened => Some(opened.ok()),
    })??;
    let mapped = map(&file);
    if mapped.is_none() {
        let _ = CStr::from_bytes_until_nul(name).map(unlink);
    }
    let mapped = mapped?;
    let head =
        Head { magic: MAGIC, version: VERSION, process: process.unsigned_abs(), ..Head::default() };
    // SAFETY: the head is first in what is mapped, which no other thread knows.
    unsafe { mapped.cast::<Head>().write(head) };
    Some(mapped)
}

/// A file that is closed by the system call itself. In the C library's function, which `OwnedFd`
/// calls, a thread may be cancelled, and another library may have one of that name.
pub(crate) struct OwnFile(ManuallyDrop<OwnedFd>);

impl OwnFile {
    pub(crate) const fn new(file: OwnedFd) -> Self {
        Self(ManuallyDrop::new(file))
    }
}

impl AsFd for OwnFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        // SAFETY: it is not used again.
        let file = unsafe { ManuallyDrop::take(&mut self.0) };
        // SAFETY: it is open, and nothing else owns it.
        unsafe { rustix::io::close(file.into_raw_fd()) };
    }
}

fn open_new(
    name: &mut [u8; LONGEST_NAME],
    process: i32,
    attempt: u32,
) -> rustix::io::Result<OwnFile> {
    for (word, part) in DIRECTORY.iter().zip(name.chunks_mut(8)) {
        part.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(LONGEST_NAME);
    // There is room: `begin` has left it.
    let _ = write!(&mut name[end..], "/{process}-{attempt}.locks.ledger\0");
    let name = CStr::from_bytes_until_nul(name).map_err(|_| Errno::NAMETOOLONG)?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    open(name, flags, Mode::RUSR | Mode::WUSR).map(OwnFile::new)
}

fn map(file: &OwnFile) -> Option<*mut Ledger> {
    // A quarter of the memory for files is left to others.
    let place = fstatfs(file).ok()?;
    if place.f_type == TMPFS && place.f_bavail.saturating_mul(4) < place.f_blocks {
        return None;
    }
    // Reserves the memory: without it, a first touch may raise a signal.
    let reserve = || fallocate(file, FallocateFlags::empty(), 0, BYTES as u64);
    rustix::io::retry_on_intr(reserve).ok()?;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, wherever the kernel puts it.
    let mapped = unsafe { mmap(std::ptr::null_mut(), BYTES, access, MapFlags::SHARED, file, 0) };
    Some(mapped.ok()?.cast())
}

/// Eight bytes as a word; missing ones are zero.
pub(crate) fn word_of(part: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..part.len()].copy_from_slice(part);
    u64::from_ne_bytes(word)
}
