//! Measures what it takes to move work to another core and back, beside other ways to carry it
//! there.
//!
//! Each way has its turn in each round, between the same two cores. The physical minimum is a cache
//! line there and one back ([`Way::PingPong`]). Every way is compared with that, round by round.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dimmer_host::affinity::{self, AffinityError};
use dimmer_host::interrupt::Interrupt;
use dimmer_host::root::Root;
use dimmer_probe::handoff;
use dimmer_probe::stats::{Estimate, Samples};
use dimmer_processor::units::CpuId;
use dimmer_runtime::{CannotMigrate, Cores, Migration, StartError};
use rustix::thread::futex;

use crate::pairs;

/// A worker sleeps after this long without work, so that it does not disturb the next way.
pub(crate) const REST: Duration = Duration::from_millis(3);

/// Why nothing can be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MovesError {
    /// There is only one CPU.
    #[error("moving work takes two CPUs, and this process may run on one (cpu {0})")]
    OneCpu(CpuId),
    /// The kernel does not allow threads to be pinned.
    #[error(transparent)]
    Affinity(#[from] AffinityError),
    /// No worker could be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The user has interrupted the measurement.
    #[error("interrupted")]
    Interrupted,
}

/// Ways to run something on another core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A cache line there and one back, without any work.
    PingPong,
    /// An empty closure, with [`Cores::delegate`].
    Delegate,
    /// An empty call, with [`Cores::migrate`].
    Migrate,
    /// There and back in a migration that has already started.
    Migration,
    /// A message through a bounded channel of crossbeam, and one back.
    Channel,
    /// A futex wake-up there and one back.
    Futex,
    /// A thread that is started and ends.
    Spawn,
    /// `sched_setaffinity(2)` there and back.
    Affinity,
}

impl Way {
    /// All ways, the cheapest first.
    pub const ALL: [Self; 8] = [
        Self::PingPong,
        Self::Delegate,
        Self::Migrate,
        Self::Migration,
        Self::Channel,
        Self::Futex,
        Self::Spawn,
        Self::Affinity,
    ];

    /// Round trips per turn: more of the quick ways.
    const fn trips(self) -> usize {
        match self {
            Self::PingPong | Self::Delegate | Self::Migrate | Self::Migration => 2000,
            Self::Channel => 200,
            Self::Futex | Self::Spawn | Self::Affinity => 20,
        }
    }
}

/// The round trips of one way.
#[derive(Clone, Debug)]
pub struct Trips {
    /// The way.
    pub way: Way,
    /// Every round trip (ns).
    pub all: Samples,
    /// The mean of the middle half of a round's trips, divided by the ping-pong's mean of the same
    /// round. `None` if that was not measured.
    pub ratio: Option<Estimate>,
}

/// The results of all ways.
#[derive(Debug)]
pub struct Moves {
    /// The CPU of the calling thread.
    pub home: CpuId,
    /// The CPU to which work was moved.
    pub away: CpuId,
    /// One entry per way, in the order of [`Way::ALL`], without the ways that this machine lacks.
    pub trips: Vec<Trips>,
    /// Reference cycles per nanosecond: those of the time-stamp counter.
    pub cycles_per_ns: f64,
    /// Why threads cannot migrate on this machine, if they cannot.
    pub cannot_migrate: Option<CannotMigrate>,
    /// Whether it ended before all rounds were made.
    pub is_cut: bool,
}

impl Moves {
    /// The round trips of a way.
    #[must_use]
    pub fn of(&self, way: Way) -> Option<&Trips> {
        self.trips.iter().find(|trips| trips.way == way)
    }
}

/// Measures all ways in turn, `rounds` times. Calls `done` after each round.
///
/// # Errors
/// [`MovesError`].
pub fn measure(
    root: &Root,
    rounds: usize,
    interrupt: &Interrupt,
    mut done: impl FnMut(),
) -> Result<Moves, MovesError> {
    let cpus = handoff::two_cpus(root)?.map_err(MovesError::OneCpu)?;
    let moves = measure_ways(root, cpus, &Way::ALL, rounds, |round, turn| {
        if round > 0 && turn == 0 {
            done();
        }
        !interrupt.is_set()
    })?;
    if moves.is_cut {
        return Err(MovesError::Interrupted);
    }
    done();
    Ok(moves)
}

/// Measures some ways in turn between two CPUs, `rounds` times. Asks `goes_on` before each turn,
/// with the numbers of the round and of the turn in it, whether to go on.
///
/// # Errors
/// [`MovesError`].
pub fn measure_ways(
    root: &Root,
    (home, away): (CpuId, CpuId),
    wanted: &[Way],
    rounds: usize,
    mut goes_on: impl FnMut(usize, usize) -> bool,
) -> Result<Moves, MovesError> {
    let cores = Cores::start(root, &[away])?;
    let cannot_migrate = cores.begin_migration().err();
    let ways: Vec<Way> = wanted
        .iter()
        .copied()
        .filter(|way| cannot_migrate.is_none() || !matches!(way, Way::Migrate | Way::Migration))
        .collect();
    let mut took: Vec<Vec<Vec<f64>>> = vec![Vec::new(); ways.len()];
    let mut is_cut = false;
    'rounds: for round in 0..rounds {
        for (turn, at) in pairs::order(round, ways.len()).into_iter().enumerate() {
            is_cut = !goes_on(round, turn);
            if is_cut {
                break 'rounds;
            }
            // Threads inherit their affinity: responders are started before this thread is pinned.
            took[at].push(trips(root, ways[at], &cores, home, away)?);
            std::thread::sleep(REST);
        }
    }
    let least = ways.iter().position(|way| *way == Way::PingPong);
    let ratio = |at: usize| -> Option<Estimate> {
        let pairs = took[at].iter().zip(&took[least?]);
        pairs.map(|(own, least)| middle(own) / middle(least)).collect::<Samples>().estimate()
    };
    let trips = ways.iter().enumerate().map(|(at, way)| Trips {
        way: *way,
        all: took[at].iter().flatten().copied().collect(),
        ratio: ratio(at),
    });
    let (trips, cycles_per_ns) = (trips.collect(), dimmer_runtime::ticks_per_ns());
    Ok(Moves { home, away, trips, cycles_per_ns, cannot_migrate, is_cut })
}

/// The mean of the middle half: rare values move it as little as a median, and it is finer than the
/// counter's steps, which may be 10 ns.
pub(crate) fn middle(times: &[f64]) -> f64 {
    Samples::new(times.to_vec()).trimmed_mean(0.25).unwrap_or(f64::NAN)
}

/// Times single round trips of one way (ns), from the home CPU to the other and back.
fn trips(
    root: &Root,
    way: Way,
    cores: &Cores,
    home: CpuId,
    away: CpuId,
) -> Result<Vec<f64>, MovesError> {
    match way {
        Way::PingPong => trips_of_a_line(root, home, away),
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
        Way::Delegate => {
            let _pinned = affinity::pin(root, home)?;
            Ok(timed(way, || cores.delegate(|| ())))
        }
        Way::Migrate => {
            let _pinned = affinity::pin(root, home)?;
            Ok(timed(way, || cores.migrate(|| black_box(()))))
        }
        Way::Migration => {
            let _pinned = affinity::pin(root, home)?;
            let Ok(mut migration) = cores.begin_migration() else { return Ok(Vec::new()) };
            Ok(timed(way, || there_and_back(&mut migration)))
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

/// Times single round trips of a cache line (ns).
pub(crate) fn trips_of_a_line(
    root: &Root,
    home: CpuId,
    away: CpuId,
) -> Result<Vec<f64>, MovesError> {
    with_responder(root, home, away, Line::answer, |line| {
        let mut asked = 0;
        timed(Way::PingPong, || {
            asked += 1;
            line.number.store(asked, Ordering::Release);
            while line.number.load(Ordering::Acquire) == asked {
                spin_loop();
            }
            asked += 1;
        })
    })
}

/// A separate function, so that what the compiler keeps on the stack meanwhile is not what the loop
/// around it needs.
#[inline(never)]
fn there_and_back(migration: &mut Migration<'_>) {
    drop(migration.go(0));
}

/// Times each round trip of a way (ns), after some for warm-up.
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

/// What two threads share, in a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line {
    number: AtomicU64,
    there: AtomicU32,
    back: AtomicU32,
    is_over: AtomicBool,
}

impl Line {
    /// Adds one to every odd number that comes, until the end.
    fn answer(&self) {
        while !self.is_over.load(Ordering::Relaxed) {
            let asked = self.number.load(Ordering::Acquire);
            if asked % 2 == 1 {
                self.number.store(asked + 1, Ordering::Release);
            }
            spin_loop();
        }
    }

    /// Answers each wake-up with another.
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

/// Asks from one CPU while a thread on another CPU answers.
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
