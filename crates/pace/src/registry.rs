//! The threads of the process whose requests follow them from core to core.
//!
//! Paper 002, section 3.2: the library knows all threads that make requests, and where they are, so
//! that a thread that moves takes its request along. A thread is registered by its first request,
//! or by [`register`], until it ends. Where requests are for cores, [`crate::follower`] looks where
//! registered threads are.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dimmer_host::affinity::{self, AffinityError};
use dimmer_host::root::Root;
use dimmer_host::{process, signals, topology};
use dimmer_processor::units::{CoreId, CpuId, PackageId};
use rustix::thread::gettid;

use crate::back_end::Thread;
use crate::{follower, thread};

/// The threads, by their numbers in the kernel.
static THREADS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// The process whose threads these are; 0 before the first.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// `None` in a child of fork, where another thread of its parent may have had the lock.
fn threads() -> Option<MutexGuard<'static, BTreeSet<u32>>> {
    let own = std::process::id();
    // Relaxed: written by this process, or before the fork.
    let first = PROCESS.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed);
    let is_own = first.is_ok() || first == Err(own);
    is_own.then(|| THREADS.lock().unwrap_or_else(PoisonError::into_inner))
}

thread_local! {
    static OWN: OnceCell<Own> = const { OnceCell::new() };
}

/// The calling thread's place in the registry. Dropped with the thread.
struct Own(u32);

impl Drop for Own {
    fn drop(&mut self) {
        forget(self.0);
    }
}

/// A registered thread, and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    /// Its number in the kernel.
    pub thread: u32,
    /// The CPU that executes it, or has executed it last.
    pub cpu: CpuId,
    /// The core of that CPU.
    pub core: CoreId,
    /// The package of that CPU.
    pub package: PackageId,
}

/// Why a thread stays where it is. Nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MoveError {
    /// The thread has not registered, or has ended.
    #[error(
        "thread {thread} is not registered: it must call register() or make a request first; \
         registered are {registered:?}"
    )]
    NotRegistered {
        /// The number that the caller has given.
        thread: u32,
        /// The threads that are registered.
        registered: Vec<u32>,
    },
    /// The thread may not run on the CPU: it does not exist, is offline, or is outside of the
    /// process's cpuset.
    #[error(transparent)]
    Affinity(#[from] AffinityError),
}

/// Registers the calling thread until it ends, and returns its number in the kernel. The first
/// request of a thread does the same; without a request, the thread can be moved ([`move_to`]). In
/// a child of fork of a process with registered threads, and in the last destructors of a thread,
/// nothing is registered; nor in a signal handler that has interrupted a request.
///
/// # Cost
/// The first call of a thread takes a lock and allocates; another one is a load.
pub fn register() -> u32 {
    thread::outside(register_within).unwrap_or_else(number)
}

/// The same within such work as [`thread::outside`] does.
pub(crate) fn register_within() -> u32 {
    let begin = || {
        let own = Own(number());
        enter(own.0);
        own
    };
    OWN.try_with(|own| own.get_or_init(begin).0).unwrap_or_else(|_| number())
}

/// The number of the calling thread in the kernel.
pub(crate) fn number() -> u32 {
    gettid().as_raw_nonzero().get().unsigned_abs()
}

/// The numbers of all registered threads, ascending.
pub(crate) fn numbers() -> Vec<u32> {
    threads().map_or_else(Vec::new, |threads| threads.iter().copied().collect())
}

/// Adds a thread.
pub(crate) fn enter(thread: u32) {
    threads().iter_mut().for_each(|threads| _ = threads.insert(thread));
}

/// Removes a thread that has ended.
pub(crate) fn forget(thread: u32) {
    threads().iter_mut().for_each(|threads| _ = threads.remove(&thread));
}

/// The CPU that a thread of this process is on; `None` if the thread has ended.
pub(crate) fn cpu(thread: u32) -> Option<CpuId> {
    process::cpu(&Root::live(), (std::process::id(), thread))
}

/// All registered threads, with the core and the package that each is on now: by that, a program
/// can spread its threads ([`move_to`]).
///
/// # Cost
/// Reads some files of each CPU, and one of each thread: milliseconds.
#[must_use]
pub fn registered() -> Vec<Registered> {
    let Ok(topology) = topology::read(&Root::live()) else { return Vec::new() };
    let place = |thread| {
        let place = topology.cpu(cpu(thread)?)?;
        Some(Registered { thread, cpu: place.id, core: place.core, package: place.package })
    };
    numbers().into_iter().filter_map(place).collect()
}

/// Moves a registered thread to a CPU, and its request with it. From then on, its affinity is this
/// CPU alone. `thread` is what [`register`] has returned there.
///
/// # Errors
/// [`MoveError`]. The thread stays where it is.
///
/// # Cost
/// A system call, the migration, and, where requests are for cores, another request.
pub fn move_to(thread: u32, cpu: CpuId) -> Result<(), MoveError> {
    let refuse = |registered| MoveError::NotRegistered { thread, registered };
    let moves = || {
        // With the lock, the thread's destructors do not end meanwhile. One that has ended without
        // them may have left its number to another process.
        let threads = threads();
        let is_registered = threads.as_ref().is_some_and(|threads| threads.contains(&thread));
        if !is_registered || !signals::is_own_thread(thread) {
            let registered = threads.map_or_else(Vec::new, |all| all.iter().copied().collect());
            return Err(refuse(registered));
        }
        Ok(affinity::move_thread(Some(thread), cpu)?)
    };
    // In a signal handler that has interrupted such work, nothing is registered.
    thread::outside(moves).unwrap_or_else(|| Err(refuse(Vec::new())))?;
    if thread == number() {
        thread::ask_again();
    } else {
        thread::outside(|| follower::follow(Thread { id: thread, cpu }));
    }
    Ok(())
}
