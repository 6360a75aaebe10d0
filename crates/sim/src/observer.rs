//! Who watches a simulation.

use dimmer_processor::units::LicenseLevel;

use crate::{Moment, Segment};

/// What a core does with its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The level in force.
    pub level: LicenseLevel,
    /// Whether wide code is throttled.
    pub is_throttled: bool,
    /// Whether it stands still, for the clock changes.
    pub is_still: bool,
}

/// The P-state of a frequency domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ruling {
    /// By its place in the model; none: the fastest clock there is.
    pub pstate: Option<usize>,
    /// Whether the clock is still on its way to it.
    pub is_changing: bool,
}

/// What the policy server has decided.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Served {
    /// How many regions, or clients, are offloaded.
    pub offloaded: usize,
    /// How many cores are to be dedicated.
    pub cores: usize,
    /// The threshold of the highest level, if the loop has any.
    pub threshold: Option<f64>,
}

/// Sees what changes.
pub trait Observer {
    /// A core's state has changed.
    fn core(&mut self, now: Moment, core: usize, state: State) {
        let _ = (now, core, state);
    }

    /// A thread begins a segment on a core, or goes on with it.
    fn runs(&mut self, now: Moment, core: usize, thread: usize, segment: &Segment) {
        let _ = (now, core, thread, segment);
    }

    /// A thread stops running on a core: it sleeps, waits, has finished, or has had its turn.
    fn stops(&mut self, now: Moment, core: usize, thread: usize) {
        let _ = (now, core, thread);
    }

    /// A governor in software has decided for this level.
    fn decides(&mut self, now: Moment, core: usize, level: LicenseLevel) {
        let _ = (now, core, level);
    }

    /// A core's clock (GHz) may have changed; 0: it executes nothing.
    fn clock(&mut self, now: Moment, core: usize, ghz: f64) {
        let _ = (now, core, ghz);
    }

    /// A thread asks for a P-state, by its place in the model; the request keeps its core from
    /// `begin` to `end`.
    fn asks(&mut self, begin: Moment, end: Moment, core: usize, pstate: usize) {
        let _ = (begin, end, core, pstate);
    }

    /// The policy server has decided otherwise than before.
    fn serves(&mut self, now: Moment, served: Served) {
        let _ = (now, served);
    }

    /// What P-states rule in a core's frequency domain may have changed.
    fn rules(&mut self, now: Moment, core: usize, ruling: Ruling) {
        let _ = (now, core, ruling);
    }
}

impl Observer for () {}

/// Keeps what the policy server has decided, and when (ps).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Course(pub Vec<(Moment, Served)>);

impl Observer for Course {
    fn serves(&mut self, now: Moment, served: Served) {
        self.0.push((now, served));
    }
}

impl Course {
    /// What was decided at a moment.
    #[must_use]
    pub fn at(&self, moment: Moment) -> Served {
        let before = self.0.iter().rfind(|(at, _)| *at <= moment);
        before.map_or_else(Served::default, |(_, served)| *served)
    }

    /// The mean of something of it from one moment to another.
    #[must_use]
    pub fn mean(&self, from: Moment, to: Moment, of: impl Fn(&Served) -> f64) -> f64 {
        let (mut sum, mut since, mut value) = (0.0, from, of(&self.at(from)));
        for (at, served) in self.0.iter().filter(|(at, _)| (from..to).contains(at)) {
            sum += value * (at - since) as f64;
            (since, value) = (*at, of(served));
        }
        sum += value * to.saturating_sub(since) as f64;
        sum / to.saturating_sub(from) as f64
    }
}

impl<O: Observer> Observer for Option<O> {
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

    fn asks(&mut self, begin: Moment, end: Moment, core: usize, pstate: usize) {
        if let Some(observer) = self {
            observer.asks(begin, end, core, pstate);
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
