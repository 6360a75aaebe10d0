//! Modes: one for each question that the probe answers.

pub(crate) mod downclock;
pub(crate) mod episode;
pub(crate) mod instructions;
pub(crate) mod levels;
pub(crate) mod ramp;
pub(crate) mod recurrence;

pub use episode::RARE;

use std::fmt;
use std::str::FromStr;

/// The measurements. The first four are the modes of paper 000 §3.2.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// From the first vector instruction to the settled clock (DOWNCLOCK).
    Downclock,
    /// From the last vector instruction to the nominal clock (UPCLOCK).
    Upclock,
    /// From the first vector instruction to throttled execution (PRE_THROTTLE_TIME).
    Throttle,
    /// The number of instructions that cause the effect (REQUIRED_INSTRUCTIONS).
    Instructions,
    /// All costs of one isolated burst.
    Episode,
    /// Bursts at regular gaps.
    Recurrence,
    /// Settled clock and throughput by number of active CPUs.
    Levels,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 7] = [
        Self::Downclock,
        Self::Upclock,
        Self::Throttle,
        Self::Instructions,
        Self::Episode,
        Self::Recurrence,
        Self::Levels,
    ];

    /// The name on the command line and in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Downclock => "downclock",
            Self::Upclock => "upclock",
            Self::Throttle => "throttle",
            Self::Instructions => "instructions",
            Self::Episode => "episode",
            Self::Recurrence => "recurrence",
            Self::Levels => "levels",
        }
    }

    /// Whether the mode runs bursts of a length that the caller chooses.
    #[must_use]
    pub const fn has_bursts(self) -> bool {
        matches!(self, Self::Episode | Self::Recurrence)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Error: no mode has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown mode `{found}`, expected one of {}", Mode::ALL.map(Mode::name).join(", "))]
pub struct UnknownMode {
    /// The name.
    pub found: String,
}

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(name: &str) -> Result<Self, UnknownMode> {
        let mode = Self::ALL.into_iter().find(|mode| mode.name() == name);
        mode.ok_or_else(|| UnknownMode { found: name.to_owned() })
    }
}
