//! Auto beside each mechanism alone, and modes of machines that change, on scenarios that come with
//! Dimmer.

use std::path::Path;

use dimmer_policy::license::Chance as _;
use dimmer_processor::model::{Model, builtin};
use dimmer_processor::units::whole;
use dimmer_sim::Random;

use super::*;
use crate::builtin::{models, names, scenario};
use crate::matrix::Named;

const LENGTH: Length = Length::of(24);

fn model(name: &str) -> Model {
    Model::parse(Path::new(name), builtin(name).unwrap()).unwrap()
}

#[track_caller]
fn judged(of: &str, on: &str) -> Judgement {
    judge(&scenario(of).unwrap(), &model(on), 1, LENGTH, &|| false).unwrap().unwrap()
}

#[track_caller]
fn check_as_good_as_the_best(of: &str, on: &str, best: Mechanism) {
    let judgement = judged(of, on);
    let gain = judgement.alone.iter().find(|(mechanism, _)| *mechanism == best).unwrap().1;
    assert!(gain > 0.05, "{judgement:?}");
    assert!((1.0 + judgement.gain) / (1.0 + judgement.best().1) > 0.99, "{judgement:?}");
    assert!(judgement.worst > -0.01 && !judgement.is_below, "{judgement:?}");
}

#[test]
fn auto_is_as_good_as_the_best_mechanism() {
    check_as_good_as_the_best("bursts-before-short-gaps", "i9-7940x", Mechanism::Predictive);
    check_as_good_as_the_best("primesieve-moved", "i9-7940x", Mechanism::Delegate);
    check_as_good_as_the_best("boosted-section", "fx-8120", Mechanism::Boost);
}

#[test]
fn where_no_mechanism_gains_auto_does_not_lose() {
    let judgement = judged("phases-chase", "ryzen-1600x");
    assert!(judgement.alone.iter().all(|(_, gain)| *gain < 0.005), "{judgement:?}");
    assert!(judgement.gain > -0.01 && judgement.worst > -0.01, "{judgement:?}");
}

#[test]
fn workloads_are_dense_by_their_segments() {
    let check = |of: &str, expected: bool| {
        let is = is_dense(&scenario(of).unwrap(), &model("i9-7940x"), 1).unwrap();
        assert_eq!(is, expected, "{of}");
    };
    check("openssl-speed", true);
    check("nginx-avx512", false);
}

#[test]
fn a_judgement_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let named = |name: &str| name.to_owned();
    let plan = Plan {
        scenarios: vec![Named {
            name: named("bursts-before-short-gaps"),
            value: scenario("bursts-before-short-gaps").unwrap(),
        }],
        models: vec![Named { name: named("i9-7940x"), value: model("i9-7940x") }],
        mechanisms: Vec::new(),
        seeds: 1,
        jobs: 1,
    };
    let judged = |stops: bool| {
        let follower = Follower { stops: &|| stops, advances: &|_, _| () };
        let cache = Cache::new(Some(directory.path()));
        judge_all(&plan, LENGTH, &cache, &follower).unwrap().remove(0).judgement
    };
    assert_eq!(judged(true), None);
    let first = judged(false);
    assert!(matches!(first, Some(Ok(_))), "{first:?}");
    // Nothing runs any more.
    assert_eq!(judged(true), first);
}

#[test]
fn what_does_not_apply_has_its_reason() {
    let refused =
        judge(&scenario("nginx-specialised").unwrap(), &model("i9-7940x"), 1, LENGTH, &|| false);
    let few = "16 cores were asked for, but the model of Intel Core i9-7940X has 14";
    assert_eq!(refused, Err(few.to_owned()));
}

/// Draws a mode at random times, and none from half of the time on.
struct Drawn {
    modes: Vec<Mode>,
    chance: Random,
    half: Moment,
    /// The work at the half, and at the end of it.
    work: [Vec<f64>; 2],
}

impl ChoosesMode for Drawn {
    fn next(&self, now: Moment) -> Moment {
        let mut chance = self.chance.clone();
        now + Picos::rounded(1e9 + 4e9 * chance.uniform())
    }

    fn choose(&mut self, now: Moment, work: &[f64]) -> Mode {
        let drawn = whole(self.chance.uniform() * self.modes.len() as f64);
        let drawn = usize::try_from(drawn).unwrap();
        self.work[usize::from(now > self.half)] = work.to_vec();
        if now > self.half { Mode::NONE } else { self.modes[drawn] }
    }
}

/// Each scenario on the first model that it fits.
#[test]
fn modes_may_change_at_any_time_and_code_never_runs_above_its_clock() {
    let models: Vec<Model> = models().iter().map(|name| model(name)).collect();
    let mut changed = 0;
    for name in names() {
        let end = Moment::START + Picos::from_ps(200_000_000_000);
        let scenario = scenario(&name).unwrap().endless(end);
        let Some(model) = models.iter().find(|model| Mechanism::None.on(&scenario, model).is_ok())
        else {
            continue;
        };
        let fits = |mechanism: &Mechanism| mechanism.on(&scenario, model).is_ok();
        // A program that shares its cores with others may be interrupted when it has announced
        // narrow code, and another go on with wide code there.
        let candidates: Vec<Mechanism> =
            CANDIDATES.into_iter().filter(|of| *of != Mechanism::User).filter(fits).collect();
        for seed in 1..4 {
            let settings = machine(&candidates, &scenario, model, seed).unwrap();
            let mut drawn = Drawn {
                modes: candidates.iter().map(|mechanism| mode(*mechanism)).collect(),
                chance: Random::new(seed),
                half: Moment::START + Picos::from_ps(100_000_000_000),
                work: Default::default(),
            };
            let run = scenario.run_in_modes(model, settings, &mut drawn, (), &|| false);
            // Requests that begin in the middle of a section change clocks in other orders.
            if let Err(SimError::NoTransition { .. }) = run {
                continue;
            }
            let (outcome, ()) = run.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(outcome.is_at_its_levels(), "{name}");
            // What programs did with changing modes, they do under none, too.
            let [first, second] = &drawn.work;
            for (before, after) in first.iter().zip(second) {
                assert!(after > before, "{name}: {before} {after}");
            }
            changed += usize::from(drawn.modes.len() > 1);
        }
    }
    assert!(changed > 40, "{changed}");
}

/// A machine whose mode is one mechanism from the start does what that mechanism alone does.
#[test]
fn a_mode_is_what_its_mechanism_is_alone() {
    struct Always(Course, Mode);
    impl ChoosesMode for Always {
        fn next(&self, now: Moment) -> Moment {
            if self.0.steps.is_empty() { now } else { self.0.next_step() }
        }

        fn choose(&mut self, now: Moment, work: &[f64]) -> Mode {
            self.0.sees(now, work);
            self.1
        }
    }
    let cases = [
        ("nginx-avx512", "i9-7940x", Mechanism::None),
        ("nginx-avx512", "i9-7940x", Mechanism::Narrow),
        ("nginx-avx512", "i9-7940x", Mechanism::Delegate),
        ("nginx-avx512", "i9-7940x", Mechanism::Predictive),
        ("bursts-before-short-gaps", "i9-7940x", Mechanism::User),
        ("boosted-section", "fx-8120", Mechanism::Boost),
        ("phases-mysql", "ryzen-1600x", Mechanism::PhasesLearning),
        ("nginx-specialised", "xeon-gold-6130", Mechanism::SpecialiseLearning),
    ];
    for (of, on, mechanism) in cases {
        let (scenario, model) = (scenario(of).unwrap(), model(on));
        let scenario = scenario.endless(Moment::START + Picos::from_ps(3_000_000_000_000));
        let way = mechanism.on(&scenario, &model).unwrap();
        let (settings, mut alone) = (way.settings(&model, 1).unwrap(), Course::new(SECOND));
        way.scenario.run_in_modes(&model, settings, &mut alone, (), &|| false).unwrap();
        let settings = machine(&[mechanism], &scenario, &model, 1).unwrap();
        let mut always = Always(Course::new(SECOND), mode(mechanism));
        scenario.run_in_modes(&model, settings, &mut always, (), &|| false).unwrap();
        let difference = always.0.over(&alone, 1, 2);
        assert!(difference.abs() < 0.005, "{of} under {}: {difference}", mechanism.name());
    }
}

#[test]
fn a_program_that_does_nothing_any_more_has_lost_all() {
    let course = |steps: &[[f64; 2]]| Course {
        step: SECOND,
        steps: steps.iter().map(|work| work.to_vec()).collect(),
    };
    let none = course(&[[0.0, 0.0], [10.0, 0.0], [20.0, 5.0]]);
    assert_eq!(course(&[[0.0, 0.0], [40.0, 0.0], [80.0, 0.0]]).over(&none, 0, 2), -1.0);
    // The second program does nothing under none in that step.
    assert_eq!(course(&[[0.0, 0.0], [10.0, 7.0], [20.0, 7.0]]).over(&none, 0, 1), 0.0);
    assert!(none.over(&course(&[[3.0, 3.0]; 3]), 0, 2).is_nan());
}
