//! The XGETBV instruction, which returns the register states that the operating system saves.

use std::arch::x86_64::_xgetbv;

/// Returns XCR0. Call only if CPUID.1:ECX.OSXSAVE is set, as [`super::Cpuid::xcr0`] does.
pub(super) fn xcr0() -> u64 {
    #[target_feature(enable = "xsave")]
    fn read() -> u64 {
        // SAFETY: XGETBV faults if the operating system has not set CR4.OSXSAVE, and for a register
        // number that does not exist. The only caller has checked OSXSAVE, which mirrors that bit;
        // register 0 exists on every processor that has XGETBV (Intel SDM volume 2, XGETBV).
        unsafe { _xgetbv(0) }
    }
    // SAFETY: `read` needs a processor with XSAVE. The only caller has checked OSXSAVE, which is
    // set only on such processors.
    unsafe { read() }
}
