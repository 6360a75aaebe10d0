//! The x86-64 side of the contract in [`crate::arch`].

pub(crate) mod delegate;
pub(crate) mod empty;
pub(crate) mod entry;
pub(crate) mod frame;
pub(crate) mod leaf;
pub(crate) mod mark;
pub(crate) mod migrate;
pub(crate) mod registers;
pub(crate) mod rows;
pub(crate) mod section;
pub(crate) mod swap;
pub(crate) mod take_out;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod thread_block;

use std::arch::asm;

pub(crate) use swap::CHAIN_CYCLES;

/// The time-stamp counter.
pub(crate) fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the counter, and Linux lets programs read it unless they
    // ask Linux not to.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Copies with an instruction. A function for copying may lie in the pages that cannot be executed
/// at this moment, since every program may bring its own.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`].
pub(crate) unsafe fn copy(from: &[u8], to: *mut u8) {
    // SAFETY: the caller guarantees two ranges that can be copied; compiled code has the direction
    // flag clear.
    unsafe {
        asm!(
            "rep movsb",
            inout("rsi") from.as_ptr() => _,
            inout("rdi") to => _,
            inout("rcx") from.len() => _,
            options(nostack, preserves_flags)
        );
    }
}

/// Reads a word at a distance from the calling thread's thread pointer.
///
/// # Safety
/// Readable memory must lie there.
pub(crate) unsafe fn word_of_thread(distance: i64) -> u32 {
    let word: u32;
    // SAFETY: the caller guarantees readable memory.
    unsafe {
        asm!(
            "mov {:e}, fs:[{}]",
            out(reg) word,
            in(reg) distance,
            options(nostack, readonly, preserves_flags)
        );
    }
    word
}
