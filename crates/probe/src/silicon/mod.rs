//! The machine itself: pinned threads that execute programs.
//!
//! There is one thread a CPU, started at first use, asleep between programs. A program runs from
//! prepared memory: the buffer of stamps was written once before, so that no page fault happens in
//! the timed stretch. Page faults that happen there anyway are counted.

mod callable;
mod code;
mod worker;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use dimmer_host::perf::Countable;
use dimmer_processor::topology::Topology;
use dimmer_processor::units::{CpuId, KiloHertz, TscFrequency};

pub use self::callable::Callable;
use self::code::CodeArea;
use self::worker::{Order, Worker};
use crate::arch::ticks_now;
use crate::kernel::Kernel;
use crate::program::Trace;
use crate::target::{Job, Target, TargetError};

/// Properties of the machine that the caller provides.
#[derive(Clone, Debug)]
pub struct SiliconConfig {
    /// The CPUs that may be used; the caller has checked that they are online and allowed.
    pub cpus: Vec<CpuId>,
    /// The topology, for SMT siblings.
    pub topology: Topology,
    /// Instruction-set extensions that processor and system both provide, named as in
    /// `/proc/cpuinfo`.
    pub features: Vec<String>,
    /// Whether code lies on huge pages.
    pub huge_pages: bool,
    /// Performance events to count at the same time, cycles first. If they cannot be counted
    /// together, only the first is; if that fails too, none is.
    pub events: Vec<Countable>,
}

/// The processor on which this program runs.
#[derive(Debug)]
pub struct Silicon {
    config: SiliconConfig,
    tsc: TscFrequency,
    code: CodeArea,
    workers: BTreeMap<CpuId, Worker>,
    spare: Vec<Trace>,
    begun: Instant,
}

impl Silicon {
    /// Prepares memory, and compares the time-stamp counter with the system's clock for 50 ms.
    ///
    /// # Errors
    /// [`TargetError::Memory`]; [`TargetError::NoClock`] if the counter does not advance.
    pub fn new(config: SiliconConfig) -> Result<Self, TargetError> {
        let code = CodeArea::new(config.huge_pages)?;
        let tsc = measure_tsc()?;
        Ok(Self {
            config,
            tsc,
            code,
            workers: BTreeMap::new(),
            spare: Vec::new(),
            begun: Instant::now(),
        })
    }

    fn worker(&mut self, cpu: CpuId) -> Result<&Worker, TargetError> {
        match self.workers.entry(cpu) {
            Entry::Occupied(worker) => Ok(worker.into_mut()),
            Entry::Vacant(place) => Ok(place.insert(Worker::start(cpu, &self.config.events)?)),
        }
    }
}

impl Target for Silicon {
    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn tsc(&self) -> TscFrequency {
        self.tsc
    }

    fn cpus(&self) -> &[CpuId] {
        &self.config.cpus
    }

    fn siblings(&self, cpu: CpuId) -> Vec<CpuId> {
        let mut siblings = self.config.topology.siblings(cpu);
        siblings.retain(|sibling| self.config.cpus.contains(sibling));
        siblings
    }

    fn lacks(&self, kernel: &Kernel) -> Option<String> {
        let has = |name: &str| self.config.features.iter().any(|feature| feature == name);
        let missing: Vec<&str> =
            kernel.needs.iter().map(|f| f.name()).filter(|name| !has(name)).collect();
        (!missing.is_empty())
            .then(|| format!("the processor or the system does not provide {}", missing.join(", ")))
    }

    fn run(&mut self, jobs: &[Job<'_>]) -> Result<Vec<Trace>, TargetError> {
        if self.code.is_nearly_full() {
            self.code = CodeArea::new(self.config.huge_pages)?;
        }
        let start = Arc::new(AtomicUsize::new(jobs.len()));
        let mut orders = Vec::with_capacity(jobs.len());
        for job in jobs {
            let trace = self.spare.pop().unwrap_or_default();
            orders.push(Order::prepare(job.program, &mut self.code, trace, Arc::clone(&start))?);
        }
        // All threads are started before the first order is sent. Otherwise a thread might wait for
        // one that cannot be started.
        for job in jobs {
            self.worker(job.cpu)?;
        }
        for (job, order) in jobs.iter().zip(orders) {
            self.worker(job.cpu)?.send(order)?;
        }
        jobs.iter().map(|job| self.worker(job.cpu)?.receive()).collect()
    }
}

impl Silicon {
    /// Takes traces back for reuse, so that the next run does not have to fault in new memory.
    pub fn recycle(&mut self, traces: Vec<Trace>) {
        self.spare.extend(traces);
        self.spare.truncate(self.config.cpus.len());
    }
}

/// The step of the time-stamp counter (ticks): some count in steps of many. The smallest difference
/// between what pairs of time stamps take.
pub(crate) fn counter_step() -> u64 {
    const PAIRS: usize = 1000;
    let pair = |_| {
        let begin = ticks_now();
        ticks_now().saturating_sub(begin)
    };
    let mut took: Vec<u64> = (0..PAIRS).map(pair).collect();
    took.sort_unstable();
    took.dedup();
    took.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap_or(1)
}

/// Counts ticks against the system's monotonic clock.
pub(crate) fn measure_tsc() -> Result<TscFrequency, TargetError> {
    let (start, first) = (Instant::now(), ticks_now());
    std::thread::sleep(Duration::from_millis(50));
    let (elapsed, last) = (start.elapsed(), ticks_now());
    let ticks = last.saturating_sub(first);
    let nanos = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX).max(1);
    let khz = u128::from(ticks) * 1_000_000 / u128::from(nanos);
    let khz = KiloHertz::from_khz(u64::try_from(khz).unwrap_or(0));
    TscFrequency::new(khz).ok_or_else(|| TargetError::NoClock {
        why: "the time-stamp counter stands still".to_owned(),
    })
}
