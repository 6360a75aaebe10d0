//! Limits of the ratios that software may request of Intel's processors. A P-state is a ratio to
//! the bus clock of 100 MHz; the processor chooses the voltage, which no register of a P-state has.
//!
//! Source: Intel SDM volume 4, MSR_PLATFORM_INFO (CEH), IA32_PERF_STATUS (198H), IA32_PERF_CTL
//! (199H), MSR_TURBO_RATIO_LIMIT (1ADH), as Haswell and later processors have them.

use super::Field;
use crate::units::KiloHertz;

/// The ratio in IA32_PERF_STATUS and in IA32_PERF_CTL.
const RATIO: Field = Field::new(8, 8);
/// The same bits of MSR_PLATFORM_INFO: the highest ratio without turbo.
const BASE: Field = RATIO;
/// The lowest ratio, as MSR_PLATFORM_INFO calls it "maximum efficiency ratio".
const LOWEST: Field = Field::new(40, 8);

/// The ratios of a processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The lowest ratio.
    pub lowest: u8,
    /// The highest ratio without turbo.
    pub base: u8,
    /// The highest ratios with turbo, by the number of active cores, fewest cores first; from
    /// Skylake-SP on, by groups of that number. Empty without turbo.
    pub turbo: Vec<u8>,
}

impl Limits {
    /// The limits in MSR_PLATFORM_INFO and MSR_TURBO_RATIO_LIMIT; `None` if they hold none, as in
    /// virtual machines.
    #[must_use]
    pub fn decode(platform_info: u64, turbo_ratio_limit: u64) -> Option<Self> {
        let (lowest, base) = (byte(LOWEST, platform_info), byte(BASE, platform_info));
        let turbo = turbo_ratio_limit.to_le_bytes().into_iter().filter(|&ratio| ratio > 0);
        let limits = Self { lowest, base, turbo: turbo.collect() };
        (lowest > 0 && lowest <= base).then_some(limits)
    }

    /// The highest ratio that can be requested.
    #[must_use]
    pub fn highest(&self) -> u8 {
        self.turbo.iter().copied().max().unwrap_or(0).max(self.base)
    }

    /// The frequency of a ratio.
    #[must_use]
    pub const fn frequency(ratio: u8) -> KiloHertz {
        KiloHertz::from_mhz(100 * ratio as u64)
    }

    /// The ratio in IA32_PERF_STATUS or IA32_PERF_CTL.
    #[must_use]
    pub fn ratio(register: u64) -> u8 {
        byte(RATIO, register)
    }

    /// IA32_PERF_CTL with another ratio; its other bits, such as the switch for turbo, stay.
    #[must_use]
    pub const fn with_ratio(perf_ctl: u64, ratio: u8) -> u64 {
        RATIO.set(perf_ctl, ratio as u64)
    }
}

/// A field of at most 8 bits.
fn byte(field: Field, register: u64) -> u8 {
    u8::try_from(field.of(register)).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_the_limits_of_the_i7_4770() {
        // Paper 002, section 2.2: P8 to P39, P34 without turbo. The turbo ratios are Intel's.
        let limits = Limits::decode(0x8_0838_f301_2200, 0x2526_2727).unwrap();
        assert_eq!((limits.lowest, limits.base, limits.highest()), (8, 34, 39));
        assert_eq!(limits.turbo, [39, 39, 38, 37]);
        assert_eq!(Limits::frequency(39), KiloHertz::from_mhz(3900));
    }

    #[test]
    fn a_request_changes_the_ratio_alone() {
        assert_eq!(Limits::with_ratio(0x1_0000_22ff, 8), 0x1_0000_08ff);
        assert_eq!(Limits::ratio(0x1_0000_22ff), 34);
    }

    #[test]
    fn empty_registers_have_no_limits() {
        assert_eq!(Limits::decode(0, 0), None);
        let without_turbo = Limits::decode(8 << 40 | 34 << 8, 0).unwrap();
        assert_eq!(without_turbo.highest(), 34);
    }
}
