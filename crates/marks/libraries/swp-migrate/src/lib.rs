//! `libswp_migrate`: brings threads to the core that a profile has for each mark (paper 004 §4.1).
//! The functions of `swp.h`.

use std::ffi::{c_char, c_int, c_void};

use dimmer_marks::{Place, contained, crossing, migrating};

/// Reads the profile and the threshold, and registers the thread.
#[unsafe(no_mangle)]
pub extern "C" fn swp_init() {
    contained(|| {
        migrating::start();
        migrating::pass(&Place::C(c"swp_init".as_ptr(), std::ptr::null()));
    });
}

/// Passes a mark.
#[unsafe(no_mangle)]
pub extern "C" fn swp_mark(id: *const c_char, position: *const c_char) {
    contained(|| migrating::pass_in_session(&Place::C(id, position)));
}

/// Brings the thread home.
#[unsafe(no_mangle)]
pub extern "C" fn swp_deinit() {
    contained(migrating::end);
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
