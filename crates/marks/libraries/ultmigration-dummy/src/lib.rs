//! `libultmigration_dummy`: the functions of `ultmigration.h`, which migrate nothing (paper 004
//! §4.2).

use std::cell::Cell;
use std::ffi::{c_int, c_uint};

thread_local! {
    static IS_REGISTERED: Cell<bool> = const { Cell::new(false) };
}

/// Remembers that the calling thread is registered.
#[unsafe(no_mangle)]
pub extern "C" fn ult_register_klt() {
    IS_REGISTERED.set(true);
}

/// Undoes `ult_register_klt`.
#[unsafe(no_mangle)]
pub extern "C" fn ult_unregister_klt() {
    IS_REGISTERED.set(false);
}

/// Does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn ult_migrate(_kind: c_uint) {}

/// Whether the calling thread is registered.
#[unsafe(no_mangle)]
pub extern "C" fn ult_registered() -> c_int {
    IS_REGISTERED.get().into()
}
