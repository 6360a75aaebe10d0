//! The machine that is measured: as a target of programs, and as a processor model.

use std::collections::BTreeSet;

use dimmer_host::events::{self, Counts};
use dimmer_host::machine::Machine;
use dimmer_host::perf::Countable;
use dimmer_host::root::Root;
use dimmer_host::tile;
use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::{Identity, Model, Move, Shape, Sourced};
use dimmer_processor::topology::Topology;
use dimmer_processor::units::CpuId;

use crate::handoff;
use crate::outcome::Findings;
use crate::session::Plan;
use crate::silicon::{Silicon, SiliconConfig};
use crate::target::TargetError;

/// The CPUs that may run code, the measured one first.
fn usable(machine: &Machine, cpu: CpuId) -> Vec<CpuId> {
    let others = machine.allowed.iter().copied().filter(|other| *other != cpu);
    std::iter::once(cpu).chain(others).collect()
}

/// The machine as a target for programs that need no counters, with AMX if they use `tiles`.
///
/// # Errors
/// [`TargetError`]: the machine cannot run programs.
pub fn silicon(machine: &Machine, cpu: CpuId, tiles: bool) -> Result<Silicon, TargetError> {
    Silicon::new(SiliconConfig {
        cpus: usable(machine, cpu),
        topology: machine.topology.clone(),
        features: features(machine, tiles),
        huge_pages: false,
        events: Vec::new(),
    })
}

/// The machine as a target for a probe, with counters and the tiles that its kernels need.
///
/// # Errors
/// [`TargetError`]: the machine cannot run programs.
pub fn silicon_for(
    machine: &Machine,
    plan: &Plan,
    huge_pages: bool,
) -> Result<Silicon, TargetError> {
    let tiles = plan.items.iter().any(|item| item.kernel.class == InstructionClass::Tile);
    Silicon::new(SiliconConfig {
        cpus: usable(machine, plan.cpu),
        topology: machine.topology.clone(),
        features: features(machine, tiles),
        huge_pages,
        events: events(machine),
    })
}

/// Extensions that code may use; AMX only if it uses `tiles`, and the kernel permits them to this
/// process, which it must be asked for.
fn features(machine: &Machine, tiles: bool) -> Vec<String> {
    let permitted = tiles && tile::permit().is_ok();
    let names = machine.features.iter().map(|feature| feature.name().to_owned());
    names.filter(|name| permitted || !name.starts_with("amx")).collect()
}

/// Cycles, and this microarchitecture's events for license levels and throttling.
fn events(machine: &Machine) -> Vec<Countable> {
    let documented = events::documented(machine.identity.microarchitecture).unwrap_or_default();
    let relevant = documented
        .iter()
        .filter(|event| matches!(event.counts, Counts::LicenseCycles(_) | Counts::ThrottledCycles));
    std::iter::once(Countable::Cycles)
        .chain(relevant.map(|event| Countable::Event(*event)))
        .collect()
}

/// The processor model made from the findings; `by` says what measured it, and when.
#[must_use]
pub fn model(findings: &Findings, machine: &Machine, by: &str) -> Model {
    let count = |count: usize| {
        let count = u32::try_from(count).ok().filter(|count| *count > 0)?;
        Some(Sourced::new(count, "Linux: /sys/devices/system/cpu"))
    };
    let topology = &machine.topology;
    let packages: BTreeSet<_> = topology.cpus.iter().map(|cpu| cpu.package).collect();
    let cores = topology.online_cores() / packages.len().max(1);
    let siblings = topology.cpus.iter().map(|cpu| 1 + topology.siblings(cpu.id).len()).max();
    let virtual_machine = machine.hypervisor.as_ref().map_or(String::new(), |name| {
        format!(" in a virtual machine under {name}, which may hide cores and siblings")
    });
    let identity = Identity {
        name: machine.identity.brand.clone(),
        vendor: machine.identity.vendor.clone(),
        microarchitecture: machine.identity.microarchitecture.to_string(),
        note: Some(format!("Measured by {by}{virtual_machine}.")),
    };
    let shape = Shape {
        packages: count(packages.len()),
        cores: count(cores),
        threads_per_core: count(siblings.unwrap_or(0)),
        ..Shape::default()
    };
    let mut model = crate::model::of(findings, identity, shape);
    model.moves.extend(cache_line(topology));
    model
}

/// Time for a cache line to go from one CPU to another, if this process may run on two.
fn cache_line(topology: &Topology) -> Option<Move> {
    let root = Root::live();
    let (home, other) = handoff::two_cpus(&root).ok()?.ok()?;
    let trip = handoff::round_trip(&root).ok()??;
    let package = |cpu| topology.cpu(cpu).map(|cpu| cpu.package);
    let kind = if topology.siblings(home).contains(&other) {
        "cache-line between siblings"
    } else if package(home) == package(other) {
        "cache-line within a package"
    } else {
        "cache-line between packages"
    };
    let source = format!("dimmer probe: half of a round trip between cpu {home} and cpu {other}");
    Some(Move { kind: kind.to_owned(), ns: Sourced::new(trip.median / 2.0, source) })
}
