//! Moving marked regions to dedicated cores: by whom it is decided, and what a hand-over takes.

use dimmer_policy::cost;
use dimmer_policy::server::cores;
use dimmer_policy::server::settings::{Prices, Settings};
use dimmer_processor::model::{Missing, Model};

/// The kind of move that handing a region over takes at least.
const LINE: &str = "cache-line within a package";

/// Who decides where marked regions run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mechanism {
    /// Nobody: marks mean nothing.
    #[default]
    None,
    /// The policy server as paper 001 has it.
    OffloadPaper,
    /// The policy server with its own loop ([`dimmer_policy::server::trials`]).
    Offload,
    /// Nobody: all of them run on dedicated cores, always (paper 001 §6.2.1).
    OffloadAlways,
}

impl Mechanism {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::None, Self::OffloadPaper, Self::Offload, Self::OffloadAlways];

    /// The name on the command line and in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::OffloadPaper => "offload-paper",
            Self::Offload => "offload",
            Self::OffloadAlways => "offload-always",
        }
    }
}

/// What decides.
#[derive(Clone, Debug, PartialEq)]
pub enum Decider {
    /// A policy server.
    Server(Settings),
    /// Nobody: all regions are moved.
    Always(cores::Settings),
}

/// How marked regions are moved.
#[derive(Clone, Debug, PartialEq)]
pub struct Offload {
    /// What decides.
    pub decider: Decider,
    /// What handing a region over takes, for which the dedicated core is kept, and as much again
    /// its way back, for which the thread alone waits (ns).
    pub hand_over_ns: f64,
    /// After so many calls a client tells the server what it did, and hears what is decided.
    pub update_calls: u64,
    /// Whether the last core is only there to be dedicated, so that nothing is taken from other
    /// threads (paper 001 §6.2.3, the "virtual offloading core").
    pub is_last_extra: bool,
}

impl Offload {
    /// Calls between two updates: paper 001 §6.2.3.
    pub const UPDATE_CALLS: u64 = 100;

    /// As a mechanism has it, on so many cores of a processor; `None` for [`Mechanism::None`].
    ///
    /// * `hand_over_ns`: there and back, if that is known better than from the model, whose price
    ///   of a cache line there and one back is the least that it can be.
    ///
    /// # Errors
    /// If neither says what a hand-over takes.
    pub fn new(
        mechanism: Mechanism,
        model: &Model,
        cores: u32,
        hand_over_ns: Option<f64>,
    ) -> Result<Option<Self>, Missing> {
        let line = || model.moves.iter().find(|one| one.kind == LINE).map(|one| one.ns.value);
        let hand_over_ns = hand_over_ns.map(|both| both / 2.0).or_else(line);
        let missing = || Missing {
            model: model.identity.name.clone(),
            key: "move `cache-line within a package`",
            needed_for: "handing regions over to other cores",
        };
        let cores = usize::try_from(cores).unwrap_or(usize::MAX);
        let decider = match mechanism {
            Mechanism::None => return Ok(None),
            Mechanism::OffloadPaper => Decider::Server(Settings::paper(cores)),
            Mechanism::Offload => {
                let hand_over_ns = 2.0 * hand_over_ns.ok_or_else(missing)?;
                let calls = cost::of_levels(model).ok();
                let prices = calls.map(|calls| Prices { hand_over_ns, calls });
                Decider::Server(Settings { prices, ..Settings::usual(cores) })
            }
            Mechanism::OffloadAlways => Decider::Always(cores::Settings::of(cores)),
        };
        Ok(Some(Self {
            decider,
            hand_over_ns: hand_over_ns.ok_or_else(missing)?,
            update_calls: Self::UPDATE_CALLS,
            is_last_extra: false,
        }))
    }
}
