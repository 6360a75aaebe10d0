//! Tests of core specialisation: threads, cores, and a made-up scheduler that does what they say.

use std::collections::VecDeque;

use dimmer_processor::units::{Nanos, Time};

use super::*;

const L1: LicenseLevel = LicenseLevel::new(1);
const L2: LicenseLevel = LicenseLevel::new(2);

fn us(us: u64) -> Time {
    Time::START + Nanos::from_us(us)
}

fn wide_at(us_: u64, settings: &Settings) -> Thread {
    let mut thread = Thread::new();
    assert!(thread.uses(L2, us(us_), settings));
    assert_eq!(thread.class(), Class::Wide(L2));
    thread
}

#[test]
fn a_phase_ends_at_the_next_call_or_after_two_milliseconds() {
    let paper = Settings::PAPER;
    let mut thread = wide_at(10, &paper);
    assert!(thread.calls(false, us(11), &paper));
    assert_eq!(thread.class(), Class::Normal);
    assert!(!thread.calls(false, us(12), &paper), "it is over already");

    let mut thread = wide_at(10, &paper);
    assert_eq!(thread.due(&paper), Some(us(2010)));
    assert!(!thread.wakes(false, us(2009), &paper));
    assert!(thread.wakes(false, us(2010), &paper));
    assert_eq!((thread.class(), thread.due(&paper)), (Class::Normal, None));

    let by_time = Settings { ends: Ends::AtTimeout, ..paper };
    assert!(!wide_at(10, &by_time).calls(false, us(11), &by_time));
}

#[test]
fn a_thread_with_registers_that_a_narrow_core_would_lose_stays() {
    let paper = Settings::PAPER;
    let mut thread = wide_at(10, &paper);
    assert!(!thread.calls(true, us(11), &paper));
    assert!(!thread.wakes(true, us(5000), &paper));
    assert_eq!(thread.class(), Class::Wide(L2));
    assert!(thread.wakes(false, us(5001), &paper));
}

#[test]
fn the_higher_level_of_a_phase_counts() {
    let paper = Settings::PAPER;
    let mut thread = Thread::new();
    assert!(thread.uses(L1, us(1), &paper));
    assert!(thread.uses(L2, us(2), &paper));
    assert!(!thread.uses(L1, us(3), &paper));
    assert_eq!(thread.class(), Class::Wide(L2));
    assert_eq!(thread.due(&paper), Some(us(2003)), "each sign of wide code counts");
    assert!(!thread.uses(L1, us(1), &paper));
    assert_eq!(thread.due(&paper), Some(us(2003)), "time that goes backwards stands still");
}

#[test]
fn classes_are_inherited_and_phases_are_not() {
    let paper = Settings::PAPER;
    assert_eq!(Thread::new().inherited().class(), Class::Default);
    let wide = wide_at(1, &paper);
    assert_eq!(wide.inherited().class(), Class::Normal);
    let mut told = Thread::new();
    told.set(Class::Wide(L1));
    assert_eq!(told.inherited().class(), Class::Wide(L1));
    assert!(!told.uses(L1, us(1), &paper) && !told.calls(false, us(2), &paper));
    assert!(told.uses(L2, us(3), &paper) && told.calls(false, us(4), &paper));
    assert_eq!(told.class(), Class::Wide(L1));
    told.set(Class::Wide(LicenseLevel::new(0)));
    assert_eq!(told.class(), Class::Normal);
}

/// A thread that calls the kernel 5 µs after its wide code, and is wide again 5 µs later.
#[test]
fn a_thread_that_comes_back_at_once_is_moved_ever_more_rarely() {
    let moves = |settings: &Settings| {
        let mut thread = Thread::new();
        let rounds = (0..100_000_u64).map(|round| 10 * round);
        rounds
            .filter(|at| {
                thread.wakes(false, us(*at), settings);
                thread.uses(L2, us(*at), settings);
                thread.calls(false, us(at + 5), settings)
            })
            .count()
    };
    assert_eq!(moves(&Settings::PAPER), 100_000);
    // It comes back 5 µs after the first end, and then never is quiet for as long as 4 ms.
    assert_eq!(moves(&Settings::learning(Nanos::from_us(20))), 1);
}

/// A thread that computes with wide vectors all the time, and calls the kernel every 4 ms.
#[test]
fn a_thread_that_is_always_wide_stays_on_wide_cores() {
    let traps = |settings: &Settings| {
        let mut thread = Thread::new();
        let looks = (0..4000_u64).map(|look| us(1000 * look));
        looks
            .enumerate()
            .filter(|(look, now)| {
                thread.wakes(false, *now, settings);
                if look % 4 == 0 {
                    thread.calls(false, *now, settings);
                }
                // Nothing is seen on a wide core.
                thread.class() != Class::Wide(L2) && thread.uses(L2, *now, settings)
            })
            .count()
    };
    assert_eq!(traps(&Settings::PAPER), 2000);
    // After 2, 4, 8, 16, 32 and 64 ms, and then every 128 ms.
    assert_eq!(traps(&Settings::learning(Nanos::from_us(20))), 37);
}

#[test]
fn what_was_learned_is_forgotten() {
    let settings = Settings::learning(Nanos::from_us(20));
    let mut thread = wide_at(0, &settings);
    assert!(thread.calls(false, us(1), &settings));
    assert_eq!(thread.needs(), NARROW);
    thread.uses(L2, us(2), &settings);
    assert!(!thread.calls(false, us(4001), &settings), "less than twice the timeout");
    assert!(thread.calls(false, us(4002), &settings));
    assert_eq!((thread.class(), thread.needs()), (Class::Normal, L2));
    // It was away for longer than it had to stay.
    thread.uses(L2, us(10_000), &settings);
    assert!(thread.calls(false, us(10_001), &settings));
    assert_eq!(thread.needs(), NARROW);
}

#[test]
fn a_told_end_counts_if_the_thread_is_quiet_for_longer_than_moving_takes() {
    let learning = Settings::learning(Nanos::from_us(20));
    let mut thread = wide_at(0, &learning);
    assert!(!thread.leaves(Nanos::from_us(20), us(1), &learning));
    assert!(thread.leaves(Nanos::from_us(21), us(1), &learning));
    assert!(!thread.leaves(Nanos::from_us(21), us(1), &learning));
    assert!(wide_at(0, &Settings::PAPER).leaves(Nanos::ZERO, us(1), &Settings::PAPER));
}

#[test]
fn cores_take_threads_by_level_and_narrow_ones_take_no_wide_thread() {
    let all = [NARROW, L1, L2];
    let of = |core, class| rank(core, class, home(class, all));
    assert_eq!(of(NARROW, Class::Wide(L1)), None);
    assert_eq!(of(NARROW, Class::Normal), Some(0));
    assert_eq!(of(NARROW, Class::Default), Some(0));
    assert_eq!(of(L1, Class::Wide(L2)), None);
    assert_eq!(of(L1, Class::Wide(L1)), Some(0));
    assert_eq!(of(L1, Class::Normal), Some(1));
    assert_eq!(of(L2, Class::Wide(L2)), Some(0));
    assert_eq!(of(L2, Class::Wide(L1)), Some(1));
    assert_eq!(of(L2, Class::Normal), Some(2));
    assert_eq!(of(L2, Class::Default), Some(2));
    for level in all {
        for class in [Class::Default, Class::Normal, Class::Wide(L1), Class::Wide(L2)] {
            assert!(of(level, class).is_none_or(|rank| rank < ranks(level)));
        }
    }
}

#[test]
fn threads_have_a_place_whatever_their_affinity() {
    // Corner case 1: on wide cores alone.
    assert_eq!(rank(L2, Class::Normal, home(Class::Normal, [L1, L2])), Some(1));
    assert_eq!(rank(L1, Class::Normal, home(Class::Normal, [L1, L2])), Some(0));
    // Corner case 2: on no core that has the level.
    let wide = Class::Wide(L2);
    assert_eq!(home(wide, [NARROW, L1]), None);
    assert_eq!(rank(NARROW, wide, None), Some(0));
    assert_eq!(rank(L1, wide, None), Some(0));
    // On none but those of a higher level.
    assert_eq!(rank(L2, Class::Wide(L1), home(Class::Wide(L1), [NARROW, L2])), Some(0));
}

fn core(id: u32, level: LicenseLevel, node: u32, runs: Option<LicenseLevel>) -> Core {
    Core { id: CoreId::new(id), level, node: Some(NodeId::new(node)), runs }
}

#[test]
fn a_core_without_wide_work_is_interrupted() {
    let nearest = Interrupts::Nearest(|one, other| one.index().abs_diff(other.index()));
    let from = core(3, NARROW, 0, Some(NARROW));
    let chosen = |cores: &[Core], level| to_interrupt(cores, &from, level, nearest);
    let busy = core(1, L2, 0, Some(L2));
    let normal = [core(0, L2, 0, Some(NARROW)), core(5, L2, 0, Some(NARROW))];
    let idle = core(7, L2, 0, None);
    let other_node = core(9, L2, 1, None);
    assert_eq!(chosen(&[busy, normal[0], normal[1], idle, other_node], L2), Some(idle.id));
    assert_eq!(chosen(&[busy, normal[0], normal[1], other_node], L2), Some(normal[1].id));
    assert_eq!(chosen(&[busy, other_node], L2), None);
    // For the lower level, its own cores before those of the higher one.
    let lower = core(8, L1, 0, Some(NARROW));
    assert_eq!(chosen(&[idle, lower], L1), Some(lower.id));
    assert_eq!(chosen(&[core(8, L1, 0, Some(L1)), idle], L1), Some(idle.id));
    assert_eq!(chosen(&[lower], L2), None);
    let random =
        |number| to_interrupt(&normal, &from, L2, Interrupts::Random(number)).map(CoreId::index);
    assert_eq!([random(0), random(1), random(2)], [Some(0), Some(5), Some(0)]);
}

/// A scheduler that does what [`rank`] says, on one node: round-robin within a rank.
struct World {
    cores: Vec<LicenseLevel>,
    threads: Vec<(Thread, Vec<usize>)>,
    /// Waiting threads, the longest first.
    waiting: VecDeque<usize>,
    running: Vec<Option<usize>>,
    now: u64,
}

impl World {
    fn home(&self, thread: usize) -> Option<LicenseLevel> {
        let (of, cores) = &self.threads[thread];
        home(of.class(), cores.iter().map(|core| self.cores[*core]))
    }

    fn rank(&self, core: usize, thread: usize) -> Option<u32> {
        let (of, cores) = &self.threads[thread];
        let is_allowed = cores.contains(&core);
        is_allowed.then(|| rank(self.cores[core], of.class(), self.home(thread))).flatten()
    }

    /// Each core puts its thread back and takes the next one.
    fn turn(&mut self) {
        self.now += 10;
        for core in 0..self.cores.len() {
            self.waiting.extend(self.running[core].take());
            let ranked = self.waiting.iter().filter_map(|one| Some((self.rank(core, *one)?, *one)));
            let Some((_, next)) = ranked.min_by_key(|(rank, _)| *rank) else { continue };
            self.waiting.retain(|one| *one != next);
            self.running[core] = Some(next);
        }
    }
}

/// Random threads, affinities, phases and sets of cores.
#[test]
fn no_thread_is_lost_or_starves_and_narrow_cores_run_nothing_wide() {
    let settings = Settings::learning(Nanos::from_us(20));
    let mut state = 1_u64;
    let mut random = |below: usize| {
        // A linear congruential generator, with Knuth's constants.
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % below
    };
    for _ in 0..200 {
        let mut cores: Vec<LicenseLevel> = (0..4).map(|_| [NARROW, L1, L2][random(3)]).collect();
        // Someone must run what is not wide.
        cores[0] = NARROW;
        let threads = (0..8).map(|_| {
            let affinity: Vec<usize> = (0..4).filter(|_| random(3) > 0).collect();
            let affinity = if affinity.is_empty() { vec![random(4)] } else { affinity };
            (Thread::new(), affinity)
        });
        let threads: Vec<_> = threads.collect();
        let mut world =
            World { cores, threads, waiting: (0..8).collect(), running: vec![None; 4], now: 0 };
        let mut waits = [0; 8];
        for _ in 0..400 {
            for _ in 0..random(4) {
                let (thread, kind) = (random(8), random(6));
                let now = us(world.now);
                let is_running = world.running.contains(&Some(thread));
                let of = &mut world.threads[thread].0;
                match kind {
                    // Only what runs can do something.
                    0 | 1 if is_running => _ = of.uses([L1, L2][kind], now, &settings),
                    2 if is_running => _ = of.calls(random(4) == 0, now, &settings),
                    3 => _ = of.wakes(random(4) == 0, now, &settings),
                    4 => of.set([Class::Default, Class::Normal, Class::Wide(L1)][random(3)]),
                    _ => *of = of.inherited(),
                }
            }
            world.turn();
            for (core, running) in world.running.iter().enumerate() {
                let Some(thread) = *running else { continue };
                let class = world.threads[thread].0.class();
                let is_confined = world.home(thread).is_none();
                assert!(class.level() <= world.cores[core] || is_confined, "{class:?}");
            }
            let running = world.running.iter().flatten().count();
            assert_eq!(running + world.waiting.len(), 8);
            for (thread, waited) in waits.iter_mut().enumerate() {
                let is_waiting = world.waiting.contains(&thread);
                *waited = if is_waiting { *waited + 1 } else { 0 };
                // Its class may change while it waits, and its place in the queues with that.
                assert!(*waited < 60, "{thread}: {:?} {:?}", world.threads[thread], world.cores);
            }
        }
    }
}

#[test]
fn hooked_threads_are_quiet_for_longer_than_a_move_pays_before_they_go_back() {
    let settings = Settings::hooked(Nanos::from_us(20));
    assert_eq!(settings.timeout, Nanos::from_us(200));
    assert_eq!(settings.longest, Nanos::from_us(3200));
    let mut thread = wide_at(0, &settings);
    assert!(!thread.calls(false, us(150), &settings), "kernel calls are not seen");
    assert!(!thread.wakes(false, us(199), &settings));
    thread.uses(L2, us(199), &settings);
    assert!(!thread.wakes(false, us(398), &settings));
    assert!(thread.wakes(false, us(399), &settings));
    assert!(settings.is_long(Nanos::from_us(50)) && !settings.is_long(Nanos::from_us(49)));
    // Where moves take next to nothing, the paper's timeout is the longest.
    assert_eq!(Settings::hooked(Nanos::from_ns(100)).longest, Settings::PAPER.timeout);
}

#[test]
fn a_hooked_thread_that_comes_back_at_once_stays_longer_each_time_and_forgets_that() {
    let settings = Settings::hooked(Nanos::from_us(20));
    let mut now = 0;
    let mut stay = |away: u64, thread: &mut Thread| {
        now += away;
        thread.uses(L2, us(now), &settings);
        let due = thread.due(&settings).unwrap();
        let stay = (due - us(now)).ns() / 1000;
        now += stay;
        assert!(thread.wakes(false, due, &settings));
        stay
    };
    let mut thread = Thread::new();
    let stays: Vec<u64> = (0..7).map(|_| stay(100, &mut thread)).collect();
    assert_eq!(stays, [200, 400, 800, 1600, 3200, 3200, 3200]);
    assert_eq!([stay(1000, &mut thread), stay(10_000, &mut thread)], [3200, 1600]);
}

#[test]
fn nothing_is_learned_from_a_phase_that_was_interrupted() {
    let settings = Settings::hooked(Nanos::from_us(20));
    let mut thread = wide_at(0, &settings);
    thread.interrupted();
    assert_eq!((thread.class(), thread.due(&settings)), (Class::Normal, None));
    assert!(thread.uses(L2, us(1), &settings));
    assert_eq!(thread.due(&settings), Some(us(201)));
}
