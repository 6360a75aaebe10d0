//! Runs the calling thread under real-time scheduling (SCHED_FIFO), so that ordinary threads do not
//! preempt a measurement, or below all ordinary threads (SCHED_IDLE), so that it only keeps a CPU
//! awake.
//!
//! Uses `unsafe` because no crate used here wraps `sched_setscheduler`.

use std::io;
use std::marker::PhantomData;

use crate::unavailable::Unavailable;

/// While this value lives, the calling thread is under real-time scheduling.
#[derive(Debug)]
pub struct RealTime {
    before: libc::c_int,
    // It must be dropped in the same thread.
    not_send: PhantomData<*const ()>,
}

/// Schedules the calling thread at the lowest real-time priority, which is above all ordinary
/// threads, until the result is dropped. Threads and programs that it starts are ordinary again.
///
/// If a thread spins for longer than `/proc/sys/kernel/sched_rt_runtime_us` in a second, the kernel
/// stops it for the rest of that second: keep the sections short.
///
/// # Errors
/// [`Unavailable`]: the limit or the control group does not allow it; nothing has changed.
pub fn real_time() -> Result<RealTime, Unavailable> {
    // SAFETY: the call takes no pointer; 0 means the calling thread.
    let before = unsafe { libc::sched_getscheduler(0) };
    set(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 1).map_err(|error| {
        Unavailable::new(
            "real-time scheduling",
            format!("sched_setscheduler: {error}"),
            "raise `ulimit -r` to 1 or more, or run as root; without it, preempted stretches are \
             recognised and left out",
        )
    })?;
    Ok(RealTime { before: before.max(libc::SCHED_OTHER), not_send: PhantomData })
}

/// Schedules the calling thread below all ordinary threads (SCHED_IDLE), until it ends: the way
/// back may take rights.
///
/// # Errors
/// The kernel's error.
pub fn become_idle() -> io::Result<()> {
    set(libc::SCHED_IDLE, 0)
}

impl Drop for RealTime {
    fn drop(&mut self) {
        // Giving up real-time scheduling needs no permission.
        let _ = set(self.before, 0);
    }
}

fn set(policy: libc::c_int, priority: libc::c_int) -> io::Result<()> {
    // SAFETY: plain numbers, of which some C libraries have more than others.
    let mut parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    parameters.sched_priority = priority;
    // SAFETY: the kernel reads one `sched_param` through the pointer, and `parameters` is one that
    // lives until the call returns; 0 means the calling thread.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
