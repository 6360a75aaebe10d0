//! The settings of a policy server: the loop and its constants, the unit of a decision, and the
//! measure of performance.

use dimmer_processor::units::Nanos;

use super::cores;
use super::loops::{Chosen, thresholds, trials};
use super::performance::{Metric, Mixing};
use crate::cost::CallCost;

/// The unit of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A client, as in paper 001 §4.2.2.
    Client,
    /// Each region of a client (the paper's future work, §7.1).
    Site,
}

/// What a call costs where it is, and what moving it costs: from the probe, through the processor's
/// model.
#[derive(Clone, Debug, PartialEq)]
pub struct Prices {
    /// The time that handing a call over and coming back takes (ns).
    pub hand_over_ns: f64,
    /// What calls at L1, L2, ... cost: [`crate::cost::of_levels`].
    pub calls: Vec<CallCost>,
}

/// How a server decides.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The loop that decides, with its constants.
    pub decides: Chosen,
    /// The unit of a decision.
    pub unit: Unit,
    /// The measure of a client's performance.
    pub metric: Metric,
    /// How clients' performances are combined into one.
    pub mixing: Mixing,
    /// How many cores may be dedicated, and when.
    pub cores: cores::Settings,
    /// The clocks of L1, L2, ... as parts of the clock at L0, for evidence by timing; may be empty.
    pub clocks: Vec<f64>,
    /// What calls and hand-overs cost; `None` if that is not known and the loop has to find out.
    pub prices: Option<Prices>,
}

impl Settings {
    /// The prototype of paper 001 on `cores` cores, of which it dedicates one: per client, by call
    /// rate, summed up.
    #[must_use]
    pub fn paper(cores: usize) -> Self {
        Self {
            decides: Chosen::new(thresholds::Settings::PAPER),
            unit: Unit::Client,
            metric: Metric::CallRate,
            mixing: Mixing::Sum,
            // §4.3.3: "our prototype does not automatically add more than one HPWVI core".
            cores: cores::Settings { most: 1, ..cores::Settings::of(cores) },
            clocks: Vec::new(),
            prices: None,
        }
    }

    /// The recommended settings for `cores` cores: per site, by trials, every client counts the
    /// same.
    #[must_use]
    pub fn usual(cores: usize) -> Self {
        Self {
            decides: Chosen::new(trials::Settings::USUAL),
            unit: Unit::Site,
            mixing: Mixing::Fair,
            // A trial that leaves all calls where they are needs the core back. Otherwise it would
            // find that moving costs no core.
            cores: cores::Settings { unused: Some(Nanos::ZERO), ..cores::Settings::of(cores) },
            ..Self::paper(cores)
        }
    }
}
