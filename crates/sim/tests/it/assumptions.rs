//! What is assumed where a model lacks a value is named, and only where something depends on it.

use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::Model;
use dimmer_sim::Governor;

use crate::drawn::{Code, Length, Step, Thread, Work, shipped};

/// A thread of this class on the first of some cores.
fn work(class: InstructionClass, is_chained: bool, cores: usize) -> Work {
    let code = Code { class, is_chained, per_cycle: 1.0, ..Code::SCALAR };
    let steps = vec![Step::Run { code: 1, length: Length::Us(100.0) }];
    let thread = Thread::new(0, 0.001, 1, steps);
    Work::new(cores, vec![Code::SCALAR, code], vec![thread])
}

#[track_caller]
fn check(model: &Model, work: &Work, governor: Governor, expected: &[&str]) {
    let assumed = work.scenario().assumed(model, &[governor]).unwrap();
    let assumed: Vec<String> = assumed.iter().map(ToString::to_string).collect();
    assert_eq!(assumed, expected);
}

#[test]
fn clocks_of_other_numbers_of_cores_are_named() {
    let model = shipped("i9-7940x");
    let heavy = |cores| work(InstructionClass::Heavy512, false, cores);
    check(&model, &heavy(1), Governor::Oracle, &[]);
    let l1 = "level.bins (L1, 2 to 8 cores): 3300 MHz, as with 14";
    let l2 = "level.bins (L2, 2 to 8 cores): 2500 MHz, as with 14";
    check(&model, &heavy(8), Governor::Hardware, &[l1, l2]);
    check(&model, &work(InstructionClass::Heavy512, true, 8), Governor::Hardware, &[l1, l2]);
    check(&model, &work(InstructionClass::Scalar, false, 8), Governor::Hardware, &[]);
}

#[test]
fn what_throttling_and_governors_assume_is_named_where_code_asks_for_a_level() {
    let mut model = shipped("i9-7940x");
    model.request.throttle_factor = None;
    model.request.chained_throttle_factor = None;
    model.release.stall_ns = None;
    for level in &mut model.levels {
        level.reduced_mhz = None;
    }
    check(&model, &work(InstructionClass::Scalar, true, 1), Governor::User, &[]);
    check(
        &model,
        &work(InstructionClass::Light512, true, 1),
        Governor::User,
        &[
            "release.stall_ns: 0 ns",
            "request.throttle_factor: 1",
            "request.chained_throttle_factor: 1, the throttle_factor",
            "level.reduced_mhz (L1): 100 MHz below L0",
        ],
    );
}

/// A value that nothing is assumed for is an error.
#[test]
fn a_value_without_an_assumption_is_an_error() {
    let mut model = shipped("i9-7940x");
    model.release.hold_ns = None;
    let work = work(InstructionClass::Heavy512, false, 1);
    let error = work.scenario().run(&model, Governor::Hardware, 1, (), &|_| false).unwrap_err();
    assert!(error.to_string().contains("`release.hold_ns`"), "{error}");
}
