//! Time that a hypervisor stole, as `/proc/stat` counts it.
//!
//! Coarse: the kernel counts in ticks of 10 ms, so it shows that a second was disturbed, but not
//! which part of it. Shorter steals show up as gaps in the time-stamp counter.

use dimmer_processor::units::{CpuId, Nanos};

use crate::root::{Root, RootError};

/// One tick of `/proc/stat`: USER_HZ is 100 on x86 (Linux `include/asm-generic/param.h`).
const TICK: Nanos = Nanos::from_ms(10);

/// The time stolen from each CPU since boot, ascending by number.
///
/// # Errors
/// [`RootError`]: `/proc/stat` cannot be read.
pub fn stolen(root: &Root) -> Result<Vec<(CpuId, Nanos)>, RootError> {
    let text = root.text("/proc/stat")?;
    let mut stolen: Vec<_> = text.lines().filter_map(line).collect();
    stolen.sort_unstable_by_key(|(cpu, _)| *cpu);
    Ok(stolen)
}

/// `cpu0 user nice system idle iowait irq softirq steal guest guest_nice`.
fn line(line: &str) -> Option<(CpuId, Nanos)> {
    let mut fields = line.strip_prefix("cpu")?.split(' ');
    let cpu = CpuId::new(fields.next()?.parse().ok()?);
    let ticks: u64 = fields.nth(7)?.parse().ok()?;
    Some((cpu, Nanos::from_ns(ticks.saturating_mul(TICK.ns()))))
}
