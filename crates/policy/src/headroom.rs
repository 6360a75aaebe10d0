//! Whether a program can gain by moving calls to dedicated CPUs, by arithmetic.
//!
//! The calls that move leave the program's other CPUs, and the code that stays runs faster, since
//! no wide code lowers its clock. But it has fewer CPUs. A program that keeps all of them busy, and
//! spends little time in calls that move, loses more than any clock gives back. To try that would
//! only cost.

use dimmer_processor::model::Model;
use dimmer_processor::topology::Topology;
use dimmer_processor::units::{CpuId, LicenseLevel};

use crate::cost::CallCost;

/// How many CPUs a program keeps busy, while all calls run in place.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Busy {
    /// In all.
    pub cpus: f64,
    /// Of these, in calls that would move.
    pub in_calls: f64,
}

/// The CPUs of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpus {
    /// All that it may run on.
    pub all: usize,
    /// Those of them that calls would move to, on which nothing else of the program runs then.
    pub dedicated: usize,
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
        let dedicated = allowed.iter().filter(|id| used(id)).count();
        allowed.iter().all(is_alike).then_some(Self { all: allowed.len(), dedicated })
    }
}

/// The most work that the program can do with its calls moved, over what it does now.
///
/// The code that stays needs a CPU time of at least what it takes now over `faster`, and it has the
/// CPUs that are not dedicated. What moved calls may gain or lose is left out.
///
/// * `faster`: by how much faster that code runs at most, once calls have moved
///   ([`most_faster`]).
#[must_use]
pub fn most_work(busy: Busy, cpus: Cpus, faster: f64) -> f64 {
    let stays = busy.cpus - busy.in_calls;
    if stays <= 0.0 {
        return f64::INFINITY;
    }
    faster * cpus.all.saturating_sub(cpus.dedicated) as f64 / stays
}

/// By how much faster the code around calls at a license level runs at most without them, by a
/// model: 1.3 is 30 % faster. Infinite if the model does not bound it.
///
/// Calls cost the code after them the most if they come so close that the level is kept all the
/// time, or just so far apart that each causes an episode. And fewer active cores allow a faster
/// clock, at the first level perhaps more so than at this one.
#[must_use]
pub fn most_faster(model: &Model, level: LicenseLevel, cost: &CallCost, cpus: Cpus) -> f64 {
    if cost.kept_below_ns <= 0.0 {
        return if cost.most_ns() > 0.0 { f64::INFINITY } else { 1.0 };
    }
    let kept = 1.0 - (cost.most_ns() / cost.kept_below_ns).clamp(0.0, 1.0);
    let mhz = |level: u32, active: usize| {
        let level = model.levels.get(usize::try_from(level).ok()?)?;
        level.mhz(u32::try_from(active.max(1)).ok()?).map(|mhz| mhz as f64)
    };
    let ratio = |left: usize, all: usize| Some(mhz(0, left)? / mhz(level.index(), all)?);
    let left = cpus.all.saturating_sub(cpus.dedicated);
    // The costs are those with one core active.
    let by_bins = ratio(left, cpus.all).zip(ratio(1, 1)).map_or(1.0, |(some, one)| some / one);
    by_bins.max(1.0) / kept
}

#[cfg(test)]
mod tests {
    use super::*;

    use dimmer_processor::model::{Bin, Identity, Level, Sourced};
    use dimmer_processor::topology::{CoreKind, Cpu};
    use dimmer_processor::units::{CoreId, PackageId};

    const TWO: Cpus = Cpus { all: 2, dedicated: 1 };

    #[test]
    fn an_encoder_on_two_cpus_cannot_gain() {
        // It keeps 1.6 CPUs busy, of which 2 % of the time in calls that would move.
        let busy = Busy { cpus: 1.6, in_calls: 0.032 };
        let most = most_work(busy, TWO, 1.0);
        assert!((most - 1.0 / (1.6 * 0.98)).abs() < 1e-12, "{most}");
        assert!(most_work(busy, TWO, 1.5) < 1.0);
        assert!(most_work(busy, Cpus { all: 16, dedicated: 1 }, 1.0) > 9.0);
    }

    #[test]
    fn what_leaves_cpus_idle_or_mostly_moves_may_gain() {
        for (cpus, in_calls) in [(0.0, 0.0), (0.9, 0.0), (2.0, 1.2), (2.0, 2.0), (2.0, 2.1)] {
            assert!(most_work(Busy { cpus, in_calls }, TWO, 1.0) > 1.0, "{cpus}, {in_calls}");
        }
        // Nothing is left for what stays.
        let one = Cpus { all: 1, dedicated: 1 };
        assert!(most_work(Busy { cpus: 1.0, in_calls: 0.5 }, one, 1.2) < 1.0);
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
            Cpus::new(&topology, &allowed, &dedicated).map(|cpus| (cpus.all, cpus.dedicated))
        };
        assert_eq!(cpus(&alike, &[0, 1, 2, 3], &[2, 3]), Some((4, 2)));
        assert_eq!(cpus(&alike, &[0, 1, 2, 3], &[3]), None);
        // A thread that the program may not use anyway does not count.
        assert_eq!(cpus(&alike, &[0, 1, 2], &[2]), Some((3, 1)));
        assert_eq!(cpus(&alike, &[0, 2], &[2, 3]), Some((2, 1)));
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
        let cost = CallCost { slower: 0.2, kept_below_ns: 1000.0, episode_ns: 100.0 };
        let most = |clocks, cost: &CallCost| most_faster(&model(clocks), level, cost, TWO);
        let even = [[4000, 4000], [3200, 3200]];
        assert!((most(even, &cost) - 1.25).abs() < 1e-12);
        let stalls = CallCost { episode_ns: 500.0, ..cost };
        assert!((most(even, &stalls) - 2.0).abs() < 1e-12);
        // With two cores active, the level takes more off the clock, and fewer give some back.
        let by_bins = most([[4000, 3600], [3200, 2400]], &cost);
        assert!((by_bins - 4.0 / 2.4).abs() < 1e-12, "{by_bins}");
        assert_eq!(most(even, &CallCost::FREE), 1.0);
        assert_eq!(most(even, &CallCost { kept_below_ns: 0.0, ..stalls }), f64::INFINITY);
    }
}
