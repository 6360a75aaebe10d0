//! Frequency policies as the kernel's cpufreq reports them. Read-only.
//!
//! Source: Linux `Documentation/admin-guide/pm/cpufreq.rst`.

pub mod clocks;
pub mod preference;

use dimmer_processor::units::{CpuId, KiloHertz};

use crate::root::Root;

/// The kernel's directory of policies, one subdirectory per policy.
pub const POLICIES: &str = "/sys/devices/system/cpu/cpufreq";

/// CPUs whose clock is set together, with its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The name of the policy's directory: `policy0`.
    pub name: String,
    /// The CPUs of the policy, ascending.
    pub cpus: Vec<CpuId>,
    /// The driver: `intel_pstate`, `amd-pstate-epp`, `acpi-cpufreq`.
    pub driver: Option<String>,
    /// The governor: `performance`, `schedutil`.
    pub governor: Option<String>,
    /// The lowest and the highest frequency of the hardware.
    pub hardware: Option<(KiloHertz, KiloHertz)>,
    /// The lowest and the highest frequency that the settings allow.
    pub allowed: Option<(KiloHertz, KiloHertz)>,
    /// Whether this process may change the settings.
    pub writable: bool,
}

/// All policies, by number; empty without a driver, as in most virtual machines.
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

/// The clock of each CPU as the kernel reports it now, ascending; empty without a driver. Reads two
/// files per policy.
#[must_use]
pub fn clocks(root: &Root) -> Vec<(CpuId, KiloHertz)> {
    let mut clocks = Vec::new();
    for name in root.list(POLICIES).unwrap_or_default() {
        let Some(khz) = frequency(root, &name, "scaling_cur_freq") else { continue };
        clocks.extend(cpus(root, &name).into_iter().map(|cpu| (cpu, khz)));
    }
    clocks.sort_unstable_by_key(|(cpu, _)| *cpu);
    clocks
}

/// The clock of a policy's CPUs as the kernel reports it now.
#[must_use]
pub fn clock(root: &Root, policy: &Policy) -> Option<KiloHertz> {
    frequency(root, &policy.name, "scaling_cur_freq")
}

fn frequency(root: &Root, name: &str, file: &str) -> Option<KiloHertz> {
    let khz = root.integer(&format!("{POLICIES}/{name}/{file}")).ok()?;
    Some(KiloHertz::from_khz(u64::try_from(khz).ok()?))
}

/// The CPUs of a policy.
fn cpus(root: &Root, name: &str) -> Vec<CpuId> {
    // affected_cpus separates numbers by blanks, other files by commas.
    let affected = root.text(&format!("{POLICIES}/{name}/affected_cpus")).unwrap_or_default();
    affected.split_whitespace().filter_map(|cpu| cpu.parse().ok().map(CpuId::new)).collect()
}

fn policy(root: &Root, name: String) -> Policy {
    let path = |file: &str| format!("{POLICIES}/{name}/{file}");
    let frequency = |file: &str| frequency(root, &name, file);
    Policy {
        cpus: cpus(root, &name),
        driver: root.text(&path("scaling_driver")).ok(),
        governor: root.text(&path("scaling_governor")).ok(),
        hardware: frequency("cpuinfo_min_freq").zip(frequency("cpuinfo_max_freq")),
        allowed: frequency("scaling_min_freq").zip(frequency("scaling_max_freq")),
        writable: root.is_writable(&path("scaling_max_freq")),
        name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_the_clock_of_every_thread_that_has_one() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::new(directory.path());
        assert_eq!(clocks(&root), []);
        let files = [
            ("policy2", "2 3", "3100000\n"),
            ("policy0", "0", "2800000\n"),
            ("policy4", "4", "none"),
        ];
        for (policy, cpus, khz) in files {
            let policy = root.path(&format!("{POLICIES}/{policy}"));
            std::fs::create_dir_all(&policy).unwrap();
            std::fs::write(policy.join("affected_cpus"), cpus).unwrap();
            std::fs::write(policy.join("scaling_cur_freq"), khz).unwrap();
        }
        let expected = [(0, 2_800), (2, 3_100), (3, 3_100)];
        let expected = expected.map(|(cpu, mhz)| (CpuId::new(cpu), KiloHertz::from_mhz(mhz)));
        assert_eq!(clocks(&root), expected);
    }
}
