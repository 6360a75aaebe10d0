//! Measures what marks cost (paper 004, section 4.1), what it takes to migrate at them beside a
//! cache line's round trip (section 5.3.3), and from which length of phases on migration gains
//! (section 5.4).

use std::hint::black_box;
use std::time::{Duration, Instant};

use dimmer_host::affinity;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::root::Root;
use dimmer_marks::migrating::{self, Mover};
use dimmer_marks::{Output, Place, crossing, measuring};
use dimmer_policy::phases::{Profile, Settings, Threshold};
use dimmer_probe::handoff;
use dimmer_processor::units::{CpuId, Nanos};

use crate::moves::{self, MovesError, REST};

/// Marks per turn: some milliseconds.
const MARKS: u32 = 100_000;

/// Migrations there and back per turn.
const TRIPS: usize = 1000;

/// How long each phase of a pair is, in [`Round::ratios`].
pub const LENGTHS: [Duration; 3] =
    [Duration::from_micros(10), Duration::from_micros(100), Duration::from_millis(1)];

/// The time of a turn, in which as many pairs of phases run as fit.
const TURN: Duration = Duration::from_millis(20);

/// A chain through this many lines of 64 bytes (64 MiB): more than most cores' share of an L3
/// cache.
const LINES: usize = 1 << 20;

const COMPUTES: Place = Place::Entry("compute");
const LOADS: Place = Place::Entry("load");

/// Why nothing can be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PhasesError {
    /// There is only one CPU, or threads cannot be pinned.
    #[error(transparent)]
    Moves(#[from] MovesError),
    /// Threads cannot migrate on this machine.
    #[error("{0}")]
    CannotMigrate(String),
}

/// One round, each part in turn.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// A mark that measures by time, more than a loop without one (ns).
    pub measuring_ns: f64,
    /// A mark of a program that migrates, at which the thread stays (ns).
    pub staying_ns: f64,
    /// A cache line to the other CPU and back (ns).
    pub line_ns: f64,
    /// `ult_migrate()` to the other CPU and back (ns).
    pub trip_ns: f64,
    /// Time of phases that migrate, divided by that of the same phases that stay, for each of
    /// [`LENGTHS`].
    pub ratios: [f64; LENGTHS.len()],
}

/// The results.
#[derive(Debug)]
pub struct Phases {
    /// The CPU of phases that compute.
    pub fast: CpuId,
    /// The CPU of phases that wait for memory.
    pub slow: CpuId,
    /// One entry for each round.
    pub rounds: Vec<Round>,
}

/// Measures `rounds` rounds. Calls `done` after each. Afterwards, the calling thread's affinity is
/// what it was; the process keeps a worker, which sleeps.
///
/// # Errors
/// [`PhasesError`].
pub fn measure(
    root: &Root,
    rounds: usize,
    interrupt: &Interrupt,
    mut done: impl FnMut(),
) -> Result<Phases, PhasesError> {
    let (fast, slow) = handoff::two_cpus(root)
        .map_err(MovesError::from)?
        .map_err(|only| PhasesError::Moves(MovesError::OneCpu(only)))?;
    // The sessions here are no program's.
    dimmer_marks::silence();
    crossing::use_cpus(&[fast], &[slow]).map_err(PhasesError::CannotMigrate)?;
    let mut work = Work::new();
    let pairs = {
        let _pinned = affinity::pin(root, fast).map_err(MovesError::from)?;
        LENGTHS.map(|length| work.pair_of(length))
    };
    let both_stay = ("\"compute\"\t0\n\"load\"\t0\n", "0");
    let migrate = ("\"compute\"\t0\n\"load\"\t1\n", "0.5");
    let mut measured = Vec::with_capacity(rounds);
    for round in 0..rounds {
        if interrupt.is_set() {
            return Err(MovesError::Interrupted.into());
        }
        let pinned = affinity::pin(root, fast).map_err(MovesError::from)?;
        let loop_ns = marks(|_| ());
        measuring::start("dimmer bench", Output::Nowhere);
        let measuring_ns = marks(|place| _ = measuring::pass(place)) - loop_ns;
        measuring::stop();
        start(both_stay);
        let staying_ns = marks(|place| _ = migrating::pass(place)) - loop_ns;
        migrating::end();
        drop(pinned);
        let line_ns = moves::middle(&moves::trips_of_a_line(root, fast, slow)?);
        let trip_ns = moves::middle(&trips());
        std::thread::sleep(REST);
        let mut ratios = [0.0; LENGTHS.len()];
        for (ratio, pair) in ratios.iter_mut().zip(pairs) {
            // Each goes first in half of the rounds.
            let (moved, stays) = if round % 2 == 0 {
                (work.migrated(pair, migrate)?, work.stayed(root, fast, pair)?)
            } else {
                let stays = work.stayed(root, fast, pair)?;
                (work.migrated(pair, migrate)?, stays)
            };
            *ratio = moved / stays;
        }
        measured.push(Round { measuring_ns, staying_ns, line_ns, trip_ns, ratios });
        done();
    }
    Ok(Phases { fast, slow, rounds: measured })
}

/// A profile, and the threshold that divides its marks.
type Wanted = (&'static str, &'static str);

fn start((profile, threshold): Wanted) {
    if let (Ok(profile), Ok(threshold)) = (Profile::from_text(profile), Threshold::parse(threshold))
    {
        let settings = Settings::by_threshold(threshold, Nanos::ZERO);
        migrating::start_with(Mover::own(), profile, settings);
    }
}

/// The mean time of a mark (ns), and of the loop around it.
fn marks(pass: impl Fn(&Place)) -> f64 {
    let turn = || {
        let begin = Instant::now();
        for _ in 0..MARKS / 2 {
            pass(black_box(&COMPUTES));
            pass(black_box(&LOADS));
        }
        begin.elapsed().as_nanos() as f64 / f64::from(MARKS)
    };
    // The first marks are looked up.
    turn();
    turn()
}

/// Round trips of `ult_migrate()` (ns).
fn trips() -> Vec<f64> {
    crossing::register();
    let trip = || {
        crossing::migrate(crossing::SLOW_CODE);
        crossing::migrate(crossing::FAST_CODE);
    };
    (0..TRIPS / 10).for_each(|_| trip());
    let took = (0..TRIPS).map(|_| {
        let begin = Instant::now();
        trip();
        begin.elapsed().as_nanos() as f64
    });
    let took = took.collect();
    crossing::unregister();
    took
}

/// A pair of phases: rounds of computing, then loads that depend on each other.
#[derive(Clone, Copy, Debug)]
struct Pair {
    rounds: u64,
    loads: u64,
    /// How often the pair runs in a turn.
    times: u128,
}

/// What the phases do.
struct Work {
    /// The next line of each line, in one cycle.
    chain: Vec<Line>,
    at: usize,
    number: u64,
}

/// A cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line {
    next: usize,
}

impl Work {
    fn new() -> Self {
        // Multiplying by an odd number and adding an odd one, modulo a power of two, meets every
        // line once if the factor is 1 modulo 4 (Hull and Dobell, 1962).
        let next = |line: usize| Line {
            next: line.wrapping_mul(1_664_525).wrapping_add(1_013_904_223) % LINES,
        };
        Self { chain: (0..LINES).map(next).collect(), at: 0, number: 1 }
    }

    fn compute(&mut self, rounds: u64) {
        for _ in 0..rounds {
            self.number = black_box(self.number).wrapping_mul(6_364_136_223_846_793_005) | 1;
        }
    }

    fn load(&mut self, loads: u64) {
        for _ in 0..loads {
            self.at = black_box(self.chain[self.at].next);
        }
    }

    /// Phases that take about `length` each on this core.
    fn pair_of(&mut self, length: Duration) -> Pair {
        const TRIED: u64 = 100_000;
        let fit = |took: Duration| {
            let fit = length.as_nanos() * u128::from(TRIED) / took.as_nanos().max(1);
            u64::try_from(fit).unwrap_or(u64::MAX).max(1)
        };
        let begin = Instant::now();
        self.compute(TRIED);
        let rounds = fit(begin.elapsed());
        let begin = Instant::now();
        self.load(TRIED);
        let loads = fit(begin.elapsed());
        Pair { rounds, loads, times: TURN.as_nanos() / (2 * length.as_nanos()) }
    }

    /// The time of a turn whose thread stays on the fast core (ns).
    fn stayed(&mut self, root: &Root, fast: CpuId, pair: Pair) -> Result<f64, PhasesError> {
        let _pinned = affinity::pin(root, fast).map_err(MovesError::from)?;
        Ok(self.turn(pair))
    }

    /// The time of a turn whose thread migrates at its marks (ns).
    fn migrated(&mut self, pair: Pair, migrate: Wanted) -> Result<f64, PhasesError> {
        start(migrate);
        migrating::pass(&COMPUTES);
        let is_registered = crossing::registered() == 1;
        let took = self.turn(pair);
        migrating::end();
        std::thread::sleep(REST);
        if is_registered {
            Ok(took)
        } else {
            Err(PhasesError::CannotMigrate("the thread is not registered at its marks".to_owned()))
        }
    }

    /// Passes marks that do something if there is a session. Never inlined: both ways that are
    /// compared run the same code.
    #[inline(never)]
    fn turn(&mut self, pair: Pair) -> f64 {
        let begin = Instant::now();
        for _ in 0..pair.times {
            migrating::pass(&COMPUTES);
            self.compute(pair.rounds);
            migrating::pass(&LOADS);
            self.load(pair.loads);
        }
        begin.elapsed().as_nanos() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_meets_every_line_once() {
        let work = Work::new();
        let (mut at, mut steps) = (0, 0);
        loop {
            at = work.chain[at].next;
            steps += 1;
            if at == 0 {
                break;
            }
        }
        assert_eq!(steps, LINES);
    }
}
