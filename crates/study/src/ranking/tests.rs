//! Intervals and ranks of made-up runs.

use super::*;
use crate::run::Program;

/// A run of one program.
fn run(rate: f64) -> Run {
    let program = Program { name: "p".to_owned(), is_serving: false, rate, p99_us: None };
    Run {
        programs: vec![program],
        joules: Err("no power".to_owned()),
        length_s: 1.0,
        dedicated_cores: 0.0,
        at_level_s: vec![1.0],
        slower: None,
        throttled_s: 0.0,
        still_s: 0.0,
        governor_s: 0.0,
        delayed_s: 0.0,
        idle_s: 0.0,
        below_s: 0.0,
        changes: 0,
        calls: 0,
        moved: 0,
        migrations: 0,
        traps: 0,
        move_ns: None,
        way: None,
        bursts: None,
    }
}

/// Runs with these rates, seed by seed; one rate stands for all seeds.
fn runs(rates: &[f64]) -> Runs {
    Runs { runs: rates.iter().map(|rate| run(*rate)).collect(), is_fixed: rates.len() == 1 }
}

/// Checks ranks, best first: `delegate 1`, or `oracle -` without one.
#[track_caller]
fn check(ran: &[(Mechanism, &[f64])], expected: &[&str]) {
    let ran: Vec<(Mechanism, Runs)> = ran.iter().map(|(of, rates)| (*of, runs(rates))).collect();
    let ran: Vec<(Mechanism, &Runs)> = ran.iter().map(|(of, runs)| (*of, runs)).collect();
    let places = rank(&ran);
    let told = places.iter().map(|place| {
        let rank = place.rank.map_or("-".to_owned(), |rank| rank.to_string());
        format!("{} {rank}", place.mechanism.name())
    });
    assert_eq!(told.collect::<Vec<_>>(), expected, "{places:?}");
}

#[test]
fn an_interval_is_that_of_student() {
    // 4, 5, 6: standard error 0.577, t of two degrees of freedom 4.303.
    let found = Interval::new(&[4.0, 5.0, 6.0], false).unwrap();
    let (low, high) = found.ci95.unwrap();
    assert_eq!(found.mean, 5.0);
    assert!((low - (5.0 - 2.484)).abs() < 1e-3 && (high - (5.0 + 2.484)).abs() < 1e-3);
    // 20 values, one of them far away: standard error 1, t of 19 degrees of freedom 2.093.
    let values: Vec<f64> = (0..20).map(|seed| if seed == 0 { 20.0 } else { 0.0 }).collect();
    let found = Interval::new(&values, false).unwrap();
    assert!((found.mean - 1.0).abs() < 1e-12, "{found:?}");
    assert!((found.ci95.unwrap().1 - 3.093).abs() < 1e-3, "{found:?}");
    assert_eq!(Interval::new(&[3.0], true).unwrap().ci95, Some((3.0, 3.0)));
    assert_eq!(Interval::new(&[3.0], false).unwrap().ci95, None);
    assert_eq!(Interval::new(&[], false), None);
    assert!(Interval::new(&[3.0], false).unwrap().has_zero());
    assert!(!Interval::new(&[0.01, 0.011, 0.012], false).unwrap().has_zero());
}

#[test]
fn the_best_comes_first_and_what_may_be_equal_shares_a_rank() {
    use Mechanism::{Delegate, Narrow, None, Trials};
    check(
        &[
            (None, &[100.0, 110.0, 120.0]),
            (Narrow, &[105.0, 115.6, 126.0]),
            (Delegate, &[104.0, 117.0, 125.0]),
            (Trials, &[90.0, 99.0, 108.0]),
        ],
        &["narrow 1", "delegate 1", "none 3", "trials 4"],
    );
}

/// The rates of the seeds differ by 20 %, the mechanisms by 1 % with each seed.
#[test]
fn differences_are_taken_seed_by_seed() {
    use Mechanism::{Narrow, None};
    check(
        &[(None, &[100.0, 110.0, 120.0]), (Narrow, &[101.0, 111.2, 121.2])],
        &["narrow 1", "none 2"],
    );
}

#[test]
fn without_randomness_any_difference_that_is_shown_counts() {
    use Mechanism::{Delegate, Narrow, None};
    check(
        &[(None, &[100.0]), (Narrow, &[100.02]), (Delegate, &[100.001])],
        &["narrow 1", "delegate 2", "none 2"],
    );
}

#[test]
fn one_seed_tells_nothing_apart() {
    let one = Runs { runs: vec![run(100.0)], is_fixed: false };
    let other = Runs { runs: vec![run(150.0)], is_fixed: false };
    let places = rank(&[(Mechanism::None, &one), (Mechanism::Narrow, &other)]);
    assert!(places.iter().all(|place| place.rank == Some(1)), "{places:?}");
}

#[test]
fn what_varies_is_compared_with_what_does_not() {
    use Mechanism::{None, Specialise};
    check(&[(None, &[100.0]), (Specialise, &[103.0, 104.0, 105.0])], &["specialise 1", "none 2"]);
}

#[test]
fn bounds_and_unstable_clocks_have_no_rank() {
    use Mechanism::{Avxfreq, Narrow, None, Oracle};
    check(
        &[(None, &[100.0]), (Oracle, &[130.0]), (Narrow, &[90.0])],
        &["none 1", "narrow 2", "oracle -"],
    );
    let (none, mut fast) = (runs(&[100.0]), runs(&[120.0]));
    fast.runs[0].below_s = 1e-6;
    let places = rank(&[(None, &none), (Avxfreq, &fast)]);
    assert_eq!(places.iter().map(|place| place.rank).collect::<Vec<_>>(), [Some(1), Option::None]);
}

#[test]
fn energy_and_latency_are_relative_to_none_for_the_same_work() {
    let of = |rate: f64, joules: f64, p99: f64| {
        let mut run = run(rate);
        run.joules = Ok(joules);
        run.programs[0].p99_us = Some(p99);
        Runs { runs: vec![run], is_fixed: true }
    };
    let (none, narrow) = (of(100.0, 10.0, 50.0), of(125.0, 10.0, 40.0));
    let places = rank(&[(Mechanism::None, &none), (Mechanism::Narrow, &narrow)]);
    assert_eq!(places[0].mechanism, Mechanism::Narrow);
    assert!((places[0].energy.unwrap().mean + 0.2).abs() < 1e-12);
    assert!((places[0].p99.unwrap().mean + 0.2).abs() < 1e-12);
    assert!((places[0].gain.mean - 0.25).abs() < 1e-12);
}
