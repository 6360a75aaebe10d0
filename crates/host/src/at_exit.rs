//! Functions that the C library calls when the process ends by `exit`, or `main` returns. It calls
//! none when a signal ends the process.
//!
//! Uses `unsafe` because no crate used here wraps `atexit`.

/// Has `function` called at the end, on the thread that ends the process. Children of fork inherit
/// that. Returns whether the C library has room for it.
pub fn call(function: extern "C" fn()) -> bool {
    // SAFETY: the function takes and returns nothing, and lives as long as the process.
    unsafe { libc::atexit(function) == 0 }
}
