//! Bursts of wide SIMD code in scalar work, run where they are or moved to another core: paper
//! 001 §3.2 to §3.4 on this machine.
//!
//! The scalar work is a sieve of Eratosthenes over a segment that fits into the first-level cache.
//! The cost of a burst depends on the time since the last one, so the work between bursts is swept.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dimmer_host::affinity::{self, AffinityError};
use dimmer_host::root::Root;
use dimmer_probe::handoff;
use dimmer_probe::kernel::Kernel;
use dimmer_probe::silicon::Callable;
use dimmer_probe::stats::{Estimate, Samples};
use dimmer_probe::target::TargetError;
use dimmer_processor::units::{CpuId, nearest};
use dimmer_runtime::{Cores, StartError};

use crate::pairs;

/// Numbers in the segment: one bit for each odd number, 16 KiB.
const SEGMENT: usize = 16 * 1024 * 8;

/// How long each way runs in a round, unless one iteration takes longer.
const TURN: Duration = Duration::from_millis(8);

/// How long workers spin: longer than any gap, like the workers of a dedicated core.
const SPIN: Duration = Duration::from_millis(10);

/// How long the scalar work runs before each turn. Without it, the ways before which this thread
/// slept were measured on a core that had been idle.
const WARM_UP: Duration = Duration::from_millis(10);

/// Why nothing can be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SieveError {
    /// There is only one CPU.
    #[error("moving work takes two CPUs, and this process may run on one (cpu {0})")]
    OneCpu(CpuId),
    /// The kernel does not allow threads to be pinned.
    #[error(transparent)]
    Affinity(#[from] AffinityError),
    /// No worker could be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// There is no memory for the burst's code.
    #[error(transparent)]
    Target(#[from] TargetError),
}

/// One cell of the experiment.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The code of the bursts.
    pub kernel: Arc<Kernel>,
    /// The scalar instructions that compute the same as one burst, element by element.
    pub instead: Arc<Kernel>,
    /// Instructions in a burst.
    pub burst: u32,
    /// Scalar instructions for one instruction of the kernel.
    pub lanes: u32,
    /// Scalar work between two bursts (ns).
    pub gap_ns: f64,
}

/// Ways to run the bursts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// A closure on the worker's stack.
    Delegate,
    /// The call on the caller's stack.
    Migrate,
}

impl Mechanism {
    /// Both mechanisms.
    pub const ALL: [Self; 2] = [Self::Delegate, Self::Migrate];
}

/// The time of an iteration (ns), for each turn of a round.
#[derive(Clone, Copy, Debug)]
struct Round {
    scalar: f64,
    direct: f64,
    instead: f64,
    moved: [f64; 2],
}

/// The results of one cell.
#[derive(Clone, Debug)]
pub struct Found {
    /// An iteration of the scalar work alone (ns): the gap as it was.
    pub scalar_ns: Estimate,
    /// With the bursts where they are (ns).
    pub direct_ns: Estimate,
    /// With scalar code instead of bursts (ns).
    pub instead_ns: Estimate,
    /// For each mechanism: an iteration with the bursts moved (ns); the part of the bursts' cost,
    /// direct less scalar, that moving takes away, in percent, from the medians; and by how much an
    /// iteration is longer than direct, in percent, round by round.
    pub moved: Vec<(Mechanism, Estimate, f64, Estimate)>,
}

/// The scalar work: crosses out multiples in the segment, again and again.
#[derive(Debug)]
pub(crate) struct Sieve {
    composite: Vec<u8>,
    prime: usize,
    at: usize,
}

impl Sieve {
    pub(crate) fn new() -> Self {
        Self { composite: vec![0; SEGMENT / 8], prime: 3, at: 0 }
    }

    /// Crosses out `steps` multiples. Never inlined: all ways that are compared run the same code.
    #[inline(never)]
    pub(crate) fn work(&mut self, steps: u32) {
        for _ in 0..steps {
            self.composite[self.at / 8] |= 1 << (self.at % 8);
            self.at += self.prime;
            if self.at >= SEGMENT {
                self.prime = if self.prime > 361 { 3 } else { self.prime + 2 };
                self.at = self.prime;
            }
        }
        black_box(&self.composite);
    }
}

/// The machine, ready to run cells.
#[derive(Debug)]
pub struct Bench {
    root: Root,
    home: CpuId,
    away: CpuId,
    cores: Cores,
    steps_per_ns: f64,
}

impl Bench {
    /// Starts a worker and measures the speed of the scalar work.
    ///
    /// # Errors
    /// [`SieveError`].
    pub fn new(root: &Root) -> Result<Self, SieveError> {
        let (home, away) = handoff::two_cpus(root)?.map_err(SieveError::OneCpu)?;
        let cores = Cores::start_spinning(root, &[away], SPIN)?;
        let _pinned = affinity::pin(root, home)?;
        const STEPS: u32 = 1_000_000;
        let mut sieve = Sieve::new();
        let steps_per_ns = (0..5).map(|_| {
            let begin = Instant::now();
            sieve.work(STEPS);
            f64::from(STEPS) / begin.elapsed().as_nanos() as f64
        });
        let steps_per_ns = steps_per_ns.fold(0.0, f64::max);
        Ok(Self { root: root.clone(), home, away, cores, steps_per_ns })
    }

    /// The CPU from which bursts move, and the CPU to which they move.
    #[must_use]
    pub fn cpus(&self) -> (CpuId, CpuId) {
        (self.home, self.away)
    }

    /// Runs one cell in all ways in turn, `rounds` times.
    ///
    /// # Errors
    /// [`SieveError`].
    pub fn run(&self, cell: &Cell, rounds: usize) -> Result<Found, SieveError> {
        let _pinned = affinity::pin(&self.root, self.home)?;
        let burst = Callable::new(&cell.kernel, cell.burst)?;
        let instead = Callable::new(&cell.instead, cell.burst.saturating_mul(cell.lanes))?;
        let mut sieve = Sieve::new();
        let steps = whole(cell.gap_ns * self.steps_per_ns);
        let iterations = whole(TURN.as_secs_f64() * 1e9 / cell.gap_ns).clamp(2, 10_000);
        let mut turn = |burst: &dyn Fn()| {
            let warm = Instant::now();
            while warm.elapsed() < WARM_UP {
                sieve.work(steps);
            }
            // First an iteration that does not count: after it, caches hold what the others need.
            for iteration in [1, iterations] {
                let begin = Instant::now();
                for _ in 0..iteration {
                    sieve.work(steps);
                    burst();
                }
                if iteration == iterations {
                    return begin.elapsed().as_nanos() as f64 / f64::from(iterations);
                }
            }
            f64::NAN
        };
        let mut round = |index: usize| {
            let mut took = [f64::NAN; 5];
            for way in pairs::order(index, took.len()) {
                if way < 3 {
                    // A worker that spins would slow another hardware thread of its core.
                    std::thread::sleep(SPIN + SPIN / 10);
                }
                took[way] = match way {
                    0 => turn(&|| ()),
                    1 => turn(&|| burst.call()),
                    2 => turn(&|| instead.call()),
                    3 => turn(&|| self.cores.delegate(|| burst.call())),
                    _ => turn(&|| self.cores.migrate(|| burst.call())),
                };
            }
            let [scalar, direct, instead, delegated, migrated] = took;
            Round { scalar, direct, instead, moved: [delegated, migrated] }
        };
        let rounds: Vec<Round> = (0..rounds).map(&mut round).collect();
        Ok(Found::of(&rounds))
    }
}

impl Found {
    fn of(rounds: &[Round]) -> Self {
        let estimate = |of: &dyn Fn(&Round) -> f64| {
            let nothing = Estimate { median: f64::NAN, ci95: (f64::NAN, f64::NAN) };
            rounds.iter().map(of).collect::<Samples>().estimate().unwrap_or(nothing)
        };
        let scalar_ns = estimate(&|round| round.scalar);
        let direct_ns = estimate(&|round| round.direct);
        let moved = Mechanism::ALL.into_iter().enumerate().map(|(at, mechanism)| {
            let moved_ns = estimate(&|round| round.moved[at]);
            let cost = direct_ns.median - scalar_ns.median;
            let removed_pct = (direct_ns.median - moved_ns.median) / cost * 100.0;
            let longer = estimate(&|round| (round.moved[at] / round.direct - 1.0) * 100.0);
            (mechanism, moved_ns, removed_pct, longer)
        });
        Self {
            scalar_ns,
            direct_ns,
            instead_ns: estimate(&|round| round.instead),
            moved: moved.collect(),
        }
    }
}

/// Rounds to a count of at least one.
fn whole(value: f64) -> u32 {
    u32::try_from(nearest(value).max(1)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moving_takes_away_is_a_share_of_what_bursts_cost() {
        let round = Round { scalar: 98.6, direct: 102.7, instead: 104.0, moved: [98.9, 103.0] };
        let found = Found::of(&[round; 6]);
        let removed: Vec<f64> =
            found.moved.iter().map(|(_, _, removed, _)| removed.round()).collect();
        assert_eq!(removed, [93.0, -7.0]);
        assert!(found.moved[0].3.median < 0.0 && found.moved[1].3.median > 0.0);
    }

    #[test]
    fn the_sieve_crosses_out_as_often_as_it_is_told() {
        let mut sieve = Sieve::new();
        sieve.work(10_000);
        assert!(sieve.composite.iter().any(|byte| *byte != 0));
        assert_eq!([whole(-1.0), whole(2.6)], [1, 3]);
    }
}
