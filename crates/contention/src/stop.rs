//! The end of all observation and requests in a process that gives up what they take: time stamps
//! (`PR_SET_TSC`), or system calls (seccomp).
//!
//! The kernel takes these from a thread, and from those that it starts later. Which thread runs is
//! not asked at each lock, so all threads of the process stop. The caller's clock is given back
//! before, and another thread's at its next lock or its end.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::{own, requests};

/// How often the process has stopped, without the times that it went on.
static STOPS: AtomicU32 = AtomicU32::new(0);

/// Stops, before the calling thread gives something up.
pub fn stop() {
    own::prepare_to_stop();
    // Relaxed: a thread sees what it has done itself, and the others keep what they use.
    STOPS.fetch_add(1, Ordering::Relaxed);
    requests::end_own();
}

/// Goes on after [`stop`]: the thread has kept what it meant to give up.
pub fn go_on() {
    STOPS.fetch_sub(1, Ordering::Relaxed);
}

/// The process has stopped for good: the report has it. Makes no system call.
pub fn stopped() {
    own::note_stop();
}

/// Whether the process has stopped.
#[must_use]
#[inline]
pub fn has_stopped() -> bool {
    STOPS.load(Ordering::Relaxed) != 0
}

/// The time-stamp counter; 0 once the process has stopped.
#[must_use]
#[inline]
pub fn ticks() -> u64 {
    if has_stopped() { 0 } else { dimmer_protocol::ticks() }
}
