//! The P-states of one of AMD's processors, and what they may be redefined to.
//!
//! A processor's own definitions, those that its firmware has set, are known to work. A changed one
//! stays within them: never faster or with more voltage than the highest of them, and never with
//! less voltage than the slowest of them that is at least as fast.

use super::amd::{Definition, Layout};
use crate::units::{KiloHertz, MicroVolts};

/// The P-states of a processor, numbered as its definitions are: P0 is the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct States {
    layout: Layout,
    base: u8,
    raw: [u64; Self::COUNT],
}

/// Why a P-state cannot be redefined so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BoundsError {
    /// There is no such P-state, or it is not in use.
    #[error("P{number} is not in use; in use are {enabled}")]
    NotEnabled {
        /// Its number.
        number: u8,
        /// Those in use.
        enabled: String,
    },
    /// The frequency would change the machine's time.
    #[error(
        "P{number} keeps its {frequency}, because the time-stamp counter counts at it; define \
         another P-state"
    )]
    CountsTime {
        /// Its number.
        number: u8,
        /// Its frequency.
        frequency: String,
    },
    /// The frequency is not one of the processor's.
    #[error("{asked} is outside of this processor's {lowest} to {highest}")]
    Frequency {
        /// The frequency.
        asked: String,
        /// The lowest frequency that a definition can hold.
        lowest: String,
        /// The highest frequency of the processor's own definitions.
        highest: String,
    },
    /// The voltage is too high, or too low for the frequency.
    #[error("{asked} is outside of {least} to {highest}, which this processor uses at {frequency}")]
    Voltage {
        /// The voltage.
        asked: String,
        /// That of the slowest own definition that is at least as fast.
        least: String,
        /// The highest voltage of the processor's own definitions.
        highest: String,
        /// The frequency.
        frequency: String,
    },
    /// Without voltages nothing can be checked.
    #[error("no public manual gives the voltages of this model, so its P-states stay as they are")]
    NoVoltages,
}

impl States {
    /// The number of P-states that a processor can have.
    pub const COUNT: usize = 8;

    /// P-states with these definitions. `base` is the first one that software can request; those
    /// before it are boosted, and the processor alone chooses them.
    #[must_use]
    pub const fn new(layout: Layout, base: u8, raw: [u64; Self::COUNT]) -> Self {
        Self { layout, base, raw }
    }

    /// The first P-state that software can request.
    #[must_use]
    pub const fn base(&self) -> u8 {
        self.base
    }

    /// Whether the voltages of this model are known.
    #[must_use]
    pub const fn has_voltages(&self) -> bool {
        self.layout.has_voltages()
    }

    /// All P-states, in use or not, with their numbers.
    pub fn all(&self) -> impl Iterator<Item = (u8, Definition)> + '_ {
        (0..).zip(self.raw).map(|(number, raw)| (number, self.layout.decode(raw)))
    }

    /// The P-states in use, fastest first, with their numbers.
    fn enabled(&self) -> impl Iterator<Item = (u8, Definition)> + '_ {
        self.all().filter(|(_, definition)| definition.is_enabled)
    }

    /// What a register of [`Self::redefined`] says.
    #[must_use]
    pub fn decode(&self, raw: u64) -> Definition {
        self.layout.decode(raw)
    }

    /// The definition of a P-state in use.
    #[must_use]
    pub fn definition(&self, number: u8) -> Option<Definition> {
        self.enabled().find(|(known, _)| *known == number).map(|(_, definition)| definition)
    }

    /// The numbers of the P-states in use, for messages.
    #[must_use]
    fn numbers(&self) -> String {
        self.enabled().map(|(number, _)| format!("P{number}")).collect::<Vec<_>>().join(", ")
    }

    /// The register of a P-state with another frequency and voltage: the nearest frequency that it
    /// can hold, and the least voltage that is not below the one asked for. Without a voltage, the
    /// least one that the frequency needs.
    ///
    /// # Errors
    /// [`BoundsError`].
    pub fn redefined(
        &self,
        number: u8,
        frequency: KiloHertz,
        voltage: Option<MicroVolts>,
    ) -> Result<u64, BoundsError> {
        let not_enabled = || BoundsError::NotEnabled { number, enabled: self.numbers() };
        let own = self.definition(number).ok_or_else(not_enabled)?;
        let raw = self.raw.get(usize::from(number)).copied().ok_or_else(not_enabled)?;
        if !self.has_voltages() {
            return Err(BoundsError::NoVoltages);
        }
        let raw = self.with_frequency(raw, frequency)?;
        let becomes = self.layout.decode(raw).frequency;
        if number == self.base && becomes != own.frequency {
            let frequency = own.frequency.map(mhz).unwrap_or_default();
            return Err(BoundsError::CountsTime { number, frequency });
        }
        self.with_voltage(raw, voltage)
    }

    fn with_frequency(&self, raw: u64, asked: KiloHertz) -> Result<u64, BoundsError> {
        let own = self.enabled().filter_map(|(_, definition)| definition.frequency);
        let highest = own.max().unwrap_or(KiloHertz::from_khz(0));
        let lowest = self.layout.lowest();
        if asked < lowest || asked > highest {
            let (asked, lowest, highest) = (mhz(asked), mhz(lowest), mhz(highest));
            return Err(BoundsError::Frequency { asked, lowest, highest });
        }
        // The clock generator runs no faster than in one of the processor's own definitions.
        let enabled = self.raw.iter().filter(|raw| self.layout.decode(**raw).is_enabled);
        let most = enabled.map(|raw| self.layout.multiplier(*raw)).max().unwrap_or(0);
        Ok(self.layout.with_frequency(raw, asked, highest, most))
    }

    fn with_voltage(&self, raw: u64, asked: Option<MicroVolts>) -> Result<u64, BoundsError> {
        let frequency = self.layout.decode(raw).frequency.unwrap_or(KiloHertz::from_khz(0));
        let of_all = || self.enabled().filter_map(|(_, one)| Some((one.frequency?, one.voltage?)));
        let highest = of_all().map(|(_, voltage)| voltage).max();
        let as_fast = of_all().filter(|(own, _)| *own >= frequency);
        let least = as_fast.map(|(_, voltage)| voltage).min();
        let (Some(least), Some(highest)) = (least, highest) else {
            return Err(BoundsError::NoVoltages);
        };
        let wanted = asked.unwrap_or(least);
        let raw = self.layout.with_voltage(raw, wanted);
        let becomes = self.layout.decode(raw).voltage;
        let is_enough = |becomes| becomes >= wanted && (least..=highest).contains(&becomes);
        if becomes.is_some_and(is_enough) {
            return Ok(raw);
        }
        let (asked, least, highest) = (millivolts(wanted), millivolts(least), millivolts(highest));
        Err(BoundsError::Voltage { asked, least, highest, frequency: mhz(frequency) })
    }
}

/// A frequency in the unit of the command line.
fn mhz(frequency: KiloHertz) -> String {
    format!("{} MHz", frequency.khz() / 1000)
}

/// A voltage in the unit of the command line.
fn millivolts(voltage: MicroVolts) -> String {
    format!("{} mV", voltage.mv())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The Ryzen 1600X of paper 004, whose definitions have the firmware's voltages.
    fn ryzen() -> States {
        let of = |fid: u64, dfs: u64, vid: u64| 1 << 63 | vid << 14 | dfs << 8 | fid;
        let raw = [of(144, 8, 56), of(100, 8, 88), of(132, 12, 120), 0, 0, 0, 0, 0];
        States::new(Layout::of(0x17, 0x01).unwrap(), 0, raw)
    }

    /// The FX-8120 of paper 002, with two boosted P-states.
    fn fx() -> States {
        let of = |fid: u64, did: u64, vid: u64| 1 << 63 | vid << 9 | did << 6 | fid;
        let boosted = [of(24, 0, 11), of(18, 0, 11)];
        let [p2, p3, p4] = [of(15, 0, 22), of(12, 0, 27), of(7, 0, 37)];
        let raw = [boosted[0], boosted[1], p2, p3, p4, of(3, 0, 48), of(12, 1, 54), 0];
        States::new(Layout::of(0x15, 0x01).unwrap(), 2, raw)
    }

    #[track_caller]
    fn check(states: States, number: u8, mhz: u64, mv: Option<u64>, expected: (u64, u64)) {
        let (asked, voltage) = (KiloHertz::from_mhz(mhz), mv.map(MicroVolts::from_mv));
        let raw = states.redefined(number, asked, voltage).unwrap();
        let found = states.layout.decode(raw);
        let (khz, uv) = (found.frequency.unwrap().khz(), found.voltage.unwrap().uv());
        assert_eq!((khz, uv), expected);
        assert!(found.is_enabled);
    }

    #[test]
    fn redefines_p_states_as_paper_004_does() {
        check(ryzen(), 2, 833, None, (833_333, 800_000));
        check(ryzen(), 2, 833, Some(800), (833_333, 800_000));
        // The frequencies of figure 5.9, in P1. What is faster than P2 needs more voltage.
        check(ryzen(), 1, 3125, None, (3_125_000, 1_200_000));
        check(ryzen(), 1, 2650, None, (2_650_000, 1_200_000));
        check(ryzen(), 1, 2200, None, (2_200_000, 800_000));
        check(ryzen(), 1, 1725, Some(1000), (1_725_000, 1_000_000));
    }

    #[test]
    fn redefines_p_states_of_the_fx_8120() {
        check(fx(), 6, 800, None, (800_000, 875_000));
        check(fx(), 5, 3400, Some(1412), (3_400_000, 1_412_500));
        check(fx(), 3, 2000, None, (2_000_000, 1_087_500));
    }

    #[track_caller]
    fn refuses(states: States, number: u8, mhz: u64, mv: Option<u64>, why: &str) {
        let voltage = mv.map(MicroVolts::from_mv);
        let refused = states.redefined(number, KiloHertz::from_mhz(mhz), voltage).unwrap_err();
        assert_eq!(refused.to_string(), why);
    }

    #[test]
    fn refuses_what_is_outside_of_the_own_definitions() {
        let range = "outside of this processor's 72 MHz to 3600 MHz";
        refuses(ryzen(), 2, 3601, None, &format!("3601 MHz is {range}"));
        refuses(ryzen(), 2, 4000, Some(1200), &format!("4000 MHz is {range}"));
        refuses(ryzen(), 2, 50, None, &format!("50 MHz is {range}"));
        let at = "which this processor uses at 833 MHz";
        refuses(
            ryzen(),
            2,
            833,
            Some(1201),
            &format!("1201 mV is outside of 800 mV to 1200 mV, {at}"),
        );
        refuses(
            ryzen(),
            2,
            833,
            Some(793),
            &format!("793 mV is outside of 800 mV to 1200 mV, {at}"),
        );
        let at = "which this processor uses at 3600 MHz";
        refuses(
            ryzen(),
            2,
            3600,
            Some(1000),
            &format!("1000 mV is outside of 1200 mV to 1200 mV, {at}"),
        );
        refuses(
            fx(),
            6,
            3400,
            Some(1500),
            "1500 mV is outside of 1412.5 mV to 1412.5 mV, which this processor uses at 3400 MHz",
        );
        refuses(ryzen(), 3, 800, None, "P3 is not in use; in use are P0, P1, P2");
        refuses(ryzen(), 9, 800, None, "P9 is not in use; in use are P0, P1, P2");
    }

    #[test]
    fn keeps_the_frequency_at_which_time_is_counted() {
        let why = "because the time-stamp counter counts at it; define another P-state";
        refuses(ryzen(), 0, 1800, None, &format!("P0 keeps its 3600 MHz, {why}"));
        refuses(fx(), 2, 1800, None, &format!("P2 keeps its 3100 MHz, {why}"));
        check(ryzen(), 0, 3600, None, (3_600_000, 1_200_000));
    }

    #[test]
    fn redefines_nothing_without_voltages() {
        let raw = [1 << 63 | 8 << 8 | 144, 0, 0, 0, 0, 0, 0, 0];
        let states = States::new(Layout::of(0x19, 0x44).unwrap(), 0, raw);
        let why = "no public manual gives the voltages of this model, so its P-states stay as \
                   they are";
        refuses(states, 0, 3600, None, why);
    }
}
