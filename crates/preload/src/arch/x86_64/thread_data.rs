//! Access to [`crate::thread`]'s data without a call.

use std::arch::{asm, global_asm};

use crate::thread;

global_asm!(
    ".section .tbss.dimmer_preload_thread,\"awT\",@nobits",
    ".p2align 3",
    ".hidden dimmer_preload_thread",
    ".globl dimmer_preload_thread",
    ".type dimmer_preload_thread,@object",
    ".size dimmer_preload_thread, {bytes}",
    "dimmer_preload_thread:",
    ".zero {bytes}",
    ".text",
    bytes = const thread::BYTES,
);

/// Loads the distance of the thread's data from the FS base into a register.
macro_rules! load_offset {
    ($register:literal) => {
        concat!("mov ", $register, ", qword ptr [rip + dimmer_preload_thread@GOTTPOFF]")
    };
}
pub(crate) use load_offset;

/// Distance of the thread's data from the FS base (bytes).
pub(crate) fn offset() -> i64 {
    let offset: i64;
    // SAFETY: the loader has filled in this entry of the table, and reading it changes nothing.
    unsafe {
        asm!(
            load_offset!("{}"),
            out(reg) offset,
            options(nostack, pure, readonly, preserves_flags)
        );
    }
    offset
}

/// Reads one of the calling thread's words.
pub(crate) fn get(word: usize) -> u32 {
    let value: u32;
    // SAFETY: the thread's own memory.
    unsafe {
        asm!(
            "mov {:e}, fs:[{}]",
            out(reg) value,
            in(reg) offset().wrapping_add_unsigned(word as u64),
            options(nostack, readonly, preserves_flags)
        );
    }
    value
}

/// Changes one of the calling thread's words.
pub(crate) fn set(word: usize, value: u32) {
    // SAFETY: the thread's own memory.
    unsafe {
        asm!(
            "mov fs:[{}], {:e}",
            in(reg) offset().wrapping_add_unsigned(word as u64),
            in(reg) value,
            options(nostack, preserves_flags)
        );
    }
}

/// Address of the word at a distance from another thread's FS base, by which the C library names
/// the thread.
pub(crate) fn word_of(thread: u64, distance: i64) -> *mut u32 {
    let place = usize::try_from(thread.wrapping_add_signed(distance)).unwrap_or_default();
    std::ptr::with_exposed_provenance_mut(place)
}
