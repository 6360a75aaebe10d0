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
    /// What happened, to compare runs by.
    log: Vec<(ThreadId, CpuIndex)>,
}

impl World {
    fn new(scheduling: Scheduling, seed: u64) -> Self {
        Self {
            scheduler: scheduling.start(CPUS, THREADS_PER_CORE),
            random: fastrand::Rng::with_seed(seed),
            sleeping: (0..THREADS).collect(),
            waiting: BTreeSet::new(),
            running: [None; CPUS],
            known: BTreeSet::new(),
            away: BTreeSet::new(),
            dedicated: [false; CPUS],
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
            self.scheduler.ready(thread, Self::pinned(thread))
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
        if self.running[cpu].is_none() {
            self.next(cpu);
        }
    }

    fn next(&mut self, cpu: CpuIndex) {
        self.running[cpu] = None;
        if let Some((thread, before)) = self.scheduler.next(cpu) {
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
                self.scheduler.ran(thread, self.scheduler.turn());
                self.scheduler.preempted(thread, cpu);
                self.waiting.insert(thread);
                self.next(cpu);
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

    /// Checks that each thread is in one place, and that time slices are limited where others wait.
    fn check(&self) {
        let running = self.running.iter().flatten().count();
        assert_eq!(running + self.waiting.len() + self.sleeping.len(), THREADS);
        if self.waiting.is_empty() {
            assert!((0..CPUS).all(|cpu| self.scheduler.slice(cpu).is_none()));
        } else {
            assert!((0..CPUS).any(|cpu| self.scheduler.slice(cpu).is_some()));
        }
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
            for cpu in 0..CPUS {
                let Some(thread) = world.running[cpu] else { continue };
                world.scheduler.ran(thread, world.scheduler.turn());
                world.scheduler.preempted(thread, cpu);
                world.waiting.insert(thread);
                world.next(cpu);
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
