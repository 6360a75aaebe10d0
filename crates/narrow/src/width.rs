//! The widest vectors that a program may use.

use std::fmt;
use std::str::FromStr;

use crate::NarrowError;

/// The widest vectors that remain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Width {
    /// 128 bits: SSE only. AVX disappears as a whole, as its 128-bit instructions are not a feature
    /// of their own.
    Bits128,
    /// 256 bits: AVX and AVX2 stay; AVX-512, AVX10 and AMX disappear.
    Bits256,
}

impl Width {
    /// The width in bits.
    #[must_use]
    pub fn bits(self) -> u32 {
        match self {
            Self::Bits128 => 128,
            Self::Bits256 => 256,
        }
    }
}

impl fmt::Display for Width {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bits().fmt(f)
    }
}

impl FromStr for Width {
    type Err = NarrowError;

    fn from_str(text: &str) -> Result<Self, NarrowError> {
        match text {
            "128" => Ok(Self::Bits128),
            "256" => Ok(Self::Bits256),
            _ => Err(NarrowError::UnknownWidth(text.to_owned())),
        }
    }
}
