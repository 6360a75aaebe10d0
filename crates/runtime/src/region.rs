//! Regions: stretches of code that a program has marked, and the decision for each where it runs.
//!
//! A [`Site`] is where a region begins in the source. It holds one word, the decision, which is
//! read with one relaxed load; so whoever decides only writes words, and programs neither ask nor
//! wait. Where a server decides rather than the environment (see [`crate::Settings`]), that word
//! says so, and the server's lies in memory that it shares with the process.

use std::borrow::Cow;
use std::ffi::c_char;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use dimmer_protocol::{NAME_BYTES, ticks, ticks_per_ns};

use crate::clock::chain;
use crate::errno::KeepErrno;
use crate::settings::{self, Decision, Settings};
use crate::thread::Inside;
use crate::trip::{self, dedicated};
use crate::{prepare, sample, served};

/// Nobody has decided yet.
const UNDECIDED: u32 = 0;
const STAY: u32 = 1;
const OFFLOAD: u32 = 2;
const BORROW: u32 = 3;
/// A server decides: [`Site::served`].
const SERVED: u32 = 4;

/// A place in a program where a region begins: a static variable of its own, whose address must
/// stay valid until the process ends. Other languages lay it out themselves, all zero but for line
/// and texts.
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

/// What a site has seen. Calls are estimated from samples: one in 256 on average where they are
/// frequent, all where they are rare.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SiteStatistics {
    /// Entries so far, estimated.
    pub calls: u64,
    /// Mean time in the region (ns), of the sampled entries; `None` before the first.
    pub mean_ns: Option<f64>,
}

/// More sites than this run as others do, and are not told of.
const MOST: usize = 1 << 14;

/// The sites that were ever entered or decided for, and how many they are. Only added to, by who is
/// [`Adding`].
static SITES: [AtomicPtr<Site>; MOST] = [const { AtomicPtr::new(std::ptr::null_mut()) }; MOST];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether somebody adds sites.
static IS_ADDING: AtomicBool = AtomicBool::new(false);

/// One at a time adds sites, or changes where they are told of. Nobody waits for that on the way
/// into a region.
#[derive(Debug)]
pub(crate) struct Adding(());

impl Adding {
    /// `None` if somebody does already, perhaps what the handler that this is in has interrupted.
    pub(crate) fn begin() -> Option<Self> {
        let is_free = !IS_ADDING.swap(true, Ordering::Acquire);
        is_free.then_some(Self(()))
    }
}

impl Drop for Adding {
    fn drop(&mut self) {
        IS_ADDING.store(false, Ordering::Release);
    }
}

/// To be called in a child of fork(2): whoever added sites was another thread, or goes on with it
/// in the child.
pub(crate) fn forget_others() {
    IS_ADDING.store(false, Ordering::Release);
}

/// How a region was entered, for its exit. All zero: nothing is to be done there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Entered {
    /// When it began (ticks of the time-stamp counter), if it is looked at; else 0.
    since: u64,
    /// Whether this has moved the thread.
    has_moved: bool,
    /// How long a chain of multiplications took right before it (ticks); 0 where the clock is
    /// not told.
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
            String::from_utf8_lossy(self.own_name()).into_owned()
        }
    }

    fn own_name(&self) -> &'static [u8] {
        // SAFETY: the site's own text.
        unsafe { bytes(self.name, self.name_length as usize) }
    }

    fn own_file(&self) -> &'static [u8] {
        // SAFETY: as above.
        unsafe { bytes(self.file, self.file_length as usize) }
    }

    /// Whether that is its name. Allocates nothing.
    pub(crate) fn is_called(&self, name: &[u8]) -> bool {
        if self.name_length > 0 {
            return name == self.own_name();
        }
        let mut digits = [0; DIGITS];
        let line = name.strip_prefix(self.own_file()).and_then(|rest| rest.strip_prefix(b":"));
        line == Some(decimal(self.line, &mut digits))
    }

    /// What is told of its name, which is no longer than there is room for: its end. Allocates
    /// nothing.
    fn told_name<'a>(&self, buffer: &'a mut [u8; NAME_BYTES]) -> &'a [u8] {
        let mut digits = [0; DIGITS];
        let line = decimal(self.line, &mut digits);
        let parts: [&[u8]; 3] = if self.name_length > 0 {
            [self.own_name(), b"", b""]
        } else {
            [self.own_file(), b":", line]
        };
        let mut start = buffer.len();
        for byte in parts.iter().rev().flat_map(|part| part.iter().rev()).take(NAME_BYTES) {
            start -= 1;
            buffer[start] = *byte;
        }
        &buffer[start..]
    }

    /// Where it stands: file and line.
    #[must_use]
    pub fn place(&self) -> (Cow<'static, str>, u32) {
        (String::from_utf8_lossy(self.own_file()), self.line)
    }

    /// Begins a region that ends where the result is dropped. Regions may be nested; within one
    /// that has moved the thread, others stay where it is. One that stays costs some nanoseconds,
    /// both ends together.
    #[inline]
    pub fn region(&'static self) -> Region {
        Region { site: self, entered: self.enter(), not_send: PhantomData }
    }

    /// Begins a region that [`Site::exit`] ends on the same thread. Neither changes `errno`.
    #[inline]
    pub fn enter(&'static self) -> Entered {
        if self.stays() && sample::passes() {
            Entered::default()
        } else {
            self.enter_slowly(prepare::lazily)
        }
    }

    /// As [`Self::enter`], but before [`crate::prepare()`] regions stay where they are: for who is
    /// called by what runs before the process's own begin, as its allocator is by the loader, and
    /// prepares when that has come.
    #[inline]
    pub fn enter_once_prepared(&'static self) -> Entered {
        if self.stays() && sample::passes() {
            Entered::default()
        } else {
            self.enter_slowly(prepare::is_done)
        }
    }

    /// Ends a region.
    #[inline]
    pub fn exit(&'static self, entered: Entered) {
        if entered != Entered::default() {
            self.exit_slowly(entered);
        }
    }

    /// Runs a closure as the decision says: here, on a worker's stack, or on the caller's stack
    /// with a worker.
    pub fn run<T: Send, F: FnOnce() -> T + Send>(&'static self, work: F) -> T {
        self.try_offload(work).unwrap_or_else(|work| {
            let _region = self.region();
            work()
        })
    }

    /// Runs a closure on a worker's stack if the decision says so.
    ///
    /// # Errors
    /// The closure, if it does not, or it cannot be moved: it is to run here in a [`Self::region`].
    pub fn try_offload<T: Send, F: FnOnce() -> T + Send>(&'static self, work: F) -> Result<T, F> {
        let decision = Inside::begin().map(|inside| self.decision(&inside, prepare::lazily));
        let (Some(OFFLOAD), Some(cores)) = (decision, dedicated()) else { return Err(work) };
        let since = ticks();
        let done = cores.try_offload(work)?;
        self.count(1);
        self.note_moved(since);
        Ok(done)
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
        if let Some(_inside) = Inside::begin() {
            // Others take no longer than a system call.
            let adding = std::iter::repeat_with(Adding::begin).find_map(|adding| {
                if adding.is_none() {
                    std::thread::yield_now();
                }
                adding
            });
            let _ = adding.map(|adding| self.register(&adding));
        }
        self.word.store(Self::word_of(decision), Ordering::Relaxed);
    }

    fn word_of(decision: Decision) -> u32 {
        match decision {
            Decision::Stay => STAY,
            Decision::Offload => OFFLOAD,
            Decision::Borrow => BORROW,
        }
    }

    fn register(&'static self, _: &Adding) {
        if known().all(|site| !std::ptr::eq(site, self)) {
            let count = COUNT.load(Ordering::Relaxed);
            if let Some(place) = SITES.get(count) {
                place.store(std::ptr::from_ref(self).cast_mut(), Ordering::Release);
                COUNT.store(count + 1, Ordering::Release);
            }
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

    /// The decision; the first time, what the environment says, if `is_prepared` or can be.
    fn decision(&'static self, inside: &Inside, is_prepared: fn() -> bool) -> u32 {
        let word = match self.word.load(Ordering::Relaxed) {
            UNDECIDED => self.first_decision(is_prepared),
            word => word,
        };
        if word != SERVED {
            return word;
        }
        let now = ticks();
        served::tend(inside, now);
        let moved = match self.served_word() {
            dimmer_protocol::OFFLOAD => OFFLOAD,
            dimmer_protocol::BORROW => BORROW,
            _ => return STAY,
        };
        if trip::follow(inside, served::dedicated(now)) { moved } else { STAY }
    }

    #[cold]
    fn first_decision(&'static self, is_prepared: fn() -> bool) -> u32 {
        if !is_prepared() {
            return STAY;
        }
        // Another thread decides about another site, or what the handler that this is in has
        // interrupted does. It is decided later then.
        let (Some(settings), Some(adding)) = (settings::known(), Adding::begin()) else {
            return STAY;
        };
        self.register(&adding);
        let word = match settings.decision(self) {
            Some(decision) => Self::word_of(decision),
            // Without room for more of them it stays for good.
            None if !self.is_served(&adding) => STAY,
            None => SERVED,
        };
        drop(adding);
        // What the program has decided meanwhile holds.
        let before =
            self.word.compare_exchange(UNDECIDED, word, Ordering::Relaxed, Ordering::Relaxed);
        before.map_or_else(|decided| decided, |_| word)
    }

    /// Whether it is among those that a server may decide for, from now on.
    fn is_served(&self, adding: &Adding) -> bool {
        if self.server().is_none() {
            let mut buffer = [0; NAME_BYTES];
            let name = self.told_name(&mut buffer);
            let Some(word) = served::add(adding, name, self.line) else { return false };
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
    fn enter_slowly(&'static self, is_prepared: fn() -> bool) -> Entered {
        let _errno = KeepErrno::new();
        // In the middle of another entry, or exit, it stays, and is not counted.
        let Some(inside) = Inside::begin() else { return Entered::default() };
        if self.decision(&inside, is_prepared) == STAY {
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
        Entered { since, has_moved: trip::leave_for_region(&inside, since), chain_ticks: 0 }
    }

    #[cold]
    #[inline(never)]
    fn exit_slowly(&'static self, entered: Entered) {
        let _errno = KeepErrno::new();
        if entered.has_moved {
            let minimum_stay = settings::known().map_or(0, Settings::minimum_stay);
            trip::come_home_from_region(ticks(), minimum_stay);
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
unsafe fn bytes(start: *const c_char, length: usize) -> &'static [u8] {
    if length == 0 {
        return &[];
    }
    // SAFETY: as the caller says.
    unsafe { std::slice::from_raw_parts(start.cast::<u8>(), length) }
}

/// As many as a line's number has at most.
const DIGITS: usize = 10;

/// A number's decimal digits.
fn decimal(number: u32, digits: &mut [u8; DIGITS]) -> &[u8] {
    let (mut rest, mut start) = (number, DIGITS);
    loop {
        start -= 1;
        // Below 58.
        digits[start] = b'0' + (rest % 10).to_le_bytes()[0];
        rest /= 10;
        if rest == 0 {
            return &digits[start..];
        }
    }
}

/// The same as [`sites`], one after the other.
fn known() -> impl Iterator<Item = &'static Site> {
    let count = COUNT.load(Ordering::Acquire);
    let places = SITES.iter().take(count).map(|place| place.load(Ordering::Acquire));
    // SAFETY: null, or a site, which is there for good.
    places.filter_map(|site| unsafe { site.as_ref() })
}

/// All sites that were entered, or decided for, so far; 16384 at most.
#[must_use]
pub fn sites() -> Vec<&'static Site> {
    known().collect()
}

/// The [`Site`] at this place of the source, entered: `let _region = region!("parse");`. Without a
/// name it is called by file and line.
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
