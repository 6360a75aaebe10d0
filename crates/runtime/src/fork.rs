//! What becomes of a child of fork(2): workers do not come along, and a thread that was away when
//! it forked goes on where it is.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

use crate::slot::{self, Place};
use crate::{lend, region, served, signals, thread};

/// How often the process was forked since: workers do not come along.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// How often this process and its parents were forked since the first cores were dedicated.
#[inline]
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// The calling thread is at home, and will travel.
pub(crate) fn note_home() {
    let number = rustix::thread::gettid().as_raw_nonzero().get();
    thread::own().home.set(u32::try_from(number).unwrap_or(0));
}

/// Counts forks of this process, in the child, from now on, and has children of threads away run
/// where, and with the signals, that they would have had at home.
pub(crate) fn count() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handlers change what is their own, and the kernel's view of the calling
        // thread.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

/// Whether the kernel knows the calling thread as a worker.
fn is_on_a_worker() -> bool {
    matches!(slot::place(), Place::Away | Place::Worker)
}

extern "C" fn before() {
    // The child has no worker that would end what is under way.
    lend::wait_for_lent();
    if is_on_a_worker() {
        let home = thread::own().home.get();
        // What a worker forks belongs to no thread: the first one's are the program's CPUs.
        let home = if slot::place() == Place::Away { i32::try_from(home).ok() } else { None };
        let home = home.and_then(Pid::from_raw).unwrap_or_else(rustix::process::getpid);
        let allowed = sched_getaffinity(Some(home)).unwrap_or_else(|_| CpuSet::new());
        thread::own().allowed.set(allowed);
    }
}

extern "C" fn in_parent() {
    thread::own().allowed.take();
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    slot::keep_own();
    region::forget_others();
    if thread::own().home.get() != 0 {
        note_home();
    }
    served::leave_to_parent();
    if is_on_a_worker() {
        // Where it cannot be let go, it stays.
        let _ = thread::own().allowed.take().map(|cpus| sched_setaffinity(None, &cpus));
        signals::restore();
    }
}
