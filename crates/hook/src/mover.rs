//! The functions that move calls: hooks bring threads to other cores only through these, and know
//! nothing of workers.

use std::mem::offset_of;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::arch::leaf::{LeafCall, LeafEnd};
use crate::arch::thread_block::{is_migrated, note_home};

/// Functions that migrate the calling thread and bring it home, and that delegate calls.
#[derive(Clone, Copy, Debug)]
pub struct Mover {
    /// Migrates the thread for a call of the function with this number. Returns the id of the
    /// kernel thread that runs it now; 0 if it stays at home. Called on the stack that the function
    /// will have.
    pub begin_migration: extern "C" fn(u32) -> u32,
    /// Brings the thread home at the end of a call. Called only if `begin_migration` has migrated
    /// it. Returns the signals to block from then on, in the kernel's format (signal 1 in bit 0),
    /// or [`SIGNALS_ARE_RIGHT`].
    pub end_migration: extern "C" fn() -> u64,
    /// Brings the thread home in the middle of a call; the rest of the call runs at home. The
    /// caller may be the handler of a fault of the thread's own.
    pub cut_migration_short: extern "C" fn(),
    /// Called at the end of a call that was cut short. Returns the signals to block from then on.
    pub end_cut_migration: extern "C" fn() -> u64,
    /// Delegates a call of a leaf function to another core while the thread waits at home. Returns
    /// `None` if that is not possible.
    pub delegate: fn(LeafCall<'_>) -> Option<LeafEnd>,
    /// Called when the unwinder passes that wait: waits for the call to end.
    pub unwind_delegated: extern "C" fn(),
}

/// Returned in place of a signal mask: the mask in force stays.
pub const SIGNALS_ARE_RIGHT: u64 = u64::MAX;

/// The functions of the [`Mover`] in use. Null before [`set`].
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Functions {
    begin_migration: AtomicPtr<()>,
    end_migration: AtomicPtr<()>,
    cut_migration_short: AtomicPtr<()>,
    end_cut_migration: AtomicPtr<()>,
    delegate: AtomicPtr<()>,
    unwind_delegated: AtomicPtr<()>,
}

pub(crate) static FUNCTIONS: Functions = Functions {
    begin_migration: AtomicPtr::new(std::ptr::null_mut()),
    end_migration: AtomicPtr::new(std::ptr::null_mut()),
    cut_migration_short: AtomicPtr::new(std::ptr::null_mut()),
    end_cut_migration: AtomicPtr::new(std::ptr::null_mut()),
    delegate: AtomicPtr::new(std::ptr::null_mut()),
    unwind_delegated: AtomicPtr::new(std::ptr::null_mut()),
};

/// Offset in [`FUNCTIONS`] of the function that assembly calls.
pub(crate) const BEGIN_MIGRATION: usize = offset_of!(Functions, begin_migration);

/// From now on, `mover` moves calls.
pub(crate) fn set(mover: Mover) {
    // Relaxed: no call is moved yet.
    let set = |place: &AtomicPtr<()>, function| place.store(function, Ordering::Relaxed);
    set(&FUNCTIONS.begin_migration, mover.begin_migration as *mut ());
    set(&FUNCTIONS.end_migration, mover.end_migration as *mut ());
    set(&FUNCTIONS.cut_migration_short, mover.cut_migration_short as *mut ());
    set(&FUNCTIONS.end_cut_migration, mover.end_cut_migration as *mut ());
    set(&FUNCTIONS.delegate, mover.delegate as *mut ());
    set(&FUNCTIONS.unwind_delegated, mover.unwind_delegated as *mut ());
}

/// Brings the calling thread home, if it has migrated for a call. The rest of the call runs at
/// home.
pub extern "C" fn cut_migration_short() {
    if is_migrated() {
        // Before the thread goes home, because the code that brings it home may ask again.
        note_home();
        let cut_migration_short = FUNCTIONS.cut_migration_short.load(Ordering::Relaxed);
        // SAFETY: `set` has stored the function, or no thread would be away.
        let cut_migration_short =
            unsafe { std::mem::transmute::<*mut (), extern "C" fn()>(cut_migration_short) };
        cut_migration_short();
    }
}

/// Called at the end of a migrated call: brings the thread home, if it is not there already.
/// Returns the signals to block then.
pub(crate) extern "C" fn end_call() -> u64 {
    let end = if is_migrated() {
        // Before the thread goes home, as in `cut_migration_short`.
        note_home();
        &FUNCTIONS.end_migration
    } else {
        &FUNCTIONS.end_cut_migration
    };
    let end = end.load(Ordering::Relaxed);
    // SAFETY: `set` has stored the function, or no call would be migrated.
    let end = unsafe { std::mem::transmute::<*mut (), extern "C" fn() -> u64>(end) };
    end()
}

/// Delegates a call, if that is possible.
pub(crate) fn delegate(call: LeafCall<'_>) -> Option<LeafEnd> {
    let delegate = FUNCTIONS.delegate.load(Ordering::Relaxed);
    // SAFETY: `set` has stored the function, or no call would be moved.
    let delegate =
        unsafe { std::mem::transmute::<*mut (), fn(LeafCall<'_>) -> Option<LeafEnd>>(delegate) };
    delegate(call)
}

/// Waits for the delegated call to end.
pub(crate) fn unwind_delegated() {
    let unwind = FUNCTIONS.unwind_delegated.load(Ordering::Relaxed);
    // SAFETY: `set` has stored the function, or no call would be delegated.
    let unwind = unsafe { std::mem::transmute::<*mut (), extern "C" fn()>(unwind) };
    unwind();
}
