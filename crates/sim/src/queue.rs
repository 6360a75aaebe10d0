//! The event queue: at most one event per core, domain and thread. Events come in order of time.
//! Events of equal time come in the order of [`Target`]'s variants, and of each by number.

use crate::Moment;

/// The receiver of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The clock of a frequency domain takes a step.
    Domain(usize),
    /// What decides about marked regions is due.
    Server,
    /// What decides how many cores are wide is due.
    Load,
    /// A thread wakes up.
    Thread(usize),
    /// A core has something to do.
    Core(usize),
}

/// Pending events: a binary heap. An event that was replaced by another one of its target stays in
/// the heap, as void, until it becomes the first.
///
/// The standard library's heap compares the element that takes the first event's place with others
/// all the way down. Here the hole moves down alone and is filled from below (Wegener, "Bottom-up
/// heapsort", 1993): a new event is later than most, and on the way down the code only selects the
/// sooner of two events, which needs no branch prediction. That reduces the cost of an event of the
/// whole machine by a tenth with 2 cores, and by 4 to 7 % with 512 (Zen 5). Heaps of four children,
/// with keys of 24 bytes, a tournament, and a calendar queue were slower.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    cores: usize,
    /// The event at `n` comes before those at `2n + 1` and `2n + 2`.
    heap: Vec<Event>,
    /// The time of each target's event, by the target's place, or [`NONE`]. All other events in the
    /// heap are void.
    holds: Vec<Moment>,
    /// Whether the first event was taken but still lies there; the next event set takes its place.
    is_taken: bool,
}

/// Marks a target without an event.
const NONE: Moment = Moment::MAX;

/// An event. The time is in the upper half, the target's rank among those of equal time in the
/// lower half. So one comparison orders two events, and one move copies one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event(u128);

impl Event {
    fn new(time: Moment, rank: u64) -> Self {
        Self(u128::from(time.ps()) << 64 | u128::from(rank))
    }

    fn time(self) -> Moment {
        Moment::from_ps((self.0 >> 64) as u64)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    fn rank(self) -> u64 {
        self.0 as u64
    }
}

impl Queue {
    /// A queue without events, for N cores, and at most as many domains.
    pub(crate) fn new(cores: usize) -> Self {
        let holds = vec![NONE; 2 * cores + 2];
        Self { cores, heap: Vec::new(), holds, is_taken: false }
    }

    /// Sets the time of the target's event, or removes the event if `None`.
    pub(crate) fn set(&mut self, target: Target, time: Option<Moment>) {
        let place = self.place(target);
        if place >= self.holds.len() {
            self.holds.resize(place + 1, NONE);
        }
        // An event of the same time is in the heap already.
        let time = time.unwrap_or(NONE);
        if std::mem::replace(&mut self.holds[place], time) == time || time == NONE {
            return;
        }
        let event = Event::new(time, self.rank(place));
        if std::mem::take(&mut self.is_taken) {
            self.replace_first(event);
        } else {
            self.heap.push(event);
            self.rise(self.heap.len() - 1, event);
        }
        // Drops void events before they outnumber the others.
        if self.heap.len() > 64 + 2 * self.holds.len() {
            self.clear_up();
        }
    }

    /// Takes the next event, if it is not later than `end`.
    pub(crate) fn next(&mut self, end: Moment) -> Option<(Moment, Target)> {
        if std::mem::take(&mut self.is_taken) {
            self.drop_first();
        }
        loop {
            let event = *self.heap.first()?;
            let (time, place) = (event.time(), self.place_of(event));
            if time > end {
                return None;
            }
            if self.holds[place] == time {
                self.holds[place] = NONE;
                self.is_taken = true;
                return Some((time, self.target(place)));
            }
            self.drop_first();
        }
    }

    /// Whether no event is pending.
    pub(crate) fn is_empty(&self) -> bool {
        self.holds.iter().all(|name| *name == NONE)
    }

    fn drop_first(&mut self) {
        if let Some(last) = self.heap.pop()
            && !self.heap.is_empty()
        {
            self.replace_first(last);
        }
    }

    fn replace_first(&mut self, event: Event) {
        let heap = self.heap.as_mut_slice();
        let mut hole = 0;
        while let Some([one, other]) = heap.get(2 * hole + 1..2 * hole + 3) {
            let sooner = 2 * hole + 1 + usize::from(other < one);
            heap[hole] = heap[sooner];
            hole = sooner;
        }
        // The last event may have no sibling.
        if let Some(only) = heap.get(2 * hole + 1) {
            heap[hole] = *only;
            hole = 2 * hole + 1;
        }
        self.rise(hole, event);
    }

    /// Puts an event into a hole, or above it while the events above come later.
    fn rise(&mut self, mut hole: usize, event: Event) {
        let heap = self.heap.as_mut_slice();
        while hole > 0 {
            let above = (hole - 1) / 2;
            if heap[above] < event {
                break;
            }
            heap[hole] = heap[above];
            hole = above;
        }
        heap[hole] = event;
    }

    /// Drops void events.
    fn clear_up(&mut self) {
        let mut heap = std::mem::take(&mut self.heap);
        heap.retain(|event| self.holds[self.place_of(*event)] == event.time());
        // A sorted array is a heap. An event may be there twice, if it was replaced and set again.
        heap.sort_unstable();
        heap.dedup();
        self.heap = heap;
    }

    /// The rank of a place: cores come last.
    fn rank(&self, place: usize) -> u64 {
        (place as u64).wrapping_sub(self.cores as u64)
    }

    #[expect(clippy::cast_possible_truncation, reason = "places are indices")]
    fn place_of(&self, event: Event) -> usize {
        event.rank().wrapping_add(self.cores as u64) as usize
    }

    fn place(&self, target: Target) -> usize {
        match target {
            Target::Core(core) => core,
            Target::Domain(domain) => self.cores + domain,
            Target::Server => 2 * self.cores,
            Target::Load => 2 * self.cores + 1,
            Target::Thread(thread) => 2 * self.cores + 2 + thread,
        }
    }

    fn target(&self, place: usize) -> Target {
        let cores = self.cores;
        if place < cores {
            Target::Core(place)
        } else if place < 2 * cores {
            Target::Domain(place - cores)
        } else if place == 2 * cores {
            Target::Server
        } else if place == 2 * cores + 1 {
            Target::Load
        } else {
            Target::Thread(place - 2 * cores - 2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Picos;

    fn at(ps: u64) -> Moment {
        Moment::from_ps(ps)
    }

    #[test]
    fn events_of_one_time_come_by_target() {
        let mut queue = Queue::new(2);
        let order = [
            Target::Domain(0),
            Target::Domain(1),
            Target::Server,
            Target::Load,
            Target::Thread(0),
            Target::Thread(3),
            Target::Core(0),
            Target::Core(1),
        ];
        for index in [3, 6, 1, 4, 7, 0, 2, 5] {
            queue.set(order[index], Some(at(5)));
        }
        queue.set(Target::Core(0), Some(at(4)));
        assert_eq!(queue.next(at(3)), None);
        assert_eq!(queue.next(at(5)), Some((at(4), Target::Core(0))));
        queue.set(Target::Core(0), Some(at(5)));
        for target in order {
            assert!(!queue.is_empty());
            assert_eq!(queue.next(at(5)), Some((at(5), target)));
        }
        assert_eq!(queue.next(Moment::MAX), None);
        assert!(queue.is_empty());
    }

    /// Also when it was replaced by others meanwhile.
    #[test]
    fn an_event_that_is_set_again_comes_once() {
        let mut queue = Queue::new(1);
        for time in [5, 6, 5, 7, 5] {
            queue.set(Target::Core(0), Some(at(time)));
        }
        assert_eq!(queue.next(Moment::MAX), Some((at(5), Target::Core(0))));
        assert_eq!(queue.next(Moment::MAX), None);
    }

    #[test]
    fn an_event_replaces_the_one_before_it() {
        let mut queue = Queue::new(2);
        queue.set(Target::Core(0), Some(at(5)));
        queue.set(Target::Core(1), Some(at(6)));
        queue.set(Target::Core(0), Some(at(6)));
        assert_eq!(queue.next(at(6)), Some((at(6), Target::Core(0))));
        queue.set(Target::Core(1), None);
        assert_eq!(queue.next(at(6)), None);
        assert!(queue.is_empty());
    }

    #[test]
    fn events_that_are_void_do_not_pile_up() {
        let mut queue = Queue::new(1);
        for time in 0..10_000 {
            queue.set(Target::Core(0), Some(at(20_000 - time)));
            assert!(queue.heap.len() < 100);
        }
        assert_eq!(queue.next(Moment::MAX), Some((at(10_001), Target::Core(0))));
        assert_eq!(queue.next(Moment::MAX), None);
    }

    /// Compares with a list of all events while events are set, replaced and removed.
    #[test]
    fn events_come_by_time_whatever_is_set_meanwhile() {
        const THREADS: usize = 50;
        let (mut queue, mut state) = (Queue::new(1), 1_u64);
        let mut all: [Option<Moment>; THREADS] = [None; THREADS];
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let (mut now, mut taken) = (Moment::START, 0);
        for _ in 0..20_000 {
            let thread = usize::try_from(draw(THREADS as u64)).unwrap();
            let time = (draw(8) > 0).then(|| now + Picos::from_ps(draw(40)));
            queue.set(Target::Thread(thread), time);
            all[thread] = time;
            if draw(2) == 0 {
                let end = now + Picos::from_ps(draw(10));
                let first = all.iter().enumerate().filter_map(|(at, event)| Some(((*event)?, at)));
                let first = first.min().filter(|(time, _)| *time <= end);
                let expected = first.map(|(time, at)| (time, Target::Thread(at)));
                assert_eq!(queue.next(end), expected);
                if let Some((time, at)) = first {
                    (all[at], now) = (None, time);
                    taken += 1;
                }
            }
            assert_eq!(queue.is_empty(), all.iter().all(Option::is_none));
        }
        assert!(taken > 1000, "{taken}");
    }
}
