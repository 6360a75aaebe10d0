//! Who watches a simulation.

use dimmer_processor::units::LicenceLevel;

use crate::{Moment, Segment};

/// Sees what changes.
pub trait Observer {
    /// A core's level, or whether it is throttled or stands still, has changed.
    fn core(
        &mut self,
        now: Moment,
        core: usize,
        level: LicenceLevel,
        throttled: bool,
        still: bool,
    ) {
        let _ = (now, core, level, throttled, still);
    }

    /// A thread begins a segment on a core.
    fn runs(&mut self, now: Moment, core: usize, thread: usize, segment: &Segment) {
        let _ = (now, core, thread, segment);
    }
}

impl Observer for () {}

impl<O: Observer> Observer for Option<O> {
    fn core(
        &mut self,
        now: Moment,
        core: usize,
        level: LicenceLevel,
        throttled: bool,
        still: bool,
    ) {
        if let Some(observer) = self {
            observer.core(now, core, level, throttled, still);
        }
    }

    fn runs(&mut self, now: Moment, core: usize, thread: usize, segment: &Segment) {
        if let Some(observer) = self {
            observer.runs(now, core, thread, segment);
        }
    }
}
