//! Packages, NUMA nodes, cores, CPUs and caches, and how CPUs share them.

use crate::units::{CoreId, CpuId, KibiBytes, NodeId, PackageId};

/// The kind of a core on a hybrid processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CoreKind {
    /// The only kind, on a processor that is not hybrid.
    Uniform,
    /// The fast kind ("P-core", "big").
    Performance,
    /// The power-saving kind ("E-core", "LITTLE").
    Efficiency,
}

/// One CPU and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// The CPU's number.
    pub id: CpuId,
    /// The core it belongs to.
    pub core: CoreId,
    /// The package its core belongs to.
    pub package: PackageId,
    /// The NUMA node; `None` if the machine does not report it.
    pub node: Option<NodeId>,
    /// The kind of its core.
    pub kind: CoreKind,
    /// Whether the CPU is online.
    pub online: bool,
}

/// What a cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CacheContent {
    /// Data only.
    Data,
    /// Instructions only.
    Instruction,
    /// Data and instructions.
    Unified,
}

/// One cache and the CPUs that share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// The cache level; level 1 is next to the core.
    pub level: u8,
    /// What it holds.
    pub content: CacheContent,
    /// The cache's size.
    pub size: KibiBytes,
    /// The CPUs that share it, ascending.
    pub cpus: Vec<CpuId>,
}

/// The machine's CPUs and caches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Every CPU, ascending by number, including offline ones.
    pub cpus: Vec<Cpu>,
    /// Every cache once, ascending by level.
    pub caches: Vec<Cache>,
}

/// The smallest unit that two CPUs share, smallest first. The smaller the unit, the shorter a cache
/// line's way from one CPU to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// They share the last-level cache.
    Cache,
    /// They share the NUMA node.
    Node,
    /// They share the package.
    Package,
    /// They share only the machine.
    Machine,
}

impl Topology {
    /// The CPU numbered `id`.
    #[must_use]
    pub fn cpu(&self, id: CpuId) -> Option<&Cpu> {
        self.cpus.iter().find(|cpu| cpu.id == id)
    }

    /// Index in [`Self::caches`] of a CPU's last-level cache.
    #[must_use]
    pub fn last_cache(&self, cpu: CpuId) -> Option<usize> {
        let caches = self.caches.iter().enumerate();
        let of_it = caches.filter(|(_, cache)| cache.cpus.contains(&cpu));
        of_it.max_by_key(|(_, cache)| cache.level).map(|(place, _)| place)
    }

    /// The distance between two CPUs; the largest distance if either is unknown.
    ///
    /// # Cost
    /// Linear in the number of CPUs and caches.
    #[must_use]
    pub fn distance(&self, one: CpuId, other: CpuId) -> Distance {
        let shares =
            |place: usize| self.caches.get(place).is_some_and(|cache| cache.cpus.contains(&other));
        if self.last_cache(one).is_some_and(shares) {
            return Distance::Cache;
        }
        match (self.cpu(one), self.cpu(other)) {
            (Some(one), Some(other)) if one.package == other.package => {
                if one.node == other.node {
                    Distance::Node
                } else {
                    Distance::Package
                }
            }
            _ => Distance::Machine,
        }
    }

    /// The other CPUs of the core that `id` belongs to (its SMT siblings), ascending.
    #[must_use]
    pub fn siblings(&self, id: CpuId) -> Vec<CpuId> {
        let Some(own) = self.cpu(id) else { return Vec::new() };
        let same_core = self.cpus.iter().filter(|cpu| cpu.core == own.core && cpu.id != id);
        same_core.map(|cpu| cpu.id).collect()
    }

    /// Number of physical cores with an online CPU.
    #[must_use]
    pub fn online_cores(&self) -> usize {
        let mut cores: Vec<CoreId> =
            self.cpus.iter().filter(|cpu| cpu.online).map(|cpu| cpu.core).collect();
        cores.sort_unstable();
        cores.dedup();
        cores.len()
    }
}
