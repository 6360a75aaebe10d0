//! The CPU to measure: the same checks for all commands that time real code.

use dimmer_host::affinity;
use dimmer_host::machine::Machine;
use dimmer_host::root::Root;
use dimmer_processor::units::CpuId;

use crate::bad_input;

/// The requested CPU, if it can be used, or the last allowed one.
pub(crate) fn cpu(machine: &Machine, asked: Option<u32>) -> anyhow::Result<CpuId> {
    let default_cpu = machine.allowed.last().copied().unwrap_or(CpuId::new(0));
    let cpu = asked.map_or(default_cpu, CpuId::new);
    affinity::check(&Root::live(), cpu).map_err(bad_input)?;
    Ok(cpu)
}

/// Checks that the time-stamp counter measures time.
pub(crate) fn check_clock(machine: &Machine) -> anyhow::Result<()> {
    if !machine.tsc.invariant {
        anyhow::bail!(
            "cannot measure by timing here: the time-stamp counter of this machine is not \
             invariant, so it tells no time (CPUID leaf 0x80000007, bit 8 of edx)"
        );
    }
    Ok(())
}
