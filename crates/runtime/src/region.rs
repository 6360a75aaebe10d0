//! Regions: parts of the code that a program has marked, and the decision for each where it runs.
//!
//! A [`Site`] is the place in the source where a region starts. It holds one word, the decision,
//! which a region reads with one relaxed load. A decision is therefore a write to a word: programs
//! neither ask nor wait. If a server decides, and not the environment (see [`crate::Settings`]),
//! the word marks that, and the server's decision lies in memory that it shares with the process.

use std::borrow::Cow;
use std::ffi::c_char;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use dimmer_protocol::{NAME_BYTES, ticks, ticks_per_ns};

use crate::adding::Adding;
use crate::arch::chain;
use crate::call_migration::{self, dedicated};
use crate::errno::KeepErrno;
use crate::settings::{self, Decision, Settings};
use crate::thread::Inside;
use crate::{prepare, sample, served};

/// There is no decision yet.
const UNDECIDED: u32 = 0;
const STAY: u32 = 1;
const DELEGATE: u32 = 2;
const MIGRATE: u32 = 3;
/// A server decides: [`Site::served`].
const SERVED: u32 = 4;

/// A place in a program where a region starts: a static variable, whose address must stay valid
/// until the process ends. Other languages lay it out themselves: all zero except line and texts.
#[derive(Debug)]
#[repr(C)]
pub struct Site {
    /// The decision. 0: the site was not entered yet.
    word: AtomicU32,
    /// Its line in the file, from 1.
    line: u32,
    /// Its name. Empty: the name is `FILE:LINE`.
    name: *const c_char,
    /// Its source file.
    file: *const c_char,
    /// Length of the name (bytes).
    name_length: u32,
    /// Length of the file's name (bytes).
    file_length: u32,
    /// Address of the server's decision, if a server decides.
    served: AtomicUsize,
    /// Entries so far, estimated from the sampled ones.
    calls: AtomicU64,
    /// Number of sampled entries.
    sampled: AtomicU64,
    /// Total duration of those, in ticks of the time-stamp counter.
    sampled_ticks: AtomicU64,
}

// SAFETY: the fields that are not atomic never change, and the texts are as static as the site.
unsafe impl Send for Site {}

// SAFETY: the fields that are not atomic never change, and the texts are as static as the site.
unsafe impl Sync for Site {}

// The layout that other languages write; `DIMMER_SITE` in the C header relies on it.
const _: () = assert!(size_of::<Site>() == 64 && std::mem::offset_of!(Site, word) == 0);

/// Statistics of a site. Calls are estimated from samples: one in 256 on average where they are
/// frequent, all where they are rare.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SiteStatistics {
    /// Entries so far, estimated.
    pub calls: u64,
    /// Mean time in the region (ns), of the sampled entries; `None` before the first.
    pub mean_ns: Option<f64>,
}

/// Maximum number of listed sites. Further sites run like the others, but are not listed.
const MOST: usize = 1 << 14;

/// The sites that were ever entered or decided for, and their number. Sites are only added, by the
/// owner of [`Adding`].
static SITES: [AtomicPtr<Site>; MOST] = [const { AtomicPtr::new(std::ptr::null_mut()) }; MOST];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// How a region was entered, for its exit. All zero: the exit has nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Entered {
    /// Time of the entry (ticks of the time-stamp counter), if it is measured; otherwise 0.
    since: u64,
    /// Whether this entry has moved the thread.
    has_moved: bool,
    /// Duration of a chain of multiplications right before it (ticks); 0 if the clock is not
    /// measured.
    chain_ticks: u32,
}

/// The calling thread is in a region until this is dropped.
///
/// It ends where it has begun, on the same thread:
///
/// ```compile_fail,E0277
/// let region = dimmer_runtime::region!("parse");
/// std::thread::spawn(move || drop(region));
/// ```
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
    /// A site that was not entered yet.
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

    /// Its name; `FILE:LINE` if it has no name of its own.
    #[must_use]
    pub fn name(&self) -> String {
        if self.name_length == 0 {
            format!("{}:{}", self.place().0, self.line)
        } else {
            String::from_utf8_lossy(self.own_name()).into_owned()
        }
    }

    fn own_name(&self) -> &'static [u8] {
        // SAFETY: the site's own text and its length.
        unsafe { bytes(self.name, self.name_length as usize) }
    }

    fn own_file(&self) -> &'static [u8] {
        // SAFETY: the site's own text and its length.
        unsafe { bytes(self.file, self.file_length as usize) }
    }

    /// Whether the site has that name. Allocates nothing.
    fn is_called(&self, name: &[u8]) -> bool {
        if self.name_length > 0 {
            return name == self.own_name();
        }
        let mut digits = [0; DIGITS];
        let line = name.strip_prefix(self.own_file()).and_then(|rest| rest.strip_prefix(b":"));
        line == Some(decimal(self.line, &mut digits))
    }

    /// The name that is published: the end of the name, if there is no room for all of it.
    /// Allocates nothing.
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

    /// Its position in the source: file and line.
    #[must_use]
    pub fn place(&self) -> (Cow<'static, str>, u32) {
        (String::from_utf8_lossy(self.own_file()), self.line)
    }

    /// Starts a region that ends when the result is dropped. Regions may be nested; within one that
    /// has moved the thread, inner regions do not move it again. A region that stays costs some
    /// nanoseconds, both ends together.
    #[inline]
    pub fn region(&'static self) -> Region {
        Region { site: self, entered: self.enter(), not_send: PhantomData }
    }

    /// Starts a region that [`Site::exit`] ends on the same thread. Neither changes `errno`.
    #[inline]
    pub fn enter(&'static self) -> Entered {
        if self.stays() && sample::passes() {
            Entered::default()
        } else {
            self.enter_slowly(prepare::lazily)
        }
    }

    /// Like [`Self::enter`], but before [`crate::prepare()`] regions stay where they are. For code
    /// that may run before the process's own start, such as an allocator that the loader calls.
    /// That code calls [`crate::prepare()`] once the process has started.
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

    /// Runs a closure where the decision says: here, on a worker's stack, or on the caller's own
    /// stack on a worker.
    ///
    /// ```
    /// use dimmer_runtime::Site;
    ///
    /// static PARSE: Site = Site::new("parse", file!(), line!());
    /// assert_eq!(PARSE.run(|| "12".parse()), Ok(12));
    /// ```
    pub fn run<T: Send, F: FnOnce() -> T + Send>(&'static self, work: F) -> T {
        self.try_delegate(work).unwrap_or_else(|work| {
            let _region = self.region();
            work()
        })
    }

    /// Runs a closure on a worker's stack if that is the decision.
    ///
    /// # Errors
    /// The closure, if the decision is another, or it cannot be moved: the caller runs it in a
    /// [`Self::region`].
    pub fn try_delegate<T: Send, F: FnOnce() -> T + Send>(&'static self, work: F) -> Result<T, F> {
        let decision = Inside::begin().map(|inside| self.decision(&inside, prepare::lazily));
        let (Some(DELEGATE), Some(cores)) = (decision, dedicated()) else { return Err(work) };
        let since = ticks();
        let done = cores.try_delegate(work)?;
        self.count(1);
        self.note_moved(since);
        Ok(done)
    }

    /// The statistics of its regions so far.
    #[must_use]
    pub fn statistics(&self) -> SiteStatistics {
        let sampled = self.sampled.load(Ordering::Relaxed);
        let ticks = self.sampled_ticks.load(Ordering::Relaxed) as f64;
        SiteStatistics {
            calls: self.calls.load(Ordering::Relaxed),
            mean_ns: (sampled > 0).then(|| ticks / sampled as f64 / ticks_per_ns()),
        }
    }

    /// Sets the decision for this site from now on.
    pub fn decide(&'static self, decision: Decision) {
        if let Some(_inside) = Inside::begin() {
            // Other threads hold it no longer than a system call takes.
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
            Decision::Delegate => DELEGATE,
            Decision::Migrate => MIGRATE,
        }
    }

    fn register(&'static self, _: &Adding) {
        settings::name_entered_by(entered);
        if known().all(|site| !std::ptr::eq(site, self)) {
            let count = COUNT.load(Ordering::Relaxed);
            if let Some(place) = SITES.get(count) {
                // Ordering: both pair with the loads in `known`: a place that counts is filled,
                // with a site whose fields are visible.
                place.store(std::ptr::from_ref(self).cast_mut(), Ordering::Release);
                COUNT.store(count + 1, Ordering::Release);
            }
        }
    }

    /// Whether the decision is that its regions stay.
    #[inline]
    fn stays(&self) -> bool {
        match self.word.load(Ordering::Relaxed) {
            STAY => true,
            SERVED => self.served_word() == dimmer_protocol::STAY,
            _ => false,
        }
    }

    /// The server's decision.
    #[inline]
    fn served_word(&self) -> u32 {
        self.server().map_or(dimmer_protocol::STAY, |word| word.load(Ordering::Relaxed))
    }

    /// The decision. The first time, it comes from the environment, if `is_prepared` returns true.
    fn decision(&'static self, inside: &Inside, is_prepared: fn() -> bool) -> u32 {
        let word = match self.word.load(Ordering::Relaxed) {
            UNDECIDED => self.first_decision(is_prepared),
            word => word,
        };
        if word != SERVED {
            return word;
        }
        let now = ticks();
        if served::tend(inside, now) {
            call_migration::follow(inside, served::dedicated(now));
        }
        let moved = match self.served_word() {
            dimmer_protocol::DELEGATE => DELEGATE,
            dimmer_protocol::MIGRATE => MIGRATE,
            _ => return STAY,
        };
        if call_migration::follow(inside, served::dedicated(now)) { moved } else { STAY }
    }

    #[cold]
    fn first_decision(&'static self, is_prepared: fn() -> bool) -> u32 {
        if !is_prepared() {
            return STAY;
        }
        // Another thread adds a site, or the code that this handler has interrupted does. The
        // decision is made later.
        let (Some(settings), Some(adding)) = (settings::known(), Adding::begin()) else {
            return STAY;
        };
        self.register(&adding);
        let word = match settings.decision(|name| self.is_called(name)) {
            Some(decision) => Self::word_of(decision),
            // Without room for another served site, this one stays permanently.
            None if !self.is_served(&adding) => STAY,
            None => SERVED,
        };
        drop(adding);
        // A decision that the program has made meanwhile takes precedence.
        let before =
            self.word.compare_exchange(UNDECIDED, word, Ordering::Relaxed, Ordering::Relaxed);
        before.map_or_else(|decided| decided, |_| word)
    }

    /// Adds it to the sites that a server may decide for, if it is not among them. Returns whether
    /// it is.
    fn is_served(&self, adding: &Adding) -> bool {
        if self.server().is_none() {
            let mut buffer = [0; NAME_BYTES];
            let name = self.told_name(&mut buffer);
            let Some(word) = served::add(adding, name, self.line) else { return false };
            self.served.store(std::ptr::from_ref(word).expose_provenance(), Ordering::Relaxed);
        }
        true
    }

    /// The server's decision for it.
    #[inline]
    fn server(&self) -> Option<&'static AtomicU32> {
        let word =
            std::ptr::with_exposed_provenance::<AtomicU32>(self.served.load(Ordering::Relaxed));
        // SAFETY: null, or in memory that is never unmapped.
        unsafe { word.as_ref() }
    }

    /// Its statistics that a server reads.
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
        // An entry in the middle of another entry or exit stays, and is not counted.
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
        Entered {
            since,
            has_moved: call_migration::begin_region_migration(&inside, since),
            chain_ticks: 0,
        }
    }

    #[cold]
    #[inline(never)]
    fn exit_slowly(&'static self, entered: Entered) {
        let _errno = KeepErrno::new();
        if entered.has_moved {
            let minimum_stay = settings::known().map_or(0, Settings::minimum_stay);
            call_migration::end_region_migration(ticks(), minimum_stay);
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

/// A text's length; sources have no longer texts.
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
/// The `length` bytes at `start` never change.
unsafe fn bytes(start: *const c_char, length: usize) -> &'static [u8] {
    if length == 0 {
        return &[];
    }
    // SAFETY: the caller guarantees that the bytes never change.
    unsafe { std::slice::from_raw_parts(start.cast::<u8>(), length) }
}

/// Maximum number of digits of a line's number.
const DIGITS: usize = 10;

/// A number's decimal digits.
fn decimal(number: u32, digits: &mut [u8; DIGITS]) -> &[u8] {
    let (mut rest, mut start) = (number, DIGITS);
    loop {
        start -= 1;
        // At most the code of the digit 9, which is below 58.
        digits[start] = b'0' + (rest % 10).to_le_bytes()[0];
        rest /= 10;
        if rest == 0 {
            return &digits[start..];
        }
    }
}

/// The same as [`sites`], as an iterator.
fn known() -> impl Iterator<Item = &'static Site> {
    // Ordering: both loads pair with the stores in `register`.
    let count = COUNT.load(Ordering::Acquire);
    let places = SITES.iter().take(count).map(|place| place.load(Ordering::Acquire));
    // SAFETY: null, or a site, which is never freed.
    places.filter_map(|site| unsafe { site.as_ref() })
}

/// The names of all sites that were entered, or decided for.
fn entered() -> Vec<String> {
    known().map(Site::name).collect()
}

/// All sites that were entered, or decided for, so far; at most 16384.
#[must_use]
pub fn sites() -> Vec<&'static Site> {
    known().collect()
}

/// Enters the [`Site`] at this place of the source. Without a name, it is called by file and line.
///
/// ```
/// fn parse(text: &str) -> Option<u32> {
///     let _region = dimmer_runtime::region!("parse");
///     text.parse().ok()
/// }
/// assert_eq!(parse("12"), Some(12));
/// // Without a server or a policy in the environment, it stays and is counted.
/// let names: Vec<String> = dimmer_runtime::sites().iter().map(|site| site.name()).collect();
/// assert!(names.contains(&String::from("parse")));
/// ```
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_site_without_a_name_is_called_by_file_and_line() {
        let site = Site::new("", "codec.c", 12);
        assert!(site.is_called(b"codec.c:12") && site.name() == "codec.c:12");
        for other in ["codec.c:1", "codec.c:122", "codec.c", "dec.c:12", "codec.c:012"] {
            assert!(!site.is_called(other.as_bytes()), "{other}");
        }
        let named = Site::new("parse", "codec.c", 12);
        assert!(named.is_called(b"parse") && !named.is_called(b"codec.c:12"));
        // A name that ends like a place is that name.
        assert!(!Site::new("", "codec.c:1", 2).is_called(b"codec.c:12"));
    }
}
