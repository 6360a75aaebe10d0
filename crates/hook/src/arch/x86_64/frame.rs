//! What lies on the stack while assembly takes a call over from a stub, and while it takes the
//! return of a call over from a return stub: layouts, and macros for assembly that move the stack
//! pointer and the unwinding record together.
//!
//! C stands for the stack pointer before the call, which is the *canonical frame address* of
//! unwinding records.

use std::mem::offset_of;

/// The upper end of each frame, up to C: what every call is taken over with.
///
/// ```text
/// C - 8    | return address of the call      |
/// C - 16   | r11 of the caller               |
/// C - 24   | where the call goes on (`body`) |
/// C - 32   | the call's own (`own`)          |
/// ```
///
/// A stub has pushed nothing: it comes with r11 at C - 16, in the red zone, and the stack pointer
/// at C - 8.
#[repr(C)]
pub(crate) struct Kept {
    /// At first free, then the row of a call that migrates, then the address of the return stub.
    /// At a mark: the site, then the signals to block.
    own: u64,
    /// Address where the call goes on: the displaced instructions, or code that leads there.
    body: u64,
    r11: u64,
    returns_to: u64,
}

pub(crate) const OWN: usize = offset_of!(Kept, own);
pub(crate) const BODY: usize = offset_of!(Kept, body);
pub(crate) const R11: usize = offset_of!(Kept, r11);
pub(crate) const RETURNS_TO: usize = offset_of!(Kept, returns_to);
pub(crate) const KEPT_BYTES: usize = size_of::<Kept>();

/// What [`super::swap`] has on the stack when a call begins: C - 88 and up.
#[repr(C)]
pub(crate) struct Timed {
    /// r8, rdi, rsi, rbx, rdx, rcx, rax: from the last that was pushed to the first.
    registers: [u64; 7],
    kept: Kept,
}

pub(crate) const TIMED_KEPT: usize = offset_of!(Timed, kept);
pub(crate) const TIMED_BYTES: usize = size_of::<Timed>();

/// What [`super::migrate`] has on the stack when a call begins: C - 104 and up.
#[repr(C)]
pub(crate) struct Migrating {
    /// r10, r9, and as in [`Timed`].
    registers: [u64; 9],
    kept: Kept,
}

pub(crate) const MIGRATING_KEPT: usize = offset_of!(Migrating, kept);
/// Of rbx, the fourth register that was pushed.
pub(crate) const MIGRATING_RBX: usize = offset_of!(Migrating, registers) + 5 * size_of::<u64>();
pub(crate) const MIGRATING_BYTES: usize = size_of::<Migrating>();

/// What [`super::swap`] has on the stack when a call returns: C - 80 and up.
#[repr(C)]
pub(crate) struct Returned {
    r8: u64,
    rdi: u64,
    rsi: u64,
    rbx: u64,
    rdx: u64,
    rcx: u64,
    rax: u64,
    flags: u64,
    r11: u64,
    /// The number of the row, which the return stub has pushed; then the return address.
    row: u64,
}

pub(crate) const RETURNED_RBX: usize = offset_of!(Returned, rbx);
pub(crate) const RETURNED_ROW: usize = offset_of!(Returned, row);
pub(crate) const RETURNED_BYTES: usize = size_of::<Returned>();

/// What [`super::migrate`] has on the stack when a migrated call returns: C - 104 and up.
#[repr(C)]
pub(crate) struct MigratedBack {
    /// The signals to block, or [`crate::mover::SIGNALS_ARE_RIGHT`].
    mask: u64,
    r10: u64,
    r9: u64,
    returned: Returned,
}

pub(crate) const BACK_MASK: usize = offset_of!(MigratedBack, mask);
pub(crate) const BACK_ROW: usize = offset_of!(MigratedBack, returned) + RETURNED_ROW;
pub(crate) const BACK_BYTES: usize = size_of::<MigratedBack>();

const _: () = assert!(KEPT_BYTES == 32 && RETURNS_TO == 24 && R11 == 16 && BODY == 8 && OWN == 0);
const _: () = assert!(TIMED_BYTES == 88 && MIGRATING_BYTES == 104);
const _: () = assert!(RETURNED_BYTES == 80 && BACK_BYTES == 104 && BACK_MASK == 0);

/// Pushes registers; the unwinding record follows.
macro_rules! push {
    ($($register:literal),+) => {
        concat!($("push ", $register, "\n.cfi_adjust_cfa_offset 8\n"),+)
    };
}

/// Pops registers; the unwinding record follows.
macro_rules! pop {
    ($($register:literal),+) => {
        concat!($("pop ", $register, "\n.cfi_adjust_cfa_offset -8\n"),+)
    };
}

/// Pushes the registers of [`Timed`].
macro_rules! push_timed {
    () => {
        $crate::arch::frame::push!("rax", "rcx", "rdx", "rbx", "rsi", "rdi", "r8")
    };
}

/// Pops the registers of [`Timed`].
macro_rules! pop_timed {
    () => {
        $crate::arch::frame::pop!("r8", "rdi", "rsi", "rbx", "rdx", "rcx", "rax")
    };
}

pub(crate) use {pop, pop_timed, push, push_timed};
