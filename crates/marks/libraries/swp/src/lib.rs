//! `libswp`: measures what runs between marks (paper 004 §4.1). The functions of `swp.h`.

use std::ffi::c_char;

use dimmer_marks::{Output, Place, contained, measuring};

/// Starts to measure.
#[unsafe(no_mangle)]
pub extern "C" fn swp_init() {
    contained(|| {
        measuring::start("libswp", Output::from_environment().unwrap_or(Output::Stdout));
        measuring::pass(&Place::C(c"swp_init".as_ptr(), std::ptr::null()));
    });
}

/// Passes a mark.
#[unsafe(no_mangle)]
pub extern "C" fn swp_mark(id: *const c_char, position: *const c_char) {
    contained(|| measuring::pass_in_session("libswp", &Place::C(id, position)));
}

/// Ends the measurement, and prints the control-flow graph.
#[unsafe(no_mangle)]
pub extern "C" fn swp_deinit() {
    contained(|| measuring::end(&Place::C(c"swp_deinit".as_ptr(), std::ptr::null())));
}
