//! The work that clients have done in all, from which rates are taken.
//!
//! A client's own report counts if there is one, else its calls of marked regions. The two have
//! different units, so a change from one to the other makes it another series, whose values are not
//! compared with those of the first.

use dimmer_processor::units::{Nanos, Time};

use super::{ClientId, ProgramId, UserId};

/// A client that reported its progress before, and calls regions without reporting any for this
/// long, is measured by its calls again. A guess: reports come many times a second.
const SILENT: Nanos = Nanos::from_ms(10_000);

/// What work is counted in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkUnit {
    /// Calls of marked regions.
    #[default]
    Calls,
    /// The unit of the client's own report.
    Reported,
}

/// A client and the work that it has done in all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// The client.
    pub client: ClientId,
    /// Its program.
    pub program: ProgramId,
    /// Its user.
    pub user: UserId,
    /// What the work is counted in.
    pub unit: WorkUnit,
    /// The work, in that unit.
    pub done: f64,
}

/// The work of one client.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Work {
    calls: f64,
    reported: f64,
    /// The rate that it has reported since the last step (a second).
    rate: Option<f64>,
    unit: WorkUnit,
    /// Its calls when it reported last, and when that was.
    last: (f64, Time),
}

impl Work {
    /// Adds calls.
    pub(super) fn calls(&mut self, calls: u64) {
        self.calls += calls as f64;
    }

    /// Records the rate of work since the last step, as the client reports it (a second).
    pub(super) fn reports(&mut self, rate: f64) {
        self.rate = Some(rate);
    }

    /// Adds what was reported since the last step, `span` ago. Returns the work in all, and its
    /// unit.
    pub(super) fn step(&mut self, now: Time, span: Nanos) -> (WorkUnit, f64) {
        if let Some(rate) = self.rate.take() {
            self.reported += rate * span.as_f64() / 1e9;
            self.unit = WorkUnit::Reported;
            self.last = (self.calls, now);
        } else if self.calls > self.last.0 && now - self.last.1 >= SILENT {
            self.unit = WorkUnit::Calls;
        }
        let done = match self.unit {
            WorkUnit::Calls => self.calls,
            WorkUnit::Reported => self.reported,
        };
        (self.unit, done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = Nanos::from_ms(1000);

    #[test]
    fn what_is_reported_counts_instead_of_calls_until_no_report_comes_for_long() {
        let mut work = Work::default();
        let mut now = Time::START;
        let mut second = |work: &mut Work, rate: Option<f64>, calls: u64| {
            now += SECOND;
            rate.into_iter().for_each(|rate| work.reports(rate));
            work.calls(calls);
            work.step(now, SECOND)
        };
        assert_eq!(second(&mut work, None, 7), (WorkUnit::Calls, 7.0));
        assert_eq!(second(&mut work, Some(3.0), 7), (WorkUnit::Reported, 3.0));
        assert_eq!(second(&mut work, Some(4.0), 7), (WorkUnit::Reported, 7.0));
        // A program that does nothing has stopped; one that calls has lost its report.
        for _ in 0..30 {
            assert_eq!(second(&mut work, None, 0), (WorkUnit::Reported, 7.0));
        }
        assert_eq!(second(&mut work, Some(1.0), 1), (WorkUnit::Reported, 8.0));
        for _ in 0..9 {
            assert_eq!(second(&mut work, None, 10), (WorkUnit::Reported, 8.0));
        }
        assert_eq!(second(&mut work, None, 10), (WorkUnit::Calls, 122.0));
    }
}
