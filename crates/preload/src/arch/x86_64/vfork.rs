//! `vfork`, whose child returns on its parent's stack.

use std::arch::naked_asm;

use dimmer_hook::allow_migration;

use crate::home::{VFORK, before_vfork, fails};

/// vfork(2). The child shares its parent's memory, and so its workers: a call that moved there
/// would run in the parent. So calls stay until the parent goes on. The system call is made here.
/// Both processes return on the same stack, so the return address is kept in a register. With
/// shadow stacks, where nothing moves, the C library's function is called.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn vfork() {
    naked_asm!(
        "lea rdi, [rip + {next}]",
        "push rax",
        "call {before}",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "pop rdi",
        "mov eax, {vfork}",
        "syscall",
        "push rdi",
        "test eax, eax",
        "jz 3f",
        // In the parent. Pushing rax aligns the stack for the call.
        "push rax",
        "call {allow_migration}",
        "pop rax",
        "cmp eax, -4095",
        "jb 3f",
        "mov edi, eax",
        "neg edi",
        "jmp {fails}",
        "3:",
        "ret",
        next = sym VFORK,
        before = sym before_vfork,
        vfork = const libc::SYS_vfork,
        allow_migration = sym allow_migration,
        fails = sym fails,
    )
}
