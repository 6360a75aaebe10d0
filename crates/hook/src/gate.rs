//! Gates: where threads stop that are about to execute wide code, now and then.
//!
//! Each hooked function has a word, its gate, and each thread one ([`let_pass`]). A call passes if
//! the thread's word is not below the gate's; that costs two loads and a comparison. All gates hold
//! the number of the present round, so a thread that was stopped and let pass makes its calls until
//! the next round begins. The rounds are the process's own, so another thread can make all stop
//! again without writing to their memory.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::arch::thread_block;
use crate::ledger::SITES;

/// Calls of the function never stop.
const NONE: u32 = 0;

/// All calls of the function stop.
const ALWAYS: u32 = u32::MAX;

/// The gate of each function, by its number.
static GATES: [AtomicU32; SITES] = [const { AtomicU32::new(NONE) }; SITES];

/// The number of gates at the start of the table that may be in use.
static USED: AtomicU32 = AtomicU32::new(0);

/// The number of the present round.
static ROUND: AtomicU32 = AtomicU32::new(1);

/// Makes a gate for a function. Returns its address, or `None` for a number that no function has.
pub(crate) fn open(site: u32) -> Option<u64> {
    let gate = GATES.get(site as usize)?;
    gate.store(round(), Ordering::Relaxed);
    USED.fetch_max(site + 1, Ordering::Relaxed);
    Some(std::ptr::from_ref(gate).expose_provenance() as u64)
}

/// From now on, calls of the function never stop.
pub(crate) fn remove(site: u32) {
    if let Some(gate) = GATES.get(site as usize) {
        gate.store(NONE, Ordering::Relaxed);
    }
}

/// Sets whether all calls of the function stop, or only the first one of each thread and round.
/// Async-signal-safe.
pub fn stop_all(site: u32, is_so: bool) {
    let Some(gate) = GATES.get(site as usize) else { return };
    let to = if is_so { ALWAYS } else { round() };
    // One that never stops calls stays so.
    let change = |now| (now != NONE && now != to).then_some(to);
    let _ = gate.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
}

/// Begins a round: each thread stops at its next call. After some weeks of a thousand rounds a
/// second, the last one has begun, and each call stops.
pub fn next_round() {
    let next = ROUND.load(Ordering::Relaxed).saturating_add(1);
    ROUND.store(next, Ordering::Relaxed);
    let used = USED.load(Ordering::Relaxed) as usize;
    for gate in GATES.iter().take(used) {
        let change = |now| (now != NONE && now != ALWAYS).then_some(next);
        let _ = gate.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }
}

/// The number of the present round. Read it before what lets a thread pass is looked at: if the
/// next round begins meanwhile, the thread then stops again.
#[must_use]
pub fn round() -> u32 {
    ROUND.load(Ordering::Relaxed)
}

/// Lets the calling thread pass until the next round; 0: until its next call.
pub fn let_pass(round: u32) {
    thread_block::set_passed(round);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(site: usize) -> u32 {
        GATES[site].load(Ordering::Relaxed)
    }

    #[test]
    fn rounds_go_on_where_calls_stop_at_all() {
        let _one_at_a_time = crate::arch::tests::one_at_a_time();
        let [first, second, beyond] =
            [SITES - 2, SITES - 1, SITES].map(|site| u32::try_from(site).unwrap());
        let (one, other) = (first as usize, second as usize);
        assert!(open(first).is_some() && open(second).is_some() && open(beyond).is_none());
        remove(second);
        let before = at(one);
        next_round();
        assert!(at(one) > before);
        assert_eq!(at(other), NONE);
        stop_all(first, true);
        stop_all(second, true);
        next_round();
        assert_eq!((at(one), at(other)), (ALWAYS, NONE));
        stop_all(first, false);
        assert!(at(one) >= before && at(one) <= round());
        remove(first);
    }
}
