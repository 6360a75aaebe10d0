//! Which mechanism a program is under, of those between which can be switched while it runs.
//!
//! [`dimmer_policy::auto`] decides, by the work that the program does. This module has the
//! mechanisms and the time that each was in force; [`crate::mechanism`] carries out what follows.

use dimmer_policy::auto::{Auto, Gain, Settings};
use dimmer_policy::headroom::RuledOut;
use dimmer_processor::units::{Nanos, Time};

/// A mechanism between which and others can be switched while a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switched {
    /// The program runs as it would without Dimmer.
    Nothing,
    /// Calls of leaf functions are delegated.
    Delegate,
    /// Calls of other functions migrate.
    Migrate,
    /// Both.
    DelegateAndMigrate,
    /// Threads that hold locks for long request a faster clock.
    Boost,
}

impl Switched {
    /// The mechanisms that a program may be under: none first.
    pub(crate) fn all(has_leaves: bool, has_others: bool, has_clocks: bool) -> Vec<Self> {
        let is_there = [
            (Self::Nothing, true),
            (Self::Delegate, has_leaves),
            (Self::Migrate, has_others),
            (Self::DelegateAndMigrate, has_leaves && has_others),
            (Self::Boost, has_clocks),
        ];
        is_there.into_iter().filter(|(_, is_there)| *is_there).map(|(one, _)| one).collect()
    }

    /// The name for users.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "none",
            Self::Delegate => "delegate",
            Self::Migrate => "migrate",
            Self::DelegateAndMigrate => "delegate and migrate",
            Self::Boost => "boost",
        }
    }

    /// Whether calls move that are delegated, or that migrate.
    pub(crate) const fn moves(self, is_delegated: bool) -> bool {
        match self {
            Self::Nothing | Self::Boost => false,
            Self::Delegate => is_delegated,
            Self::Migrate => !is_delegated,
            Self::DelegateAndMigrate => true,
        }
    }
}

/// What became of a mechanism.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tried {
    /// The mechanism.
    pub mechanism: Switched,
    /// How often it came into force.
    pub times: u64,
    /// How long it was in force.
    pub in_force: Nanos,
    /// What trials have shown; `None` for none, and without a trial.
    pub gain: Option<Gain>,
    /// Whether it was the best at the end.
    pub is_chosen: bool,
    /// Why it was not tried at the end, if so.
    pub ruled_out: Option<RuledOut>,
}

/// The trials of a program's mechanisms.
#[derive(Debug)]
pub(crate) struct Trials {
    mechanisms: Vec<Switched>,
    /// `None` until there is something to try.
    auto: Option<Auto>,
    /// Since when the present mechanism is in force, and when to step next.
    since: Time,
    next: Time,
    /// Of each mechanism.
    times: Vec<(u64, Nanos)>,
    /// Why each is not tried now. The first, none, never is ruled out.
    ruled_out: Vec<Option<RuledOut>>,
}

impl Trials {
    /// Starts under the first of these mechanisms, none.
    pub(crate) fn new(mechanisms: Vec<Switched>, now: Time) -> Self {
        let times = vec![(0, Nanos::ZERO); mechanisms.len()];
        let ruled_out = vec![None; mechanisms.len()];
        Self { mechanisms, auto: None, since: now, next: now, times, ruled_out }
    }

    /// Sets which mechanisms are not tried from now on, and why. At first, none is ruled out.
    pub(crate) fn rule_out(&mut self, why: impl Fn(Switched) -> Option<RuledOut>) {
        let others = self.mechanisms.iter().zip(&mut self.ruled_out).skip(1);
        others.for_each(|(mechanism, ruled_out)| *ruled_out = why(*mechanism));
    }

    fn number(&self) -> usize {
        self.auto.as_ref().map_or(0, Auto::in_force)
    }

    /// All mechanisms, none first.
    pub(crate) fn mechanisms(&self) -> &[Switched] {
        &self.mechanisms
    }

    /// The mechanism in force.
    pub(crate) fn in_force(&self) -> Switched {
        self.mechanisms[self.number()]
    }

    /// When to call [`Self::step`] next.
    pub(crate) const fn next(&self) -> Time {
        self.next
    }

    /// Decides which mechanism is in force from now on; returns whether that has changed.
    ///
    /// * `work`: what the program has done up to now, in one unit or in several.
    /// * `can_gain`: whether any of the mechanisms does anything.
    /// * `is_measure`: whether the work can be compared with that of the last step.
    ///
    /// Unless both are so, none is tried, and what is tried ends without a result.
    pub(crate) fn step(
        &mut self,
        now: Time,
        work: &[f64],
        can_gain: bool,
        is_measure: bool,
    ) -> bool {
        let before = self.number();
        let can_try = can_gain && is_measure;
        if let Some(auto) = &mut self.auto {
            auto.try_only(self.ruled_out.iter().map(Option::is_none));
            if can_try {
                auto.step(now, work);
            } else {
                // All work is one user's.
                auto.restart(now, work, vec![0; work.len()]);
            }
        } else if can_try && self.ruled_out.iter().skip(1).any(Option::is_none) {
            self.auto = Some(Auto::new(Settings::USUAL, self.mechanisms.len(), now, work));
        }
        let wakeup = self.auto.as_ref().filter(|_| can_try).map(|auto| auto.next_wakeup(now));
        self.next = wakeup.unwrap_or(now + Settings::USUAL.window);
        let is_changed = self.number() != before;
        if is_changed {
            self.count(before, now);
        }
        is_changed
    }

    fn count(&mut self, of: usize, now: Time) {
        let (times, in_force) = &mut self.times[of];
        *times += 1;
        *in_force = Nanos::from_ns(in_force.ns().saturating_add((now - self.since).ns()));
        self.since = now;
    }

    /// What became of each mechanism.
    pub(crate) fn finish(mut self, now: Time) -> Vec<Tried> {
        self.count(self.number(), now);
        let chosen = self.auto.as_ref().map_or(0, Auto::chosen);
        let all = self.mechanisms.iter().zip(&self.times).zip(&self.ruled_out).enumerate();
        all.map(|(number, ((mechanism, (times, in_force)), ruled_out))| Tried {
            mechanism: *mechanism,
            times: *times,
            in_force: *in_force,
            gain: self.auto.as_ref().and_then(|auto| auto.gain(number)),
            is_chosen: number == chosen,
            ruled_out: ruled_out.filter(|_| number != chosen),
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A made-up program, whose speed depends on the time (s) and on the mechanism.
    struct Program {
        trials: Trials,
        now: Time,
        /// Its work, and what it would have done under none.
        work: f64,
        of_none: f64,
    }

    impl Program {
        fn new(can_delegate: bool, can_migrate: bool, has_clocks: bool) -> Self {
            let mechanisms = Switched::all(can_delegate, can_migrate, has_clocks);
            let trials = Trials::new(mechanisms, Time::START);
            Self { trials, now: Time::START, work: 0.0, of_none: 0.0 }
        }

        fn seconds(&self) -> f64 {
            (self.now - Time::START).as_f64() / 1e9
        }

        /// Runs until a time (s); returns the mechanism in force for the most of the last second.
        fn run(&mut self, until: f64, speed: impl Fn(Switched, f64) -> f64) -> Switched {
            let mut last = [(Switched::Nothing, 0.0); 5];
            while self.seconds() < until {
                let (from, in_force) = (self.seconds(), self.trials.in_force());
                self.now = self.trials.next().max(self.now + Nanos::from_ns(1));
                let span = self.seconds() - from;
                self.work += span * speed(in_force, from);
                self.of_none += span * speed(Switched::Nothing, from);
                self.trials.step(self.now, &[1e9 * self.work], true, true);
                if self.seconds() > until - 1.0 {
                    last[in_force as usize].0 = in_force;
                    last[in_force as usize].1 += span;
                }
            }
            last.into_iter().max_by(|one, other| one.1.total_cmp(&other.1)).unwrap().0
        }
    }

    #[test]
    fn a_program_gets_and_keeps_the_mechanism_by_which_it_gains() {
        let mechanisms = Switched::all(true, true, true);
        for best in mechanisms {
            let speed = |of, _| match of {
                _ if of == best => 1.1,
                Switched::Nothing => 1.0,
                _ => 0.97,
            };
            let mut program = Program::new(true, true, true);
            for until in [30.0, 60.0, 90.0] {
                assert_eq!(program.run(until, speed), best, "{until} s");
            }
            let tried = program.trials.finish(program.now);
            let chosen: Vec<_> = tried.iter().filter(|one| one.is_chosen).collect();
            assert_eq!((chosen.len(), chosen[0].mechanism), (1, best));
            let all: u64 = tried.iter().map(|one| one.in_force.ns()).sum();
            assert_eq!(all, (program.now - Time::START).ns());
            assert!(best == Switched::Nothing || chosen[0].gain.unwrap().mean > 0.05);
        }
    }

    #[test]
    fn a_program_that_loses_by_each_loses_no_more_than_the_account() {
        for loses in [0.05, 0.5, 1.0] {
            let speed = |of, _| if of == Switched::Nothing { 1.0 } else { 1.0 - loses };
            let mut program = Program::new(true, true, true);
            let (mut work, mut of_none) = (0.0, 0.0);
            for ten in 1..=10 {
                program.run(10.0 * f64::from(ten), speed);
                let [done, would] = [program.work - work, program.of_none - of_none];
                assert!(done >= 0.99 * would, "a loss of {loses}: {done} of {would}");
                (work, of_none) = (program.work, program.of_none);
            }
            assert_eq!(program.trials.in_force(), Switched::Nothing);
        }
    }

    #[test]
    fn a_program_that_changes_its_habits_is_followed() {
        let speed = |of, seconds: f64| match (of, seconds < 50.0) {
            (Switched::Delegate, true) | (Switched::Migrate, false) => 1.2,
            (Switched::Migrate, true) | (Switched::Delegate, false) => 0.8,
            (Switched::DelegateAndMigrate, _) => 0.95,
            _ => 1.0,
        };
        let mut program = Program::new(true, true, false);
        assert_eq!(program.run(49.0, speed), Switched::Delegate);
        assert_eq!(program.run(100.0, speed), Switched::Migrate);
    }

    #[test]
    fn what_is_ruled_out_is_not_tried_but_stays_if_it_gains() {
        let speed = |of, _| if of == Switched::Delegate { 1.2 } else { 0.9 };
        let rules_out = |which: Switched| move |one| (one == which).then_some(RuledOut::Busy);
        let tried = |program: &Program| {
            let tried = program.trials.times.iter().map(|(times, _)| *times);
            program.trials.mechanisms().iter().copied().zip(tried).collect::<Vec<_>>()
        };
        let mut program = Program::new(true, true, false);
        program.trials.rule_out(rules_out(Switched::Delegate));
        program.run(30.0, speed);
        assert_eq!(tried(&program)[1], (Switched::Delegate, 0));
        assert!(tried(&program)[2].1 > 0, "{:?}", tried(&program));
        program.trials.rule_out(|_| None);
        assert_eq!(program.run(60.0, speed), Switched::Delegate);
        program.trials.rule_out(|_| Some(RuledOut::Busy));
        let before = tried(&program)[2];
        assert_eq!(program.run(90.0, speed), Switched::Delegate);
        assert_eq!(tried(&program)[2], before);
        let all = program.trials.finish(program.now);
        let busy = Some(RuledOut::Busy);
        assert_eq!(
            all.iter().map(|one| one.ruled_out).collect::<Vec<_>>(),
            [None, None, busy, busy]
        );
    }

    #[test]
    fn nothing_is_tried_until_something_can_gain() {
        let mut trials = Trials::new(Switched::all(true, false, false), Time::START);
        let at = |step: u64| Time::START + step * Settings::USUAL.window;
        for step in 0..100 {
            assert!(!trials.step(at(step), &[step as f64], false, true));
        }
        assert!((100..200).any(|step| trials.step(at(step), &[step as f64], true, true)));
        assert_ne!(trials.in_force(), Switched::Nothing);
        // What is being tried when nothing can gain any more ends.
        assert!(trials.step(at(200), &[200.0], false, true));
        assert!((201..300).all(|step| !trials.step(at(step), &[step as f64], false, true)));
        assert_eq!(trials.in_force(), Switched::Nothing);
        let mut none = Trials::new(Switched::all(false, false, false), Time::START);
        assert!((0..100).all(|step| !none.step(at(step), &[step as f64], true, true)));
        assert_eq!(none.finish(at(100)).len(), 1);
    }
}
