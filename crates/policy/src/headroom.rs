//! Whether a program can gain by moving calls to dedicated CPUs, by arithmetic.
//!
//! The calls that move leave the program's other CPUs, and the code that stays runs faster, since
//! no wide code lowers its clock. But it has fewer CPUs. A program that keeps all of them busy, and
//! spends little time in calls that move, loses more than any clock gives back. To try that would
//! only cost.
//!
//! This is about time on CPUs. A program whose threads wait for one another without giving up their
//! CPUs (OpenMP, polling) seems to do as much as one that works all the time. Left out is also what
//! fewer threads on fewer CPUs may gain by caches and locks.

use std::collections::BTreeSet;

use dimmer_processor::model::{Level, Model};
use dimmer_processor::topology::Topology;
use dimmer_processor::units::{CpuId, LicenseLevel};

use crate::cost::CallCost;

pub use usage::{Headroom, RuledOut};

mod usage;

/// By how much more CPUs may seem to be busy than are: a tenth, as times of 200 ms are measured in
/// steps of 10.
const MEASURED: f64 = 1.1;

/// How many CPUs a program keeps busy, while all calls run in place.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Busy {
    /// In all.
    pub cpus: f64,
    /// Of these, in calls that would move; rather too many than too few.
    pub in_calls: f64,
}

/// The CPUs of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpus {
    /// All that it may run on.
    pub all: usize,
    /// Those of them that calls would move to. The program keeps off these then, but for threads
    /// that it has itself pinned to them.
    pub dedicated: usize,
    /// The cores that all of them belong to, and the dedicated ones.
    pub cores: [u32; 2],
}

impl Cpus {
    /// `None` if CPUs cannot be counted alike: where cores are of several kinds, or only some
    /// hardware threads of a core are dedicated, as the others do more than half of its work.
    #[must_use]
    pub fn new(topology: &Topology, allowed: &[CpuId], dedicated: &[CpuId]) -> Option<Self> {
        let used = |id: &CpuId| allowed.contains(id) && dedicated.contains(id);
        let first = topology.cpu(*allowed.first()?)?;
        let is_alike = |id: &CpuId| {
            let mut siblings = topology.siblings(*id).into_iter();
            topology.cpu(*id).is_some_and(|cpu| cpu.kind == first.kind)
                && siblings.all(|other| !allowed.contains(&other) || used(&other) == used(id))
        };
        let dedicated: Vec<CpuId> = allowed.iter().copied().filter(used).collect();
        let cores = |ids: &[CpuId]| {
            let cores = ids.iter().filter_map(|id| topology.cpu(*id)).map(|cpu| cpu.core);
            u32::try_from(cores.collect::<BTreeSet<_>>().len()).unwrap_or(u32::MAX)
        };
        let cores = [cores(allowed), cores(&dedicated)];
        let is_alike = allowed.iter().all(is_alike);
        is_alike.then_some(Self { all: allowed.len(), dedicated: dedicated.len(), cores })
    }
}

/// The most work that the program can do with its calls moved, over what it does now. Infinite if
/// it seems to keep more CPUs busy than it has: then it has others by now.
///
/// The code that stays needs a CPU time of at least what it takes now over `faster`, and it has the
/// CPUs that are not dedicated. What moved calls may gain or lose is left out.
///
/// * `faster`: by how much faster that code runs at most, once calls have moved
///   ([`most_faster`]).
#[must_use]
pub fn most_work(busy: Busy, cpus: Cpus, faster: f64) -> f64 {
    let stays = busy.cpus - busy.in_calls;
    if stays <= 0.0 || busy.cpus > MEASURED * cpus.all as f64 {
        return f64::INFINITY;
    }
    faster * cpus.all.saturating_sub(cpus.dedicated) as f64 / stays
}

/// By how much faster the code around calls at a license level runs at most without them, by a
/// model: 1.3 is 30 % faster. Infinite if the model does not bound it.
///
/// Calls cost the code after them the most if they come so close that the level is kept all the
/// time, or just so far apart that each causes an episode; what long calls cost comes on top. And
/// fewer active cores allow a faster clock, at the first level perhaps more so than at this one:
/// that counts with as many cores of other programs as make the most of it. Where the clock for a
/// number of cores is not known, the highest or lowest one that is known stands for it. A model
/// without clocks is taken to have the same ones for all numbers of cores.
#[must_use]
pub fn most_faster(model: &Model, level: LicenseLevel, cost: &CallCost, cpus: Cpus) -> f64 {
    if cost.is_free() {
        return 1.0;
    }
    let kept = 1.0 - cost.most_part().clamp(0.0, 1.0);
    by_active_cores(model, level, cpus).unwrap_or(1.0).max(1.0) / kept
}

/// By how much more the clock rises from the level to the first one when cores are given up, than
/// with one core active; `None` if the model lacks clocks.
fn by_active_cores(model: &Model, level: LicenseLevel, cpus: Cpus) -> Option<f64> {
    let first = model.levels.first()?;
    let level = model.levels.get(usize::try_from(level.index()).ok()?)?;
    let known = |level: &Level| level.bins.iter().map(|bin| bin.mhz.value).collect::<Vec<_>>();
    let (highest, lowest) = (known(first).into_iter().max()?, known(level).into_iter().min()?);
    let ratio = |left: u32, all: u32| {
        let up = first.mhz(left.max(1)).unwrap_or(highest);
        up as f64 / level.mhz(all).unwrap_or(lowest) as f64
    };
    // Of one package, which has clocks of its own.
    let [all, dedicated] = cpus.cores;
    let package = model.shape.cores.as_ref().map_or(all, |cores| cores.value.max(1));
    let all = all.min(package);
    let left = all.saturating_sub(dedicated);
    let most = (0..=package - all).map(|others| ratio(left + others, all + others));
    Some(most.fold(0.0, f64::max) / ratio(1, 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::BetweenLong;

    use dimmer_processor::model::{Bin, Identity, Sourced};
    use dimmer_processor::topology::{CoreKind, Cpu};
    use dimmer_processor::units::{CoreId, PackageId};

    const TWO: Cpus = Cpus { all: 2, dedicated: 1, cores: [2, 1] };

    #[test]
    fn an_encoder_on_two_cpus_cannot_gain() {
        // It keeps 1.6 CPUs busy, of which 2 % of the time in calls that would move.
        let busy = Busy { cpus: 1.6, in_calls: 0.032 };
        let most = most_work(busy, TWO, 1.0);
        assert!((most - 1.0 / (1.6 * 0.98)).abs() < 1e-12, "{most}");
        assert!(most_work(busy, TWO, 1.5) < 1.0);
        let sixteen = Cpus { all: 16, dedicated: 1, cores: [16, 1] };
        assert!(most_work(busy, sixteen, 1.0) > 9.0);
    }

    #[test]
    fn what_leaves_cpus_idle_or_mostly_moves_may_gain() {
        for (cpus, in_calls) in [(0.0, 0.0), (0.9, 0.0), (2.0, 1.2), (2.0, 2.0), (2.0, 2.1)] {
            assert!(most_work(Busy { cpus, in_calls }, TWO, 1.0) > 1.0, "{cpus}, {in_calls}");
        }
        // Nothing is left for what stays.
        let one = Cpus { all: 1, dedicated: 1, cores: [1, 1] };
        assert!(most_work(Busy { cpus: 1.0, in_calls: 0.5 }, one, 1.2) < 1.0);
        // It has more CPUs than were counted.
        assert!(most_work(Busy { cpus: 2.3, in_calls: 0.0 }, TWO, 1.0) > 1.0);
        assert!(most_work(Busy { cpus: 2.1, in_calls: 0.0 }, TWO, 1.0) < 1.0);
    }

    #[test]
    fn cpus_count_if_they_are_alike_and_whole_cores_are_dedicated() {
        let cpu = |id, core, kind| Cpu {
            id: CpuId::new(id),
            core: CoreId::new(core),
            package: PackageId::new(0),
            node: None,
            kind,
            online: true,
        };
        let [uniform, fast, slow] =
            [CoreKind::Uniform, CoreKind::Performance, CoreKind::Efficiency];
        let alike = [(0, 0), (1, 0), (2, 1), (3, 1)].map(|(id, core)| cpu(id, core, uniform));
        let hybrid = [cpu(0, 0, fast), cpu(1, 1, slow)];
        let cpus = |cpus: &[Cpu], allowed: &[u32], dedicated: &[u32]| {
            let topology = Topology { cpus: cpus.to_vec(), ..Topology::default() };
            let [allowed, dedicated] = [allowed, dedicated]
                .map(|all| all.iter().copied().map(CpuId::new).collect::<Vec<_>>());
            Cpus::new(&topology, &allowed, &dedicated)
                .map(|cpus| (cpus.all, cpus.dedicated, cpus.cores))
        };
        assert_eq!(cpus(&alike, &[0, 1, 2, 3], &[2, 3]), Some((4, 2, [2, 1])));
        assert_eq!(cpus(&alike, &[0, 1, 2, 3], &[3]), None);
        // A thread that the program may not use anyway does not count.
        assert_eq!(cpus(&alike, &[0, 1, 2], &[2]), Some((3, 1, [2, 1])));
        assert_eq!(cpus(&alike, &[0, 2], &[2, 3]), Some((2, 1, [2, 1])));
        assert_eq!(cpus(&hybrid, &[0, 1], &[1]), None);
        assert_eq!(cpus(&alike, &[0, 7], &[7]), None);
        assert_eq!(cpus(&alike, &[], &[]), None);
    }

    /// L0 and L1, with these clocks with one core active and with two.
    fn model(clocks: [[u64; 2]; 2]) -> Model {
        let mut model = Model::new(Identity {
            name: "made up".to_owned(),
            vendor: String::new(),
            microarchitecture: String::new(),
            note: None,
        });
        model.levels.clear();
        for mhz in clocks {
            let bin = |cores| Bin {
                from_cores: cores,
                cores,
                mhz: Sourced::new(mhz[cores as usize - 1], "test"),
            };
            model.levels.push(Level { bins: vec![bin(1), bin(2)], ..Level::named("L") });
        }
        model
    }

    #[test]
    fn code_gets_no_faster_than_the_model_allows() {
        let level = LicenseLevel::new(1);
        let cost =
            CallCost { slower: 0.2, kept_below_ns: 1000.0, episode_ns: 100.0, ..CallCost::FREE };
        let most = |clocks, cost: &CallCost| most_faster(&model(clocks), level, cost, TWO);
        let even = [[4000, 4000], [3200, 3200]];
        assert!((most(even, &cost) - 1.25).abs() < 1e-12);
        let stalls = CallCost { episode_ns: 500.0, ..cost.clone() };
        assert!((most(even, &stalls) - 2.0).abs() < 1e-12);
        let long = BetweenLong { call_ns: 5000.0, gap_ns: 1e6, slower: 0.3 };
        let between_long = CallCost { between_long: vec![long], ..cost.clone() };
        assert!((most(even, &between_long) - 2.0).abs() < 1e-12);
        // With two cores active, the level takes more off the clock, and fewer give some back.
        let by_bins = most([[4000, 3600], [3200, 2400]], &cost);
        assert!((by_bins - 4.0 / 2.4).abs() < 1e-12, "{by_bins}");
        assert_eq!(most(even, &CallCost::FREE), 1.0);
        assert_eq!(most(even, &CallCost { kept_below_ns: 0.0, ..stalls }), f64::INFINITY);
        // With another program on other cores of the package, or where a clock is not known.
        let mut larger = model([[4000, 3600], [3600, 2400]]);
        let one = Cpus { all: 2, dedicated: 0, cores: [1, 0] };
        let most = |model: &Model| most_faster(model, level, &cost, one) * 0.8;
        assert!((most(&larger) - 1.0).abs() < 1e-12);
        larger.shape.cores = Some(Sourced::new(2, "test"));
        assert!((most(&larger) - (3.6 / 2.4) / (4.0 / 3.6)).abs() < 1e-12);
        larger.levels[1].bins.truncate(1);
        assert!((most(&larger) - 1.0).abs() < 1e-12);
        larger.shape.cores = Some(Sourced::new(3, "test"));
        let by_highest = most(&larger);
        assert!((by_highest - 1.0).abs() < 1e-12, "{by_highest}");
        larger.levels[1].bins.clear();
        assert!((most(&larger) - 1.0).abs() < 1e-12, "no clock of the level");
    }
}
