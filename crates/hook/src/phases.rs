//! What a thread's slot in the ledger holds of its wide phases, for the thread itself and for
//! the thread of its process that ends them.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::arch::thread_block;
use crate::ledger::{BACK, COUNTER_BYTES, COUNTERS, ROOM, STAYS, TO_WIDE, WIDE_NS};
use crate::slots;

/// The slot of a thread. It lasts until the process ends, as all slots do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phases(NonNull<u8>);

// SAFETY: a slot is never unmapped, and is read and written by atomic operations alone.
unsafe impl Send for Phases {}

impl Phases {
    /// The calling thread's; `None` before its first hooked call, and if there was no slot for it.
    #[must_use]
    pub fn own() -> Option<Self> {
        let counters = thread_block::counters();
        slots::number_of(counters)?;
        NonNull::new(counters).map(Self)
    }

    /// The thread's number: [`Self::of`] finds the slot again by it.
    #[must_use]
    pub fn number(self) -> usize {
        self.0.as_ptr().expose_provenance()
    }

    /// The slot with a number of [`Self::number`].
    #[must_use]
    pub fn of(number: usize) -> Option<Self> {
        NonNull::new(std::ptr::with_exposed_provenance_mut(number)).map(Self)
    }

    /// The number of all calls that the thread has made, modulo 2³².
    #[must_use]
    pub fn calls(self) -> u32 {
        let room = self.u32(ROOM).load(Ordering::Relaxed) as usize;
        let call = |site: usize| self.u32(COUNTERS + site * COUNTER_BYTES).load(Ordering::Relaxed);
        (0..room).map(call).fold(0, u32::wrapping_add)
    }

    /// Counts that the thread went to wide CPUs.
    pub fn goes(self) {
        self.u32(TO_WIDE).fetch_add(1, Ordering::Relaxed);
    }

    /// Counts that it was given its own back.
    pub fn comes_back(self) {
        self.u32(BACK).fetch_add(1, Ordering::Relaxed);
    }

    /// Adds time that it could run on wide CPUs.
    pub fn was_wide(self, ns: u64) {
        self.u64(WIDE_NS).fetch_add(ns, Ordering::Relaxed);
    }

    /// Notes a reason why it has stayed.
    pub fn stays(self, bit: u32) {
        self.u32(STAYS).fetch_or(bit, Ordering::Relaxed);
    }

    fn u32(&self, at: usize) -> &AtomicU32 {
        // SAFETY: the offset is one of the slot's layout, aligned, and the slot stays mapped.
        unsafe { AtomicU32::from_ptr(self.place(at).cast()) }
    }

    fn u64(&self, at: usize) -> &AtomicU64 {
        // SAFETY: as in `u32`.
        unsafe { AtomicU64::from_ptr(self.place(at).cast()) }
    }

    /// The address of what lies at an offset of the slot.
    fn place(&self, at: usize) -> *mut u8 {
        self.0.as_ptr().wrapping_sub(COUNTERS).wrapping_add(at)
    }
}
