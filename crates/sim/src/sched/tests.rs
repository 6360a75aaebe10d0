//! Tests of what [`Scheduler`] demands, on every scheduler: driven by made-up threads, and within a
//! machine.

use std::collections::BTreeSet;

use super::*;
use crate::tests::{machine, scalar, steps};
use crate::{Extent, Moment, Settings, Step};

/// Hardware threads of each of two cores.
const THREADS_PER_CORE: usize = 2;
const CPUS: usize = 4;
const THREADS: usize = 9;

fn topology() -> Topology {
    Topology { cpus: CPUS, threads_per_core: THREADS_PER_CORE, cores_per_package: 2 }
}

/// Made-up threads on CPUs, which a scheduler distributes.
struct World {
    scheduler: Started,
    random: fastrand::Rng,
    sleeping: BTreeSet<ThreadId>,
    waiting: BTreeSet<ThreadId>,
    running: [Option<ThreadId>; CPUS],
    /// Threads that have been ready at least once.
    known: BTreeSet<ThreadId>,
    /// Threads within a moved region.
    away: BTreeSet<ThreadId>,
    dedicated: [bool; CPUS],
    now: Moment,
    /// What happened, to compare runs by.
    log: Vec<(ThreadId, CpuIndex)>,
}

impl World {
    fn new(scheduling: Scheduling, seed: u64) -> Self {
        Self {
            scheduler: scheduling.start(topology()),
            random: fastrand::Rng::with_seed(seed),
            sleeping: (0..THREADS).collect(),
            waiting: BTreeSet::new(),
            running: [None; CPUS],
            known: BTreeSet::new(),
            away: BTreeSet::new(),
            dedicated: [false; CPUS],
            now: Moment::START,
            log: Vec::new(),
        }
    }

    /// Two threads are pinned.
    fn pinned(thread: ThreadId) -> Option<CpuIndex> {
        (thread < 2).then_some(thread)
    }

    fn ready(&mut self, thread: ThreadId) {
        let is_away = self.away.contains(&thread) && self.dedicated.contains(&true);
        let cpu = if is_away {
            self.scheduler.ready_away(thread)
        } else {
            self.away.remove(&thread);
            self.scheduler.ready(thread, Self::pinned(thread), self.now)
        };
        assert_eq!(self.dedicated[cpu], is_away, "{thread} {cpu}");
        if let Some(pinned) = Self::pinned(thread).filter(|_| !is_away)
            && !self.dedicated[pinned]
        {
            assert_eq!(cpu, pinned);
        }
        self.known.insert(thread);
        assert!(self.waiting.insert(thread));
        assert_eq!(self.scheduler.home(thread), Some(cpu));
        match self.running[cpu] {
            None => self.next(cpu),
            Some(running) if self.scheduler.preempts(thread, cpu) => self.preempted(running, cpu),
            Some(_) => {}
        }
    }

    fn preempted(&mut self, thread: ThreadId, cpu: CpuIndex) {
        let waits_on = self.scheduler.preempted(thread, cpu, self.now);
        self.waiting.insert(thread);
        self.next(cpu);
        if self.running[waits_on].is_none() {
            self.next(waits_on);
        }
    }

    fn next(&mut self, cpu: CpuIndex) {
        self.running[cpu] = None;
        if let Some((thread, before)) = self.scheduler.next(cpu, self.now) {
            assert!(self.waiting.remove(&thread), "{thread} does not wait");
            assert!(!self.dedicated[cpu] || self.away.contains(&thread), "{thread} {cpu}");
            assert_ne!(before, Some(cpu));
            self.running[cpu] = Some(thread);
            self.log.push((thread, cpu));
        }
    }

    /// One event of any kind.
    fn event(&mut self) {
        let cpu = self.random.usize(0..CPUS);
        match (self.random.u32(0..10), self.running[cpu]) {
            // The thread sleeps, or enters a moved region or leaves it.
            (0..=2, Some(thread)) => {
                self.sleeping.insert(thread);
                if self.away.remove(&thread) {
                    self.scheduler.comes_home(thread, 0);
                } else if self.dedicated.contains(&true) && self.random.bool() {
                    self.away.insert(thread);
                }
                self.next(cpu);
            }
            // The thread's turn is over.
            (3..=5, Some(thread)) => {
                let turn = self.scheduler.turn();
                self.now += turn;
                self.scheduler.ran(thread, turn, self.now);
                self.preempted(thread, cpu);
            }
            // The second core is dedicated, or given back.
            (6, _) => {
                let is_dedicated = !self.dedicated[THREADS_PER_CORE];
                for cpu in THREADS_PER_CORE..CPUS {
                    self.dedicated[cpu] = is_dedicated;
                    self.scheduler.dedicate(cpu, is_dedicated);
                }
                for cpu in THREADS_PER_CORE..CPUS {
                    let is_own = |thread: &mut ThreadId| !self.away.contains(thread);
                    let mut leaving = Vec::new();
                    if is_dedicated {
                        leaving.extend(self.running[cpu].take_if(is_own));
                        for thread in self.scheduler.clear(cpu) {
                            assert!(self.waiting.remove(&thread));
                            leaving.push(thread);
                        }
                    }
                    if self.running[cpu].is_none() {
                        self.next(cpu);
                    }
                    leaving.into_iter().for_each(|thread| self.ready(thread));
                }
            }
            _ => {
                let sleeping = self.random.usize(0..THREADS);
                if self.sleeping.remove(&sleeping) {
                    self.ready(sleeping);
                }
            }
        }
    }

    /// Checks that each thread is in one place, and that time slices are limited if others wait.
    fn check(&self) {
        let running = self.running.iter().flatten().count();
        assert_eq!(running + self.waiting.len() + self.sleeping.len(), THREADS);
        let is_limited = |cpu: CpuIndex| self.scheduler.slice(cpu).is_some();
        assert!(self.waiting.is_empty() || (0..CPUS).any(is_limited));
    }
}

#[test]
fn no_thread_is_lost_and_one_seed_has_one_result() {
    for scheduling in Scheduling::ALL {
        for seed in 0..50 {
            let run = || {
                let mut world = World::new(*scheduling, seed);
                for _ in 0..500 {
                    world.event();
                    world.check();
                }
                // When all running threads sleep, all that wait are returned.
                while world.running.iter().any(Option::is_some) {
                    for cpu in 0..CPUS {
                        world.next(cpu);
                    }
                }
                assert!(
                    world.waiting.is_empty(),
                    "{} {seed}: {:?}",
                    scheduling.name(),
                    world.waiting
                );
                world.log
            };
            assert_eq!(run(), run());
        }
    }
}

#[test]
fn no_thread_starves() {
    for scheduling in Scheduling::ALL {
        let mut world = World::new(*scheduling, 1);
        (0..THREADS).for_each(|thread| {
            world.sleeping.remove(&thread);
            world.ready(thread);
        });
        let mut waits = [0; THREADS];
        for _ in 0..1000 {
            let turn = world.scheduler.turn();
            world.now += turn;
            for cpu in 0..CPUS {
                let Some(thread) = world.running[cpu] else { continue };
                world.scheduler.ran(thread, turn, world.now);
                world.preempted(thread, cpu);
            }
            for (thread, turns) in waits.iter_mut().enumerate() {
                *turns = if world.waiting.contains(&thread) { *turns + 1 } else { 0 };
                assert!(*turns <= 3 * THREADS, "{} {thread}", scheduling.name());
            }
        }
    }
}

#[test]
fn machines_finish_all_threads_and_one_seed_has_one_result() {
    for scheduling in Scheduling::ALL {
        let run = |seed| {
            let (cores, scheduler) = (2, *scheduling);
            let mut machine = machine(Settings {
                cores,
                threads_per_core: 2,
                scheduler,
                seed,
                ..Settings::default()
            });
            for thread in 0_u64..7 {
                let code = Step::Run(scalar(Extent::Instructions(1e6 * (thread + 1) as f64)));
                let pinned = (thread < 2).then_some(1);
                machine.spawn(
                    "a",
                    steps(20, &[code, Step::Sleep(Picos::from_ps(1_000_000 * thread))]),
                    pinned,
                );
            }
            machine.run(Moment::MAX).unwrap();
            assert!(machine.threads().all(|thread| thread.finished.is_some()));
            let totals: Vec<_> = machine.threads().cloned().collect();
            (totals, machine.cores().cloned().collect::<Vec<_>>())
        };
        assert_eq!(run(3), run(3), "{}", scheduling.name());
    }
}

/// MuQSS: 6 ms of 2^20 ns run, then a deadline 836 / 128 of that away.
#[test]
fn muqss_runs_the_thread_with_the_earliest_deadline() {
    let one_core = Topology { cpus: 1, threads_per_core: 1, cores_per_package: 1 };
    let mut scheduler = Scheduling::MuQss.start(one_core);
    let at = |ms: f64| Moment::START + Picos::from_ns(ms * f64::from(1 << 20));
    let ms = |ms: f64| Picos::from_ns(ms * f64::from(1 << 20));
    let (computes, sleeps) = (0, 1);
    scheduler.ready(sleeps, None, at(0.0));
    assert_eq!(scheduler.next(0, at(0.0)), Some((sleeps, None)));
    // It sleeps after 1 ms of its slice, and keeps its deadline at 39.2 ms.
    scheduler.ran(sleeps, ms(1.0), at(1.0));
    scheduler.ready(computes, None, at(1.0));
    assert_eq!(scheduler.next(0, at(1.0)), Some((computes, None)));
    assert_eq!(scheduler.slice(0), Some(ms(6.0)));
    // Its deadline is at 40.2 ms: the other one is earlier, and goes first as soon as it wakes up.
    scheduler.ran(computes, ms(2.0), at(3.0));
    scheduler.ready(sleeps, None, at(3.0));
    assert!(scheduler.preempts(sleeps, 0));
    scheduler.preempted(computes, 0, at(3.0));
    assert_eq!(scheduler.next(0, at(3.0)), Some((sleeps, None)));
    assert_eq!(scheduler.slice(0), Some(ms(5.0)));
    // When its slice is used up, its deadline is at 47.2 ms, and the other one's turn comes.
    scheduler.ran(sleeps, ms(5.0), at(8.0));
    scheduler.preempted(sleeps, 0, at(8.0));
    assert_eq!(scheduler.next(0, at(8.0)), Some((computes, None)));
    assert_eq!(scheduler.slice(0), Some(ms(4.0)));
    assert!(!scheduler.preempts(sleeps, 0));
    // Alone, it would have got a new slice after 4 ms, and would be 1 ms within it.
    scheduler.ran(computes, ms(5.0), at(13.0));
    assert_eq!(scheduler.slice(0), Some(ms(5.0)));
    assert!(scheduler.preempts(sleeps, 0), "its deadline is at 51.2 ms");
}

/// A pinned thread ends the turn of one that may run anywhere, and another CPU is idle
/// (`resched_suitable_idle` in MuQSS).
#[test]
fn a_thread_whose_turn_has_ended_goes_on_where_nothing_runs() {
    let ms = |ms: u64| 1000 * ms * Picos::from_ps(1_000_000);
    let run = |span| Step::Run(scalar(Extent::Time(span)));
    // Under `fair` the turn ends at 2.5 ms and the second CPU runs until 4.1 ms, of 6.5 ms in all;
    // under `muqss` at 1 ms, of 5 ms.
    for (scheduling, idle_us) in [(Scheduling::Fair, 4900), (Scheduling::MuQss, 1900)] {
        let mut machine =
            machine(Settings { cores: 2, scheduler: scheduling, ..Settings::default() });
        machine.spawn("pinned", steps(1, &[Step::Sleep(ms(1)), run(ms(4))]), Some(0));
        let free = machine.spawn("free", steps(1, &[run(ms(4))]), None);
        machine.starts(free, Moment::START + Picos::from_ps(100_000_000));
        machine.run(Moment::MAX).unwrap();
        let idle: Vec<Picos> = machine.cores().map(|core| core.idle).collect();
        assert_eq!(idle[1], idle_us * Picos::from_ps(1_000_000), "{}", scheduling.name());
    }
}

/// A thread that wakes up counts as having run 1.5 ms less than the one that has run alone for 3
/// ms, which the machine has not counted yet. It gets two turns.
#[test]
fn fair_counts_what_runs_at_the_moment() {
    let one_core = Topology { cpus: 1, threads_per_core: 1, cores_per_package: 1 };
    let mut scheduler = Scheduling::Fair.start(one_core);
    let us = |us: u64| us * Picos::from_ps(1_000_000);
    let at = |time: u64| Moment::START + us(time);
    scheduler.ready(0, None, at(0));
    assert_eq!(scheduler.next(0, at(0)), Some((0, None)));
    scheduler.ready(1, None, at(3000));
    scheduler.ran(0, us(4500), at(4500));
    scheduler.preempted(0, 0, at(4500));
    for start in [4500, 6000] {
        assert_eq!(scheduler.next(0, at(start)), Some((1, None)));
        scheduler.ran(1, us(1500), at(start + 1500));
        scheduler.preempted(1, 0, at(start + 1500));
    }
    assert_eq!(scheduler.next(0, at(7500)), Some((0, None)));
}

/// It never had a CPU, and its deadline is younger than that of a thread that started before.
#[test]
fn a_thread_that_starts_later_is_not_known_before() {
    let ms = |ms: u64| 1000 * ms * Picos::from_ps(1_000_000);
    let run = |span| Step::Run(scalar(Extent::Time(span)));
    let mut machine = machine(Settings { scheduler: Scheduling::MuQss, ..Settings::default() });
    machine.spawn("first", steps(1, &[run(ms(1)), Step::Sleep(ms(1)), run(ms(1))]), None);
    let later = machine.spawn("later", steps(1, &[run(ms(5))]), None);
    machine.starts(later, Moment::START + Picos::from_ps(1_000_000));
    machine.run(Moment::MAX).unwrap();
    let finished: Vec<_> = machine.threads().map(|thread| thread.finished).collect();
    // The first goes on as soon as it wakes up.
    assert_eq!(finished, [3, 6].map(|at| Some(Moment::START + ms(at))));
}

#[test]
fn muqss_leaves_with_little_of_a_slice_as_if_it_were_used_up() {
    let one_core = Topology { cpus: 1, threads_per_core: 1, cores_per_package: 1 };
    for (left_us, expected) in [(99.0, 6.0 * 1024.0), (101.0, 101.0)] {
        let mut scheduler = Scheduling::MuQss.start(one_core);
        let us = |us: f64| Picos::from_ns(us * 1024.0);
        scheduler.ready(0, None, Moment::START);
        scheduler.next(0, Moment::START);
        let end = Moment::START + us(6.0 * 1024.0 - left_us);
        scheduler.ran(0, us(6.0 * 1024.0 - left_us), end);
        assert_eq!(scheduler.next(0, end), None);
        scheduler.ready(0, None, end);
        scheduler.next(0, end);
        assert_eq!(scheduler.slice(0), Some(us(expected)));
    }
}

/// Four cores of two CPUs, in two packages.
#[test]
fn muqss_takes_what_is_near() {
    let topology = Topology { cpus: 8, threads_per_core: 2, cores_per_package: 2 };
    let mut scheduler = Scheduling::MuQss.start(topology);
    let now = Moment::START;
    let mut seat = |thread| {
        let cpu = scheduler.ready(thread, None, now);
        scheduler.next(cpu, now);
        cpu
    };
    // Idle cores of the package, then their second CPUs, then the other package.
    assert_eq!([0, 1, 2, 3, 4, 5, 6, 7].map(&mut seat), [0, 2, 1, 3, 4, 6, 5, 7]);
    // Where all have as much to do, the first of the nearest. Its core has one queue.
    assert_eq!(scheduler.ready(8, None, now), 0);
    assert_eq!(scheduler.ready(9, None, now), 2);
    assert_eq!(scheduler.ready(10, None, now), 4);
    // A CPU takes what waits at its own core, then in its package.
    assert_eq!(scheduler.next(1, now), Some((8, None)));
    assert_eq!(scheduler.next(1, now), Some((9, None)));
    assert_eq!(scheduler.next(1, now), Some((10, None)));
    assert_eq!(scheduler.next(1, now), None);
    // Of what waits elsewhere, it takes that of the longest queue.
    assert_eq!(scheduler.ready(11, Some(4), now), 4);
    for thread in [12, 13, 14] {
        scheduler.ready(thread, Some(6), now);
    }
    assert_eq!(scheduler.next(1, now), None, "they may run on another CPU alone");
}

/// Two narrow cores and a wide one of a CPU each. A thread that gives way to a wide one stays at
/// the wide core for half a millisecond, and the wide thread goes back where it came from.
#[test]
fn muqss_keeps_threads_near_their_data() {
    let topology = Topology { cpus: 3, threads_per_core: 1, cores_per_package: 3 };
    let mut scheduler = Scheduling::MuQss.start(topology);
    let (l0, l1) = (LicenseLevel::new(0), LicenseLevel::new(1));
    scheduler.widen(&[l0, l0, l1]);
    scheduler.stays_near(true);
    let at = |us: u64| Moment::START + Picos::from_ps(us * 1_000_000);
    for thread in [0, 1, 2] {
        assert_eq!(scheduler.ready(thread, None, at(0)), thread);
        scheduler.next(thread, at(0));
    }
    // Thread 1 becomes wide, and thread 2 gives way.
    scheduler.classify(1, Class::Wide(l1));
    scheduler.trapped(1, 1, at(10));
    assert_eq!(scheduler.next(1, at(10)), None);
    scheduler.preempted(2, 2, at(10));
    assert_eq!(scheduler.next(2, at(10)), Some((1, Some(1))));
    assert_eq!(scheduler.next(1, at(20)), None, "thread 2 stays");
    // The phase ends: both threads go on where they were.
    scheduler.classify(1, Class::Normal);
    assert_eq!(scheduler.ends_phase(1, 2, at(30)), 1);
    assert_eq!(scheduler.next(2, at(30)), Some((2, None)));
    assert_eq!(scheduler.next(1, at(31)), Some((1, Some(2))));
    // The next phase lasts longer: after half a millisecond, thread 2 waits at narrow cores.
    scheduler.classify(1, Class::Wide(l1));
    scheduler.trapped(1, 1, at(100));
    scheduler.preempted(2, 2, at(100));
    assert_eq!(scheduler.next(2, at(100)), Some((1, Some(1))));
    scheduler.looks(at(599));
    assert_eq!(scheduler.next(1, at(599)), None);
    scheduler.looks(at(600));
    assert_eq!(scheduler.next(1, at(600)), Some((2, Some(2))));
    // The phase ends while its narrow core is busy: it goes on where it is.
    scheduler.classify(1, Class::Normal);
    assert_eq!(scheduler.ends_phase(1, 2, at(700)), 2);
    assert_eq!(scheduler.next(2, at(700)), Some((1, None)));
}

/// Threads that compute without end take turns on the CPUs of a fair scheduler, for this long.
/// Returns how long each has run.
fn shares(threads: usize, seconds: u64) -> Vec<Picos> {
    let mut world = World::new(Scheduling::Fair, 1);
    // None of the two that are pinned.
    for thread in 2..2 + threads {
        world.sleeping.remove(&thread);
        world.ready(thread);
    }
    let mut ran = vec![Picos::ZERO; threads];
    let turn = world.scheduler.turn();
    while world.now - Moment::START < Picos::from_ns(1e9) * seconds {
        world.now += turn;
        for cpu in 0..CPUS {
            let Some(thread) = world.running[cpu] else { continue };
            ran[thread - 2] += turn;
            world.scheduler.ran(thread, turn, world.now);
            if world.scheduler.slice(cpu).is_some() {
                world.preempted(thread, cpu);
            }
        }
    }
    ran
}

/// As on Linux: one CPU has two threads, but not always the same one, nor the same two.
#[test]
fn no_thread_shares_its_cpu_for_ever() {
    let (threads, seconds) = (CPUS + 1, 20);
    let fair = Picos::from_ns(1e9) * (seconds * CPUS as u64) / threads as u64;
    for ran in shares(threads, seconds) {
        // If the same two shared for ever, they would have 0.625 and the others 1.25. Moves come in
        // bursts, so the shares are not quite equal.
        let share = ran.as_f64() / fair.as_f64();
        assert!((share - 1.0).abs() < 0.05, "{share}");
    }
}

/// Each CPU has one, so none moves.
#[test]
fn threads_with_a_cpu_each_stay() {
    let mut world = World::new(Scheduling::Fair, 1);
    for thread in 2..2 + CPUS {
        world.sleeping.remove(&thread);
        world.ready(thread);
    }
    let before = world.running;
    for _ in 0..10_000 {
        world.now += world.scheduler.turn();
        for cpu in 0..CPUS {
            let Some(thread) = world.running[cpu] else { continue };
            world.scheduler.ran(thread, world.scheduler.turn(), world.now);
            world.preempted(thread, cpu);
        }
    }
    assert_eq!(world.running, before);
}

/// What a thread has run elsewhere does not keep it from its turn.
#[test]
fn a_thread_that_has_run_more_elsewhere_gets_its_turns() {
    let one = Topology { cpus: 1, threads_per_core: 1, cores_per_package: 1 };
    let mut scheduler = Scheduling::Fair.start(one);
    let (old, new) = (0, 1);
    let mut now = Moment::START;
    let turn = scheduler.turn();
    scheduler.ready(old, None, now);
    assert_eq!(scheduler.next(0, now), Some((old, None)));
    now += turn * 1000;
    scheduler.ran(old, turn * 1000, now);
    assert_eq!(scheduler.next(0, now), None);
    scheduler.ready(new, None, now);
    assert_eq!(scheduler.next(0, now), Some((new, None)));
    scheduler.ready(old, None, now);
    for running in [new, old, new, old] {
        now += turn;
        scheduler.ran(running, turn, now);
        scheduler.preempted(running, 0, now);
        let expected = if running == new { old } else { new };
        assert_eq!(scheduler.next(0, now), Some((expected, None)));
    }
}
