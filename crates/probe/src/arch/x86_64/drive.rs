//! The loop that executes a program and stamps the time, in assembly.
//!
//! # Contract of `dimmer_probe_drive`
//!
//! `(rdi groups, rsi end of groups, rdx stamps, rcx operands) -> rax end of stamps`, System V.
//!
//! | register | holds |
//! |---|---|
//! | `r12` | current [`Group`](RawGroup) |
//! | `r13` | one past the last group |
//! | `r14` | address of the next stamp |
//! | `r15` | operands, for the routines |
//! | `rbp` | remaining repetitions of the current group |
//! | `rbx` | current [`Step`](RawStep) |
//!
//! A routine is called with its iteration count in `rcx`. It may overwrite `rax rcx rdx rsi rdi
//! r8..r11`, flags and all vector registers, and preserves everything else. The stack is aligned to
//! 16 bytes before each call. Routines neither unwind nor use the stack.
//!
//! # How interrupts are detected
//!
//! The data segment register `es` has no meaning in 64-bit mode, but a return from the kernel by
//! `iret` replaces a null selector other than 0 by 0. So the loop sets `es` to 3, reads it at every
//! stamp, and sets it again if it was cleared (Zhang et al., "SegScope", HPCA 2024). Interrupts
//! that a hypervisor handles itself do not pass through the guest's `iret` and stay unseen. If the
//! kernel returns in another way (FRED), no interrupt is ever seen, and only durations can show
//! one.
//!
//! # Stamps
//!
//! `lfence` waits until all earlier instructions are done; `rdtsc` follows at once. Later
//! instructions may start a few cycles early, the same in every window.

use std::arch::global_asm;
use std::mem::offset_of;

use crate::program::Stamp;

/// One window: its routine, and the number of iterations.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawStep {
    pub(crate) routine: *const u8,
    pub(crate) iterations: u64,
}

/// Steps from `first` up to but not including `end`, repeated `times` times.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawGroup {
    pub(crate) first: *const RawStep,
    pub(crate) end: *const RawStep,
    pub(crate) times: u64,
}

unsafe extern "sysv64" {
    /// See the head of this file.
    pub(crate) fn dimmer_probe_drive(
        groups: *const RawGroup,
        end: *const RawGroup,
        stamps: *mut Stamp,
        operands: *const u8,
    ) -> *mut Stamp;
    #[cfg(test)]
    static dimmer_probe_drive_end: u8;
}

global_asm!(
    ".pushsection .text.dimmer_probe_drive,\"ax\",@progbits",
    ".p2align 6",
    ".globl dimmer_probe_drive",
    "dimmer_probe_drive:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "sub rsp, 8", // 6 pushes and the return address: aligned to 16 again
    "mov r12, rdi",
    "mov r13, rsi",
    "mov r14, rdx",
    "mov r15, rcx",
    "mov eax, 3",
    "mov es, eax",
    "cmp r12, r13",
    "je 9f",
    "2:", // next group
    "mov rbp, [r12 + {times}]",
    "3:", // again through the group
    "mov rbx, [r12 + {first}]",
    "4:", // next step: stamp, then work
    "lfence",
    "rdtsc",
    "shl rdx, 32",
    "or rdx, rax",
    "mov eax, es",
    "cmp eax, 3",
    "jne 7f",
    "5:",
    "mov [r14], rdx",
    "add r14, {stamp_bytes}",
    "mov rcx, [rbx + {iterations}]",
    "call [rbx + {routine}]",
    "add rbx, {step_bytes}",
    "cmp rbx, [r12 + {end}]",
    "jne 4b",
    "dec rbp",
    "jnz 3b",
    "add r12, {group_bytes}",
    "cmp r12, r13",
    "jne 2b",
    "jmp 9f",
    "7:", // interrupted since the last stamp
    "bts rdx, 63",
    "mov eax, 3",
    "mov es, eax",
    "jmp 5b",
    "9:", // the last stamp
    "lfence",
    "rdtsc",
    "shl rdx, 32",
    "or rdx, rax",
    "mov eax, es",
    "cmp eax, 3",
    "je 8f",
    "bts rdx, 63",
    "8:",
    "mov [r14], rdx",
    "lea rax, [r14 + {stamp_bytes}]",
    "xor ecx, ecx",
    "mov es, ecx",
    "add rsp, 8",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
    ".globl dimmer_probe_drive_end",
    "dimmer_probe_drive_end:",
    ".popsection",
    first = const offset_of!(RawGroup, first),
    end = const offset_of!(RawGroup, end),
    times = const offset_of!(RawGroup, times),
    group_bytes = const size_of::<RawGroup>(),
    routine = const offset_of!(RawStep, routine),
    iterations = const offset_of!(RawStep, iterations),
    step_bytes = const size_of::<RawStep>(),
    stamp_bytes = const size_of::<Stamp>(),
);

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions, Mnemonic};

    #[test]
    fn the_loop_holds_no_system_call() {
        let begin = (dimmer_probe_drive as *const ()).cast::<u8>();
        let end = &raw const dimmer_probe_drive_end;
        // SAFETY: both symbols come from the one assembly block above, and bound it.
        let length = unsafe { end.offset_from_unsigned(begin) };
        // SAFETY: the two symbols bound this stretch of code, which is readable and never written.
        let code = unsafe { std::slice::from_raw_parts(begin, length) };
        let mut counted = 0;
        for instruction in Decoder::new(64, code, DecoderOptions::NONE) {
            let forbidden =
                [Mnemonic::Syscall, Mnemonic::Sysenter, Mnemonic::Int, Mnemonic::INVALID];
            assert!(!forbidden.contains(&instruction.mnemonic()), "{instruction:?}");
            counted += u32::from(instruction.mnemonic() == Mnemonic::Rdtsc);
        }
        assert_eq!(counted, 2);
    }
}
