//! What moves code: marked regions to dedicated cores, and the cost of a hand-over; or threads to
//! wide cores.

use dimmer_policy::cost;
use dimmer_policy::server::cores;
use dimmer_policy::server::loops::{Definition, LOOPS};
use dimmer_policy::server::settings::{Prices, Settings};
use dimmer_processor::model::{Missing, Model};

/// The kind of move in a model that is the least price of handing a region over.
const LINE: &str = "cache-line within a package";

/// What decides where code runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moving {
    /// No mechanism: marks are ignored.
    #[default]
    None,
    /// The policy server with this loop.
    Loop(&'static Definition),
    /// No decision: all marked regions run on dedicated cores, always (paper 001 §6.2.1).
    Always,
    /// Marks are ignored: threads that execute wide code run on a few cores (paper 003).
    Specialise(Specialising),
    /// Marks are ignored: CPUs of a core do not run threads that have executed wide code beside
    /// others; rather one of them is idle (paper 003 §6.1).
    CoreScheduling,
    /// Regions stay: threads migrate between a fast and a slow core at marks (paper 004).
    Phases(Guided),
}

/// By what threads migrate at marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Guided {
    /// By a profile and a threshold, as in the paper.
    Profile,
    /// By what they learn while they run: on which core they do not lose much.
    Learning,
}

/// How cores are specialised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Specialising {
    /// As in the paper: a fixed number of wide cores, and a phase ends with the next system call.
    Paper,
    /// The number of wide cores follows the load, and threads stay near their data. If a thread is
    /// back before its move has paid, its next phases end later.
    Learning,
    /// Likewise, on a processor that the paper wishes for (§5): it raises an exception before a
    /// change of level, and tells when a thread has been quiet for some time.
    Told,
}

impl Specialising {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Paper, Self::Learning, Self::Told];
}

impl Moving {
    /// All mechanisms.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let loops = LOOPS.into_iter().map(Self::Loop);
        let specialise = Specialising::ALL.map(Self::Specialise);
        [Self::None]
            .into_iter()
            .chain(loops)
            .chain([Self::Always])
            .chain(specialise)
            .chain([Self::CoreScheduling])
            .chain([Guided::Profile, Guided::Learning].map(Self::Phases))
            .collect()
    }

    /// The mechanism of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|mechanism| mechanism.name() == name)
    }

    /// The mechanism in a few words.
    #[must_use]
    pub const fn summary(self) -> &'static str {
        match self {
            Self::None => "none: regions stay",
            Self::Loop(definition) => definition.summary,
            Self::Always => "none: all regions run on dedicated cores",
            Self::Specialise(Specialising::Paper) => {
                "none: threads run on wide cores from their first 512-bit instruction to their next system call"
            }
            Self::Specialise(Specialising::Learning) => {
                "none: the same, with as many wide cores as the load asks for, longer phases where they ended too soon, and threads near their data"
            }
            Self::CoreScheduling => {
                "none: threads that have executed 512-bit code share a core with their like alone"
            }
            Self::Phases(Guided::Profile) => {
                "none: threads migrate at marks, by the scenario's profile and threshold"
            }
            Self::Phases(Guided::Learning) => {
                "none: threads migrate at marks, by the time that each part is found to take on either core"
            }
            Self::Specialise(Specialising::Told) => {
                "none: the same, on a processor that says when code asks for a level, and when it no longer does"
            }
        }
    }

    /// The name on the command line and in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Loop(definition) => definition.name,
            Self::Always => "always",
            Self::Specialise(Specialising::Paper) => "specialise",
            Self::Specialise(Specialising::Learning) => "specialise-learning",
            Self::Specialise(Specialising::Told) => "specialise-told",
            Self::CoreScheduling => "core-scheduling",
            Self::Phases(Guided::Profile) => "phases",
            Self::Phases(Guided::Learning) => "phases-learning",
        }
    }
}

/// The component that decides.
#[derive(Clone, Debug, PartialEq)]
pub enum Decider {
    /// A policy server.
    Server(Settings),
    /// No decision: all regions are moved.
    Always(cores::Settings),
}

/// How marked regions are moved.
#[derive(Clone, Debug, PartialEq)]
pub struct RegionMoves {
    /// The component that decides.
    pub decider: Decider,
    /// The cost of handing a region over (ns). The dedicated core is occupied meanwhile. The way
    /// back takes as long again; only the thread waits for it.
    pub hand_over_ns: f64,
    /// A client reports to the server and receives its decision after this number of calls.
    pub update_calls: u64,
    /// Whether the last core serves only as a dedicated core, so that nothing is taken from other
    /// threads (paper 001 §6.2.3, the "virtual offloading core").
    pub is_last_extra: bool,
}

impl RegionMoves {
    /// Calls between two updates: paper 001 §6.2.3.
    pub const UPDATE_CALLS: u64 = 100;

    /// The settings of a mechanism on N cores of a processor; `None` for those that ignore marks.
    ///
    /// * `hand_over_ns`: there and back, if a better value than the model's is known. The model's
    ///   value is the price of one cache line each way, the least that a hand-over can cost.
    ///
    /// # Errors
    /// If neither `hand_over_ns` nor the model gives the cost of a hand-over.
    pub fn new(
        mechanism: Moving,
        model: &Model,
        cores: u32,
        hand_over_ns: Option<f64>,
    ) -> Result<Option<Self>, Missing> {
        let line = || model.price(LINE).map(|ns| ns.value);
        let hand_over_ns = hand_over_ns.map(|both| both / 2.0).or_else(line);
        let missing = || Missing {
            model: model.identity.name.clone(),
            key: "move (cache-line within a package)",
            needed_for: "handing regions over to other cores",
        };
        let cores = usize::try_from(cores).unwrap_or(usize::MAX);
        let decider = match mechanism {
            Moving::None | Moving::Specialise(_) | Moving::CoreScheduling | Moving::Phases(_) => {
                return Ok(None);
            }
            Moving::Loop(definition) => {
                let hand_over_ns = 2.0 * hand_over_ns.ok_or_else(missing)?;
                let calls = cost::of_levels(model).ok();
                let prices = calls.map(|calls| Prices { hand_over_ns, calls });
                Decider::Server((definition.settings)(cores, prices))
            }
            Moving::Always => Decider::Always(cores::Settings::of(cores)),
        };
        Ok(Some(Self {
            decider,
            hand_over_ns: hand_over_ns.ok_or_else(missing)?,
            update_calls: Self::UPDATE_CALLS,
            is_last_extra: false,
        }))
    }
}
