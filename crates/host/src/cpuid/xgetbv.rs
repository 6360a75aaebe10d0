//! The XGETBV instruction: which register states the operating system keeps.

use std::arch::x86_64::_xgetbv;

/// XCR0. Call only where CPUID.1:ECX.OSXSAVE is set, as [`super::Cpuid::xcr0`] does.
pub(super) fn xcr0() -> u64 {
    #[target_feature(enable = "xsave")]
    fn read() -> u64 {
        // SAFETY: XGETBV faults unless the operating system has set CR4.OSXSAVE, and for a
        // register number that does not exist. The only caller has checked OSXSAVE, which mirrors
        // that bit; register 0 exists wherever XGETBV does (Intel SDM volume 2, XGETBV).
        unsafe { _xgetbv(0) }
    }
    // SAFETY: `read` needs a processor with XSAVE; OSXSAVE, which the only caller has checked,
    // is set only on such processors.
    unsafe { read() }
}
