//! Tests of the trials with made-up performance.

use super::*;

/// Runs the loop on groups with these gains. Returns which groups are moved after each window.
fn run(
    trials: &mut Trials,
    gains: &[f64],
    windows: usize,
    mut noise: impl FnMut() -> f64,
) -> Vec<Vec<bool>> {
    let performance = |trials: &Trials| -> f64 {
        gains
            .iter()
            .enumerate()
            .filter(|(group, _)| trials.is_moved(*group))
            .map(|(_, gain)| gain)
            .sum()
    };
    let mut before = performance(trials);
    let window = |_| {
        let now = performance(trials) + noise();
        trials.pass(1);
        trials.change_side(Trend::Changed(now - before));
        before = now;
        (0..gains.len()).map(|group| trials.is_moved(group)).collect()
    };
    (0..windows).map(window).collect()
}

fn of(groups: usize) -> Trials {
    let mut trials = Trials::new(Settings::USUAL);
    (0..groups).for_each(|group| trials.candidate(group, true));
    trials
}

/// Pseudo-random numbers of standard deviation one, by Knuth's linear congruential generator.
fn chance(mut state: u64) -> impl FnMut() -> f64 {
    move || {
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        ((0..12).map(|_| uniform()).sum::<f64>() - 6.0).clamp(-6.0, 6.0)
    }
}

#[test]
fn what_gains_is_moved_and_what_loses_is_not() {
    let gains = [0.1, -0.1, 0.02, 0.0];
    let mut trials = of(4);
    let moved = run(&mut trials, &gains, 1000, || 0.0);
    for (group, gain) in gains.iter().enumerate() {
        let share = moved[10..].iter().filter(|moved| moved[group]).count() as f64 / 990.0;
        assert!(if *gain > 0.01 { share > 0.9 } else { share < 0.1 }, "{group} {share}");
    }
}

#[test]
fn at_all_ends_of_the_ranges_together_a_doubling_is_found() {
    let mut settings = Settings::USUAL;
    let all = settings.list().len();
    for ends in 0..1_u32 << all {
        for (number, mut constant) in settings.list().into_iter().enumerate() {
            constant.set(if ends >> number & 1 == 0 { constant.least } else { constant.most });
        }
        let mut trials = Trials::new(settings);
        (0..2).for_each(|group| trials.candidate(group, true));
        let moved = run(&mut trials, &[1.0, -0.5], 400, || 0.0);
        let share =
            |group: usize| moved[200..].iter().filter(|moved| moved[group]).count() as f64 / 200.0;
        assert!(share(0) > 0.5 && share(1) < 0.5, "{} {} {settings:?}", share(0), share(1));
    }
}

#[test]
fn nothing_changes_often_on_constant_input() {
    for thousandths in -100_i32..100 {
        let mut trials = of(1);
        let moved = run(&mut trials, &[f64::from(thousandths) / 1000.0], 2000, || 0.0);
        let changes = moved[100..].windows(2).filter(|pair| pair[0] != pair[1]).count();
        // A side is tried again when its weight has fallen so far that the other may be better.
        // Each change adds one to the weight: there, back, and there once more, if that was enough
        // to show that it is better. So a gain near the least worthwhile one, where neither side is
        // better, is tried often, and any other hardly ever.
        let Settings { least_noise, exploration, discount, least_gain, enough, .. } =
            Settings::USUAL;
        let distance = (f64::from(thousandths) / 1000.0 - least_gain).abs();
        let weight = 4.0 * least_noise.powi(2) * exploration * (1.0 / (1.0 - discount)).ln()
            / distance.powi(2);
        let allowed = 2.0 + 1900.0 * (1.0 - discount) * (weight.min(enough) + 3.0);
        assert!((changes as f64) < allowed, "{thousandths} {changes} {allowed}");
    }
}

#[test]
fn noise_costs_samples_but_not_the_answer() {
    for seed in 1..20 {
        let (mut trials, mut noise) = (of(2), chance(seed));
        let moved = run(&mut trials, &[0.08, -0.08], 1000, || 0.02 * noise());
        let share =
            |group: usize| moved[100..].iter().filter(|moved| moved[group]).count() as f64 / 900.0;
        assert!(share(0) > 0.8 && share(1) < 0.2, "{seed} {} {}", share(0), share(1));
    }
}

#[test]
fn chance_alone_moves_hardly_anything() {
    for seed in 1..20 {
        let (mut trials, mut noise) = (of(1), chance(seed));
        // Moving brings nothing, and neighbours make performance vary by a third.
        let moved = run(&mut trials, &[0.0], 2000, || 0.3 * noise());
        let share = moved.iter().filter(|moved| moved[0]).count() as f64 / 2000.0;
        assert!(share < 0.12, "{seed} {share}");
    }
}

#[test]
fn trials_take_no_more_than_they_may() {
    let mut trials = of(1);
    // Each window with moved calls takes a twentieth of its time, and noise leaves the question
    // open.
    const TAKES: f64 = 0.05;
    let (mut noise, mut spent, windows) = (chance(3), 0.0, 2000);
    for _ in 0..windows {
        if trials.is_moved(0) && trials.is_tried(0) {
            let ns = TAKES * Settings::USUAL.window.as_f64();
            trials.spend(0, ns / 2.0, ns / 2.0);
            spent += TAKES;
        }
        trials.pass(1);
        trials.change_side(Trend::Changed((0.3 * noise()).clamp(-0.9, 0.9)));
    }
    let share = spent / f64::from(windows);
    assert!(share > 0.0 && share <= Settings::USUAL.most_spent + TAKES / 1000.0, "{share}");
    // What is spent late counts, too.
    let before = trials.groups[0].spent_ns;
    trials.groups[0].is_moved = false;
    trials.spend(0, 1000.0, 0.0);
    assert!(trials.groups[0].spent_ns > before);
    // A group without members pays nothing.
    let owed = trials.groups[0].spent_ns;
    trials.candidate(0, false);
    trials.pass(u64::MAX);
    assert_eq!(trials.groups[0].spent_ns.to_bits(), owed.to_bits());
    // Nor does it pay for the part of the window before it came.
    trials.candidate(0, true);
    trials.pass(u64::MAX);
    assert_eq!(trials.groups[0].spent_ns.to_bits(), owed.to_bits());
    trials.change_side(Trend::Unknown);
    // What is paid is gone, however much was spent at once.
    trials.pass(u64::MAX);
    trials.spend(7, 1.0, 1.0);
    trials.spend(0, f64::NAN, 1.0);
    assert!(trials.groups[0].spent_ns <= 0.0);
}

#[test]
fn a_change_of_habits_is_followed_within_bounds() {
    let mut trials = of(1);
    run(&mut trials, &[0.1], 300, || 0.0);
    assert!(trials.is_moved(0));
    // Without a visible jump, samples only become old.
    let moved = run(&mut trials, &[-0.1], 600, || 0.0);
    let until = moved.iter().rposition(|moved| moved[0]).unwrap_or(0);
    assert!(until < 500, "{until}");
    // After a jump, the group is tried again at once.
    trials.change_side(Trend::Changed(0.2));
    let moved = run(&mut trials, &[0.1], 10, || 0.0);
    assert!(moved[9][0], "{trials:?}");
}

#[test]
fn what_may_not_be_moved_is_not_tried_and_numbers_are_used_anew() {
    let mut trials = of(2);
    trials.candidate(1, false);
    let moved = run(&mut trials, &[0.1, 0.1], 10, || 0.0);
    assert!(moved[9][0] && moved.iter().all(|moved| !moved[1]));
    assert!(trials.gain(0).is_some_and(|gain| (gain - 0.1).abs() < 1e-9));
    trials.forget(0);
    assert!(!trials.is_moved(0) && trials.gain(0).is_none());
    trials.forget(7);
    assert!(!trials.is_moved(7) && !trials.is_tried(7));
}

/// Runs a group that is expected to gain a tenth, and gains this. Returns whether it is moved after
/// each window.
fn expected(gain: f64) -> (Trials, Vec<bool>) {
    let mut trials = of(1);
    trials.expect(0, 0.1);
    assert!(trials.is_moved(0) && !trials.is_tried(0) && !trials.is_known_better(0));
    // The group came in the middle of the first window, so the second is the first to compare with.
    assert_eq!(trials.change_side(Trend::Unknown), None);
    assert_eq!(trials.change_side(Trend::First), Some(0));
    assert!(trials.is_tried(0));
    let mut before = gain;
    let window = |_| {
        let now = if trials.is_moved(0) { gain } else { 0.0 };
        trials.pass(1);
        trials.change_side(Trend::Changed(now - before));
        before = now;
        trials.is_moved(0)
    };
    let moved = (0..50).map(window).collect();
    (trials, moved)
}

#[test]
fn what_is_expected_to_gain_begins_moved_and_is_tried_without() {
    // Confirmed, supported, or refuted by the first window in which the group stays.
    for (gain, stays) in [(0.1, 0), (0.02, 0), (-0.02, 50), (-0.1, 50)] {
        let (trials, moved) = expected(gain);
        let without = moved.iter().filter(|moved| !**moved).count();
        assert_eq!(without, stays, "{gain} {moved:?}");
        assert_eq!(trials.is_known_better(0), gain > 0.05, "{gain}");
    }
    // The first window does neither: the question is asked once more.
    let (_, moved) = expected(0.0);
    assert_eq!(moved[..5], [true, false, false, false, false]);
}

#[test]
fn an_expectation_is_of_something_worthwhile_and_for_what_is_new() {
    let mut trials = of(3);
    trials.expect(0, Settings::USUAL.least_gain);
    trials.expect(1, f64::NAN);
    assert!(!trials.is_moved(0) && !trials.is_moved(1));
    // Not during the trial of another group.
    trials.change_side(Trend::Unknown);
    assert_eq!(trials.change_side(Trend::First), Some(0));
    trials.expect(1, 0.5);
    assert!(!trials.is_moved(1));
    // Not if something is known about the group.
    trials.change_side(Trend::Changed(-0.1));
    trials.change_side(Trend::Unknown);
    trials.expect(0, 0.5);
    assert!(!trials.is_moved(0));
    trials.expect(1, 0.5);
    assert!(trials.is_moved(1));
}

#[test]
fn what_is_expected_and_too_dear_stays_until_that_is_paid() {
    let window = Settings::USUAL.window.as_f64();
    let mut trials = of(1);
    trials.expect(0, 0.1);
    trials.spend(0, 0.09 * window, 0.0);
    assert!(!trials.ends_early());
    trials.spend(0, 0.02 * window, 0.0);
    assert!(trials.ends_early());
    assert_eq!(trials.change_side(Trend::Unknown), Some(0));
    assert!(!trials.ends_early() && !trials.is_moved(0));
    trials.change_side(Trend::First);
    trials.expect(0, 0.1);
    assert!(!trials.is_moved(0));
    // A group that goes and comes again still has to pay.
    trials.candidate(0, false);
    trials.rest(0);
    trials.candidate(0, true);
    trials.expect(0, 0.1);
    assert!(!trials.is_moved(0));
    trials.change_side(Trend::Unknown);
    trials.pass(u64::MAX);
    trials.expect(0, 0.1);
    assert!(trials.is_moved(0));
}

#[test]
fn any_trend_is_taken() {
    let mut trials = of(3);
    for trend in
        [f64::NAN, f64::INFINITY, -1e308, 1e308, 0.0, f64::MIN_POSITIVE].iter().cycle().take(300)
    {
        trials.change_side(Trend::Changed(*trend));
        trials.change_side(Trend::First);
        trials.change_side(Trend::Unknown);
    }
    // The loop recovers from all of it.
    let moved = run(&mut trials, &[0.1, -0.1, 0.1], 3000, || 0.0);
    let share = |group: usize| moved[2000..].iter().filter(|moved| moved[group]).count();
    assert!(share(0) > 900 && share(1) < 100 && share(2) > 900, "{trials:?}");
}

#[test]
fn what_is_expected_and_loses_is_not_moved_for_long_however_much_chance_there_is() {
    // Noise of a tenth hides the loss by moving: no number of samples that counts as enough refutes
    // the expectation beyond chance.
    let moved = (1..40).flat_map(|seed| {
        let (mut trials, mut noise) = (of(1), chance(seed));
        trials.expect(0, 0.1);
        run(&mut trials, &[-0.05], 2000, || 0.1 * noise())
    });
    let share = moved.filter(|moved| moved[0]).count() as f64 / (39.0 * 2000.0);
    assert!(share < 0.12, "{share}");
}

#[test]
fn where_no_window_can_be_compared_nothing_is_tried_again_and_again() {
    // Processes come and go; each is there for one whole window only.
    let mut trials = of(1);
    trials.change_side(Trend::Unknown);
    let firsts: Vec<_> = (0..10).map(|_| trials.change_side(Trend::First)).collect();
    assert_eq!(firsts[..2], [Some(0); 2]);
    assert!(!trials.is_moved(0) && firsts[2..].iter().all(Option::is_none), "{firsts:?}");
    // A process that stays makes up for it, and one that has just come may stay.
    let mut other = trials.clone();
    assert_eq!(trials.change_side(Trend::Changed(0.0)), Some(0));
    other.candidate(1, true);
    assert_eq!(other.change_side(Trend::First), Some(0));
}

#[test]
fn what_is_expected_and_cannot_be_tried_is_paid_for() {
    for trend in [Trend::Unknown, Trend::First] {
        let mut trials = of(1);
        let mut moved = 0;
        for _ in 0..1000 {
            trials.expect(0, 0.1);
            if trials.is_moved(0) {
                moved += 1;
                trials.spend(0, 0.0, 0.05 * Settings::USUAL.window.as_f64());
            }
            trials.pass(1);
            trials.change_side(trend);
        }
        // Each such window takes a twentieth of its time, and half a percent of the time is
        // allowed.
        assert!((50..=150).contains(&moved), "{trend:?} {moved}");
    }
}

#[test]
fn a_window_in_whose_midst_a_group_begins_to_be_moved_tells_nothing_of_others() {
    let mut trials = of(3);
    trials.candidate(2, false);
    run(&mut trials, &[-0.1, 0.1], 50, || 0.0);
    let known = trials.clone();
    trials.candidate(2, true);
    trials.change_side(Trend::Changed(0.0));
    // As large as a jump, in two parts.
    trials.expect(2, 0.3);
    assert_eq!(trials.change_side(Trend::Changed(0.2)), None);
    trials.expect(0, 0.3);
    assert_eq!(trials.change_side(Trend::Changed(0.1)), Some(2));
    for group in [0, 1] {
        assert_eq!(trials.groups[group], known.groups[group]);
    }
    trials.change_side(Trend::Changed(-0.3));
    assert!(trials.gain(2).is_some_and(|gain| (gain - 0.3).abs() < 1e-9));
}

#[test]
fn a_window_that_ends_early_tells_nothing_of_others() {
    let mut trials = of(2);
    trials.candidate(1, false);
    run(&mut trials, &[-0.1], 50, || 0.0);
    let known = trials.groups[0];
    trials.candidate(1, true);
    trials.expect(1, 0.3);
    (0..2).for_each(|_| _ = trials.change_side(Trend::Unknown));
    trials.spend(1, Settings::USUAL.window.as_f64(), 0.0);
    assert!(trials.ends_early());
    trials.change_side(Trend::Changed(-0.5));
    assert!(!trials.is_moved(1));
    assert_eq!(trials.groups[0], known);
}

#[test]
fn one_users_many_regions_leave_others_their_turns() {
    let mut trials = Trials::new(Settings::USUAL);
    for group in 0..100 {
        trials.own(group, UserId(u32::from(group == 99)));
        trials.candidate(group, true);
    }
    let mut tried = Vec::new();
    for _ in 0..10 {
        trials.pass(1);
        tried.extend(trials.change_side(Trend::Changed(0.0)));
    }
    assert!(tried[..4].contains(&99), "{tried:?}");
}
