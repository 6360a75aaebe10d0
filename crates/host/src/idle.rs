//! Time in which CPUs were idle, or busy, as `/proc/stat` counts it.

use std::time::Duration;

use dimmer_processor::units::CpuId;

use crate::root::{Root, RootError};

/// Ticks of `/proc/stat` per second: USER_HZ is 100 on x86 (Linux `include/asm-generic/param.h`).
pub const TICKS_PER_S: f64 = 100.0;

/// Idle ticks of each CPU since boot, including ticks spent waiting for disks, in the order of the
/// file.
///
/// # Errors
/// [`RootError`]: `/proc/stat` cannot be read.
pub fn ticks(root: &Root) -> Result<Vec<(CpuId, u64)>, RootError> {
    Ok(root.text("/proc/stat")?.lines().filter_map(line).collect())
}

/// The time since boot in which these CPUs executed something, added up, in steps of a tick:
/// programs (`user`, `nice`), the kernel (`system`), and interrupts (`irq`, `softirq`). Guests are
/// in `user`. Time that a hypervisor stole is not in it.
///
/// # Errors
/// [`RootError`]: `/proc/stat` cannot be read.
pub fn busy(root: &Root, cpus: &[CpuId]) -> Result<Duration, RootError> {
    let text = root.text("/proc/stat")?;
    let of_line = |line| {
        let (cpu, ticks) = fields(line)?;
        let &[user, nice, system, _, _, irq, soft_irq, ..] = &ticks[..] else { return None };
        cpus.contains(&cpu).then_some([user, nice, system, irq, soft_irq])
    };
    let ticks = text.lines().filter_map(of_line).flatten().fold(0, u64::saturating_add);
    Ok(Duration::from_secs_f64(ticks as f64 / TICKS_PER_S))
}

fn line(line: &str) -> Option<(CpuId, u64)> {
    let (cpu, ticks) = fields(line)?;
    let &[_, _, _, idle, waiting, ..] = &ticks[..] else { return None };
    Some((cpu, idle.saturating_add(waiting)))
}

/// `cpu0 user nice system idle iowait irq softirq steal guest guest_nice`: the CPU, and its ticks
/// in this order.
fn fields(line: &str) -> Option<(CpuId, Vec<u64>)> {
    let mut fields = line.strip_prefix("cpu")?.split(' ');
    let cpu = CpuId::new(fields.next()?.parse().ok()?);
    Some((cpu, fields.map_while(|field| field.parse().ok()).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_those_of_each_thread() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::new(directory.path());
        assert!(ticks(&root).is_err());
        std::fs::create_dir(directory.path().join("proc")).unwrap();
        let text = "cpu  9 9 9 99 9 9\ncpu0 5 5 5 100 10 3\ncpu7 1 1 1 7 2 0\ncpu2 1\nintr 7\n";
        std::fs::write(directory.path().join("proc/stat"), text).unwrap();
        assert_eq!(ticks(&root).unwrap(), [(CpuId::new(0), 110), (CpuId::new(7), 9)]);
    }

    #[test]
    fn busy_is_what_is_neither_idle_nor_waiting_nor_stolen() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::new(directory.path());
        let cpus = [0, 7].map(CpuId::new);
        assert!(busy(&root, &cpus).is_err());
        std::fs::create_dir(directory.path().join("proc")).unwrap();
        let text = "cpu  9 9 9 99 9 9 9 9 9 9\n\
                    cpu0 100 20 3 5000 600 40 5 7000 80 0\n\
                    cpu1 1 1 1 1 1 1 1 1 1 1\n\
                    cpu7 1 0 1 7 2 0 0 0 0 0\n";
        std::fs::write(directory.path().join("proc/stat"), text).unwrap();
        assert_eq!(busy(&root, &cpus).unwrap(), Duration::from_millis(1700));
        assert_eq!(busy(&root, &[]).unwrap(), Duration::ZERO);
    }
}
