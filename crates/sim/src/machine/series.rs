//! Series of segments on the machine's cores.

use super::{L0, Machine, Observer, Thread};
use crate::sched::Scheduler;
use crate::{Governor, Moment, Picos, Segment};

impl<O: Observer> Machine<O> {
    /// Whether the machine ever has a series.
    pub(super) fn may_have_series(&self) -> bool {
        let is_watched = self.observer.sees_segments()
            || self.regions.is_some()
            || self.specialised.is_some()
            || self.settings.core_scheduling
            || self.settings.changes_mode;
        let by_activity = self.meter.as_ref().is_ok_and(|meter| meter.stalled().is_some());
        self.settings.governor == Governor::Hardware && !is_watched && !by_activity
    }

    /// Sets the rates of the core's threads, and returns when its next event is due. Draws the next
    /// segments of its thread where that may have a series.
    pub(super) fn next_event(&mut self, core: usize) -> Option<Moment> {
        let Self { cores, threads, processor, now, has_series, .. } = self;
        let (this, factors) = (&mut cores[core], processor.factors(core));
        let thread = this.only_thread().filter(|_| *has_series && this.may_have_series(*now));
        let Some(thread) = thread else {
            this.is_in_series = false;
            return this.next(*now, &factors, None);
        };
        let Thread { program, chance, series, .. } = &mut threads[thread];
        let asks = |segment: &Segment| factors.rules.level_of(&segment.demand()) > L0;
        series.draw(thread, || program.code(chance), asks);
        this.is_in_series = series.is_quiet();
        this.next(*now, &factors, Some(series))
    }

    /// Counts what the core has done until now. A segment that is over just now still is the
    /// current one, as where each has an event: what comes first at this moment finds it.
    pub(super) fn advance(&mut self, core: usize) {
        self.starts_series(core, self.now);
        self.count(core, self.now);
    }

    /// Starts the segments of the core's series that follow one that is over before `until`.
    fn starts_series(&mut self, core: usize, until: Moment) {
        let Self { cores, threads, scheduler, .. } = self;
        let this = &mut cores[core];
        if let Some(thread) = this.only_thread().filter(|_| this.is_in_series) {
            let level = this.level();
            let Thread { series, ran, totals, .. } = &mut threads[thread];
            self.segments += this.advance_in_series(until, series, |running, done| {
                scheduler.ran(thread, done.span, running.over);
                *ran += done.span;
                totals.ran(running, &done, level);
            });
        }
    }

    /// Counts what all cores have done until now, with the segments that start just now, and the
    /// energy.
    pub(super) fn count_all(&mut self) {
        for core in 0..self.cores.len() {
            self.starts_series(core, self.now + Picos::from_ps(1));
            self.count(core, self.now);
        }
        if let Ok(meter) = &mut self.meter {
            meter.advance(self.now);
        }
    }
}
