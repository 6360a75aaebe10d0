//! Windows of what is in force, and trials.

use dimmer_processor::units::Time;

use super::Settings;
use super::work::{Rates, gain, lost};

/// What runs now.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stretch {
    /// The mechanism tried; `None`: that in force.
    pub(super) tries: Option<usize>,
    /// The mechanism that runs.
    pub(super) runs: usize,
    /// Whether nothing is tried and another mechanism ran before: this window shows what that has
    /// left behind.
    pub(super) is_first: bool,
    /// When it began, and when its measured window begins and ends.
    pub(super) begun: Time,
    pub(super) measured_from: Time,
    pub(super) ends: Time,
    /// The work of each program when it began, and once its measured window has begun, then.
    pub(super) at_begin: Vec<f64>,
    pub(super) at_window: Option<(Time, Vec<f64>)>,
}

impl Stretch {
    /// A window of none.
    pub(super) fn new(settings: &Settings, now: Time, work: &[f64]) -> Self {
        let measured_from = now + settings.settle;
        Self {
            tries: None,
            runs: 0,
            is_first: false,
            begun: now,
            measured_from,
            ends: measured_from + settings.window,
            at_begin: work.to_vec(),
            at_window: None,
        }
    }
}

/// A trial that has ended. Two windows under the mechanism in force follow, at least: one in which
/// that comes to work as before, and one to compare with.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tried {
    pub(super) mechanism: usize,
    pub(super) before: Rates,
    pub(super) rates: Rates,
    /// How long it took, and what it lost against none by these rates (ns).
    pub(super) span: f64,
    pub(super) lost: f64,
    /// The part of a window that was measured.
    pub(super) measured: f64,
    /// When it ended.
    pub(super) ended: Time,
    /// The rates of the windows that followed in which the mechanism in force did not yet work as
    /// before, and how long each took (ns).
    pub(super) after: Vec<(Rates, f64)>,
}

impl Tried {
    /// What it and the windows after it have lost, as far as the window before it shows (ns).
    pub(super) fn lost_so_far(&self, users: &[u32]) -> f64 {
        self.lost.max(self.lost_against(&self.before, users))
    }

    /// What it and the windows after it lost against these rates (ns).
    pub(super) fn lost_against(&self, rates: &Rates, users: &[u32]) -> f64 {
        let own = gain(&self.rates, rates, users).map_or(0.0, lost) * self.span;
        own + self.lost_after(0, rates, users)
    }

    /// What the windows after it lost against these rates, but for the first ones (ns).
    pub(super) fn lost_after(&self, first: usize, rates: &Rates, users: &[u32]) -> f64 {
        let windows = self.after.iter().skip(first);
        windows.map(|(own, span)| gain(own, rates, users).map_or(0.0, lost) * span).sum()
    }
}
