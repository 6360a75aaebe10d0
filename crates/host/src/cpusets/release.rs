//! How kernel releases differ in what they do to threads whose cpuset changes.

use std::fmt;

use dimmer_processor::units::CpuId;

use super::unavailable;
use crate::root::{Root, format_cpu_list};
use crate::unavailable::Unavailable;

/// The kernel's release, as in `6.1.0-56-cloud-amd64`.
pub(super) struct Release(String);

impl Release {
    pub(super) fn read(root: &Root) -> Self {
        Self(root.text("/proc/sys/kernel/osrelease").unwrap_or_default())
    }

    /// Whether the release is older than `major.minor`. An unreadable release counts as older.
    pub(super) fn is_before(&self, major: u32, minor: u32) -> bool {
        let mut numbers = self.0.split(|character: char| !character.is_ascii_digit());
        let mut next = || numbers.next().and_then(|number| number.parse().ok()).unwrap_or(0);
        (next(), next()) < (major, minor)
    }

    /// Whether the kernel pins threads again as before when their group gets its CPUs back: since
    /// "sched: Always preserve the user requested cpumask", Linux 6.2.
    pub(super) fn keeps_pins(&self) -> bool {
        !self.is_before(6, 2)
    }

    /// The error for a thread, pinned to these CPUs, that the kernel would not pin again.
    pub(super) fn forgets(&self, thread: u32, cpus: &[CpuId]) -> Unavailable {
        let cpus = format_cpu_list(cpus);
        let why = format!("Linux {self} would forget that thread {thread} is pinned to cpu {cpus}");
        unavailable(why, "use Linux 6.2 or later, or let the thread run anywhere")
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_compare_by_two_numbers() {
        let is_before = |release: &str| Release(release.to_owned()).is_before(6, 7);
        assert!(is_before("6.1.0-cloud") && is_before("5.19.3") && is_before("nonsense"));
        assert!(!is_before("6.7.0") && !is_before("6.12.9") && !is_before("7.0"));
    }
}
