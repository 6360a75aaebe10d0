//! Which feature bits CPUID shows at a width.
//!
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, CPUID (leaves 1,
//! 7, 0x1D, 0x1E, 0x24); AMD64 Architecture Programmer's Manual, volume 3, appendix E
//! (0x8000_0001).
//!
//! Leaf 0xD stays as it is, although it describes registers that are no longer used: XGETBV cannot
//! be made to fault, so XCR0 still shows the states of AVX-512 and AMX, and XSAVE still stores
//! those that are in use. A program that takes the size of a save area from leaf 0xD and the mask
//! from XGETBV must get a size that fits that mask. Programs already handle a feature that is
//! missing while its state is enabled: a feature may be used if its own bit *and* its state are
//! there (manual, volume 1, §15.2), and operating systems enable states without asking for each
//! feature.

use crate::Width;

/// The registers that CPUID writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// EAX.
    pub eax: u32,
    /// EBX.
    pub ebx: u32,
    /// ECX.
    pub ecx: u32,
    /// EDX.
    pub edx: u32,
}

/// Bits that are hidden in one leaf.
struct Hidden {
    leaf: u32,
    /// `None` for all subleaves, or if the leaf has none.
    subleaf: Option<u32>,
    bits: Registers,
}

const fn bits<const N: usize>(numbers: [u32; N]) -> u32 {
    let mut all = 0;
    let mut index = 0;
    while index < N {
        all |= 1 << numbers[index];
        index += 1;
    }
    all
}

const NONE: Registers = Registers { eax: 0, ebx: 0, ecx: 0, edx: 0 };
const ALL: Registers = Registers { eax: !0, ebx: !0, ecx: !0, edx: !0 };

/// AVX-512, AVX10, and AMX: everything wider than 256 bits, with the narrower instructions of the
/// same features.
const ABOVE_256: [Hidden; 5] = [
    Hidden {
        leaf: 7,
        subleaf: Some(0),
        bits: Registers {
            eax: 0,
            // F, DQ, IFMA, PF, ER, CD, BW, VL.
            ebx: bits([16, 17, 21, 26, 27, 28, 30, 31]),
            // VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ.
            ecx: bits([1, 6, 11, 12, 14]),
            // 4VNNIW, 4FMAPS, VP2INTERSECT, AMX-BF16, FP16, AMX-TILE, AMX-INT8.
            edx: bits([2, 3, 8, 22, 23, 24, 25]),
        },
    },
    Hidden {
        leaf: 7,
        subleaf: Some(1),
        // AVX512_BF16, AMX-FP16; AMX-COMPLEX, AVX10.
        bits: Registers { eax: bits([5, 21]), edx: bits([8, 19]), ..NONE },
    },
    // Tiles, their multiplier, and AVX10.
    Hidden { leaf: 0x1d, subleaf: None, bits: ALL },
    Hidden { leaf: 0x1e, subleaf: None, bits: ALL },
    Hidden { leaf: 0x24, subleaf: None, bits: ALL },
];

/// AVX, and everything with instructions encoded like AVX.
const ABOVE_128: [Hidden; 4] = [
    Hidden {
        leaf: 1,
        subleaf: None,
        // FMA, AVX, F16C.
        bits: Registers { ecx: bits([12, 28, 29]), ..NONE },
    },
    Hidden {
        leaf: 7,
        subleaf: Some(0),
        // AVX2; VAES, VPCLMULQDQ.
        bits: Registers { ebx: bits([5]), ecx: bits([9, 10]), ..NONE },
    },
    Hidden {
        leaf: 7,
        subleaf: Some(1),
        // SHA512, SM3, SM4, AVX-VNNI, AVX-IFMA; AVX-VNNI-INT8, AVX-NE-CONVERT, AVX-VNNI-INT16.
        bits: Registers { eax: bits([0, 1, 2, 4, 23]), edx: bits([4, 5, 10]), ..NONE },
    },
    Hidden {
        leaf: 0x8000_0001,
        subleaf: None,
        // XOP, FMA4.
        bits: Registers { ecx: bits([11, 16]), ..NONE },
    },
];

/// What CPUID shows of a leaf at `width`, if the processor shows `real`.
///
/// # Cost
/// A few comparisons; no allocation, so that a signal handler may call it.
#[must_use]
pub fn masked(leaf: u32, subleaf: u32, real: Registers, width: Width) -> Registers {
    let hidden = hidden(leaf, subleaf, width);
    Registers {
        eax: real.eax & !hidden.eax,
        ebx: real.ebx & !hidden.ebx,
        ecx: real.ecx & !hidden.ecx,
        edx: real.edx & !hidden.edx,
    }
}

/// The bits of a leaf that are hidden at `width`.
pub(crate) fn hidden(leaf: u32, subleaf: u32, width: Width) -> Registers {
    let more: &[Hidden] = match width {
        Width::Bits256 => &[],
        Width::Bits128 => &ABOVE_128,
    };
    let mut all = NONE;
    for one in ABOVE_256.iter().chain(more) {
        if one.leaf == leaf && one.subleaf.is_none_or(|own| own == subleaf) {
            all.eax |= one.bits.eax;
            all.ebx |= one.bits.ebx;
            all.ecx |= one.bits.ecx;
            all.edx |= one.bits.edx;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaf_7_loses_avx512_and_amx_and_at_128_bits_avx2() {
        // An Emerald Rapids Xeon with AMX, as a hypervisor shows it.
        let real = Registers { eax: 2, ebx: 0xf1bf_2ffb, ecx: 0x1a41_5f46, edx: 0x21c1_4010 };
        let at_256 = masked(7, 0, real, Width::Bits256);
        let expected = Registers { eax: 2, ebx: 0x219c_2ffb, ecx: 0x1a41_0704, edx: 0x2001_4010 };
        assert_eq!(at_256, expected);
        let at_128 = masked(7, 0, real, Width::Bits128);
        let expected = Registers { ebx: 0x219c_2fdb, ecx: 0x1a41_0104, ..expected };
        assert_eq!(at_128, expected);
    }

    #[test]
    fn subleaves_are_told_apart() {
        let real = Registers { eax: 0x1c30, ..NONE };
        assert_eq!(masked(7, 1, real, Width::Bits256).eax, 0x1c10);
        assert_eq!(masked(7, 1, real, Width::Bits128).eax, 0x1c00);
        assert_eq!(masked(7, 2, ALL, Width::Bits128), ALL);
        assert_eq!(masked(0x1d, 1, ALL, Width::Bits256), NONE);
    }

    #[test]
    fn avx_goes_at_128_bits_only_and_save_areas_keep_their_size() {
        assert_eq!(masked(1, 0, ALL, Width::Bits256), ALL);
        assert_eq!(masked(1, 0, ALL, Width::Bits128).ecx, !0x3000_1000);
        for subleaf in 0..20 {
            assert_eq!(masked(0xd, subleaf, ALL, Width::Bits128), ALL);
        }
    }
}
