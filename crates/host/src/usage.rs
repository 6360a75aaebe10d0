//! What the kernel counted, by `getrusage`: context switches and page faults of the calling thread,
//! CPU time of its children.
//!
//! Two readings around a section show whether it ran undisturbed. Uses `unsafe` because no crate
//! used here wraps `getrusage`.

use std::mem::MaybeUninit;
use std::time::Duration;

use crate::root::Root;

/// Counts since the thread started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadUsage {
    /// Times the thread was preempted.
    pub involuntary_switches: u64,
    /// Times the thread waited.
    pub voluntary_switches: u64,
    /// Page faults served without reading a disk.
    pub minor_faults: u64,
    /// Page faults that needed a read.
    pub major_faults: u64,
}

impl ThreadUsage {
    /// Reads the counts of the calling thread.
    ///
    /// # Cost
    /// One system call.
    #[must_use]
    pub fn read() -> Self {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: getrusage writes one `rusage` through the pointer, and `usage` has room for one
        // and lives until the call returns.
        let _ = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
        // SAFETY: all-zero bytes are a valid `rusage`, which consists of integers only, so it is
        // initialized even if the call fails, which it cannot for RUSAGE_THREAD.
        let usage = unsafe { usage.assume_init() };
        let count = |value: libc::c_long| u64::try_from(value).unwrap_or(0);
        Self {
            involuntary_switches: count(usage.ru_nivcsw),
            voluntary_switches: count(usage.ru_nvcsw),
            minor_faults: count(usage.ru_minflt),
            major_faults: count(usage.ru_majflt),
        }
    }

    /// The counts since `earlier`.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            involuntary_switches: self
                .involuntary_switches
                .saturating_sub(earlier.involuntary_switches),
            voluntary_switches: self.voluntary_switches.saturating_sub(earlier.voluntary_switches),
            minor_faults: self.minor_faults.saturating_sub(earlier.minor_faults),
            major_faults: self.major_faults.saturating_sub(earlier.major_faults),
        }
    }
}

/// CPU time, including kernel time on their behalf, of all children that have ended and been waited
/// for, and of those children's children.
///
/// # Cost
/// One system call.
#[must_use]
pub fn time_of_ended_children() -> Duration {
    time_of(libc::RUSAGE_CHILDREN)
}

/// The part of [`time_of_ended_children`] that the kernel used.
///
/// # Cost
/// One system call.
#[must_use]
pub fn kernel_time_of_ended_children() -> Duration {
    times_of(libc::RUSAGE_CHILDREN).1
}

/// CPU time of this process, including kernel time on its behalf.
///
/// # Cost
/// One system call.
#[must_use]
pub fn own_time() -> Duration {
    time_of(libc::RUSAGE_SELF)
}

/// Bytes that this process has written to files, sockets and terminals by write(2) and similar
/// calls. Includes all children that have ended and been waited for, and their children. Bytes sent
/// by send(2) and similar calls are not counted. `None` if the kernel does not report it
/// (`CONFIG_TASK_IO_ACCOUNTING`).
///
/// # Cost
/// Three system calls.
#[must_use]
pub fn written(root: &Root) -> Option<u64> {
    let text = root.text("/proc/self/io").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("wchar:"))?;
    line.trim().parse().ok()
}

fn time_of(whom: libc::c_int) -> Duration {
    let (user, kernel) = times_of(whom);
    user + kernel
}

/// CPU time in programs, and in the kernel on their behalf.
fn times_of(whom: libc::c_int) -> (Duration, Duration) {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: getrusage writes one `rusage` into `usage`, which has room and outlives the call.
    let _ = unsafe { libc::getrusage(whom, usage.as_mut_ptr()) };
    // SAFETY: all-zero bytes are a valid `rusage`, so it is initialized whatever the call did.
    let usage = unsafe { usage.assume_init() };
    let time = |value: libc::timeval| {
        let seconds = Duration::from_secs(u64::try_from(value.tv_sec).unwrap_or_default());
        seconds + Duration::from_micros(u64::try_from(value.tv_usec).unwrap_or_default())
    };
    (time(usage.ru_utime), time(usage.ru_stime))
}
