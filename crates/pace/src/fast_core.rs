//! CPUs that always run fastest, and threads that go there for a while.
//!
//! Paper 002, section 3.2: threads can temporarily migrate to a dedicated core that runs at the
//! highest possible frequency. The thread moves by its affinity, and gets back the one that it had.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dimmer_host::affinity::{self, AffinityError};
use dimmer_host::root::format_cpu_list;
use dimmer_host::unavailable::Unavailable;
use dimmer_processor::units::CpuId;
use rustix::io::Errno;
use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};

use crate::thread::{ask_again, begin_visit, end_visit, request_for};
use crate::{Decision, Request, machine};

/// Why no CPU is dedicated, or a thread stays where it is. Nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FastCoreError {
    /// The list of CPUs is empty.
    #[error("no CPU was named to run fastest: name at least one")]
    Empty,
    /// One set of CPUs at a time.
    #[error("this process has dedicated cpu {} already: drop that first", format_cpu_list(cpus))]
    Dedicated {
        /// The CPUs.
        cpus: Vec<CpuId>,
    },
    /// No CPU is dedicated.
    #[error("this process has no CPU that always runs fastest: dedicate one first")]
    NotDedicated,
    /// The thread may not run on the CPU: it does not exist, is offline, or is outside of the
    /// process's cpuset.
    #[error(transparent)]
    Affinity(#[from] AffinityError),
    /// This process is a child of fork of one that has dedicated CPUs.
    #[error("a child of fork cannot dedicate CPUs while its parent has some; start a program")]
    Forked,
    /// A destructor of a thread-local variable asks after those of this crate have ended, or a
    /// signal handler has interrupted a thread that moves.
    #[error("the thread ends, or a signal has interrupted it while it moves")]
    Busy,
}

/// A dedicated CPU, and how many threads are there.
#[derive(Debug)]
struct Core {
    cpu: CpuId,
    threads: AtomicU32,
}

static DEDICATED: Mutex<Option<Arc<[Core]>>> = Mutex::new(None);

fn dedicated() -> std::sync::MutexGuard<'static, Option<Arc<[Core]>>> {
    DEDICATED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The process that has dedicated cores; 0 if none has. A child of fork must not wait for the lock
/// of [`DEDICATED`], which a thread of its parent may have had.
static DEDICATOR: AtomicU32 = AtomicU32::new(0);

fn is_dedicator() -> bool {
    // Relaxed: written by this process, or before the fork.
    DEDICATOR.load(Ordering::Relaxed) == std::process::id()
}

fn cpus(cores: &[Core]) -> Vec<CpuId> {
    cores.iter().map(|core| core.cpu).collect()
}

/// While this value lives, some CPUs are asked to run fastest, with the back end `uclamp` only
/// while threads are there. Threads that are there when it is dropped stay until they go home.
#[derive(Debug)]
pub struct FastCores {
    cores: Arc<[Core]>,
    decision: Decision,
}

impl FastCores {
    /// The CPUs, ascending.
    #[must_use]
    pub fn cpus(&self) -> Vec<CpuId> {
        cpus(&self.cores)
    }

    /// Whether a back end has the request for the fastest clock. Without one the CPUs are as fast
    /// as the machine makes them, and threads go there all the same.
    #[must_use]
    pub const fn decision(&self) -> Decision {
        self.decision
    }
}

impl Drop for FastCores {
    fn drop(&mut self) {
        if !is_dedicator() {
            // A child of fork: they are its parent's.
            return;
        }
        request_for_all(&self.cores, None);
        let mut dedicated = dedicated();
        *dedicated = None;
        DEDICATOR.store(0, Ordering::Relaxed);
    }
}

/// The number of the request for a dedicated CPU: the request is for the CPU, not for a thread, so
/// it has a number that no thread has. The kernel gives threads numbers below 2^22
/// (`PID_MAX_LIMIT`).
#[must_use]
pub const fn dedicated_thread(cpu: CpuId) -> u32 {
    u32::MAX - cpu.index()
}

fn request_for_all(cores: &[Core], request: Option<Request>) -> Decision {
    let Ok(back_end) = machine::get() else { return Decision::Unavailable };
    if back_end.follows_threads() {
        // Threads ask while they are there.
        return Decision::Requested;
    }
    let ask = |core: &Core| request_for(dedicated_thread(core.cpu), core.cpu, request);
    let answers: Vec<Decision> = cores.iter().map(ask).collect();
    let all = answers.iter().all(|answer| *answer == Decision::Requested);
    if all { Decision::Requested } else { Decision::Unavailable }
}

/// Dedicates these CPUs: they run fastest until the result is dropped, and threads can go there
/// ([`on_fast_core`]). Other threads are not kept away.
///
/// CPUs that share a clock with one of them run fastest, too. The calling thread goes to each of
/// them once, to see that it may.
///
/// # Errors
/// [`FastCoreError`]: no CPU is named, others are dedicated, or threads may not run on one.
pub fn dedicate_fast(cpus: &[CpuId]) -> Result<FastCores, FastCoreError> {
    let mut wanted = cpus.to_vec();
    wanted.sort_unstable();
    wanted.dedup();
    if wanted.is_empty() {
        return Err(FastCoreError::Empty);
    }
    if DEDICATOR.load(Ordering::Relaxed) != 0 && !is_dedicator() {
        return Err(FastCoreError::Forked);
    }
    let home = sched_getaffinity(None).map_err(system)?;
    let tried = wanted.iter().try_for_each(|cpu| affinity::move_thread(None, *cpu));
    let _ = sched_setaffinity(None, &home);
    tried?;
    let core = |cpu| Core { cpu, threads: AtomicU32::new(0) };
    let cores: Arc<[Core]> = wanted.into_iter().map(core).collect();
    {
        let mut dedicated = dedicated();
        if let Some(known) = &*dedicated {
            return Err(FastCoreError::Dedicated { cpus: self::cpus(known) });
        }
        *dedicated = Some(Arc::clone(&cores));
        DEDICATOR.store(std::process::id(), Ordering::Relaxed);
    }
    let decision = request_for_all(&cores, Some(Request::TURBO));
    Ok(FastCores { cores, decision })
}

/// The CPUs of the calling thread whose fastest clock is the highest, for [`dedicate_fast`].
///
/// # Errors
/// [`Unavailable`]: there is no back end, or all of these CPUs are alike.
pub fn fastest_cpus() -> Result<Vec<CpuId>, Unavailable> {
    let missing = |why: &str| {
        Unavailable::new("a CPU that is faster than others", why, "name the CPUs to dedicate")
    };
    let back_end = machine::get().map_err(Clone::clone)?;
    let allowed = affinity::allowed().map_err(|error| missing(&error.to_string()))?;
    let clock = |cpu: &CpuId| Some((back_end.clocks(*cpu)?.fastest, *cpu));
    let clocks: Vec<_> = allowed.iter().filter_map(clock).collect();
    let highest = clocks.iter().map(|(clock, _)| *clock).max();
    let fastest: Vec<CpuId> =
        clocks.iter().filter(|(clock, _)| Some(*clock) == highest).map(|(_, cpu)| *cpu).collect();
    if fastest.len() == allowed.len() || fastest.is_empty() {
        return Err(missing("all CPUs of this thread have the same fastest clock"));
    }
    Ok(fastest)
}

fn system(error: Errno) -> FastCoreError {
    AffinityError::System(error.into()).into()
}

fn only(cpu: CpuId) -> CpuSet {
    let mut set = CpuSet::new();
    let index = usize::try_from(cpu.index()).ok().filter(|index| *index < CpuSet::MAX_CPU);
    index.into_iter().for_each(|index| set.set(index));
    set
}

thread_local! {
    static TRIP: RefCell<Trip> = const { RefCell::new(Trip { depth: 0, away: None }) };
}

/// A thread's way to a fast core and home.
struct Trip {
    /// How often it has asked to go, and not come home.
    depth: u32,
    away: Option<Away>,
}

/// A thread on a fast core. When this is dropped, it goes home.
struct Away {
    process: u32,
    thread: Pid,
    home: CpuSet,
    cores: Arc<[Core]>,
    index: usize,
    /// Whether requests go with the thread: then it asks for the fastest clock meanwhile.
    follows: bool,
}

impl Away {
    fn start() -> Result<Self, FastCoreError> {
        if !is_dedicator() {
            return Err(FastCoreError::NotDedicated);
        }
        let cores = dedicated().clone().ok_or(FastCoreError::NotDedicated)?;
        let least = cores.iter().enumerate().min_by_key(|(_, core)| {
            // Relaxed: a hint, by which threads spread.
            core.threads.load(Ordering::Relaxed)
        });
        let (index, core) = least.ok_or(FastCoreError::NotDedicated)?;
        let home = sched_getaffinity(None).map_err(system)?;
        affinity::move_thread(None, core.cpu)?;
        core.threads.fetch_add(1, Ordering::Relaxed);
        let follows = machine::get().is_ok_and(|back_end| back_end.follows_threads());
        if follows {
            begin_visit();
        } else {
            ask_again();
        }
        let (process, thread) = (std::process::id(), gettid());
        Ok(Self { process, thread, home, cores, index, follows })
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        if self.follows {
            end_visit();
        }
        let Some(core) = self.cores.get(self.index) else { return };
        core.threads.fetch_sub(1, Ordering::Relaxed);
        // The thread may be carried by another one of the kernel's meanwhile (`dimmer-runtime`). In
        // a child of fork the number is the parent's.
        let thread = (self.process == std::process::id()).then_some(self.thread);
        let Ok(found) = sched_getaffinity(thread) else { return };
        let trouble = |why: String| {
            let remedy = "Dimmer leaves the thread where it is";
            machine::report(Unavailable::new("the way back from a fast core", why, remedy));
        };
        if found != only(core.cpu) {
            let cpu = core.cpu;
            trouble(format!(
                "the affinity of a thread was cpu {cpu}, and something has changed it"
            ));
        } else if let Err(error) = sched_setaffinity(thread, &self.home) {
            trouble(format!("sched_setaffinity: {error}"));
        } else if !self.follows {
            ask_again();
        }
    }
}

/// Moves the calling thread to the dedicated CPU with the fewest threads, until [`go_home`].
/// [`on_fast_core`] is the same as a scope. May be nested: the thread is there already, then.
///
/// Threads that it creates meanwhile are there, too, and stay.
///
/// # Errors
/// [`FastCoreError`]. The thread stays where it is, and [`go_home`] must not be called for it.
///
/// # Cost
/// Two system calls, the migration, and the misses in the other core's caches; with the back end
/// `uclamp` another two system calls.
pub fn go_to_fast_core() -> Result<(), FastCoreError> {
    let go = |trip: &RefCell<Trip>| {
        let mut trip = trip.try_borrow_mut().map_err(|_| FastCoreError::Busy)?;
        if trip.away.is_none() {
            trip.away = Some(Away::start()?);
        }
        trip.depth += 1;
        Ok(())
    };
    TRIP.try_with(go).unwrap_or(Err(FastCoreError::Busy))
}

/// Ends the last [`go_to_fast_core`] of the thread. At the end of the first, the thread goes back,
/// with the affinity that it had. If something else has changed its affinity meanwhile, the thread
/// keeps that, and [`crate::trouble`] says so. Without a [`go_to_fast_core`] it does nothing.
pub fn go_home() {
    // Without the variable, the thread has ended, and gone home before.
    let _ = TRIP.try_with(|trip| {
        let Ok(mut trip) = trip.try_borrow_mut() else { return };
        trip.depth = trip.depth.saturating_sub(1);
        if trip.depth == 0 {
            trip.away = None;
        }
    });
}

/// While this value lives, the calling thread is on a core that always runs fastest.
#[derive(Debug)]
pub struct OnFastCore {
    /// It must be dropped in the same thread.
    not_send: PhantomData<*const ()>,
}

/// Moves the calling thread to a core that always runs fastest, until the result is dropped; see
/// [`go_to_fast_core`].
///
/// # Errors
/// [`FastCoreError`]. The thread stays where it is.
pub fn on_fast_core() -> Result<OnFastCore, FastCoreError> {
    go_to_fast_core()?;
    Ok(OnFastCore { not_send: PhantomData })
}

impl Drop for OnFastCore {
    fn drop(&mut self) {
        go_home();
    }
}
