//! The cost for a CPU to take over a thread from another one: the kernel's work or that of a
//! migration in user mode, and cold caches.
//!
//! A thread's own data are in the caches of the core where its own code ran last. They move line by
//! line, one after the other, at the model's price of a cache line between the two cores. That is
//! an upper bound. The code of a region needs only the region's data, if the scenario says how much
//! that is. These data are read and written in order, so several lines are on their way at a time.
//! Data beyond the second-level cache are equally far from both cores. A price that the model does
//! not give counts as zero.

use dimmer_processor::model::Model;

use super::{Machine, Observer, index};
use crate::Picos;

/// Bytes of a cache line, on all processors that models describe.
const LINE: u64 = 64;

/// How many lines are on their way to a core at a time when it reads or writes memory in order. On
/// a Zen 4, lines that another core had written came 10 to 16 times as fast in order as along a
/// linked list (16 to 256 KiB; medians of 1024).
const IN_ORDER: f64 = 10.0;

/// Prices of moving threads.
#[derive(Clone, Debug)]
pub(super) struct Moves {
    /// The kernel's work (ns).
    kernel: f64,
    /// A migration in user mode within a cluster, and between clusters (ns).
    user: [f64; 2],
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

/// Migrations in user mode, within a cluster and between clusters.
pub(super) const USER: [&str; 2] = ["thread in user mode", "thread in user mode between clusters"];

impl Moves {
    pub(super) fn new(model: &Model) -> Self {
        let price = |kind: &str| model.price(kind).map_or(0.0, |ns| ns.value);
        let l2 = model.shape.l2_kib.as_ref().map(|kib| kib.value.saturating_mul(1024 / LINE));
        let of_package = model.shape.cores.as_ref().map_or(u32::MAX, |cores| cores.value);
        Self {
            kernel: price(BY_KERNEL),
            user: USER.map(price),
            lines: [
                price("cache-line within a cluster"),
                price("cache-line within a package"),
                price("cache-line between packages"),
            ],
            most_lines: l2.unwrap_or(u64::MAX),
            of_package: index(of_package).max(1),
            clusters: model.clusters_of_cores().map(|(number, _)| Some(number)).collect(),
        }
    }

    /// A migration in user mode from one core to another (ns), without data.
    fn migration_ns(&self, from: usize, to: usize) -> f64 {
        let [within, between] = self.user;
        let is_within = self.cluster(from) == self.cluster(to) && self.cluster(from).is_some();
        if is_within || self.clusters.is_empty() { within } else { between }
    }

    fn cluster(&self, core: usize) -> Option<(usize, usize)> {
        let cluster = self.clusters.get(core % self.of_package).copied().flatten()?;
        Some((core / self.of_package, cluster))
    }

    /// The time for this much data to come from the caches of one core to those of another one, or
    /// of the same (ns).
    fn fetch_ns(&self, from: usize, to: usize, kib: u64) -> f64 {
        let cluster = |core: usize| self.cluster(core);
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
        let lines = kib.saturating_mul(1024 / LINE).min(self.most_lines);
        lines as f64 * line_ns
    }
}

/// A thread's data, and the cores whose caches they are in, once the thread has run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Data {
    /// What its own code reads again and again (KiB).
    own_kib: u64,
    own: Option<usize>,
    /// What the code of its region reads and writes (KiB), until its own code has that back; `None`
    /// if that is not known: then the region's code needs what its own code does.
    region_kib: Option<u64>,
    region: Option<usize>,
    /// The nesting depth of regions that it is within.
    depth: usize,
}

impl Data {
    pub(super) fn new(own_kib: u64) -> Self {
        Self { own_kib, ..Self::default() }
    }

    /// The code that runs next on this core has its data in the core's caches from now on. Returns
    /// the time to fetch them (ns).
    fn come_to(&mut self, core: usize, moves: &Moves) -> f64 {
        let mut takes_ns = 0.0;
        if let (Some(kib), Some(from)) = (self.region_kib, self.region) {
            takes_ns += moves.fetch_ns(from, core, kib) / IN_ORDER;
        }
        self.region = Some(core);
        if self.depth > 0 && self.region_kib.is_some() {
            return takes_ns;
        }
        self.region_kib = None;
        if let Some(from) = self.own.replace(core) {
            takes_ns += moves.fetch_ns(from, core, self.own_kib);
        }
        takes_ns
    }
}

impl<O: Observer> Machine<O> {
    /// The cost for a core to take over a thread.
    ///
    /// * `from`: the core that it comes from, if it comes from another CPU.
    pub(super) fn taking_over(&mut self, thread: usize, from: Option<usize>, to: usize) -> Picos {
        let this = &mut self.threads[thread];
        let mark = this.migrations.under_way.take();
        let data_ns = this.data.come_to(to, &self.moves);
        let move_ns = from.map_or(0.0, |from| {
            if mark.is_some() { self.moves.migration_ns(from, to) } else { self.moves.kernel }
        });
        if let Some(mark) = mark {
            self.arrives(thread, mark, to, (self.now + Picos::from_ns(move_ns)).time());
        }
        Picos::from_ns(move_ns + data_ns)
    }

    /// The thread enters a region, and may be handed over to a dedicated core for that. There it
    /// needs no data if the scenario does not say which.
    pub(super) fn enters_data(&mut self, thread: usize, site: usize, is_handed_over: bool) {
        let known = self.region_kib.get(site).copied().flatten();
        let data = &mut self.threads[thread].data;
        data.depth += 1;
        if data.depth == 1 {
            data.region_kib = known.or(is_handed_over.then_some(0));
        }
    }

    /// The thread leaves a region.
    pub(super) fn leaves_data(&mut self, thread: usize) {
        let data = &mut self.threads[thread].data;
        data.depth = data.depth.saturating_sub(1);
    }

    /// The thread goes on with its next code on this core.
    pub(super) fn needs_data(&mut self, thread: usize, core: usize) {
        let takes_ns = self.threads[thread].data.come_to(core, &self.moves);
        if takes_ns > 0.0 {
            self.cores[core].delays.delay(self.now, Picos::from_ns(takes_ns));
        }
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

    /// A line takes 45.5 ns within a module and 240 ns between modules.
    #[test]
    fn lines_cost_by_where_they_are() {
        let fx = moves("fx-8120");
        let is = |found: f64, expected: f64| (found - expected).abs() < 1e-6;
        assert!(is(fx.kernel, 6_682.0));
        assert!(is(fx.fetch_ns(2, 2, 64), 0.0));
        assert!(is(fx.fetch_ns(2, 3, 64), 1024.0 * 45.5));
        assert!(is(fx.fetch_ns(1, 2, 64), 1024.0 * 240.0));
        // Of 4 MiB, half was never in the second-level cache.
        assert!(is(fx.fetch_ns(1, 2, 4096), fx.fetch_ns(1, 2, 2048)));
    }

    #[test]
    fn what_a_model_does_not_know_costs_nothing() {
        let is = |found: f64, expected: f64| (found - expected).abs() < 1e-6;
        assert!(is(moves("i9-7940x").fetch_ns(0, 1, 1024), 0.0));
        // This model lacks the kernel's work, but has the price of lines.
        assert!(is(moves("xeon-gold-6130").fetch_ns(0, 1, 256), 194_560.0));
        assert!(is(moves("xeon-gold-6130").fetch_ns(0, 16, 256), 0.0));
    }

    /// A thread enters a region whose data are known, runs it on another core, and comes back: only
    /// the region's data have moved.
    #[test]
    fn own_data_stay_where_own_code_ran() {
        let gold = moves("xeon-gold-6130");
        let own_ns = gold.fetch_ns(0, 1, 60);
        let region_ns = gold.fetch_ns(0, 1, 32) / IN_ORDER;
        let mut data = Data::new(60);
        let mut takes = |change: fn(&mut Data), core| {
            change(&mut data);
            data.come_to(core, &gold)
        };
        let enters: fn(&mut Data) = |data| (data.depth, data.region_kib) = (1, Some(32));
        let leaves: fn(&mut Data) = |data| data.depth = 0;
        let goes_on: fn(&mut Data) = |_| {};
        let found = [
            (goes_on, 0),
            (enters, 0),
            (goes_on, 1),
            (leaves, 0),
            (goes_on, 1),
            (enters, 0),
            (leaves, 2),
            (goes_on, 2),
        ];
        let found = found.map(|(change, core)| takes(change, core));
        let both_ns = region_ns + own_ns;
        let expected = [0.0, 0.0, region_ns, region_ns, own_ns, region_ns, both_ns, 0.0];
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found} ns, expected {expected}");
        }
    }
}
