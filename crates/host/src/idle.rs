//! Time in which hardware threads had nothing to run, as `/proc/stat` counts it.

use dimmer_processor::units::CpuId;

use crate::root::{Root, RootError};

/// Ticks of `/proc/stat` in a second: USER_HZ is 100 on x86 (Linux `include/asm-generic/param.h`).
pub const TICKS_PER_S: f64 = 100.0;

/// Idle ticks of these hardware threads together since the machine began, those in which they waited
/// for disks included; `None` if it has none of them.
///
/// # Errors
/// [`RootError`]: `/proc/stat` cannot be read.
pub fn ticks(root: &Root, of: &[CpuId]) -> Result<Option<u64>, RootError> {
    let text = root.text("/proc/stat")?;
    let mut ticks = None;
    for line in text.lines() {
        // cpuN user nice system idle iowait ... (proc_stat(5)).
        let mut words = line.split_ascii_whitespace();
        let cpu = words.next().and_then(|word| word.strip_prefix("cpu")?.parse().ok());
        if cpu.is_some_and(|cpu| of.contains(&CpuId::new(cpu))) {
            let idle = words.skip(3).take(2).map(|word| word.parse::<u64>().unwrap_or(0));
            ticks = Some(idle.fold(ticks.unwrap_or(0), u64::saturating_add));
        }
    }
    Ok(ticks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_those_of_the_threads_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::new(directory.path());
        let of = |cpus: &[u32]| {
            let cpus: Vec<CpuId> = cpus.iter().copied().map(CpuId::new).collect();
            ticks(&root, &cpus)
        };
        assert!(of(&[0]).is_err());
        std::fs::create_dir(directory.path().join("proc")).unwrap();
        let text = "cpu  9 9 9 99 9 9\ncpu0 5 5 5 100 10 3\ncpu1 1 1 1 7 2 0\ncpu2 1\nintr 7\n";
        std::fs::write(directory.path().join("proc/stat"), text).unwrap();
        assert_eq!(of(&[0]).unwrap(), Some(110));
        assert_eq!(of(&[0, 1, 2]).unwrap(), Some(119));
        assert_eq!(of(&[7]).unwrap(), None);
    }
}
