//! Tests of what [`Loop`] and [`Constants`] demand, on every loop in [`LOOPS`].

use std::collections::BTreeSet;

use dimmer_processor::units::nearest;

use super::*;
use crate::server::evidence::Evidence;
use crate::server::settings::Settings;
use crate::server::work::WorkUnit;
use crate::server::{ClientId, ProgramId, Server, SiteId, Window};

/// Pseudo-random numbers, by Knuth's linear congruential generator.
fn draws(mut state: u64) -> impl FnMut(usize) -> usize {
    move |below| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % below
    }
}

const GROUPS: usize = 5;

/// Calls a method with arguments of which most are nonsense.
fn call(policy_loop: &mut dyn Loop, draw: &mut dyn FnMut(usize) -> usize) {
    let group = draw(GROUPS);
    let numbers = [0.0, 0.02, -0.3, 1e9, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1e300];
    let mut number = || numbers[draw(numbers.len())];
    let (one, other) = (number(), number());
    match draw(10) {
        0 => policy_loop.own(group, UserId(u32::try_from(draw(3)).unwrap())),
        1 => policy_loop.candidate(group, draw(2) == 0),
        2 => policy_loop.expect(group, one),
        3 => policy_loop.spend(group, one, other),
        4 => policy_loop.rest(group),
        5 => policy_loop.forget(group),
        6 => policy_loop.pass([0, 1, 7, u64::MAX][draw(4)]),
        7 => {
            let now = Time::from_ns([0, 3, 1_000_000_000, u64::MAX / 2, u64::MAX][draw(5)]);
            let [client, user, unit] = [draw(3), draw(2), draw(2)];
            let progress = Progress {
                client: ClientId(client as u64),
                program: ProgramId(client as u64),
                user: UserId(u32::try_from(user).unwrap()),
                unit: [WorkUnit::Calls, WorkUnit::Reported][unit],
                done: one,
            };
            policy_loop
                .step(now, &mut [progress, Progress { done: other, ..progress }].into_iter());
            let _ = policy_loop.next_wakeup(now);
        }
        _ => {
            let now = Time::from_ns([0, 3, 1_000_000_000, u64::MAX / 2, u64::MAX][draw(5)]);
            let trend = [Trend::Unknown, Trend::First, Trend::Changed(one)][draw(3)];
            policy_loop.window(WindowEnd { now, trend, moved: draw(3) });
        }
    }
}

/// The decisions about all groups, known and unknown, at some densities.
fn decisions(policy_loop: &dyn Loop) -> Vec<(Action, Reason)> {
    let densities = [0.0, 0.005, 0.5, 1.0].map(|share| Density([share; LEVELS]));
    let of = |group| densities.map(|density| policy_loop.decide(group, &density));
    [0, 1, 2, 3, 4, usize::MAX].into_iter().flat_map(of).collect()
}

/// Calls a loop in any order, and checks that a copy that is called in the same way decides in the
/// same way.
fn check_any_calls(chosen: &Chosen) {
    let mut policy_loop = chosen.start(Time::from_ns(77));
    assert!(policy_loop.window_length() > Nanos::ZERO);
    for round in 0_u64..50 {
        let mut copy = policy_loop.clone();
        let (mut own, mut others) = (draws(round), draws(round));
        for _ in 0..100 {
            call(policy_loop.as_mut(), &mut own);
            call(copy.as_mut(), &mut others);
            let decided = decisions(policy_loop.as_ref());
            assert_eq!(decided, decisions(policy_loop.as_ref()));
            assert_eq!(decided, decisions(copy.as_ref()));
            for (action, reason) in decided {
                match reason {
                    Reason::Dense(_) | Reason::Expected | Reason::Worth => {
                        assert_eq!(action, Action::Move);
                    }
                    Reason::Sparse | Reason::Untried | Reason::NotWorth => {
                        assert_eq!(action, Action::Stay);
                    }
                    Reason::Tried => {}
                    of_the_server => panic!("{of_the_server:?}"),
                }
            }
            assert!((0.0..=1.0).contains(&policy_loop.negligible()));
            let thresholds = policy_loop.thresholds().into_iter().flatten();
            assert!(thresholds.clone().all(|threshold| (0.0..=1.0).contains(threshold)));
            assert_eq!(policy_loop.ends_early(), copy.ends_early());
            assert_eq!(policy_loop.mechanisms(), copy.mechanisms());
        }
    }
}

#[test]
fn every_loop_takes_any_calls_in_any_order_and_copies_decide_alike() {
    LOOPS.map(Chosen::usual).iter().for_each(check_any_calls);
}

#[test]
fn every_loop_starts_with_any_constants_in_their_ranges() {
    for definition in LOOPS {
        let usual = Chosen::usual(definition);
        for Constant { name, least, most, .. } in (definition.constants)().list() {
            for value in [least, most] {
                let mut chosen = usual.clone();
                chosen.set(&[(name, value)]).unwrap();
                check_any_calls(&chosen);
            }
        }
    }
}

/// Looks in a window, or in the time that a change takes to settle if that is longer.
const LOOKS: u64 = 20;

/// Runs a server with one program, whose performance changes by the part `gain` while its calls are
/// moved. Returns the part of the second half of `windows` windows in which they were.
fn moved(chosen: &Chosen, gain: f64, windows: u64) -> f64 {
    let (program, site) = (ClientId(0), SiteId(7));
    let usual = (chosen.definition().settings)(8, None);
    let mut server = Server::new(Settings { decides: chosen.clone(), ..usual }, Time::START);
    server.join(program, ProgramId(0));
    let started = chosen.start(Time::START);
    let look = started.window_length().max(started.settling().unwrap_or_default()) / LOOKS;
    // Halfway between the bounds of thresholds, where there are any.
    let values = chosen.values();
    let bound = |name: &str| values.iter().find(|(of, _)| *of == name).map(|(_, value)| *value);
    let density =
        f64::midpoint(bound("lowest").unwrap_or(0.0), bound("highest").unwrap_or(1.0)) * 1e6;
    let evidence = Evidence::LicenseCycles { all: 1_000_000, at: [0, nearest(density), 0, 0] };
    let (mut now, mut looks) = (Time::START, Vec::new());
    for _ in 0..windows * LOOKS {
        now += look;
        let decision = server.decision(program, site);
        let is_moved = decision.is_some_and(|(action, _)| action == Action::Move);
        let calls = nearest(10_000.0 * if is_moved { 1.0 + gain } else { 1.0 });
        let in_region_ns = look.ns() / 100;
        let (moved_calls, moved_ns) = if is_moved { (calls, in_region_ns) } else { (0, 0) };
        let span_ns = look.ns();
        let window = Window { span_ns, calls, in_region_ns, moved_calls, moved_ns, evidence };
        server.observe(program, site, &window);
        server.step(now);
        looks.push(is_moved);
    }
    let late = &looks[looks.len() / 2..];
    late.iter().filter(|is_moved| **is_moved).count() as f64 / late.len() as f64
}

#[test]
fn at_the_ends_of_each_range_every_loop_finds_what_gains_and_what_loses() {
    for definition in LOOPS {
        let usual = Chosen::usual(definition);
        for Constant { name, least, most, .. } in (definition.constants)().list() {
            for value in [least, most] {
                let mut chosen = usual.clone();
                chosen.set(&[(name, value)]).unwrap();
                let [gains, loses] = [1.0, -0.5].map(|gain| moved(&chosen, gain, 2000));
                assert!(gains > 0.4, "{}.{name} = {value}: {gains}", definition.name);
                assert!(loses < 0.1, "{}.{name} = {value}: {loses}", definition.name);
            }
        }
    }
}

#[test]
fn names_are_unique_and_usual_constants_are_in_their_ranges() {
    let names: BTreeSet<&str> = LOOPS.map(|definition| definition.name).into();
    assert_eq!(names.len(), LOOPS.len());
    for definition in LOOPS {
        assert_eq!(Definition::named(definition.name), Some(definition));
        assert!(!definition.summary.is_empty());
        let usual = Chosen::usual(definition);
        let values = usual.values();
        let names: BTreeSet<&str> = values.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), values.len(), "{}", definition.name);
        // Setting what is set anyway checks the ranges, and changes nothing.
        let mut again = usual.clone();
        assert_eq!(again.set(&values), Ok(()));
        assert_eq!(again, usual);
        assert_eq!((definition.settings)(8, None).decides.definition(), definition);
    }
    assert_eq!(Definition::named("bandit"), None);
}

#[test]
fn constants_are_set_by_name_and_refused_out_of_their_ranges() {
    for definition in LOOPS {
        let usual = Chosen::usual(definition);
        for Constant { name, least, most, .. } in (definition.constants)().list() {
            let mut chosen = usual.clone();
            for value in [least - 1.0, most + 1.0, f64::NAN, f64::INFINITY] {
                let error = chosen.set(&[(name, value)]).unwrap_err().to_string();
                let named = format!("`{}.{name}` is {value}, accepted are ", definition.name);
                assert!(error.starts_with(&named), "{error}");
                assert_eq!(chosen, usual);
            }
            chosen.set(&[(name, most)]).unwrap();
            let values = chosen.values();
            assert!(values.contains(&(name, most)), "{name} {values:?}");
        }
        let error = usual.clone().set(&[("window", 1.0)]).unwrap_err().to_string();
        assert!(error.contains(".window`, expected one of window_ms, "), "{error}");
    }
}

#[test]
fn ranges_that_depend_on_other_constants_are_those_of_all_that_are_set() {
    let mut chosen = Chosen::usual(&thresholds::DEFINITION);
    assert!(chosen.set(&[("begin", 0.5), ("highest", 0.4)]).is_err());
    assert_eq!(chosen.set(&[("highest", 0.6), ("begin", 0.5)]), Ok(()));
    // Each of two that depend on each other, if the other is as it was.
    assert!(chosen.set(&[("lowest", 0.51)]).is_err() && chosen.set(&[("highest", 0.49)]).is_err());
    assert!(chosen.set(&[("lowest", 0.55), ("begin", 0.55)]).is_err());
    assert!(chosen.set(&[("window_ms", 60_000.0)]).is_err());
    assert_eq!(chosen.set(&[("window_ms", 60_000.0), ("exciter_ms", 600_000.0)]), Ok(()));
    assert!(chosen.set(&[("exciter_ms", 599_000.0)]).is_err());
}
