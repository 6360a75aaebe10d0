//! Observers of a simulation.

use dimmer_processor::units::LicenseLevel;

use crate::{Moment, Segment};

/// The state of a core's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The level in force.
    pub level: LicenseLevel,
    /// Whether wide code is throttled.
    pub is_throttled: bool,
    /// Whether the core stands still while its clock changes.
    pub is_still: bool,
}

/// The P-state of a frequency domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ruling {
    /// Index of the P-state in the model; `None`: the fastest clock available.
    pub pstate: Option<usize>,
    /// Whether the clock is still changing to it.
    pub is_changing: bool,
}

/// A decision of the policy server.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Served {
    /// The number of regions, or of clients, that are moved.
    pub moved: usize,
    /// The number of cores to dedicate.
    pub cores: usize,
    /// The threshold of the highest license level, if the control loop has thresholds.
    pub threshold: Option<f64>,
}

/// Sees what changes in a machine.
pub trait Observer {
    /// Whether it sees cores, threads or segments, more than the policy server's decisions. If not,
    /// several segments may share an event, which is faster.
    fn sees_segments(&self) -> bool {
        true
    }

    /// A core's state has changed.
    fn core(&mut self, now: Moment, core: usize, state: State) {
        let _ = (now, core, state);
    }

    /// A thread starts a segment on a core, or resumes it.
    fn runs(&mut self, now: Moment, core: usize, thread: usize, segment: &Segment) {
        let _ = (now, core, thread, segment);
    }

    /// A thread stops running on a core: it sleeps, waits, has finished, or its time slice is over.
    fn stops(&mut self, now: Moment, core: usize, thread: usize) {
        let _ = (now, core, thread);
    }

    /// A governor in software has decided on this level.
    fn decides(&mut self, now: Moment, core: usize, level: LicenseLevel) {
        let _ = (now, core, level);
    }

    /// A core's clock (GHz) may have changed; 0: the core executes nothing.
    fn clock(&mut self, now: Moment, core: usize, ghz: f64) {
        let _ = (now, core, ghz);
    }

    /// Core `by` requests a P-state for core `of`, in general itself; the P-state is given by its
    /// index in the model. The request occupies `by` from `begin` to `end`.
    fn asks(&mut self, (begin, end): (Moment, Moment), (by, of): (usize, usize), pstate: usize) {
        let _ = (begin, end, by, of, pstate);
    }

    /// The policy server has changed its decision.
    fn serves(&mut self, now: Moment, served: Served) {
        let _ = (now, served);
    }

    /// The P-state in force in a core's frequency domain may have changed.
    fn rules(&mut self, now: Moment, core: usize, ruling: Ruling) {
        let _ = (now, core, ruling);
    }
}

impl Observer for () {
    fn sees_segments(&self) -> bool {
        false
    }
}

/// Stores each decision of the policy server with its time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Course(pub Vec<(Moment, Served)>);

impl Observer for Course {
    fn sees_segments(&self) -> bool {
        false
    }

    fn serves(&mut self, now: Moment, served: Served) {
        self.0.push((now, served));
    }
}

impl Course {
    /// The decision in force at a moment.
    #[must_use]
    pub fn at(&self, moment: Moment) -> Served {
        let before = self.0.iter().rfind(|(at, _)| *at <= moment);
        before.map_or_else(Served::default, |(_, served)| *served)
    }

    /// The mean of one value of the decisions from one moment to another, weighted by time.
    #[must_use]
    pub fn mean(&self, from: Moment, to: Moment, of: impl Fn(&Served) -> f64) -> f64 {
        let (mut sum, mut since, mut value) = (0.0, from, of(&self.at(from)));
        for (at, served) in self.0.iter().filter(|(at, _)| (from..to).contains(at)) {
            sum += value * (*at - since).as_f64();
            (since, value) = (*at, of(served));
        }
        sum += value * (to - since).as_f64();
        sum / (to - from).as_f64()
    }
}

impl<O: Observer> Observer for Option<O> {
    fn sees_segments(&self) -> bool {
        self.as_ref().is_some_and(O::sees_segments)
    }

    fn core(&mut self, now: Moment, core: usize, state: State) {
        if let Some(observer) = self {
            observer.core(now, core, state);
        }
    }

    fn runs(&mut self, now: Moment, core: usize, thread: usize, segment: &Segment) {
        if let Some(observer) = self {
            observer.runs(now, core, thread, segment);
        }
    }

    fn stops(&mut self, now: Moment, core: usize, thread: usize) {
        if let Some(observer) = self {
            observer.stops(now, core, thread);
        }
    }

    fn decides(&mut self, now: Moment, core: usize, level: LicenseLevel) {
        if let Some(observer) = self {
            observer.decides(now, core, level);
        }
    }

    fn clock(&mut self, now: Moment, core: usize, ghz: f64) {
        if let Some(observer) = self {
            observer.clock(now, core, ghz);
        }
    }

    fn asks(&mut self, span: (Moment, Moment), cores: (usize, usize), pstate: usize) {
        if let Some(observer) = self {
            observer.asks(span, cores, pstate);
        }
    }

    fn serves(&mut self, now: Moment, served: Served) {
        if let Some(observer) = self {
            observer.serves(now, served);
        }
    }

    fn rules(&mut self, now: Moment, core: usize, ruling: Ruling) {
        if let Some(observer) = self {
            observer.rules(now, core, ruling);
        }
    }
}
