//! The time, by the kernel alone: a program may have functions of its own that tell it.

use dimmer_processor::units::{Nanos, Time};

use crate::arch::system_call;

pub(super) fn now() -> Time {
    time_of(libc::CLOCK_MONOTONIC.into())
}

/// The time of a clock.
fn time_of(clock: i64) -> Time {
    let mut time = [0_i64; 2];
    let to = i64::try_from(time.as_mut_ptr().expose_provenance()).unwrap_or_default();
    // SAFETY: the kernel writes the two words.
    unsafe { system_call(libc::SYS_clock_gettime, [clock, to, 0, 0, 0, 0]) };
    let [seconds, ns] = time.map(|part| u64::try_from(part).unwrap_or_default());
    Time::from_ns(seconds.saturating_mul(1_000_000_000).saturating_add(ns))
}

/// The processor time that all threads of the process have taken.
#[must_use]
pub fn process_time() -> Nanos {
    time_of(libc::CLOCK_PROCESS_CPUTIME_ID.into()).since_start()
}

/// The processor time that a thread of the process has taken.
pub(super) fn processor_time(thread: u32) -> Nanos {
    // Source: Linux, include/linux/posix-timers_types.h: the thread's number inverted, and bits for
    // a thread rather than a process, and for all of its time.
    const OF_THREAD: i64 = 4 | 2;
    time_of(!i64::from(thread) << 3 | OF_THREAD).since_start()
}
