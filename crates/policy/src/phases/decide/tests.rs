//! Tests of decisions: against all ways that a thread could go, and with made-up programs.

use std::collections::BTreeMap;

use super::*;
use crate::phases::any::Any;
use crate::phases::{Counters, Counts, Flow, Graph, Metric};

fn id(index: usize) -> MarkId {
    MarkId::new(u32::try_from(index).unwrap())
}

fn settings(cost_ns: u64, worth: f64) -> Settings {
    let threshold = Threshold::new(0.01).unwrap();
    Settings { threshold, band: 0.0, cost: Nanos::from_ns(cost_ns), worth }
}

/// Calls with this time each, and this number of L3 misses in a thousand instructions.
fn counts(calls: u64, ns: u64, misses: u64) -> Counts {
    let spent = Counters {
        time: Some(Nanos::from_ns(calls * ns)),
        instructions: Some(calls * 1000),
        l3_misses: Some(calls * misses),
        ..Counters::default()
    };
    Counts { calls, spent }
}

/// A program that passes marks 0, 1, ... over and over; each with its time and its misses.
fn cycle(marks: &[(u64, u64)]) -> Learned {
    let mut learned = Learned::default();
    let edges = marks.iter().enumerate().map(|(start, (ns, misses))| {
        ((id(start), id((start + 1) % marks.len())), counts(1000, *ns, *misses))
    });
    learned.look(edges, Metric::L3MissRate);
    learned
}

fn plan(learned: &Learned, settings: Settings) -> Plan {
    let mut plan = Plan::new(settings);
    plan.update(learned);
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
                    ns: None,
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
    let ryzen = settings(1750, 0.1);
    let (fast, slow) = (Some(Core::Fast), Some(Core::Slow));
    let moves = |marks: &[(u64, u64)]| -> Vec<Option<Core>> {
        let plan = plan(&cycle(marks), ryzen);
        (0..marks.len()).map(|mark| plan.moves_to(id(mark))).collect()
    };
    assert_eq!(moves(&[(50_000, 1), (50_000, 20)]), [fast, slow]);
    assert_eq!(moves(&[(10_000, 1), (10_000, 20)]), [None, None]);
    assert_eq!(ryzen.shortest(), Nanos::from_us(35));
    assert_eq!(settings(1750, 0.0).shortest(), Nanos::MAX);
    assert_eq!(moves(&[(34_900, 1), (34_900, 20)]), [None, None]);
    assert_eq!(moves(&[(35_100, 1), (35_100, 20)]), [fast, slow]);
    // One side lasts longer: the thread goes there, and stays while the other is short.
    assert_eq!(moves(&[(10_000, 1), (2000, 20)]), [fast, None]);
    assert_eq!(moves(&[(2000, 1), (10_000, 20)]), [None, slow]);
    // Several short edges in a row are a long one.
    let row = [(15_000, 1), (15_000, 1), (15_000, 1), (15_000, 20), (15_000, 20), (15_000, 20)];
    assert_eq!(moves(&row), [fast, None, None, slow, None, None]);
    // Without times, nothing pays.
    assert_eq!(moves(&[(0, 1), (0, 20)]), [None, None]);
    // If a migration costs nearly nothing, the threshold decides alone.
    let free = plan(&cycle(&row), settings(0, 1.0));
    assert!((0..6).all(|mark| free.moves_to(id(mark)) == free.wants(id(mark))));
}

#[test]
fn migrations_pay_for_what_they_cost() {
    let mut any = Any::new(12);
    let mut moved = 0;
    for _ in 0..300 {
        let marks: Vec<(u64, u64)> =
            (0..1 + any.below(6)).map(|_| (any.below(60_000), any.below(20))).collect();
        let (cost, worth) = (1750.0, 0.1);
        let plan = plan(&cycle(&marks), settings(1750, worth));
        let (mut thread, mut now) = (Thread::new(Core::Fast, Time::START), Time::START);
        let (mut lost, mut fast, mut slow, mut rule) = (0.0, 0.0, 0.0, 0.0);
        const ROUNDS: usize = 500;
        let mut before = Core::Fast;
        for _ in 0..ROUNDS {
            for (mark, (ns, _)) in marks.iter().enumerate() {
                let wants = plan.wants(id(mark)).unwrap();
                if let Decision::Move(core) = thread.pass(id(mark), now, &plan) {
                    assert!(core == wants && core == thread.core());
                    lost += cost;
                    moved += 1;
                }
                let loss = *ns as f64 * worth;
                lost += if thread.core() == wants { 0.0 } else { loss };
                fast += if wants == Core::Fast { 0.0 } else { loss };
                slow += if wants == Core::Slow { 0.0 } else { loss };
                rule += if before == wants { 0.0 } else { cost };
                before = wants;
                now += Nanos::from_ns(*ns);
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
        let settings = settings(cost, any.share());
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
                let earned = (*to - *from).as_f64() * settings.worth / settings.cost_ns();
                assert!(f64::from(number) <= BURST + earned + 1e-6);
            }
        }
    }
}

#[test]
fn a_mark_near_the_threshold_keeps_its_side() {
    let with_band = Settings { band: 0.2, ..settings(1, 1.0) };
    let core = |value, before| with_band.core(value, before);
    let (fast, slow) = (Some(Core::Fast), Some(Core::Slow));
    assert_eq!((core(0.011, fast), core(0.011, slow)), (Core::Fast, Core::Slow));
    assert_eq!((core(0.009, fast), core(0.009, slow)), (Core::Fast, Core::Slow));
    assert_eq!((core(0.0121, fast), core(0.0079, slow)), (Core::Slow, Core::Fast));
    assert_eq!((core(0.011, None), core(0.009, None)), (Core::Slow, Core::Fast));
}

#[test]
fn a_plan_follows_the_program() {
    let mut plan = Plan::new(settings(1750, 0.1));
    let mut learned = Learned::default();
    let (a, b) = (id(0), id(1));
    let run = |plan: &mut Plan, learned: &mut Learned, misses: u64| {
        let look = [((a, b), counts(50, 60_000, misses)), ((b, a), counts(50, 60_000, 1))];
        learned.look(look, Metric::L3MissRate);
        plan.update(learned);
        (plan.moves_to(a), plan.moves_to(b))
    };
    let (fast, slow) = (Some(Core::Fast), Some(Core::Slow));
    assert_eq!(run(&mut plan, &mut learned, 30), (slow, fast));
    (0..20).for_each(|_| _ = run(&mut plan, &mut learned, 30));
    assert_eq!(run(&mut plan, &mut learned, 2), (fast, fast), "it has changed");
    // What is forgotten keeps its side, but nothing is known of its length.
    (0..200).for_each(|_| learned.look(BTreeMap::new(), Metric::L3MissRate));
    plan.update(&learned);
    assert_eq!((plan.wants(a), plan.moves_to(a)), (fast, None));
}

/// Two threads of a program whose second mark is memory-bound at first and CPU-bound later. Each
/// measures only what is due.
#[test]
fn threads_are_on_the_right_core_and_seldom_measured() {
    let settings = Settings { band: 0.1, ..settings(1750, 0.1) };
    let (mut learned, mut plan) = (Learned::default(), Plan::new(settings));
    let mut threads = [0, 1]
        .map(|_| (Flow::new(Counters::ZERO), Thread::new(Core::Fast, Time::START), Counters::ZERO));
    let (mut right, mut measured, mut moved) = ([0, 0], 0, 0);
    const LOOKS: usize = 400;
    for look in 0..LOOKS {
        let later = look >= LOOKS / 2;
        for round in 0..50_u64 {
            for (flow, thread, counters) in &mut threads {
                for (mark, misses) in [(0, 1), (1, if later { 2 } else { 30 })] {
                    let now = Time::START + counters.time.unwrap();
                    moved += u64::from(thread.pass(id(mark), now, &plan) != Decision::Stay);
                    let is_due = learned.is_due(id(1 - mark)) || learned.is_due(id(mark));
                    let time = Counters { time: counters.time, ..Counters::default() };
                    flow.pass(id(mark), if is_due { *counters } else { time });
                    measured += u64::from(is_due);
                    let wants = if misses > 10 { Core::Slow } else { Core::Fast };
                    right[usize::from(later)] += u64::from(thread.core() == wants);
                    *counters = counters.plus(&Counters {
                        time: Some(Nanos::from_us(50 + round % 3)),
                        instructions: Some(100_000),
                        l3_misses: Some(misses * 100),
                        ..Counters::ZERO
                    });
                }
            }
        }
        let counts = threads.iter_mut().flat_map(|(flow, _, _)| flow.take());
        learned.look(counts, Metric::L3MissRate);
        plan.update(&learned);
    }
    // 20 000 marks in each half of each thread.
    assert!(right.iter().all(|right| *right > 36_000), "{right:?}");
    assert!(measured < 8000, "{measured}");
    assert!((36_000..44_000).contains(&moved), "{moved}");
}

#[test]
fn by_a_profile_alone_marks_decide_as_in_the_paper() {
    let profile = Profile::from_text(include_str!("../tests/listing.txt")).unwrap();
    let mut marks: Vec<Mark> = profile.values().map(|(mark, _)| mark.clone()).collect();
    marks.push(Mark::new("swp_init").unwrap());
    let plan = Plan::of_profile(&profile, &marks, settings(1750, 0.1));
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
    let mut learned = Learned::default();
    learned.look(
        graph.by_id(&marks).map(|(edge, mut counts)| {
            counts.spent.time = counts.spent.cycles.map(|c| Nanos::rounded(c as f64 / 3.6));
            (edge, counts)
        }),
        Metric::L3MissRate,
    );
    let moves = |worth| -> Vec<&str> {
        let plan = plan(&learned, settings(1750, worth));
        let slow = marks
            .iter()
            .zip(0..)
            .filter(|(_, mark)| plan.moves_to(MarkId::new(*mark)) == Some(Core::Slow));
        slow.map(|(mark, _)| mark.name()).collect()
    };
    assert_eq!(moves(0.2), [""; 0]);
    let some = ["mysql_execute_command", "send_statement_status"];
    assert_eq!(moves(0.3), some);
    assert_eq!(moves(1.0), ["execute_sqlcom_select", some[0], some[1]]);
}

#[test]
fn anything_is_decided_without_a_panic() {
    let mut any = Any::new(14);
    for _ in 0..500 {
        let mut learned = Learned::default();
        let strange = [f64::NAN, f64::INFINITY, -1.0, 0.0, 0.3, 1e300];
        let mut pick = || strange[usize::try_from(any.below(6)).unwrap()];
        let (band, worth) = (pick(), pick());
        let cost = Nanos::from_ns([0, 1, 1000, u64::MAX][usize::try_from(any.below(4)).unwrap()]);
        let mut plan = Plan::new(Settings { band, cost, ..settings(0, worth) });
        for _ in 0..4 {
            learned.look(any.flow().take(), Metric::L3MissRate);
            plan.update(&learned);
            let mut thread = Thread::new(Core::Fast, Time::from_ns(any.number()));
            for _ in 0..20 {
                let mark = id(usize::try_from(any.below(8)).unwrap());
                _ = learned.is_due(mark);
                let wants = plan.wants(mark);
                if let Decision::Move(core) = thread.pass(mark, Time::from_ns(any.number()), &plan)
                {
                    assert_eq!(wants, Some(core));
                }
            }
        }
    }
}
