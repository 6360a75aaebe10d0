//! The time-stamp counter.

use std::arch::x86_64::{_mm_lfence, _rdtsc};

/// The time-stamp counter, now.
pub(crate) fn ticks_now() -> u64 {
    // RDTSCP would wait for earlier instructions by itself, but some processors and many virtual
    // machines lack it.
    // SAFETY: `lfence` is part of x86-64.
    unsafe { _mm_lfence() };
    // SAFETY: `rdtsc` is part of x86-64.
    unsafe { _rdtsc() }
}
