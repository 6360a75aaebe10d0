//! A program that gives up time stamps or system calls, which this library uses.

use std::ffi::{c_int, c_ulong};

use dimmer_contention::stop;

use crate::next;

/// prctl(2). The C library's takes a variable number of arguments, all of them in registers.
#[unsafe(no_mangle)]
unsafe extern "C" fn prctl(
    option: c_int,
    second: c_ulong,
    third: c_ulong,
    fourth: c_ulong,
    fifth: c_ulong,
) -> c_int {
    // The kernel takes the lower half, and the caller may have left anything in the upper one.
    let mode = second & c_ulong::from(u32::MAX);
    let takes_time =
        option == libc::PR_SET_TSC && c_int::try_from(mode) == Ok(libc::PR_TSC_SIGSEGV);
    let gives_up = takes_time || option == libc::PR_SET_SECCOMP;
    if gives_up {
        stop::stop();
    }
    // SAFETY: the caller's arguments.
    let result = unsafe { next::prctl(option, second, third, fourth, fifth) };
    match result {
        0 if gives_up => stop::stopped(),
        _ if gives_up => stop::go_on(),
        _ => {}
    }
    result
}
