//! Which of several dedicated cores a thread's work goes to: one of the nearest, as a hand-over is a cache line there and back.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use dimmer_host::root::Root;
use dimmer_host::topology;
use dimmer_processor::topology::Topology;
use dimmer_processor::units::CpuId;

use crate::slot::SLOTS;

/// So often a choice is used before it is looked at again where the thread is: a look takes some 20 ns, and threads are moved by the
/// kernel every few milliseconds at most.
const USES: u32 = 1024;

/// What each thread has chosen, and where all cores are.
#[derive(Debug)]
pub(crate) struct Near {
    choices: Box<[Choice]>,
    /// Read when there is something to choose from; empty if the machine tells nothing.
    topology: OnceLock<Topology>,
}

/// A thread's choice, in a cache line of its own: of how many cores, which, and how often it will still be used.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Choice(AtomicU64);

impl Default for Near {
    fn default() -> Self {
        let choices = (0..SLOTS).map(|_| Choice::default()).collect();
        Self { choices, topology: OnceLock::new() }
    }
}

impl Near {
    /// Reads where all cores are, once; takes some milliseconds on large machines.
    pub(crate) fn look(&self, root: &Root) {
        self.topology.get_or_init(|| topology::read(root).unwrap_or_default());
    }

    /// The place in `cpus` of the core that the work of the thread in this slot goes to; of the nearest ones to where it is (`here`), threads
    /// take one each in turn. Allocates nothing.
    pub(crate) fn choose(
        &self,
        slot: usize,
        cpus: impl ExactSizeIterator<Item = CpuId> + Clone,
        here: impl FnOnce() -> CpuId,
    ) -> usize {
        let Some(Choice(kept)) = self.choices.get(slot) else { return 0 };
        let (of, chosen, left) = parts(kept.load(Ordering::Relaxed));
        // The slot is the calling thread's, so nobody else writes.
        if of == cpus.len() && left > 0 {
            kept.store(whole(of, chosen, left - 1), Ordering::Relaxed);
            return chosen;
        }
        let chosen = self.topology.get().map_or_else(
            || slot.checked_rem(cpus.len()).unwrap_or(0),
            |topology| nearest(topology, here(), cpus.clone(), slot),
        );
        kept.store(whole(cpus.len(), chosen, USES), Ordering::Relaxed);
        chosen
    }
}

/// The place of the `turn`-th of the nearest, over and over.
fn nearest(
    topology: &Topology,
    here: CpuId,
    cpus: impl Iterator<Item = CpuId> + Clone,
    turn: usize,
) -> usize {
    let distances = cpus.map(|cpu| topology.distance(here, cpu));
    let Some(least) = distances.clone().min() else { return 0 };
    let near = || distances.clone().enumerate().filter(|(_, distance)| *distance == least);
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

    fn ids(numbers: &[u32]) -> Vec<CpuId> {
        numbers.iter().map(|number| CpuId::new(*number)).collect()
    }

    #[test]
    fn the_nearest_are_taken_in_turn() {
        let machine = machine();
        let cpus = ids(&[7, 3, 5, 1]);
        let of = |here, turn| nearest(&machine, CpuId::new(here), cpus.iter().copied(), turn);
        // Under one cache, whoever asks.
        assert_eq!([of(0, 0), of(0, 1), of(2, 5), of(6, 3)], [3, 3, 1, 0]);
        // None under its cache: those of its node.
        let cpus = ids(&[7, 3, 5]);
        let of = |here, turn| nearest(&machine, CpuId::new(here), cpus.iter().copied(), turn);
        assert_eq!([of(0, 0), of(0, 1), of(6, 0), of(6, 1)], [1, 1, 0, 0]);
        // None in its node, or nobody knows where it is: all are as far.
        let cpus = ids(&[7, 5]);
        let of = |here, turn| nearest(&machine, CpuId::new(here), cpus.iter().copied(), turn);
        assert_eq!([of(0, 0), of(0, 1), of(99, 2), of(99, 3)], [0, 1, 0, 1]);
        assert_eq!(nearest(&machine, CpuId::new(0), std::iter::empty(), 3), 0);
    }

    #[test]
    fn a_choice_is_kept_for_a_while_and_made_anew_for_other_cores() {
        let near = Near::default();
        let cpus = ids(&[7, 3, 5, 1]);
        let choose = |slot, used: usize, here| {
            near.choose(slot, cpus[..used].iter().copied(), || CpuId::new(here))
        };
        // Nothing is known of the machine: one each.
        assert_eq!([choose(0, 3, 0), choose(1, 3, 0), choose(5, 3, 0)], [0, 1, 2]);
        near.topology.set(machine()).unwrap();
        assert_eq!([choose(2, 4, 0), choose(2, 4, 6)], [3, 3]);
        assert_eq!(choose(2, 3, 6), 0);
        for _ in 0..USES {
            assert_eq!(choose(2, 3, 2), 0);
        }
        assert_eq!(choose(2, 3, 2), 1);
        assert_eq!(choose(SLOTS, 3, 2), 0);
    }
}
