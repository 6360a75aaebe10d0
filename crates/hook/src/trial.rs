//! Hooks functions of this crate's own, to measure the cost of hooks: the overhead to subtract from
//! measured times, and the numbers of `dimmer bench dev hook`.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use dimmer_scan::Leaf;

use crate::arch::empty::{
    DISTANCE, HEAD, HEAD_BYTES, dimmer_hook_delegated, dimmer_hook_hooked, dimmer_hook_plain,
};
use crate::arch::thread_block::{counters, time_next};
use crate::error::HookError;
use crate::gate;
use crate::hooks::Hooks;
use crate::ledger::{Ledger, Thread};
use crate::marks::OWN_MARK;
use crate::overhead::Overhead;
use crate::plan::PlannedEntry;
use crate::slots;

/// The ledger's name for the file with the hooks' own functions.
pub const OWN_FILE: &str = "[dimmer]";

/// The hooked functions, with addresses relative to the first. The second needs no registers of its
/// caller.
const OWN: [PlannedEntry; 2] = [
    PlannedEntry::new(0, HEAD_BYTES),
    PlannedEntry {
        mark: None,
        address: DISTANCE,
        displaced: HEAD_BYTES,
        leaf: Some(Leaf {
            reads_general: 0,
            reads_vectors: 0,
            returns_general: 0,
            returns_vectors: None,
        }),
    },
];

/// Calls that are only counted, and the number of rounds that measure their time.
const COUNTED: u32 = 1000;
const COUNTED_ROUNDS: usize = 5;

/// Timed calls for measuring the overhead.
const CALLS: u32 = 200;

/// A period so long that none of the calls here is timed. The countdown of one and a half periods
/// has 31 bits.
const NEVER: u32 = 1 << 30;

impl Hooks {
    /// Measures what timing adds to times, and notes it in the ledger. Takes some 50 us.
    ///
    /// # Errors
    /// If no function of this crate can be hooked.
    pub fn calibrate(&self) -> Result<(), HookError> {
        self.hook_own()?;
        let mut overhead = Overhead::default();
        let mut inside = Vec::new();
        let mut between = Vec::new();
        call_hooked(CALLS);
        let ledger = Ledger::open(self.ledger().path())?;
        if let Some(thread) = own_thread(&ledger) {
            let mut before = None;
            thread.drain(|call| {
                inside.push(call.end - call.begin);
                between.extend(before.map(|ended| call.begin.saturating_sub(ended)));
                before = Some(call.end);
            });
            thread.set_period(NEVER);
            restart(&thread);
            let rounds = (0..COUNTED_ROUNDS).map(|_| {
                let hooked = ticks_of(|| call_hooked(COUNTED));
                hooked.saturating_sub(ticks_of(|| call_plain(COUNTED)))
            });
            overhead.counting_1000 = median(rounds.collect());
            thread.set_period(1);
            restart(&thread);
        }
        overhead.inside = median(inside);
        overhead.between = median(between);
        self.ledger().set_overhead(overhead);
        Ok(())
    }

    /// Measures the cost of hooked calls, `rounds` times. Each round makes `calls` calls of each
    /// kind. There are fewer rounds if `goes_on`, asked before each, returns false.
    ///
    /// # Errors
    /// If no function of this crate can be hooked.
    pub fn trial(
        &self,
        rounds: usize,
        calls: u32,
        mut goes_on: impl FnMut() -> bool,
    ) -> Result<Vec<Round>, HookError> {
        self.hook_own()?;
        // The thread's first call claims its slot.
        call_hooked(1);
        let ledger = Ledger::open(self.ledger().path())?;
        let Some(thread) = own_thread(&ledger) else { return Ok(Vec::new()) };
        let round = |_| {
            let plain_ns = per_call(calls, || call_plain(calls));
            thread.set_period(NEVER);
            restart(&thread);
            let counted_ns = per_call(calls, || call_hooked(calls));
            thread.set_period(crate::period(1e9 / counted_ns, crate::PAIRS_PER_SECOND));
            restart(&thread);
            let observed_ns = per_call(calls, || call_hooked(calls));
            thread.set_period(1);
            restart(&thread);
            let few = calls.min(TIMED);
            let timed_ns = per_call(few, || call_hooked(few));
            restart(&thread);
            Round { plain_ns, counted_ns, observed_ns, timed_ns }
        };
        Ok((0..rounds).take_while(|_| goes_on()).map(round).collect())
    }

    /// Measures the time of calls that go to another core, do nothing there, and come back (ns
    /// each), after [`Hooks::move_by`]: for each gap, one that migrates with its thread and one
    /// that is delegated, both after the calling thread has been busy for the gap.
    ///
    /// # Errors
    /// If no function of this crate can be hooked.
    pub fn trial_moved(
        &self,
        gaps: impl IntoIterator<Item = Duration>,
    ) -> Result<Vec<Trip>, HookError> {
        self.hook_own()?;
        // The thread's first call claims its slot.
        call_hooked(1);
        self.decide_own(true);
        let after = |gap: Duration, call: fn()| {
            let begun = Instant::now();
            while begun.elapsed() < gap {
                std::hint::spin_loop();
            }
            per_call(1, call)
        };
        let trip = |gap| Trip {
            moved_ns: after(gap, || call_hooked(1)),
            delegated_ns: after(gap, call_delegated),
        };
        let took = gaps.into_iter().map(trip).collect();
        self.decide_own(false);
        Ok(took)
    }

    fn hook_own(&self) -> Result<(), HookError> {
        let base = dimmer_hook_hooked as *const () as u64;
        let object = self.ledger().add_objects(&[(base, Path::new(OWN_FILE))])?.start;
        let mut entries = OWN.map(|entry| (entry, &HEAD[..]));
        // For [`pass_own_mark`]. What counting takes then contains what passing a mark takes.
        entries[0].0.mark = self.are_marks_passed().then_some(OWN_MARK);
        // SAFETY: the functions are on pages of their own, start with a whole instruction of five
        // bytes, and no thread calls them meanwhile.
        unsafe { self.patch(object, base, &entries, &BTreeSet::new()) }?;
        // Their calls stay, so that they are measured at home.
        self.decide_own(false);
        Ok(())
    }

    /// Decides on the functions that [`Self::hook_own`] hooked last.
    fn decide_own(&self, is_moved: bool) {
        let sites = self.ledger().site_count();
        for site in sites.saturating_sub(OWN.len())..sites {
            let site = u32::try_from(site).unwrap_or(u32::MAX);
            self.ledger().decide(site, is_moved);
            gate::remove(site);
        }
    }
}

/// The calling thread's part of the ledger, after its first hooked call.
fn own_thread(ledger: &Ledger) -> Option<Thread<'_>> {
    ledger.thread(slots::number_of(counters())?)
}

/// Calls that are timed in a row. The ring of records has room for them.
const TIMED: u32 = 400;

/// The mean time of a call in one round (ns).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Round {
    /// A function without a hook.
    pub plain_ns: f64,
    /// The same function, hooked, its calls counted.
    pub counted_ns: f64,
    /// Likewise, with as many calls timed as `dimmer observe` times.
    pub observed_ns: f64,
    /// Likewise, with all calls timed.
    pub timed_ns: f64,
}

/// The times of two calls that did nothing (ns).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trip {
    /// The call that migrated with its thread.
    pub moved_ns: f64,
    /// The call that was delegated.
    pub delegated_ns: f64,
}

/// Applies the period from the next call on.
fn restart(thread: &Thread<'_>) {
    thread.drain(drop);
    time_next();
    call_hooked(2);
    thread.drain(drop);
}

/// Calls a function of this crate's own that does nothing and whose entry is [`OWN_MARK`], if
/// something is hooked and marks are passed ([`Hooks::pass_marks`]).
pub fn pass_own_mark() {
    call_hooked(1);
}

fn call_plain(calls: u32) {
    for _ in 0..calls {
        // SAFETY: the function does nothing.
        unsafe { dimmer_hook_plain() };
    }
}

fn call_hooked(calls: u32) {
    for _ in 0..calls {
        // SAFETY: the function does nothing.
        unsafe { dimmer_hook_hooked() };
    }
}

fn call_delegated() {
    // SAFETY: the function does nothing.
    unsafe { dimmer_hook_delegated() };
}

/// The mean time of a call (ns).
fn per_call(calls: u32, run: impl Fn()) -> f64 {
    let begun = Instant::now();
    run();
    begun.elapsed().as_nanos() as f64 / f64::from(calls)
}

fn ticks_of(run: impl Fn()) -> u64 {
    let begun = crate::ticks();
    run();
    crate::ticks().saturating_sub(begun)
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}
