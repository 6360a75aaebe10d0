//! The data of each thread that assembly reads and writes without a call: a thread that may be
//! cancelled anywhere must not be unwound out of Rust's code.

use std::arch::{asm, global_asm};

/// Offset of the number of mutexes that the thread holds and whose owner the kernel records,
/// without robust ones (32 bits).
pub(crate) const HELD: i64 = 0;
/// Offset of the flag that the thread may be cancelled anywhere (32 bits).
pub(crate) const ASYNCHRONOUS: i64 = 4;
/// Offset of the flag that the thread has disabled cancellation (32 bits).
pub(crate) const UNCANCELLABLE: i64 = 8;

global_asm!(
    ".section .tbss.dimmer_preload_thread,\"awT\",@nobits",
    ".p2align 3",
    ".hidden dimmer_preload_thread",
    ".globl dimmer_preload_thread",
    ".type dimmer_preload_thread,@object",
    ".size dimmer_preload_thread, 16",
    "dimmer_preload_thread:",
    ".zero 16",
    ".text",
);

/// Distance of the thread's data from the FS base (bytes).
pub(crate) fn offset() -> i64 {
    let offset: i64;
    // SAFETY: the loader has filled in this entry of the table, and reading it changes nothing.
    unsafe {
        asm!(
            "mov {}, qword ptr [rip + dimmer_preload_thread@GOTTPOFF]",
            out(reg) offset,
            options(nostack, pure, readonly, preserves_flags)
        );
    }
    offset
}

/// Reads one of the words above.
pub(crate) fn get(word: i64) -> u32 {
    let value: u32;
    // SAFETY: the thread's own memory.
    unsafe {
        asm!(
            "mov {:e}, fs:[{}]",
            out(reg) value,
            in(reg) offset() + word,
            options(nostack, readonly, preserves_flags)
        );
    }
    value
}

/// Changes one of the words above.
pub(crate) fn set(word: i64, value: u32) {
    // SAFETY: the thread's own memory.
    unsafe {
        asm!(
            "mov fs:[{}], {:e}",
            in(reg) offset() + word,
            in(reg) value,
            options(nostack, preserves_flags)
        );
    }
}
