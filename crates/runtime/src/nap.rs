//! Naps in the kernel alone: they are no cancellation points, and leave thread-local storage as it
//! is.

use std::iter::repeat_n;
use std::time::Duration;

use crate::arch::system_call;

/// Sleeps for a time.
pub(crate) fn nap(duration: Duration) {
    let time = in_kernels_format(duration);
    let at = i64::try_from((&raw const time).expose_provenance()).unwrap_or_default();
    // SAFETY: the kernel reads the time.
    unsafe { system_call(libc::SYS_nanosleep, [at, 0, 0, 0, 0, 0]) };
}

/// Sleeps until `is_so`, for some ten seconds at most: first in short naps, then in longer ones. It
/// is for what comes soon wherever the kernel gives a thread any time at all.
pub(crate) fn until(is_so: impl Fn() -> bool) {
    let short = repeat_n(Duration::from_micros(50), 100);
    let long = repeat_n(Duration::from_millis(1), 1000);
    let longest = repeat_n(Duration::from_millis(10), 900);
    for length in short.chain(long).chain(longest) {
        if is_so() {
            return;
        }
        nap(length);
    }
}

/// In seconds and nanoseconds.
pub(crate) fn in_kernels_format(duration: Duration) -> [i64; 2] {
    [i64::try_from(duration.as_secs()).unwrap_or(i64::MAX), duration.subsec_nanos().into()]
}
