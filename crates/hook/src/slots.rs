//! The slots that threads of this process claim at their first hooked call, without a system call.
//!
//! For that a slot is reserved before its thread starts, by the thread or process that is about to
//! start another one ([`expect_thread`], [`expect_process`]). A thread that finds no slot counts in
//! memory that no observer reads; the ledger counts such threads. The children of a fork have the
//! slots that their parent had reserved, and those that they reserve themselves. A word in the slot
//! decides which of them claims it.

use std::mem::offset_of;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use crate::arch::thread_block;
use crate::giving_up::unrestricted;
use crate::ledger::{LedgerError, NoRoom, OwnLedger, SLOTS, Slot};
use crate::process;

/// The most slots that are reserved and not claimed: threads and processes that start at once,
/// before the first of them calls a hooked function.
const AHEAD: usize = 128;

/// Attempts to get the lock, some milliseconds. Nothing here may wait for a thread that does not
/// run, as in a signal handler, or in the child of a fork.
const TRIES: u32 = 1 << 16;

/// What `dimmer_hook_slow` reads and writes, and what is needed to fill it.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Pool {
    /// The number of the place to look at next.
    next: AtomicU32,
    /// The number of places that are filled.
    had: AtomicU32,
    /// Addresses of counters.
    places: [AtomicPtr<u8>; SLOTS],
    slots: [OnceLock<Slot>; SLOTS],
    /// Places before this one belong to another ledger.
    first: AtomicUsize,
    is_locked: AtomicBool,
    /// Empty before anything is hooked.
    ledger: OnceLock<&'static OwnLedger>,
    /// Threads and processes that were expected before there was a ledger.
    expected: AtomicUsize,
}

pub(crate) static POOL: Pool = Pool {
    next: AtomicU32::new(0),
    had: AtomicU32::new(0),
    places: [const { AtomicPtr::new(std::ptr::null_mut()) }; SLOTS],
    slots: [const { OnceLock::new() }; SLOTS],
    first: AtomicUsize::new(0),
    is_locked: AtomicBool::new(false),
    ledger: OnceLock::new(),
    expected: AtomicUsize::new(0),
};

pub(crate) const NEXT: usize = offset_of!(Pool, next);
pub(crate) const HAD: usize = offset_of!(Pool, had);
pub(crate) const PLACES: usize = offset_of!(Pool, places);
pub(crate) const PLACE_BYTES: usize = size_of::<AtomicPtr<u8>>();

/// Unlocks the pool when dropped.
struct Locked;

impl Drop for Locked {
    fn drop(&mut self) {
        // Ordering: pairs with the swap in `lock`.
        POOL.is_locked.store(false, Ordering::Release);
    }
}

/// Reserves the first slots of a ledger, which threads claim from now on: one, and one for each
/// thread that was expected before.
pub(crate) fn begin(ledger: &'static OwnLedger) -> Result<(), LedgerError> {
    let _locked = lock()?;
    let had = POOL.had.load(Ordering::Relaxed);
    POOL.next.store(had, Ordering::Relaxed);
    POOL.first.store(had as usize, Ordering::Relaxed);
    add(ledger)?;
    let _ = POOL.ledger.set(ledger);
    let expected = POOL.expected.swap(0, Ordering::Relaxed);
    // If a slot cannot be reserved, the thread that needs it reports that.
    let _ = (0..expected).try_for_each(|_| add(ledger));
    Ok(())
}

/// Reserves a slot, if possible, for a thread that the caller is about to start. Changes `errno`.
pub fn expect_thread() {
    expect();
}

/// Reserves a slot, if possible, for a child that the caller is about to fork. The child looks
/// there first ([`forget_thread`]); what other threads fork at once, elsewhere.
pub fn expect_process() {
    thread_block::exchange_child(expect().unwrap_or(0));
}

/// Adds a slot, unless enough are free. Returns the number of places then.
fn expect() -> Option<u32> {
    let Some(ledger) = POOL.ledger.get() else {
        let more = |expected| (expected < AHEAD).then_some(expected + 1);
        let _ = POOL.expected.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        return None;
    };
    if unrestricted().is_err() || unclaimed() >= AHEAD {
        return None;
    }
    // If a slot cannot be reserved, the thread that needs it reports that.
    let _locked = lock().ok()?;
    add(ledger).ok()?;
    Some(POOL.had.load(Ordering::Relaxed))
}

/// For the child of a fork: makes the calling thread claim a slot of its own at its next hooked
/// call. Otherwise it would go on in its parent's slot.
pub fn forget_thread() {
    go_on_in_child();
    process::begin_child();
    thread_block::forget();
}

/// For the child of a fork: drops the lock, since the thread that held it is not in this process.
/// The child claims its own place next; earlier places are for children that were forked before.
fn go_on_in_child() {
    POOL.is_locked.store(false, Ordering::Relaxed);
    if let Some(own) = thread_block::exchange_child(0).checked_sub(1) {
        POOL.next.store(own, Ordering::Relaxed);
    }
}

/// Calls `grow` with all slots of the ledger. None is added meanwhile.
pub(crate) fn with_all<T>(
    grow: impl FnOnce(&mut dyn Iterator<Item = &'static Slot>) -> Result<T, LedgerError>,
) -> Result<T, LedgerError> {
    unrestricted()?;
    let _locked = lock()?;
    let (first, had) = (POOL.first.load(Ordering::Relaxed), POOL.had.load(Ordering::Relaxed));
    grow(&mut POOL.slots.iter().take(had as usize).skip(first).filter_map(OnceLock::get))
}

/// The number in the ledger of the slot with these counters.
pub(crate) fn number_of(counters: *mut u8) -> Option<usize> {
    let slots = POOL.slots.iter().filter_map(OnceLock::get);
    slots.rev().find(|slot| slot.counters() == counters).map(|slot| slot.number)
}

/// Adds a slot. The calling thread must hold the lock.
fn add(ledger: &OwnLedger) -> Result<(), LedgerError> {
    let had = POOL.had.load(Ordering::Relaxed);
    let at = had as usize;
    let (Some(place), Some(kept)) = (POOL.places.get(at), POOL.slots.get(at)) else {
        return Err(LedgerError::Full { what: "threads", most: SLOTS });
    };
    let slot = ledger.reserve_slot()?;
    place.store(slot.counters(), Ordering::Relaxed);
    let _ = kept.set(slot);
    // Release: a thread that reads the number finds the place filled.
    // Ordering: pairs with the load in `unclaimed`, and with that in `dimmer_hook_slow` (x86 loads
    // acquire).
    POOL.had.store(had + 1, Ordering::Release);
    Ok(())
}

/// The number of slots that no thread has claimed, `AHEAD` at most.
fn unclaimed() -> usize {
    let next = POOL.next.load(Ordering::Relaxed) as usize;
    // Ordering: pairs with the store in `add`: the slots below the number are there.
    let had = POOL.had.load(Ordering::Acquire) as usize;
    let ahead = POOL.slots.iter().take(had).skip(next).filter_map(OnceLock::get);
    ahead.filter(|slot| !slot.is_claimed()).take(AHEAD).count()
}

fn lock() -> Result<Locked, LedgerError> {
    for _ in 0..TRIES {
        // Ordering: pairs with the store in `drop` of the last owner.
        if !POOL.is_locked.swap(true, Ordering::Acquire) {
            return Ok(Locked);
        }
        std::hint::spin_loop();
    }
    Err(LedgerError::NoRoom(NoRoom::Refused))
}
