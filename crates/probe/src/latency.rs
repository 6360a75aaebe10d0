//! What waiting, waking, calling the kernel and moving a thread cost on this machine: table 5 of
//! paper 002 as far as it takes no rights, and more ways to wait.
//!
//! All measurements take turns, in a random order in each round, and each sample comes at a random
//! time after the one before. Times between two CPUs are one-way: the waiting thread answers with
//! its own time stamp. How far the counters of the two CPUs are apart follows from the fastest
//! exchanges of a cache line, by the middle of each (as NTP does); half of that exchange is the
//! bound of the error.
//!
//! It measures the machine on which it runs, and decides nothing.

mod alone;
mod exchange;
mod phase;
mod way;

use std::time::Duration;

use dimmer_host::affinity::AffinityError;
use dimmer_host::cpuid::Cpuid;
use dimmer_host::root::Root;
use dimmer_processor::topology::Topology;
use dimmer_processor::units::{CpuId, TscFrequency, TscTicks};

use self::alone::Act;
use self::exchange::{Exchange, Terms};
use self::phase::Phase;
use self::way::Way;
use crate::lab::Observer;
use crate::silicon;
use crate::stats::Samples;
use crate::target::TargetError;

/// Samples of a measurement in a round, and of those that sleep for milliseconds before each.
const IN_ROUND: usize = 20;
const IN_ROUND_ASLEEP: usize = 4;

/// How long a woken thread has slept: too short for deep idle states, and long enough for all that
/// Linux chooses for such a sleep.
const SHORT_SLEEP: Duration = Duration::from_micros(100);
const LONG_SLEEP: Duration = Duration::from_millis(5);

/// What is measured. Of two CPUs, the first is that of the thread that acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A cache line to the other CPU and back.
    Line,
    /// From a write until the other CPU's thread sees it, by the way in which it waits.
    WaitSpin,
    /// The same, with PAUSE between looks.
    WaitPause,
    /// The same, with `sched_yield(2)` between looks.
    WaitYield,
    /// The same, by UMWAIT in state C0.1.
    WaitUmwaitC01,
    /// The same, by UMWAIT in state C0.2.
    WaitUmwaitC02,
    /// The same, by MWAITX with the hint for C0.
    WaitMwaitxC0,
    /// The same, by MWAITX with the hint for C1.
    WaitMwaitxC1,
    /// From FUTEX_WAKE until it returns; the thread has slept for 0.1 ms.
    Wake,
    /// From FUTEX_WAKE until the woken thread runs; it has slept for 0.1 ms.
    Woken,
    /// As [`What::Wake`], after 5 ms.
    WakeLong,
    /// As [`What::Woken`], after 5 ms.
    WokenLong,
    /// `sched_setaffinity(2)` to the other CPU, which is idle.
    Migrate,
    /// The same to a CPU that is awake.
    MigrateAwake,
    /// Two time stamps: their median is taken off what one CPU does, but for a PAUSE.
    Stamps,
    /// A system call that does next to nothing.
    Call,
    /// FUTEX_WAIT that returns at once.
    FutexWait,
    /// FUTEX_WAKE that wakes no thread.
    FutexWake,
    /// `sched_yield(2)` with nothing else to run.
    Yield,
    /// A PAUSE.
    Pause,
    /// TPAUSE in C0.1: how long after its deadline it ends.
    TpauseC01,
    /// TPAUSE in C0.2.
    TpauseC02,
}

impl What {
    /// The name in documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Line => "line",
            Self::WaitSpin => "wait-spin",
            Self::WaitPause => "wait-pause",
            Self::WaitYield => "wait-yield",
            Self::WaitUmwaitC01 => "wait-umwait-c0.1",
            Self::WaitUmwaitC02 => "wait-umwait-c0.2",
            Self::WaitMwaitxC0 => "wait-mwaitx-c0",
            Self::WaitMwaitxC1 => "wait-mwaitx-c1",
            Self::Wake => "futex-wake-0.1ms",
            Self::Woken => "futex-woken-0.1ms",
            Self::WakeLong => "futex-wake-5ms",
            Self::WokenLong => "futex-woken-5ms",
            Self::Migrate => "affinity-idle",
            Self::MigrateAwake => "affinity-awake",
            Self::Stamps => "time-stamps",
            Self::Call => "getppid",
            Self::FutexWait => "futex-wait-differs",
            Self::FutexWake => "futex-wake-none",
            Self::Yield => "sched-yield",
            Self::Pause => "pause",
            Self::TpauseC01 => "tpause-c0.1-late",
            Self::TpauseC02 => "tpause-c0.2-late",
        }
    }
}

/// A measurement to make, in a round.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Turn {
    /// What its samples are.
    what: What,
    /// What else an exchange shows on the side of the thread that acts: until it has the answer, or
    /// until its wake-up returns.
    also: Option<What>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// A thread of the first CPU changes what one of the second waits for.
    Exchange { way: Way, asleep: Duration, from: CpuId, to: CpuId },
    /// The kernel migrates a thread from the first CPU to the second.
    Migration { is_awake: bool, from: CpuId, to: CpuId },
    /// A thread acts on its own CPU.
    Alone { act: Act, cpu: CpuId },
}

impl Kind {
    fn ends(self) -> (CpuId, Option<CpuId>) {
        match self {
            Self::Exchange { from, to, .. } | Self::Migration { from, to, .. } => (from, Some(to)),
            Self::Alone { cpu, .. } => (cpu, None),
        }
    }
}

/// The waits for a write.
const WAITS: [(Way, What); 7] = [
    (Way::Spin, What::WaitSpin),
    (Way::Pause, What::WaitPause),
    (Way::Yield, What::WaitYield),
    (Way::Umwait { state: 1 }, What::WaitUmwaitC01),
    (Way::Umwait { state: 0 }, What::WaitUmwaitC02),
    (Way::Mwaitx { hint: 0xf0 }, What::WaitMwaitxC0),
    (Way::Mwaitx { hint: 0 }, What::WaitMwaitxC1),
];

/// Sleeps in the kernel: until the wake-up returns, and until the woken thread runs.
const SLEEPS: [(Duration, What, What); 2] =
    [(SHORT_SLEEP, What::Wake, What::Woken), (LONG_SLEEP, What::WakeLong, What::WokenLong)];

/// What a thread does alone.
const ACTS: [(Act, What); 8] = [
    (Act::Nothing, What::Stamps),
    (Act::Call, What::Call),
    (Act::FutexWait, What::FutexWait),
    (Act::FutexWake, What::FutexWake),
    (Act::Yield, What::Yield),
    (Act::Pause, What::Pause),
    (Act::Tpause { state: 1 }, What::TpauseC01),
    (Act::Tpause { state: 0 }, What::TpauseC02),
];

/// Two CPUs, as the processor has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// Of one core.
    Siblings,
    /// Of two cores of a package.
    Cores,
    /// Of two packages.
    Packages,
}

impl Relation {
    /// The name in documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Siblings => "siblings",
            Self::Cores => "cores",
            Self::Packages => "packages",
        }
    }

    /// The same in words, for people.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Siblings => "SMT siblings of a core",
            Self::Cores => "two cores of a package",
            Self::Packages => "cores of two packages",
        }
    }

    fn of(topology: &Topology, one: CpuId, other: CpuId) -> Self {
        let package = |cpu| topology.cpu(cpu).map(|cpu| cpu.package);
        if topology.siblings(one).contains(&other) {
            Self::Siblings
        } else if package(one) == package(other) {
            Self::Cores
        } else {
            Self::Packages
        }
    }
}

/// A latency.
#[derive(Clone, Debug, PartialEq)]
pub struct Latency {
    /// What took this time.
    pub what: What,
    /// The CPU of the thread that acts.
    pub from: CpuId,
    /// The other CPU, and how it is related; `None` if there is none.
    pub to: Option<(CpuId, Relation)>,
    /// The time (ns).
    pub ns: Samples,
    /// Samples that did not come, because a thread did not run in time or ran elsewhere, or the
    /// kernel's limit ended a wait.
    pub left_out: usize,
    /// Whether the measurement repeats itself: the median of either half of the rounds lies
    /// between the quartiles of the other half.
    pub is_steady: bool,
}

/// Something that cannot be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Its name.
    pub what: &'static str,
    /// The reason.
    pub reason: String,
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Found {
    /// The rate of the time-stamp counter.
    pub tsc: TscFrequency,
    /// The largest error of times between two CPUs (ns), from their counters' difference; `None`
    /// without such times.
    pub offset_bound_ns: Option<f64>,
    /// The latencies.
    pub latencies: Vec<Latency>,
    /// What is missing here.
    pub skipped: Vec<Skipped>,
    /// Whether the observer stopped before all rounds were made.
    pub interrupted: bool,
}

/// Why nothing can be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LatencyError {
    /// A thread cannot be pinned.
    #[error(transparent)]
    Affinity(#[from] AffinityError),
    /// The time-stamp counter stands still.
    #[error(transparent)]
    Clock(#[from] TargetError),
}

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// The CPUs that may be used.
    pub allowed: &'a [CpuId],
    /// Their topology.
    pub topology: &'a Topology,
    /// The CPU on which one thread alone is measured, and from which pairs are chosen.
    pub home: CpuId,
    /// Samples of each measurement; a fifth of them where a thread sleeps for 5 ms before each.
    pub samples: usize,
}

/// Measures everything that this machine has.
///
/// # Errors
/// [`LatencyError`]
pub fn measure(
    root: &Root,
    cpuid: &Cpuid,
    plan: Plan<'_>,
    observer: &mut dyn Observer,
) -> Result<Found, LatencyError> {
    let tsc = silicon::measure_tsc()?;
    let pairs = pairs(plan.allowed, plan.topology, plan.home);
    let (turns, mut skipped) = turns(root, cpuid, plan.home, &pairs);
    if pairs.is_empty() {
        let reason = format!("it takes two CPUs, and this process may run on {} alone", plan.home);
        skipped.push(Skipped { what: "everything between two CPUs", reason });
    }
    let rounds = plan.samples.div_ceil(IN_ROUND).max(2);
    let mut phase = Phase::new(fastrand::u64(..));
    let mut taken: Vec<Vec<Taken>> = vec![Vec::new(); turns.len()];
    let mut interrupted = false;
    let mut order: Vec<usize> = (0..turns.len()).collect();
    'rounds: for round in 0..rounds {
        phase.shuffle(&mut order);
        for (done, &at) in order.iter().enumerate() {
            let share = (round as f64 + done as f64 / order.len() as f64) / rounds as f64;
            observer.begins("measuring latencies", share);
            if observer.wants_stop() {
                interrupted = true;
                break 'rounds;
            }
            taken[at].push(take(root, turns[at].kind, &mut phase)?);
        }
    }
    let tick_ns = tsc.ns(TscTicks::from_ticks(1_000_000)) / 1e6;
    let step_ns = tick_ns * silicon::counter_step() as f64;
    let series = Series { topology: plan.topology, turns: &turns, taken: &taken, tick_ns, step_ns };
    Ok(Found {
        tsc,
        offset_bound_ns: series.bound().map(|ticks| ticks * tick_ns),
        latencies: series.latencies(),
        skipped,
        interrupted,
    })
}

/// The CPUs to measure from this one: one of each relation.
fn pairs(allowed: &[CpuId], topology: &Topology, home: CpuId) -> Vec<(CpuId, Relation)> {
    let others = allowed.iter().filter(|cpu| **cpu != home);
    let related: Vec<_> = others.map(|cpu| (*cpu, Relation::of(topology, home, *cpu))).collect();
    let first = |wanted| related.iter().copied().find(|(_, relation)| *relation == wanted);
    [Relation::Siblings, Relation::Cores, Relation::Packages]
        .into_iter()
        .filter_map(first)
        .collect()
}

/// All turns of a round, and what this processor lacks.
fn turns(
    root: &Root,
    cpuid: &Cpuid,
    home: CpuId,
    pairs: &[(CpuId, Relation)],
) -> (Vec<Turn>, Vec<Skipped>) {
    let (mut turns, mut skipped) = (Vec::new(), Vec::new());
    let mut lacks = |what: What, reason: Option<String>| {
        let is_missing = reason.is_some();
        skipped.extend(reason.map(|reason| Skipped { what: what.name(), reason }));
        is_missing
    };
    let directions = pairs.iter().flat_map(|&(other, _)| [(home, other), (other, home)]);
    let directions: Vec<(CpuId, CpuId)> = directions.collect();
    for (way, what) in WAITS {
        if lacks(what, way.lacks(cpuid, root)) {
            continue;
        }
        let also = (way == Way::Spin).then_some(What::Line);
        turns.extend(directions.iter().map(|&(from, to)| {
            let kind = Kind::Exchange { way, asleep: Duration::ZERO, from, to };
            Turn { what, also, kind }
        }));
    }
    for &(from, to) in &directions {
        turns.extend(SLEEPS.map(|(asleep, wake, what)| {
            let kind = Kind::Exchange { way: Way::Futex, asleep, from, to };
            Turn { what, also: Some(wake), kind }
        }));
        let states = [(false, What::Migrate), (true, What::MigrateAwake)];
        turns.extend(states.map(|(is_awake, what)| Turn {
            what,
            also: None,
            kind: Kind::Migration { is_awake, from, to },
        }));
    }
    for (act, what) in ACTS {
        if !lacks(what, act.lacks(cpuid, root)) {
            turns.push(Turn { what, also: None, kind: Kind::Alone { act, cpu: home } });
        }
    }
    (turns, skipped)
}

/// The samples of a turn, in ticks, and how many did not come.
#[derive(Clone, Debug, Default)]
struct Taken {
    exchanges: Vec<Exchange>,
    ticks: Vec<f64>,
    left_out: usize,
}

fn take(root: &Root, kind: Kind, phase: &mut Phase) -> Result<Taken, AffinityError> {
    match kind {
        Kind::Exchange { way, asleep, from, to } => {
            let count = if asleep == LONG_SLEEP { IN_ROUND_ASLEEP } else { IN_ROUND };
            let terms = Terms { from, to, way, asleep, count };
            let exchanges = exchange::exchanges(root, terms, phase)?;
            let left_out = count - exchanges.len();
            Ok(Taken { exchanges, ticks: Vec::new(), left_out })
        }
        Kind::Migration { is_awake, from, to } => {
            let ticks = alone::migrations(root, (from, to), is_awake, IN_ROUND, phase)?;
            let left_out = IN_ROUND - ticks.len();
            Ok(Taken { exchanges: Vec::new(), ticks, left_out })
        }
        Kind::Alone { act, cpu } => {
            let ticks = alone::times(root, act, cpu, IN_ROUND, phase)?;
            let left_out = IN_ROUND - ticks.len();
            Ok(Taken { exchanges: Vec::new(), ticks, left_out })
        }
    }
}

/// How far the counter of the CPU that waits is ahead of that of the CPU that acts (ticks), and
/// how wrong that may be: from the fastest exchange.
fn offset(exchanges: &[Exchange]) -> Option<(f64, f64)> {
    let trip = |one: &Exchange| one.back.saturating_sub(one.sent);
    let fastest = exchanges.iter().min_by_key(|one| trip(one))?;
    let half = trip(fastest) as f64 / 2.0;
    Some((difference(fastest.seen, fastest.sent) - half, half))
}

/// The difference of two counts, of which either may be the larger one.
fn difference(one: u64, other: u64) -> f64 {
    if one >= other { (one - other) as f64 } else { -((other - one) as f64) }
}

/// What the turns have measured, in nanoseconds.
struct Series<'a> {
    topology: &'a Topology,
    turns: &'a [Turn],
    taken: &'a [Vec<Taken>],
    tick_ns: f64,
    /// The step of the counter (ns).
    step_ns: f64,
}

impl Series<'_> {
    fn rounds(&self, of: impl Fn(&Turn) -> bool) -> &[Taken] {
        let at = self.turns.iter().position(of);
        at.and_then(|at| self.taken.get(at)).map_or(&[], Vec::as_slice)
    }

    /// What two time stamps take (ticks).
    fn overhead(&self) -> f64 {
        let rounds = self.rounds(|turn| turn.what == What::Stamps);
        let all: Samples = rounds.iter().flat_map(|one| one.ticks.iter().copied()).collect();
        all.quantile(0.5).unwrap_or(0.0)
    }

    /// As [`offset`], for these CPUs.
    fn offset(&self, from: CpuId, to: CpuId) -> Option<(f64, f64)> {
        let is_meant =
            |turn: &Turn| turn.what == What::WaitSpin && turn.kind.ends() == (from, Some(to));
        let rounds = self.rounds(is_meant).iter();
        offset(&rounds.flat_map(|one| one.exchanges.iter().copied()).collect::<Vec<_>>())
    }

    /// The largest error of [`Self::offset`] (ticks).
    fn bound(&self) -> Option<f64> {
        let pairs = self.turns.iter().filter_map(|turn| match turn.kind.ends() {
            (from, Some(to)) => self.offset(from, to),
            _ => None,
        });
        pairs.map(|(_, error)| error).reduce(f64::max)
    }

    fn latencies(&self) -> Vec<Latency> {
        let turns = self.turns.iter().zip(self.taken);
        turns.flat_map(|(turn, rounds)| self.of_turn(turn, rounds)).collect()
    }

    fn of_turn(&self, turn: &Turn, rounds: &[Taken]) -> Vec<Latency> {
        let (from, to) = turn.kind.ends();
        let ahead = to.and_then(|to| self.offset(from, to)).map_or(0.0, |(ahead, _)| ahead);
        let of_exchanges = |reading: &dyn Fn(&Exchange) -> f64| -> Vec<Vec<f64>> {
            rounds.iter().map(|round| round.exchanges.iter().map(reading).collect()).collect()
        };
        let latency = |what, ticks: &[Vec<f64>]| {
            let ns = |rounds: &[Vec<f64>]| -> Samples {
                rounds.iter().flatten().map(|ticks| ticks * self.tick_ns).collect()
            };
            let (first, second) = ticks.split_at(ticks.len() / 2);
            Latency {
                what,
                from,
                to: to.map(|to| (to, Relation::of(self.topology, from, to))),
                ns: ns(ticks),
                left_out: rounds.iter().map(|round| round.left_out).sum(),
                is_steady: is_steady(&ns(first), &ns(second), self.step_ns),
            }
        };
        let Kind::Exchange { .. } = turn.kind else {
            // One PAUSE has but a share of the time stamps; the stamps are what they are.
            let is_whole = matches!(turn.what, What::Pause | What::Stamps);
            let less = if is_whole { 0.0 } else { self.overhead() };
            let ticks = |round: &Taken| round.ticks.iter().map(|all| all - less).collect();
            return vec![latency(turn.what, &rounds.iter().map(ticks).collect::<Vec<_>>())];
        };
        let seen = of_exchanges(&|one| difference(one.seen, one.sent) - ahead);
        let also = turn.also.map(|what| {
            let end = |one: &Exchange| one.returned.unwrap_or(one.back);
            latency(what, &of_exchanges(&|one| difference(end(one), one.sent)))
        });
        also.into_iter().chain([latency(turn.what, &seen)]).collect()
    }
}

/// Whether two halves of a measurement agree: the median of either lies between the quartiles of
/// the other, up to a step of the counter.
fn is_steady(first: &Samples, second: &Samples, step_ns: f64) -> bool {
    let lies = |one: &Samples, within: &Samples| {
        let quantiles = [one.quantile(0.5), within.quantile(0.25), within.quantile(0.75)];
        matches!(quantiles, [Some(median), Some(low), Some(high)]
            if median >= low - step_ns && median <= high + step_ns)
    };
    lies(first, second) && lies(second, first)
}

#[cfg(test)]
mod tests;
