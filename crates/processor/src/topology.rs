//! Packages, NUMA nodes, cores, hardware threads and caches: who shares what with whom.

use crate::units::{CoreId, CpuId, KibiBytes, NodeId, PackageId};

/// The kind of a core on a hybrid processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CoreKind {
    /// The only kind there is, on a processor that is not hybrid.
    Uniform,
    /// The fast kind ("P-core", "big").
    Performance,
    /// The thrifty kind ("E-core", "LITTLE").
    Efficiency,
}

/// One hardware thread and where it sits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// Its number.
    pub id: CpuId,
    /// The core it belongs to.
    pub core: CoreId,
    /// The package its core belongs to.
    pub package: PackageId,
    /// The NUMA node; `None` where the machine does not say.
    pub node: Option<NodeId>,
    /// The kind of its core.
    pub kind: CoreKind,
    /// Whether it takes work now.
    pub online: bool,
}

/// What a cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CacheContent {
    /// Data only.
    Data,
    /// Instructions only.
    Instruction,
    /// Both.
    Unified,
}

/// One cache and the hardware threads that share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// 1 is next to the core.
    pub level: u8,
    /// What it holds.
    pub content: CacheContent,
    /// Its size.
    pub size: KibiBytes,
    /// Who shares it, ascending.
    pub cpus: Vec<CpuId>,
}

/// The machine's hardware threads and caches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Every hardware thread, ascending by number, offline ones included.
    pub cpus: Vec<Cpu>,
    /// Every cache, each once, ascending by level.
    pub caches: Vec<Cache>,
}

/// What two hardware threads have in common, the most first: the more, the shorter a cache line's
/// way from one to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// The last-level cache.
    Cache,
    /// The NUMA node.
    Node,
    /// The package.
    Package,
    /// The machine.
    Machine,
}

impl Topology {
    /// The hardware thread numbered `id`.
    #[must_use]
    pub fn cpu(&self, id: CpuId) -> Option<&Cpu> {
        self.cpus.iter().find(|cpu| cpu.id == id)
    }

    /// The last-level cache of a hardware thread, by its place among [`Self::caches`].
    #[must_use]
    pub fn last_cache(&self, cpu: CpuId) -> Option<usize> {
        let caches = self.caches.iter().enumerate();
        let of_it = caches.filter(|(_, cache)| cache.cpus.contains(&cpu));
        of_it.max_by_key(|(_, cache)| cache.level).map(|(place, _)| place)
    }

    /// How far two hardware threads are from each other; those that are not known are as far as can
    /// be.
    ///
    /// # Cost
    /// Linear in hardware threads and caches.
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

    /// The other hardware threads of the core that `id` belongs to, ascending.
    #[must_use]
    pub fn siblings(&self, id: CpuId) -> Vec<CpuId> {
        let Some(own) = self.cpu(id) else { return Vec::new() };
        let same_core = self.cpus.iter().filter(|cpu| cpu.core == own.core && cpu.id != id);
        same_core.map(|cpu| cpu.id).collect()
    }

    /// How many physical cores have a hardware thread that is online.
    #[must_use]
    pub fn online_cores(&self) -> usize {
        let mut cores: Vec<CoreId> =
            self.cpus.iter().filter(|cpu| cpu.online).map(|cpu| cpu.core).collect();
        cores.sort_unstable();
        cores.dedup();
        cores.len()
    }
}
