//! What happens next: events by time, and those of one time in the order in which they were added.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::Moment;

/// Whom an event is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    /// A core has something to do. An event of an earlier generation than the core's is void.
    Core { index: u32, generation: u32 },
    /// Who decides about marked regions wants to be asked.
    Server,
    /// A thread wakes up.
    Thread { index: u32 },
    /// The clock of a frequency domain takes a step. An event of an earlier generation is void.
    Domain { index: u32, generation: u32 },
}

/// Events to come.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    heap: BinaryHeap<Reverse<(Moment, u64, Target)>>,
    added: u64,
    /// Whether the first one was taken, but lies there still: what is added next takes its place, at half the price.
    is_taken: bool,
}

impl Queue {
    pub(crate) fn add(&mut self, time: Moment, target: Target) {
        let event = Reverse((time, self.added, target));
        self.added += 1;
        if std::mem::take(&mut self.is_taken)
            && let Some(mut first) = self.heap.peek_mut()
        {
            *first = event;
        } else {
            self.heap.push(event);
        }
    }

    /// Drops the events that are void, once there are many.
    pub(crate) fn compact(&mut self, most: usize, is_valid: impl Fn(Target) -> bool) {
        if self.heap.len() > most {
            if std::mem::take(&mut self.is_taken) {
                self.heap.pop();
            }
            self.heap.retain(|Reverse((_, _, target))| is_valid(*target));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.heap.len() == usize::from(self.is_taken)
    }

    /// Takes the next event, unless it is later than `end`.
    pub(crate) fn next(&mut self, end: Moment) -> Option<(Moment, Target)> {
        if std::mem::take(&mut self.is_taken) {
            self.heap.pop();
        }
        let Reverse((time, _, target)) = *self.heap.peek()?;
        self.is_taken = time <= end;
        self.is_taken.then_some((time, target))
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

    /// Against a sorted list, with events added between those taken.
    #[test]
    fn events_come_by_time_whatever_is_added_meanwhile() {
        let (mut queue, mut all, mut state) = (Queue::default(), Vec::new(), 1_u64);
        for index in 0..2000_u32 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let time = u64::from(index) + (state >> 33) % 100;
            queue.add(time, Target::Thread { index });
            all.push((time, index));
            if state >> 63 == 1 {
                all.sort_unstable();
                let expected = (all[0].0 <= time).then(|| all.remove(0));
                let taken = queue.next(time).map(|(time, target)| match target {
                    Target::Thread { index } => (time, index),
                    _ => (0, 0),
                });
                assert_eq!(taken, expected);
            }
            assert_eq!(queue.is_empty(), all.is_empty());
        }
    }
}
