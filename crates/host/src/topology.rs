//! Reads the topology of packages, cores, CPUs and caches from `/sys/devices/system`.
//!
//! Source: Linux `Documentation/admin-guide/cputopology.rst` and
//! `Documentation/ABI/testing/sysfs-devices-system-cpu`.

use std::collections::BTreeMap;

use dimmer_processor::topology::{Cache, CacheContent, CoreKind, Cpu, Topology};
use dimmer_processor::units::{CoreId, CpuId, KibiBytes, NodeId, PackageId};

use crate::privilege;
use crate::root::{Root, RootError};

/// The directory of all CPUs.
pub const CPUS: &str = "/sys/devices/system/cpu";
/// The file with the list of online CPUs.
pub(crate) const ONLINE: &str = "/sys/devices/system/cpu/online";
const NODES: &str = "/sys/devices/system/node";

/// The topology of the machine under `root`.
///
/// A value that the kernel does not report gets a default: no node, a core of its own, package 0,
/// no cache. The kernel hides the place of an *offline* CPU, which is entered as a core of its own
/// in package 0, so count cores with [`Topology::online_cores`].
///
/// # Errors
/// [`RootError`]: not even a list of CPUs can be read.
///
/// # Cost
/// About ten small files per CPU.
pub fn read(root: &Root) -> Result<Topology, RootError> {
    let present = present(root)?;
    let online = online(root)?;
    let nodes = nodes(root);
    let kinds = Kinds::read(root);

    let mut numbers: BTreeMap<CoreKey, CoreId> = BTreeMap::new();
    let mut cpus = Vec::with_capacity(present.len());
    for id in present {
        let (key, package) = place(root, id);
        let next = CoreId::new(u32::try_from(numbers.len()).unwrap_or(u32::MAX));
        let core = *numbers.entry(key).or_insert(next);
        cpus.push(Cpu {
            id,
            core,
            package,
            node: nodes.get(&id).copied(),
            kind: kinds.of(id),
            online: online.contains(&id),
        });
    }
    let caches = caches(root, &online);
    Ok(Topology { cpus, caches })
}

/// The CPUs that are present, including offline ones.
///
/// # Errors
/// [`RootError`].
pub fn present(root: &Root) -> Result<Vec<CpuId>, RootError> {
    root.cpu_list(&format!("{CPUS}/present")).or_else(|_| online(root))
}

/// The CPUs that are online. Without `/sys`, as in some sandboxes, the CPUs that the process may
/// run on.
///
/// # Errors
/// [`RootError`].
pub fn online(root: &Root) -> Result<Vec<CpuId>, RootError> {
    root.cpu_list(ONLINE).or_else(|error| privilege::allowed_cpus(root).map_err(|_| error))
}

/// The CPUs that the kernel's command line isolates from threads that do not request them
/// (`isolcpus=`); empty if the kernel does not report them.
#[must_use]
pub fn isolated(root: &Root) -> Vec<CpuId> {
    root.cpu_list(&format!("{CPUS}/isolated")).unwrap_or_default()
}

/// The common property of the CPUs of one core.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum CoreKey {
    /// The CPU of the core with the lowest number.
    FirstThread(CpuId),
    /// Package, die, and the core's number in the die.
    Numbers(i64, i64, i64),
}

fn place(root: &Root, id: CpuId) -> (CoreKey, PackageId) {
    let directory = format!("{CPUS}/cpu{id}/topology");
    let number = |name: &str| root.integer(&format!("{directory}/{name}"));
    // If the firmware gives no number, the kernel writes -1.
    let package = number("physical_package_id").unwrap_or(0);
    let package_id = PackageId::new(u32::try_from(package).unwrap_or(0));

    let siblings = ["core_cpus_list", "thread_siblings_list"]
        .iter()
        .find_map(|name| root.cpu_list(&format!("{directory}/{name}")).ok())
        .filter(|siblings| siblings.contains(&id));
    let first = siblings.and_then(|siblings| siblings.first().copied());
    let key = match (first, number("core_id")) {
        (Some(first), _) => CoreKey::FirstThread(first),
        (None, Ok(core)) => CoreKey::Numbers(package, number("die_id").unwrap_or(0), core),
        (None, Err(_)) => CoreKey::FirstThread(id),
    };
    (key, package_id)
}

fn nodes(root: &Root) -> BTreeMap<CpuId, NodeId> {
    let mut nodes = BTreeMap::new();
    for name in root.list(NODES).unwrap_or_default() {
        let Some(Ok(number)) = name.strip_prefix("node").map(str::parse) else { continue };
        for cpu in root.cpu_list(&format!("{NODES}/{name}/cpulist")).unwrap_or_default() {
            nodes.insert(cpu, NodeId::new(number));
        }
    }
    nodes
}

/// The CPUs of each kind on a hybrid processor.
struct Kinds {
    performance: Vec<CpuId>,
    efficiency: Vec<CpuId>,
}

impl Kinds {
    fn read(root: &Root) -> Self {
        let list = |kind: &str| root.cpu_list(&format!("/sys/devices/{kind}/cpus"));
        let mut efficiency = list("cpu_atom").unwrap_or_default();
        efficiency.extend(list("cpu_lowpower").unwrap_or_default());
        Self { performance: list("cpu_core").unwrap_or_default(), efficiency }
    }

    fn of(&self, cpu: CpuId) -> CoreKind {
        if self.efficiency.contains(&cpu) {
            CoreKind::Efficiency
        } else if self.performance.contains(&cpu) && !self.efficiency.is_empty() {
            CoreKind::Performance
        } else {
            CoreKind::Uniform
        }
    }
}

fn caches(root: &Root, online: &[CpuId]) -> Vec<Cache> {
    let mut caches: Vec<Cache> = Vec::new();
    for cpu in online {
        let directory = format!("{CPUS}/cpu{cpu}/cache");
        for index in root.list(&directory).unwrap_or_default() {
            if !index.starts_with("index") {
                continue;
            }
            if let Some(cache) = cache(root, &format!("{directory}/{index}"))
                && !caches.contains(&cache)
            {
                caches.push(cache);
            }
        }
    }
    caches.sort_by(|left, right| {
        (left.level, left.content, &left.cpus).cmp(&(right.level, right.content, &right.cpus))
    });
    caches
}

fn cache(root: &Root, directory: &str) -> Option<Cache> {
    let content = match root.text(&format!("{directory}/type")).ok()?.as_str() {
        "Data" => CacheContent::Data,
        "Instruction" => CacheContent::Instruction,
        "Unified" => CacheContent::Unified,
        _ => return None,
    };
    let size = root.text(&format!("{directory}/size")).ok()?;
    Some(Cache {
        level: u8::try_from(root.integer(&format!("{directory}/level")).ok()?).ok()?,
        content,
        size: KibiBytes::from_kib(size.strip_suffix('K')?.parse().ok()?),
        cpus: root.cpu_list(&format!("{directory}/shared_cpu_list")).ok()?,
    })
}
