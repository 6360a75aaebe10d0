//! What a program's edges are like now, learned while it runs: how long each takes on a fast core,
//! and how long on a slow one. The future work of paper 004 (§3.2 "Online Monitoring", §6.1).
//!
//! The paper's value of an edge is a rate of cache misses, which stands for how little of its speed
//! the edge loses on a slow core. Here that is measured itself, by a clock alone, so it needs no
//! counters: [`Learned::value`] is the part of its speed that what follows a mark keeps.
//!
//! What has not been on a core is expected to be as good there as it can be, so it is tried where
//! that may pay. Means are exponential: at each look, older calls lose weight. So old input fades
//! without a record of each look, and what has not been on a core for long is tried there again.

use std::collections::BTreeMap;

use super::{Core, Counts, MarkId};

/// The weight that calls keep from one look to the next, at which there are new ones: half of it is
/// gone after seven. A guess.
const KEEP: f64 = 0.9;

/// Likewise of calls on a core where the edge was not since the look before: 137 looks after the 64
/// calls of a trial, what follows a mark is tried there again. So trying takes less than 1 % of the
/// calls. A guess.
const KEEP_AWAY: f64 = 0.98;

/// The most calls that count of an edge on a core, however many were seen. A guess.
const MOST: f64 = 1024.0;

/// What follows a mark is known on a core while so many of its calls there count. A guess.
const KNOWN: f64 = 4.0;

/// An edge has changed if its time is this many times the mean, or a part of it, over at least
/// [`CLEAR`] calls. Guesses.
const CHANGED: f64 = 2.0;
const CLEAR: u64 = 32;

/// Edges of less weight are forgotten.
const FORGOTTEN: f64 = 0.01;

/// Calls on a kind of core, faded, and their mean time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Timed {
    calls: f64,
    ns: f64,
}

/// An edge.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Edge {
    /// All calls, faded.
    calls: f64,
    fast: Timed,
    slow: Timed,
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
    /// The time that it takes on a fast core, and on a slow one (ns).
    pub(super) fast_ns: f64,
    pub(super) slow_ns: f64,
}

impl Learned {
    /// Takes in what was counted since the last look.
    ///
    /// * `counts`: edges, each with the kind of core on which these calls ran from start to end, as
    ///   [`super::Follower::take`] has them. Calls that were not timed say only how often the edge
    ///   is taken.
    pub fn look(&mut self, counts: impl IntoIterator<Item = (Core, (MarkId, MarkId), Counts)>) {
        for edges in self.edges.values_mut() {
            edges.values_mut().for_each(Edge::fade);
            edges.retain(|_, edge| edge.calls >= FORGOTTEN);
        }
        self.edges.retain(|_, edges| !edges.is_empty());
        for (core, (start, end), counts) in
            counts.into_iter().filter(|(.., counts)| counts.calls > 0)
        {
            self.edges.entry(start).or_default().entry(end).or_default().add(core, &counts);
        }
    }

    /// The part of its speed that what follows this mark keeps on a slow core: its time on a fast
    /// one over that on a slow one. `None`: nothing is known.
    #[must_use]
    pub fn value(&self, mark: MarkId) -> Option<f64> {
        let next = self.next(mark);
        let sum = |ns: fn(&Next) -> f64| next.iter().map(|edge| edge.probability * ns(edge)).sum();
        let (fast, slow): (f64, f64) = (sum(|edge| edge.fast_ns), sum(|edge| edge.slow_ns));
        (slow > 0.0).then_some(fast / slow)
    }

    /// All marks with a value.
    pub fn values(&self) -> impl Iterator<Item = (MarkId, f64)> {
        self.edges.keys().filter_map(|mark| Some((*mark, self.value(*mark)?)))
    }

    /// The highest number of a mark, and one more.
    pub(super) fn marks(&self) -> usize {
        let ends = self.edges.values().filter_map(|edges| edges.keys().next_back());
        self.edges.keys().chain(ends).map(|mark| mark.index() + 1).max().unwrap_or(0)
    }

    /// The edges from a mark. If it is known on one core alone, the other is expected to be as good
    /// as it can be: a slow one as fast as the fast one, a fast one faster than any.
    pub(super) fn next(&self, mark: MarkId) -> Vec<Next> {
        let Some(edges) = self.edges.get(&mark) else { return Vec::new() };
        let sum = |calls: fn(&Edge) -> f64| edges.values().map(calls).sum::<f64>();
        let is_known = |timed: fn(&Edge) -> f64| sum(timed) >= KNOWN;
        let known = (is_known(|edge| edge.fast.calls), is_known(|edge| edge.slow.calls));
        let all = sum(|edge| edge.calls);
        let next = |(end, edge): (&MarkId, &Edge)| {
            let (fast_ns, slow_ns) = match known {
                (true, true) if edge.fast.calls > 0.0 && edge.slow.calls > 0.0 => {
                    (edge.fast.ns, edge.slow.ns)
                }
                (true, false) => (edge.fast.ns, edge.fast.ns),
                (false, true) => (0.0, edge.slow.ns),
                // What is known of the mark's other edges decides.
                (true, true) | (false, false) => (0.0, 0.0),
            };
            Next { end: *end, probability: edge.calls / all, fast_ns, slow_ns }
        };
        edges.iter().map(next).collect()
    }
}

impl Edge {
    fn fade(&mut self) {
        self.calls *= KEEP;
        self.fast.calls *= KEEP_AWAY;
        self.slow.calls *= KEEP_AWAY;
    }

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
        if own.calls > 0.0 && counts.calls >= CLEAR && high > CHANGED * low {
            // What the other core showed was of other code.
            (own.calls, other.calls) = (0.0, 0.0);
        }
        own.calls *= KEEP;
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
        // Calls that were not timed say nothing of the times.
        learned.look([(Core::Fast, (A, B), Counts { calls: 9, spent: Counters::default() })]);
        check(&learned, 0.0);
    }

    #[test]
    fn what_was_long_not_on_a_core_is_to_be_tried_there_again() {
        let mut learned = Learned::default();
        look(&mut learned, Core::Slow, 1_000_000, 1250);
        let mut looks = 0;
        loop {
            look(&mut learned, Core::Fast, 64, 1000);
            if learned.value(A) == Some(1.0) {
                break;
            }
            check(&learned, 0.8);
            looks += 1;
        }
        assert!((200..400).contains(&looks), "{looks}");
    }

    #[test]
    fn an_edge_that_changes_is_learned_at_once_and_noise_is_not() {
        let mut learned = Learned::default();
        for _ in 0..20 {
            look(&mut learned, Core::Fast, 64, 1000);
            look(&mut learned, Core::Slow, 64, 1250);
        }
        // One call with an interruption, and less than twice the time.
        look(&mut learned, Core::Slow, 1, 4_000);
        look(&mut learned, Core::Fast, 64, 1_900);
        let value = learned.value(A).unwrap();
        assert!((0.8..1.0).contains(&value), "{value}");
        look(&mut learned, Core::Fast, 64, 9_000);
        check(&learned, 1.0);
        look(&mut learned, Core::Slow, 64, 18_000);
        check(&learned, 0.5);
    }

    #[test]
    fn edges_count_by_how_often_they_are_taken() {
        let mut learned = Learned::default();
        learned.look([
            (Core::Fast, (A, B), timed(30, 1000)),
            (Core::Slow, (A, B), timed(30, 2000)),
            (Core::Fast, (A, C), timed(10, 4000)),
            (Core::Slow, (A, C), timed(10, 4000)),
        ]);
        check(&learned, 7.0 / 10.0);
        assert_eq!(learned.next(A)[1].probability, 0.25);
        // An edge that was seen on one core alone has no say.
        learned.look([(Core::Fast, (A, A), timed(1, 100_000))]);
        check(&learned, 7.0 / 10.0);
        // What is no longer taken is forgotten.
        for _ in 0..200 {
            learned.look([(Core::Fast, (B, A), timed(1, 1))]);
        }
        assert_eq!((learned.value(A), learned.next(A), learned.marks()), (None, Vec::new(), 2));
    }
}
