//! Sections that begin and end with functions. The library with the hooks
//! (`dimmer_preload::sections`) finds these functions by their names.

use std::ffi::c_char;

use dimmer_contention::sections::{self, End};

/// Begins, if this library has not begun yet: so it has, before the first function is hooked.
#[unsafe(no_mangle)]
extern "C" fn dimmer_boost_begin(environment: *const *const c_char) {
    crate::begin_once(environment);
}

/// A function of the plans is called. `end` is 0 if the end of the call cannot be seen, 1 if it can
/// be, and 2 if that is the end of another call. Returns whether it is wanted.
#[unsafe(no_mangle)]
extern "C" fn dimmer_boost_called(function: u32, stack: usize, end: u32) -> u32 {
    let end = match end {
        0 => End::Unseen,
        1 => End::Seen,
        _ => End::Joint,
    };
    u32::from(sections::called(function, stack, end))
}

/// Such a call returns.
#[unsafe(no_mangle)]
extern "C" fn dimmer_boost_returned(stack: usize) {
    sections::returned(stack);
}

/// The unwinder leaves such a call.
#[unsafe(no_mangle)]
extern "C" fn dimmer_boost_left(stack: usize) {
    sections::left(stack);
}
