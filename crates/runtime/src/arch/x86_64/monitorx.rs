//! Waiting by MONITORX and MWAITX (AMD processors since Excavator). The wait is in state C0, and
//! ends after a number of ticks of the time-stamp counter.
//!
//! Source: AMD64 Architecture Programmer's Manual volume 3, MONITORX, MWAITX.

use std::arch::asm;

use dimmer_host::cpuid::{Cpuid, Feature};

use crate::wait::{IsWaitedFor, MONITOR_TICKS, Way, Word};

/// MONITORX and MWAITX.
pub(crate) const WAY: Way = Way { name: "mwaitx", is_available, wait };

fn is_available(cpuid: &Cpuid) -> bool {
    cpuid.usable(Feature::Monitorx)
}

#[inline(never)]
unsafe fn wait(word: &Word, is_waited_for: IsWaitedFor<'_>) -> Option<u32> {
    // SAFETY: the caller guarantees the instruction.
    unsafe { monitorx(std::ptr::from_ref(word).cast()) };
    let now = word.value();
    if !is_waited_for(now) {
        return Some(now);
    }
    // SAFETY: the caller guarantees the instruction.
    unsafe { mwaitx(MONITOR_TICKS) };
    None
}

/// Monitors the line that holds this address.
///
/// # Safety
/// The processor has MONITORX.
#[inline]
unsafe fn monitorx(line: *const u8) {
    let none = 0_u32;
    // SAFETY: reads no more than a load of that byte would. No extensions, no hints.
    unsafe {
        asm!("monitorx", in("rax") line, in("ecx") none, in("edx") none, options(nostack, preserves_flags));
    }
}

/// Waits for a write to the line, for at most `ticks` ticks.
///
/// # Safety
/// The processor has MONITORX.
#[inline]
unsafe fn mwaitx(ticks: u32) {
    /// C0: the shallowest state, which the core leaves soonest.
    const C0: u32 = 0xF0;
    /// Flag: `ebx` holds a maximum time.
    const TIMED: u32 = 1 << 1;
    // SAFETY: waits. The compiler reserves `rbx`, so it is restored.
    unsafe {
        asm!(
            "xchg rbx, {ticks}",
            "mwaitx",
            "xchg rbx, {ticks}",
            ticks = inout(reg) u64::from(ticks) => _,
            in("eax") C0,
            in("ecx") TIMED,
            options(nostack, preserves_flags),
        );
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use iced_x86::Code;

    use super::*;
    use crate::arch::x86_64::tests::check;

    #[test]
    fn instructions_are_what_they_are_called() {
        check(monitorx as *const (), &[Code::Monitorxq]);
        let exchange = Code::Xchg_rm64_r64;
        check(mwaitx as *const (), &[exchange, Code::Mwaitx, exchange]);
    }
}
