//! The CPUs that calls move to.

use dimmer_host::affinity;
use dimmer_host::cpusets;
use dimmer_host::root::Root;
use dimmer_host::topology;
use dimmer_policy::dedicated;
use dimmer_processor::units::CpuId;

use crate::{LaunchError, Reserved};

/// The dedicated CPUs: the requested ones, or those of one whole core if the program keeps another
/// core. Never CPUs that are reserved for something else.
///
/// # Errors
/// [`LaunchError`]: there are no such CPUs, or they are not free.
pub fn cores(root: &Root, asked: Option<&[CpuId]>) -> Result<Vec<CpuId>, LaunchError> {
    let held = cpusets::held_by_others(root);
    let Some(asked) = asked else {
        let topology = topology::read(root).map_err(LaunchError::Topology)?;
        let allowed = affinity::allowed().map_err(LaunchError::Affinity)?;
        let is_held = |cpu: &CpuId| held.iter().any(|held| held.cpus.contains(cpu));
        let free: Vec<CpuId> = allowed.iter().copied().filter(|cpu| !is_held(cpu)).collect();
        return dedicated::pick(&topology, &free, &allowed, 1).map_err(LaunchError::NoCore);
    };
    let isolated = topology::isolated(root);
    for cpu in asked.iter().copied() {
        let by = if let Some(held) = held.iter().find(|held| held.cpus.contains(&cpu)) {
            Reserved::Group(held.group.clone())
        } else if isolated.contains(&cpu) {
            Reserved::Isolated
        } else {
            affinity::check(root, cpu).map_err(LaunchError::Cpu)?;
            continue;
        };
        return Err(LaunchError::Reserved { cpu, by });
    }
    Ok(asked.to_vec())
}
