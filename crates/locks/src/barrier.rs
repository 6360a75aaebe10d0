//! A barrier whose way to wait can be chosen.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::waiting::{ALL, Wait, Waiting, sleep, wake};

/// Lets threads go on when a given number of them has arrived; for any number of rounds. More
/// threads than that number may use it: each that arrives belongs to one round.
#[derive(Debug)]
pub struct Barrier {
    threads: u64,
    /// Arrivals in all rounds: the first `threads` are those of round 0, and so on.
    arrived: AtomicU64,
    /// The number of rounds that have ended.
    ended: AtomicU32,
}

impl Barrier {
    /// A barrier for this number of threads; 0 is as 1.
    #[must_use]
    pub const fn new(threads: u32) -> Self {
        let threads = if threads == 0 { 1 } else { threads as u64 };
        Self { threads, arrived: AtomicU64::new(0), ended: AtomicU32::new(0) }
    }

    /// Waits until all threads have arrived. Returns true to the last of them.
    pub fn wait(&self) -> bool {
        let Some(round) = self.arrive() else { return true };
        self.wait_for(round, Waiting::SpinThenBlock);
        false
    }

    /// Whether threads have arrived and wait for others.
    pub fn has_arrived(&self) -> bool {
        !self.arrived.load(Ordering::Relaxed).is_multiple_of(self.threads)
    }

    /// Arrives. Returns the round to wait for, or `None` if this thread is the last: then the
    /// others go on.
    pub(crate) fn arrive(&self) -> Option<u32> {
        // Ordering: Release hands what this thread did to the last one, whose Acquire gets it, also
        // that of earlier rounds.
        let before = self.arrived.fetch_add(1, Ordering::AcqRel);
        if !(before + 1).is_multiple_of(self.threads) {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "rounds are compared modulo 2^32"
            )]
            return Some((before / self.threads) as u32);
        }
        // Ordering: Release pairs with the load in `wait_for`: what all threads did is visible.
        self.ended.fetch_add(1, Ordering::Release);
        wake(&self.ended, ALL);
        None
    }

    /// Waits for the end of a round. The last threads of two rounds may end them in either order:
    /// if more rounds have ended than come before this one, it or a later one is among them, and
    /// its threads had arrived before those of the later one.
    pub(crate) fn wait_for(&self, round: u32, waiting: Waiting) {
        let mut wait = Wait::on_own_line(waiting);
        loop {
            // Ordering: Acquire pairs with the addition in `arrive`.
            let ended = self.ended.load(Ordering::Acquire);
            if ended.wrapping_sub(round).cast_signed() > 0 {
                return;
            }
            if !wait.pause(&self.ended, ended) {
                sleep(&self.ended, ended);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_arrives_before_a_full_round_ends_belongs_to_the_next_one() {
        let barrier = Barrier::new(2);
        assert_eq!(barrier.arrive(), Some(0));
        // The last thread of round 0 has arrived, and is preempted before it ends the round.
        barrier.arrived.fetch_add(1, Ordering::AcqRel);
        assert_eq!(barrier.arrive(), Some(1));
        assert!(barrier.has_arrived());
        assert_eq!(barrier.arrive(), None);
        // Round 1 has ended first, so both threads of round 0 have arrived, too.
        barrier.wait_for(0, Waiting::Block);
        barrier.ended.fetch_add(1, Ordering::Release);
        barrier.wait_for(1, Waiting::Block);
        assert!(!barrier.has_arrived());
    }
}
