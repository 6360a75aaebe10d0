//! The thread by which a process gets a server's cores back when they are no longer dedicated.
//!
//! Workers notice that when they are idle. But a process whose regions all stay keeps off the
//! server's cores as well, and has no worker; and it may enter no further region that would notice.
//! The thread exists while such a process keeps off cores.

use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use dimmer_protocol::LEASE;

use crate::spawn::spawn;
use crate::worker::WORKERS;
use crate::{confined, first_thread, fork, nap, signals};

/// The process in which the thread runs, as its number of forks plus 1; 0: it runs in none.
static RUNS_IN: AtomicU32 = AtomicU32::new(0);

/// Whether it must end.
static MUST_END: AtomicBool = AtomicBool::new(false);

/// The kernel's id of the thread, once it has started.
static THREAD: AtomicU32 = AtomicU32::new(0);

/// Starts the thread, unless it runs. It calls `is_done` now and then, and ends when that returns
/// true. Calls of this and of [`note_end`] must not overlap. Returns whether it runs.
pub(crate) fn start(is_done: fn() -> bool) -> bool {
    let process = fork::forks() + 1;
    let runs = RUNS_IN.load(Ordering::Relaxed) == process;
    let Some(_starting) = confined::Starting::begin().filter(|_| !runs) else { return runs };
    THREAD.store(0, Ordering::Relaxed);
    RUNS_IN.store(process, Ordering::Relaxed);
    let name = CString::new(format!("{WORKERS}back")).unwrap_or_default();
    // Threads inherit the mask: signals are for the program's own threads.
    let mask = signals::exchange();
    let spawned = spawn(move || {
        // If this fails, the thread has the program's name.
        let _ = rustix::thread::set_name(&name);
        if wait_until(is_done) == Ended::WithProgram {
            first_thread::end_with_program(&mask);
        }
    });
    signals::set(&mask);
    if spawned.is_err() {
        RUNS_IN.store(0, Ordering::Relaxed);
    }
    spawned.is_ok()
}

/// The reason for the thread's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// It is done, or must end.
    Done,
    /// No thread of the program is left.
    WithProgram,
}

fn wait_until(is_done: fn() -> bool) -> Ended {
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    THREAD.store(u32::try_from(thread).unwrap_or(0), Ordering::Relaxed);
    while !MUST_END.load(Ordering::Relaxed) && !is_done() {
        if first_thread::is_program_over() {
            return Ended::WithProgram;
        }
        // Decisions of a server that has gone hold for this long.
        nap::nap(LEASE);
    }
    Ended::Done
}

/// The thread ends: `is_done` calls this before it returns true.
pub(crate) fn note_end() {
    RUNS_IN.store(0, Ordering::Relaxed);
}

/// Ends the thread for good, if it runs, and waits until it is gone, for some ten seconds at most.
/// Returns whether it ran.
pub(crate) fn end() -> bool {
    MUST_END.store(true, Ordering::Relaxed);
    if RUNS_IN.load(Ordering::Relaxed) != fork::forks() + 1 {
        return false;
    }
    nap::until(|| THREAD.load(Ordering::Relaxed) != 0);
    signals::wait_until_gone(THREAD.load(Ordering::Relaxed));
    true
}
