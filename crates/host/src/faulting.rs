//! Whether the kernel can make CPUID fault, so that a process can handle the instruction itself.
//!
//! Source: Linux arch_prctl(2). AMD's `CpuidUserDis` (CPUID 0x80000021 EAX bit 17) has the same
//! interface since Linux 6.17. Uses `unsafe` because no crate used here wraps `arch_prctl`.

use std::io;

use crate::unavailable::Unavailable;

/// Source: Linux `arch/x86/include/uapi/asm/prctl.h`.
const ARCH_GET_CPUID: libc::c_int = 0x1011;
const ARCH_SET_CPUID: libc::c_int = 0x1012;

/// The kernel's name for the feature in `/proc/cpuinfo`.
pub(crate) const FLAG: &str = "cpuid_fault";

/// The remedy: what the feature needs.
pub(crate) const NEEDS: &str = "use an Intel processor since Ivy Bridge with Linux 4.12 or later \
    (`cpuid_fault` among the flags in /proc/cpuinfo), or an AMD processor since Zen 4 with Linux 6.17 or \
    later, and a hypervisor that passes it on";

/// Checks by setting this thread's present setting again.
///
/// # Errors
/// [`Unavailable`]: the processor, the hypervisor or the kernel does not support it.
pub fn check() -> Result<(), Unavailable> {
    // SAFETY: the call takes no pointer and changes nothing.
    let allowed = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_GET_CPUID, 0) };
    if allowed >= 0 {
        // SAFETY: the call takes a number, no pointer; the setting stays the same.
        let result = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_CPUID, allowed) };
        if result == 0 {
            return Ok(());
        }
    }
    Err(Unavailable::new(
        "hiding features from CPUID",
        format!("arch_prctl(ARCH_SET_CPUID): {}", io::Error::last_os_error()),
        NEEDS,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_can_where_its_flags_say_so() {
        let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let has = flags.split_whitespace().any(|flag| flag == FLAG);
        let found = check();
        // Not every kernel lists AMD's feature as a flag there.
        assert!(found.is_ok() || !has, "{found:?}");
    }
}
