//! What runs between marks, counted: for each thread, and summed up over threads and processes
//! (paper 004 §4.1).

use std::collections::BTreeMap;

use dimmer_processor::units::Nanos;

use super::{Mark, MarkId};

/// A clock and counters: what they show, or how much they advanced. `None`: not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Time.
    pub time: Option<Nanos>,
    /// Instructions retired.
    pub instructions: Option<u64>,
    /// Cycles while not halted.
    pub cycles: Option<u64>,
    /// Cycles in which the core waited for its L2 to be filled. Where a processor does not count
    /// these: the number of requests that missed the L2.
    pub l2_latency: Option<u64>,
    /// Loads that missed the L3.
    pub l3_misses: Option<u64>,
}

impl Counters {
    /// Nothing, of everything.
    pub const ZERO: Self = Self {
        time: Some(Nanos::ZERO),
        instructions: Some(0),
        cycles: Some(0),
        l2_latency: Some(0),
        l3_misses: Some(0),
    };

    /// How far this reading is after an earlier one, less `overhead`; never below zero, even if a
    /// counter went backwards. What is not in `overhead` costs nothing.
    #[must_use]
    #[inline]
    pub fn since(&self, earlier: &Self, overhead: &Self) -> Self {
        let count = |now: Option<u64>, then: Option<u64>, less: Option<u64>| {
            Some(now?.saturating_sub(then?).saturating_sub(less.unwrap_or(0)))
        };
        let time = |now: Option<Nanos>, then: Option<Nanos>| {
            Some(now? - then? - overhead.time.unwrap_or(Nanos::ZERO))
        };
        Self {
            time: time(self.time, earlier.time),
            instructions: count(self.instructions, earlier.instructions, overhead.instructions),
            cycles: count(self.cycles, earlier.cycles, overhead.cycles),
            l2_latency: count(self.l2_latency, earlier.l2_latency, overhead.l2_latency),
            l3_misses: count(self.l3_misses, earlier.l3_misses, overhead.l3_misses),
        }
    }

    /// The sum, at most what fits. What one of the two lacks, the sum lacks: a rate of counts that
    /// stand for different calls would be wrong.
    #[must_use]
    #[inline]
    pub fn plus(&self, other: &Self) -> Self {
        let count = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_add(b?));
        let time = |a: Option<Nanos>, b: Option<Nanos>| Some(a? + b?);
        Self {
            time: time(self.time, other.time),
            instructions: count(self.instructions, other.instructions),
            cycles: count(self.cycles, other.cycles),
            l2_latency: count(self.l2_latency, other.l2_latency),
            l3_misses: count(self.l3_misses, other.l3_misses),
        }
    }
}

/// What was counted of an edge, over all its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Number of calls.
    pub calls: u64,
    /// The sum over the calls.
    pub spent: Counters,
}

impl Counts {
    /// No calls: the sum starts here.
    pub const NONE: Self = Self { calls: 0, spent: Counters::ZERO };

    /// Adds the counts of further calls.
    #[inline]
    pub fn add(&mut self, other: &Self) {
        self.calls = self.calls.saturating_add(other.calls);
        self.spent = self.spent.plus(&other.spent);
    }
}

/// The flow of one thread.
#[derive(Clone, Debug)]
pub struct Flow {
    overhead: Counters,
    /// The mark that the thread has passed last, and what was read there.
    last: Option<MarkId>,
    then: Counters,
    /// By start and end. Calls whose instructions were counted are apart from the others.
    edges: BTreeMap<(MarkId, MarkId, bool), Counts>,
}

impl Flow {
    /// The flow of a thread that has passed no mark yet.
    ///
    /// * `overhead`: what passing one mark costs, as measured. Each edge contains it once.
    #[must_use]
    pub const fn new(overhead: Counters) -> Self {
        Self { overhead, last: None, then: Counters::ZERO, edges: BTreeMap::new() }
    }

    /// The thread passes a mark: the edge from the one before ends, the next starts.
    ///
    /// * `reading`: what the thread's clock and counters show. An edge was measured if they were
    ///   read at both of its ends.
    ///
    /// # Cost
    /// O(log n) in the thread's edges; allocates for a new one.
    // Inlined, so that readings stay in registers: copies of what was just written cost 50 ns.
    #[inline(always)]
    pub fn pass(&mut self, mark: MarkId, reading: Counters) {
        if let Some(start) = self.last {
            let spent = reading.since(&self.then, &self.overhead);
            let key = (start, mark, spent.instructions.is_some());
            match self.edges.get_mut(&key) {
                Some(edge) => edge.add(&Counts { calls: 1, spent }),
                None => self.meet(key, spent),
            }
        }
        self.last = Some(mark);
        self.then = reading;
    }

    /// The first call of an edge.
    #[cold]
    fn meet(&mut self, key: (MarkId, MarkId, bool), spent: Counters) {
        self.edges.insert(key, Counts { calls: 1, spent });
    }

    /// The flow is interrupted: what runs until the next mark belongs to no edge.
    pub fn interrupt(&mut self) {
        self.last = None;
    }

    /// Takes the counts of all edges, so that they start at zero again. The edge that the thread is
    /// in continues. Calls that were measured are apart from those that were only counted, so an
    /// edge may occur twice.
    pub fn take(&mut self) -> impl Iterator<Item = ((MarkId, MarkId), Counts)> + use<> {
        let edges = std::mem::take(&mut self.edges).into_iter();
        edges.map(|((start, end, _), counts)| ((start, end), counts))
    }

    /// The thread's graph, with the name that `marks` has for each number. Edges of marks that have
    /// no name are left out.
    #[must_use]
    pub fn graph(&self, marks: &[Mark]) -> Graph {
        let mut graph = Graph::default();
        for ((start, end, _), counts) in &self.edges {
            let names = (marks.get(start.index()), marks.get(end.index()));
            if let (Some(start), Some(end)) = names {
                graph.add(start, end, counts);
            }
        }
        graph
    }
}

/// A control-flow graph: the counts of each edge, of any number of threads and processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph(BTreeMap<Mark, BTreeMap<Mark, Counts>>);

impl Graph {
    /// Adds counts to an edge. No calls add nothing.
    pub fn add(&mut self, start: &Mark, end: &Mark, counts: &Counts) {
        if counts.calls > 0 {
            let edges = self.0.entry(start.clone()).or_default();
            edges.entry(end.clone()).or_insert(Counts::NONE).add(counts);
        }
    }

    /// Adds all edges of another graph. In which order graphs are merged makes no difference.
    pub fn merge(&mut self, other: &Self) {
        for (start, end, counts) in other.edges() {
            self.add(start, end, counts);
        }
    }

    /// All edges (start, end, counts), in the order of the marks' names. Each has at least one
    /// call.
    pub fn edges(&self) -> impl Iterator<Item = (&Mark, &Mark, &Counts)> {
        self.0
            .iter()
            .flat_map(|(start, edges)| edges.iter().map(move |(end, counts)| (start, end, counts)))
    }

    /// The edges from each mark that has any, in the order of the names.
    pub fn starts(&self) -> impl Iterator<Item = (&Mark, &BTreeMap<Mark, Counts>)> {
        self.0.iter()
    }

    /// The counts of an edge, if it was taken.
    #[must_use]
    pub fn edge(&self, start: &Mark, end: &Mark) -> Option<&Counts> {
        self.0.get(start)?.get(end)
    }

    /// The edges by the numbers of their marks, which are the places in `marks`. Edges of other
    /// marks are left out.
    pub fn by_id(&self, marks: &[Mark]) -> impl Iterator<Item = ((MarkId, MarkId), Counts)> {
        let ids: BTreeMap<&Mark, MarkId> = marks.iter().zip((0..).map(MarkId::new)).collect();
        self.edges().filter_map(move |(start, end, counts)| {
            Some(((*ids.get(start)?, *ids.get(end)?), *counts))
        })
    }

    /// All marks, in the order of their names.
    #[must_use]
    pub fn marks(&self) -> Vec<&Mark> {
        let mut marks: Vec<&Mark> = self.edges().flat_map(|(start, end, _)| [start, end]).collect();
        marks.sort_unstable();
        marks.dedup();
        marks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phases::any::Any;

    fn at(ns: u64, instructions: u64) -> Counters {
        Counters {
            time: Some(Nanos::from_ns(ns)),
            instructions: Some(instructions),
            ..Counters::default()
        }
    }

    fn mark(name: &str) -> Mark {
        Mark::new(name).unwrap()
    }

    #[test]
    fn each_pass_ends_an_edge_and_costs_its_overhead() {
        let marks = [mark("A"), mark("B")];
        let mut flow = Flow::new(at(10, 3));
        let (a, b) = (MarkId::new(0), MarkId::new(1));
        for (mark, ns, instructions) in
            [(a, 1000, 0), (b, 1100, 50), (a, 1105, 200), (b, 1300, 190), (a, 1200, 250)]
        {
            flow.pass(mark, at(ns, instructions));
        }
        flow.interrupt();
        flow.pass(MarkId::new(7), at(9000, 9000));
        flow.pass(a, at(9100, 9001));
        let graph = flow.graph(&marks);
        let calls = |calls, spent| Some(Counts { calls, spent });
        // From A to B: 100 and 195 ns; 50 and −10 instructions. Each without its overhead.
        assert_eq!(graph.edge(&marks[0], &marks[1]).copied(), calls(2, at(275, 47)));
        // From B to A: 5 and −100 ns, 150 and 60 instructions.
        assert_eq!(graph.edge(&marks[1], &marks[0]).copied(), calls(2, at(0, 204)));
        assert_eq!(graph.edges().count(), 2, "a mark without a name, and the interruption");
        assert_eq!(flow.take().count(), 3);
        flow.pass(b, at(9200, 9100));
        assert_eq!(flow.graph(&marks).edge(&marks[0], &marks[1]).copied(), calls(1, at(90, 96)));
    }

    #[test]
    fn what_was_not_counted_for_all_calls_is_not_counted() {
        let (a, b) = (mark("A"), mark("B"));
        let mut graph = Graph::default();
        let time = Counters { instructions: None, ..at(5, 0) };
        graph.add(&a, &b, &Counts { calls: 1, spent: at(7, 9) });
        graph.add(&a, &b, &Counts { calls: 0, spent: Counters::default() });
        assert_eq!(graph.edge(&a, &b).unwrap().spent, at(7, 9));
        graph.add(&a, &b, &Counts { calls: 2, spent: time });
        let spent = Counters { time: Some(Nanos::from_ns(12)), ..Counters::default() };
        assert_eq!(graph.edge(&a, &b).copied(), Some(Counts { calls: 3, spent }));
        assert_eq!(graph.marks(), [&a, &b]);
    }

    #[test]
    fn any_events_are_counted_and_merged_in_any_order() {
        let mut any = Any::new(1);
        for _ in 0..200 {
            let graphs: Vec<Graph> = (0..3).map(|_| any.flow().graph(&any.marks())).collect();
            let merged = |order: [usize; 3]| {
                let mut sum = Graph::default();
                order.iter().for_each(|one| sum.merge(&graphs[*one]));
                sum
            };
            assert_eq!(merged([0, 1, 2]), merged([2, 0, 1]));
            assert_eq!(merged([0, 1, 2]), merged([1, 2, 0]));
            let mut pair = graphs[1].clone();
            pair.merge(&graphs[2]);
            let mut nested = graphs[0].clone();
            nested.merge(&pair);
            assert_eq!(nested, merged([0, 1, 2]));
        }
    }
}
