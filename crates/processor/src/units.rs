//! Quantities as types that combine a number and its unit.
//!
//! Each type holds one private integer. Constructors and getters name the unit, and no conversion
//! is silent: there is no `From<u64>`. Instants and spans of time are different types. Identifiers
//! of different things are different types.

mod time;

use std::fmt;

pub use self::time::{Moment, Nanos, Picos, Time};

/// Declares a quantity: an integer newtype whose constructor and getter name the unit.
macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident($repr:ty), $from:ident, $get:ident, $suffix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($repr);

        impl $name {
            #[doc = concat!("The quantity of `value` ", $suffix, ".")]
            #[must_use]
            pub const fn $from(value: $repr) -> Self {
                Self(value)
            }

            #[doc = concat!("The value in ", $suffix, ".")]
            #[must_use]
            pub const fn $get(self) -> $repr {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} {}", self.0, $suffix)
            }
        }
    };
}

/// Declares an identifier: an integer newtype without arithmetic.
macro_rules! identifier {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl $name {
            /// The identifier numbered `index`.
            #[must_use]
            pub const fn new(index: u32) -> Self {
                Self(index)
            }

            /// The number, as the kernel or the model writes it.
            #[must_use]
            pub const fn index(self) -> u32 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

quantity!(
    /// A frequency. 1 kHz resolves every P-state and every measured clock that matters here.
    KiloHertz(u64), from_khz, khz, "kHz"
);
quantity!(
    /// A span counted by the time-stamp counter; a [`TscFrequency`] turns it into time.
    TscTicks(u64), from_ticks, ticks, "TSC ticks"
);
quantity!(
    /// Power.
    MilliWatts(u64), from_mw, mw, "mW"
);
quantity!(
    /// Electrical potential. 1 µV resolves every step of a processor's voltages.
    MicroVolts(u64), from_uv, uv, "µV"
);
quantity!(
    /// A size in memory.
    KibiBytes(u64), from_kib, kib, "KiB"
);

identifier!(
    /// A CPU (hardware thread), numbered as Linux numbers it.
    CpuId
);
identifier!(
    /// A physical core, numbered from 0 over the whole machine, in the order of the cores' first
    /// CPUs.
    CoreId
);
identifier!(
    /// A package (socket), as firmware numbers it.
    PackageId
);
identifier!(
    /// A NUMA node, as the kernel numbers it.
    NodeId
);
identifier!(
    /// A license level: 0 is the unrestricted clock, each higher level a lower cap.
    LicenseLevel
);

impl KiloHertz {
    /// The frequency of `mhz` MHz.
    #[must_use]
    pub const fn from_mhz(mhz: u64) -> Self {
        Self(mhz * 1000)
    }

    /// The value in GHz, for people and for ratios.
    #[must_use]
    pub fn ghz(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl MicroVolts {
    /// The potential of `mv` mV.
    #[must_use]
    pub const fn from_mv(mv: u64) -> Self {
        Self(mv * 1000)
    }

    /// The value in mV, for people.
    #[must_use]
    pub fn mv(self) -> f64 {
        self.0 as f64 / 1e3
    }
}

/// The whole number at or below a value: 0 for what is negative or not a number, and [`u64::MAX`]
/// for what is larger.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates, and gives 0 for what is not a number"
)]
#[must_use]
pub const fn whole(value: f64) -> u64 {
    value as u64
}

/// The whole number nearest to a value, bounded as that of [`whole`].
#[must_use]
pub fn nearest(value: f64) -> u64 {
    whole(value.round())
}

/// Frequency of a machine's time-stamp counter: the only way to convert ticks to time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TscFrequency {
    /// Ticks per nanosecond, that is, GHz. Finite and above zero.
    ghz: f64,
}

impl TscFrequency {
    /// A counter with the frequency `khz`; `None` for zero.
    #[must_use]
    pub fn new(khz: KiloHertz) -> Option<Self> {
        (khz.khz() > 0).then(|| Self { ghz: khz.ghz() })
    }

    /// Ticks per nanosecond.
    #[must_use]
    pub const fn ghz(self) -> f64 {
        self.ghz
    }

    /// The time that `ticks` took (ns), not rounded.
    #[must_use]
    pub fn ns(self, ticks: TscTicks) -> f64 {
        ticks.ticks() as f64 / self.ghz
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_whole_within_bounds() {
        let values = [f64::NAN, f64::NEG_INFINITY, -0.6, 0.5, 1.4, 1.5, 1e300, f64::INFINITY];
        assert_eq!(values.map(whole), [0, 0, 0, 0, 1, 1, u64::MAX, u64::MAX]);
        assert_eq!(values.map(nearest), [0, 0, 0, 1, 1, 2, u64::MAX, u64::MAX]);
    }
}
