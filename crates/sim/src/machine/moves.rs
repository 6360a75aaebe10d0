//! The cost for a CPU to take over a thread from another one: the kernel's work, and cold caches.
//!
//! The thread's data in the second-level cache of the core that it leaves moves line by line, one
//! after the other, at the model's price of a cache line between the two cores. That is an upper
//! bound. Data beyond that cache is equally far from both cores. A price that the model does not
//! give counts as zero.

use dimmer_processor::model::Model;

use super::index;
use crate::Picos;

/// Bytes of a cache line, on all processors that models describe.
const LINE: u64 = 64;

/// Prices of moving threads.
#[derive(Clone, Debug)]
pub(super) struct Moves {
    /// The kernel's work (ns).
    kernel: f64,
    /// A cache line within a cluster, within a package, and between packages (ns).
    lines: [f64; 3],
    /// Cache lines in a core's second-level cache.
    most_lines: u64,
    of_package: usize,
    /// The cluster of each core of a package; `None`: cores outside of any cluster.
    clusters: Vec<Option<usize>>,
}

/// The kind of move in a model that is a thread's, without its data.
pub(super) const BY_KERNEL: &str = "thread by the kernel";

impl Moves {
    pub(super) fn new(model: &Model) -> Self {
        let price = |kind: &str| {
            let known = model.moves.iter().find(|one| one.kind == kind);
            known.map_or(0.0, |one| one.ns.value)
        };
        let l2 = model.shape.l2_kib.as_ref().map(|kib| kib.value.saturating_mul(1024 / LINE));
        let of_package = model.shape.cores.as_ref().map_or(u32::MAX, |cores| cores.value);
        let clusters = model.clusters.iter().enumerate();
        let cores = clusters.flat_map(|(number, cluster)| {
            std::iter::repeat_n(Some(number), index(cluster.cores.value))
        });
        Self {
            kernel: price(BY_KERNEL),
            lines: [
                price("cache-line within a cluster"),
                price("cache-line within a package"),
                price("cache-line between packages"),
            ],
            most_lines: l2.unwrap_or(u64::MAX),
            of_package: index(of_package).max(1),
            clusters: cores.collect(),
        }
    }

    /// The cost for a core to take over a thread that has this much data in the caches of
    /// another core, or of this one.
    pub(super) fn take_over(&self, from: usize, to: usize, cached_kib: u64) -> Picos {
        let cluster = |core: usize| self.clusters.get(core % self.of_package).copied().flatten();
        let [within_cluster, within_package, between_packages] = self.lines;
        let line_ns = if from == to {
            0.0
        } else if from / self.of_package != to / self.of_package {
            between_packages
        } else if cluster(from).is_some() && cluster(from) == cluster(to) {
            within_cluster
        } else {
            within_package
        };
        let lines = cached_kib.saturating_mul(1024 / LINE).min(self.most_lines);
        Picos::from_ns(self.kernel + lines as f64 * line_ns)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use dimmer_processor::model::builtin;

    use super::*;

    fn moves(name: &str) -> Moves {
        Moves::new(&Model::parse(Path::new(name), builtin(name).unwrap()).unwrap())
    }

    /// The kernel takes 6682 ns; a line takes 45.5 ns within a module and 240 ns between modules.
    #[test]
    fn lines_cost_by_where_they_are() {
        let fx = moves("fx-8120");
        assert_eq!(fx.take_over(0, 0, 64), Picos::from_ns(6_682.0));
        assert_eq!(fx.take_over(2, 3, 0), Picos::from_ns(6_682.0));
        assert_eq!(fx.take_over(2, 3, 64), Picos::from_ns(6_682.0 + 1024.0 * 45.5));
        assert_eq!(fx.take_over(1, 2, 64), Picos::from_ns(6_682.0 + 1024.0 * 240.0));
        // Of 4 MiB, half was never in the second-level cache.
        assert_eq!(fx.take_over(1, 2, 4096), fx.take_over(1, 2, 2048));
    }

    #[test]
    fn what_a_model_does_not_know_costs_nothing() {
        assert_eq!(moves("i9-7940x").take_over(0, 1, 1024), Picos::ZERO);
        // This model lacks the kernel's work, but has the price of lines.
        assert_eq!(moves("xeon-gold-6130").take_over(0, 1, 256), Picos::from_ns(194_560.0));
        assert_eq!(moves("xeon-gold-6130").take_over(0, 16, 256), Picos::ZERO);
    }
}
