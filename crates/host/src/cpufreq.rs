//! Frequency policies as the kernel's cpufreq shows them. Reading only.
//!
//! Source: Linux `Documentation/admin-guide/pm/cpufreq.rst`.

use dimmer_processor::units::{CpuId, KiloHertz};

use crate::root::Root;

/// Where the kernel keeps one directory per policy.
pub const POLICIES: &str = "/sys/devices/system/cpu/cpufreq";

/// Hardware threads whose clock is set together, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The name of its directory: `policy0`.
    pub name: String,
    /// Who belongs to it, ascending.
    pub cpus: Vec<CpuId>,
    /// The driver: `intel_pstate`, `amd-pstate-epp`, `acpi-cpufreq`.
    pub driver: Option<String>,
    /// The governor: `performance`, `schedutil`.
    pub governor: Option<String>,
    /// The lowest and the highest frequency that the hardware has.
    pub hardware: Option<(KiloHertz, KiloHertz)>,
    /// The lowest and the highest frequency that the settings allow.
    pub allowed: Option<(KiloHertz, KiloHertz)>,
    /// Whether this process may change the settings.
    pub writable: bool,
}

/// All policies, by number; none where no driver runs, as in most virtual machines.
#[must_use]
pub fn policies(root: &Root) -> Vec<Policy> {
    let names = root.list(POLICIES).unwrap_or_default();
    let mut numbered: Vec<(u32, String)> = names
        .into_iter()
        .filter_map(|name| Some((name.strip_prefix("policy")?.parse().ok()?, name)))
        .collect();
    numbered.sort();
    numbered.into_iter().map(|(_, name)| policy(root, name)).collect()
}

fn policy(root: &Root, name: String) -> Policy {
    let path = |file: &str| format!("{POLICIES}/{name}/{file}");
    let frequency = |file: &str| {
        let khz = root.integer(&path(file)).ok()?;
        Some(KiloHertz::from_khz(u64::try_from(khz).ok()?))
    };
    // affected_cpus separates by blanks where other files separate by commas.
    let affected = root.text(&path("affected_cpus")).unwrap_or_default();
    let cpus = affected.split_whitespace().filter_map(|cpu| cpu.parse().ok().map(CpuId::new));
    Policy {
        cpus: cpus.collect(),
        driver: root.text(&path("scaling_driver")).ok(),
        governor: root.text(&path("scaling_governor")).ok(),
        hardware: frequency("cpuinfo_min_freq").zip(frequency("cpuinfo_max_freq")),
        allowed: frequency("scaling_min_freq").zip(frequency("scaling_max_freq")),
        writable: root.is_writable(&path("scaling_max_freq")),
        name,
    }
}
