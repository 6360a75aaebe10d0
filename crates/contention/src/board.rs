//! Where the threads of a run's programs write which clock they request, and the observer's side of
//! it: a file in memory that all of them map.
//!
//! A thread writes its request into a slot of its own and rings the bell; it does not wait. The
//! observer carries out the latest request of each slot. So a program needs no right, no file and
//! no memory for its requests, and what is in force is known where it is undone.
//!
//! | the thread | the observer |
//! |---|---|
//! | writes the slot | notes the bell |
//! | rings: adds one to the bell | reads all slots, and carries out what is new |
//! | wakes the observer if it sleeps | says that it sleeps; sleeps if the bell is as noted |
//!
//! A process may write anything into it, so every value is checked. It cannot make the file
//! shorter.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use dimmer_policy::boost::{Speed, site::AtSite};
use dimmer_protocol::ticks;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::futex;

/// The first bytes.
pub(crate) const MAGIC: [u8; 8] = *b"dimclock";

/// Changes with each change of the layout.
pub(crate) const VERSION: u32 = 1;

/// Maximum number of threads that have a request at once. A guess: at most as many of their
/// sections run at the same time as the machine has cores.
pub const SLOTS: usize = 1024;

/// The owner of a slot that the observer frees.
const IS_BEING_FREED: u64 = u64::MAX;

/// The beginning of the file's name, as `/proc` shows it. The process that has made it follows.
pub(crate) const NAME: &str = "dimmer-requests-";

/// The head.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Head {
    pub(crate) magic: [u8; 8],
    pub(crate) version: u32,
    /// Changes with each request.
    pub(crate) bell: AtomicU32,
    /// 1 while the observer sleeps, or is about to.
    pub(crate) is_asleep: AtomicU32,
    /// The number of the strategy that new sites have.
    pub(crate) strategy: AtomicU32,
    /// Slots from this one on were never used.
    pub(crate) used: AtomicU32,
    /// Requests of threads for which there was no slot.
    pub(crate) unplaced: AtomicU64,
}

/// The request of a thread.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Slot {
    /// The process in the upper half, the thread in the lower one; 0 if it is free.
    pub(crate) owner: AtomicU64,
    /// The latest request, see [`word`].
    pub(crate) request: AtomicU64,
    /// When it was made (ticks).
    pub(crate) asked_at: AtomicU64,
    /// How long the thread took for the one before it (ticks).
    pub(crate) took: AtomicU64,
    /// The request that was carried out last.
    pub(crate) carried: AtomicU64,
    /// Since when it is in force (ticks); written before `carried`.
    pub(crate) carried_at: AtomicU64,
    /// How many requests all owners together have made here: no two have the same word.
    pub(crate) count: AtomicU32,
}

impl Slot {
    /// Frees it.
    pub(crate) fn free(&self) {
        self.request.store(0, Ordering::Relaxed);
        // Ordering: Release pairs with the Acquire of the next owner: it finds no request.
        self.owner.store(0, Ordering::Release);
    }
}

/// All of it.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Board {
    pub(crate) head: Head,
    pub(crate) slots: [Slot; SLOTS],
}

/// Size of the file (bytes).
pub(crate) const BYTES: usize = size_of::<Board>();

const _: () = assert!(size_of::<Head>() == 64 && size_of::<Slot>() == 64);

/// A request as a word:
///
/// | bits | |
/// |---|---|
/// | 63..32 | how many requests were made in the slot |
/// | 31..8 | the CPU that executes it |
/// | 7..0 | the number of the speed, see [`number`] |
pub(crate) const fn word(count: u32, cpu: u32, speed: Option<Speed>) -> u64 {
    (count as u64) << 32 | (cpu as u64 & 0xff_ffff) << 8 | number(speed) as u64
}

/// The number of a speed; 0 for no request.
pub(crate) const fn number(speed: Option<Speed>) -> u32 {
    match speed {
        None => 0,
        Some(Speed::Slow) => 1,
        Some(Speed::Base) => 2,
        Some(Speed::Turbo) => 3,
    }
}

/// The speed of this number.
pub(crate) const fn speed(number: u32) -> Option<Speed> {
    match number {
        1 => Some(Speed::Slow),
        2 => Some(Speed::Base),
        3 => Some(Speed::Turbo),
        _ => None,
    }
}

/// A request as the observer finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The slot.
    pub slot: usize,
    /// The process, as it sees itself.
    pub process: u32,
    /// The thread, as it sees itself.
    pub thread: u32,
    /// The CPU that executed the thread.
    pub cpu: u32,
    /// The clock; `None`: the machine decides.
    pub speed: Option<Speed>,
    /// When the request was made (ticks).
    pub asked_at: u64,
    /// How long the thread took for the request before (ticks); 0 if it is the first.
    pub took: u64,
    /// The request itself, for [`Requests::carried_out`].
    pub request: u64,
}

/// The observer's side.
#[derive(Debug)]
pub struct Requests {
    file: OwnedFd,
    board: *mut Board,
    name: String,
}

// SAFETY: all of the board that changes is atomic.
unsafe impl Send for Requests {}
// SAFETY: likewise.
unsafe impl Sync for Requests {}

impl Requests {
    /// Makes the file. New sites have this strategy.
    ///
    /// # Errors
    /// The system's.
    pub fn new(strategy: AtSite) -> io::Result<Self> {
        let name = format!("{NAME}{}", std::process::id());
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create(CString::new(name.as_str())?, flags)?;
        ftruncate(&file, BYTES as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, wherever the kernel puts it.
        let mapped =
            unsafe { mmap(std::ptr::null_mut(), BYTES, access, MapFlags::SHARED, &file, 0) }?;
        let board = mapped.cast::<Board>();
        let head = Head {
            magic: MAGIC,
            version: VERSION,
            bell: AtomicU32::new(0),
            is_asleep: AtomicU32::new(0),
            strategy: AtomicU32::new(strategy as u32),
            used: AtomicU32::new(0),
            unplaced: AtomicU64::new(0),
        };
        // SAFETY: the head is first in the board, which no other process has yet.
        unsafe { board.cast::<Head>().write(head) };
        Ok(Self { file, board, name })
    }

    /// The path by which programs find it while this process lives.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Whether the thread's process, as this one sees both, has mapped the board: the numbers of
    /// another namespace may be those of any other program here, and a program may write any.
    ///
    /// # Cost
    /// Reads all mappings of the process: some 50 µs for a hundred.
    #[must_use]
    pub fn is_mapped_by(&self, process: u32, thread: u32) -> bool {
        has_mapped(process, thread, &format!("/memfd:{} ", self.name)).unwrap_or(false)
    }

    fn board(&self) -> &Board {
        // SAFETY: mapped until this is dropped, and a sealed file stays as long; all of it that
        // changes is atomic.
        unsafe { &*self.board }
    }

    /// The number of the bell, for [`Self::wait`].
    #[must_use]
    pub fn bell(&self) -> u32 {
        // Ordering: Acquire pairs with the ring of a thread: its request is seen.
        self.board().head.bell.load(Ordering::Acquire)
    }

    /// Waits until a thread rings after `bell` was read, at most as long as `longest`.
    pub fn wait(&self, bell: u32, longest: Duration) {
        let head = &self.board().head;
        // Ordering: SeqCst, as the ring and the look at this in a thread: either the thread sees
        // that the observer sleeps, or the kernel sees that the bell has changed.
        head.is_asleep.store(1, Ordering::SeqCst);
        let until = futex::Timespec::try_from(longest).ok();
        let _ = futex::wait(&head.bell, futex::Flags::empty(), bell, until.as_ref());
        head.is_asleep.store(0, Ordering::Relaxed);
    }

    /// Ends a wait.
    pub fn ring(&self) {
        ring(&self.board().head);
    }

    /// The slots that threads own, with their requests, in order.
    pub fn all(&self) -> impl Iterator<Item = Found> {
        // Ordering: Acquire pairs with the Release of a thread that takes a slot.
        let used = self.board().head.used.load(Ordering::Acquire);
        let used = usize::try_from(used).unwrap_or(SLOTS).min(SLOTS);
        self.board().slots[..used].iter().enumerate().filter_map(|(slot, found)| {
            // Ordering: Acquire pairs with the Release of the thread: what lies in it is its own.
            let owner = found.owner.load(Ordering::Acquire);
            // Ordering: Acquire pairs with the Release of the thread: its time is the request's.
            let request = found.request.load(Ordering::Acquire);
            let half = |word: u64| u32::try_from(word & 0xffff_ffff).unwrap_or_default();
            (owner != 0).then(|| Found {
                slot,
                process: half(owner >> 32),
                thread: half(owner),
                cpu: half(request) >> 8,
                speed: speed(half(request) & 0xff),
                asked_at: found.asked_at.load(Ordering::Relaxed),
                took: found.took.load(Ordering::Relaxed),
                request,
            })
        })
    }

    /// Notes that this request is in force from now on.
    pub fn carried_out(&self, found: &Found) {
        if let Some(slot) = self.board().slots.get(found.slot) {
            slot.carried_at.store(ticks(), Ordering::Relaxed);
            // Ordering: Release pairs with the Acquire of the thread, which reads the time then.
            slot.carried.store(found.request, Ordering::Release);
        }
    }

    /// Frees the slot of a thread that has ended without doing so.
    pub fn free(&self, found: &Found) {
        if let Some(slot) = self.board().slots.get(found.slot) {
            let owner = u64::from(found.process) << 32 | u64::from(found.thread);
            let order = (Ordering::Acquire, Ordering::Relaxed);
            // No thread takes it before it is empty, and none that has taken it loses it.
            if slot.owner.compare_exchange(owner, IS_BEING_FREED, order.0, order.1).is_ok() {
                slot.free();
            }
        }
    }

    /// Requests of threads for which there was no slot.
    #[must_use]
    pub fn unplaced(&self) -> u64 {
        self.board().head.unplaced.load(Ordering::Relaxed)
    }
}

/// Rings the bell.
pub(crate) fn ring(head: &Head) {
    // Ordering: SeqCst, see `Requests::wait`; as a Release, it has the request seen.
    head.bell.fetch_add(1, Ordering::SeqCst);
    // Ordering: SeqCst, likewise.
    if head.is_asleep.load(Ordering::SeqCst) != 0 {
        let _ = futex::wake(&head.bell, futex::Flags::empty(), 1);
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        // SAFETY: nothing has a reference to it any more.
        let _ = unsafe { munmap(self.board.cast(), BYTES) };
    }
}

/// When a thread started (in the kernel's unit, since the machine started); `None` if it does not
/// exist, or has ended. No other thread of this number has the same.
#[must_use]
pub fn started_at(process: u32, thread: u32) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{process}/task/{thread}/stat")).ok()?;
    // Source: proc_pid_stat(5): the state is field 3, after the name, and this is field 22. The
    // name may be no text.
    let stat = String::from_utf8_lossy(&stat);
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let has_ended = matches!(fields.next()?, "Z" | "X");
    fields.nth(18)?.parse().ok().filter(|_| !has_ended)
}

/// Whether this process has not ended, also if its first thread has.
#[must_use]
pub fn lives(process: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task"));
    let thread = |entry: &std::fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    tasks.is_ok_and(|tasks| {
        let mut threads = tasks.flatten().filter_map(|entry| thread(&entry));
        threads.any(|thread| started_at(process, thread).is_some())
    })
}

/// Whether a process has a mapping of this name. Its threads have all the same ones, but those that
/// have ended have none, also the first.
fn has_mapped(process: u32, thread: u32, name: &str) -> io::Result<bool> {
    use std::io::BufRead as _;
    let lines = io::BufReader::new(File::open(format!("/proc/{process}/task/{thread}/maps"))?);
    // Names of other files may be no text.
    for line in lines.split(b'\n') {
        if String::from_utf8_lossy(&line?).contains(name) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;
    use crate::ledger::Site;
    use crate::{held, requests};

    #[test]
    fn every_request_is_what_its_word_says() {
        for speed in [None, Some(Speed::Slow), Some(Speed::Base), Some(Speed::Turbo)] {
            let word = word(u32::MAX, 0x00ff_fffe, speed);
            let half = u32::try_from(word & 0xffff_ffff).unwrap();
            assert_eq!((word >> 32, half >> 8), (u64::from(u32::MAX), 0x00ff_fffe));
            assert_eq!(super::speed(half & 0xff), speed);
        }
        assert_eq!(super::speed(4), None);
    }

    /// The only test of this process that has a board: there is one for all of a process's life.
    #[test]
    fn a_thread_s_request_is_there_from_its_section_on_until_the_thread_ends() {
        let board = Requests::new(AtSite::One).unwrap();
        let in_thread = |work: &(dyn Fn() + Sync)| {
            std::thread::scope(|scope| scope.spawn(work).join().unwrap());
        };
        // What a process has inherited ends when it begins.
        let ends_what_is_inherited = || {
            let found: Vec<Found> = board.all().collect();
            let [found] = found.as_slice() else { panic!("{found:?}") };
            assert_eq!((found.process, found.speed), (std::process::id(), None));
            assert_ne!(found.request, 0);
        };
        in_thread(&|| {
            requests::begin(OsStr::new(&board.path()));
            ends_what_is_inherited();
        });
        assert_eq!(board.all().count(), 0, "the thread has ended");
        in_thread(&|| {
            requests::forked();
            ends_what_is_inherited();
        });
        let site: &'static Site = Box::leak(Box::default());
        let count = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
        std::thread::scope(|scope| {
            let section = || {
                let bell = board.bell();
                held::begin(1, site, ticks(), true);
                assert_eq!(board.all().count(), 0, "a site that is not boosted");
                site.strategy.store(requests::strategy_of_new_sites(), Ordering::Relaxed);
                held::begin(2, site, ticks(), true);
                let found: Vec<Found> = board.all().collect();
                let [found] = found.as_slice() else { panic!("{found:?}") };
                assert_eq!((found.process, found.speed), (std::process::id(), Some(Speed::Turbo)));
                assert!(board.is_mapped_by(found.process, found.thread));
                assert!(started_at(found.process, found.thread).is_some());
                assert_eq!(started_at(1, found.thread), None);
                assert!(!board.is_mapped_by(found.process, 1) && !board.is_mapped_by(1, 1));
                // The bell has rung, so this does not wait.
                board.wait(bell, Duration::from_secs(3600));
                held::end(2, ticks(), false);
                assert_eq!([&site.boosted, &site.carried].map(count), [1, 0]);
                held::begin(2, site, ticks(), true);
                board.carried_out(&board.all().next().unwrap());
                held::end(2, ticks(), false);
                assert_eq!([&site.boosted, &site.carried].map(count), [2, 1]);
                // The first lock is still held at what is now a boosted site.
                assert_eq!(board.all().next().unwrap().speed, Some(Speed::Turbo));
                held::end(1, ticks(), false);
                assert_eq!(board.all().next().unwrap().speed, None);
                assert_eq!([0, 1, 2].map(|at: usize| count(&site.requests[at])), [0, 1, 1]);
            };
            scope.spawn(section).join().unwrap();
        });
        assert_eq!(board.all().count(), 0, "the thread has ended");
        // The same request again, in the same slot: what was carried out of the last thread's is
        // none of it.
        let carried_of = || {
            let site: &'static Site = Box::leak(Box::default());
            site.strategy.store(AtSite::One as u32, Ordering::Relaxed);
            held::begin(3, site, ticks(), true);
            let found = board.all().next().unwrap();
            held::end(3, ticks(), false);
            assert_eq!(count(&site.carried), 0);
            found
        };
        let late = std::thread::scope(|scope| scope.spawn(carried_of).join().unwrap());
        board.carried_out(&late);
        board.free(&late);
        std::thread::scope(|scope| scope.spawn(carried_of).join().unwrap());
        assert_eq!(board.unplaced(), 0);
        // A board that is full is not searched for each request.
        let slots = &board.board().slots;
        slots.iter().for_each(|slot| slot.owner.store(1 << 32 | 1, Ordering::Relaxed));
        in_thread(&|| {
            assert_eq!(requests::timed(None, 0), None);
            slots[7].free();
            assert_eq!(requests::timed(None, 0), None, "it has looked just before");
        });
        assert_eq!(board.unplaced(), 2);
        in_thread(&|| {
            let _ = requests::timed(None, 0);
            assert_eq!(board.all().filter(|found| found.thread != 1).count(), 1);
        });
        assert_eq!(board.unplaced(), 2);
    }
}
