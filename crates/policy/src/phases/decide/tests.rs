//! Tests of decisions: against all ways that a thread could go, and with made-up programs.

use super::*;
use crate::phases::any::Any;
use crate::phases::{Counters, Counts, Graph, Metric};

fn id(index: usize) -> MarkId {
    MarkId::new(u32::try_from(index).unwrap())
}

/// The part of its speed that code keeps where neither core is better.
const KEEPS: f64 = 0.8;

fn settings(cost_ns: u64) -> Settings {
    Settings::learning(Threshold::new(KEEPS).unwrap(), Nanos::from_ns(cost_ns))
}

/// The time on a slow core of code that takes `ns` on a fast one and is worth this part of that
/// time more on the core that it wants.
fn slow_ns(ns: u64, wants: Core, worth: f64) -> u64 {
    let worth = if wants == Core::Fast { worth } else { -worth };
    Nanos::rounded(ns as f64 * (1.0 + worth) / KEEPS).ns()
}

fn counts(calls: u64, ns: u64) -> Counts {
    let time = Some(Nanos::from_ns(calls * ns));
    Counts { calls, spent: Counters { time, ..Counters::default() } }
}

/// A program that passes marks 0, 1, ... over and over; each with its times on a fast core and on a
/// slow one (ns).
fn cycle(marks: &[(u64, u64)]) -> Learned {
    let mut learned = Learned::default();
    let edges = marks.iter().enumerate().flat_map(|(start, (fast, slow))| {
        let edge = (id(start), id((start + 1) % marks.len()));
        [(Core::Fast, edge, counts(1000, *fast)), (Core::Slow, edge, counts(1000, *slow))]
    });
    learned.look(edges);
    learned
}

fn plan(learned: &Learned, settings: Settings) -> Plan {
    let mut plan = Plan::new(settings);
    plan.update(learned, settings.cost);
    plan
}

/// What is lost at a mark and at the next ones, by trying either core at each.
fn lost(on: Core, mark: usize, left: u32, gains: &[f64], next: &[Vec<Next>], cost: f64) -> f64 {
    if left == 0 {
        return 0.0;
    }
    let here = match on {
        Core::Fast => (-gains[mark]).max(0.0),
        Core::Slow => gains[mark].max(0.0),
    };
    let other = if on == Core::Fast { Core::Slow } else { Core::Fast };
    let after = next[mark].iter().map(|edge| {
        let at = |on| lost(on, edge.end.index(), left - 1, gains, next, cost);
        edge.probability * at(on).min(cost + at(other))
    });
    here + after.sum::<f64>()
}

#[test]
fn a_core_is_as_much_better_as_trying_all_ways_shows() {
    let mut any = Any::new(11);
    for _ in 0..300 {
        let marks = 1 + usize::try_from(any.below(3)).unwrap();
        let gains: Vec<f64> = (0..marks).map(|_| 4.0 * any.share() - 2.0).collect();
        let next: Vec<Vec<Next>> = (0..marks)
            .map(|_| {
                let weights: Vec<f64> =
                    (0..marks).map(|_| any.share().floor() + any.share()).collect();
                let all: f64 = weights.iter().sum();
                let edge = |(end, weight): (usize, &f64)| Next {
                    end: id(end),
                    probability: weight / all,
                    fast_ns: 0.0,
                    slow_ns: 0.0,
                };
                weights.iter().enumerate().map(edge).collect()
            })
            .collect();
        let cost = 3.0 * any.share();
        for left in 0..5 {
            let better = advantage(&gains, &next, cost, left);
            for (mark, better) in better.iter().enumerate() {
                let on = |core| lost(core, mark, left, &gains, &next, cost);
                assert!((on(Core::Slow) - on(Core::Fast) - better).abs() < 1e-9);
            }
        }
    }
}

#[test]
fn a_thread_migrates_where_it_pays_and_not_where_it_does_not() {
    // 1.75 us for a migration (§5.3.3), a tenth of the time is gained: 35 us there and back.
    let (fast, slow) = (Core::Fast, Core::Slow);
    let times = |marks: &[(u64, Core)]| -> Vec<(u64, u64)> {
        marks.iter().map(|(ns, wants)| (*ns, slow_ns(*ns, *wants, 0.1))).collect()
    };
    let moves = |marks: &[(u64, Core)]| -> Vec<Option<Core>> {
        let plan = plan(&cycle(&times(marks)), settings(1750));
        (0..marks.len()).map(|mark| plan.moves_to(id(mark))).collect()
    };
    assert_eq!(moves(&[(50_000, fast), (50_000, slow)]), [Some(fast), Some(slow)]);
    assert_eq!(moves(&[(10_000, fast), (10_000, slow)]), [None, None]);
    assert_eq!(moves(&[(34_800, fast), (34_800, slow)]), [None, None]);
    assert_eq!(moves(&[(35_200, fast), (35_200, slow)]), [Some(fast), Some(slow)]);
    // One side lasts longer: the thread goes there, and stays while the other is short.
    assert_eq!(moves(&[(10_000, fast), (2000, slow)]), [Some(fast), None]);
    assert_eq!(moves(&[(2000, fast), (10_000, slow)]), [None, Some(slow)]);
    // Several short edges in a row are a long one.
    let row = [fast, fast, fast, slow, slow, slow].map(|wants| (15_000, wants));
    assert_eq!(moves(&row), [Some(fast), None, None, Some(slow), None, None]);
    // Without times, nothing pays.
    assert_eq!(moves(&[(0, fast), (0, slow)]), [None, None]);
    // If a migration costs nearly nothing, the threshold decides alone.
    let free = plan(&cycle(&times(&row)), settings(0));
    assert!((0..6).all(|mark| free.moves_to(id(mark)) == free.wants(id(mark))));
}

#[test]
fn migrations_pay_for_what_they_cost() {
    let mut any = Any::new(12);
    let mut moved = 0;
    for _ in 0..300 {
        let mut times = || {
            let fast = any.below(60_000);
            (fast, fast + any.below(fast / 2 + 1))
        };
        let number = 1 + times().0 % 6;
        let marks: Vec<(u64, u64)> = (0..number).map(|_| times()).collect();
        let cost = 1750.0;
        let plan = plan(&cycle(&marks), Settings { most: 1.0, ..settings(1750) });
        let (mut thread, mut now) = (Thread::new(Core::Fast, Time::START), Time::START);
        let (mut lost, mut fast, mut slow, mut rule) = (0.0, 0.0, 0.0, 0.0);
        const ROUNDS: usize = 500;
        let mut before = Core::Fast;
        for _ in 0..ROUNDS {
            for (mark, (on_fast, on_slow)) in marks.iter().enumerate() {
                let wants = plan.wants(id(mark)).unwrap_or(before);
                if let Decision::Move(core) = thread.pass(id(mark), now, &plan) {
                    assert!(core == wants && core == thread.core());
                    lost += cost;
                    moved += 1;
                }
                let loss = (KEEPS * *on_slow as f64 - *on_fast as f64).abs();
                lost += if thread.core() == wants { 0.0 } else { loss };
                fast += if wants == Core::Fast { 0.0 } else { loss };
                slow += if wants == Core::Slow { 0.0 } else { loss };
                rule += if before == wants { 0.0 } else { cost };
                before = wants;
                now +=
                    Nanos::from_ns(if thread.core() == Core::Fast { *on_fast } else { *on_slow });
            }
        }
        // Neither one core alone nor the paper's rule loses less. The end of the horizon and the
        // start make a difference of a few migrations.
        let least = f64::min(fast, slow).min(rule);
        assert!(lost <= least * 1.01 + 4.0 * cost, "{marks:?}: {lost} {fast} {slow} {rule}");
    }
    assert!(moved > 10_000, "{moved}");
}

/// Whatever the plan and the clock: in no stretch of time are there more migrations than the bound.
#[test]
fn migrations_a_second_are_bounded() {
    let mut any = Any::new(13);
    for _ in 0..200 {
        let cost = any.below(3000);
        let settings = Settings { most: any.share(), ..settings(cost) };
        let mut thread = Thread::new(Core::Slow, Time::from_ns(any.below(1000)));
        let mut now = Time::from_ns(any.below(2000));
        let mut moves = Vec::new();
        let step = 1 + any.below(4000);
        for _ in 0..1000 {
            let core = if any.below(2) == 0 { Core::Fast } else { Core::Slow };
            let planned = Planned { wants: Some(core), moves_to: Some(core) };
            let plan = Plan { settings, marks: vec![planned] };
            if thread.pass(id(0), now, &plan) == Decision::Move(core) {
                moves.push(now);
            }
            now += Nanos::from_ns(any.below(step));
        }
        for (first, from) in moves.iter().enumerate() {
            for (number, to) in (1_u32..).zip(&moves[first..]) {
                let earned = (*to - *from).as_f64() * settings.most / settings.cost_ns();
                assert!(f64::from(number) <= BURST + earned + 1e-6);
            }
        }
    }
}

#[test]
fn by_a_profile_alone_marks_decide_as_in_the_paper() {
    let profile = Profile::from_text(include_str!("../tests/listing.txt")).unwrap();
    let mut marks: Vec<Mark> = profile.values().map(|(mark, _)| mark.clone()).collect();
    marks.push(Mark::new("swp_init").unwrap());
    let threshold = Threshold::new(0.01).unwrap();
    let by_paper = Settings::by_threshold(threshold, Nanos::from_ns(1750));
    let plan = Plan::of_profile(&profile, &marks, by_paper);
    let (fast, slow) = (Some(Core::Fast), Some(Core::Slow));
    let planned: Vec<Option<Core>> = (0..8).map(|mark| plan.moves_to(id(mark))).collect();
    assert_eq!(planned, [fast, fast, fast, slow, fast, slow, slow, None]);
    let mut thread = Thread::new(Core::Fast, Time::START);
    let pass = |thread: &mut Thread, mark| thread.pass(id(mark), Time::START, &plan);
    assert_eq!(pass(&mut thread, 0), Decision::Stay);
    assert_eq!(pass(&mut thread, 5), Decision::Move(Core::Slow));
    assert_eq!([pass(&mut thread, 3), pass(&mut thread, 7)], [Decision::Stay; 2]);
    thread.set_core(Core::Fast);
    assert_eq!(pass(&mut thread, 3), Decision::Move(Core::Slow), "the first one failed");
    assert_eq!(pass(&mut thread, 99), Decision::Stay);
}

/// The paper's MySQL at 3.6 GHz: its memory-bound parts are so short that migrating pays only if
/// the slow core is worth a fifth of their time (§5.4: sections must be long enough).
#[test]
fn in_the_papers_mysql_migrating_hardly_pays() {
    let graph = Graph::from_text(include_str!("../tests/mysql.txt")).unwrap();
    let marks: Vec<Mark> = graph.marks().into_iter().cloned().collect();
    let moves = |worth| -> Vec<&str> {
        let mut learned = Learned::default();
        learned.look(graph.by_id(&marks).flat_map(|(edge, found)| {
            let ns = Nanos::rounded(found.spent.cycles.unwrap() as f64 / 3.6).ns() / found.calls;
            let rate = Metric::L3MissRate.of(&found).unwrap();
            let wants = if rate > 0.01 { Core::Slow } else { Core::Fast };
            let on_slow = slow_ns(ns, wants, worth);
            let calls = found.calls;
            [(Core::Fast, edge, counts(calls, ns)), (Core::Slow, edge, counts(calls, on_slow))]
        }));
        let plan = plan(&learned, settings(1750));
        let slow = marks
            .iter()
            .zip(0..)
            .filter(|(_, mark)| plan.moves_to(MarkId::new(*mark)) == Some(Core::Slow));
        slow.map(|(mark, _)| mark.name()).collect()
    };
    assert_eq!(moves(0.2), [""; 0]);
    let some = ["mysql_execute_command", "send_statement_status"];
    assert_eq!(moves(0.3), some);
    assert_eq!(moves(0.99), ["execute_sqlcom_select", some[0], some[1]]);
}

#[test]
fn anything_is_decided_without_a_panic() {
    let mut any = Any::new(14);
    for _ in 0..500 {
        let mut learned = Learned::default();
        let strange = [f64::NAN, f64::INFINITY, -1.0, 0.0, 0.3, 1e300];
        let mut pick = || strange[usize::try_from(any.below(6)).unwrap()];
        let most = pick();
        let cost = Nanos::from_ns([0, 1, 1000, u64::MAX][usize::try_from(any.below(4)).unwrap()]);
        let mut plan = Plan::new(Settings { cost, most, ..settings(0) });
        for _ in 0..4 {
            let core = if any.below(2) == 0 { Core::Fast } else { Core::Slow };
            learned.look(any.flow().take().map(|(edge, counts)| (core, edge, counts)));
            plan.update(&learned, cost);
            let mut thread = Thread::new(Core::Fast, Time::from_ns(any.number()));
            for _ in 0..20 {
                let mark = id(usize::try_from(any.below(8)).unwrap());
                let wants = plan.wants(mark);
                if let Decision::Move(core) = thread.pass(mark, Time::from_ns(any.number()), &plan)
                {
                    assert_eq!(wants, Some(core));
                }
            }
        }
    }
}
