//! What it takes to move work to another core and back, beside what else could carry it there.
//!
//! All ways have their turn in each round, between the same two cores. The least that physics asks
//! for is a cache line there and one back ([`Way::PingPong`]); everything is compared with that,
//! round by round.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dimmer_host::affinity::{self, AffinityError};
use dimmer_host::root::Root;
use dimmer_probe::handoff;
use dimmer_probe::stats::{Estimate, Samples};
use dimmer_processor::units::CpuId;
use dimmer_runtime::{CannotTravel, Cores, Journey, StartError};
use rustix::thread::futex;

/// After this long without work a worker sleeps, and does not stand in the way of the next
/// contender.
const REST: Duration = Duration::from_millis(3);

/// Why nothing can be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MovesError {
    /// There is but one CPU to move work between.
    #[error("moving work takes two CPUs, and this process may run on one (cpu {0})")]
    OneCpu(CpuId),
    /// The kernel does not let threads be pinned.
    #[error(transparent)]
    Affinity(#[from] AffinityError),
    /// No worker could be started.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Ways to have something done on another core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A cache line there and one back, and nothing done.
    PingPong,
    /// An empty closure, with [`Cores::offload`].
    Offload,
    /// An empty call, with [`Cores::borrow`].
    Borrow,
    /// There and back in a journey that has begun.
    Migrate,
    /// A message through a bounded channel of crossbeam's, and one back.
    Channel,
    /// A futex there and one back.
    Futex,
    /// A thread that is started and ends.
    Spawn,
    /// `sched_setaffinity(2)` there and back.
    Affinity,
}

impl Way {
    /// All, the least first.
    pub const ALL: [Self; 8] = [
        Self::PingPong,
        Self::Offload,
        Self::Borrow,
        Self::Migrate,
        Self::Channel,
        Self::Futex,
        Self::Spawn,
        Self::Affinity,
    ];

    /// Round trips a turn: more of the quick ones.
    const fn trips(self) -> usize {
        match self {
            Self::PingPong | Self::Offload | Self::Borrow | Self::Migrate => 2000,
            Self::Channel => 200,
            Self::Futex | Self::Spawn | Self::Affinity => 20,
        }
    }
}

/// What one way took.
#[derive(Clone, Debug)]
pub struct Trips {
    /// Which.
    pub way: Way,
    /// Every round trip (ns).
    pub all: Samples,
    /// The mean of the middle half of a round's, over the ping-pong's of the same round.
    pub ratio: Option<Estimate>,
}

/// What was found.
#[derive(Debug)]
pub struct Moves {
    /// Where the calling thread stood.
    pub home: CpuId,
    /// Where work was moved to.
    pub away: CpuId,
    /// One a way, in the order of [`Way::ALL`], without those that this machine does not have.
    pub trips: Vec<Trips>,
    /// Reference cycles in a nanosecond: those of the time-stamp counter.
    pub cycles_per_ns: f64,
    /// Why threads cannot travel here.
    pub cannot_travel: Option<CannotTravel>,
}

impl Moves {
    /// What a way took.
    #[must_use]
    pub fn of(&self, way: Way) -> Option<&Trips> {
        self.trips.iter().find(|trips| trips.way == way)
    }
}

/// Measures all ways in turn, `rounds` times; `done` is told after each round.
///
/// # Errors
/// [`MovesError`].
pub fn measure(root: &Root, rounds: usize, mut done: impl FnMut()) -> Result<Moves, MovesError> {
    let (home, away) = handoff::two_cpus(root)?.map_err(MovesError::OneCpu)?;
    let cores = Cores::start(root, &[away])?;
    let cannot_travel = cores.depart().err();
    let ways: Vec<Way> = Way::ALL
        .into_iter()
        .filter(|way| cannot_travel.is_none() || !matches!(way, Way::Borrow | Way::Migrate))
        .collect();
    let mut took: Vec<Vec<Vec<f64>>> = vec![Vec::new(); ways.len()];
    for round in 0..rounds {
        for turn in 0..ways.len() {
            let at = (turn + round) % ways.len();
            // Threads inherit where they may run: responders are started before this one is pinned.
            took[at].push(trips(root, ways[at], &cores, home, away)?);
            std::thread::sleep(REST);
        }
        done();
    }
    // Of the middle half: as little moved by what is rare as a median, and finer than the counter's
    // steps, which may be 10 ns.
    let mean =
        |times: &Vec<f64>| Samples::new(times.clone()).trimmed_mean(0.25).unwrap_or(f64::NAN);
    let ratio = |at: usize| -> Option<Estimate> {
        let pairs = took[at].iter().zip(&took[0]);
        pairs.map(|(own, least)| mean(own) / mean(least)).collect::<Samples>().estimate()
    };
    let trips = ways.iter().enumerate().map(|(at, way)| Trips {
        way: *way,
        all: took[at].iter().flatten().copied().collect(),
        ratio: ratio(at),
    });
    let (trips, cycles_per_ns) = (trips.collect(), dimmer_runtime::ticks_per_ns());
    Ok(Moves { home, away, trips, cycles_per_ns, cannot_travel })
}

/// Times single round trips of one way (ns), from the thread's home CPU to the other and back.
fn trips(
    root: &Root,
    way: Way,
    cores: &Cores,
    home: CpuId,
    away: CpuId,
) -> Result<Vec<f64>, MovesError> {
    match way {
        Way::PingPong => with_responder(root, home, away, Line::answer, |line| {
            let mut asked = 0;
            timed(way, || {
                asked += 1;
                line.number.store(asked, Ordering::Release);
                while line.number.load(Ordering::Acquire) == asked {
                    spin_loop();
                }
                asked += 1;
            })
        }),
        Way::Futex => with_responder(root, home, away, Line::answer_sleeping, |line| {
            timed(way, || {
                line.there.store(1, Ordering::Release);
                let _ = futex::wake(&line.there, futex::Flags::PRIVATE, 1);
                while line.back.swap(0, Ordering::Acquire) == 0 {
                    let _ = futex::wait(&line.back, futex::Flags::PRIVATE, 0, None);
                }
            })
        }),
        Way::Channel => {
            let (ask, asked) = crossbeam_channel::bounded::<()>(1);
            let (answer, answered) = crossbeam_channel::bounded::<()>(1);
            std::thread::scope(|scope| {
                let responder = scope.spawn(move || {
                    let _pinned = affinity::pin(root, away)?;
                    while asked.recv().is_ok() {
                        let _ = answer.send(());
                    }
                    Ok::<(), AffinityError>(())
                });
                let _pinned = affinity::pin(root, home)?;
                let took = timed(way, || {
                    let _ = ask.send(());
                    let _ = answered.recv();
                });
                drop(ask);
                join(responder)?;
                Ok(took)
            })
        }
        Way::Offload => {
            let _pinned = affinity::pin(root, home)?;
            Ok(timed(way, || cores.offload(|| ())))
        }
        Way::Borrow => {
            let _pinned = affinity::pin(root, home)?;
            Ok(timed(way, || cores.borrow(|| black_box(()))))
        }
        Way::Migrate => {
            let _pinned = affinity::pin(root, home)?;
            let Ok(mut journey) = cores.depart() else { return Ok(Vec::new()) };
            Ok(timed(way, || there_and_back(&mut journey)))
        }
        Way::Spawn => {
            let _pinned = affinity::pin(root, home)?;
            Ok(timed(way, || {
                let there = std::thread::spawn(|| ());
                let _ = there.join();
            }))
        }
        Way::Affinity => {
            let _pinned = affinity::pin(root, home)?;
            Ok(timed(way, || {
                let _ = affinity::allow(&[away]);
                let _ = affinity::allow(&[home]);
            }))
        }
    }
}

/// A function of its own, so that what the compiler keeps on the stack meanwhile is not what the
/// loop around it needs.
#[inline(never)]
fn there_and_back(journey: &mut Journey<'_>) {
    drop(journey.go(0));
}

/// Times each of a way's round trips (ns), after some that warm it up.
fn timed(way: Way, mut trip: impl FnMut()) -> Vec<f64> {
    (0..way.trips() / 10 + 2).for_each(|_| trip());
    let mut took = vec![0.0; way.trips()];
    for one in &mut took {
        let begin = Instant::now();
        trip();
        *one = begin.elapsed().as_nanos() as f64;
    }
    took
}

/// What two threads share, a cache line each.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line {
    number: AtomicU64,
    there: AtomicU32,
    back: AtomicU32,
    is_over: AtomicBool,
}

impl Line {
    /// Counts up every odd number that comes, until it is over.
    fn answer(&self) {
        while !self.is_over.load(Ordering::Relaxed) {
            let asked = self.number.load(Ordering::Acquire);
            if asked % 2 == 1 {
                self.number.store(asked + 1, Ordering::Release);
            }
            spin_loop();
        }
    }

    /// Answers each wake-up with one.
    fn answer_sleeping(&self) {
        loop {
            while self.there.swap(0, Ordering::Acquire) == 0 {
                if self.is_over.load(Ordering::SeqCst) {
                    return;
                }
                let _ = futex::wait(&self.there, futex::Flags::PRIVATE, 0, None);
            }
            self.back.store(1, Ordering::Release);
            let _ = futex::wake(&self.back, futex::Flags::PRIVATE, 1);
        }
    }

    fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.there.store(1, Ordering::SeqCst);
        let _ = futex::wake(&self.there, futex::Flags::PRIVATE, 1);
    }
}

/// Asks from one CPU while a thread on another answers.
fn with_responder(
    root: &Root,
    home: CpuId,
    away: CpuId,
    answer: fn(&Line),
    ask: impl FnOnce(&Line) -> Vec<f64>,
) -> Result<Vec<f64>, MovesError> {
    let line = Line::default();
    std::thread::scope(|scope| {
        let responder = scope.spawn(|| {
            let _pinned = affinity::pin(root, away)?;
            answer(&line);
            Ok::<(), AffinityError>(())
        });
        let _pinned = affinity::pin(root, home)?;
        let took = ask(&line);
        line.end();
        join(responder)?;
        Ok(took)
    })
}

fn join<T>(
    thread: std::thread::ScopedJoinHandle<'_, Result<T, AffinityError>>,
) -> Result<T, AffinityError> {
    match thread.join() {
        Ok(done) => done,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
