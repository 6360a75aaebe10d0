//! Which of several dedicated cores a thread's work goes to: one of the nearest, as a hand-over is a cache line there and back.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use dimmer_host::root::Root;
use dimmer_host::topology;
use dimmer_processor::topology::{Distance, Topology};
use dimmer_processor::units::CpuId;

use crate::slot::SLOTS;

/// So often a choice is used before it is looked at again where the thread is: threads are moved by the kernel every few milliseconds at
/// most.
const USES: u32 = 1024;

/// What each thread has chosen, and how far all cores are.
#[derive(Debug)]
pub(crate) struct Near {
    choices: Box<[Choice]>,
    /// Read when there is something to choose from; empty if the machine tells nothing.
    distances: OnceLock<Distances>,
}

/// How far the cores are from each hardware thread.
type Distances = BTreeMap<CpuId, Box<[Distance]>>;

/// A thread's choice, in a cache line of its own: of how many cores, which, and how often it will still be used.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Choice(AtomicU64);

impl Default for Near {
    fn default() -> Self {
        let choices = (0..SLOTS).map(|_| Choice::default()).collect();
        Self { choices, distances: OnceLock::new() }
    }
}

impl Near {
    /// Reads how far these cores are from wherever threads may be, once; takes some tens of milliseconds on large machines.
    pub(crate) fn look(&self, root: &Root, cpus: &[CpuId]) {
        self.distances.get_or_init(|| {
            // The first time, it looks for the kernel's function by the loader, whose lock a thread that hands work over may not wait for.
            let _ = here();
            distances(&topology::read(root).unwrap_or_default(), cpus)
        });
    }

    /// The place of the core, of so many, that the work of the thread in this slot goes to; of the nearest ones to where it is (`here`),
    /// threads take one each in turn. Allocates nothing.
    pub(crate) fn choose(&self, slot: usize, count: usize, here: impl FnOnce() -> CpuId) -> usize {
        let Some(Choice(kept)) = self.choices.get(slot) else { return 0 };
        let (of, chosen, left) = parts(kept.load(Ordering::Relaxed));
        // The slot is the calling thread's, so nobody else writes.
        if of == count && left > 0 {
            kept.store(whole(of, chosen, left - 1), Ordering::Relaxed);
            return chosen;
        }
        let far = self.distances.get().and_then(|distances| distances.get(&here())?.get(..count));
        let chosen = far.map_or_else(
            || slot.checked_rem(count).unwrap_or(0),
            |distances| nearest(distances, slot),
        );
        kept.store(whole(count, chosen, USES), Ordering::Relaxed);
        chosen
    }
}

/// The hardware thread that the calling thread runs on now.
pub(crate) fn here() -> CpuId {
    CpuId::new(u32::try_from(rustix::thread::sched_getcpu()).unwrap_or(u32::MAX))
}

fn distances(topology: &Topology, cpus: &[CpuId]) -> Distances {
    let row = |here: CpuId| cpus.iter().map(|cpu| topology.distance(here, *cpu)).collect();
    topology.cpus.iter().map(|cpu| (cpu.id, row(cpu.id))).collect()
}

/// The place of the `turn`-th of the nearest, over and over.
fn nearest(distances: &[Distance], turn: usize) -> usize {
    let Some(least) = distances.iter().min() else { return 0 };
    let near = || distances.iter().enumerate().filter(|(_, distance)| *distance == least);
    let turn = turn % near().count();
    near().nth(turn).map_or(0, |(place, _)| place)
}

/// Fields of a [`Choice`].
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

    /// Which of these cores is the nearest to a hardware thread.
    fn of(cpus: &[u32], here: u32, turn: usize) -> usize {
        let cpus: Vec<CpuId> = cpus.iter().map(|number| CpuId::new(*number)).collect();
        let distances = distances(&machine(), &cpus);
        nearest(&distances[&CpuId::new(here)], turn)
    }

    #[test]
    fn the_nearest_are_taken_in_turn() {
        // Under one cache, whoever asks.
        let cpus = [7, 3, 5, 1];
        assert_eq!(
            [of(&cpus, 0, 0), of(&cpus, 0, 1), of(&cpus, 2, 5), of(&cpus, 6, 3)],
            [3, 3, 1, 0]
        );
        // None under its cache: those of its node.
        let cpus = [7, 3, 5];
        assert_eq!(
            [of(&cpus, 0, 0), of(&cpus, 0, 1), of(&cpus, 6, 0), of(&cpus, 6, 1)],
            [1, 1, 0, 0]
        );
        assert_eq!([of(&cpus, 1, 0), of(&cpus, 4, 1)], [1, 2]);
        // None in its node: all are as far.
        assert_eq!([of(&[7, 5], 0, 0), of(&[7, 5], 0, 1)], [0, 1]);
        assert_eq!(nearest(&[], 3), 0);
    }

    #[test]
    fn a_choice_is_kept_for_a_while_and_made_anew_for_other_cores() {
        let near = Near::default();
        let choose = |slot, count, here| near.choose(slot, count, || CpuId::new(here));
        // Nothing is known of the machine: one each.
        assert_eq!([choose(0, 3, 0), choose(1, 3, 0), choose(5, 3, 0)], [0, 1, 2]);
        let cpus = [7, 3, 5, 1].map(CpuId::new);
        near.distances.set(distances(&machine(), &cpus)).unwrap();
        assert_eq!([choose(2, 4, 0), choose(2, 4, 6)], [3, 3]);
        assert_eq!(choose(2, 3, 6), 0);
        for _ in 0..USES {
            assert_eq!(choose(2, 3, 2), 0);
        }
        assert_eq!(choose(2, 3, 2), 1);
        // Nobody knows where it is; no core is used any more; there is no such slot.
        assert_eq!([choose(3, 4, 99), choose(3, 2, 99)], [3, 1]);
        assert_eq!([choose(3, 0, 0), choose(SLOTS, 3, 2)], [0, 0]);
    }
}
