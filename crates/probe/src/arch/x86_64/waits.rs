//! Instructions by which a thread waits in user space: MONITORX and MWAITX (AMD), UMONITOR, UMWAIT
//! and TPAUSE (Intel).
//!
//! Source: AMD64 Architecture Programmer's Manual volume 3, MONITORX, MWAITX; Intel SDM volume 2,
//! UMONITOR, UMWAIT, TPAUSE. `dimmer-runtime` has the same instructions for its own waits; this
//! crate does not know that one.

use std::arch::asm;

/// Monitors the line that holds this address.
///
/// # Safety
/// The processor has MONITORX.
#[inline]
pub(crate) unsafe fn monitorx(line: *const u8) {
    let none = 0_u32;
    // SAFETY: reads no more than a load of that byte would. No extensions, no hints.
    unsafe {
        asm!("monitorx", in("rax") line, in("ecx") none, in("edx") none, options(nostack, preserves_flags));
    }
}

/// Waits for a write to the monitored line, for at most `ticks` of the time-stamp counter.
///
/// * `hint`: the state, as `eax` of MWAITX has it: 0xf0 is C0, 0 is C1.
///
/// # Safety
/// The processor has MONITORX.
#[inline]
pub(crate) unsafe fn mwaitx(hint: u32, ticks: u32) {
    /// Flag: `ebx` holds a maximum time.
    const TIMED: u32 = 1 << 1;
    // SAFETY: waits. The compiler reserves `rbx`, so it is restored.
    unsafe {
        asm!(
            "xchg rbx, {ticks}",
            "mwaitx",
            "xchg rbx, {ticks}",
            ticks = inout(reg) u64::from(ticks) => _,
            in("eax") hint,
            in("ecx") TIMED,
            options(nostack, preserves_flags),
        );
    }
}

/// Monitors the line that holds this address.
///
/// # Safety
/// The processor has WAITPKG.
#[inline]
pub(crate) unsafe fn umonitor(line: *const u8) {
    // SAFETY: reads no more than a load of that byte would.
    unsafe { asm!("umonitor {}", in(reg) line, options(nostack, preserves_flags)) };
}

/// Waits for a write to the monitored line, until the time-stamp counter reaches `deadline` or the
/// kernel's limit (`/sys/devices/system/cpu/umwait_control`) is over.
///
/// * `state`: 1 is C0.1, 0 is C0.2.
///
/// # Safety
/// The processor has WAITPKG.
#[inline]
pub(crate) unsafe fn umwait(state: u32, deadline: u64) {
    let [low, high] = [deadline & u64::from(u32::MAX), deadline >> 32];
    // SAFETY: waits; changes only flags.
    unsafe { asm!("umwait {:e}", in(reg) state, in("eax") low, in("edx") high, options(nostack)) };
}

/// Waits until the time-stamp counter reaches `deadline`, or the kernel's limit is over. Returns
/// whether it was the limit.
///
/// * `state`: as for [`umwait`].
///
/// # Safety
/// The processor has WAITPKG.
#[inline]
pub(crate) unsafe fn tpause(state: u32, deadline: u64) -> bool {
    let [low, high] = [deadline & u64::from(u32::MAX), deadline >> 32];
    let is_limited: u8;
    // SAFETY: waits; changes only flags, and the register that gets one.
    unsafe {
        asm!(
            "tpause {state:e}",
            "setc {is_limited}",
            state = in(reg) state,
            is_limited = lateout(reg_byte) is_limited,
            in("eax") low,
            in("edx") high,
            options(nostack),
        );
    }
    is_limited != 0
}

#[cfg(test)]
mod tests {
    use iced_x86::{Code, Decoder, DecoderOptions};

    use super::*;

    /// Whether the instruction is among the first ones of a function.
    #[track_caller]
    fn check(function: *const (), wanted: Code) {
        // SAFETY: the code of a function of this program; its section goes on for more than the
        // few bytes that are read.
        let bytes = unsafe { std::slice::from_raw_parts(function.cast::<u8>(), 96) };
        let mut decoder = Decoder::new(64, bytes, DecoderOptions::NONE);
        let found = (0..24).any(|_| decoder.decode().code() == wanted);
        assert!(found, "no {wanted:?}");
    }

    #[test]
    fn instructions_are_what_they_are_called() {
        check(monitorx as *const (), Code::Monitorxq);
        check(mwaitx as *const (), Code::Mwaitx);
        check(umonitor as *const (), Code::Umonitor_r64);
        check(umwait as *const (), Code::Umwait_r32);
        check(tpause as *const (), Code::Tpause_r32);
    }
}
