//! Performance-monitoring events that give evidence about licenses, per microarchitecture.
//!
//! Only events that Intel or AMD document. The tables are those of Linux,
//! `tools/perf/pmu-events/arch/x86/<table>/{other,floating-point,pipeline}.json`. If a table has no
//! such event, the list here is empty. Microarchitectures with the same core share its table: Kaby
//! Lake and Comet Lake use Skylake's, Cooper Lake uses Cascade Lake's, Raptor Lake uses Alder
//! Lake's, Emerald Rapids uses Sapphire Rapids'.

use dimmer_processor::units::LicenseLevel;

use crate::microarchitecture::Microarchitecture;

/// A documented event of a core's performance-monitoring unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PmuEvent {
    /// The vendor's name of the event.
    pub name: &'static str,
    /// Event select.
    pub code: u8,
    /// Unit mask.
    pub umask: u8,
    /// What the event counts.
    pub counts: Counts,
}

/// What an event counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Counts {
    /// Core cycles at a license level, with the level number of the event's name.
    LicenseCycles(LicenseLevel),
    /// Core cycles throttled while a license request was pending.
    ThrottledCycles,
    /// Packed floating-point arithmetic of this width in bits, retired. Fused multiply-adds count
    /// twice on Intel.
    PackedArithmetic {
        /// The width of a vector in bits.
        width: u16,
    },
    /// Cycles in which the tile unit (AMX) was busy.
    TileCycles,
}

impl PmuEvent {
    /// The raw configuration: unit mask and event select, as `perf` writes them, for example
    /// `r1828`.
    #[must_use]
    pub const fn config(&self) -> u64 {
        (self.umask as u64) << 8 | self.code as u64
    }
}

const fn event(name: &'static str, code: u8, umask: u8, counts: Counts) -> PmuEvent {
    PmuEvent { name, code, umask, counts }
}

const fn license(name: &'static str, umask: u8, level: u32) -> PmuEvent {
    event(name, 0x28, umask, Counts::LicenseCycles(LicenseLevel::new(level)))
}

const fn packed(name: &'static str, code: u8, umask: u8, width: u16) -> PmuEvent {
    event(name, code, umask, Counts::PackedArithmetic { width })
}

const LVL0: PmuEvent = license("CORE_POWER.LVL0_TURBO_LICENSE", 0x07, 0);
const LVL1: PmuEvent = license("CORE_POWER.LVL1_TURBO_LICENSE", 0x18, 1);
const LVL2: PmuEvent = license("CORE_POWER.LVL2_TURBO_LICENSE", 0x20, 2);
const THROTTLE: PmuEvent = event("CORE_POWER.THROTTLE", 0x28, 0x40, Counts::ThrottledCycles);
const LICENSE_1: PmuEvent = license("CORE_POWER.LICENSE_1", 0x02, 1);
const LICENSE_2: PmuEvent = license("CORE_POWER.LICENSE_2", 0x04, 2);
const LICENSE_3: PmuEvent = license("CORE_POWER.LICENSE_3", 0x08, 3);

const DOUBLE_256: PmuEvent = packed("FP_ARITH_INST_RETIRED.256B_PACKED_DOUBLE", 0xC7, 0x10, 256);
const SINGLE_256: PmuEvent = packed("FP_ARITH_INST_RETIRED.256B_PACKED_SINGLE", 0xC7, 0x20, 256);
const DOUBLE_512: PmuEvent = packed("FP_ARITH_INST_RETIRED.512B_PACKED_DOUBLE", 0xC7, 0x40, 512);
const SINGLE_512: PmuEvent = packed("FP_ARITH_INST_RETIRED.512B_PACKED_SINGLE", 0xC7, 0x80, 512);
const AMX_BUSY: PmuEvent = event("EXE.AMX_BUSY", 0xB7, 0x02, Counts::TileCycles);

const WIDTH_256: PmuEvent =
    packed("fp_ops_retired_by_width.pack_256_uops_retired", 0x08, 0x10, 256);
const WIDTH_512: PmuEvent =
    packed("fp_ops_retired_by_width.pack_512_uops_retired", 0x08, 0x20, 512);

/// The documented events of `microarchitecture`, license levels first. Empty if its tables have
/// none of them; `None` if Dimmer has no table for it.
#[must_use]
pub const fn documented(microarchitecture: Microarchitecture) -> Option<&'static [PmuEvent]> {
    use Microarchitecture as M;
    Some(match microarchitecture {
        M::Haswell | M::HaswellServer => &[],
        M::Broadwell | M::BroadwellServer | M::Skylake | M::KabyLake | M::CometLake => {
            &[DOUBLE_256, SINGLE_256]
        }
        M::SkylakeServer | M::CascadeLake | M::CooperLake => {
            &[LVL0, LVL1, LVL2, THROTTLE, DOUBLE_256, SINGLE_256, DOUBLE_512, SINGLE_512]
        }
        M::IceLake | M::IceLakeServer | M::TigerLake | M::RocketLake => {
            &[LVL0, LVL1, LVL2, DOUBLE_256, SINGLE_256, DOUBLE_512, SINGLE_512]
        }
        M::AlderLake | M::RaptorLake => &[LICENSE_1, LICENSE_2, LICENSE_3, DOUBLE_256, SINGLE_256],
        M::MeteorLake | M::ArrowLake | M::LunarLake => &[DOUBLE_256, SINGLE_256],
        M::SapphireRapids | M::EmeraldRapids | M::GraniteRapids => {
            &[DOUBLE_256, SINGLE_256, DOUBLE_512, SINGLE_512, AMX_BUSY]
        }
        M::Zen1 | M::Zen2 | M::Zen3 => &[],
        M::Zen4 | M::Zen5 => &[WIDTH_256, WIDTH_512],
        M::CannonLake | M::SierraForest | M::Bulldozer | M::Piledriver | M::Unknown => {
            return None;
        }
    })
}

#[cfg(test)]
mod tests {
    use super::{Counts, documented};
    use crate::microarchitecture::Microarchitecture;

    #[track_caller]
    fn check(microarchitecture: Microarchitecture, expected: &str) {
        let events = documented(microarchitecture).unwrap_or_default();
        let license = events.iter().filter(|event| {
            matches!(event.counts, Counts::LicenseCycles(_) | Counts::ThrottledCycles)
        });
        let found: Vec<String> = license.map(|event| format!("r{:04x}", event.config())).collect();
        assert_eq!(found.join(" "), expected, "{microarchitecture}");
    }

    #[test]
    fn has_license_events_just_where_the_tables_have_them() {
        check(Microarchitecture::SkylakeServer, "r0728 r1828 r2028 r4028");
        check(Microarchitecture::IceLakeServer, "r0728 r1828 r2028");
        check(Microarchitecture::AlderLake, "r0228 r0428 r0828");
        check(Microarchitecture::GraniteRapids, "");
        check(Microarchitecture::Zen5, "");
    }

    #[test]
    fn says_that_it_does_not_know_rather_than_that_there_is_none() {
        assert_eq!(documented(Microarchitecture::Unknown), None);
        assert_eq!(documented(Microarchitecture::Haswell), Some(&[][..]));
    }
}
