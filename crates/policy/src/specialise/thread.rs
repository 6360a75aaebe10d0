//! When a thread is wide: from the first instruction that asks for a level until its phase ends.

use dimmer_processor::units::{LicenseLevel, Nanos, Time};

use super::{Class, NARROW};

/// What ends a wide phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// The next entry into the kernel: who computes with wide vectors rarely calls it (§3.3).
    AtCalls,
    /// Nothing but time.
    AtTimeout,
}

/// How long threads stay wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What ends a phase before the timeout.
    pub ends: Ends,
    /// A phase ends after this time without a sign of wide code, if nothing was learned. Where
    /// nothing but the first instruction is seen, that is this time after it.
    pub timeout: Nanos,
    /// A thread that is wide again sooner than this after its phase ended was moved in vain: its
    /// next phases last for twice [`Settings::timeout`] at least, then for twice that, and so on up
    /// to [`Settings::longest`]. `None`: nothing is learned, as in the paper.
    pub pays_after: Option<Nanos>,
    /// The longest phase that is learned. A thread that has ceased to execute wide code stays on
    /// wide cores for as long, once.
    pub longest: Nanos,
}

/// How much longer than a move there and back a phase must be quiet before it ends, and a thread
/// then stay away, so that the move was not in vain: moves take a tenth of a thread's time at most.
/// A choice.
const PAYS_AFTER: u64 = 10;

/// How far that time grows for threads that come back sooner each time. A choice.
const MOST_DOUBLINGS: u32 = 4;

impl Settings {
    /// The paper's: the next entry into the kernel, else 2 ms.
    pub const PAPER: Self = Self {
        ends: Ends::AtCalls,
        timeout: Nanos::from_ms(2),
        pays_after: None,
        longest: Nanos::from_ms(2),
    };

    /// The paper's, with a memory for phases that ended before a move there and back had paid,
    /// which takes this long. The longest phase is a guess.
    #[must_use]
    pub const fn learning(round_trip: Nanos) -> Self {
        Self { pays_after: Some(round_trip), longest: Nanos::from_ms(128), ..Self::PAPER }
    }

    /// For hooks, which see each call of wide code and no other, where a move there and
    /// back takes this long. The longest phase is as long as the paper's timeout at least.
    #[must_use]
    pub fn hooked(round_trip: Nanos) -> Self {
        let pays_after = Nanos::from_ns(round_trip.ns().saturating_mul(PAYS_AFTER));
        let longest = Nanos::from_ns(pays_after.ns().saturating_mul(1 << MOST_DOUBLINGS));
        let longest = longest.max(Self::PAPER.timeout);
        let (ends, timeout) = (Ends::AtTimeout, pays_after);
        Self { ends, timeout, pays_after: Some(pays_after), longest }
    }

    /// Whether the ends of a function's calls must be known, as they last this long: while such a
    /// call goes on, a thread that makes no other looks as if it were quiet. A quarter of the quiet
    /// time is a choice.
    #[must_use]
    pub fn is_long(&self, call: Nanos) -> bool {
        call.ns() >= self.timeout.ns() / 4
    }
}

/// A wide phase of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Phase {
    /// The level that it asks for.
    level: LicenseLevel,
    /// When wide code was last seen.
    seen: Time,
}

/// What is known of a thread. Times are of a clock that runs while the thread does, its CPU time: a
/// thread that sleeps does not show what it executes. Follows any order of events; time that goes
/// backwards counts as standing still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread {
    /// What it is outside of wide phases.
    base: Class,
    phase: Option<Phase>,
    /// The level of its last phase, this one included.
    last: LicenseLevel,
    /// When its last phase ended.
    ended: Option<Time>,
    /// How long its phases last at least, as far as that was learned.
    stay: Nanos,
}

impl Thread {
    /// A thread of which nothing is known.
    #[must_use]
    pub const fn new() -> Self {
        Self { base: Class::Default, phase: None, last: NARROW, ended: None, stay: Nanos::ZERO }
    }

    /// Its class.
    #[must_use]
    pub fn class(&self) -> Class {
        self.phase.map_or(self.base, |phase| Class::Wide(phase.level))
    }

    /// The level for which it needs a core: that of its phase; or of its last one, if it was seen
    /// to be back at once.
    #[must_use]
    pub fn needs(&self) -> LicenseLevel {
        let last = if self.stay > Nanos::ZERO { self.last } else { NARROW };
        self.class().level().max(last)
    }

    /// The user sets its class. A wide one is wide for good.
    pub fn set(&mut self, class: Class) {
        self.base = if class == Class::Wide(NARROW) { Class::Normal } else { class };
        self.phase = None;
    }

    /// The thread that it starts, or itself with the program that it then executes. That one keeps
    /// the class outside of wide phases, and begins outside of one.
    #[must_use]
    pub const fn inherited(&self) -> Self {
        Self { base: self.base, ..Self::new() }
    }

    /// It executes code that asks for this level. Returns whether its class has changed: it may
    /// have to move.
    pub fn uses(&mut self, level: LicenseLevel, now: Time, settings: &Settings) -> bool {
        let before = self.class();
        if level <= self.base.level() {
            return false;
        }
        if self.phase.is_none() {
            self.learn(now, settings);
        }
        let level = self.phase.map_or(level, |phase| phase.level.max(level));
        let seen = self.phase.map_or(now, |phase| phase.seen.max(now));
        self.phase = Some(Phase { level, seen });
        self.last = level;
        if self.base == Class::Default {
            self.base = Class::Normal;
        }
        self.class() != before
    }

    /// A phase begins: was the end of the last one a mistake?
    fn learn(&mut self, now: Time, settings: &Settings) {
        let Some(pays_after) = settings.pays_after else { return };
        let Some(ended) = self.ended else { return };
        let (away, stay) = (now - ended, self.stay.max(settings.timeout));
        if away < pays_after {
            let twice = Nanos::from_ns(stay.ns().saturating_mul(2));
            self.stay = twice.min(settings.longest);
        } else if away > stay {
            // It forgets what it learned, as it learned it.
            let half = Nanos::from_ns(self.stay.ns() / 2);
            self.stay = if half > settings.timeout { half } else { Nanos::ZERO };
        }
    }

    /// It enters the kernel; `has_upper_state`: with valid contents in registers that a narrow core
    /// does not keep (§3.4), with which it stays. Returns whether its phase ends: any core may take
    /// it.
    pub fn calls(&mut self, has_upper_state: bool, now: Time, settings: &Settings) -> bool {
        let is_quiet = |phase: Phase| now - phase.seen >= self.stay;
        let ends = settings.ends == Ends::AtCalls && self.phase.is_some_and(is_quiet);
        ends && !has_upper_state && self.end(now)
    }

    /// When its phase ends by time, if it has one.
    #[must_use]
    pub fn due(&self, settings: &Settings) -> Option<Time> {
        self.phase.map(|phase| phase.seen + settings.timeout.max(self.stay))
    }

    /// Time has passed. Returns whether its phase ends.
    pub fn wakes(&mut self, has_upper_state: bool, now: Time, settings: &Settings) -> bool {
        let is_due = self.due(settings).is_some_and(|due| due <= now);
        is_due && !has_upper_state && self.end(now)
    }

    /// The processor or a hook tells that its wide code has ended, and that it will be quiet for
    /// this long. Returns whether its phase ends: only if moving pays.
    pub fn leaves(&mut self, quiet_for: Nanos, now: Time, settings: &Settings) -> bool {
        let pays = settings.pays_after.is_none_or(|pays_after| quiet_for > pays_after);
        self.phase.is_some() && pays && self.end(now)
    }

    /// It must have its own affinity now, whatever it executes: its phase is over, and nothing is
    /// learned from that.
    pub const fn interrupted(&mut self) {
        (self.phase, self.ended) = (None, None);
    }

    fn end(&mut self, now: Time) -> bool {
        (self.phase, self.ended) = (None, Some(now));
        true
    }
}

impl Default for Thread {
    fn default() -> Self {
        Self::new()
    }
}
