//! Instructions that only assembly has. x86-64.

use std::arch::asm;

/// A system call with up to five arguments, which leaves `errno` as it is.
///
/// # Safety
///
/// As for that call.
pub(crate) unsafe fn system_call(number: libc::c_long, arguments: [usize; 5]) -> libc::c_long {
    let [first, second, third, fourth, fifth] = arguments;
    let result: libc::c_long;
    // SAFETY: by contract; the kernel changes rcx, r11 and the result.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            in("r10") fourth,
            in("r8") fifth,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    result
}
