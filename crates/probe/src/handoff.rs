//! Time to hand work to a waiting thread on another core and to receive the answer: the minimum
//! cost of moving a piece of work. One cache line goes there, and one comes back.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dimmer_host::affinity::{self, AffinityError};
use dimmer_host::root::Root;
use dimmer_host::topology;
use dimmer_processor::units::CpuId;

use crate::stats::{Estimate, Samples};

/// Round trips that are timed together.
const TRIPS: u32 = 200;
/// Number of such batches.
const BATCHES: usize = 100;
/// Time limit. Where CPUs are shared, one of the threads may have to wait for its CPU.
const LONGEST: Duration = Duration::from_millis(200);

/// Turns of a waiting loop between two checks whether waiting still makes sense.
const PATIENCE: u32 = 1024;

/// A cache line of its own, with the neighbouring line that processors fetch along with it.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Line(AtomicU64);

/// Time of a round trip between two of the calling thread's CPUs (ns), on two cores if it may run
/// on two. `None` with one CPU. Takes some milliseconds, at most 0.2 s.
///
/// # Errors
/// If the kernel does not report which CPUs there are, or does not let threads be pinned.
pub fn round_trip(root: &Root) -> Result<Option<Estimate>, AffinityError> {
    match two_cpus(root)? {
        Ok((home, other)) => between(root, home, other).map(|trips| trips.estimate()),
        Err(_) => Ok(None),
    }
}

/// Two of the calling thread's CPUs, on two cores if it may run on two; its only CPU if it has one.
///
/// # Errors
/// If the kernel does not report which CPUs there are.
pub fn two_cpus(root: &Root) -> Result<Result<(CpuId, CpuId), CpuId>, AffinityError> {
    let allowed = affinity::allowed()?;
    let siblings = |cpu| topology::read(root).map(|found| found.siblings(cpu)).unwrap_or_default();
    let only = allowed.first().copied().unwrap_or(CpuId::new(0));
    Ok(choose(&allowed, siblings).ok_or(only))
}

/// Two CPUs, on two cores if possible.
fn choose(allowed: &[CpuId], siblings: impl Fn(CpuId) -> Vec<CpuId>) -> Option<(CpuId, CpuId)> {
    let (home, others) = allowed.split_first()?;
    Some((*home, away_from(*home, others, &siblings(*home))?))
}

/// One of these CPUs, on another core than `home` if possible.
#[must_use]
pub fn away_from(home: CpuId, allowed: &[CpuId], siblings: &[CpuId]) -> Option<CpuId> {
    let mut others = allowed.iter().copied().filter(|cpu| *cpu != home);
    let apart = others.clone().find(|cpu| !siblings.contains(cpu));
    apart.or_else(|| others.next())
}

/// Round trips between two CPUs (ns each), batch by batch.
fn between(root: &Root, home: CpuId, other: CpuId) -> Result<Samples, AffinityError> {
    let lines = Lines::default();
    std::thread::scope(|scope| {
        // Spawned before the calling thread is pinned: threads inherit the affinity.
        let worker = scope.spawn(|| {
            let _pinned = affinity::pin(root, other)?;
            lines.answer();
            Ok(())
        });
        let asked = affinity::pin(root, home).map(|_pinned| lines.ask(|| worker.is_finished()));
        lines.is_over.store(true, Ordering::Relaxed);
        match worker.join() {
            Ok(answered) => answered.and(asked),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Memory that the two threads share.
#[derive(Debug, Default)]
struct Lines {
    there: Line,
    back: Line,
    is_over: AtomicBool,
}

impl Lines {
    /// Sends back every number that arrives.
    fn answer(&self) {
        let mut answered = 0;
        while !self.is_over.load(Ordering::Relaxed) {
            let asked = self.there.0.load(Ordering::Acquire);
            if asked != answered {
                answered = asked;
                self.back.0.store(answered, Ordering::Release);
            }
            std::hint::spin_loop();
        }
    }

    /// Sends numbers, and waits for each to come back, until the answering thread is gone.
    fn ask(&self, is_gone: impl Fn() -> bool) -> Samples {
        let begun = Instant::now();
        let mut asked = 0;
        let mut batches = Vec::with_capacity(BATCHES);
        while batches.len() < BATCHES && begun.elapsed() < LONGEST {
            let batch = Instant::now();
            for _ in 0..TRIPS {
                asked += 1;
                self.there.0.store(asked, Ordering::Release);
                let mut spins = 0_u32;
                while self.back.0.load(Ordering::Acquire) != asked {
                    spins = spins.wrapping_add(1);
                    let is_late = || begun.elapsed() >= LONGEST;
                    if spins.is_multiple_of(PATIENCE) && (is_gone() || is_late()) {
                        return Samples::new(batches);
                    }
                    std::hint::spin_loop();
                }
            }
            batches.push(batch.elapsed().as_nanos() as f64 / f64::from(TRIPS));
        }
        Samples::new(batches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_core_is_chosen_where_there_is_one() {
        let cpus: Vec<CpuId> = (0..4).map(CpuId::new).collect();
        let siblings = |cpu: CpuId| vec![CpuId::new(cpu.index() ^ 1)];
        assert_eq!(choose(&cpus, siblings), Some((cpus[0], cpus[2])));
        assert_eq!(choose(&cpus[..2], siblings), Some((cpus[0], cpus[1])));
        assert_eq!(choose(&cpus[..1], siblings), None);
    }

    #[test]
    fn round_trip_takes_time_and_two_cpus() {
        let trip = round_trip(&Root::live()).unwrap();
        let two = affinity::allowed().unwrap().len() > 1;
        // On a busy machine, not even one batch may be complete within 0.2 s.
        assert!(trip.is_none_or(|trip| two && trip.median > 1.0), "{trip:?}");
    }

    #[test]
    fn whoever_is_gone_is_not_waited_for() {
        assert!(Lines::default().ask(|| true).is_empty());
    }
}
