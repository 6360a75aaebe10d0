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

/// A counter of this CPU.
///
/// # Safety
///
/// The processor has this counter, and the kernel lets this process read it.
pub(crate) unsafe fn rdpmc(counter: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: by contract.
    unsafe {
        asm!(
            "rdpmc",
            in("ecx") counter,
            out("eax") low,
            out("edx") high,
            options(nostack, nomem)
        );
    }
    u64::from(high) << 32 | u64::from(low)
}
