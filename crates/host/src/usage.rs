//! What the kernel counted, by `getrusage`: context switches and page faults of the calling thread,
//! CPU time and switches of children.
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
        let usage = usage_of(libc::RUSAGE_THREAD);
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

/// What processes have used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time, including kernel time on their behalf.
    pub on_cpu: Duration,
    /// The part of it that the kernel used.
    pub in_kernel: Duration,
    /// Times that a thread waited or was preempted.
    pub switches: u64,
}

impl Usage {
    /// The usage of all children that have ended and been waited for, and of those children's
    /// children, since this process started.
    ///
    /// # Cost
    /// One system call.
    #[must_use]
    pub fn of_ended_children() -> Self {
        let usage = usage_of(libc::RUSAGE_CHILDREN);
        let (in_program, in_kernel) = times(&usage);
        let count = |value: libc::c_long| u64::try_from(value).unwrap_or(0);
        Self {
            on_cpu: in_program + in_kernel,
            in_kernel,
            switches: count(usage.ru_nvcsw).saturating_add(count(usage.ru_nivcsw)),
        }
    }

    /// The usage since `earlier`.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            on_cpu: self.on_cpu.saturating_sub(earlier.on_cpu),
            in_kernel: self.in_kernel.saturating_sub(earlier.in_kernel),
            switches: self.switches.saturating_sub(earlier.switches),
        }
    }
}

/// CPU time of this process, including kernel time on its behalf.
///
/// # Cost
/// One system call.
#[must_use]
pub fn own_time() -> Duration {
    let (in_program, in_kernel) = times(&usage_of(libc::RUSAGE_SELF));
    in_program + in_kernel
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

fn usage_of(whom: libc::c_int) -> libc::rusage {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: getrusage writes one `rusage` through the pointer, and `usage` has room for one and
    // lives until the call returns.
    let _ = unsafe { libc::getrusage(whom, usage.as_mut_ptr()) };
    // SAFETY: all-zero bytes are a valid `rusage`, which consists of integers only, so it is
    // initialized even if the call fails, which it cannot for the values that are passed here.
    unsafe { usage.assume_init() }
}

/// CPU time in the program, and in the kernel on its behalf.
fn times(usage: &libc::rusage) -> (Duration, Duration) {
    let time = |value: libc::timeval| {
        let seconds = Duration::from_secs(u64::try_from(value.tv_sec).unwrap_or_default());
        seconds + Duration::from_micros(u64::try_from(value.tv_usec).unwrap_or_default())
    };
    (time(usage.ru_utime), time(usage.ru_stime))
}
