//! What is done with a region's calls, and why.

use dimmer_processor::units::LicenseLevel;

use super::evidence::{Density, LEVELS};
use super::loops::Loop;
use super::settings::{Prices, Settings};
use super::{ClientId, SiteId};
use crate::cost::CallCost;

/// What happens to a site's calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Action {
    /// They run where they are.
    #[default]
    Stay,
    /// They run on dedicated cores.
    Move,
}

/// The reason for an action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reason {
    /// Stays: there is no evidence about it.
    #[default]
    NoEvidence,
    /// Stays: no core can be dedicated.
    NoCore,
    /// Stays: it runs hardly any wide SIMD code.
    Scalar,
    /// Stays: a core for it would be taken from other users.
    OthersShare,
    /// Stays: a call costs the code after it no more than handing the call over takes.
    HandOverCostsMore,
    /// Stays: its density is below the threshold of every level.
    Sparse,
    /// Is moved: its density is above the threshold of this level.
    Dense(LicenseLevel),
    /// Stays: its turn for a trial has not come.
    Untried,
    /// Stays or is moved for a trial.
    Tried,
    /// Stays: clients did no better while it was moved.
    NotWorth,
    /// Is moved: according to the processor's model, clients should do better.
    Expected,
    /// Is moved: clients did better.
    Worth,
    /// Is moved: the client asks for cores, and needs them.
    Asked,
    /// Stays: the client asks for cores, and has not needed any for a while.
    Unneeded,
    /// Stays: its program is only observed.
    Held {
        /// Whether the processor's model expects a gain by moving it, or the client needs cores.
        is_gain_expected: bool,
    },
}

/// A decision that differs from the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The client.
    pub client: ClientId,
    /// The region; `None`: all of the client's regions.
    pub site: Option<SiteId>,
    /// What happens to its calls from now on.
    pub action: Action,
    /// The reason for the action.
    pub reason: Reason,
}

/// The averages of calls that stay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stayed {
    /// How long one call takes (ns).
    pub(super) call_ns: f64,
    /// The time from the start of one call to the start of the next, of any thread (ns).
    pub(super) apart_ns: f64,
}

impl Stayed {
    /// The averages of `calls` calls, at least one, that took `took_ns` together, within `span_ns`.
    pub(super) fn new(calls: u64, took_ns: u64, span_ns: u64) -> Self {
        let each = |ns: u64| ns as f64 / calls as f64;
        Self { call_ns: each(took_ns), apart_ns: each(span_ns) }
    }

    /// These averages, moved towards newer ones by `part` (0 to 1) of the way.
    pub(super) fn towards(self, newer: Self, part: f64) -> Self {
        let mixed = |old: f64, new: f64| old + (new - old) * part;
        Self {
            call_ns: mixed(self.call_ns, newer.call_ns),
            apart_ns: mixed(self.apart_ns, newer.apart_ns),
        }
    }
}

/// The state of one unit of decision: a client's region, or the client.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Decided {
    pub(super) density: Option<Density>,
    pub(super) stayed: Option<Stayed>,
    pub(super) group: usize,
    /// Whether the loop may move it.
    pub(super) is_candidate: bool,
    pub(super) action: Action,
    pub(super) reason: Reason,
}

/// The inputs of a decision.
pub(super) struct Decide<'a> {
    pub(super) settings: &'a Settings,
    /// Shares of wide SIMD code up to this are negligible.
    pub(super) lowest: [f64; LEVELS],
    /// Whether the user's calls have to stay, whatever they bring the user.
    pub(super) is_denied: bool,
    /// Whether the client's calls have to stay because it is only observed.
    pub(super) is_held: bool,
    /// For clients that ask for cores, which the loop does not decide about: whether they need any.
    pub(super) asked: Option<bool>,
}

impl Decide<'_> {
    /// Decides about one unit. Returns the change, if there is one, and the action before it.
    pub(super) fn unit(
        &self,
        (client, site): (ClientId, Option<SiteId>),
        unit: &mut Decided,
        policy_loop: &mut dyn Loop,
    ) -> Option<(Change, Action)> {
        let (action, reason) = match self.asked {
            Some(is_needed) => self.about_asked(is_needed),
            None => self.by_loop(unit, policy_loop),
        };
        let was = unit.action;
        if (was, unit.reason) == (action, reason) {
            return None;
        }
        (unit.action, unit.reason) = (action, reason);
        Some((Change { client, site, action, reason }, was))
    }

    /// The decision about a client that asks for cores.
    fn about_asked(&self, is_needed: bool) -> (Action, Reason) {
        if self.settings.cores.may() == 0 {
            (Action::Stay, Reason::NoCore)
        } else if !is_needed {
            (Action::Stay, Reason::Unneeded)
        } else if self.is_denied {
            (Action::Stay, Reason::OthersShare)
        } else if self.is_held {
            (Action::Stay, Reason::Held { is_gain_expected: true })
        } else {
            (Action::Move, Reason::Asked)
        }
    }

    fn by_loop(&self, unit: &mut Decided, policy_loop: &mut dyn Loop) -> (Action, Reason) {
        let hindered = self.hindrance(unit);
        if unit.is_candidate != hindered.is_none() {
            unit.is_candidate = hindered.is_none();
            policy_loop.candidate(unit.group, unit.is_candidate);
        }
        if let Some(reason) = hindered {
            return (Action::Stay, reason);
        }
        if let Some(gain) = self.expected(unit) {
            policy_loop.expect(unit.group, gain);
        }
        policy_loop.decide(unit.group, &unit.density.unwrap_or_default())
    }

    /// The reason against moving the unit whatever the loop decides, if there is one.
    fn hindrance(&self, unit: &Decided) -> Option<Reason> {
        let Some(density) = unit.density else {
            return Some(Reason::NoEvidence);
        };
        let Some(level) = density.above(&self.lowest) else {
            return Some(Reason::Scalar);
        };
        if self.settings.cores.may() == 0 {
            return Some(Reason::NoCore);
        }
        let call_ns = unit.stayed.map_or(f64::INFINITY, |stayed| stayed.call_ns);
        let costs_more = self.prices(level).is_some_and(|(ns, costs)| costs.most_ns(call_ns) <= ns);
        if costs_more {
            Some(Reason::HandOverCostsMore)
        } else {
            let denied = self.is_denied.then_some(Reason::OthersShare);
            denied.or_else(|| self.is_held.then(|| self.held(unit)))
        }
    }

    /// The reason for a unit that is only observed. Without trials, only the model says whether
    /// moving it might pay.
    fn held(&self, unit: &Decided) -> Reason {
        Reason::Held { is_gain_expected: self.expected(unit).is_some_and(|gain| gain > 0.0) }
    }

    /// The time that handing a call over takes (ns), and the cost of a call at this level, if they
    /// are known. Above the highest known level, that level's cost applies. If there is no level
    /// above L0, the cost is zero.
    fn prices(&self, level: LicenseLevel) -> Option<(f64, &CallCost)> {
        static FREE: CallCost = CallCost::FREE;
        let Prices { hand_over_ns, calls } = self.settings.prices.as_ref()?;
        let index = (level.index() as usize).checked_sub(1)?;
        Some((*hand_over_ns, calls.get(index).or(calls.last()).unwrap_or(&FREE)))
    }

    /// The expected gain of moving the unit, in parts of performance: the cost of a call for the
    /// code until the next call, less the hand-over, less one core. `None` if the processor's
    /// prices are not known, or no call that stayed was observed. This is a guess: gaps are longer
    /// for clients with several threads, and are seldom all the same.
    fn expected(&self, unit: &Decided) -> Option<f64> {
        let stayed = unit.stayed?;
        let (hand_over_ns, costs) = self.prices(unit.density?.above(&self.lowest)?)?;
        let gap_ns = (stayed.apart_ns - stayed.call_ns).max(0.0);
        let lost = costs.in_gap(stayed.call_ns, gap_ns, gap_ns);
        let core = 1.0 / self.settings.cores.cores as f64;
        Some((lost.total_ns() - hand_over_ns) / stayed.apart_ns - core)
    }
}
