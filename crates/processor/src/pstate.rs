//! P-states as the registers of AMD's and Intel's processors hold them: decoding, encoding, and the
//! bounds of a change. `dimmer-host` reads and writes the registers.

mod amd;
mod bounds;
mod intel;

pub use self::amd::{Definition, Layout};
pub use self::bounds::{BoundsError, States};
pub use self::intel::Limits;

/// Bits of a register: the lowest one and their number; none, if the number is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Field {
    low: u32,
    bits: u32,
}

impl Field {
    const fn new(low: u32, bits: u32) -> Self {
        Self { low, bits }
    }

    /// The largest value that fits.
    const fn largest(self) -> u64 {
        (1 << self.bits) - 1
    }

    /// The value of these bits of `register`.
    const fn of(self, register: u64) -> u64 {
        register >> self.low & self.largest()
    }

    /// `register` with these bits replaced by `value`, which is cut to their number.
    const fn set(self, register: u64, value: u64) -> u64 {
        register & !(self.largest() << self.low) | (value & self.largest()) << self.low
    }
}
