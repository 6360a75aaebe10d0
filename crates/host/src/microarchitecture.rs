//! Maps vendor, family, model and stepping to a microarchitecture.
//!
//! Source: Linux `arch/x86/include/asm/intel-family.h` and, for AMD, `bsp_init_amd` in
//! `arch/x86/kernel/cpu/amd.c`. The steppings of model 0x55 are from Intel's performance event
//! tables (`tools/perf/pmu-events/arch/x86/mapfile.csv`). Processors that are not in the table are
//! [`Microarchitecture::Unknown`]: nothing is inferred from neighboring models.
//!
//! Hypervisors may give a guest another processor's model, and hide features, but they cannot add
//! any. So a processor is not what its model says if it has a feature that those never had. Source
//! of what they had, up to Sapphire Rapids and Zen 3: what GCC 12 predefines for each `-march`. The
//! entries of later ones were not compared with a source.

use std::fmt;

use crate::cpuid::Feature;

/// Declares the enum and the name of each variant.
macro_rules! microarchitectures {
    ($($variant:ident = $name:literal,)*) => {
        /// A microarchitecture, distinguished as far as its clock behavior differs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Microarchitecture {
            $(#[doc = $name] $variant,)*
        }

        impl Microarchitecture {
            /// The common name: `Sapphire Rapids`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

microarchitectures! {
    Unknown = "unknown",
    Haswell = "Haswell",
    HaswellServer = "Haswell-EP",
    Broadwell = "Broadwell",
    BroadwellServer = "Broadwell-EP",
    Skylake = "Skylake",
    SkylakeServer = "Skylake-SP",
    CascadeLake = "Cascade Lake",
    CooperLake = "Cooper Lake",
    CannonLake = "Cannon Lake",
    KabyLake = "Kaby Lake",
    CometLake = "Comet Lake",
    IceLake = "Ice Lake",
    IceLakeServer = "Ice Lake-SP",
    TigerLake = "Tiger Lake",
    RocketLake = "Rocket Lake",
    AlderLake = "Alder Lake",
    RaptorLake = "Raptor Lake",
    MeteorLake = "Meteor Lake",
    LunarLake = "Lunar Lake",
    ArrowLake = "Arrow Lake",
    SapphireRapids = "Sapphire Rapids",
    EmeraldRapids = "Emerald Rapids",
    GraniteRapids = "Granite Rapids",
    SierraForest = "Sierra Forest",
    Bulldozer = "Bulldozer",
    Piledriver = "Piledriver",
    Zen1 = "Zen",
    Zen2 = "Zen 2",
    Zen3 = "Zen 3",
    Zen4 = "Zen 4",
    Zen5 = "Zen 5",
}

impl fmt::Display for Microarchitecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Microarchitecture {
    /// Maps the display family, display model and stepping of leaf 1 to a microarchitecture.
    #[must_use]
    pub fn identify(vendor: &str, family: u8, model: u8, stepping: u8) -> Self {
        match (vendor, family) {
            ("GenuineIntel", 0x06) => intel(model, stepping),
            ("AuthenticAMD", _) => amd(family, model),
            _ => Self::Unknown,
        }
    }

    /// Features that no processor of this kind has, one for each later generation that it might
    /// really be. Empty if there is none, or if it is not known.
    #[must_use]
    pub const fn never_has(self) -> &'static [Feature] {
        use Feature as F;
        use Microarchitecture as M;
        match self {
            M::Haswell
            | M::HaswellServer
            | M::Broadwell
            | M::BroadwellServer
            | M::Skylake
            | M::KabyLake
            | M::CometLake
            | M::SierraForest => &[F::Avx512f, F::AmxTile],
            M::SkylakeServer => &[F::Avx512vnni, F::AmxTile],
            M::CascadeLake => &[F::Avx512bf16, F::Avx512vbmi, F::AmxTile],
            M::CooperLake => &[F::Avx512vbmi, F::AmxTile],
            M::CannonLake => &[F::Avx512vnni, F::AmxTile],
            M::IceLake | M::IceLakeServer | M::RocketLake | M::TigerLake => {
                &[F::Avx512bf16, F::AmxTile]
            }
            M::AlderLake | M::RaptorLake | M::MeteorLake | M::LunarLake | M::ArrowLake => {
                &[F::AmxTile]
            }
            M::SapphireRapids | M::EmeraldRapids => &[F::AmxFp16],
            M::Bulldozer | M::Piledriver => &[F::Avx2, F::Avx512f],
            M::Zen1 | M::Zen2 | M::Zen3 => &[F::Avx512f],
            M::Zen4 => &[F::Avx512vp2intersect, F::Avx512fp16],
            M::Zen5 => &[F::Avx512fp16],
            M::Unknown | M::GraniteRapids => &[],
        }
    }
}

fn intel(model: u8, stepping: u8) -> Microarchitecture {
    use Microarchitecture as M;
    match model {
        0x3C | 0x45 | 0x46 => M::Haswell,
        0x3F => M::HaswellServer,
        0x3D | 0x47 => M::Broadwell,
        0x4F | 0x56 => M::BroadwellServer,
        0x4E | 0x5E => M::Skylake,
        0x55 if stepping <= 4 => M::SkylakeServer,
        0x55 if stepping <= 9 => M::CascadeLake,
        0x55 => M::CooperLake,
        0x66 => M::CannonLake,
        // Coffee Lake and Whiskey Lake share these models, and Kaby Lake's core.
        0x8E | 0x9E => M::KabyLake,
        0xA5 | 0xA6 => M::CometLake,
        0x7D | 0x7E => M::IceLake,
        0x6A | 0x6C => M::IceLakeServer,
        0x8C | 0x8D => M::TigerLake,
        0xA7 => M::RocketLake,
        0x97 | 0x9A => M::AlderLake,
        0xB7 | 0xBA | 0xBF => M::RaptorLake,
        0xAA | 0xAC => M::MeteorLake,
        0xBD => M::LunarLake,
        0xB5 | 0xC5 | 0xC6 => M::ArrowLake,
        0x8F => M::SapphireRapids,
        0xCF => M::EmeraldRapids,
        0xAD | 0xAE => M::GraniteRapids,
        0xAF => M::SierraForest,
        _ => M::Unknown,
    }
}

fn amd(family: u8, model: u8) -> Microarchitecture {
    use Microarchitecture as M;
    match (family, model) {
        (0x15, 0x00..=0x01) => M::Bulldozer,
        (0x15, 0x02 | 0x10..=0x1F) => M::Piledriver,
        (0x17, 0x00..=0x2F | 0x50..=0x5F) => M::Zen1,
        (0x17, 0x30..=0x4F | 0x60..=0x7F | 0x90..=0x91 | 0xA0..=0xAF) => M::Zen2,
        (0x19, 0x00..=0x0F | 0x20..=0x5F) => M::Zen3,
        (0x19, 0x10..=0x1F | 0x60..=0xAF) => M::Zen4,
        (0x1A, 0x00..=0x2F | 0x40..=0x4F | 0x60..=0x7F) => M::Zen5,
        _ => M::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::Microarchitecture;

    #[track_caller]
    fn check(vendor: &str, family: u8, model: u8, stepping: u8, name: &str) {
        assert_eq!(Microarchitecture::identify(vendor, family, model, stepping).name(), name);
    }

    #[test]
    fn tells_the_three_generations_of_model_55_apart() {
        check("GenuineIntel", 6, 0x55, 4, "Skylake-SP");
        check("GenuineIntel", 6, 0x55, 7, "Cascade Lake");
        check("GenuineIntel", 6, 0x55, 11, "Cooper Lake");
    }

    #[test]
    fn names_the_processors_of_the_papers() {
        check("AuthenticAMD", 0x15, 0x01, 2, "Bulldozer");
        check("GenuineIntel", 6, 0x3C, 3, "Haswell");
        check("AuthenticAMD", 0x17, 0x01, 1, "Zen");
        check("AuthenticAMD", 0x1A, 0x02, 1, "Zen 5");
        check("GenuineIntel", 6, 0xAD, 1, "Granite Rapids");
    }

    #[test]
    fn says_unknown_rather_than_guess() {
        check("GenuineIntel", 6, 0xFF, 0, "unknown");
        check("GenuineIntel", 0x0F, 0x06, 0, "unknown");
        check("HygonGenuine", 0x18, 0x00, 0, "unknown");
    }
}
