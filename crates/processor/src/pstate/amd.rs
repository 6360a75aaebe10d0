//! P-state definitions of AMD's processors: MSRC001_0064 (P0) to MSRC001_006B (P7).
//!
//! | field    | 15h, models 00h-0Fh | 15h, later | 17h, 19h       | 1Ah            |
//! |----------|---------------------|------------|----------------|----------------|
//! | PstateEn | 63                  | 63         | 63             | 63             |
//! | CpuFid   | 5:0                 | 5:0        | 7:0            | 11:0           |
//! | divisor  | 8:6 (CpuDid)        | 8:6        | 13:8 (CpuDfsId)| none           |
//! | CpuVid   | 15:9 (SVI)          | 16:9 (SVI2)| 21:14 (SVI2)   | 32, 21:14 (SVI3)|
//!
//! Families 17h and 19h have bit 32 as well if their voltage regulators speak SVI3. All other bits
//! (the current IddValue and IddDiv, the northbridge's NbPstate) are kept as they are.
//!
//! | layout | frequency of the core                                    |
//! |--------|----------------------------------------------------------|
//! | 15h    | 100 MHz * (CpuFid + 10h) / 2^CpuDid                      |
//! | 17h    | 200 MHz * CpuFid / CpuDfsId (CpuDfsId counts eighths)    |
//! | 1Ah    | 5 MHz * CpuFid                                           |
//!
//! Sources: AMD's BKDG for family 15h models 00h-0Fh (42301) and 10h-1Fh (42300), section 3
//! "MSRC001_00\[6B:64\] P-state"; PPR for family 17h model 01h (54945), 17h model 31h (55803), 19h
//! model 11h (55901) and 1Ah model 02h (57238), `Core::X86::Msr::PStateDef`. The layouts and tables
//! were compared with coreboot's `src/soc/amd` (stoneyridge, picasso, mendocino, glinda) and with
//! Linux `tools/power/cpupower/utils/helpers/amd.c`, not with each manual.

use super::Field;
use crate::units::{KiloHertz, MicroVolts};

const ENABLED: Field = Field::new(63, 1);
const NONE: Field = Field::new(0, 0);

/// Voltages by their number (VID), from the specification of the interface to the regulators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vids {
    /// 1.55 V less 12.5 mV a number; 7Ch and above switch off. Family 15h BKDG (42301), section
    /// 2.5.1 "Processor Power Planes And Voltage Control".
    Svi,
    /// 1.55 V less 6.25 mV a number; F8h and above switch off. Specification 48022.
    Svi2,
    /// 245 mV and 5 mV a number; 0 switches off. Specification 56413.
    Svi3,
}

impl Vids {
    /// The voltage; `None` for numbers that switch the supply off.
    fn voltage(self, vid: u64) -> Option<MicroVolts> {
        let uv = match self {
            Self::Svi if vid < 0x7C => 1_550_000 - 12_500 * vid,
            Self::Svi2 if vid < 0xF8 => 1_550_000 - 6_250 * vid,
            Self::Svi3 if vid > 0 => 245_000 + 5_000 * vid,
            _ => return None,
        };
        Some(MicroVolts::from_uv(uv))
    }
}

/// How a definition's frequency is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clock {
    /// Family 15h.
    PowersOfTwo,
    /// Families 17h and 19h.
    Eighths,
    /// Family 1Ah.
    Steps,
}

/// The layout of a P-state definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    clock: Clock,
    fid: Field,
    divisor: Field,
    /// The lower and the upper bits of the VID.
    vid: [Field; 2],
    /// `None` if no public source gives the table of this model.
    vids: Option<Vids>,
}

const OF_15H: Layout = Layout {
    clock: Clock::PowersOfTwo,
    fid: Field::new(0, 6),
    divisor: Field::new(6, 3),
    vid: [Field::new(9, 7), NONE],
    vids: Some(Vids::Svi),
};
const OF_15H_SVI2: Layout =
    Layout { vid: [Field::new(9, 8), NONE], vids: Some(Vids::Svi2), ..OF_15H };
const OF_17H: Layout = Layout {
    clock: Clock::Eighths,
    fid: Field::new(0, 8),
    divisor: Field::new(8, 6),
    vid: [Field::new(14, 8), NONE],
    vids: Some(Vids::Svi2),
};
const OF_17H_SVI3: Layout =
    Layout { vid: [Field::new(14, 8), Field::new(32, 1)], vids: Some(Vids::Svi3), ..OF_17H };
const OF_1AH: Layout =
    Layout { clock: Clock::Steps, fid: Field::new(0, 12), divisor: NONE, ..OF_17H_SVI3 };

/// What a definition says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Definition {
    /// Whether the P-state can be requested.
    pub is_enabled: bool,
    /// The frequency, rounded down to a kHz; `None` if its fields hold reserved values.
    pub frequency: Option<KiloHertz>,
    /// The voltage that the processor asks the regulator for; `None` if the number switches the
    /// supply off, or if no public manual gives the table of this model. Where the firmware manages
    /// the voltage (boost, later families), the voltage in force may differ.
    pub voltage: Option<MicroVolts>,
}

impl Layout {
    /// The layout of a family and model of AMD's; `None` if Dimmer does not know the family.
    #[must_use]
    pub const fn of(family: u8, model: u8) -> Option<Self> {
        match (family, model) {
            (0x15, 0x00..=0x0F) => Some(OF_15H),
            (0x15, _) => Some(OF_15H_SVI2),
            (0x17, 0x00..=0x7F) | (0x19, 0x00..=0x0F | 0x20..=0x2F | 0x50..=0x5F) => Some(OF_17H),
            (0x17, 0xA0..=0xAF) | (0x19, 0x10..=0x1F | 0x60..=0x7F | 0xA0..=0xAF) => {
                Some(OF_17H_SVI3)
            }
            (0x17 | 0x19, _) => Some(Self { vids: None, ..OF_17H }),
            (0x1A, _) => Some(OF_1AH),
            _ => None,
        }
    }

    /// Whether the voltages of this model are known.
    #[must_use]
    pub const fn has_voltages(&self) -> bool {
        self.vids.is_some()
    }

    /// What the definition `raw` says.
    #[must_use]
    pub fn decode(&self, raw: u64) -> Definition {
        let [low, high] = self.vid;
        let vid = low.of(raw) | high.of(raw) << low.bits;
        Definition {
            is_enabled: ENABLED.of(raw) == 1,
            frequency: self.frequency(self.fid.of(raw), self.divisor.of(raw)),
            voltage: self.vids.and_then(|vids| vids.voltage(vid)),
        }
    }

    /// The number by which the clock generator is multiplied in `raw`.
    pub(super) const fn multiplier(&self, raw: u64) -> u64 {
        self.fid.of(raw)
    }

    const fn frequency(&self, fid: u64, divisor: u64) -> Option<KiloHertz> {
        let khz = match self.clock {
            Clock::PowersOfTwo if divisor <= 4 => (100_000 * (fid + 0x10)) >> divisor,
            Clock::Eighths if fid > 0 && divisor > 0 => 200_000 * fid / divisor,
            Clock::Steps if fid > 0 => 5_000 * fid,
            _ => return None,
        };
        Some(KiloHertz::from_khz(khz))
    }

    /// The lowest multiplier that is not reserved. That of family 1Ah is a guess: 400 MHz, which is
    /// the lowest clock before the divisor in family 17h.
    const fn least_multiplier(&self) -> u64 {
        match self.clock {
            Clock::PowersOfTwo => 0,
            Clock::Eighths => 0x10,
            Clock::Steps => 80,
        }
    }

    /// Whether the divisor is not reserved.
    const fn is_divisor(&self, divisor: u64) -> bool {
        match self.clock {
            Clock::PowersOfTwo => divisor <= 4,
            Clock::Eighths => {
                matches!(divisor, 0x08..=0x1A)
                    || matches!(divisor, 0x1C..=0x2C if divisor.is_multiple_of(2))
            }
            Clock::Steps => true,
        }
    }

    /// Frequencies of the layout, with a multiplier of at most `most`: multiplier, divisor,
    /// frequency.
    fn frequencies(&self, most: u64) -> impl Iterator<Item = (u64, u64, KiloHertz)> + '_ {
        let divisors = (0..=self.divisor.largest()).filter(|&divisor| self.is_divisor(divisor));
        let fids = move |divisor| {
            let all = self.least_multiplier()..=most.min(self.fid.largest());
            all.filter_map(move |fid| Some((fid, divisor, self.frequency(fid, divisor)?)))
        };
        divisors.flat_map(fids)
    }

    /// The lowest frequency that a definition can have.
    pub(super) fn lowest(&self) -> KiloHertz {
        let all = self.frequencies(self.least_multiplier());
        all.map(|(.., frequency)| frequency).min().unwrap_or(KiloHertz::from_khz(0))
    }

    /// `raw` with the frequency nearest to `asked` among those of at most `highest`, by a
    /// multiplier of at most `most`. Of several ways to that frequency, the one that keeps the
    /// divisor, otherwise the least divisor.
    pub(super) fn with_frequency(
        &self,
        raw: u64,
        asked: KiloHertz,
        highest: KiloHertz,
        most: u64,
    ) -> u64 {
        let own = self.divisor.of(raw);
        let allowed = self.frequencies(most).filter(|(.., frequency)| *frequency <= highest);
        let nearest = allowed.min_by_key(|&(_, divisor, frequency)| {
            (frequency.khz().abs_diff(asked.khz()), divisor != own, divisor)
        });
        nearest.map_or(raw, |(fid, divisor, _)| self.fid.set(self.divisor.set(raw, divisor), fid))
    }

    /// `raw` with the least voltage that is not below `asked`; unchanged if there is none.
    pub(super) fn with_voltage(&self, raw: u64, asked: MicroVolts) -> u64 {
        let [low, high] = self.vid;
        let with = |vid: u64| high.set(low.set(raw, vid), vid >> low.bits);
        let all = (0..=(high.largest() << low.bits | low.largest())).map(with);
        let enough = all.filter_map(|raw| Some((self.decode(raw).voltage?, raw)));
        enough.filter(|(voltage, _)| *voltage >= asked).min().map_or(raw, |(_, raw)| raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(layout: Layout, raw: u64, khz: u64, uv: u64) {
        let found = layout.decode(raw);
        let (frequency, voltage) = (KiloHertz::from_khz(khz), MicroVolts::from_uv(uv));
        assert_eq!((found.frequency, found.voltage), (Some(frequency), Some(voltage)), "{raw:#x}");
        // What is decoded is encoded to the same bits.
        let most = layout.multiplier(raw);
        let [low, high] = layout.vid;
        let blank = layout.fid.set(high.set(low.set(raw, 0), 0), 0);
        let again = layout.with_frequency(blank, frequency, frequency, most);
        assert_eq!(layout.with_voltage(again, voltage), raw);
    }

    /// A definition of family 15h that is enabled.
    const fn of_15h(fid: u64, did: u64, vid: u64) -> u64 {
        1 << 63 | vid << 9 | did << 6 | fid
    }

    #[test]
    fn decodes_the_p_states_of_the_fx_8120() {
        // Paper 002, table 2, which cuts voltages off after the third digit.
        let layout = Layout::of(0x15, 0x01).unwrap();
        check(layout, of_15h(24, 0, 11), 4_000_000, 1_412_500);
        check(layout, of_15h(18, 0, 11), 3_400_000, 1_412_500);
        check(layout, of_15h(15, 0, 22), 3_100_000, 1_275_000);
        check(layout, of_15h(12, 0, 27), 2_800_000, 1_212_500);
        check(layout, of_15h(7, 0, 37), 2_300_000, 1_087_500);
        check(layout, of_15h(3, 0, 48), 1_900_000, 950_000);
        check(layout, of_15h(12, 1, 54), 1_400_000, 875_000);
    }

    /// A definition of family 17h that is enabled, with a current of 94 of its units.
    const fn of_17h(fid: u64, dfs: u64, vid: u64) -> u64 {
        1 << 63 | 94 << 22 | vid << 14 | dfs << 8 | fid
    }

    #[test]
    fn decodes_the_p_states_of_the_ryzen_1600x() {
        // Paper 004, section 2.3.2 and table 5.1; the multipliers are those that the author's
        // scripts set (144 for 3600 MHz, 50 for 833 MHz).
        let layout = Layout::of(0x17, 0x01).unwrap();
        check(layout, of_17h(144, 8, 56), 3_600_000, 1_200_000);
        check(layout, of_17h(100, 8, 88), 2_500_000, 1_000_000);
        check(layout, of_17h(132, 12, 120), 2_200_000, 800_000);
        check(layout, of_17h(50, 12, 120), 833_333, 800_000);
    }

    #[test]
    fn decodes_later_families() {
        let genoa = Layout::of(0x19, 0x11).unwrap();
        // 1.5 V is VID 251, and 1.6 V is VID 271, which takes the bit apart from the others.
        check(genoa, of_17h(96, 8, 251), 2_400_000, 1_500_000);
        check(genoa, 1 << 32 | of_17h(96, 8, 271 - 256), 2_400_000, 1_600_000);
        let turin = Layout::of(0x1A, 0x02).unwrap();
        check(turin, 1 << 63 | 131 << 14 | 820, 4_100_000, 900_000);
        let trinity = Layout::of(0x15, 0x10).unwrap();
        check(trinity, of_15h(22, 0, 40), 3_800_000, 1_300_000);
    }

    #[test]
    fn leaves_the_unknown_unknown() {
        assert_eq!(Layout::of(0x10, 0x02), None);
        assert_eq!(Layout::of(0x18, 0x00), None);
        let rembrandt = Layout::of(0x19, 0x44).unwrap();
        assert_eq!(rembrandt.decode(of_17h(144, 8, 56)).voltage, None);
        assert!(!rembrandt.has_voltages());
        let zen = Layout::of(0x17, 0x01).unwrap();
        let off = zen.decode(0);
        assert_eq!((off.is_enabled, off.frequency), (false, None));
        assert_eq!(zen.decode(of_17h(144, 8, 0xF8)).voltage, None);
        assert_eq!(Layout::of(0x15, 0x01).unwrap().decode(of_15h(0, 5, 0x7C)).frequency, None);
        assert_eq!(Layout::of(0x1A, 0x02).unwrap().decode(1 << 63 | 820).voltage, None);
    }

    #[test]
    fn rounds_frequencies_to_the_nearest_and_voltages_up() {
        let zen = Layout::of(0x17, 0x01).unwrap();
        let highest = KiloHertz::from_mhz(3600);
        let raw = of_17h(132, 12, 120);
        let asked = zen.with_frequency(raw, KiloHertz::from_mhz(833), highest, 144);
        assert_eq!(asked, of_17h(50, 12, 120), "as in paper 004");
        let asked = zen.with_voltage(raw, MicroVolts::from_mv(1001));
        assert_eq!(zen.decode(asked).voltage, Some(MicroVolts::from_uv(1_006_250)));
        // Nothing is as high: the definition stays.
        assert_eq!(zen.with_voltage(raw, MicroVolts::from_mv(1600)), raw);
        // All other bits stay, too.
        let odd = raw | 0x3 << 30 | 0x5 << 40;
        let asked = zen.with_frequency(odd, KiloHertz::from_mhz(833), highest, 144);
        assert_eq!(asked ^ odd, of_17h(50, 12, 120) ^ raw);
    }

    #[test]
    fn knows_the_lowest_frequency_of_a_layout() {
        let lowest = |family, model| Layout::of(family, model).unwrap().lowest();
        assert_eq!(lowest(0x15, 0x01), KiloHertz::from_mhz(100));
        assert_eq!(lowest(0x17, 0x01), KiloHertz::from_khz(72_727));
        assert_eq!(lowest(0x1A, 0x02), KiloHertz::from_mhz(400));
    }
}
