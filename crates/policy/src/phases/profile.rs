//! One value for each mark: what the edges from it are like (paper 004 §4.1).

use std::collections::BTreeMap;

use super::{Counts, Graph, Mark};

/// The digits after the point of rates in the text of a graph: `%f` in C.
const DIGITS: f64 = 1e6;

/// What describes an edge. Each is the larger, the more memory-bound the edge is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// L3 misses per instruction: the paper's choice (§5.2.3).
    L3MissRate,
    /// Cycles spent waiting for the L2 to be filled, per instruction.
    L2Rate,
    /// Cycles per instruction. They differ with the core, unlike the others.
    Cpi,
}

impl Metric {
    /// The value for an edge; `None` if something was not counted, or no instruction was.
    #[must_use]
    pub fn of(self, counts: &Counts) -> Option<f64> {
        let spent = &counts.spent;
        let count = match self {
            Self::L3MissRate => spent.l3_misses,
            Self::L2Rate => spent.l2_latency,
            Self::Cpi => spent.cycles,
        }?;
        let instructions = spent.instructions.filter(|count| *count > 0)?;
        Some(count as f64 / instructions as f64)
    }

    /// The value as the text of a graph has it, with six digits after the point.
    ///
    /// The paper's profiles (listing 5.2) were made from such text, and differ from those of exact
    /// values in the sixth digit.
    #[must_use]
    pub fn printed(self, counts: &Counts) -> Option<f64> {
        Some((self.of(counts)? * DIGITS).round() / DIGITS)
    }
}

/// The value of each mark. All values are finite and not negative.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile(BTreeMap<Mark, f64>);

impl Profile {
    /// The mean over the edges from each mark, weighted by their calls: at a mark, nothing shows
    /// which edge will be taken.
    ///
    /// * `value`: the value of an edge from its start, its end and its counts. Edges without one,
    ///   or with one that is negative or not finite, do not count; marks with no other edges have
    ///   no value.
    ///
    /// # Source
    /// Paper 004 §4.1, the formula.
    #[must_use]
    pub fn weighted(graph: &Graph, value: impl Fn(&Mark, &Mark, &Counts) -> Option<f64>) -> Self {
        let mut profile = Self::default();
        for (start, edges) in graph.starts() {
            let (mut sum, mut all) = (0.0, 0.0);
            for (end, counts) in edges {
                if let Some(value) = value(start, end, counts).filter(|value| is_value(*value)) {
                    let calls = counts.calls as f64;
                    sum += calls * value;
                    all += calls;
                }
            }
            profile.insert(start.clone(), sum / all);
        }
        profile
    }

    /// The profile by a metric, from exact counts.
    #[must_use]
    pub fn of(graph: &Graph, metric: Metric) -> Self {
        Self::weighted(graph, |_, _, counts| metric.of(counts))
    }

    /// The profile by how much fewer cycles each edge takes on a slow core: cycles per instruction
    /// on the fast core over those on the slow one. 1 for CPU-bound code, and up to the ratio of
    /// the clocks for memory-bound code.
    ///
    /// * `fast`, `slow`: the same program, measured on either core. Only edges of both count, with
    ///   their calls on the fast core.
    ///
    /// # Source
    /// Paper 004 §5.3.1.
    #[must_use]
    pub fn of_two_cores(fast: &Graph, slow: &Graph) -> Self {
        Self::weighted(fast, |start, end, counts| {
            Some(Metric::Cpi.of(counts)? / Metric::Cpi.of(slow.edge(start, end)?)?)
        })
    }

    /// Sets the value of a mark. Returns whether it is a value: not negative, and finite.
    pub fn insert(&mut self, mark: Mark, value: f64) -> bool {
        let is_value = is_value(value);
        if is_value {
            self.0.insert(mark, value);
        }
        is_value
    }

    /// The value of a mark; `None`: nothing is known of it.
    #[must_use]
    pub fn value(&self, mark: &Mark) -> Option<f64> {
        self.0.get(mark).copied()
    }

    /// All marks with their values, in the order of the names.
    pub fn values(&self) -> impl Iterator<Item = (&Mark, f64)> {
        self.0.iter().map(|(mark, value)| (mark, *value))
    }

    /// The marks that are none of `known`, for an error or a warning: the profile is of another
    /// program, or of another version of it.
    #[must_use]
    pub fn unknown(&self, known: &[Mark]) -> Vec<&Mark> {
        self.0.keys().filter(|mark| !known.contains(mark)).collect()
    }
}

fn is_value(value: f64) -> bool {
    value.is_finite() && value >= 0.0
}

/// The part of an edge's time on the fast core that does not depend on the clock, 0 to 1; `None` if
/// the clocks do not differ.
///
/// * `cpi_ratio`: cycles per instruction on the fast core over those on the slow one.
/// * `clock_ratio`: the clock of the fast core over that of the slow one.
///
/// # Source
/// Paper 004 §3.1: with a memory-bound part m of the time, the slow core takes (1 − m) r + m times
/// as long at 1/r of the clock, so the CPI ratio is r / ((1 − m) r + m).
#[must_use]
pub fn memory_share(cpi_ratio: f64, clock_ratio: f64) -> Option<f64> {
    let share = clock_ratio * (1.0 - 1.0 / cpi_ratio) / (clock_ratio - 1.0);
    share.is_finite().then(|| share.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phases::Counters;
    use crate::phases::any::Any;

    fn mark(name: &str) -> Mark {
        Mark::new(name).unwrap()
    }

    fn counts(calls: u64, cycles: u64, instructions: u64) -> Counts {
        let spent = Counters {
            cycles: Some(cycles),
            instructions: Some(instructions),
            ..Counters::default()
        };
        Counts { calls, spent }
    }

    #[test]
    fn values_are_weighted_by_calls_not_by_instructions() {
        let mut graph = Graph::default();
        graph.add(&mark("A"), &mark("B"), &counts(3, 2_000_000, 1_000_000));
        graph.add(&mark("A"), &mark("C"), &counts(1, 6, 1));
        graph.add(&mark("A"), &mark("D"), &counts(1000, 1, 0));
        graph.add(&mark("D"), &mark("A"), &counts(1000, 1, 0));
        let profile = Profile::of(&graph, Metric::Cpi);
        assert_eq!(profile.values().collect::<Vec<_>>(), [(&mark("A"), 3.0)]);
        assert_eq!(profile.unknown(&[mark("B")]), [&mark("A")]);
        assert_eq!(Profile::of(&graph, Metric::L3MissRate), Profile::default());
    }

    #[test]
    fn memory_bound_code_takes_fewer_cycles_on_a_slow_core() {
        let (mut fast, mut slow) = (Graph::default(), Graph::default());
        // Pointer chasing and register code on the Ryzen of paper 004 (fig. 5.4), and an edge that
        // the slow core did not take.
        for (start, on_fast, on_slow) in [("chase", 11_374, 5623), ("compute", 3566, 3565)] {
            fast.add(&mark(start), &mark("end"), &counts(1, on_fast, 1000));
            slow.add(&mark(start), &mark("end"), &counts(5, on_slow, 1000));
        }
        fast.add(&mark("end"), &mark("chase"), &counts(1, 1, 1));
        let profile = Profile::of_two_cores(&fast, &slow);
        assert_eq!(profile.values().count(), 2);
        let clocks = 3600.0 / 1440.0;
        let share = |name| memory_share(profile.value(&mark(name)).unwrap(), clocks).unwrap();
        assert!((share("chase") - 0.843).abs() < 0.001 && share("compute") < 0.001);
        assert_eq!((memory_share(1.0, 1.0), memory_share(f64::NAN, 2.0)), (None, None));
        assert_eq!((memory_share(9.0, 2.5), memory_share(0.5, 2.5)), (Some(1.0), Some(0.0)));
    }

    #[test]
    fn means_lie_between_the_values_of_the_edges() {
        let mut any = Any::new(2);
        for _ in 0..500 {
            let graph = any.graph();
            for metric in [Metric::L3MissRate, Metric::L2Rate, Metric::Cpi] {
                for (mark, mean) in Profile::of(&graph, metric).values() {
                    let values =
                        graph.edges().filter(|edge| edge.0 == mark).filter_map(|e| metric.of(e.2));
                    let (least, most) = values
                        .fold((f64::MAX, 0.0_f64), |(a, b), value| (a.min(value), b.max(value)));
                    assert!((least * (1.0 - 1e-9)..=most * (1.0 + 1e-9)).contains(&mean));
                }
            }
        }
    }
}
