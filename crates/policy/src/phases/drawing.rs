//! By what drawings of a graph show an edge: a place on a scale for its color, and its share of the
//! time for its width.

use super::{Counts, Graph, Metric};

/// The range of a metric over the edges of a graph, for colors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    metric: Metric,
    /// The lowest and the highest value above 0.
    lowest: f64,
    highest: f64,
}

impl Scale {
    /// The scale of a graph; `None` if no edge has a value above 0.
    #[must_use]
    pub fn of(graph: &Graph, metric: Metric) -> Option<Self> {
        let values = || graph.edges().filter_map(|edge| above_zero(metric, edge.2));
        let lowest = values().reduce(f64::min)?;
        Some(Self { metric, lowest, highest: values().fold(lowest, f64::max) })
    }

    /// The lowest and the highest value.
    #[must_use]
    pub const fn ends(&self) -> (f64, f64) {
        (self.lowest, self.highest)
    }

    /// The place of an edge, 0 (the lowest) to 1 (the highest), in proportion to the logarithm; 1
    /// if all values are equal, `None` if the edge has no value or 0.
    #[must_use]
    pub fn place(&self, counts: &Counts) -> Option<f64> {
        let value = above_zero(self.metric, counts)?;
        let range = (self.highest / self.lowest).ln();
        Some(if range > 0.0 { (value / self.lowest).ln() / range } else { 1.0 })
    }
}

fn above_zero(metric: Metric, counts: &Counts) -> Option<f64> {
    metric.of(counts).filter(|value| *value > 0.0)
}

/// The share of the time of all edges that one edge has, over all its calls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeShare {
    is_of_cycles: bool,
    /// The time of all edges (ns), or their cycles.
    sum: f64,
}

impl TimeShare {
    /// The shares in a graph: of the time, or of the cycles if not all edges have a time; `None` if
    /// not all have those either, or if all are 0.
    #[must_use]
    pub fn of(graph: &Graph) -> Option<Self> {
        let sum = |is_of_cycles| {
            graph.edges().map(|edge| length(edge.2, is_of_cycles)).sum::<Option<f64>>()
        };
        let of = |is_of_cycles| Some(Self { is_of_cycles, sum: sum(is_of_cycles)? });
        of(false).or_else(|| of(true)).filter(|shares| shares.sum > 0.0)
    }

    /// Whether it is the share of the cycles.
    #[must_use]
    pub const fn is_of_cycles(&self) -> bool {
        self.is_of_cycles
    }

    /// The share of an edge of the graph, 0 to 1.
    #[must_use]
    pub fn of_edge(&self, counts: &Counts) -> f64 {
        length(counts, self.is_of_cycles).unwrap_or(0.0) / self.sum
    }
}

/// The time of an edge (ns), or its cycles.
fn length(counts: &Counts, is_of_cycles: bool) -> Option<f64> {
    if is_of_cycles {
        counts.spent.cycles.map(|cycles| cycles as f64)
    } else {
        counts.spent.time.map(|time| time.as_f64())
    }
}

#[cfg(test)]
mod tests {
    use dimmer_processor::units::Nanos;

    use super::*;
    use crate::phases::any::Any;
    use crate::phases::{Counters, Mark};

    fn graph(edges: [(Option<u64>, Option<u64>); 2]) -> Graph {
        let mut graph = Graph::default();
        for (end, (ns, cycles)) in ["a", "b"].into_iter().zip(edges) {
            let spent = Counters {
                time: ns.map(Nanos::from_ns),
                instructions: Some(100),
                cycles,
                ..Counters::default()
            };
            let mark = |name| Mark::new(name).unwrap();
            graph.add(&mark("a"), &mark(end), &Counts { calls: 1, spent });
        }
        graph
    }

    #[test]
    fn shares_are_of_what_all_edges_have() {
        let shares = |graph: Graph| {
            let shares = TimeShare::of(&graph)?;
            let of: Vec<f64> = graph.edges().map(|edge| shares.of_edge(edge.2)).collect();
            Some((shares.is_of_cycles(), of))
        };
        let of = |edges| shares(graph(edges));
        assert_eq!(of([(Some(1), Some(9)), (Some(3), None)]), Some((false, vec![0.25, 0.75])));
        assert_eq!(of([(Some(1), Some(9)), (None, Some(1))]), Some((true, vec![0.9, 0.1])));
        assert_eq!(of([(Some(1), None), (None, Some(1))]), None);
        assert_eq!(of([(Some(0), None), (Some(0), None)]), None);
        assert_eq!(shares(Graph::default()), None);
    }

    #[test]
    fn places_are_in_proportion_to_the_logarithm() {
        let places = |cycles: [u64; 2]| {
            let graph = graph(cycles.map(|cycles| (None, Some(cycles))));
            let scale = Scale::of(&graph, Metric::Cpi)?;
            Some((scale.ends(), graph.edges().map(|edge| scale.place(edge.2)).collect()))
        };
        assert_eq!(places([100, 400]), Some(((1.0, 4.0), vec![Some(0.0), Some(1.0)])));
        assert_eq!(places([0, 400]), Some(((4.0, 4.0), vec![None, Some(1.0)])));
        assert_eq!(places([0, 0]), None);
    }

    #[test]
    fn any_graph_has_places_and_shares_from_0_to_1() {
        let mut any = Any::new(11);
        for _ in 0..500 {
            let graph = any.graph();
            let (scale, shares) = (Scale::of(&graph, Metric::L3MissRate), TimeShare::of(&graph));
            for (_, _, counts) in graph.edges() {
                let place = scale.and_then(|scale| scale.place(counts)).unwrap_or(0.0);
                let share = shares.map_or(0.0, |shares| shares.of_edge(counts));
                assert!((-1e-12..=1.0 + 1e-12).contains(&place), "{place}");
                assert!((0.0..=1.0).contains(&share), "{share}");
            }
        }
    }
}
