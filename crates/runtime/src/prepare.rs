//! Preparation. Everything that takes memory, files and time is done once, in advance, so that
//! entering a region needs none of it.

use std::sync::atomic::{AtomicU8, Ordering};

use dimmer_protocol::ticks_per_ns;

use crate::uncancelled::Uncancelled;
use crate::{end, first_thread, fork, handler, served, settings, signals};

/// The progress of the preparation.
static STATE: AtomicU8 = AtomicU8::new(NOT_YET);
const NOT_YET: u8 = 0;
const UNDER_WAY: u8 = 1;
const DONE: u8 = 2;

/// Whether the preparation is complete.
#[inline]
pub(crate) fn is_done() -> bool {
    // Ordering: pairs with the store of `DONE`: what was prepared is visible.
    STATE.load(Ordering::Acquire) == DONE
}

/// Reads the environment, and allocates the memory that regions use. Returns whether the
/// preparation is complete; `false` while another thread does it.
///
/// The first region does the same, unless it is in a signal handler: there, regions are neither
/// moved nor counted until the preparation is complete. Programs with regions in handlers or in
/// their allocator call this first. `libdimmer` calls it when it is loaded.
pub fn prepare() -> bool {
    // Ordering: Acquire pairs with the store of `DONE`, if another thread was first.
    let before = STATE.compare_exchange(NOT_YET, UNDER_WAY, Ordering::Acquire, Ordering::Acquire);
    if before.is_ok() {
        let _uncancelled = Uncancelled::begin();
        prepare_to_move();
        if settings::of_process().minimum_stay() > 0 {
            // Measured once.
            let _ = ticks_per_ns();
        }
        signals::hear_cancellation();
        served::prepare();
        // Ordering: pairs with the loads of `STATE`.
        STATE.store(DONE, Ordering::Release);
    }
    is_done()
}

/// The part of [`prepare()`] that a process without regions needs.
pub fn prepare_to_move() {
    fork::count();
    end::prepare();
    first_thread::note();
    let _ = settings::of_process();
}

/// Prepares like [`prepare()`], if that is possible now.
#[inline]
pub(crate) fn lazily() -> bool {
    is_done() || (!handler::may_be_amid_anything() && prepare())
}
