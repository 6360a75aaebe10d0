//! Naps in the kernel alone: they are no cancellation points, and leave thread-local storage as it
//! is.

use std::time::Duration;

use crate::arch::system_call;

/// Sleeps for a time.
pub(crate) fn nap(duration: Duration) {
    let time = in_kernels_format(duration);
    let at = i64::try_from((&raw const time).expose_provenance()).unwrap_or_default();
    // SAFETY: the kernel reads the time.
    unsafe { system_call(libc::SYS_nanosleep, [at, 0, 0, 0, 0, 0]) };
}

/// Sleeps until `is_so`, for some milliseconds at most.
pub(crate) fn until(is_so: impl Fn() -> bool) {
    const LOOKS: u32 = 100;
    const NAP: Duration = Duration::from_micros(50);
    for _ in 0..LOOKS {
        if is_so() {
            return;
        }
        nap(NAP);
    }
}

/// In seconds and nanoseconds.
pub(crate) fn in_kernels_format(duration: Duration) -> [i64; 2] {
    [i64::try_from(duration.as_secs()).unwrap_or(i64::MAX), duration.subsec_nanos().into()]
}
