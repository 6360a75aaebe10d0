//! What some of the calling thread's sections do, by counters that are read at their begin and end:
//! events of the processor, and what the kernel counts of each thread (getrusage(2)).
//!
//! The program must not notice. So a thread's counters have no file but while they are opened,
//! after its first section; their pages are read without a system call. A child of fork has none of
//! the mappings: that it is one is in a page that the kernel empties then (`MADV_WIPEONFORK`), so
//! that it reads nothing that is not there, also without the C library's handlers (`_Fork`,
//! clone(2)).
//!
//! One section of a thread is measured at a time, so that what reading takes is in no other one.
//! The next one of the process begins [`REST`] readings later at the earliest. That limits what all
//! of it costs, and for how much longer locks are held. Of those that may be measured then, half
//! are, at random: so sections within others, and turns, all have their share.

use std::cell::Cell;
use std::ffi::OsStr;
use std::sync::atomic::compiler_fence;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use dimmer_runtime::own_event::{self, Count, Page};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

use crate::arch;
use crate::held::Busy;
use crate::ledger::{EVENTS as NUMBER, MEASURES, Measure, NOT_READABLE, Site, USER_ONLY};
use crate::own;
use crate::requests::KEYS_WITHOUT_ALLOCATION;
use crate::stop::{self, ticks};

pub use dimmer_runtime::own_event::Event;

/// The processor's events, as the kernel maps them: its generic ones. Source: Linux,
/// `include/uapi/linux/perf_event.h`, `PERF_TYPE_HARDWARE`.
pub const EVENTS: [Event; NUMBER] = {
    const fn event(name: &'static str, config: u64) -> Event {
        Event { name, kind: 0, config }
    }
    [
        event("cycles", 0),
        event("ref-cycles", 9),
        event("stalled-cycles-backend", 8),
        event("cache-misses", 3),
        event("instructions", 1),
    ]
};

/// From one measured section to the next one of the process, in multiples of what reading takes. So
/// readings take a hundredth of a CPU.
pub const REST: u64 = 100;

/// Maximum number of threads of a process that count the processor's events at once. The kernel
/// limits the memory of their pages for each user (`perf_event_mlock_kb`).
pub const THREADS: u32 = 16;

/// For how long a section is measured at most while its thread begins others: it may never end.
/// Some seconds (ticks).
const LONGEST: u64 = 1 << 33;

/// Empty sections by which the cost of reading is measured.
const TRIALS: usize = 16;

/// Stands in the environment for no events of the processor.
const WITHOUT_EVENTS: &str = "kernel";
const WITH_EVENTS: &str = "all";

/// The text for the environment.
///
/// * `with_events`: whether the processor's events are counted, too. On a hybrid one, a thread may
///   change to a core that lacks the counter just before it reads it, which would end the program.
#[must_use]
pub const fn text(with_events: bool) -> &'static str {
    if with_events { WITH_EVENTS } else { WITHOUT_EVENTS }
}

/// A page of the process's own, which is zero in a child.
#[repr(C)]
struct Shared {
    /// When the next section may be measured (ticks); 0: none is.
    next: AtomicU64,
    /// Threads that count events of the processor.
    threads: AtomicU32,
}

/// Null if nothing is measured.
static SHARED: AtomicPtr<Shared> = AtomicPtr::new(std::ptr::null_mut());

/// Whether the processor's events are counted.
static HAS_EVENTS: AtomicBool = AtomicBool::new(false);

/// The C library's key whose destructor ends the counters of a thread.
static KEY: AtomicU32 = AtomicU32::new(0);

/// All counters of a thread at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
struct Reading {
    /// The moment nearest to the section (ticks).
    at: u64,
    /// Page faults, waits, and losses of the CPU.
    usage: [u64; 3],
    /// By event; zero for one that is not counted.
    counts: [u64; NUMBER],
    /// For how long the events were not counted so far (ns).
    uncounted: u64,
    /// Whether the events are counted at this moment.
    is_counted: bool,
}

/// What the calling thread has. A signal handler does not change it: in the middle of a section
/// that is measured, it measures none, and else the thread is in none of these functions, or busy.
#[repr(C)]
struct Own {
    state: AtomicU32,
    /// Whether a section is being measured.
    is_measuring: AtomicBool,
    /// Whether its end has been read.
    has_ended: AtomicBool,
    random: Cell<u64>,
    /// Addresses of [`Page`]s; 0 if an event is not counted.
    pages: [AtomicUsize; NUMBER],
    begin: Cell<Reading>,
    end: Cell<Reading>,
    /// What an empty section has.
    empty: Cell<Reading>,
}

/// States of a thread: it has ended no section yet; it has its counters; it ends.
const NEW: u32 = 0;
const OPEN: u32 = 1;
const ENDS: u32 = 2;

dimmer_runtime::of_thread! {
    /// What the calling thread has.
    fn of_thread() -> Own, "dimmer_contention_counters";
}

/// Measures sections from now on, as the environment has it. Called once, before the process has
/// threads.
pub fn begin(how: &OsStr) {
    let mut key = 0;
    // SAFETY: `key` lives until the call returns; the function may be called in any thread.
    let made = unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ends)) };
    if made != 0 || key >= KEYS_WITHOUT_ALLOCATION {
        return;
    }
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let null = std::ptr::null_mut();
    // SAFETY: a new mapping, wherever the kernel puts it.
    let mapped = unsafe { mmap_anonymous(null, own_event::BYTES, access, MapFlags::PRIVATE) };
    let Ok(mapped) = mapped else { return };
    // SAFETY: it is as long.
    if unsafe { madvise(mapped, own_event::BYTES, Advice::LinuxWipeOnFork) }.is_err() {
        return;
    }
    KEY.store(key, Ordering::Relaxed);
    HAS_EVENTS.store(how == WITH_EVENTS, Ordering::Relaxed);
    SHARED.store(mapped.cast(), Ordering::Relaxed);
    go_on();
}

/// The page, unless nothing is measured in this process.
fn shared() -> Option<&'static Shared> {
    // SAFETY: mapped as long as the process lives; all of it is atomic.
    let shared = unsafe { SHARED.load(Ordering::Relaxed).as_ref() }?;
    (shared.next.load(Ordering::Relaxed) != 0).then_some(shared)
}

fn go_on() {
    // SAFETY: as in `shared`.
    if let Some(shared) = unsafe { SHARED.load(Ordering::Relaxed).as_ref() } {
        shared.next.store(1, Ordering::Relaxed);
    }
}

/// The calling thread is the only one of a new process, which has none of the pages.
pub(crate) fn forked() {
    let own = of_thread();
    own.pages.iter().for_each(|page| page.store(0, Ordering::Relaxed));
    own.is_measuring.store(false, Ordering::Relaxed);
    own.has_ended.store(false, Ordering::Relaxed);
    own.state.store(NEW, Ordering::Relaxed);
    go_on();
}

/// Whether a section that begins now is measured: if so, [`read_begin`] follows.
pub(crate) fn is_due(now: u64) -> bool {
    let Some(shared) = shared() else { return false };
    let next = shared.next.load(Ordering::Relaxed);
    let own = of_thread();
    let is_measuring = own.is_measuring.load(Ordering::Relaxed)
        && now.saturating_sub(own.begin.get().at) < LONGEST;
    if now < next
        || is_measuring
        || own.state.load(Ordering::Relaxed) != OPEN
        || stop::has_stopped()
        || !coin(&own.random)
    {
        return false;
    }
    let rest = own.empty.get().at.saturating_mul(REST).max(1);
    let claimed = shared.next.compare_exchange(
        next,
        now.saturating_add(rest),
        Ordering::Relaxed,
        Ordering::Relaxed,
    );
    claimed.is_ok()
}

/// One of two, at random (xorshift).
fn coin(state: &Cell<u64>) -> bool {
    let mut word = state.get().max(1);
    word ^= word << 13;
    word ^= word >> 7;
    word ^= word << 17;
    state.set(word);
    word & 1 << 32 != 0
}

/// Reads the counters at the start of a section that [`is_due`]. Returns since when it lasts.
pub(crate) fn read_begin() -> u64 {
    let own = of_thread();
    let reading = own.read_before();
    own.begin.set(reading);
    own.has_ended.store(false, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    own.is_measuring.store(true, Ordering::Relaxed);
    reading.at
}

/// Whether a section of the calling thread is being measured.
#[inline]
pub(crate) fn is_measuring() -> bool {
    of_thread().is_measuring.load(Ordering::Relaxed)
}

/// Whether it is the one that began at this moment (ticks).
#[inline]
pub(crate) fn measures(since: u64) -> bool {
    is_measuring() && of_thread().begin.get().at == since
}

/// Reads the counters at the end of the section that is measured, if they are not read yet.
pub(crate) fn read_end() {
    let own = of_thread();
    // A child of fork has no pages.
    let may_read = shared().is_some() && !stop::has_stopped();
    if may_read && !own.has_ended.load(Ordering::Relaxed) {
        own.end.set(own.read_after());
        own.has_ended.store(true, Ordering::Relaxed);
    }
}

/// Counts the section that is measured, at its site.
pub(crate) fn count(site: &Site) {
    read_end();
    let own = of_thread();
    if own.has_ended.load(Ordering::Relaxed) {
        let measured = measured(&own.begin.get(), &own.end.get(), &own.empty.get());
        for (sum, more) in site.measures.iter().zip(measured) {
            sum.fetch_add(more, Ordering::Relaxed);
        }
    }
    give_up();
}

/// The section that is measured, if there is one, does not count.
pub(crate) fn give_up() {
    of_thread().is_measuring.store(false, Ordering::Relaxed);
}

/// What was measured of a section between two readings, by [`Measure`], without what an empty one
/// has.
fn measured(begin: &Reading, end: &Reading, empty: &Reading) -> [u64; MEASURES] {
    let usage =
        |at: usize| end.usage[at].saturating_sub(begin.usage[at]).saturating_sub(empty.usage[at]);
    let time = end.at.saturating_sub(begin.at);
    let mut sums = [0; MEASURES];
    sums[Measure::Sampled as usize] = 1;
    sums[Measure::Short as usize] = u64::from(time < empty.at);
    sums[Measure::Time as usize] = time;
    sums[Measure::Faults as usize] = usage(0);
    sums[Measure::Sleeps as usize] = usage(1);
    if !begin.is_counted || !end.is_counted || begin.uncounted != end.uncounted {
        return sums;
    }
    sums[Measure::Counted as usize] = 1;
    let events = &mut sums[Measure::Cycles as usize..][..NUMBER];
    for (at, event) in events.iter_mut().enumerate() {
        let count = end.counts[at].saturating_sub(begin.counts[at]);
        *event = count.saturating_sub(empty.counts[at]);
    }
    if usage(1) == 0 && usage(2) == 0 {
        sums[Measure::SteadyTime as usize] = time;
        sums[Measure::SteadyCycles as usize] = sums[Measure::Cycles as usize];
    }
    sums
}

impl Own {
    /// Reads all counters, the nearest to the section last.
    fn read_before(&self) -> Reading {
        let usage = usage();
        let (is_counted, counts, uncounted) = self.events();
        Reading { usage, counts, uncounted, is_counted, at: ticks() }
    }

    /// Likewise, the nearest first.
    fn read_after(&self) -> Reading {
        let at = ticks();
        let (is_counted, counts, uncounted) = self.events();
        Reading { at, counts, uncounted, is_counted, usage: usage() }
    }

    /// Whether the processor's events are counted at this moment, their counts, and for how long
    /// they were not so far.
    fn events(&self) -> (bool, [u64; NUMBER], u64) {
        let mut counts = [0; NUMBER];
        let mut uncounted = None;
        for (count, page) in counts.iter_mut().zip(&self.pages) {
            let page = std::ptr::with_exposed_provenance::<Page>(page.load(Ordering::Relaxed));
            // SAFETY: it stays mapped until the thread ends.
            let Some(page) = (unsafe { page.as_ref() }) else { continue };
            let Some(Count { count: read, uncounted: since }) = page.read() else {
                return (false, counts, 0);
            };
            *count = read;
            // A group counts all of its events or none: its first one has the time for all.
            uncounted = uncounted.or(Some(since));
        }
        (uncounted.is_some(), counts, uncounted.unwrap_or(0))
    }
}

/// Page faults of the calling thread, how often it waited, and how often it lost its CPU.
fn usage() -> [u64; 3] {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    let who = (libc::RUSAGE_THREAD as isize).cast_unsigned();
    let arguments = [who, usage.as_mut_ptr().addr(), 0, 0, 0];
    // SAFETY: the kernel writes to what lives until the call returns.
    let _ = unsafe { arch::system_call(libc::SYS_getrusage, arguments) };
    // SAFETY: all zero is valid, too.
    let usage = unsafe { usage.assume_init() };
    let faults = usage.ru_minflt.saturating_add(usage.ru_majflt);
    [faults, usage.ru_nvcsw, usage.ru_nivcsw].map(i64::cast_unsigned)
}

/// Opens the calling thread's counters, once it has ended its first section.
#[inline]
pub(crate) fn open_if_new() {
    if shared().is_some() && of_thread().state.load(Ordering::Relaxed) == NEW {
        open();
    }
}

#[cold]
fn open() {
    let own = of_thread();
    if stop::has_stopped() {
        return;
    }
    own.state.store(ENDS, Ordering::Relaxed);
    let value = std::ptr::without_provenance(1);
    // SAFETY: the key is the library's own, and its value is no address that is used.
    let set = unsafe { libc::pthread_setspecific(KEY.load(Ordering::Relaxed), value) };
    let has_events = set == 0 && HAS_EVENTS.load(Ordering::Relaxed) && join();
    let opened = if has_events { open_events(&EVENTS, &own.pages) } else { Opened::default() };
    if has_events && opened.events == 0 {
        leave();
    }
    own.random.set(ticks() ^ std::ptr::from_ref(own).addr() as u64);
    own.empty.set(own.empty());
    own::note_counters(own.empty.get().at, opened.events, opened.refused);
    compiler_fence(Ordering::SeqCst);
    own.state.store(OPEN, Ordering::Relaxed);
}

/// Takes a place among the threads that count events; returns whether there is one.
fn join() -> bool {
    let Some(shared) = shared() else { return false };
    let is_in = shared.threads.fetch_add(1, Ordering::Relaxed) < THREADS;
    if !is_in {
        leave();
    }
    is_in
}

fn leave() {
    if let Some(shared) = shared() {
        shared.threads.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What became of events: a bit for each that is counted, and a byte for each that is not, as a
/// ledger has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Opened {
    events: u64,
    refused: u64,
}

/// Opens these events as a group, and maps their pages. Their files are closed then.
fn open_events(events: &[Event; NUMBER], pages: &[AtomicUsize; NUMBER]) -> Opened {
    let mut opened = Opened::default();
    let mut with_kernel = true;
    let mut files: [Option<own_event::Opened>; NUMBER] = [const { None }; NUMBER];
    for (at, event) in events.iter().enumerate() {
        let refuse = |why: u8| u64::from(why) << (8 * at);
        let (before, rest) = files.split_at_mut(at);
        let leader = before.iter().flatten().next();
        let mut file = own_event::open(*event, leader, with_kernel);
        if matches!(file, Err(Errno::ACCESS | Errno::PERM)) && with_kernel && leader.is_none() {
            with_kernel = false;
            file = own_event::open(*event, None, false);
        }
        let mapped = file.and_then(|file| Ok((own_event::map(&file)?, file)));
        match mapped {
            Ok((page, file)) => {
                // SAFETY: it was just mapped.
                if unsafe { &*page }.may_read() {
                    opened.events |= 1 << at;
                    pages[at].store(page.expose_provenance(), Ordering::Relaxed);
                    rest[0] = Some(file);
                } else {
                    // SAFETY: nothing has it.
                    unsafe { own_event::unmap(page) };
                    opened.refused |= refuse(NOT_READABLE);
                }
            }
            Err(why) => {
                opened.refused |= refuse(u8::try_from(why.raw_os_error()).unwrap_or(NOT_READABLE));
            }
        }
    }
    if opened.events != 0 && !with_kernel {
        opened.events |= USER_ONLY;
    }
    opened
}

impl Own {
    /// What an empty section has at least, and how long its readings take.
    fn empty(&self) -> Reading {
        let mut least = self.trial();
        for _ in 1..TRIALS {
            let trial = self.trial();
            least.at = least.at.min(trial.at);
            for (least, trial) in least.counts.iter_mut().zip(trial.counts) {
                *least = (*least).min(trial);
            }
            for (least, trial) in least.usage.iter_mut().zip(trial.usage) {
                *least = (*least).min(trial);
            }
        }
        least
    }

    fn trial(&self) -> Reading {
        let since = ticks();
        let (begin, end) = (self.read_before(), self.read_after());
        let took = ticks().saturating_sub(since);
        Reading {
            at: took,
            usage: [0, 1, 2].map(|at| end.usage[at].saturating_sub(begin.usage[at])),
            counts: std::array::from_fn(|at| end.counts[at].saturating_sub(begin.counts[at])),
            ..end
        }
    }
}

/// Ends the counters of a thread that ends.
unsafe extern "C" fn thread_ends(_: *mut libc::c_void) {
    let _busy = Busy::begin();
    let own = of_thread();
    own.state.store(ENDS, Ordering::Relaxed);
    give_up();
    let mut had = false;
    for page in &own.pages {
        let page = std::ptr::with_exposed_provenance::<Page>(page.swap(0, Ordering::Relaxed));
        if !page.is_null() && shared().is_some() {
            // SAFETY: this thread's, which does not read it any more.
            unsafe { own_event::unmap(page) };
            had = true;
        }
    }
    if had {
        leave();
    }
}

#[cfg(test)]
mod tests;
