//! Instruction classes: an instruction's demand on the clock.
//!
//! A class is a weight and a width. "Heavy" means floating-point arithmetic, integer multiplication
//! and fused multiply-add; every other vector instruction is "light" (Intel's optimisation manual,
//! as quoted in the AVXFREQ thesis, chapter 3).

use std::fmt;
use std::str::FromStr;

/// The class of an instruction. The class of a stretch of code is the most demanding class in it.
/// Ordered by demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InstructionClass {
    /// General-purpose registers, or one element of a vector register.
    Scalar,
    /// 128-bit vectors: moves, logic, integer addition, shuffles.
    Light128,
    /// 128-bit vectors: floating point and multiplication.
    Heavy128,
    /// 256-bit vectors: moves, logic, integer addition, shuffles.
    Light256,
    /// 256-bit vectors: floating point and multiplication.
    Heavy256,
    /// 512-bit vectors: moves, logic, integer addition, shuffles.
    Light512,
    /// 512-bit vectors: floating point and multiplication.
    Heavy512,
    /// Matrix tiles (AMX).
    Tile,
}

impl InstructionClass {
    /// All classes, least demanding first.
    pub const ALL: [Self; 8] = [
        Self::Scalar,
        Self::Light128,
        Self::Heavy128,
        Self::Light256,
        Self::Heavy256,
        Self::Light512,
        Self::Heavy512,
        Self::Tile,
    ];

    /// The name in models, on the command line and in results: `heavy-512`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Light128 => "light-128",
            Self::Heavy128 => "heavy-128",
            Self::Light256 => "light-256",
            Self::Heavy256 => "heavy-256",
            Self::Light512 => "light-512",
            Self::Heavy512 => "heavy-512",
            Self::Tile => "tile",
        }
    }
}

impl fmt::Display for InstructionClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is not an instruction class.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown instruction class `{found}`, expected one of {}", accepted())]
pub struct UnknownClass {
    /// The unknown name.
    pub found: String,
}

fn accepted() -> String {
    InstructionClass::ALL.map(InstructionClass::name).join(", ")
}

impl FromStr for InstructionClass {
    type Err = UnknownClass;

    fn from_str(name: &str) -> Result<Self, UnknownClass> {
        Self::ALL
            .into_iter()
            .find(|class| class.name() == name)
            .ok_or_else(|| UnknownClass { found: name.to_owned() })
    }
}
