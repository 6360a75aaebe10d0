//! A control-flow graph without some of its marks.
//!
//! A graph has no order of edges: it shows how often a mark was passed after another one, not what
//! was passed before both. So the edges past a mark that is removed are an estimate, as in a Markov
//! chain: which edge leaves the mark does not depend on the edge that led there.

use std::collections::{BTreeMap, BTreeSet};

use dimmer_processor::units::{Nanos, nearest};

use super::{Counters, Counts, Graph, Mark};

/// The counters of [`Counters`], in their order.
const COUNTERS: usize = 5;

/// The sum over the calls of an edge, each of which may be a part of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    calls: f64,
    spent: [Option<f64>; COUNTERS],
}

impl Edge {
    pub(super) const NONE: Self = Self { calls: 0.0, spent: [Some(0.0); COUNTERS] };

    fn of(counts: &Counts) -> Self {
        let Counters { time, instructions, cycles, l2_latency, l3_misses } = counts.spent;
        let count = |count: Option<u64>| count.map(|count| count as f64);
        let time = time.map(|time| time.as_f64());
        let counts_of = [instructions, cycles, l2_latency, l3_misses].map(count);
        let [instructions, cycles, l2_latency, l3_misses] = counts_of;
        let spent = [time, instructions, cycles, l2_latency, l3_misses];
        Self { calls: counts.calls as f64, spent }
    }

    pub(super) fn counts(&self) -> Counts {
        let [time, rest @ ..] = self.spent;
        let [instructions, cycles, l2_latency, l3_misses] = rest.map(|count| count.map(nearest));
        let time = time.map(|ns| Nanos::from_ns(nearest(ns)));
        let spent = Counters { time, instructions, cycles, l2_latency, l3_misses };
        Counts { calls: nearest(self.calls), spent }
    }

    pub(super) fn has_calls(&self) -> bool {
        self.calls > 0.0
    }

    /// The mean time of a call (ns). `None` if there was none, or it was not measured.
    pub(super) fn mean_ns(&self) -> Option<f64> {
        let ns = self.spent[0].filter(|_| self.has_calls())?;
        Some(ns / self.calls)
    }

    /// The time of all calls (ns). 0 if it was not measured.
    pub(super) fn ns(&self) -> f64 {
        self.spent[0].unwrap_or(0.0)
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        for (own, other) in self.spent.iter_mut().zip(other.spent) {
            *own = Some(*own).flatten().zip(other).map(|(a, b)| a + b);
        }
    }

    /// This number of the calls.
    fn part(&self, calls: f64) -> Self {
        let share = if self.has_calls() { calls / self.calls } else { 0.0 };
        Self { calls, spent: self.spent.map(|count| Some(count? * share)) }
    }
}

/// A graph from which marks are removed one after the other. Marks have the numbers of their
/// places in the order of their names.
#[derive(Clone, Debug)]
pub(super) struct Reduced {
    marks: Vec<Mark>,
    /// The edges from each mark, by their ends.
    from: Vec<BTreeMap<usize, Edge>>,
    /// The marks with edges to each mark.
    into: Vec<BTreeSet<usize>>,
}

impl Reduced {
    pub(super) fn new(graph: &Graph) -> Self {
        let marks: Vec<Mark> = graph.marks().into_iter().cloned().collect();
        let numbers: BTreeMap<&Mark, usize> = marks.iter().zip(0..).collect();
        let mut from = vec![BTreeMap::new(); marks.len()];
        let mut into = vec![BTreeSet::new(); marks.len()];
        for (start, end, counts) in graph.edges() {
            let (start, end) = (numbers[start], numbers[end]);
            from[start].insert(end, Edge::of(counts));
            into[end].insert(start);
        }
        Self { marks, from, into }
    }

    pub(super) fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// All edges.
    pub(super) fn edges(&self) -> impl Iterator<Item = &Edge> {
        self.from.iter().flat_map(BTreeMap::values)
    }

    /// The sum of the edges from a mark.
    pub(super) fn leaving(&self, mark: usize) -> Edge {
        sum(self.from[mark].values())
    }

    /// The sum of the edges from other marks to a mark.
    pub(super) fn arriving(&self, mark: usize) -> Edge {
        let others = self.into[mark].iter().filter(|start| **start != mark);
        sum(others.filter_map(|start| self.from[*start].get(&mark)))
    }

    /// How often a mark was passed, but for the first or the last times of threads.
    pub(super) fn passed(&self, mark: usize) -> f64 {
        let arriving = self.into[mark].iter().filter_map(|start| self.from[*start].get(&mark));
        sum(arriving).calls.max(self.leaving(mark).calls)
    }

    /// Removes a mark: each edge to it goes on as the edges from it, in proportion to their calls,
    /// and the time and the counts of both are added. The edge from the mark to itself is a part of
    /// all of these. Threads that started or ended at the mark have one edge fewer.
    pub(super) fn remove(&mut self, mark: usize) {
        let mut leaving = std::mem::take(&mut self.from[mark]);
        let own = leaving.remove(&mark).unwrap_or(Edge::NONE);
        for end in leaving.keys() {
            self.into[*end].remove(&mark);
        }
        let starts = std::mem::take(&mut self.into[mark]);
        let arriving: Vec<(usize, Edge)> = starts
            .into_iter()
            .filter_map(|start| Some((start, self.from[start].remove(&mark)?)))
            .collect();
        let arrived = sum(arriving.iter().map(|(_, edge)| edge)).calls;
        let left = sum(leaving.values()).calls;
        let passed = arrived.min(left);
        for (start, to) in &arriving {
            for (end, on) in &leaving {
                let calls = passed * (to.calls / arrived) * (on.calls / left);
                let mut edge = to.part(calls);
                let ways = [on.part(calls), Edge { calls: passed, ..own }.part(calls)];
                ways.iter().for_each(|way| edge.add(way));
                self.from[*start].entry(*end).or_insert(Edge::NONE).add(&Edge { calls, ..edge });
                self.into[*end].insert(*start);
            }
        }
    }

    /// The graph of the marks that are left. Calls are whole numbers there: of a mark's edges, one
    /// with less than half a call is added to the next one.
    pub(super) fn graph(&self) -> Graph {
        let mut graph = Graph::default();
        for (start, edges) in self.marks.iter().zip(&self.from) {
            let mut whole: Vec<(usize, Edge)> = Vec::new();
            let (mut rest, mut calls) = (Edge::NONE, 0.0);
            for (end, edge) in edges {
                rest.add(edge);
                calls += edge.calls;
                if calls.round() > 0.0 {
                    whole.push((*end, Edge { calls: calls.round(), ..rest }));
                    calls -= calls.round();
                    rest = Edge::NONE;
                }
            }
            if let Some((_, last)) = whole.last_mut() {
                last.add(&Edge { calls: 0.0, ..rest });
            }
            for (end, edge) in whole {
                graph.add(start, &self.marks[end], &edge.counts());
            }
        }
        graph
    }
}

fn sum<'a>(edges: impl Iterator<Item = &'a Edge>) -> Edge {
    let mut sum = Edge::NONE;
    edges.for_each(|edge| sum.add(edge));
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phases::any::Any;

    fn graph(edges: &[(&str, &str, u64, u64)]) -> Graph {
        let mut graph = Graph::default();
        for (start, end, calls, ns) in edges {
            let [start, end] = [start, end].map(|name| Mark::new(name).unwrap());
            let spent = Counters { time: Some(Nanos::from_ns(*ns)), ..Counters::default() };
            graph.add(&start, &end, &Counts { calls: *calls, spent });
        }
        graph
    }

    fn without(whole: &Graph, names: &[&str]) -> Graph {
        let mut reduced = Reduced::new(whole);
        for name in names {
            let number = reduced.marks.iter().position(|mark| mark.name() == *name).unwrap();
            reduced.remove(number);
        }
        reduced.graph()
    }

    #[test]
    fn what_ran_at_a_removed_mark_belongs_to_the_edge_around_it() {
        // A thread: a, ten times x, b; and again.
        let whole =
            graph(&[("a", "x", 2, 20), ("x", "x", 18, 180), ("x", "b", 2, 40), ("b", "a", 1, 7)]);
        assert_eq!(without(&whole, &["x"]), graph(&[("a", "b", 2, 240), ("b", "a", 1, 7)]));
        // The thread starts at a, so one edge of two from there has another one before it.
        assert_eq!(without(&whole, &["x", "a"]), graph(&[("b", "b", 1, 7 + 120)]));
    }

    #[test]
    fn edges_past_a_removed_mark_are_in_proportion() {
        let whole = graph(&[
            ("a", "x", 30, 300),
            ("b", "x", 10, 500),
            ("x", "c", 20, 20),
            ("x", "d", 20, 60),
        ]);
        let expected = graph(&[
            ("a", "c", 15, 165),
            ("a", "d", 15, 195),
            ("b", "c", 5, 255),
            ("b", "d", 5, 265),
        ]);
        assert_eq!(without(&whole, &["x"]), expected);
    }

    #[test]
    fn rare_edges_are_added_to_others_of_their_start() {
        let edges: Vec<String> = (0..100).map(|number| format!("e{number:02}")).collect();
        let mut whole = graph(&[("a", "x", 10, 1000)]);
        for end in &edges {
            whole.merge(&graph(&[("x", end, 1, 100)]));
        }
        let reduced = without(&whole, &["x"]);
        let calls: u64 = reduced.edges().map(|(_, _, counts)| counts.calls).sum();
        let ns: f64 = reduced
            .edges()
            .filter_map(|(_, _, counts)| counts.spent.time)
            .map(|time| time.as_f64())
            .sum();
        // Ten threads came to x, a hundred left it: the others started there.
        assert_eq!((calls, ns), (10, 2000.0));
    }

    #[test]
    fn removing_a_mark_adds_no_time() {
        let mut any = Any::new(11);
        for _ in 0..200 {
            let (whole, marks) = (any.graph(), any.marks());
            let reduced = without(&whole, &[marks[1].name()]);
            let ns = |graph: &Graph| -> f64 {
                graph.edges().filter_map(|edge| edge.2.spent.time).map(|time| time.as_f64()).sum()
            };
            assert!(ns(&reduced) <= ns(&whole) * (1.0 + 1e-9) + 100.0);
            assert!(reduced.marks().iter().all(|mark| **mark != marks[1]));
        }
    }
}
