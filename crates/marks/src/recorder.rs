//! What one thread does between marks, counted.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

use dimmer_policy::phases::{Counters, Counts, Flow, Graph, Mark, MarkId};

use crate::cache::Cache;
use crate::names::Key;
use crate::source::Source;

/// Marks that are passed to measure what passing one costs: in each try, and tries.
const CALLS: u32 = 128;
const TRIES: u32 = 16;

/// A thread's flow, and what it knows of the program's marks.
#[derive(Debug)]
pub(crate) struct Recorder<S> {
    source: S,
    flow: Flow,
    known: Cache<MarkId>,
}

impl<S: Source> Recorder<S> {
    /// * `overhead`: what passing one mark costs.
    pub(crate) fn new(source: S, overhead: Counters) -> Self {
        Self { source, flow: Flow::new(overhead), known: Cache::new() }
    }

    /// Passes a mark.
    ///
    /// * `number`: the mark's number, and whether its key stands for it from now on. Called for
    ///   keys that are not known.
    #[inline]
    pub(crate) fn pass(&mut self, key: Key, number: impl FnOnce() -> (MarkId, bool)) {
        let now = self.source.read();
        match self.known.get(key) {
            Some(mark) => self.flow.pass(mark, now),
            None => self.learn(key, now, number),
        }
    }

    /// Passes a mark whose key is not known. What that takes belongs to no edge.
    #[cold]
    fn learn(&mut self, key: Key, now: Counters, number: impl FnOnce() -> (MarkId, bool)) {
        let (mark, is_constant) = number();
        if is_constant {
            self.known.insert(key, mark);
        }
        self.flow.pass(mark, now);
        self.flow.interrupt();
        self.flow.pass(mark, self.source.read());
    }

    /// Takes what was counted of the only edge. What runs until the next mark belongs to none.
    pub(crate) fn spent(&mut self) -> Option<Counts> {
        self.flow.interrupt();
        self.flow.take().next().map(|(_, counts)| counts)
    }

    /// The graph of what was passed so far.
    pub(crate) fn graph(&self, marks: &[Mark]) -> Graph {
        self.flow.graph(marks)
    }
}

/// A recorder that other threads may read. One thread at a time has it; others do not wait.
#[derive(Debug)]
pub(crate) struct Shared<S> {
    is_taken: AtomicBool,
    recorder: UnsafeCell<Recorder<S>>,
}

// SAFETY: only the thread that has set `is_taken` uses `recorder`.
unsafe impl<S: Send> Sync for Shared<S> {}

impl<S: Source> Shared<S> {
    pub(crate) const fn new(recorder: Recorder<S>) -> Self {
        Self { is_taken: AtomicBool::new(false), recorder: UnsafeCell::new(recorder) }
    }

    /// Runs `work` with the recorder. `None` if another thread has it, or the code that this code
    /// has interrupted, such as a signal handler in the middle of a mark.
    #[inline]
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Recorder<S>) -> T) -> Option<T> {
        // Ordering: Acquire pairs with the store below: the earlier uses are complete.
        if self.is_taken.swap(true, Ordering::Acquire) {
            return None;
        }
        // SAFETY: this thread has set `is_taken`.
        let result = work(unsafe { &mut *self.recorder.get() });
        // Ordering: Release pairs with the swap above.
        self.is_taken.store(false, Ordering::Release);
        Some(result)
    }
}

/// What passing a mark costs: the least mean of several tries, so that no interruption counts.
///
/// * `pass`: passes a mark, always the same.
/// * `spent`: what [`Recorder::spent`] returns.
pub(crate) fn overhead(
    mut pass: impl FnMut(),
    mut spent: impl FnMut() -> Option<Counts>,
) -> Counters {
    let tries = (0..TRIES).filter_map(|_| {
        (0..=CALLS).for_each(|_| pass());
        spent().filter(|counts| counts.calls >= u64::from(CALLS))
    });
    let Some(Counts { calls, spent }) = tries.min_by_key(|counts| counts.spent.time) else {
        return Counters::default();
    };
    let each = |count: u64| count / calls;
    Counters {
        time: spent.time.map(|time| time / calls),
        instructions: spent.instructions.map(each),
        cycles: spent.cycles.map(each),
        l2_latency: spent.l2_latency.map(each),
        l3_misses: spent.l3_misses.map(each),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use dimmer_processor::units::Nanos;

    use super::*;

    /// A clock and counters that advance by one reading's cost at each reading.
    #[derive(Default)]
    struct MadeUp(Cell<u64>);

    impl Source for &MadeUp {
        fn read(&self) -> Counters {
            let now = self.0.get() + 20;
            self.0.set(now);
            Counters {
                time: Some(Nanos::from_ns(now)),
                instructions: Some(3 * now),
                cycles: Some(2 * now),
                l2_latency: None,
                l3_misses: Some(now / 10),
            }
        }
    }

    #[test]
    fn what_a_mark_costs_is_measured_and_subtracted() {
        let machine = MadeUp::default();
        let first = Shared::new(Recorder::new(&machine, Counters::default()));
        let mark = || (MarkId::new(0), true);
        let overhead = overhead(
            || _ = first.with(|recorder| recorder.pass([1, 1], mark)),
            || first.with(Recorder::spent)?,
        );
        let expected = Counters {
            time: Some(Nanos::from_ns(20)),
            instructions: Some(60),
            cycles: Some(40),
            l2_latency: None,
            l3_misses: Some(2),
        };
        assert_eq!(overhead, expected);
        let mut recorder = Recorder::new(&machine, overhead);
        let marks = ["a", "b"].map(|name| Mark::new(name).unwrap());
        recorder.pass([1, 0], || (MarkId::new(0), true));
        machine.0.set(machine.0.get() + 1000);
        recorder.pass([2, 0], || (MarkId::new(1), true));
        recorder.pass([1, 0], || unreachable!("the mark is known"));
        let graph = recorder.graph(&marks);
        let edge = graph.edge(&marks[0], &marks[1]).unwrap();
        assert_eq!((edge.calls, edge.spent.time), (1, Some(Nanos::from_ns(1000))));
        assert_eq!((edge.spent.instructions, edge.spent.l3_misses), (Some(3000), Some(100)));
        let back = graph.edge(&marks[1], &marks[0]).unwrap();
        assert_eq!(back.spent.time, Some(Nanos::ZERO));
    }

    #[test]
    fn a_text_that_changes_is_looked_up_each_time() {
        let machine = MadeUp::default();
        let mut recorder = Recorder::new(&machine, Counters::default());
        let mut lookups = 0;
        for number in [0, 1, 0] {
            recorder.pass([1, 0], || {
                lookups += 1;
                (MarkId::new(number), false)
            });
        }
        assert_eq!(lookups, 3);
        let marks = ["a", "b"].map(|name| Mark::new(name).unwrap());
        assert_eq!(recorder.graph(&marks).edges().count(), 2);
    }

    #[test]
    fn a_recorder_in_use_is_not_used_again() {
        let machine = MadeUp::default();
        let shared = Shared::new(Recorder::new(&machine, Counters::default()));
        let inner = shared.with(|_| shared.with(|_| ()));
        assert_eq!(inner, Some(None));
        assert_eq!(shared.with(|_| ()), Some(()));
    }
}
