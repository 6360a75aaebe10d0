//! The process's side of the clocks that its threads request at sites: which one, and the slot of
//! the run's board that it is written to.
//!
//! Nothing here waits, allocates or takes a lock. A signal handler that takes and releases locks in
//! the middle of any of it leaves the request as it found it, since each request follows from the
//! locks that the thread holds.

use std::ffi::{CStr, OsStr};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use dimmer_policy::boost::site::AtSite;
use dimmer_policy::boost::{Point, Speed};
use dimmer_protocol::ticks;
use rustix::fs::{CWD, Mode, OFlags, fstat, open, readlinkat_raw};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::getpid;
use rustix::thread::{gettid, sched_getcpu};

use crate::board::{self, BYTES, Board, MAGIC, Slot, VERSION};
use crate::ledger::Site;
use crate::own::OwnFile;
use crate::stop;

/// The board; null if threads request nothing.
static BOARD: AtomicPtr<Board> = AtomicPtr::new(std::ptr::null_mut());

/// The C library's key whose destructor ends the request of a thread that ends.
static KEY: AtomicU32 = AtomicU32::new(0);

/// The C library has room for the values of the first keys in each thread, and allocates for
/// others. Source: glibc, `nptl/descr.h`, `PTHREAD_KEY_2NDLEVEL_SIZE`.
pub(crate) const KEYS_WITHOUT_ALLOCATION: libc::pthread_key_t = 32;

/// What the calling thread has requested.
#[repr(C)]
struct Own {
    /// What its slot has as owner.
    owner: AtomicU64,
    /// The number of its slot, plus one; 0 if it has none yet, and [`REFUSED`].
    slot: AtomicU32,
    /// The number of the speed.
    speed: AtomicU32,
    /// The number of the speed that it requests without a lock.
    rest: AtomicU32,
    /// Without a slot, when to look for a free one again (ticks).
    again_at: AtomicU64,
}

/// The observer has freed the slot: the thread has another number for it, and requests nothing.
const REFUSED: u32 = u32::MAX;

/// How long a thread does not look for a slot once it has found none: some 0.1 s (ticks).
const UNTIL_NEXT_LOOK: u64 = 1 << 28;

dimmer_runtime::of_thread! {
    /// What the calling thread has requested.
    fn of_thread() -> Own, "dimmer_contention_requests";
}

/// Has threads request clocks by the board at this path, if there is one. Called once, before the
/// process has threads. Ends what this process has requested as another program (exec).
pub fn begin(path: &OsStr) {
    if let Some(board) = map(path) {
        BOARD.store(board, Ordering::Relaxed);
        end_those_before(board);
    }
}

fn map(path: &OsStr) -> Option<*mut Board> {
    // Paths have some 20 bytes: `/proc/PROCESS/fd/NUMBER`.
    let mut text = [0; 64];
    text.get_mut(..path.len())?.copy_from_slice(path.as_bytes());
    let path = CStr::from_bytes_until_nul(&text).ok()?;
    // The process that has made it may be gone, and its number another one's.
    let mut buffer = [MaybeUninit::uninit(); 64];
    let (link, _) = readlinkat_raw(CWD, path, &mut buffer).ok()?;
    let is_board =
        link.strip_prefix(b"/memfd:").is_some_and(|name| name.starts_with(board::NAME.as_bytes()));
    if !is_board {
        return None;
    }
    let file = OwnFile::new(open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()?);
    if fstat(&file).ok()?.st_size != i64::try_from(BYTES).ok()? {
        return None;
    }
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, wherever the kernel puts it.
    let mapped = unsafe { mmap(std::ptr::null_mut(), BYTES, access, MapFlags::SHARED, &file, 0) };
    let mapped = mapped.ok()?.cast::<Board>();
    // SAFETY: the file is as long, and stays so by its seals.
    let head = unsafe { &(*mapped).head };
    let mut key = 0;
    // SAFETY: `key` lives until the call returns; the function may be called in any thread.
    let mut is_key = || unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ends)) } == 0;
    let is_usable =
        head.magic == MAGIC && head.version == VERSION && is_key() && key < KEYS_WITHOUT_ALLOCATION;
    if !is_usable {
        // SAFETY: nothing refers to it.
        let _ = unsafe { munmap(mapped.cast(), BYTES) };
        return None;
    }
    KEY.store(key, Ordering::Relaxed);
    Some(mapped)
}

/// Frees the slots of this process, which has executed another program since it took them.
fn end_those_before(board: *mut Board) {
    // SAFETY: mapped as long as the process lives; all of it that changes is atomic.
    let board = unsafe { &*board };
    let process = u64::from(getpid().as_raw_nonzero().get().unsigned_abs());
    for slot in &board.slots {
        if slot.owner.load(Ordering::Relaxed) >> 32 == process {
            slot.free();
        }
    }
    // The kernel has a thread keep clamps when it executes another program, and those of the thread
    // that has started the process.
    write(board, None);
}

fn board() -> Option<&'static Board> {
    let board = BOARD.load(Ordering::Relaxed);
    // SAFETY: mapped as long as the process lives; all of it that changes is atomic.
    unsafe { board.as_ref() }
}

/// The number of the strategy that a new site has.
pub(crate) fn strategy_of_new_sites() -> u32 {
    board().map_or(0, |board| board.head.strategy.load(Ordering::Relaxed))
}

impl Site {
    /// What threads request here.
    pub(crate) fn strategy(&self) -> AtSite {
        AtSite::of_number(self.strategy.load(Ordering::Relaxed))
    }
}

/// Whether the thread may have to change its request at this site.
pub(crate) fn concerns(site: &Site) -> bool {
    let is_boosted = site.strategy.load(Ordering::Relaxed) != 0;
    is_boosted || of_thread().speed.load(Ordering::Relaxed) != 0
}

/// The thread is at this point of `site` and should request this clock from now on.
pub(crate) fn request(site: &Site, point: Point, wanted: Option<Speed>) {
    let Some(board) = board() else { return };
    if point == Point::Releases
        && let Some(rest) = site.strategy().speed(Point::Releases)
    {
        of_thread().rest.store(board::number(Some(rest)), Ordering::Relaxed);
    }
    if of_thread().speed.load(Ordering::Relaxed) == board::number(wanted) {
        return;
    }
    if write(board, wanted) {
        let index = match point {
            Point::Waits => 0,
            Point::Acquires => 1,
            Point::Starts | Point::Releases => 2,
        };
        site.requests[index].fetch_add(1, Ordering::Relaxed);
    }
}

/// What the thread requests without a lock.
pub(crate) fn rest() -> Option<Speed> {
    board::speed(of_thread().rest.load(Ordering::Relaxed))
}

/// Since when the thread's fast clock is in force: `None` if it has not requested it, `Some(None)`
/// if that was not carried out yet.
pub(crate) fn fast_since() -> Option<Option<u64>> {
    let own = of_thread();
    let is_fast = own.speed.load(Ordering::Relaxed) == board::number(Some(Speed::Turbo));
    let slot = is_fast.then(|| own_slot(board()?))??;
    // Ordering: Acquire pairs with the Release of the observer: the time is this request's.
    let is_carried = slot.carried.load(Ordering::Acquire) == slot.request.load(Ordering::Relaxed);
    Some(is_carried.then(|| slot.carried_at.load(Ordering::Relaxed)))
}

/// Writes a request into the thread's slot; returns whether it has one.
fn write(board: &Board, wanted: Option<Speed>) -> bool {
    if stop::has_stopped() {
        end_own();
        return false;
    }
    let own = of_thread();
    let Some(slot) = own_slot(board).or_else(|| take(board)) else {
        board.head.unplaced.fetch_add(1, Ordering::Relaxed);
        return false;
    };
    let count = slot.count.load(Ordering::Relaxed).wrapping_add(1);
    slot.count.store(count, Ordering::Relaxed);
    own.speed.store(board::number(wanted), Ordering::Relaxed);
    let cpu = u32::try_from(sched_getcpu()).unwrap_or_default();
    let begin = ticks();
    slot.asked_at.store(begin, Ordering::Relaxed);
    // Ordering: Release has the observer see its time, too.
    slot.request.store(board::word(count, cpu, wanted), Ordering::Release);
    board::ring(&board.head);
    slot.took.store(ticks().saturating_sub(begin), Ordering::Relaxed);
    true
}

/// Requests this clock, as at a site, and waits until it is in force, at most for `longest`
/// (ticks). Returns how long the request itself took, and how long it was from its begin until it
/// was in force (ticks); `None` if it was not.
#[must_use]
pub fn timed(wanted: Option<Speed>, longest: u64) -> Option<[u64; 2]> {
    let board = board()?;
    let begin = ticks();
    if !write(board, wanted) {
        return None;
    }
    let slot = own_slot(board)?;
    while slot.carried.load(Ordering::Acquire) != slot.request.load(Ordering::Relaxed) {
        if ticks().saturating_sub(begin) > longest {
            return None;
        }
        std::thread::yield_now();
    }
    let in_force = slot.carried_at.load(Ordering::Relaxed).saturating_sub(begin);
    Some([slot.took.load(Ordering::Relaxed), in_force])
}

fn own_slot(board: &Board) -> Option<&Slot> {
    let own = of_thread();
    let number = own.slot.load(Ordering::Relaxed);
    let slot = board.slots.get(usize::try_from(number).ok()?.checked_sub(1)?)?;
    let is_own = slot.owner.load(Ordering::Relaxed) == own.owner.load(Ordering::Relaxed);
    if !is_own {
        own.slot.store(REFUSED, Ordering::Relaxed);
    }
    is_own.then_some(slot)
}

/// Takes a slot for the calling thread.
#[cold]
fn take(board: &Board) -> Option<&Slot> {
    let own = of_thread();
    let is_refused = own.slot.load(Ordering::Relaxed) == REFUSED;
    if is_refused || ticks() < own.again_at.load(Ordering::Relaxed) {
        return None;
    }
    let number = |id: rustix::process::Pid| u64::from(id.as_raw_nonzero().get().unsigned_abs());
    let owner = number(getpid()) << 32 | number(gettid());
    let take = |slot: &Slot| {
        // Ordering: AcqRel pairs with the Release of the thread that has freed it, and with the
        // Acquire of the observer: the slot has no request.
        slot.owner.load(Ordering::Relaxed) == 0
            && slot.owner.compare_exchange(0, owner, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    let Some(index) = board.slots.iter().position(take) else {
        own.again_at.store(ticks() + UNTIL_NEXT_LOOK, Ordering::Relaxed);
        return None;
    };
    let slot = &board.slots[index];
    let number = u32::try_from(index).unwrap_or_default() + 1;
    // Ordering: Release pairs with the Acquire of the observer: the slot is filled.
    board.head.used.fetch_max(number, Ordering::Release);
    own.owner.store(owner, Ordering::Relaxed);
    own.slot.store(number, Ordering::Relaxed);
    // SAFETY: the key is the library's own, and its value is no address that is used.
    let _ = unsafe {
        libc::pthread_setspecific(KEY.load(Ordering::Relaxed), std::ptr::without_provenance(1))
    };
    Some(slot)
}

/// Ends the request of a thread that ends.
unsafe extern "C" fn thread_ends(_: *mut libc::c_void) {
    end_own();
}

/// Ends the request of the calling thread, if it has a slot, and frees that. Reads no time stamp.
pub(crate) fn end_own() {
    if let Some(board) = board()
        && let Some(slot) = own_slot(board)
    {
        forget();
        slot.free();
        board::ring(&board.head);
    }
}

/// The calling thread has requested nothing.
fn forget() {
    let own = of_thread();
    for field in [&own.slot, &own.speed, &own.rest] {
        field.store(0, Ordering::Relaxed);
    }
}

/// The calling thread is the only one of a new process. The slot is its parent's.
pub(crate) fn forked() {
    forget();
    if let Some(board) = board() {
        // The kernel has the child inherit clamps, also those that are not undone yet.
        write(board, None);
    }
}
