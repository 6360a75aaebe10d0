//! A barrier whose way to wait can be chosen.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::waiting::{ALL, Wait, Waiting, sleep, wake};

/// Lets threads go on when a given number of them has arrived; for any number of rounds.
#[derive(Debug)]
pub struct Barrier {
    threads: u32,
    arrived: AtomicU32,
    round: AtomicU32,
}

impl Barrier {
    /// A barrier for this number of threads; 0 is as 1.
    #[must_use]
    pub const fn new(threads: u32) -> Self {
        Self { threads, arrived: AtomicU32::new(0), round: AtomicU32::new(0) }
    }

    /// Waits until all threads have arrived. Returns true to the last of them.
    pub fn wait(&self) -> bool {
        let Some(round) = self.arrive() else { return true };
        self.wait_for(round, Waiting::SpinThenBlock);
        false
    }

    /// Whether threads have arrived and wait for others.
    pub fn has_arrived(&self) -> bool {
        self.arrived.load(Ordering::Relaxed) != 0
    }

    /// Arrives. Returns the round to wait for, or `None` if this thread is the last: then the
    /// others go on.
    pub(crate) fn arrive(&self) -> Option<u32> {
        // Relaxed: no round ends before this thread arrives.
        let round = self.round.load(Ordering::Relaxed);
        // Ordering: Release hands what this thread did to the last one, whose Acquire gets it.
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 < self.threads {
            return Some(round);
        }
        self.arrived.store(0, Ordering::Relaxed);
        // Ordering: Release pairs with the load in `wait_for`: what all threads did is visible.
        self.round.fetch_add(1, Ordering::Release);
        wake(&self.round, ALL);
        None
    }

    /// Waits for the end of a round.
    pub(crate) fn wait_for(&self, round: u32, waiting: Waiting) {
        let mut wait = Wait::on_own_line(waiting);
        // Ordering: Acquire pairs with the addition in `arrive`.
        while self.round.load(Ordering::Acquire) == round {
            if !wait.pause(&self.round, round) {
                sleep(&self.round, round);
            }
        }
    }
}
