//! Measures locks: what they cost a single thread, how many sections threads complete that compete
//! for one, and how long a ray tracer takes whose threads do (`raytrace`).
//!
//! Each lock has its turn in each round, and is compared with `parking_lot`'s mutex round by round.
//! What requests do is left out: the acts of `ownr` do nothing here. Those of `mgrt` and `dlgt` are
//! the machine's: without a back end for requests, the owner's way to another CPU and back, and
//! what a request costs that nothing takes.

mod compete;
mod load;
mod raytrace;
mod undisturbed;

use std::hint::black_box;
use std::time::{Duration, Instant};

use dimmer_host::affinity::{self, AffinityError};
use dimmer_host::interrupt::Interrupt;
use dimmer_host::root::Root;
use dimmer_locks::pthread::RawPthread;
use dimmer_locks::{
    Batched, Combining, Decorated, Delegated, McsMutex, Mutex, Paced, RawMutex, Strategy,
    Unchanged, lock_api,
};
use dimmer_pace::{FastCoreError, FastCores, dedicate_fast};
use dimmer_probe::stats::Samples;
use dimmer_processor::units::CpuId;
use dimmer_runtime::Cores;

use crate::moves::REST;
use compete::Compete;
pub use load::Load;
use load::{Speed, compute};
use raytrace::{Draw, Scene};

/// Sections of a batch in which one thread has the lock for itself.
const SECTIONS: u32 = 500;
/// The same of a lock with acts of the machine, which take microseconds.
const SECTIONS_WITH_ACTS: u32 = 5;
/// Batches of a turn. The median of a turn leaves out those that an interrupt or another program
/// hit.
const BATCHES: u32 = 101;

/// The cache lines that a section writes.
pub const LINES: usize = 4;

/// Why nothing can be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// There are fewer CPUs. Nothing was measured.
    #[error("--threads {asked}: this process may use {cpus} CPUs, so 1 to {cpus}")]
    TooManyThreads {
        /// The number that was asked for.
        asked: u32,
        /// The CPUs that this process may run on.
        cpus: u32,
    },
    /// The kernel does not allow threads to be pinned.
    #[error(transparent)]
    Affinity(#[from] AffinityError),
    /// No CPU can be dedicated to the owner of a lock with `mgrt`.
    #[error(transparent)]
    FastCore(#[from] FastCoreError),
    /// Threads have lost counts under this lock: it does not keep them apart.
    #[error("the ray tracer's picture is wrong with {threads} threads and the lock {lock:?}")]
    WrongPicture {
        /// The lock.
        lock: Lock,
        /// The number of threads.
        threads: u32,
    },
    /// The user has interrupted the measurement.
    #[error("interrupted")]
    Interrupted,
}

/// The locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// The C library's mutex.
    Pthread,
    /// `std::sync::Mutex`.
    Std,
    /// `parking_lot::Mutex`.
    ParkingLot,
    /// [`Mutex`].
    Word,
    /// The same with the strategy `ownr`, whose acts do nothing here.
    Decorated,
    /// The same with `mgrt`: the owner goes to [`Locks::fast`] and back.
    Migrated,
    /// The same with `dlgt`: another thread makes the requests, where the machine takes some for
    /// cores.
    Neighbour,
    /// [`McsMutex`].
    Mcs,
    /// [`Delegated`], with a worker if there are two CPUs.
    Delegated,
    /// [`Batched`], with its server on that worker.
    Batched,
    /// [`Combining`].
    Combining,
}

impl Lock {
    /// All locks.
    pub const ALL: [Self; 11] = [
        Self::Pthread,
        Self::Std,
        Self::ParkingLot,
        Self::Word,
        Self::Decorated,
        Self::Migrated,
        Self::Neighbour,
        Self::Mcs,
        Self::Delegated,
        Self::Batched,
        Self::Combining,
    ];

    /// Whether the ray tracer uses it: the acts of `mgrt` take much longer than its sections and
    /// what is between them.
    const fn draws(self) -> bool {
        !matches!(self, Self::Migrated)
    }
}

/// The results.
#[derive(Clone, Debug)]
pub struct Locks {
    /// The CPUs of the threads.
    pub cpus: Vec<CpuId>,
    /// The CPU of the worker that executes delegated sections. Without one, callers do.
    pub worker: Option<CpuId>,
    /// The CPU that owners go to with `mgrt`, whose threads run on the others. With one CPU there
    /// is none, and they stay.
    pub fast: Option<CpuId>,
    /// How threads request clocks; `None` if there is no way, so that requests change nothing.
    pub asks_by: Option<&'static str>,
    /// One entry for each of [`Lock::ALL`].
    pub locks: Vec<OfLock>,
}

/// The results of one lock.
#[derive(Clone, Debug)]
pub struct OfLock {
    /// The lock.
    pub lock: Lock,
    /// An empty section of a thread without others, acquisition and release included (ns): one
    /// value for each round.
    pub alone_ns: Vec<f64>,
    /// One entry for each number of threads and load.
    pub contended: Vec<Contended>,
    /// One entry for each number of threads; none for `mgrt`, whose acts take much longer than the
    /// sections.
    pub pictures: Vec<Pictures>,
}

/// Threads that draw pictures with the ray tracer.
#[derive(Clone, Debug)]
pub struct Pictures {
    /// The number of threads.
    pub threads: u32,
    /// The time for a picture: one entry for each round.
    pub ms: Vec<f64>,
}

/// Threads that compete for a lock.
#[derive(Clone, Debug)]
pub struct Contended {
    /// The number of threads.
    pub threads: u32,
    /// What they do.
    pub load: Load,
    /// One entry for each round.
    pub turns: Vec<Turn>,
}

/// Competing threads in one turn.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// The sections of all threads in a second.
    pub per_second: f64,
    /// The sections of the thread with the fewest, divided by the mean of all.
    pub least: f64,
    /// The same of the thread with the most.
    pub most: f64,
}

/// The numbers of threads that compete: the powers of two up to `asked`, and that itself; without
/// it, up to the number of CPUs.
///
/// # Errors
/// [`LockError::TooManyThreads`] if there are fewer CPUs.
pub fn thread_counts(asked: Option<u32>) -> Result<Vec<u32>, LockError> {
    let cpus = u32::try_from(affinity::allowed()?.len()).unwrap_or(u32::MAX);
    counts(asked, cpus)
}

fn counts(asked: Option<u32>, cpus: u32) -> Result<Vec<u32>, LockError> {
    let most = asked.unwrap_or(cpus);
    if most > cpus {
        return Err(LockError::TooManyThreads { asked: most, cpus });
    }
    let powers = (0..u32::BITS).map(|power| 1 << power).take_while(|count| *count < most);
    Ok(powers.chain([most]).collect())
}

/// Measures all locks in turn, `rounds` times, with these numbers of threads. Calls `done` after
/// each round.
///
/// # Errors
/// [`LockError::Affinity`], [`LockError::FastCore`], [`LockError::WrongPicture`],
/// [`LockError::Interrupted`].
pub fn measure(
    root: &Root,
    threads: &[u32],
    rounds: usize,
    interrupt: &Interrupt,
    mut done: impl FnMut(),
) -> Result<Locks, LockError> {
    let cpus = affinity::allowed()?;
    let worker = cpus.last().copied();
    let fast = worker.filter(|_| cpus.len() > 1);
    // Without a back end, requests do nothing.
    let _ = dimmer_pace::prepare_under(root);
    let cores = worker.and_then(|cpu| Cores::start(root, &[cpu]).ok());
    let (speed, scene) = (Speed::measure(), Scene::new());
    let digest = scene.digest();
    let contended = |threads: &u32| {
        let of_load = |load: &Load| (*threads, *load);
        Load::of(*threads).iter().map(of_load).collect::<Vec<_>>()
    };
    let of_threads = |threads: &u32| Pictures { threads: *threads, ms: Vec::new() };
    let mut locks = Lock::ALL.map(|lock| OfLock {
        lock,
        alone_ns: Vec::new(),
        contended: (threads.iter().flat_map(contended))
            .map(|(threads, load)| Contended { threads, load, turns: Vec::new() })
            .collect(),
        pictures: threads.iter().filter(|_| lock.draws()).map(of_threads).collect(),
    });
    for round in 0..rounds {
        for turn in 0..locks.len() {
            if interrupt.is_set() {
                return Err(LockError::Interrupted);
            }
            let own = &mut locks[(turn + round) % Lock::ALL.len()];
            let away = match own.lock {
                Lock::Delegated | Lock::Batched => worker.filter(|_| cores.is_some()),
                Lock::Migrated => fast,
                _ => None,
            };
            let free: Vec<CpuId> = cpus.iter().copied().filter(|cpu| Some(*cpu) != away).collect();
            let place = Place { root, cpus: &free };
            let _fast = fast_core(own.lock, fast)?;
            own.alone_ns.push(alone(own.lock, cores.as_ref(), place)?);
            for contended in &mut own.contended {
                let Contended { threads, load, turns } = contended;
                let compete = Compete { place, threads: *threads, timed: speed.timed(*load) };
                turns.push(with(own.lock, cores.as_ref(), compete)?);
                // The worker falls asleep, so that it does not disturb the next turn.
                std::thread::sleep(REST);
            }
            for pictures in &mut own.pictures {
                let threads = pictures.threads;
                let draw = Draw { scene: &scene, place, threads, lock: own.lock, digest };
                pictures.ms.push(with(own.lock, cores.as_ref(), draw)?);
                std::thread::sleep(REST);
            }
        }
        done();
    }
    let worker = worker.filter(|_| cores.is_some());
    let asks_by = crate::region::asks_by();
    Ok(Locks { cpus, worker, fast, asks_by, locks: locks.to_vec() })
}

/// Dedicates the CPU that owners go to, for as long as a lock with `mgrt` has its turn.
fn fast_core(lock: Lock, cpu: Option<CpuId>) -> Result<Option<FastCores>, FastCoreError> {
    let cpu = cpu.filter(|_| lock == Lock::Migrated);
    cpu.map(|cpu| dedicate_fast(&[cpu])).transpose()
}

/// Where threads run.
#[derive(Clone, Copy)]
struct Place<'a> {
    root: &'a Root,
    /// The thread `n` runs on the CPU `n` of these, modulo their number.
    cpus: &'a [CpuId],
}

/// What sections write: some cache lines, or what the ray tracer counts.
#[derive(Debug, Default)]
struct Data {
    lines: [Line; LINES],
    picture: raytrace::Shared,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(u64);

impl Data {
    /// Never inlined: the sections of all locks run the same code.
    #[inline(never)]
    fn add(&mut self) {
        for Line(number) in &mut self.lines {
            *number = black_box(*number + 1);
        }
    }
}

/// Something that is done with one lock, whatever its type.
trait Measure {
    type Result;
    /// Measures a function that runs one section and returns its result.
    fn measure(self, section: impl Fn(Work) -> u64 + Sync) -> Self::Result;
}

/// The content of a section.
#[derive(Clone, Copy)]
enum Work {
    Nothing,
    /// Writes the cache lines, and computes for this number of steps.
    Add(u32),
    Trace(raytrace::Section),
}

impl Work {
    #[inline(always)]
    fn run(self, data: &mut Data) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Add(hold) => {
                data.add();
                if hold > 0 {
                    compute(hold);
                }
                0
            }
            Self::Trace(section) => section.run(&mut data.picture),
        }
    }
}

/// Measures a lock that was just made.
fn with<M: Measure>(lock: Lock, cores: Option<&Cores>, measure: M) -> M::Result {
    match lock {
        Lock::Pthread => {
            let data = lock_api::Mutex::<RawPthread, _>::new(Data::default());
            measure.measure(|work| work.run(&mut data.lock()))
        }
        Lock::Std => {
            let data = std::sync::Mutex::new(Data::default());
            measure.measure(|work| data.lock().map_or(0, |mut data| work.run(&mut data)))
        }
        Lock::ParkingLot => {
            let data = parking_lot::Mutex::new(Data::default());
            measure.measure(|work| work.run(&mut data.lock()))
        }
        Lock::Word => {
            let data = Mutex::new(Data::default());
            measure.measure(|work| work.run(&mut data.lock()))
        }
        Lock::Decorated => {
            let raw = Decorated::<RawMutex, _>::new(Strategy::Owner, Unchanged);
            let data = lock_api::Mutex::from_raw(raw, Data::default());
            measure.measure(|work| work.run(&mut data.lock()))
        }
        Lock::Migrated | Lock::Neighbour => {
            let is_migrated = lock == Lock::Migrated;
            let strategy = if is_migrated { Strategy::Migrate } else { Strategy::Delegate };
            let raw = Decorated::<RawMutex, _>::new(strategy, Paced);
            let data = lock_api::Mutex::from_raw(raw, Data::default());
            let result = measure.measure(|work| work.run(&mut data.lock()));
            dimmer_pace::withdraw();
            result
        }
        Lock::Mcs => {
            let data = McsMutex::new(Data::default());
            measure.measure(|work| work.run(&mut data.lock()))
        }
        Lock::Delegated => {
            let data = Delegated::new(cores, Data::default());
            measure.measure(|work| data.run(|data| work.run(data)))
        }
        Lock::Batched => Batched::with_server(cores, Data::default(), |data| {
            measure.measure(|work| data.run(|data| work.run(data)))
        }),
        Lock::Combining => {
            let data = Combining::new(Data::default());
            measure.measure(|work| data.run(|data| work.run(data)))
        }
    }
}

/// One thread.
struct Alone {
    /// The sections of a batch.
    sections: u32,
}

impl Measure for Alone {
    type Result = f64;
    fn measure(self, section: impl Fn(Work) -> u64 + Sync) -> f64 {
        let batch = |_| {
            let begin = Instant::now();
            for _ in 0..self.sections {
                section(Work::Nothing);
            }
            begin.elapsed().as_nanos() as f64 / f64::from(self.sections)
        };
        (0..BATCHES).map(batch).collect::<Samples>().quantile(0.5).unwrap_or(f64::NAN)
    }
}

fn alone(lock: Lock, cores: Option<&Cores>, place: Place<'_>) -> Result<f64, AffinityError> {
    let _pinned = affinity::pin(place.root, place.cpus[0])?;
    let has_acts = matches!(lock, Lock::Migrated | Lock::Neighbour);
    let sections = if has_acts { SECTIONS_WITH_ACTS } else { SECTIONS };
    Ok(with(lock, cores, Alone { sections }))
}

/// The sections of one thread, at least one, and how long it took.
#[derive(Clone, Copy)]
struct Own {
    sections: u32,
    lasted: Duration,
}

impl Turn {
    /// Each thread has its own time: one may see later than another that the turn is over.
    fn new(threads: &[Own]) -> Self {
        let rate = |own: &Own| f64::from(own.sections) / own.lasted.as_secs_f64();
        let rates: Vec<f64> = threads.iter().map(rate).collect();
        let all: f64 = rates.iter().sum();
        let mean = all / rates.len() as f64;
        let (least, most) = rates
            .iter()
            .fold((f64::INFINITY, 0.0), |(least, most), rate| (rate.min(least), rate.max(most)));
        Self { per_second: all, least: least / mean, most: most / mean }
    }
}

/// The result of a thread, or its panic here.
fn join<T>(handle: std::thread::ScopedJoinHandle<'_, T>) -> T {
    handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

impl Contended {
    /// One number of each round.
    pub fn each(&self, of: impl Fn(&Turn) -> f64) -> Samples {
        self.turns.iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(asked: Option<u32>, cpus: u32, expected: &[u32]) {
        assert_eq!(counts(asked, cpus).unwrap(), expected);
    }

    #[test]
    fn numbers_of_threads_double_up_to_the_one_asked_for() {
        check(None, 1, &[1]);
        check(None, 2, &[1, 2]);
        check(None, 12, &[1, 2, 4, 8, 12]);
        check(Some(3), 12, &[1, 2, 3]);
        check(Some(4), 4, &[1, 2, 4]);
    }

    #[test]
    fn more_threads_than_cpus_are_refused_with_the_accepted_numbers() {
        let error = counts(Some(3), 2).unwrap_err();
        let says = "--threads 3: this process may use 2 CPUs, so 1 to 2";
        assert_eq!(error.to_string(), says);
    }

    #[test]
    fn fairness_is_the_least_and_the_most_of_the_mean() {
        let own = |sections, ms| Own { sections, lasted: Duration::from_millis(ms) };
        let turn = Turn::new(&[own(100, 125), own(300, 125), own(400, 250)]);
        assert_eq!((turn.per_second, turn.least, turn.most), (4800.0, 0.5, 1.5));
    }

    #[test]
    fn each_lock_is_measured_in_each_round() {
        let threads = thread_counts(Some(1)).unwrap();
        let mut rounds = 0;
        let interrupt = Interrupt::install().unwrap();
        let locks = measure(&Root::live(), &threads, 1, &interrupt, || rounds += 1).unwrap();
        assert_eq!((rounds, locks.locks.len()), (1, Lock::ALL.len()));
        for own in &locks.locks {
            assert!(own.alone_ns[0] > 0.0, "{own:?}");
            assert!(own.contended[0].turns[0].per_second > 0.0, "{own:?}");
            assert!(own.pictures.iter().all(|pictures| pictures.ms[0] > 0.0), "{own:?}");
        }
    }
}
