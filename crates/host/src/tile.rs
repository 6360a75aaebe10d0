//! Permission to use tile registers (AMX), which Linux grants to a process on request.
//!
//! Source: Linux `Documentation/arch/x86/xstate.rst`. Uses `unsafe` because no crate used here
//! wraps `arch_prctl`.

use std::io;

use crate::unavailable::Unavailable;

/// Source: Linux `arch/x86/include/uapi/asm/prctl.h`.
const ARCH_GET_XCOMP_SUPP: libc::c_int = 0x1021;
const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
/// The number of the tile-data state in XCR0.
const XFEATURE_XTILEDATA: libc::c_ulong = 18;

/// Requests permission for this process and all its threads to use tile registers. May be called
/// again. The permission cannot be returned.
///
/// # Errors
/// [`Unavailable`]: the processor or the kernel has no tile registers, or an alternate signal stack
/// of the process is too small for them.
pub fn permit() -> Result<(), Unavailable> {
    // SAFETY: ARCH_REQ_XCOMP_PERM takes a number, no pointer, and changes only which registers this
    // process may use.
    let result =
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) };
    match result {
        0 => Ok(()),
        _ => Err(Unavailable::new(
            "tile registers (AMX)",
            format!("arch_prctl(ARCH_REQ_XCOMP_PERM): {}", io::Error::last_os_error()),
            "needs a processor with AMX and Linux 5.16 or later",
        )),
    }
}

/// Whether the running kernel grants tile registers. Changes nothing.
#[must_use]
pub fn kernel_supports() -> bool {
    let mut supported: u64 = 0;
    // SAFETY: ARCH_GET_XCOMP_SUPP writes one u64 through the pointer, and `supported` is one that
    // lives until the call returns; a kernel without this operation writes nothing.
    let result =
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_GET_XCOMP_SUPP, &raw mut supported) };
    result == 0 && supported & (1 << XFEATURE_XTILEDATA) != 0
}
