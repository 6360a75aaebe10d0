//! Compares every kernel's declaration with its decoded bytes.

use dimmer_processor::class::InstructionClass;
use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register,
};

use crate::kernel::{Dependency, Feature, all, find};

fn decode(code: &[u8]) -> Instruction {
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    let instruction = decoder.decode();
    assert_eq!(instruction.len(), code.len());
    instruction
}

/// The class by an independent rule: width from the registers, weight from the mnemonic.
fn class_of(instruction: &Instruction) -> InstructionClass {
    let register = instruction.op0_register();
    let mnemonic = format!("{:?}", instruction.mnemonic()).to_lowercase();
    let heavy = ["fmadd", "vmul", "pmul", "pmadd"].iter().any(|part| mnemonic.contains(part));
    if mnemonic.ends_with("sd") && register.is_xmm() || register.is_gpr() {
        return InstructionClass::Scalar;
    }
    match (register.is_xmm(), register.is_ymm(), register.is_zmm(), heavy) {
        (true, _, _, false) => InstructionClass::Light128,
        (true, _, _, true) => InstructionClass::Heavy128,
        (_, true, _, false) => InstructionClass::Light256,
        (_, true, _, true) => InstructionClass::Heavy256,
        (_, _, true, false) => InstructionClass::Light512,
        (_, _, true, true) => InstructionClass::Heavy512,
        _ => {
            assert!(register.is_tmm(), "{instruction:?}");
            InstructionClass::Tile
        }
    }
}

#[test]
fn declarations_match_the_decoded_bytes() {
    for kernel in all() {
        let mnemonic = kernel.name.split('-').next().unwrap();
        let mut destinations = Vec::new();
        for code in &kernel.instructions {
            let instruction = decode(code);
            let decoded = format!("{:?}", instruction.mnemonic()).to_lowercase();
            assert_eq!(decoded, mnemonic, "{kernel}");
            assert_ne!(instruction.mnemonic(), Mnemonic::INVALID, "{kernel}");
            assert_eq!(class_of(&instruction), kernel.class, "{kernel}: {instruction:?}");
            let loads = instruction.memory_base() != Register::None;
            assert_eq!(loads, kernel.name.contains("-load"), "{kernel}: {instruction:?}");
            destinations.push(instruction.op0_register());
            if kernel.dependency == Dependency::Dependent {
                assert_eq!(instruction.op0_register(), instruction.op1_register(), "{kernel}");
            }
        }
        let count = destinations.len();
        destinations.sort_unstable();
        destinations.dedup();
        assert_eq!(destinations.len(), count, "{kernel}: a destination stands twice");
        let expected = match (kernel.dependency, kernel.class) {
            (Dependency::Dependent, _) => 1,
            (_, InstructionClass::Light512 | InstructionClass::Heavy512) => 31,
            (_, InstructionClass::Tile) => 6,
            _ if mnemonic == "add" => 8,
            _ => 15,
        };
        assert_eq!(count, expected, "{kernel}");
    }
}

#[test]
fn kernels_keep_to_their_registers() {
    let kept = [Register::RCX, Register::RBX, Register::RBP, Register::RSP].into_iter().chain([
        Register::R12,
        Register::R13,
        Register::R14,
        Register::R15,
    ]);
    let kept: Vec<Register> = kept.collect();
    let mut factory = InstructionInfoFactory::new();
    for kernel in all() {
        for code in &kernel.instructions {
            let instruction = decode(code);
            for used in factory.info(&instruction).used_registers() {
                let written = !matches!(used.access(), OpAccess::Read | OpAccess::CondRead);
                let register = used.register().full_register();
                assert!(!(written && kept.contains(&register)), "{kernel}: {instruction:?}");
            }
        }
    }
}

#[test]
fn narrow_kernels_need_no_avx512() {
    for kernel in all().iter().filter(|k| k.needs.iter().all(|f| *f <= Feature::Fma)) {
        for code in &kernel.instructions {
            assert_ne!(code[0], 0x62, "{kernel} is EVEX encoded");
        }
    }
}

#[test]
fn the_papers_instructions_are_all_there() {
    let paper = [
        "vfmaddsub132pd",
        "vfmaddsub132ps",
        "vmulpd",
        "vmulps",
        "vpmullq",
        "vpackssdw",
        "vpaddsw",
        "vpmaddwd",
    ];
    for mnemonic in paper {
        for width in ["256", "512"] {
            for dependency in ["unrolled", "dependent"] {
                let name = format!("{mnemonic}-{width}-{dependency}");
                assert!(find(&name).is_ok(), "{name}");
            }
        }
    }
}
