//! What has become worse since an earlier probe, as of another kernel, microcode or host.

use crate::document::Document;
use crate::measure::Measure;

/// An earlier probe beside a later one.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison<'a> {
    /// What differs between the machines: what it is, before, and after.
    pub machine: Vec<(&'static str, String, String)>,
    /// Costs that are surely higher than before, with those before.
    pub worse: Vec<[&'a Measure; 2]>,
    /// Costs that are surely lower than before.
    pub better: Vec<[&'a Measure; 2]>,
    /// The number of costs that both have.
    pub compared: usize,
    /// The numbers of costs that only the earlier and only the later one has.
    pub alone: [usize; 2],
}

impl<'a> Comparison<'a> {
    /// Compares all costs that both have.
    #[must_use]
    pub fn new(before: &'a Document, after: &'a Document) -> Self {
        let find = |of: &'a Document, measure: &Measure| {
            of.measures.iter().find(|other| other.key == measure.key)
        };
        let pairs: Vec<[&Measure; 2]> = before
            .measures
            .iter()
            .filter_map(|measure| Some([measure, find(after, measure)?]))
            .collect();
        let only = |of: &'a Document, other: &'a Document| {
            of.measures.iter().filter(|measure| find(other, measure).is_none()).count()
        };
        Self {
            machine: differences(before, after),
            worse: pairs.iter().copied().filter(|[old, new]| new.is_worse_than(old)).collect(),
            better: pairs.iter().copied().filter(|[old, new]| old.is_worse_than(new)).collect(),
            compared: pairs.len(),
            alone: [only(before, after), only(after, before)],
        }
    }
}

fn differences(before: &Document, after: &Document) -> Vec<(&'static str, String, String)> {
    let of = |document: &Document| {
        let machine = document.machine.clone();
        let known = |value: Option<String>| value.unwrap_or_else(|| "not known".to_owned());
        [
            ("processor", machine.brand),
            ("microarchitecture", machine.microarchitecture),
            ("microcode", known(machine.microcode)),
            ("hypervisor", machine.hypervisor.unwrap_or_else(|| "none".to_owned())),
            ("kernel", known(machine.kernel)),
            ("CPUs", machine.cpus.to_string()),
        ]
    };
    let both = of(before).into_iter().zip(of(after));
    let differs = both.filter(|((_, old), (_, new))| old != new);
    differs.map(|((what, old), (_, new))| (what, old, new)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merge::tests::{Made, probe};

    #[test]
    fn what_is_surely_and_noticeably_worse_is_found() {
        let before = probe("a", Made { burst: (1000.0, 50.0), ..Made::default() });
        let check = |made: Made, worse: usize, better: usize| {
            let after = probe("b", made);
            let found = Comparison::new(&before, &after);
            assert_eq!((found.worse.len(), found.better.len()), (worse, better), "{made:?}");
            assert_eq!((found.compared, found.alone), (2, [0, 0]));
        };
        check(Made { burst: (1200.0, 50.0), ..Made::default() }, 1, 0);
        check(Made { burst: (1200.0, 50.0), has_effect: false, ..Made::default() }, 0, 0);
        // The intervals overlap, or the difference is small.
        check(Made { burst: (1200.0, 200.0), ..Made::default() }, 0, 0);
        check(Made { burst: (1080.0, 10.0), ..Made::default() }, 0, 0);
        check(Made { burst: (800.0, 50.0), ..Made::default() }, 0, 1);
        check(Made { burst: (1000.0, 50.0), ratio: (0.89, 0.001), ..Made::default() }, 1, 0);
        check(Made { burst: (1000.0, 50.0), ratio: (0.895, 0.001), ..Made::default() }, 0, 0);
    }

    /// From no cost to a small one is no regression, however sure it is.
    #[test]
    fn what_is_too_small_to_matter_is_not_worse() {
        let before = probe("a", Made { burst: (-3.0, 1.0), ..Made::default() });
        let after = |ns: f64| probe("b", Made { burst: (ns, 1.0), ..Made::default() });
        assert_eq!(Comparison::new(&before, &after(90.0)).worse.len(), 0);
        assert_eq!(Comparison::new(&before, &after(110.0)).worse.len(), 1);
    }

    #[test]
    fn machines_differ_by_what_a_probe_says_of_them() {
        let before = probe("a", Made::default());
        let after = probe("b", Made { kernel: "6.2", ..Made::default() });
        let found = Comparison::new(&before, &after);
        assert_eq!(found.machine, [("kernel", "6.1".to_owned(), "6.2".to_owned())]);
    }

    #[test]
    fn what_only_one_has_is_counted() {
        let before = probe("a", Made::default());
        let after = Document { measures: before.measures[1..].to_vec(), ..before.clone() };
        assert_eq!(Comparison::new(&before, &after).alone, [1, 0]);
        assert_eq!(Comparison::new(&after, &before).alone, [0, 1]);
    }
}
