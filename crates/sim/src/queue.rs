//! What happens next: events by time, and those of one time in the order in which they were added.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::Moment;

/// Whom an event is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    /// A core has something to do. An event of an earlier generation than the core's is void.
    Core { index: u32, generation: u32 },
    /// A thread wakes up.
    Thread { index: u32 },
}

/// Events to come.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    heap: BinaryHeap<Reverse<(Moment, u64, Target)>>,
    added: u64,
}

impl Queue {
    pub(crate) fn add(&mut self, time: Moment, target: Target) {
        self.heap.push(Reverse((time, self.added, target)));
        self.added += 1;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Takes the next event, unless it is later than `end`.
    pub(crate) fn next(&mut self, end: Moment) -> Option<(Moment, Target)> {
        let Reverse((time, ..)) = self.heap.peek()?;
        if *time > end {
            return None;
        }
        self.heap.pop().map(|Reverse((time, _, target))| (time, target))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_time_keep_their_order() {
        let mut queue = Queue::default();
        for index in [3, 1, 2] {
            queue.add(5, Target::Thread { index });
        }
        queue.add(4, Target::Core { index: 9, generation: 0 });
        assert_eq!(queue.next(3), None);
        let order: Vec<Target> =
            std::iter::from_fn(|| queue.next(5)).map(|(_, target)| target).collect();
        let thread = |index| Target::Thread { index };
        assert_eq!(
            order,
            [Target::Core { index: 9, generation: 0 }, thread(3), thread(1), thread(2)]
        );
    }
}
