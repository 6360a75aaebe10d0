//! Auto on loads whose speed under each mechanism is known.

use std::cell::Cell;

use dimmer_processor::units::{Nanos, Time};

use super::{Auto, Settings};

/// A program whose speed depends on the mechanism, and varies by chance.
struct Load<'a> {
    /// The speed under each mechanism at a time (s).
    speed: &'a dyn Fn(usize, f64) -> f64,
    /// The standard deviation of the work of a tenth of a second, in parts of it.
    noise: f64,
    random: u64,
    /// For how long the speed stays at least what it is (s).
    steady: f64,
}

/// What came of a run: times (s) are those of steps.
struct Run {
    chosen: Vec<(f64, usize)>,
    /// Work up to each time, and what none would have done, both without chance.
    work: Vec<(f64, f64, f64)>,
}

/// Units of work in a second, at a speed of 1.
const UNITS: f64 = 1e9;

impl Load<'_> {
    fn uniform(&mut self) -> f64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn run(mut self, mechanisms: usize, seconds: f64) -> Run {
        let (mut now, mut work, mut expected, mut of_none) = (0.0, 0.0, 0.0, 0.0);
        let at = |seconds: f64| Time::START + Nanos::rounded(seconds * 1e9);
        let mut auto = Auto::new(Settings::USUAL, mechanisms, at(0.0), &[0.0]);
        let mut run = Run { chosen: Vec::new(), work: Vec::new() };
        while now < seconds {
            let next = (auto.next_wakeup(at(now)) - Time::START).as_f64() / 1e9;
            let span = (next - now).clamp(1e-6, self.steady);
            // The sum of twelve has the variance 1.
            let normal = (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0;
            let chance = span + self.noise * (0.1 * span).sqrt() * normal;
            let speed = (self.speed)(auto.in_force(), now);
            work += speed * chance;
            expected += speed * span;
            of_none += (self.speed)(0, now) * span;
            now += span;
            auto.step(at(now), &[UNITS * work]);
            run.chosen.push((now, auto.chosen()));
            run.work.push((now, expected, of_none));
        }
        run
    }
}

impl Run {
    fn at(&self, seconds: f64) -> usize {
        let chosen = self.chosen.iter().find(|(now, _)| *now >= seconds);
        chosen.or(self.chosen.last()).map_or(0, |(_, chosen)| *chosen)
    }

    /// The work from one time on, in parts of what this speed would do.
    fn over(&self, from: f64, speed: f64) -> f64 {
        let (begin, done, _) = *self.work.iter().find(|(now, ..)| *now >= from).unwrap();
        let (end, all, _) = *self.work.last().unwrap();
        (all - done) / (speed * (end - begin))
    }

    /// The least work of any ten seconds, in parts of what none would have done.
    fn worst(&self) -> f64 {
        let mut worst = f64::INFINITY;
        let mut first = 0;
        for (now, work, none) in &self.work {
            while self.work[first + 1].0 < now - 10.0 {
                first += 1;
            }
            if *now >= 10.0 {
                let (_, before, of_none) = self.work[first];
                worst = worst.min((work - before) / (none - of_none));
            }
        }
        worst
    }
}

fn load(speed: &dyn Fn(usize, f64) -> f64, noise: f64, random: u64) -> Load<'_> {
    Load { speed, noise, random, steady: f64::INFINITY }
}

#[test]
fn the_best_mechanism_is_found() {
    let speeds = [1.0, 0.5, 1.05, 0.9, 1.08, 0.99];
    for seed in 1..20 {
        let run = load(&|of, _| speeds[of], 0.01, seed).run(6, 60.0);
        assert_eq!(run.at(60.0), 4, "seed {seed}");
        assert!(run.over(30.0, 1.08) > 0.99, "seed {seed}: {}", run.over(30.0, 1.08));
    }
}

#[test]
fn where_nothing_helps_none_stays_and_trials_cost_little() {
    let speeds = [1.0, 0.1, 0.95, 0.9, 0.7, 0.99, 0.0, 0.5];
    for seed in 1..20 {
        let run = load(&|of, _| speeds[of], 0.0, seed).run(8, 100.0);
        assert_eq!(run.at(100.0), 0, "seed {seed}");
        assert!(run.worst() > 0.99, "seed {seed}: {}", run.worst());
    }
}

#[test]
fn equal_mechanisms_cost_nothing_whichever_is_chosen() {
    for seed in 1..20 {
        let run = load(&|_, _| 1.0, 0.03, seed).run(4, 60.0);
        assert!(run.over(0.0, 1.0) > 0.985, "seed {seed}: {}", run.over(0.0, 1.0));
    }
}

/// As of a server, which answers few requests in a tenth of a second, of many sizes.
const MUCH_NOISE: f64 = 0.25;

#[test]
fn chance_delays_what_helps() {
    let speeds = [1.0, 0.95, 1.13, 0.9, 1.0, 0.98, 1.03, 0.4];
    let mut found = 0;
    for seed in 1..100 {
        let run = load(&|of, _| speeds[of], MUCH_NOISE, seed).run(8, 600.0);
        assert!(run.worst() > 0.97, "seed {seed}: {}", run.worst());
        found += usize::from(run.at(600.0) == 2);
    }
    assert!(found > 49, "{found} of 99");
}

#[test]
fn what_cannot_be_known_for_chance_costs_little() {
    let speeds = [1.0, 0.95, 0.98, 0.7, 0.9];
    for seed in 1..20 {
        let run = load(&|of, _| speeds[of], MUCH_NOISE, seed).run(5, 600.0);
        assert!(run.worst() > 0.97, "seed {seed}: {}", run.worst());
        assert!(run.over(0.0, 1.0) > 0.995, "seed {seed}: {}", run.over(0.0, 1.0));
    }
}

#[test]
fn a_mechanism_that_no_longer_helps_is_left() {
    // The load does not become slower under none, which alone would be seen at once.
    let speed = |of: usize, now: f64| match of {
        1 if now < 50.0 => 1.1,
        1 => 0.9,
        _ => 1.0,
    };
    for seed in 1..20 {
        let run = load(&speed, 0.005, seed).run(2, 100.0);
        assert_eq!((run.at(49.0), run.at(52.0)), (1, 0), "seed {seed}");
    }
}

#[test]
fn what_helps_only_later_is_found_then() {
    let speed = |of: usize, now: f64| match (of, now < 50.0) {
        (1, true) => 1.1,
        (1, false) => 0.6 * 0.8,
        (2, true) => 0.8,
        (2, false) => 0.6 * 1.1,
        (_, true) => 1.0,
        (_, false) => 0.6,
    };
    for seed in 1..20 {
        let run = load(&speed, 0.005, seed).run(3, 100.0);
        assert_eq!((run.at(49.0), run.at(70.0)), (1, 2), "seed {seed}");
    }
}

/// As of a server that nothing asks for minutes.
#[test]
fn nothing_is_learned_of_noise_while_nothing_is_done() {
    let speed = |of: usize, now: f64| if now < 300.0 { 0.0 } else { [1.0, 1.3][of] };
    for seed in 1..20 {
        let run = load(&speed, MUCH_NOISE, seed).run(2, 420.0);
        assert_eq!(run.at(420.0), 1, "seed {seed}");
    }
}

/// Phases of a program whose speed changes more than a mechanism's does: windows before a trial say
/// little about what it has cost.
#[test]
fn trials_at_a_jump_of_the_load_cost_little() {
    let speed = |of: usize, now: f64| match (of, now % 2.200666 < 2.0) {
        (_, true) => 1.0,
        (0, false) => 2.0,
        (_, false) => 1.0,
    };
    let run = Load { steady: 0.002, ..load(&speed, 0.0, 1) }.run(2, 300.0);
    assert!(run.worst() > 0.985, "{}", run.worst());
}

/// As of wide cores, which threads find out about after they have come into force.
#[test]
fn what_costs_at_first_and_gains_then_is_found() {
    let (begun, seen) = (Cell::new(0.0), Cell::new(0.0));
    let speed = |of: usize, now: f64| {
        if of != 3 {
            return [1.0, 0.7, 0.6][of];
        }
        if now - seen.replace(now) > 0.01 {
            begun.set(now);
        }
        if now - begun.get() < 0.018 { 0.6 } else { 1.05 }
    };
    let run = Load { steady: 0.002, ..load(&speed, 0.001, 1) }.run(4, 30.0);
    assert_eq!(run.at(15.0), 3);
    assert!(run.worst() > 0.99, "{}", run.worst());
}

/// As of threads that share few cores under a mechanism, and take a while to spread again after it.
#[test]
fn what_a_trial_leaves_behind_counts_as_its_loss() {
    for (speed, noise) in [(0.2, 0.01), (0.97, 0.04)] {
        for seed in 1..20 {
            let left = Cell::new(f64::NEG_INFINITY);
            let speed = |of: usize, now: f64| {
                if of == 2 {
                    left.set(now);
                    return speed;
                }
                if now - left.get() < 0.04 { 0.6 } else { 1.0 }
            };
            let run = Load { steady: 0.002, ..load(&speed, noise, seed) }.run(3, 60.0);
            assert_ne!(run.at(60.0), 2, "noise {noise}, seed {seed}");
            // Trials may lose 0.4 %, and what the first ones leave behind is not known before.
            assert!(run.over(0.0, 1.0) > 0.993, "noise {noise}, seed {seed}");
        }
    }
}

/// As of more threads than CPUs, of which others share one after a trial, until the scheduler
/// happens to exchange them.
#[test]
fn what_a_trial_leaves_behind_for_long_is_no_other_load() {
    for seed in 1..20 {
        let left = Cell::new(f64::NEG_INFINITY);
        let speed = |of: usize, now: f64| {
            if of != 0 {
                left.set(now);
            }
            if now - left.get() < 1.0 { 0.75 } else { [1.0, 0.95, 0.9][of] }
        };
        let run = Load { steady: 0.002, ..load(&speed, 0.005, seed) }.run(3, 300.0);
        assert_eq!(run.at(300.0), 0, "seed {seed}");
        // Trials may lose 0.4 %, and what the first of each leaves behind is not known before.
        assert!(run.over(0.0, 1.0) > 0.994, "seed {seed}: {}", run.over(0.0, 1.0));
    }
}

/// What trials were too short to show, because it took a while to come.
#[test]
fn what_is_in_force_and_gains_more_than_trials_showed_stays() {
    let begun = Cell::new((0.0, 0.0));
    let speed = |of: usize, now: f64| {
        let (since, seen) = begun.get();
        let since = if of != 1 || now - seen > 0.01 { now } else { since };
        if of != 1 {
            return 1.0;
        }
        begun.set((since, now));
        if now - since < 0.05 { 1.0 } else { 1.2 }
    };
    let run = Load { steady: 0.002, ..load(&speed, 0.001, 1) }.run(2, 60.0);
    let first = run.chosen.iter().position(|(_, chosen)| *chosen == 1).unwrap();
    assert!(run.chosen[first..].iter().all(|(_, chosen)| *chosen == 1));
}

/// A slow drift looks like a gain of whatever is tried, if it is compared with what was before.
#[test]
fn a_drift_of_the_load_is_no_gain() {
    let speed = |of: usize, now: f64| (1.0 + now / 20.0) * [1.0, 0.98][of];
    let run = load(&speed, 0.0, 1).run(2, 60.0);
    assert!(run.chosen.iter().all(|(_, chosen)| *chosen == 0));
}

/// In most looks of a few milliseconds, such a program has done nothing.
#[test]
fn few_units_of_work_are_no_loss_before_a_window_is_over() {
    for (every, units) in
        [(0.011, 2.0), (0.02, 2.0), (0.037, 2.0), (0.05, 2.0), (0.105, 1.0), (0.12, 1.0)]
    {
        let at = |seconds: f64| Time::START + Nanos::rounded(seconds * 1e9);
        let mut auto = Auto::new(Settings::USUAL, 2, at(0.0), &[0.0]);
        let (mut tried, mut trials, mut now) = (0.0, 0, 0.0);
        while now < 60.0 {
            let next = (auto.next_wakeup(at(now)) - Time::START).as_f64() / 1e9;
            let before = auto.in_force();
            tried += if before == 1 { next - now } else { 0.0 };
            now = next.max(now + 1e-6);
            auto.step(at(now), &[units * (now / every).floor()]);
            trials += usize::from(before == 1 && auto.in_force() == 0);
        }
        let gain = auto.gain(1);
        assert!(gain.is_none_or(|gain| gain.mean.abs() < gain.open), "{every}: {gain:?}");
        assert!(gain.is_some() || every > 0.1, "{every}");
        assert!(trials > 5 && tried > 0.05 * trials as f64, "{every}: {tried} s in {trials}");
    }
}

#[test]
fn any_work_at_any_time_is_taken() {
    let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 1e300];
    let mut auto = Auto::new(Settings::USUAL, 3, Time::from_ns(5), &[f64::NAN]);
    for (step, now) in (0..20_000_u64).zip([7_u64, 1_000_000_000, 0, u64::MAX / 2].iter().cycle()) {
        let place = usize::try_from(step).unwrap();
        let work = [odd[place % odd.len()], odd[place % 5]];
        let time = Time::from_ns(now.wrapping_mul(step + 1) / 2);
        assert!(auto.step(time, &work[..place % 3]) < 3);
        let _ = auto.next_wakeup(time);
    }
}
