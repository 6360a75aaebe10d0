//! What becomes of a child of fork(2): workers do not come along, and a thread that was away when it forked goes on
//! where it is.

use std::cell::Cell;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use dimmer_host::affinity;
use dimmer_processor::units::CpuId;

use crate::lend;
use crate::served;
use crate::signals;
use crate::slot::{self, Place};

/// How often the process was forked since: workers do not come along.
static FORKS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The kernel's number of the thread's own kernel thread, if it ever travelled.
    static HOME: Cell<Option<u32>> = const { Cell::new(None) };
    /// Where that may run, while a fork is under way.
    static ALLOWED: Cell<Vec<CpuId>> = const { Cell::new(Vec::new()) };
}

/// How often this process and its parents were forked since the first cores were dedicated.
#[inline]
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// The calling thread is at home, and will travel.
pub(crate) fn note_home() {
    HOME.set(u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).ok());
}

/// Counts forks of this process, in the child, from now on, and has children of threads away run where, and with the
/// signals, that they would have had at home.
pub(crate) fn count() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handlers change what is their own, and the kernel's view of the calling thread.
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
        let home = HOME.get().filter(|_| slot::place() == Place::Away);
        // What a worker forks belongs to no thread: the first one's are the program's CPUs.
        let home = home.unwrap_or_else(std::process::id);
        let _ = ALLOWED.try_with(|cpus| cpus.set(affinity::allowed_to(home).unwrap_or_default()));
    }
}

extern "C" fn in_parent() {
    if is_on_a_worker() {
        let _ = ALLOWED.try_with(Cell::take);
    }
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    slot::keep_own();
    served::leave_to_parent();
    if is_on_a_worker() {
        // Where it cannot be let go, it stays.
        let _ = ALLOWED.try_with(|cpus| affinity::allow(&cpus.take()));
        signals::restore();
    }
}
