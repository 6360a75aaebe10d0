//! System calls that touch neither `errno` nor anything else in thread-local storage.

use std::arch::asm;

/// Makes a system call, and returns the kernel's answer: an error is negative.
///
/// # Safety
/// As for the call.
#[inline]
pub unsafe fn system_call(number: i64, arguments: [i64; 6]) -> i64 {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    let answer: i64;
    // SAFETY: the caller guarantees the call; the kernel changes no other registers.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => answer,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            in("r10") fourth,
            in("r8") fifth,
            in("r9") sixth,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    answer
}
