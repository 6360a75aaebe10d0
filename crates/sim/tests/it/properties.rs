//! Properties of any simulator of such processors, over workloads drawn at random: what does not
//! matter changes nothing, and what is known from the outside comes out.

use dimmer_processor::model::Model;
use dimmer_sim::Governor;
use dimmer_sim::scenario::Outcome;

use crate::differential::simulate;
use crate::drawn::{
    Code, Draws, Length, Step, Thread, Work, certain, draw_all, draw_at_once, draw_crowded,
    draw_model, flat, made_up, shipped,
};

const SCENARIOS: u64 = 60;

/// What came of each thread: when it finished (ns), and its phases as instructions and time (ns).
type Done = Vec<(Option<f64>, Vec<(f64, f64)>)>;

fn done(outcome: &Outcome) -> Done {
    let phases = |thread: &dimmer_sim::scenario::ThreadOutcome| {
        thread.phases.iter().map(|phase| (phase.instructions, phase.time.ns())).collect()
    };
    let finished = |thread: &dimmer_sim::scenario::ThreadOutcome| {
        thread.finished.map(|at| at.since_start().ns())
    };
    outcome.threads.iter().map(|thread| (finished(thread), phases(thread))).collect()
}

/// Compares up to rounding, with all times of the second multiplied by `stretched`.
#[track_caller]
fn same(number: u64, one: &Done, other: &Done, stretched: f64) {
    let is_near = |one: f64, other: f64| (one - other).abs() <= 300.0 + 1e-4 * one.abs();
    assert_eq!(one.len(), other.len());
    for (thread, ((ended, phases), (other_ended, others))) in one.iter().zip(other).enumerate() {
        let told = || format!("scenario {number}, thread {thread}: {one:?}\n{other:?}");
        assert_eq!(ended.is_some(), other_ended.is_some(), "{}", told());
        let ends = ended.unwrap_or(0.0) * stretched;
        assert!(is_near(ends, other_ended.unwrap_or(0.0)), "{}", told());
        for ((instructions, time), (other_instructions, other_time)) in phases.iter().zip(others) {
            assert!(is_near(*instructions, *other_instructions), "{}", told());
            assert!(is_near(time * stretched, *other_time), "{}", told());
        }
    }
}

/// Calls `check` with workloads and models that leave nothing to chance.
fn each(check: impl Fn(u64, &Model, &Work)) {
    for number in 1..=SCENARIOS {
        let mut draws = Draws::new(2_000_000 + number);
        let (model, work) = (draw_model(&mut draws), Work::draw(&mut draws));
        check(number, &model, &work);
    }
}

fn hardware(model: &Model, work: &Work) -> Done {
    done(&simulate(model, work, Governor::Hardware, 1))
}

#[test]
fn the_states_of_a_core_add_up_and_threads_are_busy_as_their_cores() {
    each(|number, model, work| {
        for governor in Governor::ALL {
            let outcome = simulate(model, work, governor, 1);
            let end = outcome.end.since_start();
            for (core, thread) in outcome.cores.iter().zip(&outcome.threads) {
                let busy = core.level.iter().copied().sum::<dimmer_sim::Picos>()
                    + core.throttled
                    + core.still
                    + core.stolen
                    + core.delayed;
                assert_eq!(busy + core.idle, end, "scenario {number}, {}", governor.name());
                let phases = thread.phases.iter().map(|phase| phase.time).sum();
                assert_eq!(busy, phases, "scenario {number}, {}", governor.name());
            }
        }
    });
}

#[test]
fn the_seed_decides_all_that_is_drawn_and_nothing_else() {
    let model = shipped("i9-7940x");
    each(|number, certain_model, work| {
        let run = |model, seed| format!("{:?}", simulate(model, work, Governor::Hardware, seed));
        assert_eq!(run(&model, number), run(&model, number), "scenario {number}");
        assert_eq!(run(certain_model, 1), run(certain_model, 2), "scenario {number}");
    });
}

#[test]
fn twice_the_time_at_half_the_clock_is_the_same() {
    each(|number, model, work| {
        let mut slow = model.clone();
        for level in &mut slow.levels {
            level.bins.iter_mut().for_each(|bin| bin.mhz.value /= 2);
        }
        let request = &mut slow.request;
        let release = &mut slow.release;
        let rules = slow.rules.iter_mut().map(|rule| &mut rule.grant_ns);
        let times = [
            &mut request.throttled_ns,
            &mut request.stall_ns,
            &mut request.slot_ns,
            &mut release.hold_ns,
            &mut release.stall_ns,
            &mut release.recurrence_ns,
            &mut release.recurrence_after_ns,
        ];
        for time in times.into_iter().chain(rules).flatten() {
            time.value *= 2;
        }
        for long in &mut slow.long_recurrences {
            long.burst_ns.value *= 2;
            long.gap_ns.value *= 2;
        }
        let mut stretched = work.clone();
        stretched.end_us = work.end_us.map(|us| 2.0 * us);
        stretched.codes.iter_mut().for_each(|code| code.memory_ns *= 2.0);
        for thread in &mut stretched.threads {
            thread.begin_us *= 2.0;
            thread.steps = Step::changed(&thread.steps, &|step| {
                let mut step = step.clone();
                if let Step::Sleep { us } | Step::Run { length: Length::Us(us), .. } = &mut step {
                    *us *= 2.0;
                }
                vec![step]
            });
        }
        same(number, &hardware(model, work), &hardware(&slow, &stretched), 2.0);
    });
}

#[test]
fn which_core_a_thread_is_on_does_not_matter() {
    each(|number, model, work| {
        let mut turned = work.clone();
        let model = Model { shape: flat_shape(model), ..model.clone() };
        turned.threads.iter_mut().for_each(|thread| thread.cpu = (thread.cpu + 1) % work.cores);
        same(number, &hardware(&model, work), &hardware(&model, &turned), 1.0);
        let mut reversed = work.clone();
        reversed.threads.reverse();
        let mut found = hardware(&model, &reversed);
        found.reverse();
        same(number, &hardware(&model, work), &found, 1.0);
    });
}

/// One package, so that all cores are alike.
fn flat_shape(model: &Model) -> dimmer_processor::model::Shape {
    let mut shape = model.shape.clone();
    (shape.packages, shape.cores) = (None, made_up(16));
    shape
}

#[test]
fn a_core_that_does_nothing_does_not_matter() {
    each(|number, model, work| {
        let more = Work { cores: work.cores + 1, ..work.clone() };
        same(number, &hardware(model, work), &hardware(model, &more), 1.0);
    });
}

/// With the same clocks for any number of active cores, scalar code elsewhere changes nothing.
#[test]
fn scalar_code_on_another_core_does_not_matter() {
    each(|number, model, work| {
        let model = flat(model.clone());
        let mut more = Work { cores: work.cores + 1, ..work.clone() };
        let length = Length::Us(3000.0);
        let steps = vec![Step::Run { code: 0, length }];
        more.threads.push(Thread::new(work.cores, 10.0, 2, steps));
        let mut found = hardware(&model, &more);
        found.pop();
        same(number, &hardware(&model, work), &found, 1.0);
    });
}

/// One step is the same as two that make it up, also if the second has a slightly lower rate where
/// time ends the steps.
#[test]
fn a_step_in_two_parts_is_the_same_step() {
    each(|number, model, work| {
        let mut split = work.clone();
        for thread in &mut split.threads {
            thread.steps = Step::changed(&thread.steps, &|step| match *step {
                Step::Run { code, length: Length::Us(us) } => {
                    let half = Step::Run { code, length: Length::Us(us / 2.0) };
                    vec![half.clone(), half]
                }
                Step::Run { code, length: Length::Instructions(n) } if n >= 2.0 => {
                    let part = |n| Step::Run { code, length: Length::Instructions(n) };
                    vec![part((n / 2.0).floor()), part(n - (n / 2.0).floor())]
                }
                _ => vec![step.clone()],
            });
        }
        let ends = |done: Done| -> Done {
            let sum = |phases: Vec<(f64, f64)>| {
                let sum = phases.iter().fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
                vec![sum]
            };
            done.into_iter().map(|(ended, phases)| (ended, sum(phases))).collect()
        };
        same(number, &ends(hardware(model, work)), &ends(hardware(model, &split)), 1.0);
    });
}

/// Under all governors but the predictive one, which learns each step as written by itself; also
/// where the oracle does as that one would. The oracle compares the speeds of steps as written, so
/// among ways that are nearly as good it may take another one.
#[test]
fn a_block_is_the_same_as_its_steps_written_out() {
    each(|number, model, work| {
        let mut without = work.clone();
        for thread in &mut without.threads {
            let single = Step::single(&thread.steps);
            let round = Step::written_out(&thread.steps).into_iter();
            thread.steps = round.map(|number| single[number].clone()).collect();
        }
        for governor in Governor::ALL.into_iter().filter(|one| *one != Governor::Predictive) {
            let run = |work: &Work| simulate(model, work, governor, 1);
            let (blocks, without) = (run(work), run(&without));
            let ways = [blocks.oracle_way, without.oracle_way];
            if ways[0] != ways[1] || ways.contains(&Some(Governor::Predictive)) {
                continue;
            }
            assert_eq!(blocks.cores, without.cores, "scenario {number}, {}", governor.name());
            assert_eq!(blocks.segments, without.segments);
        }
    });
}

/// Light code after heavy code: however it is split and mixed with a slower kind of the same, L2 is
/// held for as long.
#[test]
fn less_light_code_holds_a_level_no_longer() {
    use dimmer_processor::class::InstructionClass::{Heavy512, Light512};
    let model = certain(shipped("i9-7940x"));
    let code = |class, per_cycle| Code { class, per_cycle, ..Code::SCALAR };
    let at_l2 = |after: &[Step]| {
        let run = |code, us| Step::Run { code, length: Length::Us(us) };
        let steps = [&[run(1, 1000.0)], after, &[run(0, 3000.0)]].concat();
        let thread = Thread::new(0, 0.001, 1, steps);
        let codes =
            vec![Code::SCALAR, code(Heavy512, 2.0), code(Light512, 2.0), code(Light512, 1.9)];
        let work = Work::new(1, codes, vec![thread]);
        let outcome = simulate(&model, &work, Governor::Hardware, 1);
        outcome.cores[0].level[2].ns().round()
    };
    let run = |code, us| Step::Run { code, length: Length::Us(us) };
    let whole = at_l2(&[run(2, 10_000.0)]);
    let repeated = |steps| [Step::Repeat { passes: 100, steps }];
    assert_eq!(at_l2(&repeated(vec![run(2, 1.0), run(0, 99.0)])), whole);
    assert_eq!(at_l2(&repeated(vec![run(2, 50.0), run(3, 50.0)])), whole);
    assert_eq!(at_l2(&[run(0, 10_000.0)]), whole);
}

/// Two workloads on packages of their own are as they are alone: nothing is shared.
#[test]
fn packages_share_nothing() {
    each(|number, model, work| {
        let mut model = model.clone();
        (model.shape.packages, model.shape.cores) = (made_up(2), made_up(4));
        let beside = Work::draw(&mut Draws::new(3_000_000 + number));
        let mut both = Work { cores: 8, end_us: None, ..work.clone() };
        let work = Work { cores: 4, end_us: None, ..work.clone() };
        let codes = both.codes.len();
        both.codes.extend(&beside.codes);
        both.threads.extend(beside.threads.iter().map(|thread| {
            let moved = |step: &Step| match *step {
                Step::Run { code, length } => vec![Step::Run { code: code + codes, length }],
                _ => vec![step.clone()],
            };
            let steps = Step::changed(&thread.steps, &moved);
            Thread { cpu: thread.cpu + 4, steps, ..thread.clone() }
        }));
        let beside = Work { cores: 4, end_us: None, ..beside };
        let found = hardware(&model, &both);
        let (first, second) = found.split_at(work.threads.len());
        same(number, &hardware(&model, &work), &first.to_vec(), 1.0);
        same(number, &hardware(&model, &beside), &second.to_vec(), 1.0);
    });
}

/// With the same clocks for any number of cores and without slots, cores share nothing either.
#[test]
fn cores_share_nothing_but_clocks_and_slots() {
    each(|number, model, work| {
        let mut model = flat(model.clone());
        model.request.slot_ns = None;
        model.shape = flat_shape(&model);
        let work = Work { end_us: None, ..work.clone() };
        let found = hardware(&model, &work);
        for (thread, found) in work.threads.iter().zip(&found) {
            let threads = vec![Thread { cpu: 0, ..thread.clone() }];
            let alone = Work { cores: 1, threads, ..work.clone() };
            same(number, &hardware(&model, &alone), &vec![found.clone()], 1.0);
        }
    });
}

/// Energy is power times time: it doubles with the power of all loads, and is what waiting takes
/// and what each core takes beyond that.
#[test]
fn twice_the_power_is_twice_the_energy_and_its_parts_add_up() {
    let is_near = |one: f64, other: f64| (one - other).abs() <= 1e-9 * one.abs();
    let model = shipped("fx-8120");
    let mut twice = model.clone();
    twice.power.iter_mut().for_each(|power| power.package_mw.value *= 2);
    // The same clocks are to be within the rated power.
    twice.clock.tdp_mw.iter_mut().for_each(|limit| limit.value *= 2);
    each(|number, _, work| {
        // The model has loads of one and two cores at its fastest clocks.
        let threads = work.threads.iter().take(2).enumerate();
        let threads =
            threads.map(|(core, thread)| Thread { cpu: core, ..thread.clone() }).collect();
        let work = Work { cores: 2, threads, ..work.clone() };
        let energy = |model| simulate(model, &work, Governor::Hardware, 1).energy.unwrap();
        let (one, two) = (energy(&model), energy(&twice));
        for (one, two) in one.packages.iter().zip(&two.packages) {
            assert!(is_near(2.0 * one.joules, two.joules), "scenario {number}: {one:?} {two:?}");
        }
        let whole: f64 = one.packages.iter().map(|package| package.joules).sum();
        let waiting: f64 = one.packages.iter().map(|package| package.waiting_joules).sum();
        let cores: f64 = one.cores.iter().map(|core| core.joules).sum();
        assert!(is_near(whole, waiting + cores) && whole > 0.0, "scenario {number}: {one:?}");
        for core in &one.cores {
            let parts: f64 = core.pstates.iter().map(|part| part.joules).sum();
            assert!(is_near(core.joules, parts), "scenario {number}: {core:?}");
        }
    });
}

/// An observer that sees each segment, so that the machine has an event for each.
#[derive(Debug)]
struct SeesAll;

impl dimmer_sim::Observer for SeesAll {}

/// Whether several segments share an event changes nothing, to the last digit.
#[test]
fn what_is_observed_does_not_matter() {
    for draw in [draw_all, draw_crowded, draw_at_once] {
        for number in 1..=20 * SCENARIOS {
            let (model, work, _) = draw(&mut Draws::new(3_000_000 + number));
            let (governor, scenario) = (Governor::Hardware, work.scenario());
            let seen = scenario.run(&model, governor, number, SeesAll, &|_| false).unwrap().0;
            let unseen = simulate(&model, &work, governor, number);
            assert_eq!(seen, unseen, "scenario {number}");
        }
    }
}
