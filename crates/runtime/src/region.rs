//! Regions: stretches of code that a program has marked, and the decision for each where it runs.
//!
//! A [`Site`] is where a region begins in the source. It holds one word, the decision, which is read with one relaxed load; so
//! whoever decides (today the environment, see [`crate::Settings`]) only writes words, and programs neither ask nor wait.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::cores::Cores;
use crate::settings::{self, Decision};
use crate::travel::Journey;

/// Nobody has decided yet.
const UNDECIDED: u32 = 0;
const STAY: u32 = 1;
const OFFLOAD: u32 = 2;
const BORROW: u32 = 3;

/// One entry in so many, on average, is looked at more closely.
const SAMPLE: u32 = 256;

/// A place in a program where a region begins: a `static` of its own, made by [`region!`](crate::region!).
#[derive(Debug)]
pub struct Site {
    name: &'static str,
    file: &'static str,
    line: u32,
    /// The decision.
    word: AtomicU32,
    calls: AtomicU64,
    sampled: AtomicU64,
    sampled_ticks: AtomicU64,
}

/// What a site has seen. Calls are estimated from samples, one in 256 on average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SiteStatistics {
    /// Entries so far, estimated.
    pub calls: u64,
    /// Mean time in the region (ns), of the sampled entries; `None` before the first.
    pub mean_ns: Option<f64>,
}

/// The sites that were ever entered or decided for.
static SITES: Mutex<Vec<&'static Site>> = Mutex::new(Vec::new());

thread_local! {
    /// Entries until the next sample.
    static UNTIL_SAMPLE: Cell<u32> = const { Cell::new(SAMPLE) };
    /// How many those were.
    static DRAWN: Cell<u32> = const { Cell::new(SAMPLE) };
    /// When the thread last left a region that had moved it (ticks).
    static LEFT: Cell<u64> = const { Cell::new(0) };
    /// The journey of the region that the thread is in, if that has moved it.
    static TRIP: RefCell<Option<Trip>> = const { RefCell::new(None) };
}

/// A thread's way to a dedicated core, which outlives the call that began it.
#[derive(Debug)]
struct Trip {
    /// The region began so soon after the last one that going home in between would not have paid: the thread stays there
    /// after it, too.
    recurs: bool,
    /// No region is under way: the thread has stayed after the last one.
    lingers: bool,
    // Signals are let in again when the thread is home.
    journey: Journey<'static>,
}

impl Drop for Trip {
    fn drop(&mut self) {
        // A thread that ends while it is away goes home first, for its kernel thread to end there.
        self.journey.go_home();
    }
}

/// What [`Site::enter`] did, for [`Site::exit`] to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entered {
    /// When it began (ticks), if it is sampled; else 0.
    since: u64,
    /// The thread was moved.
    has_moved: bool,
}

/// The calling thread is in a region, until this is dropped.
#[derive(Debug)]
#[must_use = "the region ends at once"]
pub struct Region {
    site: &'static Site,
    entered: Entered,
    not_send: PhantomData<*const ()>,
}

impl Drop for Region {
    #[inline]
    fn drop(&mut self) {
        self.site.exit(self.entered);
    }
}

impl Site {
    /// A site nobody has entered yet.
    #[must_use]
    pub const fn new(name: &'static str, file: &'static str, line: u32) -> Self {
        Self {
            name,
            file,
            line,
            word: AtomicU32::new(UNDECIDED),
            calls: AtomicU64::new(0),
            sampled: AtomicU64::new(0),
            sampled_ticks: AtomicU64::new(0),
        }
    }

    /// Its name; without one of its own, `FILE:LINE`.
    #[must_use]
    pub fn name(&self) -> String {
        if self.name.is_empty() {
            format!("{}:{}", self.file, self.line)
        } else {
            self.name.to_owned()
        }
    }

    /// Where it stands.
    #[must_use]
    pub fn place(&self) -> (&'static str, u32) {
        (self.file, self.line)
    }

    /// Begins a region that ends where the result is dropped. Regions may be nested; within one that has moved the thread, others
    /// stay where it is. One that stays costs some nanoseconds, both ends together.
    #[inline]
    pub fn region(&'static self) -> Region {
        Region { site: self, entered: self.enter(), not_send: PhantomData }
    }

    /// Begins a region that [`Site::exit`] ends on the same thread.
    #[inline]
    pub fn enter(&'static self) -> Entered {
        let until = UNTIL_SAMPLE.get().wrapping_sub(1);
        if self.word.load(Ordering::Relaxed) == STAY && until != 0 {
            UNTIL_SAMPLE.set(until);
            return Entered::default();
        }
        self.enter_slowly()
    }

    /// Ends a region.
    #[inline]
    pub fn exit(&'static self, entered: Entered) {
        if entered != Entered::default() {
            self.exit_slowly(entered);
        }
    }

    /// Runs a closure as the decision says: here, on a worker's stack, or on the caller's stack with a worker.
    pub fn run<T: Send, F: FnOnce() -> T + Send>(&'static self, work: F) -> T {
        let (OFFLOAD, Some(cores)) = (self.decision(), dedicated()) else {
            let _region = self.region();
            return work();
        };
        self.count(ticks(), || cores.offload(work))
    }

    /// What its regions did so far.
    #[must_use]
    pub fn statistics(&self) -> SiteStatistics {
        let sampled = self.sampled.load(Ordering::Relaxed);
        let ticks = self.sampled_ticks.load(Ordering::Relaxed) as f64;
        SiteStatistics {
            calls: self.calls.load(Ordering::Relaxed),
            mean_ns: (sampled > 0).then(|| ticks / sampled as f64 / ticks_per_ns()),
        }
    }

    /// Decides for this site from now on.
    pub fn decide(&'static self, decision: Decision) {
        self.register(&mut SITES.lock().unwrap_or_else(PoisonError::into_inner));
        self.word.store(Self::word_of(decision), Ordering::Relaxed);
    }

    fn word_of(decision: Decision) -> u32 {
        match decision {
            Decision::Stay => STAY,
            Decision::Offload => OFFLOAD,
            Decision::Borrow => BORROW,
        }
    }

    fn register(&'static self, sites: &mut Vec<&'static Self>) {
        if !sites.iter().any(|site| std::ptr::eq(*site, self)) {
            sites.push(self);
        }
    }

    /// The decision; the first time, what the environment says.
    fn decision(&'static self) -> u32 {
        let word = self.word.load(Ordering::Relaxed);
        if word != UNDECIDED {
            return word;
        }
        let mut sites = SITES.lock().unwrap_or_else(PoisonError::into_inner);
        self.register(&mut sites);
        drop(sites);
        let word = Self::word_of(settings::of_process().decision(&self.name()));
        // What the program has decided meanwhile holds.
        let before =
            self.word.compare_exchange(UNDECIDED, word, Ordering::Relaxed, Ordering::Relaxed);
        before.map_or_else(|decided| decided, |_| word)
    }

    /// Counts a call that is timed.
    fn count<T>(&self, since: u64, call: impl FnOnce() -> T) -> T {
        let done = call();
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.sample(since);
        done
    }

    fn sample(&self, since: u64) {
        self.sampled.fetch_add(1, Ordering::Relaxed);
        self.sampled_ticks.fetch_add(ticks().saturating_sub(since), Ordering::Relaxed);
    }

    #[cold]
    #[inline(never)]
    fn enter_slowly(&'static self) -> Entered {
        let decision = self.decision();
        if decision == STAY {
            let until = UNTIL_SAMPLE.get().wrapping_sub(1);
            if until != 0 {
                UNTIL_SAMPLE.set(until);
                return Entered::default();
            }
            let until = fastrand::u32(1..2 * SAMPLE);
            UNTIL_SAMPLE.set(until);
            self.calls.fetch_add(DRAWN.replace(until).into(), Ordering::Relaxed);
            return Entered { since: ticks(), has_moved: false };
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
        Entered { since: ticks(), has_moved: self.depart() }
    }

    #[cold]
    #[inline(never)]
    fn exit_slowly(&'static self, entered: Entered) {
        if entered.has_moved {
            come_home();
        }
        self.sample(entered.since);
    }

    /// Moves the thread to a dedicated core; whether it was this that moved it.
    fn depart(&self) -> bool {
        let Some(cores) = dedicated() else { return false };
        let depart = |trip: &RefCell<Option<Trip>>| {
            // Taken by a signal's handler in the middle of this: it stays.
            let Ok(mut trip) = trip.try_borrow_mut() else { return false };
            let recurs = ticks().saturating_sub(LEFT.get()) < minimum_stay(cores);
            if let Some(trip) = trip.as_mut() {
                // Nested, or the thread is where the last region has left it.
                trip.recurs &= recurs || !trip.lingers;
                return std::mem::take(&mut trip.lingers);
            }
            let Ok(journey) = cores.depart() else { return false };
            if journey.land(journey.slot() % cores.len()).is_none() {
                return false;
            }
            *trip = Some(Trip { recurs, lingers: false, journey });
            true
        };
        TRIP.try_with(depart).unwrap_or(false)
    }
}

/// Brings the calling thread home, unless regions recur so quickly that it had better stay.
fn come_home() {
    LEFT.set(ticks());
    let _ = TRIP.try_with(|trip| {
        let trip = trip.try_borrow_mut().ok().and_then(|mut trip| {
            match trip.as_mut() {
                Some(trip) if trip.recurs => trip.lingers = true,
                _ => return trip.take(),
            }
            None
        });
        // Not while the cell is borrowed: the thread's own code goes on meanwhile.
        drop(trip);
    });
}

/// How soon after a region the next one must begin for the thread to stay in between (ticks): as long as going home and coming
/// back takes, measured once.
fn minimum_stay(cores: &'static Cores) -> u64 {
    static MEASURED: OnceLock<u64> = OnceLock::new();
    const TRIES: usize = 15;
    *MEASURED.get_or_init(|| {
        let mut took = [0; TRIES];
        for one in &mut took {
            let begin = ticks();
            cores.borrow(|| ());
            *one = ticks().saturating_sub(begin);
        }
        took.sort_unstable();
        took[TRIES / 2]
    })
}

/// The time-stamp counter.
fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has it, and Linux lets programs read it unless they ask not to.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Ticks of the time-stamp counter in a nanosecond, measured once for a millisecond.
#[must_use]
pub fn ticks_per_ns() -> f64 {
    static MEASURED: OnceLock<f64> = OnceLock::new();
    *MEASURED.get_or_init(|| {
        let (begin, since) = (Instant::now(), ticks());
        while begin.elapsed() < Duration::from_millis(1) {
            std::hint::spin_loop();
        }
        ticks().saturating_sub(since) as f64 / begin.elapsed().as_nanos() as f64
    })
}

/// All sites that were entered, or decided for, so far.
#[must_use]
pub fn sites() -> Vec<&'static Site> {
    SITES.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The process's dedicated cores, as the environment names them; `None` where there are none.
fn dedicated() -> Option<&'static Cores> {
    static CORES: OnceLock<Option<Cores>> = OnceLock::new();
    CORES.get_or_init(|| settings::of_process().start()).as_ref()
}

/// The [`Site`] at this place of the source, entered: `let _region = region!("parse");`. Without a name it is called by file and line.
#[macro_export]
macro_rules! region {
    () => {
        $crate::region!("")
    };
    ($name:expr) => {{
        static SITE: $crate::Site = $crate::Site::new($name, file!(), line!());
        SITE.region()
    }};
}
