//! Series of segments: code that a thread executes one segment after the other, which nothing
//! outside of its core notices.
//!
//! The machine draws the thread's next few segments at once, and has one event for all of them,
//! when the last one ends. Each counts as it would by itself, at its own end. What happens to the
//! core meanwhile first starts the segment that executes then. If the core's clock changes, so does
//! the time of the event, as that of one segment.
//!
//! A series has code that asks for no level, of the only thread that runs on the core. It is drawn
//! only where nothing looks at single segments: no observer, no governor in software, no policy of
//! moves, no power by what cores execute. A thread that was interrupted, and one that shares its
//! core, starts the segments that are drawn already with an event each.

use crate::core::Running;
use crate::{Moment, Segment};

/// The segments that a thread executes after its current one.
#[derive(Debug, Default)]
pub(crate) struct Series {
    /// Those before `next` have started.
    segments: Vec<Running>,
    next: usize,
    /// Those from `next` up to here may start without an event.
    quiet: usize,
}

impl Series {
    /// Segments that are drawn at once: more would share an event among more, and make a change of
    /// the clock cost more.
    const DRAWN: usize = 16;

    /// Draws further segments of the thread, if all have started.
    ///
    /// * `asks`: whether a segment asks for a level. Then it starts with an event.
    pub(crate) fn draw(
        &mut self,
        thread: usize,
        mut draw: impl FnMut() -> Option<Segment>,
        asks: impl Fn(&Segment) -> bool,
    ) {
        if self.next < self.segments.len() {
            return;
        }
        self.segments.clear();
        (self.next, self.quiet) = (0, 0);
        while self.segments.len() == self.quiet
            && self.quiet < Self::DRAWN
            && let Some(segment) = draw()
        {
            let running = Running::new(thread, segment, Moment::START, Moment::MAX);
            self.quiet += usize::from(!asks(&segment) && !running.is_over(Moment::START));
            self.segments.push(running);
        }
    }

    /// Takes the next segment, to start it with an event.
    pub(crate) fn take(&mut self) -> Option<Segment> {
        let next = self.segments.get(self.next)?;
        self.next += 1;
        Some(next.segment)
    }

    /// Takes the next segment if it may start without an event.
    #[inline]
    pub(crate) fn take_quiet(&mut self) -> Option<&Running> {
        let next = self.segments.get(self.next).filter(|_| self.next < self.quiet)?;
        self.next += 1;
        Some(next)
    }

    /// From now on, each segment that is drawn starts with an event.
    pub(crate) fn end(&mut self) {
        self.quiet = 0;
    }

    /// Whether the next segment may start without an event.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.next < self.quiet
    }

    /// The current segment is over at this moment. Sets the rates of the segments that may start
    /// without an event, and returns when the last one is over.
    #[inline]
    pub(crate) fn follow(
        &mut self,
        mut over: Moment,
        rate: impl Fn(&Running) -> (f64, f64),
    ) -> Moment {
        for running in self.segments.get_mut(self.next..self.quiet).unwrap_or_default() {
            (running.rate, running.each) = rate(running);
            running.start(over);
            running.over = running.over_at(over);
            over = running.over;
        }
        over
    }
}
