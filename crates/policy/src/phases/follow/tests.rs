//! Tests of following: made-up programs on made-up cores.

use dimmer_processor::units::Nanos;

use super::*;
use crate::phases::Threshold;

fn id(index: usize) -> MarkId {
    MarkId::new(u32::try_from(index).unwrap())
}

/// A program whose threads pass marks 0, 1, ... over and over. Each mark has the time until the
/// next one on a fast core and on a slow one (ns).
struct World {
    leader: Leader,
    threads: Vec<(Follower, Time)>,
    /// What a migration takes.
    cost: Nanos,
    moves: u64,
}

impl World {
    fn new(threads: usize, cost: Nanos) -> Self {
        let settings = Settings::learning(Threshold::new(0.9).unwrap(), cost);
        let thread = || (Follower::new(Core::Fast, Time::START), Time::START);
        let threads = (0..threads).map(|_| thread()).collect();
        Self { leader: Leader::new(settings, Time::START), threads, cost, moves: 0 }
    }

    /// Runs the program for some rounds. Returns the time that all threads took, and that of what
    /// follows each mark on a slow core.
    fn run(&mut self, rounds: usize, marks: &[(u64, u64)]) -> (Nanos, Vec<Nanos>) {
        let mut on_slow = vec![Nanos::ZERO; marks.len()];
        let start: Vec<Time> = self.threads.iter().map(|(_, now)| *now).collect();
        for _ in 0..rounds {
            for (thread, now) in &mut self.threads {
                for (mark, (fast, slow)) in marks.iter().enumerate() {
                    let reading = |now: Time| Counters {
                        time: Some(now - Time::START),
                        ..Counters::default()
                    };
                    let at = thread.thread.core();
                    if let Decision::Move(core) =
                        thread.pass(id(mark), at, reading(*now), self.leader.plan())
                    {
                        self.moves += 1;
                        *now += self.cost;
                        thread.arrive(id(mark), core, reading(*now));
                    }
                    if thread.is_due() {
                        self.leader.take_in(thread.take(), *now);
                    }
                    let slow = Nanos::from_ns(*slow);
                    match thread.thread.core() {
                        Core::Fast => *now += Nanos::from_ns(*fast),
                        Core::Slow => {
                            *now += slow;
                            on_slow[mark] += slow;
                        }
                    }
                }
            }
        }
        let took = self.threads.iter().zip(start).map(|((_, now), start)| *now - start);
        (took.fold(Nanos::ZERO, |sum, time| sum + time), on_slow)
    }
}

/// The part of a program's time that these are, in percent.
fn percent(part: Nanos, all: Nanos) -> f64 {
    100.0 * part.as_f64() / all.as_f64()
}

#[test]
fn threads_go_where_each_part_belongs_and_follow_when_that_changes() {
    let mut world = World::new(2, Nanos::from_us(2));
    // The second part is memory-bound: it loses 2 % on a slow core. The first loses half.
    let marks = [(100_000, 150_000), (200_000, 204_000)];
    world.run(1000, &marks);
    let (all, slow) = world.run(5000, &marks);
    assert!(percent(slow[0], all) < 2.0, "{slow:?} of {all}");
    assert!((63.0..67.0).contains(&percent(slow[1], all)), "{slow:?} of {all}");
    // Later it is the other way round. The times on a slow core change by less than half, so that
    // is found out when the fast one is tried again.
    let marks = [(200_000, 204_000), (100_000, 150_000)];
    world.run(10_000, &marks);
    let (all, slow) = world.run(5000, &marks);
    assert!(percent(slow[1], all) < 2.0, "{slow:?} of {all}");
    assert!((63.0..67.0).contains(&percent(slow[0], all)), "{slow:?} of {all}");
}

#[test]
fn what_a_slow_core_slows_down_is_tried_there_and_comes_back() {
    for slow in [120_000, 200_000, 1_000_000] {
        let mut world = World::new(1, Nanos::from_us(2));
        let marks = [(100_000, slow); 3];
        let alone = Nanos::from_ns(300_000 * 50_000);
        let (all, on_slow) = world.run(50_000, &marks);
        let tried = on_slow.iter().fold(Nanos::ZERO, |sum, time| sum + *time);
        assert!(tried > Nanos::ZERO);
        // Trying takes less than 1 % of the calls.
        let lost = percent(all - alone, alone);
        let most = slow as f64 / 100_000.0 - 1.0;
        assert!(lost < most, "{slow}: {lost} %");
    }
}

#[test]
fn parts_too_short_for_a_migration_stay_but_for_trials() {
    let mut world = World::new(1, Nanos::from_us(2));
    // The second part would be as fast on a slow core, which is worth a tenth of its time: 0.5 us.
    let (all, slow) = world.run(100_000, &[(100_000, 200_000), (5_000, 5_000)]);
    assert!(world.moves < 100, "{}", world.moves);
    assert!(percent(slow[1], all) < 0.1, "{slow:?} of {all}");
}

/// As on a machine where others use the CPUs, too.
#[test]
fn migrations_that_take_longer_than_was_measured_come_to_an_end() {
    let marks = [(100_000, 150_000), (100_000, 100_000)];
    let mut world = World::new(1, Nanos::from_us(2));
    world.run(10_000, &marks);
    assert!(world.moves > 15_000, "{}", world.moves);
    world.cost = Nanos::from_us(200);
    let (before, alone) = (world.moves, Nanos::from_ns(200_000 * 20_000));
    let (all, _) = world.run(20_000, &marks);
    assert!(world.moves - before < 1000, "{}", world.moves - before);
    assert!(percent(all - alone, alone) < 3.0, "{all}, alone {alone}");
    // And begin again.
    world.cost = Nanos::from_us(2);
    world.run(20_000, &marks);
    let before = world.moves;
    world.run(10_000, &marks);
    assert!(world.moves - before > 15_000, "{}", world.moves - before);
}

#[test]
fn an_edge_on_both_cores_counts_where_it_started() {
    let mut thread = Follower::new(Core::Fast, Time::START);
    let plan = Plan::new(Settings::learning(Threshold::new(0.9).unwrap(), Nanos::from_us(1)));
    let at = |us| Counters { time: Some(Nanos::from_us(us)), ..Counters::default() };
    for (us, mark, core) in [
        (0, 0, Core::Fast),
        (1, 1, Core::Fast),
        // Since the mark before it went to a slow core.
        (4, 0, Core::Slow),
        (9, 1, Core::Slow),
        // It came home in the middle.
        (20, 0, Core::Fast),
    ] {
        assert_eq!(thread.pass(id(mark), core, at(us), &plan), Decision::Stay);
    }
    let edges: Vec<(Core, u64)> = thread
        .take()
        .edges
        .into_iter()
        .map(|((core, _), counts)| (core, counts.spent.time.unwrap().ns() / counts.calls))
        .collect();
    // In the order of the marks: 0 to 1, 1 to 0; on a fast core, and then on a slow one.
    let expected =
        [(Core::Fast, 1000), (Core::Fast, 3000), (Core::Slow, 5000), (Core::Slow, 11_000)];
    assert_eq!(edges, expected);
}
