//! Feature bits by name: their place in CPUID and the register state that each needs.
//!
//! Source: Intel SDM volume 2, CPUID; AMD64 Architecture Programmer's Manual volume 3, appendix
//! E; XCR0 bits: Intel SDM volume 1, section 13.1.

use raw_cpuid::CpuIdResult;

/// One of the four registers that CPUID fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Register {
    Eax,
    Ebx,
    Ecx,
    Edx,
}

impl Register {
    pub(super) const fn of(self, registers: CpuIdResult) -> u32 {
        match self {
            Self::Eax => registers.eax,
            Self::Ebx => registers.ebx,
            Self::Ecx => registers.ecx,
            Self::Edx => registers.edx,
        }
    }
}

/// Place of a feature bit in CPUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bit {
    pub(super) leaf: u32,
    pub(super) subleaf: u32,
    pub(super) register: Register,
    pub(super) number: u32,
}

/// XCR0 bits 1 and 2: the lower halves of the vector registers.
const YMM: u64 = 0b110;
/// The bits of [`YMM`], and bits 5 to 7: mask registers and the upper halves.
const ZMM: u64 = YMM | 0b1110_0000;
/// Bits 17 and 18: tile configuration and tile data.
const TILE: u64 = 0b11 << 17;

/// Declares the enum, its list, and for each variant its name, place and required state.
macro_rules! features {
    ($($variant:ident, $name:literal, $leaf:literal, $subleaf:literal, $register:ident,
       $number:literal, $state:expr;)*) => {
        /// A feature that the processor may have, as CPUID names it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Feature {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        impl Feature {
            /// All features.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            /// The name in results, as Linux writes it in `/proc/cpuinfo` where Linux has one.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            pub(super) const fn bit(self) -> Bit {
                match self {
                    $(Self::$variant => Bit {
                        leaf: $leaf,
                        subleaf: $subleaf,
                        register: Register::$register,
                        number: $number,
                    },)*
                }
            }

            /// The XCR0 bits that must be set before code may use the feature.
            pub(super) const fn required_state(self) -> u64 {
                match self { $(Self::$variant => $state,)* }
            }
        }
    };
}

features! {
    Monitor, "monitor", 1, 0, Ecx, 3, 0;
    Fma, "fma", 1, 0, Ecx, 12, YMM;
    Osxsave, "osxsave", 1, 0, Ecx, 27, 0;
    Avx, "avx", 1, 0, Ecx, 28, YMM;
    F16c, "f16c", 1, 0, Ecx, 29, YMM;
    Hypervisor, "hypervisor", 1, 0, Ecx, 31, 0;
    TurboBoost, "ida", 6, 0, Eax, 1, 0;
    Hwp, "hwp", 6, 0, Eax, 7, 0;
    AperfMperf, "aperfmperf", 6, 0, Ecx, 0, 0;
    Fsgsbase, "fsgsbase", 7, 0, Ebx, 0, 0;
    Avx2, "avx2", 7, 0, Ebx, 5, YMM;
    Avx512f, "avx512f", 7, 0, Ebx, 16, ZMM;
    Avx512dq, "avx512dq", 7, 0, Ebx, 17, ZMM;
    Avx512ifma, "avx512ifma", 7, 0, Ebx, 21, ZMM;
    Avx512cd, "avx512cd", 7, 0, Ebx, 28, ZMM;
    Avx512bw, "avx512bw", 7, 0, Ebx, 30, ZMM;
    Avx512vl, "avx512vl", 7, 0, Ebx, 31, ZMM;
    Avx512vbmi, "avx512vbmi", 7, 0, Ecx, 1, ZMM;
    Waitpkg, "waitpkg", 7, 0, Ecx, 5, 0;
    Avx512vbmi2, "avx512_vbmi2", 7, 0, Ecx, 6, ZMM;
    Gfni, "gfni", 7, 0, Ecx, 8, 0;
    Vaes, "vaes", 7, 0, Ecx, 9, YMM;
    Vpclmulqdq, "vpclmulqdq", 7, 0, Ecx, 10, YMM;
    Avx512vnni, "avx512_vnni", 7, 0, Ecx, 11, ZMM;
    Avx512bitalg, "avx512_bitalg", 7, 0, Ecx, 12, ZMM;
    Avx512vpopcntdq, "avx512_vpopcntdq", 7, 0, Ecx, 14, ZMM;
    Rdpid, "rdpid", 7, 0, Ecx, 22, 0;
    Cldemote, "cldemote", 7, 0, Ecx, 25, 0;
    Avx512vp2intersect, "avx512_vp2intersect", 7, 0, Edx, 8, ZMM;
    Hybrid, "hybrid", 7, 0, Edx, 15, 0;
    AmxBf16, "amx_bf16", 7, 0, Edx, 22, TILE;
    Avx512fp16, "avx512_fp16", 7, 0, Edx, 23, ZMM;
    AmxTile, "amx_tile", 7, 0, Edx, 24, TILE;
    AmxInt8, "amx_int8", 7, 0, Edx, 25, TILE;
    AvxVnni, "avx_vnni", 7, 1, Eax, 4, YMM;
    Avx512bf16, "avx512_bf16", 7, 1, Eax, 5, ZMM;
    AmxFp16, "amx_fp16", 7, 1, Eax, 21, TILE;
    AvxIfma, "avx_ifma", 7, 1, Eax, 23, YMM;
    Monitorx, "monitorx", 0x8000_0001, 0, Ecx, 29, 0;
    Rdtscp, "rdtscp", 0x8000_0001, 0, Edx, 27, 0;
    InvariantTsc, "nonstop_tsc", 0x8000_0007, 0, Edx, 8, 0;
    CorePerformanceBoost, "cpb", 0x8000_0007, 0, Edx, 9, 0;
    Cppc, "cppc", 0x8000_0008, 0, Ebx, 27, 0;
}

impl std::fmt::Display for Feature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
