//! The machine as a core whose clock can be requested. Times are of the kernel's clock, which
//! needs no invariant time-stamp counter: in windows of microseconds its tens of nanoseconds do not
//! matter.

use std::time::{Duration, Instant};

use dimmer_host::affinity::{self, AffinityError, Pinned};
use dimmer_host::cpuid::Cpuid;
use dimmer_host::journal::Journal;
use dimmer_host::operating_points::OperatingPoints;
use dimmer_host::pstate::SetError;
use dimmer_host::root::{Root, RootError};
use dimmer_processor::units::{CpuId, KiloHertz};

use super::{Core, Transitions, Window, measure};
use crate::lab::Observer;
use crate::silicon::Callable;
use crate::target::TargetError;

/// Multiplications in a window: some 2 us at 3 GHz.
const LINKS: u32 = 2000;

/// Readings of the clock that show its step.
const READINGS: usize = 1000;

/// What was measured on this machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The CPU.
    pub cpu: CpuId,
    /// What is written by a request.
    pub by: String,
    /// The transitions.
    pub transitions: Transitions,
}

/// Why transitions cannot be measured. What was requested is in the journal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransitionError {
    /// The machine does not let clocks be requested, or not these.
    #[error(transparent)]
    Points(#[from] SetError),
    /// A request failed that was possible before.
    #[error("cannot request a clock")]
    Request(#[from] RootError),
    /// The thread cannot be pinned.
    #[error(transparent)]
    Affinity(#[from] AffinityError),
    /// Windows cannot be timed.
    #[error(transparent)]
    Target(#[from] TargetError),
}

/// Measures the transitions of the core of `cpu` between at most `most` points, with requests
/// under the root of `journal`, which the caller undoes.
///
/// # Errors
/// [`TransitionError`].
pub fn measure_here(
    journal: &mut Journal,
    cpuid: &Cpuid,
    cpu: CpuId,
    (most, rounds): (usize, usize),
    observer: &mut dyn Observer,
) -> Result<Measured, TransitionError> {
    let work = Callable::chain(LINKS)?;
    let points = OperatingPoints::open(journal, cpuid, cpu, most)?;
    let by = points.by();
    let pinned = affinity::pin(&Root::live(), cpu)?;
    let mut core =
        Here { points, work, begun: Instant::now(), random: fastrand::Rng::new(), _pinned: pinned };
    let transitions = measure(&mut core, rounds, observer)?;
    Ok(Measured { cpu, by, transitions })
}

/// The core of the calling thread.
#[derive(Debug)]
struct Here {
    points: OperatingPoints,
    work: Callable,
    begun: Instant,
    random: fastrand::Rng,
    _pinned: Pinned,
}

impl Core for Here {
    type Error = RootError;

    fn clocks(&self) -> &[KiloHertz] {
        self.points.clocks()
    }

    fn step_ns(&self) -> f64 {
        let mut took: Vec<Duration> = (0..READINGS).map(|_| Instant::now().elapsed()).collect();
        took.sort_unstable();
        took.dedup();
        let steps = took.windows(2).map(|pair| pair[1] - pair[0]);
        steps.min().unwrap_or(Duration::from_nanos(1)).as_nanos() as f64
    }

    fn now_ns(&mut self) -> f64 {
        self.begun.elapsed().as_nanos() as f64
    }

    fn request(&mut self, point: usize) -> Result<(), RootError> {
        self.points.request(point)
    }

    fn window(&mut self) -> Window {
        let begin_ns = self.now_ns();
        self.work.call();
        Window { begin_ns, ns: self.now_ns() - begin_ns }
    }

    fn random(&mut self) -> f64 {
        self.random.f64()
    }
}
