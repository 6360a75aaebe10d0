//! Which CPUs are wide, and which are narrow.

use dimmer_processor::topology::Topology;
use dimmer_processor::units::{CpuId, NodeId};

use crate::root::{Root, RootError, format_cpu_list, parse_cpu_list};
use crate::topology;

/// The CPUs that the scheduler knows are below this number (`MAX_CPUS` in `bpf/shared.h`).
const SCHEDULED: u32 = 256;

/// Wide and narrow CPUs: whole cores, at least one of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sets {
    /// The wide CPUs, ascending; all are online.
    pub wide: Vec<CpuId>,
    /// All other CPUs that are online, ascending.
    pub narrow: Vec<CpuId>,
    /// NUMA nodes with narrow CPUs only, ascending: their threads leave the node for wide code, and
    /// their memory stays.
    pub nodes_without_wide: Vec<NodeId>,
}

/// Why CPUs cannot be the wide ones.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetsError {
    /// The text is no list.
    #[error("it is no list of CPUs as in `0-3,8`")]
    NoList,
    /// The machine does not say which CPUs it has. No other list helps.
    #[error("cannot tell which CPUs there are")]
    Topology(#[from] RootError),
    /// The scheduler does not know the CPU; affinity knows all.
    #[error("the scheduler knows CPUs 0-{last}, not CPU {cpu}; --affinity knows all")]
    BeyondScheduler {
        /// The CPU.
        cpu: CpuId,
        /// The last one that the scheduler knows.
        last: u32,
    },
    /// None is named.
    #[error("no CPU is named: at least one has to be wide, of {online}")]
    Empty {
        /// The CPUs that are online.
        online: String,
    },
    /// A CPU is missing or offline.
    #[error("CPU {cpu} {what}; online are {online}")]
    NotOnline {
        /// The CPU.
        cpu: CpuId,
        /// `does not exist`, or `is offline`.
        what: &'static str,
        /// The CPUs that are online.
        online: String,
    },
    /// No CPU is left to be narrow.
    #[error("all CPUs that are online would be wide ({online}): leave out at least one core")]
    All {
        /// The CPUs that are online.
        online: String,
    },
    /// A core would be half wide. Wide code slows down its whole core.
    #[error(
        "CPUs {siblings} are one core, which wide code slows down as a whole: name all of them or \
         none; with whole cores it is {whole}"
    )]
    Split {
        /// The CPUs of the core.
        siblings: String,
        /// The named CPUs and all their siblings.
        whole: String,
    },
}

impl Sets {
    /// The sets of this machine for a list of wide CPUs as in `0-3,8`; all can be wide if threads
    /// move by affinity.
    ///
    /// # Errors
    /// [`SetsError`].
    pub fn read(root: &Root, wide: &str, is_by_affinity: bool) -> Result<Self, SetsError> {
        let wide = parse_cpu_list(wide).ok_or(SetsError::NoList)?;
        let sets = Self::new(&topology::read(root)?, &wide)?;
        match sets.wide.iter().find(|cpu| cpu.index() >= SCHEDULED) {
            Some(&cpu) if !is_by_affinity => {
                Err(SetsError::BeyondScheduler { cpu, last: SCHEDULED - 1 })
            }
            _ => Ok(sets),
        }
    }

    fn new(topology: &Topology, wide: &[CpuId]) -> Result<Self, SetsError> {
        let online_cpus = || topology.cpus.iter().filter(|cpu| cpu.online);
        let ids: Vec<CpuId> = online_cpus().map(|cpu| cpu.id).collect();
        let online = format_cpu_list(&ids);
        if wide.is_empty() {
            return Err(SetsError::Empty { online });
        }
        if let Some(&cpu) = wide.iter().find(|cpu| !ids.contains(cpu)) {
            let exists = topology.cpu(cpu).is_some();
            let what = if exists { "is offline" } else { "does not exist" };
            return Err(SetsError::NotOnline { cpu, what, online });
        }
        let is_wide = |cpu: CpuId| wide.contains(&cpu);
        let core_of = |cpu: CpuId| {
            let siblings = topology.siblings(cpu).into_iter().filter(|id| ids.contains(id));
            let mut core: Vec<CpuId> = siblings.chain([cpu]).collect();
            core.sort_unstable();
            core
        };
        let mut cores = wide.iter().map(|&cpu| core_of(cpu));
        if let Some(split) = cores.find(|core| !core.iter().all(|&cpu| is_wide(cpu))) {
            let mut whole: Vec<CpuId> = wide.iter().flat_map(|&cpu| core_of(cpu)).collect();
            whole.sort_unstable();
            whole.dedup();
            let (siblings, whole) = (format_cpu_list(&split), format_cpu_list(&whole));
            return Err(SetsError::Split { siblings, whole });
        }
        let narrow: Vec<CpuId> = ids.iter().copied().filter(|&cpu| !is_wide(cpu)).collect();
        if narrow.is_empty() {
            return Err(SetsError::All { online });
        }
        let has_wide = |node| online_cpus().any(|cpu| cpu.node == Some(node) && is_wide(cpu.id));
        let mut nodes: Vec<NodeId> = online_cpus().filter_map(|cpu| cpu.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes.retain(|&node| !has_wide(node));
        Ok(Self { wide: wide.to_vec(), narrow, nodes_without_wide: nodes })
    }
}
