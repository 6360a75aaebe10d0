//! `libswp_dummy`: the functions of `swp.h`, which do nothing (paper 004 §4.1).

use std::ffi::c_char;

/// Does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn swp_init() {}

/// Does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn swp_mark(_id: *const c_char, _position: *const c_char) {}

/// Does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn swp_deinit() {}
