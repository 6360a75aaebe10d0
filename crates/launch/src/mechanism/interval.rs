//! How often something is done that takes time from the program.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// What is done takes this part of a CPU's time, unless its caller allows more, or [`LONGEST`] is
/// too short for that. A program with thousands of functions is looked at less often.
pub(super) const SPARE: f64 = 0.0025;

/// The same for a program that is followed loosely.
pub(super) const LOOSE_SPARE: f64 = 0.001;

/// The longest interval: what a killed observer has decided lapses after a second, so a live one
/// has to come back sooner.
const LONGEST: Duration = Duration::from_millis(500);

/// Something that is done at intervals: as long as it takes little time, by the least interval.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    last: Instant,
    /// CPU time that the last one took.
    took: Duration,
}

impl Interval {
    pub(super) fn new() -> Self {
        Self { last: Instant::now(), took: Duration::ZERO }
    }

    /// Whether enough time has passed: `least`, which is no longer than half a second, or more if
    /// what is done would otherwise take more than `part` (above 0) of a CPU's time.
    pub(super) fn is_due(&self, least: Duration, part: f64) -> bool {
        self.last.elapsed() >= self.waits(least, part)
    }

    /// The time from now until it is due, at intervals of no less than `least`, as above.
    pub(super) fn due_in(&self, least: Duration, part: f64) -> Duration {
        self.waits(least, part).saturating_sub(self.last.elapsed())
    }

    fn waits(&self, least: Duration, part: f64) -> Duration {
        least.max(self.took.div_f64(part).min(LONGEST))
    }

    /// Does it now.
    pub(super) fn take(&mut self, what: impl FnOnce()) {
        self.last = Instant::now();
        let before = on_cpu();
        what();
        self.took = on_cpu().saturating_sub(before);
    }
}

/// CPU time of the calling thread.
fn on_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_long_is_done_less_often() {
        let mut interval = Interval::new();
        assert_eq!(interval.waits(Duration::ZERO, SPARE), Duration::ZERO);
        let work = || {
            let end = on_cpu() + Duration::from_millis(1);
            while on_cpu() < end {}
        };
        interval.take(work);
        let waits = interval.waits(Duration::ZERO, SPARE);
        assert!(Duration::from_millis(200) <= waits && waits <= LONGEST, "{interval:?}");
        assert_eq!(interval.waits(LONGEST, SPARE), LONGEST);
        assert!(interval.waits(Duration::ZERO, 10.0 * SPARE) < waits);
        interval.last -= waits;
        assert!(interval.is_due(Duration::ZERO, SPARE));
        assert_eq!(interval.due_in(Duration::ZERO, SPARE), Duration::ZERO);
        interval.last = Instant::now();
        let due_in = interval.due_in(Duration::ZERO, SPARE);
        assert!(!due_in.is_zero() && due_in <= waits, "{due_in:?}");
    }
}
