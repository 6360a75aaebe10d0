//! Takes hooks out while the process runs: the entries of functions get their own instructions
//! back.
//!
//! The observer orders it by the function's decision ([`TAKE_OUT`]). The next call of the function
//! then comes here on its way to another core, with all of its registers stored, and takes out all
//! hooks for which this was ordered. That call and others that are in stubs already go on there:
//! stubs stay.
//!
//! Other threads run the code meanwhile, so no instruction is written over. The pages of the
//! entries are copied, the copies get the entries' own instructions and the right to be executed,
//! and `mremap` puts them in place of the pages. A thread executes the old page or the new one,
//! which both work: before the kernel maps the new one, no processor has the old one any more, and
//! a thread that needs the page then waits in its page fault. No page is writable and executable,
//! and a refusal of the system leaves the hooks in place.

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::mm::{MapFlags, MprotectFlags, MremapFlags, ProtFlags};

use crate::arch;
use crate::ledger::{SITES, STAY, TAKE_OUT};
use crate::process::PROCESS;
use crate::slots;

const PAGE: usize = 4096;

/// The most pages that are replaced at once.
const MOST_PAGES: usize = 64;

/// An entry over which a jump was put.
#[derive(Debug)]
pub(crate) struct Patched {
    /// The number of the function.
    pub(crate) site: u32,
    /// Address of the jump.
    pub(crate) at: usize,
    /// What was written there.
    pub(crate) patch: Vec<u8>,
    /// What was there before, as long as the patch.
    pub(crate) own: Vec<u8>,
    /// What becomes of it: [`HOOKED`], [`LEAVES`] or [`IS_OUT`].
    state: AtomicU32,
}

/// The jump is there.
const HOOKED: u32 = 0;
/// A thread is taking it out.
const LEAVES: u32 = 1;
/// The entry has its own instructions again.
const IS_OUT: u32 = 2;

/// Entries that were hooked together, sorted by address, and those that were hooked before them.
struct Batch {
    entries: &'static [Patched],
    before: Option<&'static Batch>,
}

/// The entries whose hooks can be taken out, those of the last file first. A list that only grows:
/// no lock, which a child of fork(2) might inherit.
static LAST: AtomicPtr<Batch> = AtomicPtr::new(std::ptr::null_mut());

/// The decisions about functions, by their numbers; null if nothing moves.
static DECISIONS: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// The process in which a thread is taking hooks out; 0 if none is, and another one than this in
/// the child of a fork, which does not have that thread. Nothing here waits for it.
static AT_IT: AtomicU32 = AtomicU32::new(0);

/// From now on, the decisions are at this address, one for each of [`SITES`] functions. They stay
/// mapped until the process ends.
pub(crate) fn begin(decisions: u64) {
    let decisions =
        std::ptr::with_exposed_provenance_mut(usize::try_from(decisions).unwrap_or_default());
    // Ordering: pairs with the load in `decision`: the mapping is there.
    DECISIONS.store(decisions, Ordering::Release);
}

/// Adds the hooked entries of one file. One thread at a time does this: the one that hooks.
pub(crate) fn add(mut entries: Vec<Patched>) {
    entries.sort_unstable_by_key(|entry| entry.at);
    let batch = Box::leak(Box::new(Batch { entries: entries.leak(), before: last() }));
    // Ordering: pairs with the load in `last`: the entries are there.
    LAST.store(batch, Ordering::Release);
}

fn last() -> Option<&'static Batch> {
    // Ordering: pairs with the store in `add`.
    let last = LAST.load(Ordering::Acquire);
    // SAFETY: null, or what `add` has leaked.
    unsafe { last.as_ref() }
}

fn decision(site: u32) -> Option<&'static AtomicU32> {
    // Ordering: pairs with the store in `begin`.
    let decisions = DECISIONS.load(Ordering::Acquire);
    if decisions.is_null() || site as usize >= SITES {
        return None;
    }
    // SAFETY: `begin` was given one for each of these numbers.
    let decision = unsafe { decisions.add(site as usize) };
    // SAFETY: mapped until the process ends, and aligned.
    unsafe { decision.as_ref() }
}

/// Whether the hook of this function, of which a call is under way, is to be taken out, so that the
/// call stays. Then takes it out, and others of the same file for which that was ordered as well.
/// Async-signal-safe; allocates nothing, and waits for nothing.
pub(crate) fn is_ordered(site: u32) -> bool {
    let is_ordered =
        |site| decision(site).is_some_and(|now| now.load(Ordering::Relaxed) == TAKE_OUT);
    if !is_ordered(site) {
        return false;
    }
    let own = PROCESS.load(Ordering::Relaxed);
    // Ordering: pairs with the store below, of another thread.
    if AT_IT.swap(own, Ordering::Acquire) == own {
        return true;
    }
    // Other files may have been unloaded. A file that was loaded again is hooked again.
    let batches = std::iter::successors(last(), |batch| batch.before);
    let mut of_file = batches.map(|batch| batch.entries);
    let of_file = of_file.find(|entries| entries.iter().any(|entry| entry.site == site));
    let entries = of_file.unwrap_or_default();
    for entry in entries.iter().filter(|entry| is_ordered(entry.site)) {
        let _ = entry.state.compare_exchange(HOOKED, LEAVES, Ordering::Relaxed, Ordering::Relaxed);
    }
    if !slots::is_restricted() {
        take_out(entries);
    }
    // The system refused, or the program has changed the entry: it stays hooked for good.
    for entry in entries.iter().filter(|entry| entry.leaves()) {
        entry.state.store(HOOKED, Ordering::Relaxed);
        decision(entry.site).iter().for_each(|now| now.store(STAY, Ordering::Relaxed));
    }
    // Ordering: pairs with the swap above.
    AT_IT.store(0, Ordering::Release);
    true
}

impl Patched {
    /// Notes that `patch` was written to `at` in place of `own`, in the function with this number.
    pub(crate) fn new(site: u32, at: usize, patch: Vec<u8>, own: Vec<u8>) -> Self {
        Self { site, at, patch, own, state: AtomicU32::new(HOOKED) }
    }

    fn leaves(&self) -> bool {
        self.state.load(Ordering::Relaxed) == LEAVES
    }

    /// The pages of the patch: the first, and the one behind the last.
    fn pages(&self) -> (usize, usize) {
        let page = |address: usize| address & !(PAGE - 1);
        (page(self.at), page(self.at + self.patch.len() - 1) + PAGE)
    }
}

/// Takes out the hooks of the entries that leave, of all of these, sorted by address.
fn take_out(entries: &[Patched]) {
    let mut rest = entries;
    while let Some(next) = rest.iter().position(Patched::leaves) {
        rest = &rest[next..];
        // A run of pages without a hole.
        let (start, mut end) = rest[0].pages();
        let mut number = 1;
        for entry in &rest[1..] {
            let (first, behind) = entry.pages();
            if entry.leaves() {
                if first > end || behind - start > MOST_PAGES * PAGE {
                    break;
                }
                end = end.max(behind);
            }
            number += 1;
        }
        let (run, after) = rest.split_at(number);
        rest = after;
        // If the system refuses that, the entries still leave afterwards.
        let _ = replace(start, end - start, run);
    }
}

/// Puts copies of pages in their place in which the entries that leave have their own instructions.
///
/// # Errors
/// If the system refuses that. Nothing has changed then.
fn replace(start: usize, length: usize, entries: &[Patched]) -> rustix::io::Result<()> {
    let anywhere = std::ptr::null_mut();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let copy = unsafe { rustix::mm::mmap_anonymous(anywhere, length, access, MapFlags::PRIVATE) }?;
    let live = std::ptr::with_exposed_provenance::<u8>(start);
    // SAFETY: pages between hooked entries of a file that is loaded, since a call of it is under
    // way.
    let live = unsafe { std::slice::from_raw_parts(live, length) };
    // SAFETY: the copy is as long, and this function's own.
    unsafe { arch::copy(live, copy.cast()) };
    let is_own = |entry: &&Patched| {
        let at = entry.at - start;
        entry.leaves() && live.get(at..at + entry.patch.len()) == Some(&entry.patch[..])
    };
    for entry in entries.iter().filter(is_own) {
        // SAFETY: within the copy, as the patch is within the pages.
        let to = unsafe { copy.cast::<u8>().add(entry.at - start) };
        // SAFETY: within the copy, as what was there before is as long as the patch.
        unsafe { arch::copy(&entry.own, to) };
    }
    let executable = MprotectFlags::READ | MprotectFlags::EXEC;
    let to = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: the copy is this function's own. In place of the pages it does what they do, for each
    // thread that executes them.
    let exchange =
        || unsafe { rustix::mm::mremap_fixed(copy, length, length, MremapFlags::MAYMOVE, to) };
    // SAFETY: the copy is this function's own.
    let sealed = unsafe { rustix::mm::mprotect(copy, length, executable) };
    // The kernel checks its limits before it unmaps the pages. If it lacks memory after that, the
    // second attempt maps them again.
    let replaced = sealed.and_then(|()| exchange().or_else(|_| exchange()));
    if let Err(error) = replaced {
        // SAFETY: the copy is this function's own, and was not moved.
        let _ = unsafe { rustix::mm::munmap(copy, length) };
        return Err(error);
    }
    // The pages are the copy now: what differed from the patch before still does.
    for entry in entries.iter().filter(|entry| entry.leaves()) {
        // SAFETY: the entry lies in these pages.
        let is_out = unsafe { holds(entry) };
        if is_out {
            entry.state.store(IS_OUT, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Whether memory holds the entry's own instructions.
///
/// # Safety
/// The entry must be in loaded code.
unsafe fn holds(entry: &Patched) -> bool {
    let live = std::ptr::with_exposed_provenance::<u8>(entry.at);
    // SAFETY: the caller guarantees loaded code, which is readable.
    let live = unsafe { std::slice::from_raw_parts(live, entry.own.len()) };
    live == entry.own
}
