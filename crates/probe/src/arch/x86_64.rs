//! The x86-64 side of the contract in [`crate::arch`].

mod clock;
pub(crate) mod drive;
pub(crate) mod features;
pub(crate) mod kernels;
pub(crate) mod operands;
pub(crate) mod routines;
pub(crate) mod waits;

use std::arch::asm;

pub(crate) use clock::ticks_now;

/// Calls a routine.
///
/// # Safety
/// It is one of [`routines`], and both it and the operands stay until it returns.
pub(crate) unsafe fn call(routine: *const u8, operands: *const u8, iterations: u64) {
    // SAFETY: routines keep to the contract at the head of `drive.rs`: they take operands in r15
    // and iterations in rcx, and change no register that a function must preserve. The caller
    // guarantees that they are there.
    unsafe {
        asm!(
            "call {routine}",
            routine = in(reg) routine,
            in("r15") operands,
            inout("rcx") iterations => _,
            clobber_abi("sysv64"),
        );
    }
}
