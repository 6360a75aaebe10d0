//! Functions of the C library's names, with any arguments, that do something and then go on in the
//! C library's function.

use std::arch::naked_asm;

use crate::home::{SYSCALL, before_syscall};

/// Pushes the arguments of a function. The stack is aligned for calls then.
macro_rules! save_arguments {
    () => {
        concat!(
            "push rdi\n",
            "push rsi\n",
            "push rdx\n",
            "push rcx\n",
            "push r8\n",
            "push r9\n",
            "push rax\n"
        )
    };
}

/// Pops the arguments again.
macro_rules! restore_arguments {
    () => {
        concat!(
            "pop rax\n",
            "pop r9\n",
            "pop r8\n",
            "pop rcx\n",
            "pop rdx\n",
            "pop rsi\n",
            "pop rdi\n"
        )
    };
}

/// A function that goes on in the C library's function of the same name, or in `$without` if this
/// library must be taken out.
macro_rules! starts {
    ($name:ident, $next:ident, $before:ident, $without:ident) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                $crate::arch::save_arguments!(),
                "call {before}",
                "mov r11, rax",
                $crate::arch::restore_arguments!(),
                "test r11, r11",
                "jz {without}",
                "jmp r11",
                before = sym $before,
                without = sym $without,
            )
        }
    };
}

/// A function that calls `$come_home` with `$next` and its first argument, and goes on at the
/// address that this returns.
macro_rules! comes_home {
    ($name:ident, $next:path, $come_home:path) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                $crate::arch::save_arguments!(),
                "mov esi, edi",
                "lea rdi, [rip + {next}]",
                "call {come_home}",
                "mov r11, rax",
                $crate::arch::restore_arguments!(),
                "jmp r11",
                next = sym $next,
                come_home = sym $come_home,
            )
        }
    };
}

/// syscall(2). Programs use it for system calls that older C libraries have no function for.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall() {
    naked_asm!(
        save_arguments!(),
        "mov ecx, edx",
        "mov edx, esi",
        "lea rsi, [rip + {next}]",
        "call {before}",
        "mov r11, rax",
        restore_arguments!(),
        "jmp r11",
        next = sym SYSCALL,
        before = sym before_syscall,
    )
}

pub(crate) use {comes_home, restore_arguments, save_arguments, starts};
