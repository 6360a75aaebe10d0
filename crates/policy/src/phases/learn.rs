//! The times of a program's edges on fast and on slow cores, learned while it runs. The future work
//! of paper 004 (§3.2 "Online Monitoring", §6.1).
//!
//! The paper's value of an edge is a rate of cache misses, which stands for how little of its speed
//! the edge loses on a slow core. Here that is measured itself, by a clock alone, so it needs no
//! counters: [`Learned::value`] is the part of its speed that what follows a mark keeps.
//!
//! What has not been on a core is expected to be as good there as it can be, so it is tried where
//! that may pay. What was seen on a core fades with each call on the other one, so it is tried
//! there again some time.

use std::collections::BTreeMap;

use super::{Core, Counts, MarkId};

/// Calls on a core after which what follows a mark is known there, and calls below which it is no
/// longer, because they have faded. Guesses, as are all numbers here.
const ENOUGH: f64 = 32.0;
const KNOWN: f64 = 4.0;

/// Calls on one core after which what was seen on the other one has faded to a part of 1/e. From 32
/// calls to 4 it takes 6200, so less than 1 % of the calls are trials.
const FADES: f64 = 3000.0;

/// Likewise of calls of a mark after which the probabilities of its edges have.
const TAKEN: f64 = 640.0;

/// The most calls that count of an edge on a core: the mean follows the last ones.
const MOST: f64 = 512.0;

/// An edge has changed if its time is this many times the mean, or a part of it, over at least
/// [`CLEAR`] calls, in two looks in a row. In one look, others may have had the CPU.
const CHANGED: f64 = 2.0;
const CLEAR: u64 = 32;

/// Edges of less weight are forgotten.
const FORGOTTEN: f64 = 0.01;

/// Calls on a kind of core, faded, and their mean time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Timed {
    calls: f64,
    ns: f64,
    /// Whether the last look was at quite another time, which is left out.
    is_doubtful: bool,
}

/// An edge.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Edge {
    /// All calls, faded.
    calls: f64,
    fast: Timed,
    slow: Timed,
}

/// A mark: the edges from it, by their ends, and whether they are known on a core.
#[derive(Clone, Debug, Default, PartialEq)]
struct Start {
    edges: BTreeMap<MarkId, Edge>,
    is_fast_known: bool,
    is_slow_known: bool,
}

/// The edges of a program, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Learned(BTreeMap<MarkId, Start>);

/// An edge as a decision needs it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Next {
    pub(super) end: MarkId,
    /// The part of its start's calls that take it.
    pub(super) probability: f64,
    /// The time that it takes on a fast core, and on a slow one (ns).
    pub(super) fast_ns: f64,
    pub(super) slow_ns: f64,
}

impl Learned {
    /// Takes in what was counted since the last look.
    ///
    /// * `counts`: edges, each with the kind of core on which these calls ran, as
    ///   [`super::Follower::take`] has them. Calls that were not timed say only how often the edge
    ///   is taken.
    pub fn look(&mut self, counts: impl IntoIterator<Item = (Core, (MarkId, MarkId), Counts)>) {
        let counts: Vec<_> = counts.into_iter().filter(|(.., counts)| counts.calls > 0).collect();
        let mut calls: BTreeMap<MarkId, (f64, f64)> = BTreeMap::new();
        for (core, (start, _), counts) in &counts {
            let (fast, slow) = calls.entry(*start).or_default();
            let of_core = if *core == Core::Fast { fast } else { slow };
            *of_core += counts.calls as f64;
        }
        for (start, (fast, slow)) in &calls {
            self.0.entry(*start).or_default().fade(*fast, *slow);
        }
        for (core, (start, end), counts) in &counts {
            let edges = &mut self.0.entry(*start).or_default().edges;
            edges.entry(*end).or_default().add(*core, counts);
        }
        for start in calls.keys() {
            self.0.entry(*start).or_default().know();
        }
    }

    /// The part of its speed that what follows this mark keeps on a slow core: its time on a fast
    /// one over that on a slow one. If it is known on one alone, the other is expected to be as
    /// good as it can be: 1 without a slow one, 0 without a fast one. `None`: nothing is known.
    #[must_use]
    pub fn value(&self, mark: MarkId) -> Option<f64> {
        self.0.get(&mark)?.value()
    }

    /// The value of each mark that is known on both cores.
    pub fn values(&self) -> impl Iterator<Item = (MarkId, f64)> {
        let known = self.0.iter().filter(|(_, start)| start.is_fast_known && start.is_slow_known);
        known.filter_map(|(mark, start)| Some((*mark, start.value()?)))
    }

    /// The highest number of a mark, and one more.
    pub(super) fn marks(&self) -> usize {
        let ends = self.0.values().filter_map(|start| start.edges.keys().next_back());
        self.0.keys().chain(ends).map(|mark| mark.index() + 1).max().unwrap_or(0)
    }

    /// The number of edges.
    pub(super) fn edges(&self) -> usize {
        self.0.values().map(|start| start.edges.len()).sum()
    }

    /// The edges from a mark.
    pub(super) fn next(&self, mark: MarkId) -> Vec<Next> {
        self.0.get(&mark).map(|start| start.next().collect()).unwrap_or_default()
    }
}

impl Start {
    /// What was seen fades with this number of new calls on either core.
    fn fade(&mut self, fast: f64, slow: f64) {
        for edge in self.edges.values_mut() {
            edge.calls *= (-(fast + slow) / TAKEN).exp();
            edge.fast.calls *= (-slow / FADES).exp();
            edge.slow.calls *= (-fast / FADES).exp();
        }
        self.edges.retain(|_, edge| edge.calls >= FORGOTTEN);
    }

    /// Notes on which cores it is known.
    fn know(&mut self) {
        let sum = |calls: fn(&Edge) -> f64| self.edges.values().map(calls).sum::<f64>();
        let (fast, slow) = (sum(|edge| edge.fast.calls), sum(|edge| edge.slow.calls));
        let still = |was_known: bool, calls: f64| calls >= if was_known { KNOWN } else { ENOUGH };
        self.is_fast_known = still(self.is_fast_known, fast);
        self.is_slow_known = still(self.is_slow_known, slow);
    }

    fn value(&self) -> Option<f64> {
        let sum = |ns: fn(&Next) -> f64| self.next().map(|edge| edge.probability * ns(&edge)).sum();
        let (fast, slow): (f64, f64) = (sum(|edge| edge.fast_ns), sum(|edge| edge.slow_ns));
        (slow > 0.0).then_some(fast / slow)
    }

    fn next(&self) -> impl Iterator<Item = Next> {
        let all: f64 = self.edges.values().map(|edge| edge.calls).sum();
        self.edges.iter().map(move |(end, edge)| {
            let is_on_both = edge.fast.calls > 0.0 && edge.slow.calls > 0.0;
            let (fast_ns, slow_ns) = match (self.is_fast_known, self.is_slow_known) {
                (true, true) if is_on_both => (edge.fast.ns, edge.slow.ns),
                (true, false) => (edge.fast.ns, edge.fast.ns),
                (false, true) => (0.0, edge.slow.ns),
                // The mark's other edges decide.
                (true, true) | (false, false) => (0.0, 0.0),
            };
            Next { end: *end, probability: edge.calls / all, fast_ns, slow_ns }
        })
    }
}

impl Edge {
    fn add(&mut self, core: Core, counts: &Counts) {
        let calls = counts.calls as f64;
        self.calls += calls;
        let Some(time) = counts.spent.time else { return };
        let ns = time.as_f64() / calls;
        let (own, other) = match core {
            Core::Fast => (&mut self.fast, &mut self.slow),
            Core::Slow => (&mut self.slow, &mut self.fast),
        };
        let (low, high) = (own.ns.min(ns), own.ns.max(ns));
        let differs = own.calls > 0.0 && counts.calls >= CLEAR && high > CHANGED * low;
        let was_doubtful = std::mem::replace(&mut own.is_doubtful, differs);
        match (differs, was_doubtful) {
            (true, false) => return,
            (true, true) => {
                // What the other core showed was of other code.
                *other = Timed::default();
                *own = Timed::default();
            }
            (false, _) => {}
        }
        let sum = own.calls + calls;
        own.ns += (ns - own.ns) * calls / sum;
        own.calls = sum.min(MOST);
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

    fn timed(calls: u64, ns: u64) -> Counts {
        let time = Some(Nanos::from_ns(calls * ns));
        Counts { calls, spent: Counters { time, ..Counters::default() } }
    }

    /// A look at the edge from A to B.
    fn look(learned: &mut Learned, core: Core, calls: u64, ns: u64) {
        learned.look([(core, (A, B), timed(calls, ns))]);
    }

    #[track_caller]
    fn check(learned: &Learned, expected: f64) {
        let value = learned.value(A).unwrap();
        assert!((value - expected).abs() < 1e-9, "{value}");
    }

    #[test]
    fn a_core_where_nothing_was_seen_is_expected_to_be_as_good_as_it_can() {
        let mut learned = Learned::default();
        assert_eq!(learned.value(A), None);
        look(&mut learned, Core::Fast, 64, 1000);
        check(&learned, 1.0);
        look(&mut learned, Core::Slow, 64, 1250);
        check(&learned, 0.8);
        let mut learned = Learned::default();
        look(&mut learned, Core::Slow, 64, 1250);
        check(&learned, 0.0);
        assert_eq!(learned.values().count(), 0, "the slow core alone was seen");
        // Calls that were not timed say nothing of the times.
        learned.look([(Core::Fast, (A, B), Counts { calls: 9, spent: Counters::default() })]);
        check(&learned, 0.0);
    }

    #[test]
    fn what_was_long_not_on_a_core_is_to_be_tried_there_again() {
        // However many calls a look is at.
        for calls in [1, 8, 64] {
            let mut learned = Learned::default();
            let (mut trials, mut all) = (0, 0);
            for _ in 0..50_000 / calls {
                let tries = learned.value(A) == Some(1.0);
                let core = if tries { Core::Slow } else { Core::Fast };
                look(&mut learned, core, calls, if tries { 1250 } else { 1000 });
                trials += if tries { calls } else { 0 };
                all += calls;
            }
            assert!((100..500).contains(&trials), "{trials} of {all}");
        }
    }

    #[test]
    fn an_edge_that_changes_is_learned_at_once_and_an_interruption_is_not() {
        let mut learned = Learned::default();
        for _ in 0..20 {
            look(&mut learned, Core::Fast, 64, 1000);
            look(&mut learned, Core::Slow, 64, 1250);
        }
        // Others had the CPU for 4 ms.
        look(&mut learned, Core::Fast, 64, 63_500);
        check(&learned, 0.8);
        look(&mut learned, Core::Fast, 64, 1000);
        look(&mut learned, Core::Slow, 1, 40_000);
        look(&mut learned, Core::Fast, 64, 1000);
        let value = learned.value(A).unwrap();
        assert!((0.7..0.8).contains(&value), "{value}");
        // Twice in a row.
        look(&mut learned, Core::Fast, 64, 9_000);
        look(&mut learned, Core::Fast, 64, 9_000);
        check(&learned, 1.0);
        look(&mut learned, Core::Slow, 64, 18_000);
        check(&learned, 0.5);
        assert!(learned.values().eq([(A, 0.5)]));
    }

    #[test]
    fn edges_count_by_how_often_they_are_taken() {
        let mut learned = Learned::default();
        learned.look([
            (Core::Fast, (A, B), timed(60, 1000)),
            (Core::Slow, (A, B), timed(60, 2000)),
            (Core::Fast, (A, C), timed(20, 4000)),
            (Core::Slow, (A, C), timed(20, 4000)),
        ]);
        check(&learned, 7.0 / 10.0);
        assert_eq!(learned.next(A)[1].probability, 0.25);
        // An edge that was seen on one core alone has no say.
        learned.look([(Core::Fast, (A, A), timed(1, 100_000))]);
        check(&learned, 7.0 / 10.0);
        // What is no longer taken is forgotten.
        for _ in 0..200 {
            learned.look([(Core::Fast, (A, B), timed(64, 1000))]);
        }
        assert_eq!((learned.next(A).len(), learned.marks(), learned.edges()), (1, 2, 1));
    }
}
