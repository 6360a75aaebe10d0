//! What is wrong with a program's marks (paper 004 §3.2 "Measurement Point Assessment", §4.1).

use dimmer_processor::units::Nanos;

use super::{Graph, Mark, Metric, Profile, Threshold};

/// An edge that takes less than this part of its start's calls is unexpected. A guess. In the
/// paper's graph the edge with a single call of 62 743 is one, the one with 4443 of 62 742 is not.
const RARE: f64 = 0.001;

/// An edge is mixed if its value is less than this many times the threshold, and more than this
/// part of it. A guess: at the paper's threshold, none of its edges is mixed.
const CLEAR: f64 = 1.5;

/// By what marks are assessed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Assessment {
    /// What describes an edge.
    pub metric: Metric,
    /// Divides fast and slow edges; `None`: no edge is mixed or diverse.
    pub threshold: Option<Threshold>,
    /// The shortest edge that is worth a migration: by the cost of one there and one back, as
    /// measured on this machine.
    pub shortest: Nanos,
}

/// What is wrong with an edge.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Finding {
    /// It is hardly ever taken: is the mark where it was meant to be?
    Unexpected {
        /// The edge's start.
        start: Mark,
        /// The edge's end.
        end: Mark,
        /// The edge's calls.
        calls: u64,
        /// The calls of all edges from its start.
        of: u64,
    },
    /// It is too short for a migration. Fewer marks are better.
    TooShort {
        /// The edge's start.
        start: Mark,
        /// The edge's end.
        end: Mark,
        /// The mean time of a call.
        time: Nanos,
    },
    /// It is neither clearly CPU-bound nor clearly memory-bound.
    Mixed {
        /// The edge's start.
        start: Mark,
        /// The edge's end.
        end: Mark,
        /// The edge's value.
        value: f64,
    },
    /// It is clearly on the other side of the threshold than the mean of the edges from its start,
    /// by which threads go at that mark.
    Diverse {
        /// The edge's start.
        start: Mark,
        /// The edge's end.
        end: Mark,
        /// The edge's value.
        value: f64,
        /// The value of the start.
        mean: f64,
    },
}

impl Finding {
    /// The edge's start and end.
    #[must_use]
    pub const fn edge(&self) -> (&Mark, &Mark) {
        match self {
            Self::Unexpected { start, end, .. }
            | Self::TooShort { start, end, .. }
            | Self::Mixed { start, end, .. }
            | Self::Diverse { start, end, .. } => (start, end),
        }
    }

    /// The two marks between which a further one would help, if that is so.
    #[must_use]
    pub const fn add_mark_between(&self) -> Option<(&Mark, &Mark)> {
        match self {
            Self::Mixed { .. } | Self::Diverse { .. } => Some(self.edge()),
            Self::Unexpected { .. } | Self::TooShort { .. } => None,
        }
    }
}

impl Assessment {
    /// What is wrong with the edges of a graph, in the order of the edges.
    ///
    /// Of an edge that is hardly ever taken, and of one that is too short, nothing else is
    /// reported: a further mark there would not help.
    ///
    /// * `profile`: the values of the marks, which are means of edges by the same metric.
    #[must_use]
    pub fn of(&self, graph: &Graph, profile: &Profile) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (start, edges) in graph.starts() {
            let of = edges.values().fold(0, |sum: u64, counts| sum.saturating_add(counts.calls));
            for (end, counts) in edges {
                let (start, end) = (start.clone(), end.clone());
                let time = counts.spent.time.map(|time| time / counts.calls);
                let value = self.metric.of(counts);
                findings.extend(if (counts.calls as f64) < of as f64 * RARE {
                    Some(Finding::Unexpected { start, end, calls: counts.calls, of })
                } else if let Some(time) = time.filter(|time| *time < self.shortest) {
                    Some(Finding::TooShort { start, end, time })
                } else {
                    let mean = profile.value(&start);
                    value.zip(mean).and_then(|(value, mean)| self.side(start, end, value, mean))
                });
            }
        }
        findings
    }

    fn side(&self, start: Mark, end: Mark, value: f64, mean: f64) -> Option<Finding> {
        let threshold = self.threshold?;
        let number = threshold.value();
        let is_mixed = value < CLEAR * number && value * CLEAR > number;
        if is_mixed {
            Some(Finding::Mixed { start, end, value })
        } else if threshold.core(value) != threshold.core(mean) {
            Some(Finding::Diverse { start, end, value, mean })
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phases::any::Any;
    use crate::phases::{Core, Counters, Counts};

    fn mark(name: &str) -> Mark {
        Mark::new(name).unwrap()
    }

    fn edge(graph: &mut Graph, end: &str, calls: u64, us: u64, misses: u64) {
        let spent = Counters {
            time: Some(Nanos::from_us(us * calls)),
            instructions: Some(1000 * calls),
            l3_misses: Some(misses * calls),
            ..Counters::default()
        };
        graph.add(&mark("A"), &mark(end), &Counts { calls, spent });
    }

    fn here(threshold: f64) -> Assessment {
        let threshold = Threshold::new(threshold);
        Assessment { metric: Metric::L3MissRate, threshold, shortest: Nanos::from_us(8) }
    }

    #[test]
    fn each_edge_has_the_finding_that_matters() {
        let mut graph = Graph::default();
        edge(&mut graph, "fast", 10_000, 50, 1);
        edge(&mut graph, "mixed", 100, 50, 12);
        edge(&mut graph, "rare", 9, 50, 12);
        edge(&mut graph, "short", 200, 7, 12);
        edge(&mut graph, "slow", 300, 50, 80);
        let profile = Profile::of(&graph, Metric::L3MissRate);
        let findings = here(0.01).of(&graph, &profile);
        let a = || mark("A");
        let mean = profile.value(&a()).unwrap();
        let (rare, short) = (mark("rare"), mark("short"));
        assert_eq!(
            findings,
            [
                Finding::Mixed { start: a(), end: mark("mixed"), value: 0.012 },
                Finding::Unexpected { start: a(), end: rare, calls: 9, of: 10_609 },
                Finding::TooShort { start: a(), end: short, time: Nanos::from_us(7) },
                Finding::Diverse { start: a(), end: mark("slow"), value: 0.08, mean },
            ]
        );
        assert_eq!(findings[0].add_mark_between(), Some((&a(), &mark("mixed"))));
        assert_eq!(findings[3].add_mark_between(), Some((&a(), &mark("slow"))));
        assert_eq!(findings[2].add_mark_between(), None);
        // Without a threshold, rare and short edges are found all the same.
        let without = Assessment { threshold: None, ..here(0.01) }.of(&graph, &profile);
        assert_eq!(without, findings[1..3]);
    }

    #[test]
    fn any_graph_is_assessed_and_diverse_edges_are_on_the_other_side() {
        let mut any = Any::new(6);
        for round in 0..1000 {
            let graph = if round % 2 == 0 { any.graph() } else { any.flow().graph(&any.marks()) };
            let assessment = here(any.share() / 10.0);
            let profile = Profile::of(&graph, Metric::L3MissRate);
            let threshold = assessment.threshold.unwrap();
            let findings = assessment.of(&graph, &profile);
            assert!(findings.len() <= graph.edges().count());
            for finding in findings {
                if let Finding::Diverse { value, mean, .. } = finding {
                    let is_slow = |value| threshold.core(value) == Core::Slow;
                    assert!(is_slow(value) != is_slow(mean));
                }
            }
        }
    }
}
