//! Which of many functions are good marks, by what was measured with all of them as marks.
//!
//! The paper's authors place marks by hand, and suggest further ones where the edges from a mark
//! differ (paper 004 §4.1). Here it is the other way round: all candidates are marks first, and
//! those are removed whose removal loses least.
//!
//! 1. A mark that was passed at less than half of its calls is removed: its edges are those of a
//!    part of the run.
//! 2. While there is a mark from which edges take less time than the shortest one worth measuring,
//!    on average, one of these is removed: the one passed most often. A function that a phase calls
//!    a million times goes before the phase's own, whose edges then have the time of all these
//!    calls. Of functions that follow one another with nothing between, one remains.
//! 3. While there are too many, or one makes almost no difference, the mark is removed at which the
//!    program changes least: by Ward's criterion (Journal of the American Statistical Association
//!    58, 1963), which joins those neighbours that add least to the sum of squares within groups.
//!    Weights are times. A mark at which threads start or end has no edges on one side, and
//!    removing it loses the edges on the other: their share of the time is what it counts.
//!
//! Values are L3 misses per instruction or, if these were not counted, cycles per instruction.
//! Without counters there is only time, and the value is the logarithm of an edge's time: that
//! long edges and short ones are different phases is a guess.

use std::cmp::Reverse;

use dimmer_processor::units::{Nanos, nearest};

use super::reduce::{Edge, Reduced};
use super::{Graph, Mark, Metric};

/// The share of all difference that a mark must make. A guess: with fewer, two phases of which one
/// takes 1 % of the time would be one.
const WORTH: f64 = 0.01;

/// The share of a mark's calls at which it was passed, at least. A guess.
const MEASURED: f64 = 0.5;

/// What marks are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choosing {
    /// The time of the shortest edge worth measuring: that of a migration there and back.
    pub shortest: Nanos,
    /// The most marks.
    pub most: usize,
}

/// What marks were chosen by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// This metric.
    Metric(Metric),
    /// The time of edges alone, as nothing else was counted.
    Time,
}

impl Measure {
    fn of(graph: &Graph) -> Self {
        let is_known = |metric: &Metric| graph.edges().any(|edge| metric.of(edge.2).is_some());
        let metric = [Metric::L3MissRate, Metric::Cpi].into_iter().find(is_known);
        metric.map_or(Self::Time, Self::Metric)
    }

    /// What describes these edges: by time, the mean (ns). `None` if there are none.
    fn value(self, edge: &Edge) -> Option<f64> {
        match self {
            Self::Metric(metric) => metric.of(&edge.counts()),
            Self::Time => edge.mean_ns().filter(|ns| *ns > 0.0),
        }
    }

    /// The same such that differences count.
    fn place(self, edge: &Edge) -> Option<f64> {
        let value = self.value(edge);
        if self == Self::Time { value.map(f64::ln) } else { value }
    }
}

/// A mark that was chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct ChosenMark {
    /// The mark.
    pub mark: Mark,
    /// How often it was passed.
    pub passed: u64,
    /// The share of the time of all edges that those from the mark have, 0 to 1.
    pub share: f64,
    /// The value of all edges to the mark from others, by [`Choice::measure`]: by time, their mean
    /// (ns). `None` if there are none, or nothing was counted.
    pub before: Option<f64>,
    /// The value of all edges from the mark, likewise.
    pub after: Option<f64>,
}

/// The marks that were chosen, and how many others there were.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// What they were chosen by.
    pub measure: Measure,
    /// The marks, those with the largest share of the time first.
    pub marks: Vec<ChosenMark>,
    /// The graph of these marks. What ran at others is in the edges around them, of which the
    /// starts and ends are an estimate (module `reduce`).
    pub graph: Graph,
    /// The number of marks that were not passed at most of their calls.
    pub unmeasured: usize,
    /// The number of marks from which edges were too short.
    pub short: usize,
    /// The number of marks at which too little changed.
    pub alike: usize,
}

impl Choosing {
    /// Chooses from the marks of a graph, by the rules at the top of this file.
    ///
    /// * `calls`: how often each mark's function was called, if that is known.
    ///
    /// # Cost
    /// O(n · e) for n marks with e edges, and up to O(n³) if each mark follows each other one.
    #[must_use]
    pub fn of(&self, graph: &Graph, calls: impl Fn(&Mark) -> Option<u64>) -> Choice {
        let measure = Measure::of(graph);
        let mut left = Left::new(graph);
        let unmeasured = left.remove_unmeasured(calls);
        let short = left.remove_short(self.shortest.as_f64());
        let alike = left.remove_alike(measure, self.most);
        let all: f64 = left.graph.edges().map(Edge::ns).sum();
        let mut marks: Vec<ChosenMark> =
            left.numbers.iter().map(|number| left.chosen(*number, measure, all)).collect();
        marks.sort_by(|a, b| b.share.total_cmp(&a.share).then_with(|| a.mark.cmp(&b.mark)));
        Choice { measure, marks, graph: left.graph.graph(), unmeasured, short, alike }
    }
}

/// The marks that are left.
struct Left {
    graph: Reduced,
    numbers: Vec<usize>,
}

impl Left {
    fn new(graph: &Graph) -> Self {
        let graph = Reduced::new(graph);
        let numbers = (0..graph.marks().len()).collect();
        Self { graph, numbers }
    }

    fn remove(&mut self, number: usize) {
        self.graph.remove(number);
        self.numbers.retain(|other| *other != number);
    }

    fn remove_unmeasured(&mut self, calls: impl Fn(&Mark) -> Option<u64>) -> usize {
        let is_unmeasured = |number: &usize| {
            let calls = calls(&self.graph.marks()[*number]).unwrap_or(0);
            self.graph.passed(*number) < MEASURED * calls as f64
        };
        let removed: Vec<usize> = self.numbers.iter().copied().filter(is_unmeasured).collect();
        removed.iter().for_each(|number| self.remove(*number));
        removed.len()
    }

    fn remove_short(&mut self, shortest_ns: f64) -> usize {
        let before = self.numbers.len();
        loop {
            let short = self.numbers.iter().filter_map(|number| {
                let edges = self.graph.leaving(*number);
                let is_short = edges.mean_ns().is_some_and(|ns| ns < shortest_ns);
                let passed = || nearest(self.graph.passed(*number));
                is_short.then(|| (passed(), Reverse(nearest(edges.ns())), *number))
            });
            let Some((_, _, number)) = short.max() else { return before - self.numbers.len() };
            self.remove(number);
        }
    }

    fn remove_alike(&mut self, measure: Measure, most: usize) -> usize {
        let before = self.numbers.len();
        let all = Difference::of(&self.graph, measure);
        loop {
            let losses = self.numbers.iter().map(|number| {
                let loss =
                    all.lost_with(&self.graph.arriving(*number), &self.graph.leaving(*number));
                (loss, *number)
            });
            let least = losses.min_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
            let is_too_much = self.numbers.len() > most;
            match least.filter(|(loss, _)| is_too_much || *loss < WORTH * all.squares) {
                Some((_, number)) => self.remove(number),
                None => return before - self.numbers.len(),
            }
        }
    }

    fn chosen(&self, number: usize, measure: Measure, all_ns: f64) -> ChosenMark {
        let (before, after) = (self.graph.arriving(number), self.graph.leaving(number));
        ChosenMark {
            mark: self.graph.marks()[number].clone(),
            passed: nearest(self.graph.passed(number)),
            share: if all_ns > 0.0 { after.ns() / all_ns } else { 0.0 },
            before: measure.value(&before),
            after: measure.value(&after),
        }
    }
}

/// How much the edges of a graph differ.
struct Difference {
    measure: Measure,
    /// The time of all edges (ns).
    ns: f64,
    /// The squares of the differences from the mean, weighted by times.
    squares: f64,
}

impl Difference {
    fn of(graph: &Reduced, measure: Measure) -> Self {
        let edges = || graph.edges().filter_map(|edge| Some((edge.ns(), measure.place(edge)?)));
        let ns: f64 = edges().map(|(ns, _)| ns).sum();
        if ns <= 0.0 {
            return Self { measure, ns: 1.0, squares: 0.0 };
        }
        let mean = edges().map(|(ns, place)| ns * place).sum::<f64>() / ns;
        let squares = edges().map(|(ns, place)| ns * (place - mean).powi(2)).sum();
        Self { measure, ns, squares }
    }

    /// What is lost if the mark between these edges is removed.
    fn lost_with(&self, before: &Edge, after: &Edge) -> f64 {
        let (ns, other_ns) = (before.ns(), after.ns());
        if !before.has_calls() || !after.has_calls() {
            return self.squares * (ns + other_ns) / self.ns;
        }
        match (self.measure.place(before), self.measure.place(after)) {
            (Some(place), Some(other)) if ns + other_ns > 0.0 => {
                ns * other_ns / (ns + other_ns) * (place - other).powi(2)
            }
            _ => 0.0,
        }
    }
}

/// The marks that are passed so often that measuring them costs too much: those passed most, until
/// the others are passed at most once in `interval`. By their numbers.
///
/// * `passed`: how often each mark was passed in `time`, which is CPU time of all threads.
#[must_use]
pub fn too_often(passed: &[u32], time: Nanos, interval: Nanos) -> Vec<usize> {
    let allowed = time.as_f64() / interval.as_f64();
    let mut sum: f64 = passed.iter().map(|count| f64::from(*count)).sum();
    let mut order: Vec<usize> = (0..passed.len()).filter(|mark| passed[*mark] > 0).collect();
    order.sort_by_key(|mark| Reverse(passed[*mark]));
    let is_too_often = |mark: &usize| {
        let is_so = sum > allowed;
        sum -= f64::from(passed[*mark]);
        is_so
    };
    order.into_iter().take_while(is_too_often).collect()
}

#[cfg(test)]
mod tests;
