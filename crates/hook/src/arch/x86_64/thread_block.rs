//! The thread block: what assembly and stubs keep for each thread, at a fixed distance from the
//! thread's FS base, which is known without a call.
//!
//! A signal handler with hooked calls may come between any two instructions, so each change is one
//! instruction. All bytes are zero when a thread starts.

use std::arch::{asm, global_asm};
use std::mem::offset_of;

use crate::ledger;

/// The layout of the thread block.
#[repr(C, align(64))]
pub(crate) struct ThreadBlock {
    /// The countdown to the next timed call. Zero or less: the next call is timed. It is below zero
    /// while a call is on its way to be timed; a signal handler's calls then go the same way.
    countdown: i32,
    /// The purpose of the call that ends the countdown: 0 to be timed, [`FOLLOWS`] or
    /// [`LOOKED_AT`]. Countdown and purpose are written as one word, so that no signal handler sees
    /// half of it.
    next: u32,
    /// Address of the thread's counters; null before its first hooked call.
    counted_at: *mut u8,
    /// The number of interruptions of the thread that timed calls have seen.
    interrupts: u32,
    /// The countdown that is kept while a call is looked at.
    kept: u32,
    /// The id of the kernel thread that runs this thread while a call is migrated; 0 otherwise.
    migrated: u32,
    /// The count of reasons why the thread's calls must not move. Assembly reads it and the field
    /// before it as one word.
    inhibited: u32,
    /// The row where the thread's next search starts.
    row: u32,
    /// The round in which the thread last stopped at a gate ([`crate::gate`]), if it may pass
    /// until the next one.
    passed: u32,
    /// The place in the pool of slots that was filled for a child that the thread forks, plus one;
    /// 0 if there is none.
    child: u32,
    /// The row of a call that was left by an exception. The unwinder may still need it. Null if
    /// there is none.
    left: *const (),
}

/// Value of `next`: the call is the next one of all after a timed call, and is timed as well. The
/// same bit says so in the row and in the record.
pub(crate) const FOLLOWS: u32 = ledger::FOLLOWS;
/// Value of `next`: the call is the next one of all after the start of a timed call, and is
/// looked at.
pub(crate) const LOOKED_AT: u32 = 2;

/// Bytes of the thread block.
pub(crate) const BYTES: usize = size_of::<ThreadBlock>();

// Offsets of its fields.
pub(crate) const COUNTDOWN: usize = offset_of!(ThreadBlock, countdown);
pub(crate) const NEXT: usize = offset_of!(ThreadBlock, next);
pub(crate) const COUNTED_AT: usize = offset_of!(ThreadBlock, counted_at);
pub(crate) const INTERRUPTS: usize = offset_of!(ThreadBlock, interrupts);
pub(crate) const KEPT: usize = offset_of!(ThreadBlock, kept);
pub(crate) const INHIBITED: usize = offset_of!(ThreadBlock, inhibited);
pub(crate) const ROW: usize = offset_of!(ThreadBlock, row);
pub(crate) const PASSED: usize = offset_of!(ThreadBlock, passed);
pub(crate) const CHILD: usize = offset_of!(ThreadBlock, child);
pub(crate) const LEFT: usize = offset_of!(ThreadBlock, left);

/// Offset in the thread block (symbol `dimmer_hook_thread`, [`thread_offset`] from the FS base) of
/// the id of the kernel thread that runs this thread while a call is migrated; 0 otherwise (32
/// bits).
pub const MIGRATED: usize = offset_of!(ThreadBlock, migrated);

// The block is one cache line; pairs of fields are read or written as one word.
const _: () = assert!(BYTES == 64);
const _: () = assert!(NEXT == COUNTDOWN + 4 && COUNTDOWN.is_multiple_of(8));
const _: () = assert!(INHIBITED == MIGRATED + 4 && MIGRATED.is_multiple_of(8));
// `forget` clears both, and what lies between, by one store of 16 bytes.
const _: () = assert!(COUNTDOWN == 0 && COUNTED_AT == 8);

global_asm!(
    ".section .tbss.dimmer_hook_thread,\"awT\",@nobits",
    ".p2align 6",
    ".hidden dimmer_hook_thread",
    ".globl dimmer_hook_thread",
    ".type dimmer_hook_thread,@object",
    ".size dimmer_hook_thread, {bytes}",
    "dimmer_hook_thread:",
    ".zero {bytes}",
    ".text",
    bytes = const BYTES,
);

/// Loads the distance of the thread block from the FS base into a register.
macro_rules! load_thread_offset {
    ($register:literal) => {
        concat!("mov ", $register, ", qword ptr [rip + dimmer_hook_thread@GOTTPOFF]")
    };
}
pub(crate) use load_thread_offset;

/// Distance of a thread's block from its FS base (bytes).
#[must_use]
pub fn thread_offset() -> i64 {
    let offset: i64;
    // SAFETY: the loader has filled in this entry of the table, and reading it changes nothing.
    unsafe {
        asm!(
            load_thread_offset!("{}"),
            out(reg) offset,
            options(nostack, pure, readonly, preserves_flags)
        );
    }
    offset
}

/// Makes the calling thread's next hooked call a timed one.
pub(crate) fn time_next() {
    // SAFETY: the thread's own memory; the countdown may have any value.
    unsafe {
        asm!(
            "mov dword ptr fs:[{offset} + {countdown}], 0",
            offset = in(reg) thread_offset(),
            countdown = const COUNTDOWN,
            options(nostack, preserves_flags)
        );
    }
}

/// Address of the calling thread's counters; null before its first hooked call.
pub(crate) fn counters() -> *mut u8 {
    let counters: *mut u8;
    // SAFETY: the thread's own memory.
    unsafe {
        asm!(
            "mov {}, fs:[{offset} + {counted_at}]",
            out(reg) counters,
            offset = in(reg) thread_offset(),
            counted_at = const COUNTED_AT,
            options(nostack, readonly, preserves_flags)
        );
    }
    counters
}

/// Makes the calling thread claim a slot of its own at its next hooked call.
pub(crate) fn forget() {
    // SAFETY: the thread's own memory, aligned. One store, so that no signal handler sees half of
    // it.
    unsafe {
        asm!(
            "xorps {zero}, {zero}",
            "movaps fs:[{offset} + {countdown}], {zero}",
            zero = out(xmm_reg) _,
            offset = in(reg) thread_offset(),
            countdown = const COUNTDOWN,
            options(nostack, preserves_flags)
        );
    }
}

/// Whether the calling thread has migrated for a call, or is away by [`note_away`].
#[must_use]
pub fn is_migrated() -> bool {
    word::<MIGRATED>() != 0
}

/// Notes that the calling thread has migrated, other than for a call: it runs on this kernel thread
/// until [`crate::cut_migration_short`] or [`note_home`].
pub fn note_away(kernel_thread: u32) {
    // SAFETY: the thread's own memory.
    unsafe {
        asm!(
            "mov dword ptr fs:[{offset} + {migrated}], {kernel_thread:e}",
            offset = in(reg) thread_offset(),
            migrated = const MIGRATED,
            kernel_thread = in(reg) kernel_thread,
            options(nostack, preserves_flags)
        );
    }
}

/// Notes that the calling thread is at home.
pub fn note_home() {
    // SAFETY: the thread's own memory.
    unsafe {
        asm!(
            "mov dword ptr fs:[{offset} + {migrated}], 0",
            offset = in(reg) thread_offset(),
            migrated = const MIGRATED,
            options(nostack, preserves_flags)
        );
    }
}

/// Inhibits migration of the calling thread's calls. Nests; undone by [`allow_migration`].
pub extern "C" fn inhibit_migration() {
    // SAFETY: the thread's own memory.
    unsafe {
        asm!(
            "inc dword ptr fs:[{offset} + {inhibited}]",
            offset = in(reg) thread_offset(),
            inhibited = const INHIBITED,
            options(nostack)
        );
    }
}

/// Whether the calling thread's calls are inhibited from migrating.
#[must_use]
pub fn is_migration_inhibited() -> bool {
    word::<INHIBITED>() != 0
}

/// A word of the calling thread's block, at this offset.
fn word<const AT: usize>() -> u32 {
    let word: u32;
    // SAFETY: the thread's own memory.
    unsafe {
        asm!(
            "mov {word:e}, fs:[{offset} + {at}]",
            word = out(reg) word,
            offset = in(reg) thread_offset(),
            at = const AT,
            options(nostack, readonly, preserves_flags)
        );
    }
    word
}

/// Undoes an [`inhibit_migration`].
pub extern "C" fn allow_migration() {
    // SAFETY: the thread's own memory.
    unsafe {
        asm!(
            "dec dword ptr fs:[{offset} + {inhibited}]",
            offset = in(reg) thread_offset(),
            inhibited = const INHIBITED,
            options(nostack)
        );
    }
}

/// Lets the calling thread pass the gates of this round and of those before.
pub(crate) fn set_passed(round: u32) {
    // SAFETY: the thread's own memory.
    unsafe {
        asm!(
            "mov dword ptr fs:[{offset} + {passed}], {round:e}",
            offset = in(reg) thread_offset(),
            passed = const PASSED,
            round = in(reg) round,
            options(nostack, preserves_flags)
        );
    }
}

/// Replaces the place for a child that the thread forks, plus one, and returns the one before.
pub(crate) fn exchange_child(child: u32) -> u32 {
    let before: u32;
    // SAFETY: the thread's own memory.
    unsafe {
        asm!(
            "xchg fs:[{offset} + {place}], {child:e}",
            offset = in(reg) thread_offset(),
            place = const CHILD,
            child = inout(reg) child => before,
            options(nostack, preserves_flags)
        );
    }
    before
}

/// Replaces the row of a call that was left by an exception, and returns the one before.
pub(crate) fn exchange_left<T>(row: *const T) -> *const T {
    let before: *const T;
    // SAFETY: the thread's own memory.
    unsafe {
        asm!(
            "xchg fs:[{offset} + {left}], {row}",
            offset = in(reg) thread_offset(),
            left = const LEFT,
            row = inout(reg) row => before,
            options(nostack, preserves_flags)
        );
    }
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_counts_its_own_reasons_to_stay() {
        let inhibited = || {
            let count: u32;
            // SAFETY: the thread's own memory.
            unsafe {
                asm!(
                    "mov {count:e}, fs:[{offset} + {inhibited}]",
                    count = out(reg) count,
                    offset = in(reg) thread_offset(),
                    inhibited = const INHIBITED,
                    options(nostack, readonly, preserves_flags)
                );
            }
            count
        };
        let before = inhibited();
        inhibit_migration();
        inhibit_migration();
        assert_eq!(inhibited(), before + 2);
        assert_eq!(std::thread::spawn(inhibited).join().unwrap(), 0);
        allow_migration();
        allow_migration();
        assert_eq!(inhibited(), before);
    }

    #[test]
    fn each_thread_keeps_the_place_for_its_own_child() {
        assert_eq!(exchange_child(3), 0);
        let other = || [exchange_child(4), exchange_child(0)];
        assert_eq!(std::thread::spawn(other).join().unwrap(), [0, 4]);
        assert_eq!([exchange_child(0), exchange_child(0)], [3, 0]);
    }

    #[test]
    fn a_row_that_was_left_is_kept_until_the_next_one() {
        std::thread::spawn(|| {
            let (first, second) = (1_u8, 2_u8);
            assert!(exchange_left(&raw const first).is_null());
            assert_eq!(exchange_left(&raw const second), &raw const first);
            assert_eq!(exchange_left(std::ptr::null()), &raw const second);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_begins_at_home_and_without_counters() {
        let state = || (counters().is_null(), is_migrated());
        assert_eq!(std::thread::spawn(state).join().unwrap(), (true, false));
    }
}
