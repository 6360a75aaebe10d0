//! Pins the calling thread to one CPU, and unpins it again.

use std::io;
use std::marker::PhantomData;

use dimmer_processor::units::CpuId;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

use crate::root::{Root, format_cpu_list};
use crate::topology;

/// Why a thread cannot be pinned. Its affinity is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AffinityError {
    /// The machine has no such CPU.
    #[error("cpu {cpu} does not exist, allowed are {}", format_cpu_list(allowed))]
    NoSuchCpu {
        /// The CPU that was requested.
        cpu: CpuId,
        /// The CPUs that this thread may run on.
        allowed: Vec<CpuId>,
    },
    /// The CPU exists but is offline.
    #[error("cpu {cpu} is offline, allowed are {}", format_cpu_list(allowed))]
    Offline {
        /// The CPU that was requested.
        cpu: CpuId,
        /// The CPUs that this thread may run on.
        allowed: Vec<CpuId>,
    },
    /// A cpuset, a container or `taskset` excludes the CPU for this thread.
    #[error("cpu {cpu} is not allowed for this process, allowed are {}", format_cpu_list(allowed))]
    NotAllowed {
        /// The CPU that was requested.
        cpu: CpuId,
        /// The CPUs that this thread may run on.
        allowed: Vec<CpuId>,
    },
    /// The kernel refused for another reason.
    #[error("cannot set the affinity of this thread")]
    System(#[source] io::Error),
}

/// The CPUs that the calling thread may run on, ascending.
///
/// # Errors
/// [`AffinityError::System`].
pub fn allowed() -> Result<Vec<CpuId>, AffinityError> {
    let set = sched_getaffinity(None).map_err(|error| AffinityError::System(error.into()))?;
    Ok(members(&set))
}

/// Checks that the calling thread may run on `cpu`. Does not move the thread.
///
/// # Errors
/// [`AffinityError`], with the CPUs that the thread may run on.
pub fn check(root: &Root, cpu: CpuId) -> Result<(), AffinityError> {
    let allowed = allowed()?;
    if allowed.contains(&cpu) {
        return Ok(());
    }
    let unknown_or =
        |listed: Result<Vec<CpuId>, _>| listed.map_or(true, |list| list.contains(&cpu));
    Err(if !unknown_or(topology::present(root)) {
        AffinityError::NoSuchCpu { cpu, allowed }
    } else if !unknown_or(topology::online(root)) {
        AffinityError::Offline { cpu, allowed }
    } else {
        AffinityError::NotAllowed { cpu, allowed }
    })
}

/// While this value lives, the calling thread stays on one CPU.
#[derive(Debug)]
pub struct Pinned {
    before: CpuSet,
    // It must be dropped in the pinned thread.
    not_send: PhantomData<*const ()>,
}

/// Pins the calling thread to `cpu` until the result is dropped.
///
/// # Errors
/// [`AffinityError`], with the CPUs that the thread may run on.
pub fn pin(root: &Root, cpu: CpuId) -> Result<Pinned, AffinityError> {
    check(root, cpu)?;
    let before = sched_getaffinity(None).map_err(|error| AffinityError::System(error.into()))?;
    let mut wanted = CpuSet::new();
    // `check` found the number in a set of the same size, so it fits.
    if let Ok(index) = usize::try_from(cpu.index()) {
        wanted.set(index);
    }
    sched_setaffinity(None, &wanted).map_err(|error| AffinityError::System(error.into()))?;
    Ok(Pinned { before, not_send: PhantomData })
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // If the CPUs of the old set are gone, the thread stays where it is: there is nothing
        // better to do, and the measurement has already ended without an error.
        let _ = sched_setaffinity(None, &self.before);
    }
}

/// Allows the calling thread to run on all of these CPUs.
///
/// # Errors
/// [`AffinityError::System`]: none of these CPUs exists.
pub fn allow(cpus: &[CpuId]) -> Result<(), AffinityError> {
    allow_thread(None, cpus)
}

/// The CPUs that a thread of this process may run on, ascending.
///
/// # Errors
/// [`AffinityError::System`], also if the thread has ended.
pub fn allowed_to(thread: u32) -> Result<Vec<CpuId>, AffinityError> {
    let set =
        sched_getaffinity(pid(thread)).map_err(|error| AffinityError::System(error.into()))?;
    Ok(members(&set))
}

/// Allows a thread of this process (`None`: the calling thread) to run on all of these CPUs.
///
/// # Errors
/// [`AffinityError::System`]: none of these CPUs exists, or the thread has ended.
pub fn allow_thread(thread: Option<u32>, cpus: &[CpuId]) -> Result<(), AffinityError> {
    let mut wanted = CpuSet::new();
    let indices = cpus.iter().filter_map(|cpu| usize::try_from(cpu.index()).ok());
    indices.filter(|index| *index < CpuSet::MAX_CPU).for_each(|index| wanted.set(index));
    let thread = thread.and_then(pid);
    sched_setaffinity(thread, &wanted).map_err(|error| AffinityError::System(error.into()))
}

/// Moves a thread of this process (`None`: the calling thread) to this CPU, and keeps it there. Its
/// affinity before may exclude the CPU: only the cpuset counts.
///
/// # Errors
/// [`AffinityError`]; the thread stays where it is.
pub fn move_thread(thread: Option<u32>, cpu: CpuId) -> Result<(), AffinityError> {
    allow_thread(thread, &[cpu]).map_err(|error| match (&error, check(&Root::live(), cpu)) {
        (AffinityError::System(refused), Err(why))
            if refused.kind() == io::ErrorKind::InvalidInput =>
        {
            why
        }
        _ => error,
    })
}

fn pid(thread: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(thread).ok()?)
}

fn members(set: &CpuSet) -> Vec<CpuId> {
    let indices = (0..CpuSet::MAX_CPU).filter(|index| set.is_set(*index));
    indices.filter_map(|index| u32::try_from(index).ok().map(CpuId::new)).collect()
}
