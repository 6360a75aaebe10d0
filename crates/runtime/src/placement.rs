//! Placement: the dedicated core that a thread's work goes to, if there are several. A hand-off is
//! a cache line there and back, so this is the nearest core, of those that do not have their share
//! of threads yet.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use dimmer_host::root::Root;
use dimmer_host::topology;
use dimmer_processor::topology::{Distance, Topology};
use dimmer_processor::units::CpuId;

use crate::slot::SLOTS;

/// Number of uses of a choice before it is reconsidered for the thread's current CPU. The kernel
/// moves threads every few milliseconds at most.
const USES: u32 = 1024;

/// Maximum number of cores that are distinguished.
const MOST: usize = 64;

/// The choice of each thread, and the distances of all cores.
#[derive(Debug)]
pub(crate) struct Placement {
    choices: Box<[Choice]>,
    /// Read when there are several cores to choose from; empty if the machine reports nothing.
    distances: OnceLock<Distances>,
}

/// The distances of the cores from each CPU.
type Distances = BTreeMap<CpuId, Box<[Distance]>>;

/// A thread's choice: the number of cores, the chosen one, and the remaining uses.
type Choice = CachePadded<AtomicU64>;

impl Default for Placement {
    fn default() -> Self {
        let choices = (0..SLOTS).map(|_| Choice::default()).collect();
        Self { choices, distances: OnceLock::new() }
    }
}

impl Placement {
    /// Reads the distances of these cores from every CPU, once. Takes some tens of milliseconds on
    /// large machines.
    pub(crate) fn look(&self, root: &Root, cpus: &[CpuId]) {
        self.distances.get_or_init(|| {
            // The first call looks up the kernel's function through the loader. A thread that hands
            // work over must not wait for the loader's lock.
            let _ = here();
            distances(&topology::read(root).unwrap_or_default(), cpus)
        });
    }

    /// Index of the core, out of `count`, that the work of the thread in this slot goes to; `here`
    /// is that thread's CPU. `taken` has a bit for each slot in use. Allocates nothing.
    pub(crate) fn choose(
        &self,
        slot: usize,
        count: usize,
        taken: impl FnOnce() -> u64,
        here: impl FnOnce() -> CpuId,
    ) -> usize {
        let Some(kept) = self.choices.get(slot) else { return 0 };
        let (of, chosen, left) = parts(kept.load(Ordering::Relaxed));
        // The slot belongs to the calling thread, so no other thread writes it.
        if of == count && left > 0 {
            kept.store(whole(of, chosen, left - 1), Ordering::Relaxed);
            return chosen;
        }
        // Number of threads of each core, without the calling one.
        let (mut threads, taken) = ([0; MOST], taken());
        let others = (0..SLOTS).filter(|other| *other != slot && taken & 1 << other != 0);
        let choices = others.filter_map(|other| {
            let (of, chosen, left) = parts(self.choices.get(other)?.load(Ordering::Relaxed));
            (of == count && left > 0).then_some(chosen)
        });
        for chosen in choices {
            if let Some(threads) = threads.get_mut(chosen) {
                *threads += 1;
            }
        }
        let here = here();
        let distances = self.distances.get().and_then(|distances| distances.get(&here));
        let far = |place| distances.and_then(|distances| distances.get(place).copied());
        let chosen = least(&threads[..count.min(MOST)], far);
        kept.store(whole(count, chosen, USES), Ordering::Relaxed);
        chosen
    }
}

/// The CPU that the calling thread runs on now.
pub(crate) fn here() -> CpuId {
    CpuId::new(u32::try_from(rustix::thread::sched_getcpu()).unwrap_or(u32::MAX))
}

fn distances(topology: &Topology, cpus: &[CpuId]) -> Distances {
    let row = |here: CpuId| cpus.iter().map(|cpu| topology.distance(here, *cpu)).collect();
    topology.cpus.iter().map(|cpu| (cpu.id, row(cpu.id))).collect()
}

/// Index of the nearest core that does not have its share of threads yet; of several such cores,
/// the one with the fewest threads. There always is one, since the fewest are less than a share.
fn least(threads: &[usize], far: impl Fn(usize) -> Option<Distance>) -> usize {
    let share = (threads.iter().sum::<usize>() + 1).div_ceil(threads.len().max(1));
    let open = threads.iter().enumerate().filter(|(_, has)| **has < share);
    open.min_by_key(|(place, has)| (far(*place), **has)).map_or(0, |(place, _)| place)
}

/// The fields of a [`Choice`].
fn parts(choice: u64) -> (usize, usize, u32) {
    let bits = |shift: u32| (choice >> shift & 0xFFFF) as usize;
    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    let left = choice as u32;
    (bits(48), bits(32), left)
}

fn whole(of: usize, chosen: usize, left: u32) -> u64 {
    (of as u64 & 0xFFFF) << 48 | (chosen as u64 & 0xFFFF) << 32 | u64::from(left)
}

#[cfg(test)]
mod tests {
    use dimmer_processor::topology::{Cache, CacheContent, CoreKind, Cpu};
    use dimmer_processor::units::{CoreId, KibiBytes, NodeId, PackageId};

    use super::*;

    /// Eight cores: two to a cache, four to a node.
    fn machine() -> Topology {
        let cpu = |id: u32| Cpu {
            id: CpuId::new(id),
            core: CoreId::new(id),
            package: PackageId::new(0),
            node: Some(NodeId::new(id / 4)),
            kind: CoreKind::Uniform,
            online: true,
        };
        let cache = |pair: u32| Cache {
            level: 3,
            content: CacheContent::Unified,
            size: KibiBytes::from_kib(1),
            cpus: vec![CpuId::new(2 * pair), CpuId::new(2 * pair + 1)],
        };
        Topology { cpus: (0..8).map(cpu).collect(), caches: (0..4).map(cache).collect() }
    }

    /// The choices of the threads in slots 0, 1, ... among these cores, one after the other.
    fn chosen(cpus: &[u32], here: &[u32]) -> Vec<u32> {
        let ids: Vec<CpuId> = cpus.iter().map(|number| CpuId::new(*number)).collect();
        let placement = Placement::default();
        placement.distances.set(distances(&machine(), &ids)).unwrap();
        let choose = |(slot, here): (usize, &u32)| {
            cpus[placement.choose(slot, cpus.len(), || (2 << slot) - 1, || CpuId::new(*here))]
        };
        here.iter().enumerate().map(choose).collect()
    }

    #[test]
    fn threads_go_to_the_nearest_core_that_has_not_its_share() {
        // Under one cache, in one node, anywhere.
        assert_eq!(chosen(&[7, 3, 1], &[0]), [1]);
        assert_eq!(chosen(&[7, 3], &[0]), [3]);
        assert_eq!(chosen(&[7, 5], &[0]), [7]);
        assert_eq!(chosen(&[7, 3, 1], &[6, 2, 0]), [7, 3, 1]);
        // All under one cache: no core stays idle while others have more than their share.
        assert_eq!(chosen(&[7, 3, 1], &[0; 6]), [1, 3, 7, 1, 3, 7]);
        assert_eq!(chosen(&[7, 1], &[0, 0, 0, 6]), [1, 7, 1, 7]);
        // Unknown position of the threads: one for each core in turn.
        assert_eq!(chosen(&[7, 3, 1], &[99; 4]), [7, 3, 1, 7]);
    }

    #[test]
    fn a_choice_is_kept_for_a_while_and_made_anew_for_other_cores() {
        let placement = Placement::default();
        let choose = |slot, count, here| placement.choose(slot, count, || 0, || CpuId::new(here));
        let cpus = [7, 3, 5, 1].map(CpuId::new);
        placement.distances.set(distances(&machine(), &cpus)).unwrap();
        assert_eq!([choose(2, 4, 0), choose(2, 4, 6)], [3, 3]);
        assert_eq!(choose(2, 3, 6), 0);
        for _ in 0..USES {
            assert_eq!(choose(2, 3, 2), 0);
        }
        assert_eq!(choose(2, 3, 2), 1);
        // No core is used any more; the slot does not exist; more cores than are distinguished.
        assert_eq!([choose(3, 0, 0), choose(SLOTS, 3, 2)], [0, 0]);
        assert!(choose(3, 1000, 0) < MOST);
    }

    #[test]
    fn who_has_gone_counts_no_more() {
        let placement = Placement::default();
        let cpus = [7, 1].map(CpuId::new);
        placement.distances.set(distances(&machine(), &cpus)).unwrap();
        let choose = |slot, taken| placement.choose(slot, 2, || taken, || CpuId::new(0));
        assert_eq!([choose(0, 0b1), choose(1, 0b11)], [1, 0]);
        assert_eq!(choose(2, 0b110), 1);
    }
}
