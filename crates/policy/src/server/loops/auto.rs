//! A loop that compares mechanisms for all programs of the machine at once: none, under which every
//! call stays and no core is dedicated for calls, and delegation, under which every call moves that
//! nothing hinders. [`crate::auto`] decides by trials of each; `dimmer run --auto` decides in the
//! same way about one program alone.
//!
//! [`super::trials`] asks about one group of calls after the other, so it finds a subset that
//! gains. It never asks whether the machine would do better without any dedicated core. This loop
//! asks only that, and bounds what it costs to ask.
//!
//! The work is each client's: what it reports itself, or else its calls. A gain is the mean over
//! users of the mean over their clients of the relative change, which is their geometric mean where
//! changes are small, so no client counts for more because it calls more often. A client that comes
//! or goes voids the window, and ends a trial; another set of programs is another load, for which
//! nothing is known.

use std::collections::BTreeSet;

use dimmer_processor::units::{Nanos, Time};

use super::{Constant, Constants, Definition, LONGEST_MS, Loop, Mechanism, WindowEnd};
use crate::auto::{self, Auto};
use crate::server::decision::{Action, Reason};
use crate::server::evidence::Density;
use crate::server::settings;
use crate::server::work::{Progress, WorkUnit};
use crate::server::{ClientId, ProgramId, UserId};

/// The loop as configurations name it.
pub static DEFINITION: Definition = Definition {
    name: "auto",
    summary: "trials of all regions of all programs at once, moved and not moved",
    constants: || Box::new(Settings::USUAL),
    settings: |cores, prices| {
        let usual = settings::Settings::usual(cores);
        settings::Settings { decides: super::Chosen::new(Settings::USUAL), prices, ..usual }
    },
};

/// The mechanisms, by number.
const MECHANISMS: [&str; 2] = ["none", "delegate"];
const DELEGATE: usize = 1;

/// The constants of the loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings(auto::Settings);

impl Settings {
    /// For usual machines.
    pub const USUAL: Self = Self(auto::Settings {
        // As in `trials`: programs find out about dedicated cores when they next look.
        window: Nanos::from_ms(1000),
        settle: Nanos::from_ms(200),
        // The period at which the server reads what programs did.
        tick: Nanos::from_ms(50),
        // Ten times what a single program has, as the window is ten times as long.
        period: Nanos::from_ms(100_000),
        recheck: Nanos::from_ms(50_000),
        // Half the weight after seven minutes; a guess, as a machine's habits change.
        discount: 0.998,
        ..auto::Settings::USUAL
    });
}

impl Constants for Settings {
    fn definition(&self) -> &'static Definition {
        &DEFINITION
    }

    fn copy(&self) -> Box<dyn Constants> {
        Box::new(*self)
    }

    fn list(&mut self) -> Vec<Constant<'_>> {
        let of = &mut self.0;
        vec![
            Constant::time("window_ms", &mut of.window, (1.0, LONGEST_MS)),
            Constant::time("settle_ms", &mut of.settle, (0.0, LONGEST_MS)),
            Constant::time("period_ms", &mut of.period, (1.0, LONGEST_MS)),
            Constant::time("recheck_ms", &mut of.recheck, (1.0, LONGEST_MS)),
            // At 0, no trial is ever paid for.
            Constant::number("most_loss", &mut of.most_loss, (0.0001, 1.0)),
            // Above, what a doubling leaves open is not worth a trial.
            Constant::number("least_gain", &mut of.least_gain, (0.0, 0.25)),
            // Below, noise and samples are forgotten before there are enough of them.
            Constant::number("discount", &mut of.discount, (0.9, 0.9999)),
        ]
    }

    fn start(&self, now: Time) -> Box<dyn Loop> {
        Box::new(Mechanisms::new(*self, now))
    }
}

/// The state of the loop.
#[derive(Clone, Debug, PartialEq)]
pub struct Mechanisms {
    settings: auto::Settings,
    auto: Auto,
    /// Number of members of all groups that nothing hinders from being moved.
    candidates: usize,
    /// The clients whose work is measured.
    measured: Vec<(ClientId, WorkUnit)>,
    programs: BTreeSet<(UserId, ProgramId)>,
    /// Whether the set of candidates has changed since the last step.
    is_void: bool,
    /// Whether a stretch has ended, and whether the decision has changed, since the last window.
    has_ended: bool,
    has_changed: bool,
}

impl Mechanisms {
    /// Starts under none.
    #[must_use]
    pub fn new(Settings(settings): Settings, now: Time) -> Self {
        Self {
            settings,
            auto: Auto::new(settings, MECHANISMS.len(), now, &[]),
            candidates: 0,
            measured: Vec::new(),
            programs: BTreeSet::new(),
            is_void: false,
            has_ended: false,
            has_changed: false,
        }
    }

    /// What is done with all calls that nothing hinders, and why.
    fn decision(&self) -> (Action, Reason) {
        let is_moved = self.auto.in_force() == DELEGATE;
        let reason = if self.auto.in_force() != self.auto.chosen() {
            Reason::Tried
        } else if is_moved {
            Reason::Worth
        } else if self.auto.gain(DELEGATE).is_some() {
            Reason::NotWorth
        } else {
            Reason::Untried
        };
        (if is_moved { Action::Move } else { Action::Stay }, reason)
    }
}

impl Loop for Mechanisms {
    fn copy(&self) -> Box<dyn Loop> {
        Box::new(self.clone())
    }

    /// A stretch, which ends the window anyway.
    fn window_length(&self) -> Nanos {
        self.settings.window + self.settings.settle
    }

    fn decide(&self, _group: usize, _density: &Density) -> (Action, Reason) {
        self.decision()
    }

    /// Trials have been stepped in [`Self::step`]; the window only shows what changed.
    fn window(&mut self, _end: WindowEnd) -> bool {
        self.has_ended = false;
        std::mem::take(&mut self.has_changed)
    }

    fn settling(&self) -> Option<Nanos> {
        Some(self.settings.settle)
    }

    /// Whether a trial, or the window before one, has ended.
    fn ends_early(&self) -> bool {
        self.has_ended
    }

    fn candidate(&mut self, _group: usize, is_one: bool) {
        let was = self.candidates;
        self.candidates = if is_one { was.saturating_add(1) } else { was.saturating_sub(1) };
        self.is_void = true;
    }

    fn step(&mut self, now: Time, clients: &mut dyn Iterator<Item = Progress>) {
        let (mut measured, mut programs) = (Vec::new(), BTreeSet::new());
        let (mut work, mut users) = (Vec::new(), Vec::new());
        for Progress { client, program, user, unit, done } in clients {
            measured.push((client, unit));
            programs.insert((user, program));
            work.push(done);
            users.push(user.0);
        }
        let was = self.decision();
        let is_other_load = self.candidates == 0 || programs != self.programs;
        if is_other_load {
            self.auto.begin_again();
        }
        if is_other_load || measured != self.measured || self.is_void {
            self.auto.restart(now, &work, users);
        } else {
            let since = self.auto.since();
            self.auto.step(now, &work);
            self.has_ended |= self.auto.since() != since;
        }
        (self.measured, self.programs, self.is_void) = (measured, programs, false);
        self.has_changed |= self.decision() != was;
        self.has_ended |= self.has_changed;
    }

    fn next_wakeup(&self, now: Time) -> Option<Time> {
        (self.candidates > 0).then(|| self.auto.next_wakeup(now))
    }

    fn mechanisms(&self) -> Vec<Mechanism> {
        let of = |(number, name): (usize, &&'static str)| Mechanism {
            name,
            is_in_force: self.auto.in_force() == number,
            is_chosen: self.auto.chosen() == number,
            gain: self.auto.gain(number),
        };
        MECHANISMS.iter().enumerate().map(of).collect()
    }
}

#[cfg(test)]
mod tests;
