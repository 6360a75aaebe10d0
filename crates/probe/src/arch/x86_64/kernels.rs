//! The instruction templates of the kernels, in assembly, with their declared properties.
//!
//! A template is a short run of one instruction over different registers (`unrolled`) or over the
//! same ones (`dependent`). It lies in read-only data and is never executed in place:
//! [`crate::silicon`] copies it as often as a burst needs, as the AVXFREQ thesis built its code
//! areas (paper 000 §3.2.4). A test decodes every template and compares it with its declaration.
//!
//! # Registers
//!
//! | register | use |
//! |---|---|
//! | vector register 0 | source of every instruction, loaded before a burst |
//! | vector registers 1 and up | destinations |
//! | `tmm6`, `tmm7` | tile sources; `tmm0` to `tmm5` are destinations |
//! | `r15` | address of the operands in memory |
//! | `rax rdx rsi rdi r8..r11` | general-purpose templates |
//! | `rcx` | loop counter of the code around the copies; no template touches it |
//!
//! Destinations go up to register 31 for 512 bits (as in the thesis), and to 15 otherwise, so that
//! narrower kernels keep their VEX encoding and run without AVX-512.

#[cfg(test)]
mod tests;

use std::arch::global_asm;

use dimmer_processor::class::InstructionClass::{
    Heavy128, Heavy256, Heavy512, Light256, Light512, Scalar, Tile,
};

use iced_x86::{Decoder, DecoderOptions};

use super::features::Feature::{
    self, AmxBf16, AmxInt8, AmxTile, Avx2, Avx512bw, Avx512dq, Avx512f, Avx512ifma, Avx512vl, Fma,
};
use crate::kernel::Dependency::{Dependent, Unrolled};
use crate::kernel::Template;

/// Emits one template between two symbols, in a module named `$name` that holds its bounds.
macro_rules! emit {
    ($name:ident, $symbol:expr, $body:expr) => {
        pub(super) mod $name {
            super::global_asm!(
                ".pushsection .rodata.dimmer_kernels,\"a\",@progbits",
                // Global, because the code that refers to them may be compiled in another unit.
                concat!(".globl dimmer_kernel_", $symbol, "_begin"),
                concat!(".globl dimmer_kernel_", $symbol, "_end"),
                concat!("dimmer_kernel_", $symbol, "_begin:"),
                $body,
                concat!("dimmer_kernel_", $symbol, "_end:"),
                ".popsection"
            );
            unsafe extern "C" {
                #[link_name = concat!("dimmer_kernel_", $symbol, "_begin")]
                static BEGIN: u8;
                #[link_name = concat!("dimmer_kernel_", $symbol, "_end")]
                static END: u8;
            }

            /// The bytes between the two symbols.
            pub(in crate::arch::x86_64::kernels) fn bytes() -> &'static [u8] {
                let (begin, end) = (&raw const BEGIN, &raw const END);
                // SAFETY: both symbols come from the one assembly block above: they bound an
                // initialised stretch of read-only data, and `end` is not before `begin`.
                let length = unsafe { end.offset_from_unsigned(begin) };
                // SAFETY: the two symbols bound this stretch (see the block above). It is never
                // written, and lives as long as the program.
                unsafe { std::slice::from_raw_parts(begin, length) }
            }
        }
    };
}

/// Emits the four templates of a three-operand vector instruction: 256 and 512 bit, unrolled and
/// dependent.
macro_rules! vector {
    ($name:ident) => {
        mod $name {
            use super::global_asm;
            emit!(
                unrolled_256,
                concat!(stringify!($name), "_256_unrolled"),
                concat!(
                    ".irp i,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n",
                    stringify!($name),
                    " ymm\\i, ymm0, ymm0\n.endr"
                )
            );
            emit!(
                dependent_256,
                concat!(stringify!($name), "_256_dependent"),
                concat!(stringify!($name), " ymm1, ymm1, ymm0")
            );
            emit!(
                unrolled_512,
                concat!(stringify!($name), "_512_unrolled"),
                concat!(
                    ".irp i,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,",
                    "27,28,29,30,31\n",
                    stringify!($name),
                    " zmm\\i, zmm0, zmm0\n.endr"
                )
            );
            emit!(
                dependent_512,
                concat!(stringify!($name), "_512_dependent"),
                concat!(stringify!($name), " zmm1, zmm1, zmm0")
            );
        }
    };
}

vector!(vfmaddsub132pd);
vector!(vfmaddsub132ps);
vector!(vmulpd);
vector!(vmulps);
vector!(vpmullq);
vector!(vpackssdw);
vector!(vpaddsw);
vector!(vpmaddwd);
vector!(vfmadd231pd);
vector!(vpaddd);
vector!(vpmadd52luq);

emit!(
    load_512,
    "vfmadd231pd_512_load",
    ".irp i,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
     vfmadd231pd zmm\\i, zmm0, zmmword ptr [r15 + 64*\\i]
     .endr"
);
emit!(
    fma_128,
    "vfmadd231pd_128_unrolled",
    ".irp i,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
     vfmadd231pd xmm\\i, xmm0, xmm0
     .endr"
);
emit!(
    fma_scalar,
    "vfmadd231sd_scalar_unrolled",
    ".irp i,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
     vfmadd231sd xmm\\i, xmm0, xmm0
     .endr"
);
emit!(
    add_scalar,
    "add_scalar_unrolled",
    "add rax, rax
     add rdx, rdx
     add rsi, rsi
     add rdi, rdi
     add r8, r8
     add r9, r9
     add r10, r10
     add r11, r11"
);
emit!(
    tile_bf16,
    "tdpbf16ps_tile_unrolled",
    ".irp i,0,1,2,3,4,5
     tdpbf16ps tmm\\i, tmm6, tmm7
     .endr"
);
emit!(
    tile_int8,
    "tdpbssd_tile_unrolled",
    ".irp i,0,1,2,3,4,5
     tdpbssd tmm\\i, tmm6, tmm7
     .endr"
);

/// The four declarations that belong to a [`vector!`].
macro_rules! declare {
    ($name:ident, $class_256:expr, $needs_256:expr, $class_512:expr, $needs_512:expr) => {{
        let template = |class, dependency, needs, bytes| Template {
            mnemonic: stringify!($name),
            class,
            dependency,
            loads: false,
            needs,
            bytes,
        };
        let (narrow, wide): (&'static [Feature], &'static [Feature]) = ($needs_256, $needs_512);
        [
            template($class_256, Unrolled, narrow, $name::unrolled_256::bytes()),
            template($class_256, Dependent, narrow, $name::dependent_256::bytes()),
            template($class_512, Unrolled, wide, $name::unrolled_512::bytes()),
            template($class_512, Dependent, wide, $name::dependent_512::bytes()),
        ]
    }};
}

/// All templates, in the order in which kernels are listed.
pub(crate) fn templates() -> Vec<Template> {
    const FMA: &[Feature] = &[Avx2, Fma];
    const EVEX: &[Feature] = &[Avx512f];
    const EVEX_BYTES: &[Feature] = &[Avx512f, Avx512bw];
    let mut list = [
        // The eight instructions of paper 000 §3.3.2; its `vpmulldq` is spelt `vpmullq` here.
        declare!(vfmaddsub132pd, Heavy256, FMA, Heavy512, EVEX),
        declare!(vfmaddsub132ps, Heavy256, FMA, Heavy512, EVEX),
        declare!(vmulpd, Heavy256, &[Avx2], Heavy512, EVEX),
        declare!(vmulps, Heavy256, &[Avx2], Heavy512, EVEX),
        declare!(vpmullq, Heavy256, &[Avx512dq, Avx512vl], Heavy512, &[Avx512f, Avx512dq]),
        declare!(vpackssdw, Light256, &[Avx2], Light512, EVEX_BYTES),
        declare!(vpaddsw, Light256, &[Avx2], Light512, EVEX_BYTES),
        declare!(vpmaddwd, Heavy256, &[Avx2], Heavy512, EVEX_BYTES),
        // Not in the paper: the usual multiply-add, light integer code, big-number arithmetic.
        declare!(vfmadd231pd, Heavy256, FMA, Heavy512, EVEX),
        declare!(vpaddd, Light256, &[Avx2], Light512, EVEX),
        declare!(vpmadd52luq, Heavy256, &[Avx512ifma, Avx512vl], Heavy512, &[Avx512f, Avx512ifma]),
    ]
    .concat();
    let single = |mnemonic, class, loads, needs, bytes| Template {
        mnemonic,
        class,
        dependency: Unrolled,
        loads,
        needs,
        bytes,
    };
    list.extend([
        single("vfmadd231pd", Heavy512, true, EVEX, load_512::bytes()),
        single("vfmadd231pd", Heavy128, false, FMA, fma_128::bytes()),
        single("vfmadd231sd", Scalar, false, FMA, fma_scalar::bytes()),
        single("add", Scalar, false, &[], add_scalar::bytes()),
        single("tdpbf16ps", Tile, false, &[AmxTile, AmxBf16], tile_bf16::bytes()),
        single("tdpbssd", Tile, false, &[AmxTile, AmxInt8], tile_int8::bytes()),
    ]);
    list
}

/// Cuts a template into its instructions.
pub(crate) fn split(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut rest = bytes;
    let decoder = Decoder::new(64, bytes, DecoderOptions::NONE);
    let mut instructions = Vec::new();
    for instruction in decoder {
        let (head, tail) = rest.split_at(instruction.len());
        instructions.push(head.to_vec());
        rest = tail;
    }
    instructions
}
