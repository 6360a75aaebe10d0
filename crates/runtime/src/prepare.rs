//! What takes memory, files and time is done once, ahead, so that nothing on the way into a region
//! has to.

use std::sync::atomic::{AtomicU8, Ordering};

use dimmer_protocol::ticks_per_ns;

use crate::cancel::{self, Uncancelled};
use crate::{end, handler, served, settings};

/// How far it is.
static STATE: AtomicU8 = AtomicU8::new(NOT_YET);
const NOT_YET: u8 = 0;
const UNDER_WAY: u8 = 1;
const DONE: u8 = 2;

/// Whether it was done.
#[inline]
pub(crate) fn is_done() -> bool {
    STATE.load(Ordering::Acquire) == DONE
}

/// Reads the environment, and has the memory that regions take; whether that is done then. `false`
/// while another thread does it.
///
/// The first region does the same, unless it is in a signal's handler: there regions stay where
/// they are, and are not counted, until it is done. Programs whose handlers or allocators have
/// regions call this first. `libdimmer` does when it is loaded.
pub fn prepare() -> bool {
    let before = STATE.compare_exchange(NOT_YET, UNDER_WAY, Ordering::Acquire, Ordering::Acquire);
    if before.is_ok() {
        let _uncancelled = Uncancelled::begin();
        prepare_to_move();
        if settings::of_process().minimum_stay() > 0 {
            // Measured once.
            let _ = ticks_per_ns();
        }
        cancel::hear();
        served::prepare();
        STATE.store(DONE, Ordering::Release);
    }
    is_done()
}

/// The part of [`prepare()`] that who has no regions needs.
pub fn prepare_to_move() {
    end::prepare();
    let _ = settings::of_process();
}

/// As [`prepare()`], if that can be done now.
#[inline]
pub(crate) fn lazily() -> bool {
    is_done() || (!handler::may_be_in_one() && prepare())
}
