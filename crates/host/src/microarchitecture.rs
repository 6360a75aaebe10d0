//! Maps vendor, family, model and stepping to a microarchitecture.
//!
//! Source: Linux `arch/x86/include/asm/intel-family.h` and, for AMD, `bsp_init_amd` in
//! `arch/x86/kernel/cpu/amd.c`. The steppings of model 0x55 are from Intel's performance event
//! tables (`tools/perf/pmu-events/arch/x86/mapfile.csv`). Processors that are not in the table are
//! [`Microarchitecture::Unknown`]: nothing is inferred from neighboring models.

use std::fmt;

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
