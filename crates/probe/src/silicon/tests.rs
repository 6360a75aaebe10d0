//! Checks that assembled routines hold exactly the requested number of instructions.

use iced_x86::{Decoder, DecoderOptions, Mnemonic};

use super::code::CodeArea;
use crate::kernel;
use crate::program::{Operands, Work};
use std::sync::Arc;

/// Number of instructions of `mnemonic` that a call of the routine executes.
fn executed(work: &Work, mnemonic: Mnemonic) -> u64 {
    let mut area = CodeArea::new(false).unwrap();
    let (routine, _) = area.routine(work).unwrap();
    // SAFETY: the area is two mebibytes and readable, and routines lie in its first half.
    let code = unsafe { std::slice::from_raw_parts(routine, 1 << 18) };
    let mut decoder = Decoder::with_ip(64, code, routine.addr() as u64, DecoderOptions::NONE);
    let (mut count, mut loop_start, mut iterations) = (0, None, 0);
    loop {
        let instruction = decoder.decode();
        match instruction.mnemonic() {
            Mnemonic::Mov => {
                iterations = u64::from(instruction.immediate32());
                loop_start = Some((instruction.next_ip(), count));
            }
            Mnemonic::Jne => {
                let (target, before) = loop_start.unwrap();
                assert_eq!(instruction.near_branch_target(), target);
                count = before + (count - before) * iterations;
            }
            Mnemonic::Ret => return count,
            other => count += u64::from(other == mnemonic),
        }
    }
}

#[test]
fn bursts_hold_exactly_as_many_instructions_as_asked_for() {
    let kernel = Arc::new(kernel::find("vfmadd231pd-512-unrolled").unwrap());
    for instructions in [1, 2, 31, 32, 800, 1024, 1025, 4096, 100_000, 65_536] {
        for operands in [Operands::Bare, Operands::Loaded] {
            let work = Work::Burst { kernel: Arc::clone(&kernel), instructions, operands };
            assert_eq!(executed(&work, Mnemonic::Vfmadd231pd), u64::from(instructions));
            let loads = u64::from(operands == Operands::Loaded);
            assert_eq!(executed(&work, Mnemonic::Vmovupd), loads);
            assert_eq!(executed(&work, Mnemonic::Vzeroupper), 1);
        }
    }
}

#[test]
fn dirty_bursts_leave_the_upper_halves_alone() {
    let kernel = Arc::new(kernel::find("vfmadd231pd-256-unrolled-dirty").unwrap());
    let work = Work::burst(&kernel, 100);
    assert_eq!(executed(&work, Mnemonic::Vzeroupper), 0);
    assert_eq!(executed(&work, Mnemonic::Vmovupd), 0);
    let dirty = Work::TouchUpper { clean: false };
    assert_eq!(executed(&dirty, Mnemonic::Vmovupd), 1);
    assert_eq!(executed(&dirty, Mnemonic::Vzeroupper), 0);
    assert_eq!(executed(&Work::TouchUpper { clean: true }, Mnemonic::Vzeroupper), 1);
}
