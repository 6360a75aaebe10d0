//! What can be chosen of a policy server: the loop and its constants, what is decided as one, what
//! counts as performance.

use super::evidence::LEVELS;
use super::performance::{Metric, Mixing};
use super::{cores, thresholds, trials};
use crate::cost::CallCost;
use crate::license::Time;

/// What is decided as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A client, as in paper 001 §4.2.2.
    Client,
    /// Each region of a client (its future work, §7.1).
    Site,
}

/// The feedback loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loop {
    /// The paper's.
    Thresholds(thresholds::Settings),
    /// The one that tries.
    Trials(trials::Settings),
}

/// What a call costs where it is, against what moving it does: from the probe, by the processor's
/// model.
#[derive(Clone, Debug, PartialEq)]
pub struct Prices {
    /// What handing a call over and coming back takes (ns).
    pub hand_over_ns: f64,
    /// What calls at L1, L2, ... cost: [`crate::cost::of_levels`].
    pub calls: Vec<CallCost>,
}

/// How a server decides.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The feedback loop.
    pub decides: Loop,
    /// What is decided as one.
    pub unit: Unit,
    /// What is taken for a client's performance.
    pub metric: Metric,
    /// How clients' performances become one.
    pub mixing: Mixing,
    /// How many cores may be dedicated, and when.
    pub cores: cores::Settings,
    /// The clock of L1, L2, ... as a part of that of L0, for evidence by timing; may be empty.
    pub clocks: Vec<f64>,
    /// What calls and hand-overs cost; `None` if that is not known, and the loop has to find out.
    pub prices: Option<Prices>,
}

impl Settings {
    /// Paper 001's prototype on so many cores, of which it dedicates one: per client, by call rate,
    /// summed up.
    #[must_use]
    pub fn paper(cores: usize) -> Self {
        Self {
            decides: Loop::Thresholds(thresholds::Settings::PAPER),
            unit: Unit::Client,
            metric: Metric::CallRate,
            mixing: Mixing::Sum,
            // §4.3.3: "our prototype does not automatically add more than one HPWVI core".
            cores: cores::Settings { most: 1, ..cores::Settings::of(cores) },
            clocks: Vec::new(),
            prices: None,
        }
    }

    /// What is recommended, on so many cores: per site, by trials, every client counting the same.
    #[must_use]
    pub fn usual(cores: usize) -> Self {
        Self {
            decides: Loop::Trials(trials::Settings::USUAL),
            unit: Unit::Site,
            mixing: Mixing::Fair,
            // A trial of leaving all where it is has to have the core back, or it would find that
            // moving costs none.
            cores: cores::Settings { unused_ns: 0, ..cores::Settings::of(cores) },
            ..Self::paper(cores)
        }
    }

    /// Shares of wide-vector code up to here are none to speak of.
    pub(super) fn lowest(&self) -> [f64; LEVELS] {
        match &self.decides {
            Loop::Thresholds(settings) => [settings.lowest; LEVELS],
            Loop::Trials(_) => [thresholds::Settings::PAPER.lowest; LEVELS],
        }
    }

    pub(super) const fn window_ns(&self) -> Time {
        match &self.decides {
            Loop::Thresholds(settings) => settings.window_ns,
            Loop::Trials(settings) => settings.window_ns,
        }
    }
}
