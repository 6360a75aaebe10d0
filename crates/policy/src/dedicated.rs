//! Chooses the cores to dedicate to wide SIMD code. How many is decided elsewhere.
//!
//! Whole cores: the hardware threads of a core share its clock and its license, so a dedicated
//! thread beside a normal one would slow the code that it is to protect. Near the program: each
//! hand-over sends a cache line there and back. Cores of the same last-level cache come first, then
//! of the same NUMA node, then of the same package. The last core that the program has for
//! everything else is never dedicated. Paper 003 leaves sets of NUMA nodes for later.

use std::cmp::Reverse;

use dimmer_processor::topology::{Cpu, Distance, Topology};
use dimmer_processor::units::{CoreId, CpuId};

/// Why this many cores cannot be dedicated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CannotDedicate {
    /// No core was asked for.
    #[error("no core was asked for")]
    None,
    /// More cores were asked for than can be spared. One of the program's cores stays for
    /// everything else, and a core that may be used only in part is not dedicated.
    #[error("cores asked for: {wanted}; that can be spared of those that may be used: {spare}")]
    TooMany {
        /// Number of cores asked for.
        wanted: usize,
        /// Number of cores that can be dedicated.
        spare: usize,
    },
}

/// Picks `wanted` cores. Returns all their online hardware threads, core by core, the nearest core
/// first, ascending within each.
///
/// * `allowed`: the hardware threads that may be used at all.
/// * `program`: the hardware threads that the program runs on now; they define what is near. If it
///   is empty, or none of them is allowed, no core is nearer than another, and each NUMA node gives
///   one in turn, so that programs on any node soon have one near.
///
/// At the same distance, cores of the program's kind come first (on a hybrid processor), then cores
/// that the program does not run on, then the last ones. What starts with the machine (interrupts,
/// system services) tends to be on the first cores; that is a habit of Linux, no promise.
///
/// # Errors
/// [`CannotDedicate`].
///
/// # Cost
/// O(n²·caches) in hardware threads. Call it when the number changes.
pub fn pick(
    topology: &Topology,
    allowed: &[CpuId],
    program: &[CpuId],
    wanted: usize,
) -> Result<Vec<CpuId>, CannotDedicate> {
    if wanted == 0 {
        return Err(CannotDedicate::None);
    }
    let usable = |cpu: &&Cpu| cpu.online && allowed.contains(&cpu.id);
    let near: Vec<&Cpu> =
        topology.cpus.iter().filter(usable).filter(|cpu| program.contains(&cpu.id)).collect();
    let threads = |core: CoreId| -> Vec<&Cpu> {
        topology.cpus.iter().filter(|cpu| cpu.online && cpu.core == core).collect()
    };
    let is_whole = |core: CoreId| threads(core).iter().all(|cpu| allowed.contains(&cpu.id));
    let is_programs = |core: CoreId| near.iter().any(|cpu| cpu.core == core);

    let mut cores: Vec<CoreId> = topology.cpus.iter().filter(usable).map(|cpu| cpu.core).collect();
    cores.sort_unstable();
    cores.dedup();
    // The core that stays: one of the program's, preferably one that cannot be dedicated anyway.
    let stays = cores.iter().copied().min_by_key(|core| (!is_programs(*core), is_whole(*core)));
    let cores: Vec<CoreId> =
        cores.into_iter().filter(|core| is_whole(*core) && Some(*core) != stays).collect();
    if wanted > cores.len() {
        return Err(CannotDedicate::TooMany { wanted, spare: cores.len() });
    }
    let node = |core: &CoreId| threads(*core).first().map(|cpu| (cpu.package, cpu.node));
    let nodes: Vec<_> = cores.iter().map(node).collect();
    // Number of cores of its node that are picked before it: those after it in the list.
    let turn = |place: usize| {
        let after = nodes[place + 1..].iter().filter(|node| **node == nodes[place]);
        if near.is_empty() { after.count() } else { 0 }
    };
    let rank = |(place, core): (usize, CoreId)| {
        let nearest = threads(core).into_iter().map(|cpu| distance(topology, cpu, &near)).min();
        ((nearest, is_programs(core), turn(place)), Reverse(core))
    };
    let mut ranked: Vec<_> = cores.iter().copied().enumerate().map(rank).collect();
    ranked.sort_unstable();
    let in_order = ranked.into_iter().map(|(_, Reverse(core))| core);
    Ok(in_order.take(wanted).flat_map(threads).map(|cpu| cpu.id).collect())
}

/// The distance of a hardware thread from the nearest of `others`, and whether its core is of
/// another kind than all of theirs.
fn distance(topology: &Topology, cpu: &Cpu, others: &[&Cpu]) -> (Distance, bool) {
    let nearest = others.iter().map(|other| topology.distance(cpu.id, other.id)).min();
    let is_other_kind = !others.is_empty() && others.iter().all(|other| other.kind != cpu.kind);
    (nearest.unwrap_or(Distance::Cache), is_other_kind)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use dimmer_processor::topology::{Cache, CacheContent, CoreKind};
    use dimmer_processor::units::{KibiBytes, NodeId, PackageId};

    use super::*;

    /// A machine of packages (a node each), with this many caches a package, cores a cache, and
    /// threads a core. The threads of a core are far apart in number, as on Linux.
    fn machine(packages: u32, caches: u32, cores: u32, threads: u32) -> Topology {
        let all = packages * caches * cores;
        let cpu = |id: u32| {
            let core = id % all;
            let package = core / (caches * cores);
            Cpu {
                id: CpuId::new(id),
                core: CoreId::new(core),
                package: PackageId::new(package),
                node: Some(NodeId::new(package)),
                kind: CoreKind::Uniform,
                online: true,
            }
        };
        let cpus: Vec<Cpu> = (0..all * threads).map(cpu).collect();
        let shared = |level, size, each: u32| {
            let group = move |cpu: &&Cpu, number| cpu.core.index() / each == number;
            let of =
                |number| cpus.iter().filter(|cpu| group(cpu, number)).map(|cpu| cpu.id).collect();
            let cache = |number| Cache {
                level,
                content: CacheContent::Unified,
                size: KibiBytes::from_kib(size),
                cpus: of(number),
            };
            (0..all / each).map(cache).collect::<Vec<_>>()
        };
        let caches = [shared(2, 1024, 1), shared(3, 32768, cores)].concat();
        Topology { cpus, caches }
    }

    fn ids(numbers: &[u32]) -> Vec<CpuId> {
        numbers.iter().map(|number| CpuId::new(*number)).collect()
    }

    fn of_mask(mask: u32) -> Vec<CpuId> {
        (0..8).filter(|bit| mask & 1 << bit != 0).map(CpuId::new).collect()
    }

    #[track_caller]
    fn check(topology: &Topology, allowed: u32, program: u32, wanted: usize, expected: &[u32]) {
        let picked = pick(topology, &of_mask(allowed), &of_mask(program), wanted);
        assert_eq!(picked, Ok(ids(expected)));
    }

    #[test]
    fn whole_cores_from_the_end() {
        let machine = machine(1, 1, 4, 2);
        check(&machine, 0xFF, 0xFF, 1, &[3, 7]);
        check(&machine, 0xFF, 0, 2, &[3, 7, 2, 6]);
        // Half of core 3 is not allowed.
        check(&machine, 0x7F, 0x7F, 1, &[2, 6]);
    }

    #[test]
    fn near_the_program_first_and_not_its_own_core() {
        // Two packages of two caches with two cores each.
        let machine = machine(2, 2, 2, 1);
        check(&machine, 0xFF, 1 << 0, 7, &[1, 3, 2, 7, 6, 5, 4]);
        check(&machine, 0xFF, 1 << 7, 3, &[6, 5, 4]);
        check(&machine, 0xFF, 0b11, 1, &[1]);
        check(&machine, 0b11, 0b10, 1, &[0]);
    }

    #[test]
    fn nodes_take_turns_where_nobody_knows_the_programs() {
        // Two nodes of four cores. The first core stays.
        let machine = machine(2, 2, 2, 1);
        check(&machine, 0xFF, 0, 7, &[7, 3, 6, 2, 5, 1, 4]);
        check(&machine, 0x3F, 0, 5, &[5, 3, 4, 2, 1]);
    }

    #[test]
    fn a_cores_kind_counts_at_the_same_distance() {
        let mut machine = machine(1, 1, 4, 1);
        for cpu in &mut machine.cpus {
            let is_fast = cpu.core.index() < 2;
            cpu.kind = if is_fast { CoreKind::Performance } else { CoreKind::Efficiency };
        }
        check(&machine, 0xF, 1, 3, &[1, 3, 2]);
        check(&machine, 0xF, 0b1000, 3, &[2, 1, 0]);
    }

    #[test]
    fn offline_threads_are_neither_dedicated_nor_in_the_way() {
        let mut machine = machine(1, 1, 2, 2);
        machine.cpus[3].online = false;
        check(&machine, 0b0111, 0b0111, 1, &[1]);
    }

    #[test]
    fn says_how_many_can_be_spared() {
        let machine = machine(1, 1, 2, 2);
        let all = of_mask(0xF);
        assert_eq!(pick(&machine, &all, &all, 0), Err(CannotDedicate::None));
        let error = pick(&machine, &all, &all, 2).unwrap_err();
        assert_eq!(error, CannotDedicate::TooMany { wanted: 2, spare: 1 });
        // The whole core may be dedicated, because half a core is left.
        assert_eq!(pick(&machine, &of_mask(0b0111), &[], 1), Ok(ids(&[0, 2])));
        assert!(pick(&machine, &of_mask(0b0101), &[], 1).is_err());
        assert!(pick(&Topology::default(), &all, &all, 1).is_err());
    }

    /// Checks what holds on every machine, for all that may be allowed, on some machines with up to
    /// eight threads, one by one.
    #[test]
    fn whatever_is_allowed_whole_cores_are_dedicated_near_the_program_and_one_is_left() {
        for (packages, caches, cores, threads) in
            [(1, 1, 1, 1), (1, 1, 1, 2), (1, 1, 4, 2), (2, 1, 2, 2), (1, 2, 2, 2), (2, 2, 2, 1)]
        {
            let machine = machine(packages, caches, cores, threads);
            let number = machine.cpus.len();
            for allowed in 0..1_u32 << number {
                for program in [0, 1, allowed, 0b1010_1010, 0b0001_1000, 0b1100_0000] {
                    for wanted in 1..=number {
                        holds(&machine, &of_mask(allowed), &of_mask(program), wanted);
                    }
                }
            }
        }
    }

    fn holds(machine: &Topology, allowed: &[CpuId], program: &[CpuId], wanted: usize) {
        let core = |cpu: &CpuId| machine.cpu(*cpu).unwrap().core;
        let cores = |cpus: &[CpuId]| cpus.iter().map(core).collect::<BTreeSet<CoreId>>();
        let allowed: Vec<CpuId> =
            allowed.iter().copied().filter(|cpu| machine.cpu(*cpu).is_some()).collect();
        let programs: Vec<CpuId> =
            program.iter().copied().filter(|cpu| allowed.contains(cpu)).collect();
        let picked = match pick(machine, &allowed, program, wanted) {
            Ok(picked) => picked,
            Err(CannotDedicate::TooMany { spare, .. }) => {
                // The number that is reported as possible is possible.
                assert!(spare < wanted);
                assert!(spare == 0 || pick(machine, &allowed, program, spare).is_ok());
                return;
            }
            Err(CannotDedicate::None) => panic!("one was asked for"),
        };
        let dedicated = cores(&picked);
        assert_eq!(dedicated.len(), wanted);
        assert_eq!(picked.iter().collect::<BTreeSet<_>>().len(), picked.len(), "each once");
        for cpu in &machine.cpus {
            assert_eq!(picked.contains(&cpu.id), dedicated.contains(&cpu.core), "whole cores");
        }
        assert!(picked.iter().all(|cpu| allowed.contains(cpu)));
        let rest = if programs.is_empty() { cores(&allowed) } else { cores(&programs) };
        assert!(!rest.is_subset(&dedicated), "a core is left, one of the program's");
        // A pick of more cores starts with the pick of fewer.
        if wanted > 1 {
            let fewer = pick(machine, &allowed, program, wanted - 1).unwrap();
            assert!(picked.starts_with(&fewer));
        }
        // A core of another package is picked only if the program's own packages have none left,
        // except the core that stays.
        let package = |cpu: &CpuId| machine.cpu(*cpu).unwrap().package;
        let near: BTreeSet<PackageId> = programs.iter().map(package).collect();
        if !near.is_empty() && picked.iter().any(|cpu| !near.contains(&package(cpu))) {
            let left = cores(&allowed).into_iter().filter(|core| {
                let threads: Vec<&Cpu> =
                    machine.cpus.iter().filter(|cpu| cpu.core == *core).collect();
                let is_whole = threads.iter().all(|cpu| allowed.contains(&cpu.id));
                is_whole && near.contains(&threads[0].package) && !dedicated.contains(core)
            });
            assert!(left.count() <= 1);
        }
    }
}
