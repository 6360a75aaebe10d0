//! What keeps a core from executing while threads are on it. Several reasons may hold at a time.

use crate::{Moment, Picos};

/// Until when each reason holds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Delays {
    /// A governor in software has changed the clock.
    still: Moment,
    /// The core is in interrupts or system calls, one after the other.
    stolen: Moment,
    /// It wakes up, or takes over threads, one after the other.
    delayed: Moment,
}

impl Delays {
    /// The core stands still for this long from now on.
    pub(crate) fn stand_still(&mut self, now: Moment, span: Picos) {
        self.still = now + span;
    }

    /// An interrupt or system call takes the core for this long, after those before it. Returns
    /// when it begins and ends.
    pub(crate) fn steal(&mut self, now: Moment, span: Picos) -> (Moment, Moment) {
        let begin = self.stolen.max(now);
        self.stolen = begin + span;
        (begin, self.stolen)
    }

    /// Waking up, or taking over a thread, takes this long, after what was before it.
    pub(crate) fn delay(&mut self, now: Moment, span: Picos) {
        self.delayed = self.delayed.max(now) + span;
    }

    pub(crate) fn is_still(&self, now: Moment) -> bool {
        now < self.still
    }

    pub(crate) fn is_stolen(&self, now: Moment) -> bool {
        now < self.stolen
    }

    pub(crate) fn is_delayed(&self, now: Moment) -> bool {
        now < self.delayed
    }

    /// When the next reason ends.
    pub(crate) fn next(&self, now: Moment) -> Option<Moment> {
        [self.still, self.stolen, self.delayed].into_iter().filter(|until| *until > now).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_queue_up_and_reasons_overlap() {
        let (at, span) = (Moment::from_ps, Picos::from_ps);
        let mut delays = Delays::default();
        assert_eq!(delays.next(at(0)), None);
        assert_eq!(delays.steal(at(10), span(5)), (at(10), at(15)));
        assert_eq!(delays.steal(at(12), span(5)), (at(15), at(20)));
        delays.delay(at(12), span(1));
        delays.stand_still(at(12), span(30));
        let holds =
            |now| [delays.is_still(at(now)), delays.is_stolen(at(now)), delays.is_delayed(at(now))];
        assert_eq!(
            [12, 13, 19, 20, 42].map(holds),
            [
                [true, true, true],
                [true, true, false],
                [true, true, false],
                [true, false, false],
                [false, false, false],
            ]
        );
        assert_eq!(
            [12, 13, 20, 42].map(|now| delays.next(at(now))),
            [Some(at(13)), Some(at(20)), Some(at(42)), None,]
        );
    }
}
