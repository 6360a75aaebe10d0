//! What a program's edges are like now: measured while it runs, faded, and measured again. The
//! future work of paper 004 (§3.2 "Online Monitoring", §6.1).
//!
//! Means are exponential: at each look, older calls lose weight. So old input fades without a
//! record of each look, as a window would need it. And the weight says when to measure again: an
//! edge that is not measured fades until it counts as unknown, and is then measured.

use std::collections::BTreeMap;

use super::{Counts, MarkId, Metric};

/// The weight that calls keep from one look to the next: half of it is gone after seven. A guess.
const KEEP: f64 = 0.9;

/// Number of calls that have to be measured of an edge. As for calls of functions
/// ([`crate::moving`]).
pub const ENOUGH: f64 = 32.0;

/// The most calls that count of an edge, however many were measured: so each is measured again
/// after 33 looks, in which it may have changed. A guess.
const MOST: f64 = 1024.0;

/// A mark has a value while this number of calls counts. It is less than [`ENOUGH`], so that the
/// value stays while the mark is measured again.
const KNOWN: f64 = ENOUGH / 2.0;

/// An edge with fewer of its mark's calls than this part has no say in what is measured: to find a
/// call of it, nearly all others would be measured. A guess.
const RARE: f64 = 0.01;

/// An edge has changed if its value is this many times the mean, or a part of it. A guess; the
/// paper's miss rates spread over two orders of magnitude.
const CHANGED: f64 = 2.0;

/// Edges of less weight are forgotten.
const FORGOTTEN: f64 = 0.01;

/// An edge. All numbers of calls are faded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Edge {
    calls: f64,
    /// The calls of which `value` is the mean.
    measured: f64,
    value: f64,
    /// The calls of which `ns` is the mean.
    timed: f64,
    ns: f64,
}

/// The edges of a program, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Learned {
    /// By start, then by end.
    edges: BTreeMap<MarkId, BTreeMap<MarkId, Edge>>,
}

/// An edge as a decision needs it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Next {
    pub(super) end: MarkId,
    /// The part of its start's calls that take it.
    pub(super) probability: f64,
    /// Its mean time, if it was timed.
    pub(super) ns: Option<f64>,
}

impl Learned {
    /// Takes in what was counted since the last look.
    ///
    /// * `counts`: edges with their calls, of all threads, as [`super::Flow::take`] has them. Calls
    ///   that were measured are apart from calls that were only counted.
    /// * `metric`: what becomes the edges' value.
    ///
    /// The first look may be at the edges of a graph ([`super::Graph::by_id`]).
    pub fn look(
        &mut self,
        counts: impl IntoIterator<Item = ((MarkId, MarkId), Counts)>,
        metric: Metric,
    ) {
        for edges in self.edges.values_mut() {
            for edge in edges.values_mut() {
                edge.calls *= KEEP;
                edge.measured *= KEEP;
                edge.timed *= KEEP;
            }
            edges.retain(|_, edge| edge.calls >= FORGOTTEN);
        }
        self.edges.retain(|_, edges| !edges.is_empty());
        for ((start, end), counts) in counts.into_iter().filter(|(_, counts)| counts.calls > 0) {
            let edge = self.edges.entry(start).or_default().entry(end).or_default();
            edge.add(&counts, metric);
        }
    }

    /// Whether what follows this mark is to be measured: too little is known of an edge from it.
    #[must_use]
    pub fn is_due(&self, mark: MarkId) -> bool {
        let Some(edges) = self.edges.get(&mark) else { return true };
        let calls: f64 = edges.values().map(|edge| edge.calls).sum();
        let measured: f64 = edges.values().map(|edge| edge.measured).sum();
        measured < ENOUGH
            || edges.values().any(|edge| edge.measured < ENOUGH && edge.calls >= RARE * calls)
    }

    /// The mark's value as of [`super::Profile::weighted`]; `None`: too few calls were
    /// measured, or too long ago.
    #[must_use]
    pub fn value(&self, mark: MarkId) -> Option<f64> {
        let edges = || self.edges.get(&mark).into_iter().flat_map(BTreeMap::values);
        if edges().map(|edge| edge.measured).sum::<f64>() < KNOWN {
            return None;
        }
        let (sum, calls) =
            edges().filter(|edge| edge.measured > 0.0).fold((0.0, 0.0), |(sum, calls), edge| {
                (sum + edge.calls * edge.value, calls + edge.calls)
            });
        Some(sum / calls)
    }

    /// The highest number of a mark, and one more.
    pub(super) fn marks(&self) -> usize {
        let ends = self.edges.values().filter_map(|edges| edges.keys().next_back());
        self.edges.keys().chain(ends).map(|mark| mark.index() + 1).max().unwrap_or(0)
    }

    /// The edges from a mark.
    pub(super) fn next(&self, mark: MarkId) -> Vec<Next> {
        let Some(edges) = self.edges.get(&mark) else { return Vec::new() };
        let calls: f64 = edges.values().map(|edge| edge.calls).sum();
        let next = |(end, edge): (&MarkId, &Edge)| Next {
            end: *end,
            probability: edge.calls / calls,
            ns: (edge.timed > 0.0).then_some(edge.ns),
        };
        edges.iter().map(next).collect()
    }
}

impl Edge {
    fn add(&mut self, counts: &Counts, metric: Metric) {
        let calls = counts.calls as f64;
        self.calls += calls;
        if let Some(value) = metric.of(counts) {
            let (low, high) = (self.value.min(value), self.value.max(value));
            if calls >= ENOUGH && high > CHANGED * low {
                (self.measured, self.value) = (0.0, value);
            }
            let measured = self.measured + calls;
            self.value += (value - self.value) * calls / measured;
            self.measured = measured.min(MOST);
        }
        if let Some(time) = counts.spent.time {
            self.timed += calls;
            self.ns += (time.as_f64() / calls - self.ns) * calls / self.timed;
        }
    }
}

#[cfg(test)]
mod tests {
    use dimmer_processor::units::Nanos;

    use super::*;
    use crate::phases::Counters;

    const A: MarkId = MarkId::new(0);
    const B: MarkId = MarkId::new(1);
    const C: MarkId = MarkId::new(2);

    fn measured(calls: u64, misses: u64) -> Counts {
        let spent = Counters {
            time: Some(Nanos::from_us(3 * calls)),
            instructions: Some(1000 * calls),
            l3_misses: Some(misses * calls),
            ..Counters::default()
        };
        Counts { calls, spent }
    }

    fn counted(calls: u64) -> Counts {
        Counts { calls, spent: Counters::default() }
    }

    fn look(learned: &mut Learned, counts: &[((MarkId, MarkId), Counts)]) {
        learned.look(counts.iter().copied(), Metric::L3MissRate);
    }

    #[test]
    fn an_edge_is_measured_until_enough_is_known_and_again_when_that_has_faded() {
        let mut learned = Learned::default();
        let mut due = Vec::new();
        for _ in 0..60 {
            due.push(learned.is_due(A));
            let counts = if learned.is_due(A) { measured(20, 5) } else { counted(20) };
            look(&mut learned, &[((A, B), counts)]);
        }
        assert_eq!(due[..3], [true, true, false]);
        let looks = due.iter().filter(|due| **due).count();
        assert!((10..16).contains(&looks), "{looks}");
        assert!((learned.value(A).unwrap() - 0.005).abs() < 1e-12);
        let next = learned.next(A);
        assert!(next.len() == 1 && next[0].ns == Some(3000.0) && next[0].probability == 1.0);
        // However many calls there are, it is measured again.
        look(&mut learned, &[((A, B), measured(1_000_000, 5))]);
        let mut quiet = 0;
        while !learned.is_due(A) {
            look(&mut learned, &[((A, B), counted(10_000))]);
            quiet += 1;
        }
        assert_eq!(quiet, 33);
    }

    #[test]
    fn an_edge_that_changes_is_learned_at_once() {
        let mut learned = Learned::default();
        (0..50).for_each(|_| look(&mut learned, &[((A, B), measured(1000, 5))]));
        look(&mut learned, &[((A, B), measured(40, 30))]);
        assert!((learned.value(A).unwrap() - 0.03).abs() < 1e-12);
        // Less than twice as much, or few calls, count as noise.
        look(&mut learned, &[((A, B), measured(40, 40))]);
        look(&mut learned, &[((A, B), measured(4, 900))]);
        assert!((0.03..0.2).contains(&learned.value(A).unwrap()));
        // The old weight is gone, so more calls are measured.
        look(&mut learned, &[((A, B), measured(33, 1))]);
        look(&mut learned, &[]);
        assert!(learned.is_due(A));
    }

    #[test]
    fn rare_edges_need_not_be_measured_and_forgotten_ones_are_gone() {
        let mut learned = Learned::default();
        assert!(learned.is_due(A) && learned.value(A).is_none());
        look(&mut learned, &[((A, B), measured(15, 5))]);
        assert!(learned.is_due(A) && learned.value(A).is_none());
        look(&mut learned, &[((A, B), measured(10, 5))]);
        assert!(learned.is_due(A) && learned.value(A).is_some());
        look(&mut learned, &[((A, B), measured(10_000, 5)), ((A, C), counted(20))]);
        assert!(!learned.is_due(A));
        look(&mut learned, &[((A, C), counted(200))]);
        assert!(learned.is_due(A));
        assert_eq!(learned.marks(), 3);
        (0..200).for_each(|_| look(&mut learned, &[((B, A), counted(1))]));
        assert_eq!((learned.marks(), learned.next(A)), (2, Vec::new()));
        assert!(learned.is_due(A));
    }
}
