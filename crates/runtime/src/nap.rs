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

/// Sleeps until `is_so`, for some ten seconds at most: it is for what comes soon wherever the
/// kernel gives a thread any time at all.
pub(crate) fn until(is_so: impl Fn() -> bool) {
    at_most(repeat_n(Duration::from_millis(10), 990), is_so);
}

/// Likewise, for some 0.1 s at most: for what may never come.
pub(crate) fn briefly(is_so: impl Fn() -> bool) {
    at_most(std::iter::empty(), is_so);
}

/// First in short naps, then in longer ones, then in `more` naps.
fn at_most(more: impl Iterator<Item = Duration>, is_so: impl Fn() -> bool) {
    let short = repeat_n(Duration::from_micros(50), 100);
    let long = repeat_n(Duration::from_millis(1), 95);
    for length in short.chain(long).chain(more) {
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
