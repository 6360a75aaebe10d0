//! Machines by kind, and those that differ from others of their kind.

use std::collections::BTreeMap;

use crate::document::{About, Document};
use crate::measure::{Key, Measure};

/// The least number of machines of a processor of which one can differ from the others.
const LEAST: usize = 3;

/// Machines that are the same as far as a probe says.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    /// The processor's name.
    pub processor: String,
    /// Its microarchitecture.
    pub microarchitecture: String,
    /// Its microcode.
    pub microcode: Option<String>,
    /// The hypervisor.
    pub hypervisor: Option<String>,
    /// The kernel's release.
    pub kernel: Option<String>,
    /// The number of probes.
    pub probes: usize,
    /// Of these, those that found that wide SIMD code slows the machine down.
    pub with_effect: usize,
    /// Of these, those that could not say.
    pub open: usize,
    /// Of these, those that measured nothing.
    pub not_measured: usize,
    /// For each kind of cost, the highest of each probe: the least, the median and the most of
    /// these.
    pub costs: BTreeMap<&'static str, [f64; 3]>,
    /// The number of outliers among its probes.
    pub outliers: usize,
}

/// A cost of a machine that is not as on others with this processor.
#[derive(Clone, Debug, PartialEq)]
pub struct Outlier {
    /// The place of the probe in the list.
    pub probe: usize,
    /// Its cost.
    pub measure: Measure,
    /// The median of all of its processor, this one included.
    pub typical: f64,
    /// The number of these.
    pub of: usize,
}

/// Probes side by side.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Merged {
    /// Those that differ most first; then by processor.
    pub kinds: Vec<Kind>,
    /// In the order of the probes.
    pub outliers: Vec<Outlier>,
}

impl Merged {
    /// Sorts probes by kind. A cost is an outlier if it is surely and noticeably higher or lower
    /// than the median of at least three probes of the same processor.
    #[must_use]
    pub fn new(probes: &[Document]) -> Self {
        let mut by_processor: BTreeMap<(&str, &str), Vec<usize>> = BTreeMap::new();
        for (place, probe) in probes.iter().enumerate() {
            let About { brand, microarchitecture, .. } = &probe.machine;
            by_processor.entry((brand, microarchitecture)).or_default().push(place);
        }
        let all = by_processor.values().filter(|places| places.len() >= LEAST);
        let mut outliers: Vec<Outlier> = all.flat_map(|places| outliers(probes, places)).collect();
        outliers.sort_by_key(|outlier| outlier.probe);
        let mut kinds: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (place, probe) in probes.iter().enumerate() {
            let About { brand, microarchitecture, microcode, hypervisor, kernel, .. } =
                &probe.machine;
            let kind = (brand, microarchitecture, microcode, hypervisor, kernel);
            kinds.entry(kind).or_default().push(place);
        }
        let mut kinds: Vec<Kind> =
            kinds.values().map(|places| Kind::new(probes, places, &outliers)).collect();
        // Stable: kinds are in the order of their names before.
        kinds.sort_by_key(|kind| std::cmp::Reverse(kind.outliers));
        Self { kinds, outliers }
    }
}

impl Kind {
    fn new(probes: &[Document], places: &[usize], outliers: &[Outlier]) -> Self {
        let of = || places.iter().map(|place| &probes[*place]);
        let machine = of().next().map(|probe| probe.machine.clone()).unwrap_or_default();
        let mut highest: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
        for probe in of() {
            let mut costs: BTreeMap<&'static str, f64> = BTreeMap::new();
            for measure in &probe.measures {
                // What is no effect costs nothing that is known.
                let cost = if measure.has_effect { measure.median } else { 0.0 };
                let most = costs.entry(measure.key.cost.name()).or_insert(cost);
                *most = most.max(cost);
            }
            for (name, cost) in costs {
                highest.entry(name).or_default().push(cost);
            }
        }
        let count = |effect: &str| of().filter(|probe| probe.effect == effect).count();
        let spread = |mut costs: Vec<f64>| {
            costs.sort_by(f64::total_cmp);
            [costs[0], median(&costs), costs[costs.len() - 1]]
        };
        Self {
            processor: machine.brand,
            microarchitecture: machine.microarchitecture,
            microcode: machine.microcode,
            hypervisor: machine.hypervisor,
            kernel: machine.kernel,
            probes: places.len(),
            with_effect: count("yes"),
            open: count("open"),
            not_measured: count("not-measured"),
            costs: highest.into_iter().map(|(name, costs)| (name, spread(costs))).collect(),
            outliers: outliers.iter().filter(|one| places.contains(&one.probe)).count(),
        }
    }
}

/// The costs of these probes that differ from the median of all of them.
fn outliers(probes: &[Document], places: &[usize]) -> Vec<Outlier> {
    let mut by_key: BTreeMap<&Key, Vec<(usize, &Measure)>> = BTreeMap::new();
    for place in places {
        for measure in &probes[*place].measures {
            by_key.entry(&measure.key).or_default().push((*place, measure));
        }
    }
    let mut found = Vec::new();
    for of_key in by_key.values().filter(|of_key| of_key.len() >= LEAST) {
        let mut medians: Vec<f64> = of_key.iter().map(|(_, measure)| measure.median).collect();
        medians.sort_by(f64::total_cmp);
        let typical = median(&medians);
        // Where most have no effect, one without it is usual.
        let has_effect = of_key.iter().filter(|(_, one)| one.has_effect).count() * 2 > of_key.len();
        for (place, measure) in of_key {
            let typical = Measure {
                median: typical,
                interval: [typical; 2],
                has_effect,
                key: measure.key.clone(),
            };
            if measure.is_worse_than(&typical) || typical.is_worse_than(measure) {
                let measure = (*measure).clone();
                found.push(Outlier {
                    probe: *place,
                    measure,
                    typical: typical.median,
                    of: medians.len(),
                });
            }
        }
    }
    found
}

/// The median of ascending values, of which there is at least one.
fn median(values: &[f64]) -> f64 {
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) {
        f64::midpoint(values[middle - 1], values[middle])
    } else {
        values[middle]
    }
}

#[cfg(test)]
pub(crate) mod tests;
