//! Instructions that depend on the thread, on the kernel's view of it, or on registers that are not
//! handed over.

use iced_x86::{CpuidFeature, FlowControl, Instruction, Mnemonic, OpKind, Register};

use crate::leaf::NotLeaf;

/// Whether an instruction does the same on another thread, as far as the instruction alone shows.
///
/// The list names what is allowed, so that the features of later processors are refused.
pub(crate) fn check(instruction: &Instruction) -> Result<(), NotLeaf> {
    let at = instruction.ip();
    if matches!(instruction.segment_prefix(), Register::FS | Register::GS) {
        return Err(NotLeaf::ThreadStorage { at });
    }
    match instruction.mnemonic() {
        Mnemonic::Syscall | Mnemonic::Sysenter => return Err(NotLeaf::System { at }),
        Mnemonic::Cpuid | Mnemonic::Rdtscp | Mnemonic::Rdpid => {
            return Err(NotLeaf::ThisProcessor { at });
        }
        _ => {}
    }
    if instruction.flow_control() == FlowControl::Interrupt {
        return Err(NotLeaf::System { at });
    }
    let is_allowed = |feature: &CpuidFeature| ALLOWED.contains(feature);
    let is_plain = |index| {
        let register = instruction.op_register(index);
        instruction.op_kind(index) != OpKind::Register
            || register.is_gpr()
            || register.is_vector_register()
            || register.is_k()
    };
    let is_sound = instruction.cpuid_features().iter().all(is_allowed)
        && !is_refused(instruction.mnemonic())
        && !instruction.is_privileged()
        && (0..instruction.op_count()).all(is_plain);
    if is_sound { Ok(()) } else { Err(NotLeaf::Control { at }) }
}

/// Instructions that touch the direction flag or the control of arithmetic, or make system calls of
/// some kind, and that came with the features below.
const fn is_refused(mnemonic: Mnemonic) -> bool {
    matches!(
        mnemonic,
        Mnemonic::Std
            | Mnemonic::Cld
            | Mnemonic::Popf
            | Mnemonic::Popfd
            | Mnemonic::Popfq
            | Mnemonic::Pushf
            | Mnemonic::Pushfd
            | Mnemonic::Pushfq
            | Mnemonic::Ldmxcsr
            | Mnemonic::Vldmxcsr
            | Mnemonic::Stmxcsr
            | Mnemonic::Vstmxcsr
            | Mnemonic::In
            | Mnemonic::Out
            | Mnemonic::Enter
            | Mnemonic::Retf
            | Mnemonic::Iretd
            | Mnemonic::Iretq
    )
}

/// Processor features whose instructions read and write general registers, vector registers, masks,
/// status flags and memory, and little else.
const ALLOWED: [CpuidFeature; 59] = [
    CpuidFeature::INTEL8086,
    CpuidFeature::INTEL186,
    CpuidFeature::INTEL286,
    CpuidFeature::INTEL386,
    CpuidFeature::INTEL486,
    CpuidFeature::X64,
    CpuidFeature::CMOV,
    CpuidFeature::CX8,
    CpuidFeature::CMPXCHG16B,
    CpuidFeature::MULTIBYTENOP,
    CpuidFeature::PAUSE,
    CpuidFeature::CET_IBT,
    CpuidFeature::SSE,
    CpuidFeature::SSE2,
    CpuidFeature::SSE3,
    CpuidFeature::SSSE3,
    CpuidFeature::SSE4_1,
    CpuidFeature::SSE4_2,
    CpuidFeature::POPCNT,
    CpuidFeature::LZCNT,
    CpuidFeature::BMI1,
    CpuidFeature::BMI2,
    CpuidFeature::ADX,
    CpuidFeature::MOVBE,
    CpuidFeature::PREFETCHW,
    CpuidFeature::PREFETCHWT1,
    CpuidFeature::AES,
    CpuidFeature::PCLMULQDQ,
    CpuidFeature::SHA,
    CpuidFeature::SHA512,
    CpuidFeature::SM3,
    CpuidFeature::SM4,
    CpuidFeature::GFNI,
    CpuidFeature::VAES,
    CpuidFeature::VPCLMULQDQ,
    CpuidFeature::F16C,
    CpuidFeature::FMA,
    CpuidFeature::FMA4,
    CpuidFeature::XOP,
    CpuidFeature::AVX,
    CpuidFeature::AVX2,
    CpuidFeature::AVX_IFMA,
    CpuidFeature::AVX_NE_CONVERT,
    CpuidFeature::AVX_VNNI,
    CpuidFeature::AVX_VNNI_INT8,
    CpuidFeature::AVX_VNNI_INT16,
    CpuidFeature::AVX512F,
    CpuidFeature::AVX512BW,
    CpuidFeature::AVX512CD,
    CpuidFeature::AVX512DQ,
    CpuidFeature::AVX512VL,
    CpuidFeature::AVX512_BF16,
    CpuidFeature::AVX512_BITALG,
    CpuidFeature::AVX512_FP16,
    CpuidFeature::AVX512_IFMA,
    CpuidFeature::AVX512_VBMI,
    CpuidFeature::AVX512_VBMI2,
    CpuidFeature::AVX512_VNNI,
    CpuidFeature::AVX512_VPOPCNTDQ,
];
