//! Checks that assembled routines hold exactly the requested number of instructions.

use iced_x86::{Decoder, DecoderOptions, Mnemonic};

use super::{burst, dirty, zeroed};
use crate::kernel;
use crate::program::Operands;

/// Number of instructions of `mnemonic` that a call of the routine executes.
fn executed(routine: &[u8], mnemonic: Mnemonic) -> u64 {
    let mut decoder = Decoder::new(64, routine, DecoderOptions::NONE);
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
    let kernel = kernel::find("vfmadd231pd-512-unrolled").unwrap();
    for instructions in [1, 2, 31, 32, 800, 1024, 1025, 4096, 100_000, 65_536] {
        for operands in [Operands::Bare, Operands::Loaded] {
            let burst = burst(&kernel, instructions, operands).unwrap();
            assert_eq!(executed(&burst, Mnemonic::Vfmadd231pd), u64::from(instructions));
            let loads = u64::from(operands == Operands::Loaded);
            assert_eq!(executed(&burst, Mnemonic::Vmovupd), loads);
            assert_eq!(executed(&burst, Mnemonic::Vzeroupper), 1);
        }
    }
}

#[test]
fn dirty_bursts_leave_the_upper_halves_alone() {
    let kernel = kernel::find("vfmadd231pd-256-unrolled-dirty").unwrap();
    let burst = burst(&kernel, 100, Operands::Loaded).unwrap();
    assert_eq!(executed(&burst, Mnemonic::Vzeroupper), 0);
    assert_eq!(executed(&burst, Mnemonic::Vmovupd), 0);
    let dirty = dirty().unwrap();
    assert_eq!(executed(&dirty, Mnemonic::Vmovupd), 1);
    assert_eq!(executed(&dirty, Mnemonic::Vzeroupper), 0);
    assert_eq!(executed(&zeroed().unwrap(), Mnemonic::Vzeroupper), 1);
}
