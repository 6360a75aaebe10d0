//! Time in which CPUs were idle, as `/proc/stat` counts it.

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

/// `cpu0 user nice system idle iowait irq softirq steal guest guest_nice`.
fn line(line: &str) -> Option<(CpuId, u64)> {
    let mut fields = line.strip_prefix("cpu")?.split(' ');
    let cpu = CpuId::new(fields.next()?.parse().ok()?);
    let idle: u64 = fields.nth(3)?.parse().ok()?;
    let waiting: u64 = fields.next()?.parse().ok()?;
    Some((cpu, idle.saturating_add(waiting)))
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
}
