//! Which CPUs are slow on a machine whose user does not name them.

use dimmer_host::root::Root;
use dimmer_host::{cpufreq, topology};
use dimmer_policy::phases::slow_cpus;
use dimmer_processor::topology::{CoreKind, Topology};
use dimmer_processor::units::CpuId;

use crate::LaunchError;

/// The slow CPUs among these: the efficiency cores of a hybrid processor, or those whose highest
/// clock, or performance, is lower than that of others.
///
/// # Errors
/// [`LaunchError::NoSlowCpu`] if the machine reports none; [`LaunchError::Topology`].
pub(crate) fn find(root: &Root, allowed: &[CpuId]) -> Result<Vec<CpuId>, LaunchError> {
    let topology = topology::read(root).map_err(LaunchError::Topology)?;
    let of = |kind| of_kind(&topology, allowed, kind);
    let (fast, mut slow) = (of(CoreKind::Performance), of(CoreKind::Efficiency));
    if fast.is_empty() {
        slow = slow_cpus(&speeds(root, allowed));
    }
    if slow.is_empty() { Err(LaunchError::NoSlowCpu) } else { Ok(slow) }
}

fn of_kind(topology: &Topology, allowed: &[CpuId], kind: CoreKind) -> Vec<CpuId> {
    let cpus = topology.cpus.iter().filter(|cpu| cpu.online && cpu.kind == kind);
    cpus.map(|cpu| cpu.id).filter(|cpu| allowed.contains(cpu)).collect()
}

/// The highest speed of each CPU: the clock that the settings allow, or, if no CPU has a clock, the
/// firmware's number for its performance. CPUs without one are left out.
fn speeds(root: &Root, allowed: &[CpuId]) -> Vec<(CpuId, u64)> {
    let mut clocks = Vec::new();
    for policy in cpufreq::policies(root) {
        let Some((_, highest)) = policy.allowed else { continue };
        let cpus = policy.cpus.into_iter().filter(|cpu| allowed.contains(cpu));
        clocks.extend(cpus.map(|cpu| (cpu, highest.khz())));
    }
    if !clocks.is_empty() {
        return clocks;
    }
    let performance = |cpu: &CpuId| {
        let number = root.integer(&format!("{}/cpu{cpu}/acpi_cppc/highest_perf", topology::CPUS));
        Some((*cpu, u64::try_from(number.ok()?).ok()?))
    };
    allowed.iter().filter_map(performance).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPUS: &str = "sys/devices/system/cpu";

    struct Made(tempfile::TempDir);

    impl Made {
        fn with_four_cpus() -> Self {
            let made = Self(tempfile::tempdir().unwrap());
            made.write(&format!("{CPUS}/present"), "0-3\n");
            made.write(&format!("{CPUS}/online"), "0-3\n");
            made
        }

        fn write(&self, file: &str, text: &str) {
            let path = self.0.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        fn find(&self, allowed: &[u32]) -> Option<Vec<u32>> {
            let allowed: Vec<CpuId> = allowed.iter().copied().map(CpuId::new).collect();
            match find(&Root::new(self.0.path()), &allowed) {
                Ok(slow) => Some(slow.into_iter().map(CpuId::index).collect()),
                Err(LaunchError::NoSlowCpu) => None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[test]
    fn efficiency_cores_are_slow_where_there_are_others() {
        let made = Made::with_four_cpus();
        assert_eq!(made.find(&[0, 1, 2, 3]), None);
        made.write("sys/devices/cpu_core/cpus", "0-1\n");
        made.write("sys/devices/cpu_atom/cpus", "2-3\n");
        assert_eq!(made.find(&[0, 1, 2, 3]), Some(vec![2, 3]));
        assert_eq!((made.find(&[0, 1]), made.find(&[2, 3])), (None, None));
    }

    #[test]
    fn cpus_whose_highest_clock_is_lower_are_slow() {
        let made = Made::with_four_cpus();
        // The clocks count, not the firmware's numbers.
        for (cpu, performance) in [(0, 100), (1, 255), (2, 255), (3, 255)] {
            let file = format!("{CPUS}/cpu{cpu}/acpi_cppc/highest_perf");
            made.write(&file, &format!("{performance}\n"));
        }
        assert_eq!(made.find(&[0, 1, 2, 3]), Some(vec![0]));
        for (policy, cpus, highest) in [(0, "0 1", "3400000\n"), (2, "2 3", "1400000\n")] {
            let policy = format!("{CPUS}/cpufreq/policy{policy}");
            made.write(&format!("{policy}/affected_cpus"), cpus);
            made.write(&format!("{policy}/scaling_min_freq"), "800000\n");
            made.write(&format!("{policy}/scaling_max_freq"), highest);
        }
        assert_eq!(made.find(&[0, 1, 2, 3]), Some(vec![2, 3]));
        assert_eq!(made.find(&[0, 3]), Some(vec![3]));
        assert_eq!(made.find(&[2, 3]), None);
    }
}
