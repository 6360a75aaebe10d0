//! What is done with a region's calls, and why.

use dimmer_processor::units::LicenseLevel;

use super::evidence::{Density, LEVELS};
use super::settings::{Prices, Settings};
use super::thresholds::Thresholds;
use super::trials::Trials;
use super::{ClientId, SiteId};
use crate::cost::CallCost;

/// What becomes of a site's calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Action {
    /// They run where they are.
    #[default]
    Stay,
    /// They run on dedicated cores.
    Offload,
}

/// Why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reason {
    /// Stays: nothing is known of it.
    #[default]
    NoEvidence,
    /// Stays: there is no core that could be dedicated.
    NoCore,
    /// Stays: it runs no wide-vector code to speak of.
    Scalar,
    /// Stays: a core for it would be taken from other users.
    OthersShare,
    /// Stays: a call cannot cost the code after it as much as handing it over takes.
    HandOverDearer,
    /// Stays: it is below the threshold of every level.
    Sparse,
    /// Is offloaded: it is above the threshold of this level.
    Dense(LicenseLevel),
    /// Stays: its turn to be tried has not come.
    Untried,
    /// Is where it is to find out how that is.
    Tried,
    /// Stays: clients did no better with it offloaded.
    NotWorth,
    /// Is offloaded: by the processor's model clients should do better so.
    Expected,
    /// Is offloaded: clients did better so.
    Worth,
}

/// A decision that differs from the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Whose.
    pub client: ClientId,
    /// Which region's; `None`: of all the client's regions.
    pub site: Option<SiteId>,
    /// What is done with its calls from now on.
    pub action: Action,
    /// Why.
    pub reason: Reason,
}

/// Calls that stay, on average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stayed {
    /// How long one takes (ns).
    pub(super) call_ns: f64,
    /// How long it is from the begin of one to that of the next, of any thread (ns).
    pub(super) apart_ns: f64,
}

impl Stayed {
    /// Of so many calls, at least one, that took so long together in so long a time (ns).
    pub(super) fn new(calls: u64, took_ns: u64, span_ns: u64) -> Self {
        let each = |ns: u64| ns as f64 / calls as f64;
        Self { call_ns: each(took_ns), apart_ns: each(span_ns) }
    }

    /// Moved towards newer ones by `part` (0 to 1) of the way.
    pub(super) fn towards(self, newer: Self, part: f64) -> Self {
        let mixed = |old: f64, new: f64| old + (new - old) * part;
        Self {
            call_ns: mixed(self.call_ns, newer.call_ns),
            apart_ns: mixed(self.apart_ns, newer.apart_ns),
        }
    }
}

/// What is decided as one: a client's region, or the client.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Decided {
    pub(super) density: Option<Density>,
    pub(super) stayed: Option<Stayed>,
    pub(super) group: usize,
    /// Whether the trials may move it.
    pub(super) is_candidate: bool,
    pub(super) action: Action,
    pub(super) reason: Reason,
}

/// The state of the loop.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum State {
    Thresholds(Thresholds),
    Trials(Trials),
}

/// What deciding needs.
pub(super) struct Decide<'a> {
    pub(super) settings: &'a Settings,
    /// Shares of wide-vector code up to here are none to speak of.
    pub(super) lowest: [f64; LEVELS],
    /// Whether the user's calls are to stay, whatever they bring the user.
    pub(super) is_denied: bool,
}

impl Decide<'_> {
    /// Decides about one; the change, if it is one, and what was done before.
    pub(super) fn unit(
        &self,
        (client, site): (ClientId, Option<SiteId>),
        unit: &mut Decided,
        state: &mut State,
    ) -> Option<(Change, Action)> {
        let hindered = self.hindrance(unit);
        if let State::Trials(trials) = state
            && unit.is_candidate != hindered.is_none()
        {
            unit.is_candidate = hindered.is_none();
            trials.candidate(unit.group, unit.is_candidate);
        }
        if let (None, State::Trials(trials), Some(gain)) =
            (hindered, &mut *state, self.expected(unit))
        {
            trials.expect(unit.group, gain);
        }
        let density = unit.density.unwrap_or_default();
        let (action, reason) = match (hindered, &*state) {
            (Some(reason), _) => (Action::Stay, reason),
            (None, State::Thresholds(state)) => {
                density.above(state.thresholds()).map_or((Action::Stay, Reason::Sparse), |level| {
                    (Action::Offload, Reason::Dense(level))
                })
            }
            (None, State::Trials(trials)) => {
                let is_moved = trials.is_moved(unit.group);
                let reason = if trials.is_tried(unit.group) {
                    Reason::Tried
                } else if trials.is_known_better(unit.group) {
                    Reason::Worth
                } else if is_moved {
                    Reason::Expected
                } else if trials.gain(unit.group).is_none() {
                    Reason::Untried
                } else {
                    Reason::NotWorth
                };
                (if is_moved { Action::Offload } else { Action::Stay }, reason)
            }
        };
        let was = unit.action;
        if (was, unit.reason) == (action, reason) {
            return None;
        }
        (unit.action, unit.reason) = (action, reason);
        Some((Change { client, site, action, reason }, was))
    }

    /// What speaks against offloading it, whatever the loop says.
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
        let is_dearer = self.prices(level).is_some_and(|(ns, costs)| costs.most_ns() <= ns);
        match is_dearer {
            true => Some(Reason::HandOverDearer),
            false => self.is_denied.then_some(Reason::OthersShare),
        }
    }

    /// What handing a call over takes (ns), and what one at this level costs, if that is known;
    /// beyond the highest known, what one there does, which is nothing where there is no level
    /// above L0.
    fn prices(&self, level: LicenseLevel) -> Option<(f64, &CallCost)> {
        let Prices { hand_over_ns, calls } = self.settings.prices.as_ref()?;
        let index = (level.index() as usize).checked_sub(1)?;
        Some((*hand_over_ns, calls.get(index).or(calls.last()).unwrap_or(&CallCost::FREE)))
    }

    /// What moving it should bring, in parts of performance, by what a call costs the code until
    /// the next one, if a core is lost by it; `None` if the processor's prices are not known. It is
    /// a guess: gaps are longer for clients with several threads, and seldom all the same.
    fn expected(&self, unit: &Decided) -> Option<f64> {
        let stayed = unit.stayed?;
        let (hand_over_ns, costs) = self.prices(unit.density?.above(&self.lowest)?)?;
        let lost = costs.in_gap((stayed.apart_ns - stayed.call_ns).max(0.0));
        let core = 1.0 / self.settings.cores.cores as f64;
        Some((lost.total_ns() - hand_over_ns) / stayed.apart_ns - core)
    }
}
