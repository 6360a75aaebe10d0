//! Whether a thread's stack and thread-local storage can go on in another kernel thread, in this process.

/// The kernel lets programs change the FS base (`AT_HWCAP2`, Linux `arch/x86/include/uapi/asm/hwcap2.h`).
const HWCAP2_FSGSBASE: libc::c_ulong = 1 << 1;

/// Asks which shadow-stack features are on (Linux `arch/x86/include/uapi/asm/prctl.h`).
const ARCH_SHSTK_STATUS: libc::c_long = 0x5005;

/// Whether programs may change the FS base, which holds thread-local storage, by themselves: Linux 5.9 or later, on a
/// processor that has the instructions.
#[must_use]
pub fn can_change_thread_pointer() -> bool {
    // SAFETY: reads what the kernel told the process at its start.
    unsafe { libc::getauxval(libc::AT_HWCAP2) & HWCAP2_FSGSBASE != 0 }
}

/// Whether return addresses are kept by the processor too, in this process; they would not move with the stack.
#[must_use]
pub fn has_shadow_stack() -> bool {
    let mut features: u64 = 0;
    // SAFETY: the kernel writes 64 bits, or refuses.
    let told = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SHSTK_STATUS, &raw mut features) };
    told == 0 && features != 0
}
