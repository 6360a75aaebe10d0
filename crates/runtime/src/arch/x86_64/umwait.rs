//! Waiting by UMONITOR and UMWAIT (WAITPKG: Intel processors since Tremont, Alder Lake and Sapphire
//! Rapids). The wait is in state C0.1, and ends at a value of the time-stamp counter. Kernels limit
//! it as well (`/sys/devices/system/cpu/umwait_control`).
//!
//! Source: Intel SDM volume 2, UMONITOR, UMWAIT.

use std::arch::asm;
use std::arch::x86_64::_rdtsc;

use dimmer_host::cpuid::{Cpuid, Feature};

use crate::wait::{IsWaitedFor, MONITOR_TICKS, Way, Word};

/// UMONITOR and UMWAIT.
pub(crate) const WAY: Way = Way { name: "umwait", is_available, wait };

fn is_available(cpuid: &Cpuid) -> bool {
    cpuid.usable(Feature::Waitpkg)
}

#[inline(never)]
unsafe fn wait(word: &Word, is_waited_for: IsWaitedFor<'_>) -> Option<u32> {
    // SAFETY: the caller guarantees the instruction.
    unsafe { umonitor(std::ptr::from_ref(word).cast()) };
    let now = word.value();
    if !is_waited_for(now) {
        return Some(now);
    }
    // SAFETY: reads a counter.
    let begin = unsafe { _rdtsc() };
    // SAFETY: the caller guarantees the instruction.
    unsafe { umwait(begin.saturating_add(MONITOR_TICKS.into())) };
    None
}

/// Monitors the line that holds this address.
///
/// # Safety
/// The processor has WAITPKG.
#[inline]
unsafe fn umonitor(line: *const u8) {
    // SAFETY: reads no more than a load of that byte would.
    unsafe { asm!("umonitor {}", in(reg) line, options(nostack, preserves_flags)) };
}

/// Waits for a write to the line, until the counter reaches `deadline`.
///
/// # Safety
/// The processor has WAITPKG.
#[inline]
unsafe fn umwait(deadline: u64) {
    /// C0.1, which the core leaves sooner than C0.2.
    const C0_1: u32 = 1;
    let [low, high] = [deadline & u64::from(u32::MAX), deadline >> 32];
    // SAFETY: waits; changes only flags.
    unsafe { asm!("umwait {:e}", in(reg) C0_1, in("eax") low, in("edx") high, options(nostack)) };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use iced_x86::Code;

    use super::*;
    use crate::arch::x86_64::tests::check;

    #[test]
    fn instructions_are_what_they_are_called() {
        check(umonitor as *const (), &[Code::Umonitor_r64]);
        check(umwait as *const (), &[Code::Umwait_r32]);
    }
}
