//! `libultmigration`: migrates threads between fast and slow cores (paper 004 §4.2). The functions
//! of `ultmigration.h`.

use std::ffi::{c_int, c_uint, c_void};

use dimmer_marks::{contained, crossing};

/// Registers the calling thread, which is on a fast core then.
#[unsafe(no_mangle)]
pub extern "C" fn ult_register_klt() {
    contained(|| crossing::register());
}

/// Undoes `ult_register_klt`.
#[unsafe(no_mangle)]
pub extern "C" fn ult_unregister_klt() {
    contained(|| crossing::unregister());
}

/// Migrates to a fast (0) or a slow core (1).
#[unsafe(no_mangle)]
pub extern "C" fn ult_migrate(kind: c_uint) {
    // Without a frame of its own: a core fetches the stack of a thread that has come to it.
    crossing::migrate(kind);
}

/// Whether the calling thread is registered.
#[unsafe(no_mangle)]
pub extern "C" fn ult_registered() -> c_int {
    crossing::registered()
}

/// The CPU that the calling thread runs on, in place of the C library's function: also on a slow
/// core.
#[unsafe(no_mangle)]
pub extern "C" fn sched_getcpu() -> c_int {
    crossing::cpu()
}

/// Starts a thread, in place of the C library's function: also from a slow core.
///
/// # Safety
/// As that of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: as the caller has it.
    unsafe { crossing::create_thread(thread, attributes, start, argument) }
}
