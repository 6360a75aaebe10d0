//! The clock of both sides: the time-stamp counter. Reading it takes a few nanoseconds, and it is
//! the same on all cores of every machine that Dimmer decides for. Where it differs between cores,
//! leases appear to have ended, and work is not moved.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The value of the time-stamp counter.
#[must_use]
#[inline]
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has it, and Linux lets programs read it unless they disable
    // that themselves.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Ticks of the time-stamp counter per nanosecond, measured once. The value is the median of
/// several tries, since the kernel may interrupt a try. Takes half a millisecond.
#[must_use]
pub fn ticks_per_ns() -> f64 {
    const TRIES: usize = 5;
    const TRY: Duration = Duration::from_micros(100);
    static MEASURED: OnceLock<f64> = OnceLock::new();
    *MEASURED.get_or_init(|| {
        let mut tries = [(); TRIES].map(|()| {
            let (begin, since) = (Instant::now(), ticks());
            while begin.elapsed() < TRY {
                std::hint::spin_loop();
            }
            let (now, span) = (ticks(), begin.elapsed());
            now.saturating_sub(since) as f64 / span.as_nanos() as f64
        });
        tries.sort_by(f64::total_cmp);
        tries[TRIES / 2]
    })
}
