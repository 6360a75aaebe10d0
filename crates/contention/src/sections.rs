//! Sections of code that begin and end with functions: from a call of one function to its return,
//! or from the return of a first function to the next call of a last one by the same thread. So a
//! lock is seen that is none of the C library's, such as a flag under a mutex (paper 002, section
//! 5.1).
//!
//! Hooks report calls and their ends. They report none while they report another one. A signal
//! handler that interrupts this library elsewhere, as when a thread ends, takes a lock or leaves a
//! call, does not change what is kept here for its thread: its calls are not seen, and count as
//! those whose end is not. A call is identified by the stack pointer before it.
//!
//! - Of a function that calls itself, the outermost call counts.
//! - If the first function returns again before the last one is called, the section begins again
//!   then: what was before is not counted.
//! - A call that begins as far up the stack as one under way, or further, has taken its place: that
//!   one was left by a jump (longjmp). It is not counted.
//! - A call that an exception leaves, or the end of the thread, ends there. A first function that
//!   is left so has begun no section. A section that its thread ends in does not count.
//! - A child of fork begins outside of all sections.

use std::ffi::OsStr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::ledger::{Kind, Site};
use crate::requests::KEYS_WITHOUT_ALLOCATION;
use crate::stop::{self, ticks};
use crate::{held, own, requests};

/// Maximum number of sections of a run. A guess: users name some few.
pub const MOST: usize = 16;

/// How the end of a call is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It is not.
    Unseen,
    /// By [`returned`] or [`left`].
    Seen,
    /// So is that of another call, from which this function was reached by a jump: both end there.
    Joint,
}

/// A section, by the numbers of functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Section {
    first: u32,
    /// `None`: it ends when `first` returns.
    last: Option<u32>,
}

impl Section {
    const fn kind(self) -> Kind {
        if self.last.is_some() { Kind::Section } else { Kind::Function }
    }

    /// As a word that is not zero: one more than `first` in the lower half, and one more than
    /// `last`, or zero, in the upper one.
    const fn packed(self) -> u64 {
        let last = match self.last {
            Some(last) => last as u64 + 1,
            None => 0,
        };
        last << 32 | (self.first as u64 + 1)
    }

    fn unpacked(word: u64) -> Option<Self> {
        let half = |half: u64| u32::try_from((half & 0xffff_ffff).checked_sub(1)?).ok();
        Some(Self { first: half(word)?, last: half(word >> 32) })
    }

    /// Parses `FIRST` or `FIRST-LAST`.
    fn parse(text: &str) -> Option<Self> {
        let (first, last) = text.split_once('-').map_or((text, None), |(a, b)| (a, Some(b)));
        Some(Self { first: first.parse().ok()?, last: last.map(str::parse).transpose().ok()? })
    }
}

/// The sections of this process; zero from the first that there is not.
static SECTIONS: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];

/// Which threads are in a section, as far as that matters to others: each by the address of what is
/// kept for it. A thread that ends in it stays until the next one comes.
#[derive(Debug)]
#[repr(align(64))]
struct Threads {
    /// The last one that has entered, until it leaves; 0 then.
    inside: AtomicUsize,
    /// How many found another one inside and have not entered yet.
    waits: AtomicUsize,
}

static THREADS: [Threads; MOST] =
    [const { Threads { inside: AtomicUsize::new(0), waits: AtomicUsize::new(0) } }; MOST];

/// What is kept for a thread.
#[repr(C)]
struct Own {
    calls: [Call; MOST],
    /// Whether [`thread_ends`] is called at its end.
    is_known: AtomicBool,
}

/// The outermost call under way of a section's first function.
#[repr(C)]
struct Call {
    /// The stack pointer before it; 0 if there is none.
    stack: AtomicUsize,
    /// Since when (ticks).
    since: AtomicU64,
    /// When the thread was last in the section (ticks); 0 if it has not been yet.
    outside_since: AtomicU64,
    /// Whether another thread was inside when it began: the thread is one of those that wait.
    was_taken: AtomicBool,
}

dimmer_runtime::of_thread! {
    /// What is kept for the calling thread.
    fn of_thread() -> Own, "dimmer_contention_sections";
}

/// The text for the environment: the numbers of each section's first and last function. Without a
/// last one, it ends when the first one returns.
#[must_use]
pub fn text(sections: &[(usize, Option<usize>)]) -> String {
    let words = sections.iter().map(|(first, last)| match last {
        Some(last) => format!("{first}-{last}"),
        None => first.to_string(),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The C library's key whose destructor is called at the end of a thread.
static KEY: AtomicU32 = AtomicU32::new(0);

/// Takes the sections of the environment. Called once, before the process has threads, and after
/// [`crate::requests::begin`]: then clocks are given back first at the end of a thread. Allocates
/// nothing.
pub fn begin(text: &OsStr) {
    let mut key = 0;
    // SAFETY: `key` lives until the call returns; the function may be called in any thread.
    let made = unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ends)) };
    if made != 0 || key >= KEYS_WITHOUT_ALLOCATION {
        return;
    }
    KEY.store(key, Ordering::Relaxed);
    let words = text.to_str().unwrap_or_default().split(' ');
    for (place, section) in SECTIONS.iter().zip(words.map_while(Section::parse)) {
        // Relaxed: there is one thread.
        place.store(section.packed(), Ordering::Relaxed);
    }
}

/// The calling thread calls a function. Returns whether the end of the call is wanted.
#[must_use]
pub fn called(function: u32, stack: usize, end: End) -> bool {
    !has_stopped() && called_at(ticks(), function, stack, end, of_run(), own::site)
}

/// A call that the calling thread has made returns.
pub fn returned(stack: usize) {
    if !has_stopped() {
        returned_at(ticks(), stack, of_run(), own::site);
    }
}

/// Such a call is left, for an exception or the end of the thread.
pub fn left(stack: usize) {
    if !has_stopped() {
        left_at(ticks(), stack, of_run(), own::site);
    }
}

/// Whether the process has stopped. If so, the calling thread requests nothing from now on.
fn has_stopped() -> bool {
    let has = stop::has_stopped();
    if has {
        requests::end_own();
    }
    has
}

/// The calling thread ends. Calls that are under way then have no other end: no unwinder leaves the
/// function that the thread was started with.
unsafe extern "C" fn thread_ends(_: *mut libc::c_void) {
    let _busy = held::Busy::begin();
    for (call, threads) in of_thread().calls.iter().zip(&THREADS) {
        let stack = call.stack.load(Ordering::Relaxed);
        if stack != 0 && !has_stopped() {
            left_at(ticks(), stack, of_run(), own::site);
        }
        clear_own(&threads.inside);
    }
    of_thread().is_known.store(false, Ordering::Relaxed);
}

/// The calling thread is the only one of a new process.
pub(crate) fn forget() {
    for call in &of_thread().calls {
        call.stack.store(0, Ordering::Relaxed);
        call.outside_since.store(0, Ordering::Relaxed);
        call.was_taken.store(false, Ordering::Relaxed);
    }
    for threads in &THREADS {
        threads.inside.store(0, Ordering::Relaxed);
        threads.waits.store(0, Ordering::Relaxed);
    }
}

/// The sections, in order.
fn of_run() -> impl Iterator<Item = Section> + Clone {
    SECTIONS.iter().map_while(|word| Section::unpacked(word.load(Ordering::Relaxed)))
}

/// What stands for the lock that the section of this number is: no lock has an odd address.
const fn lock(number: usize) -> usize {
    2 * number + 1
}

/// The number that stands for the calling thread.
fn own_number() -> usize {
    std::ptr::from_ref(of_thread()).addr()
}

/// Finds the site of a section by its number.
type Sites = fn(usize, Kind) -> Option<&'static Site>;

fn called_at(
    now: u64,
    function: u32,
    stack: usize,
    end: End,
    sections: impl Iterator<Item = Section> + Clone,
    site: Sites,
) -> bool {
    if held::is_busy() {
        own::count_unended();
        return false;
    }
    // All that it ends, before any that it begins.
    for (number, section) in sections.clone().enumerate().take(MOST) {
        if section.last == Some(function) {
            leave(number, now);
        }
    }
    let mut is_wanted = false;
    for (number, section) in sections.enumerate().take(MOST) {
        if section.first == function {
            is_wanted |= enter(number, section, (now, stack, end), site);
        }
    }
    is_wanted
}

/// The calling thread calls the first function of a section. Returns whether the end of the call is
/// wanted.
fn enter(number: usize, section: Section, call: (u64, usize, End), site: Sites) -> bool {
    let (now, stack, end) = call;
    let under_way = &of_thread().calls[number];
    let outer = under_way.stack.load(Ordering::Relaxed);
    if outer > stack || outer == stack && end == End::Joint {
        return false;
    }
    let Some(site) = site(number, section.kind()) else { return false };
    if end == End::Unseen {
        own::count_unended();
        return false;
    }
    // One that a jump has left waits no more.
    waits_no_more(number);
    under_way.stack.store(stack, Ordering::Relaxed);
    if !of_thread().is_known.swap(true, Ordering::Relaxed) {
        // SAFETY: the key is the library's own, and its value is no address that is used.
        let _ = unsafe {
            libc::pthread_setspecific(KEY.load(Ordering::Relaxed), std::ptr::without_provenance(1))
        };
    }
    if section.last.is_none() {
        site.acquired(None);
        begin_again(number, site, now);
        return true;
    }
    let since = under_way.outside_since.swap(0, Ordering::Relaxed);
    if since != 0 {
        site.was_outside(now.saturating_sub(since));
    }
    under_way.since.store(now, Ordering::Relaxed);
    let threads = &THREADS[number];
    let inside = threads.inside.load(Ordering::Relaxed);
    let was_taken = inside != 0 && inside != own_number();
    if was_taken {
        under_way.was_taken.store(true, Ordering::Relaxed);
        threads.waits.fetch_add(1, Ordering::Relaxed);
        held::waits(site);
    }
    true
}

/// The calling thread is in a section from now on; if it was before, that does not count.
fn begin_again(number: usize, site: &'static Site, now: u64) {
    held::drop_uncounted(lock(number));
    held::begin(lock(number), site, now, true);
}

/// The calling thread calls the last function of a section.
fn leave(number: usize, now: u64) {
    if !held::is_held(lock(number)) {
        return;
    }
    let threads = &THREADS[number];
    clear_own(&threads.inside);
    let call = &of_thread().calls[number];
    let own = usize::from(call.was_taken.load(Ordering::Relaxed));
    held::end(lock(number), now, threads.waits.load(Ordering::Relaxed) > own);
    call.outside_since.store(now, Ordering::Relaxed);
}

/// The calling thread does not wait for a section any more. Returns whether it did.
fn waits_no_more(number: usize) -> bool {
    let did = of_thread().calls[number].was_taken.swap(false, Ordering::Relaxed);
    if did {
        THREADS[number].waits.fetch_sub(1, Ordering::Relaxed);
    }
    did
}

/// Makes a word zero that stands for the calling thread.
fn clear_own(word: &AtomicUsize) {
    // Another thread may have taken its place meanwhile.
    let _ = word.compare_exchange(own_number(), 0, Ordering::Relaxed, Ordering::Relaxed);
}

/// The sections whose first function's call at this place of the stack has ended, with their sites.
/// No call is there any more.
fn ended(
    stack: usize,
    sections: impl Iterator<Item = Section>,
    site: Sites,
) -> impl Iterator<Item = (usize, Section, &'static Site)> {
    let all = sections.enumerate().take(MOST);
    all.filter_map(move |(number, section)| {
        let place = &of_thread().calls[number].stack;
        if stack == 0 || place.load(Ordering::Relaxed) != stack {
            return None;
        }
        place.store(0, Ordering::Relaxed);
        Some((number, section, site(number, section.kind())?))
    })
}

fn returned_at(now: u64, stack: usize, sections: impl Iterator<Item = Section>, site: Sites) {
    for (number, section, site) in ended(stack, sections, site) {
        if section.last.is_none() {
            held::end(lock(number), now, false);
            continue;
        }
        let (call, threads) = (&of_thread().calls[number], &THREADS[number]);
        let waited = now.saturating_sub(call.since.load(Ordering::Relaxed));
        let had_to_wait = waits_no_more(number);
        threads.inside.store(own_number(), Ordering::Relaxed);
        site.entered(waited, had_to_wait);
        begin_again(number, site, now);
    }
}

fn left_at(now: u64, stack: usize, sections: impl Iterator<Item = Section>, site: Sites) {
    let _busy = held::Busy::begin();
    for (number, section, site) in ended(stack, sections, site) {
        if section.last.is_none() {
            held::end(lock(number), now, false);
        } else {
            waits_no_more(number);
            held::has_given_up(site);
        }
    }
}

#[cfg(test)]
mod tests;
