//! What this process may do, from `/proc/self`.
//!
//! Read from files, not by system calls, so that a made-up machine has made-up privileges too.

use dimmer_processor::units::CpuId;

use crate::root::{Root, RootError};
use crate::topology;

/// A Linux capability that Dimmer can use; the value is its bit in `CapEff`.
/// Source: Linux `include/uapi/linux/capability.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinuxCapability {
    /// Lock memory beyond the limit.
    IpcLock = 14,
    /// Open `/dev/cpu/*/msr`.
    SysRawio = 17,
    /// Nearly everything, including all that `Perfmon` and `Bpf` allow.
    SysAdmin = 21,
    /// Real-time scheduling beyond the limit.
    SysNice = 23,
    /// Performance counters and probes beyond `perf_event_paranoid`.
    Perfmon = 38,
    /// Loading BPF programs.
    Bpf = 39,
}

/// What this process may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Privileges {
    effective: u64,
    /// Highest real-time priority that it may set; 0 for none.
    pub real_time_priority: u64,
    /// Memory that it may lock, in bytes; `u64::MAX` for unlimited.
    pub locked_memory: u64,
}

impl Privileges {
    /// Reads `/proc/self/status` and `/proc/self/limits`. A missing entry counts as not allowed.
    #[must_use]
    pub fn read(root: &Root) -> Self {
        let effective = status_field(root, "CapEff:")
            .and_then(|value| u64::from_str_radix(&value, 16).ok())
            .unwrap_or(0);
        Self {
            effective,
            real_time_priority: soft_limit(root, "Max realtime priority").unwrap_or(0),
            locked_memory: soft_limit(root, "Max locked memory").unwrap_or(0),
        }
    }

    /// Whether `capability` is in effect.
    #[must_use]
    pub const fn has(&self, capability: LinuxCapability) -> bool {
        self.effective & (1 << capability as u32) != 0
    }

    /// Whether `capability` or CAP_SYS_ADMIN, which includes it, is in effect.
    #[must_use]
    pub const fn has_or_admin(&self, capability: LinuxCapability) -> bool {
        self.has(capability) || self.has(LinuxCapability::SysAdmin)
    }
}

/// The online CPUs that the scheduler may run this process on, ascending. The kernel's own list
/// also has CPUs that are offline or that the firmware only reserves for hot-plugging; without
/// `/sys`, as in some sandboxes, they stay in.
///
/// # Errors
/// [`RootError`]: `/proc/self/status` or its field is missing.
pub fn allowed_cpus(root: &Root) -> Result<Vec<CpuId>, RootError> {
    let text = root.text(STATUS)?;
    let found = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let mut cpus = root.parse_cpu_list(STATUS, found.unwrap_or("(no Cpus_allowed_list)"))?;
    if let Ok(online) = root.cpu_list(topology::ONLINE) {
        cpus.retain(|cpu| online.contains(cpu));
    }
    Ok(cpus)
}

const STATUS: &str = "/proc/self/status";

fn status_field(root: &Root, name: &str) -> Option<String> {
    let text = root.text(STATUS).ok()?;
    text.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
}

fn soft_limit(root: &Root, name: &str) -> Option<u64> {
    let text = root.text("/proc/self/limits").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}
