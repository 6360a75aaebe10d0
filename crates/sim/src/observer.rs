//! Who watches a simulation.

use dimmer_processor::units::LicenceLevel;

use crate::{Moment, Segment};

/// What a core does with its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The level in force.
    pub level: LicenceLevel,
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
    fn decides(&mut self, now: Moment, core: usize, level: LicenceLevel) {
        let _ = (now, core, level);
    }

    /// A core's clock (GHz) may have changed; 0: it executes nothing.
    fn clock(&mut self, now: Moment, core: usize, ghz: f64) {
        let _ = (now, core, ghz);
    }

    /// A thread asks for a P-state, by its place in the model; the request keeps its core from `begin` to `end`.
    fn asks(&mut self, begin: Moment, end: Moment, core: usize, pstate: usize) {
        let _ = (begin, end, core, pstate);
    }

    /// What P-states rule in a core's frequency domain may have changed.
    fn rules(&mut self, now: Moment, core: usize, ruling: Ruling) {
        let _ = (now, core, ruling);
    }
}

impl Observer for () {}

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

    fn decides(&mut self, now: Moment, core: usize, level: LicenceLevel) {
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

    fn rules(&mut self, now: Moment, core: usize, ruling: Ruling) {
        if let Some(observer) = self {
            observer.rules(now, core, ruling);
        }
    }
}
