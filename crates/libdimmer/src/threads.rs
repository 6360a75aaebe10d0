//! Threads that a program registers and moves, with their requests for clocks, for C.

use std::ffi::c_int;

use dimmer_pace::MoveError;
use dimmer_runtime::CpuId;

use crate::call::quiet;

/// Registers the calling thread until it ends, and returns its number in the kernel, for
/// dimmer_pace_move_thread(). Its first request for a clock does the same (docs/pace.md). Any
/// thread may call this, but not in a signal handler. `errno` stays as it is.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_pace_register_thread() -> u32 {
    quiet(dimmer_pace::register).unwrap_or(0)
}

/// Moves a registered thread of this process to a CPU, and its request for a clock with it. From
/// then on, the thread's affinity is this CPU alone.
///
/// Returns 0; ESRCH if no thread of this number is registered: it must call
/// dimmer_pace_register_thread(), or make a request, first, and must not have ended; EPERM if the
/// CPU does not exist, is offline, or is outside of the process's cpuset; EAGAIN if the library has
/// failed. Then the thread stays where it is. `errno` stays as it is.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_pace_move_thread(thread: u32, cpu: u32) -> c_int {
    match quiet(|| dimmer_pace::move_to(thread, CpuId::new(cpu))) {
        Some(Ok(())) => 0,
        Some(Err(MoveError::NotRegistered { .. })) => libc::ESRCH,
        Some(Err(_)) => libc::EPERM,
        None => libc::EAGAIN,
    }
}
