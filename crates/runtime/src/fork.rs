//! State of a child of fork(2): the child has no workers, and a thread that was away at the fork
//! goes on where it is.

use std::cell::Cell;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

use crate::arch::{of_thread, system_call};
use crate::from_above::FromAbove;
use crate::slot::{self, Place};
use crate::spawn::forget_threads;
use crate::thread::Kept;
use crate::{confined, first_thread, rseq, signals};

/// What a thread that forks does before.
pub(crate) static BEFORE: FromAbove<1> = FromAbove::new();
/// Place in [`BEFORE`]: delegated work ends, as the child has no worker that would complete it.
pub(crate) const ENDS_DELEGATED: usize = 0;

/// What a child does.
pub(crate) static IN_CHILD: FromAbove<5> = FromAbove::new();
/// Place in [`IN_CHILD`]: it gives up what another thread of its parent has begun.
pub(crate) const FORGETS_OTHERS: usize = 0;
/// Place in [`IN_CHILD`]: it has no threads on wide CPUs.
pub(crate) const FORGETS_WIDE: usize = 2;
/// Place in [`IN_CHILD`]: it leaves the server to its parent.
pub(crate) const LEAVES_SERVER: usize = 1;
/// Place in [`IN_CHILD`]: the kernel updates the area of restartable sequences of its own thread.
pub(crate) const REPLACES_AREA: usize = 3;
/// Place in [`IN_CHILD`]: its next region finds out which cores it keeps off.
pub(crate) const FOLLOWS_ANEW: usize = 4;

/// A thread's own.
struct Own {
    /// The kernel's id of its own kernel thread, if it ever migrated; otherwise 0.
    home: Cell<u32>,
    /// The CPU affinity of its home, during a fork.
    allowed: Kept<CpuSet>,
}

of_thread! {
    fn of_thread() -> Own, "dimmer_runtime_fork";
}

/// Number of forks between the first call of [`count`] and this process. A child has no workers.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// This process, once [`count`] was called. A child of vfork(2) shares this with its parent, and in
/// children of a process that has confined itself it is that one.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Whether this is a child that no handler of forks has seen: one of vfork(2), which has its
/// parent's memory, or of a bare system call. Takes a system call.
pub(crate) fn is_unseen_child() -> bool {
    let noted = PROCESS.load(Ordering::Relaxed);
    noted != 0 && noted != process()
}

fn process() -> u32 {
    // SAFETY: changes nothing.
    let process = unsafe { system_call(libc::SYS_getpid, [0; 6]) };
    u32::try_from(process).unwrap_or_default()
}

/// Number of forks, of this process and its ancestors, since the first call of [`count`].
#[inline]
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Stores the id of the calling kernel thread as the thread's home. The thread is at home, and will
/// migrate.
pub(crate) fn note_home() {
    let number = rustix::thread::gettid().as_raw_nonzero().get();
    of_thread().home.set(u32::try_from(number).unwrap_or(0));
}

/// Registers the fork handlers. From then on each child counts its fork. A child of a thread that
/// is away gets the CPU affinity and the signal mask that the thread has at home.
pub(crate) fn count() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        PROCESS.store(process(), Ordering::Relaxed);
        rseq::prepare();
        // SAFETY: the handlers change only data of this crate, and the calling thread's affinity
        // and signal mask.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

/// Whether the calling kernel thread is a worker's.
fn is_on_a_worker() -> bool {
    matches!(slot::place(), Place::Migrated | Place::Worker)
}

extern "C" fn before() {
    BEFORE.call();
    if is_on_a_worker() {
        let home = of_thread().home.get();
        // A process that a worker forks belongs to no thread: it gets the affinity of the main
        // thread.
        let home = if slot::place() == Place::Migrated { i32::try_from(home).ok() } else { None };
        let home = home.and_then(Pid::from_raw).unwrap_or_else(rustix::process::getpid);
        let allowed = sched_getaffinity(Some(home)).unwrap_or_else(|_| CpuSet::new());
        of_thread().allowed.set(allowed);
    }
}

extern "C" fn in_parent() {
    of_thread().allowed.take();
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    forget_threads();
    confined::forget_others();
    slot::keep_own();
    // A process that has confined itself starts no threads. It may forbid even these calls.
    if !confined::is_confined() {
        PROCESS.store(process(), Ordering::Relaxed);
        first_thread::note();
        if of_thread().home.get() != 0 {
            note_home();
        }
    }
    IN_CHILD.call();
    if is_on_a_worker() {
        // If the affinity cannot be changed, the child stays on the dedicated core.
        let _ = of_thread().allowed.take().map(|cpus| sched_setaffinity(None, &cpus));
        signals::restore();
    }
}
