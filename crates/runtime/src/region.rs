//! Regions: stretches of code that a program has marked, and the decision for each where it runs.
//!
//! A [`Site`] is where a region begins in the source. It holds one word, the decision, which is read with one relaxed load; so
//! whoever decides (today the environment, see [`crate::Settings`]) only writes words, and programs neither ask nor wait.

use std::borrow::Cow;
use std::cell::Cell;
use std::ffi::c_char;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::errno::KeepErrno;
use crate::settings::{self, Decision};
use crate::trip::{self, dedicated};

/// Nobody has decided yet.
const UNDECIDED: u32 = 0;
const STAY: u32 = 1;
const OFFLOAD: u32 = 2;
const BORROW: u32 = 3;

/// One entry in so many, on average, is looked at more closely.
const SAMPLE: u32 = 256;

/// A place in a program where a region begins: a static variable of its own, whose address must stay valid until the process
/// ends. Other languages lay it out themselves, all zero but for line and texts.
#[derive(Debug)]
#[repr(C)]
pub struct Site {
    /// The decision. 0: nobody has entered it yet.
    word: AtomicU32,
    /// Where it stands in its file, from 1.
    line: u32,
    /// Its name. Empty: it is called `FILE:LINE`.
    name: *const c_char,
    /// Bytes in the name.
    name_length: usize,
    /// Its source file.
    file: *const c_char,
    /// Bytes in the file's name.
    file_length: usize,
    /// Entries so far, estimated from those that were looked at.
    calls: AtomicU64,
    /// How many were looked at.
    sampled: AtomicU64,
    /// How long those took, in ticks of the time-stamp counter.
    sampled_ticks: AtomicU64,
}

// SAFETY: what is not atomic never changes, and the texts are as static as the site.
unsafe impl Send for Site {}

// SAFETY: as above.
unsafe impl Sync for Site {}

// What other languages write down; `DIMMER_SITE` in the C header counts on it.
const _: () = assert!(size_of::<Site>() == 64 && std::mem::offset_of!(Site, word) == 0);

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
}

/// How a region was entered, for its exit. All zero: nothing is to be done there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Entered {
    /// When it began (ticks of the time-stamp counter), if it is looked at; else 0.
    since: u64,
    /// Whether this has moved the thread.
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
            word: AtomicU32::new(UNDECIDED),
            line,
            name: name.as_ptr().cast(),
            name_length: name.len(),
            file: file.as_ptr().cast(),
            file_length: file.len(),
            calls: AtomicU64::new(0),
            sampled: AtomicU64::new(0),
            sampled_ticks: AtomicU64::new(0),
        }
    }

    /// Its name; without one of its own, `FILE:LINE`.
    #[must_use]
    pub fn name(&self) -> String {
        if self.name_length == 0 {
            format!("{}:{}", self.place().0, self.line)
        } else {
            // SAFETY: the site's own text.
            unsafe { text(self.name, self.name_length) }.into_owned()
        }
    }

    /// Where it stands: file and line.
    #[must_use]
    pub fn place(&self) -> (Cow<'static, str>, u32) {
        // SAFETY: the site's own text.
        (unsafe { text(self.file, self.file_length) }, self.line)
    }

    /// Begins a region that ends where the result is dropped. Regions may be nested; within one that has moved the thread, others
    /// stay where it is. One that stays costs some nanoseconds, both ends together.
    #[inline]
    pub fn region(&'static self) -> Region {
        Region { site: self, entered: self.enter(), not_send: PhantomData }
    }

    /// Begins a region that [`Site::exit`] ends on the same thread. Neither changes `errno`.
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
        let _errno = KeepErrno::new();
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
        Entered { since: ticks(), has_moved: trip::leave_home() }
    }

    #[cold]
    #[inline(never)]
    fn exit_slowly(&'static self, entered: Entered) {
        let _errno = KeepErrno::new();
        if entered.has_moved {
            trip::come_home();
        }
        self.sample(entered.since);
    }
}

/// A site's text. Other languages need not write UTF-8.
///
/// # Safety
/// So many bytes from there on never change.
unsafe fn text(start: *const c_char, length: usize) -> Cow<'static, str> {
    // SAFETY: as the caller says.
    let bytes = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), length) };
    String::from_utf8_lossy(bytes)
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
