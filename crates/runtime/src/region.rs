//! Regions: stretches of code that a program has marked, and the decision for each where it runs.
//!
//! A [`Site`] is where a region begins in the source. It holds one word, the decision, which is read with one relaxed load; so
//! whoever decides only writes words, and programs neither ask nor wait. Where a server decides rather than the environment (see
//! [`crate::Settings`]), that word says so, and the server's lies in memory that it shares with the process.

use std::borrow::Cow;
use std::ffi::c_char;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use dimmer_protocol::{ticks, ticks_per_ns};

use crate::clock::chain;
use crate::errno::KeepErrno;
use crate::settings::{self, Decision};
use crate::trip::{self, dedicated};
use crate::{sample, served};

/// Nobody has decided yet.
const UNDECIDED: u32 = 0;
const STAY: u32 = 1;
const OFFLOAD: u32 = 2;
const BORROW: u32 = 3;
/// A server decides: [`Site::served`].
const SERVED: u32 = 4;

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
    /// Its source file.
    file: *const c_char,
    /// Bytes in the name.
    name_length: u32,
    /// Bytes in the file's name.
    file_length: u32,
    /// Where the server's decision is, where one decides.
    served: AtomicUsize,
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

/// What a site has seen. Calls are estimated from samples: one in 256 on average where they are frequent, all where they are rare.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SiteStatistics {
    /// Entries so far, estimated.
    pub calls: u64,
    /// Mean time in the region (ns), of the sampled entries; `None` before the first.
    pub mean_ns: Option<f64>,
}

/// The sites that were ever entered or decided for.
static SITES: Mutex<Vec<&'static Site>> = Mutex::new(Vec::new());

/// How a region was entered, for its exit. All zero: nothing is to be done there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Entered {
    /// When it began (ticks of the time-stamp counter), if it is looked at; else 0.
    since: u64,
    /// Whether this has moved the thread.
    has_moved: bool,
    /// How long a chain of multiplications took right before it (ticks), if the clock is told; else 0.
    chain_ticks: u32,
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
            file: file.as_ptr().cast(),
            name_length: length(name),
            file_length: length(file),
            served: AtomicUsize::new(0),
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
            unsafe { text(self.name, self.name_length as usize) }.into_owned()
        }
    }

    /// Where it stands: file and line.
    #[must_use]
    pub fn place(&self) -> (Cow<'static, str>, u32) {
        // SAFETY: the site's own text.
        (unsafe { text(self.file, self.file_length as usize) }, self.line)
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
        if self.stays() && sample::passes() { Entered::default() } else { self.enter_slowly() }
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
        let since = ticks();
        self.count(1);
        let done = cores.offload(work);
        self.note_moved(since);
        done
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

    /// Whether it was decided that its regions stay.
    #[inline]
    fn stays(&self) -> bool {
        match self.word.load(Ordering::Relaxed) {
            STAY => true,
            SERVED => self.served_word() == dimmer_protocol::STAY,
            _ => false,
        }
    }

    /// What a server has decided.
    #[inline]
    fn served_word(&self) -> u32 {
        self.server().map_or(dimmer_protocol::STAY, |word| word.load(Ordering::Relaxed))
    }

    /// The decision; the first time, what the environment says.
    fn decision(&'static self) -> u32 {
        let word = match self.word.load(Ordering::Relaxed) {
            UNDECIDED => self.first_decision(),
            word => word,
        };
        if word != SERVED {
            return word;
        }
        let now = ticks();
        served::tend(now);
        let moved = match self.served_word() {
            dimmer_protocol::OFFLOAD => OFFLOAD,
            dimmer_protocol::BORROW => BORROW,
            _ => return STAY,
        };
        if trip::follow(served::dedicated(now)) { moved } else { STAY }
    }

    #[cold]
    fn first_decision(&'static self) -> u32 {
        // Another thread decides about another site; or did when the process was forked, or the handler that this is in
        // came. It is decided later then.
        let Some(mut sites) = try_sites() else { return STAY };
        self.register(&mut sites);
        let word = match settings::of_process().decision(&self.name()) {
            Some(decision) => Self::word_of(decision),
            // Without room for more of them it stays for good.
            None if !self.is_served() => STAY,
            None => SERVED,
        };
        drop(sites);
        // What the program has decided meanwhile holds.
        let before =
            self.word.compare_exchange(UNDECIDED, word, Ordering::Relaxed, Ordering::Relaxed);
        before.map_or_else(|decided| decided, |_| word)
    }

    /// Whether it is among those that a server may decide for, from now on. One site at a time.
    fn is_served(&self) -> bool {
        if self.server().is_none() {
            let Some(word) = served::add(&self.name(), self.line) else { return false };
            self.served.store(std::ptr::from_ref(word).expose_provenance(), Ordering::Relaxed);
        }
        true
    }

    /// Where the server's decision is.
    #[inline]
    fn server(&self) -> Option<&'static AtomicU32> {
        let word =
            std::ptr::with_exposed_provenance::<AtomicU32>(self.served.load(Ordering::Relaxed));
        // SAFETY: null, or in memory that stays.
        unsafe { word.as_ref() }
    }

    /// What a server sees of it.
    fn sums(&self) -> Option<&'static dimmer_protocol::Site> {
        served::sums(self.server()?)
    }

    fn count(&self, calls: u64) {
        self.calls.fetch_add(calls, Ordering::Relaxed);
        if let Some(sums) = self.sums() {
            sums.add_calls(calls);
        }
    }

    fn note(&self, took: u64) {
        self.sampled.fetch_add(1, Ordering::Relaxed);
        self.sampled_ticks.fetch_add(took, Ordering::Relaxed);
    }

    fn note_moved(&self, since: u64) {
        let took = ticks().saturating_sub(since);
        self.note(took);
        if let Some(sums) = self.sums() {
            sums.add_moved(took);
        }
    }

    #[cold]
    #[inline(never)]
    fn enter_slowly(&'static self) -> Entered {
        let _errno = KeepErrno::new();
        if self.decision() == STAY {
            if sample::passes() {
                return Entered::default();
            }
            self.count(sample::draw(ticks()).into());
            let tells_clock = self.sums().is_some() && sample::is_clocked();
            let chain_ticks = if tells_clock { narrow(chain()) } else { 0 };
            return Entered { since: ticks(), has_moved: false, chain_ticks };
        }
        self.count(1);
        let since = ticks();
        Entered { since, has_moved: trip::leave_for_region(since), chain_ticks: 0 }
    }

    #[cold]
    #[inline(never)]
    fn exit_slowly(&'static self, entered: Entered) {
        let _errno = KeepErrno::new();
        if entered.has_moved {
            trip::come_home_from_region(ticks(), settings::of_process().minimum_stay());
            return self.note_moved(entered.since);
        }
        let took = ticks().saturating_sub(entered.since);
        let after = if entered.chain_ticks > 0 { chain() } else { 0 };
        self.note(took);
        if let Some(sums) = self.sums() {
            sums.add_stayed(took);
            if after > 0 {
                sums.add_clock(entered.chain_ticks.into(), after);
            }
        }
    }
}

/// The sites, if nobody else is at them: while this is held none is added.
pub(crate) fn try_sites() -> Option<MutexGuard<'static, Vec<&'static Site>>> {
    match SITES.try_lock() {
        Ok(sites) => Some(sites),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// A text's length; sources have no longer ones.
#[expect(clippy::cast_possible_truncation, reason = "sources have no texts of 4 GB")]
const fn length(text: &str) -> u32 {
    text.len() as u32
}

/// Ticks in 32 bits.
fn narrow(ticks: u64) -> u32 {
    ticks.try_into().unwrap_or(u32::MAX)
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
