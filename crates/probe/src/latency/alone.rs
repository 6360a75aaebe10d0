//! What a thread does on its own CPU: calls of the kernel, instructions that wait, and its
//! migration to another CPU by the kernel.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use dimmer_host::affinity::{self, AffinityError};
use dimmer_host::cpuid::Cpuid;
use dimmer_host::realtime;
use dimmer_host::root::Root;
use dimmer_processor::units::CpuId;
use rustix::process::getppid;
use rustix::thread::{futex, sched_getcpu, sched_yield};

use super::phase::Phase;
use super::way;
use crate::arch::{ticks_now, waits};

/// PAUSE instructions that are timed together: one is shorter than a step of some counters.
const PAUSES: u32 = 100;

/// How long a timed wait is to last, in ticks: some 10 us, below the 100 000 to which Linux limits
/// it (`/sys/devices/system/cpu/umwait_control`).
const TPAUSE_TICKS: u64 = 30_000;

/// How long the CPU to which a thread migrates has been idle, at least.
const IDLE: Duration = Duration::from_micros(200);

/// Something that a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Nothing: two time stamps.
    Nothing,
    /// `getppid(2)`: the kernel does next to nothing.
    Call,
    /// FUTEX_WAIT on a word with another value: returns at once.
    FutexWait,
    /// FUTEX_WAKE of a word on which no thread waits.
    FutexWake,
    /// `sched_yield(2)`.
    Yield,
    /// PAUSE.
    Pause,
    /// TPAUSE in this state: how long after its deadline it ends.
    Tpause {
        /// As the instruction has it.
        state: u32,
    },
}

impl Act {
    /// As [`super::way::Way::lacks`].
    pub(super) fn lacks(self, cpuid: &Cpuid, root: &Root) -> Option<String> {
        match self {
            Self::Tpause { state } => way::lacks_pause(cpuid, root, state, TPAUSE_TICKS),
            _ => None,
        }
    }
}

/// Times an act on this CPU (ticks), time stamps included. Leaves out pauses that the kernel's
/// limit has ended.
///
/// # Errors
/// [`AffinityError`]: the thread cannot be pinned.
pub(super) fn times(
    root: &Root,
    act: Act,
    cpu: CpuId,
    count: usize,
    phase: &mut Phase,
) -> Result<Vec<f64>, AffinityError> {
    let _pinned = affinity::pin(root, cpu)?;
    let word = AtomicU32::new(0);
    let took = (0..count).filter_map(|_| {
        phase.execute(Duration::ZERO);
        let begin = ticks_now();
        match act {
            Act::Nothing => {}
            Act::Call => {
                let _ = getppid();
            }
            // Only their time matters: the one returns that the word differs, the other that it
            // woke no thread.
            Act::FutexWait => {
                let _ = futex::wait(&word, futex::Flags::PRIVATE, 1, None);
            }
            Act::FutexWake => {
                let _ = futex::wake(&word, futex::Flags::PRIVATE, 1);
            }
            Act::Yield => sched_yield(),
            Act::Pause => (0..PAUSES).for_each(|_| spin_loop()),
            Act::Tpause { state } => {
                // SAFETY: the caller has checked that the processor has it.
                if unsafe { waits::tpause(state, begin + TPAUSE_TICKS) } {
                    return None;
                }
            }
        }
        let took = ticks_now().saturating_sub(begin);
        Some(match act {
            Act::Pause => took as f64 / f64::from(PAUSES),
            Act::Tpause { .. } => took as f64 - TPAUSE_TICKS as f64,
            _ => took as f64,
        })
    });
    Ok(took.collect())
}

/// Times `sched_setaffinity(2)` of the calling thread to another CPU (ticks): it returns there.
/// Leaves out those after which the thread was on a third CPU.
///
/// * `is_awake`: whether a thread of the idle class keeps the other CPU from sleeping meanwhile, as
///   paper 002, section 4.1, does by a polling idle loop. Otherwise that is idle.
///
/// # Errors
/// [`AffinityError`]: a thread cannot be pinned.
pub(super) fn migrations(
    root: &Root,
    (from, to): (CpuId, CpuId),
    is_awake: bool,
    count: usize,
    phase: &mut Phase,
) -> Result<Vec<f64>, AffinityError> {
    let is_over = AtomicBool::new(!is_awake);
    std::thread::scope(|scope| {
        // Spawned before the calling thread is pinned: threads inherit the affinity.
        let keeper = scope.spawn(|| {
            let _pinned = affinity::pin(root, to)?;
            // Without the class it shares the CPU with the thread that migrates, and is seen in
            // the times; Linux gives it to every thread.
            let _ = realtime::become_idle();
            while !is_over.load(Ordering::Relaxed) {
                spin_loop();
            }
            Ok(())
        });
        let took = affinity::pin(root, from).and_then(|_pinned| {
            let mut took = Vec::with_capacity(count);
            for _ in 0..count {
                phase.execute(IDLE);
                let begin = ticks_now();
                affinity::allow(&[to])?;
                let end = ticks_now();
                if u32::try_from(sched_getcpu()) == Ok(to.index()) {
                    took.push(end.saturating_sub(begin) as f64);
                }
                affinity::allow(&[from])?;
            }
            Ok(took)
        });
        is_over.store(true, Ordering::Relaxed);
        match keeper.join() {
            Ok(kept) => kept.and(took),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
