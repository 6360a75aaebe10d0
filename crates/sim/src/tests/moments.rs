//! Tests of what is done at one moment, one thing after the other.

use dimmer_processor::model::Upper;

use super::*;

/// The counter does not see code of which nothing is executed: here, that of a thread whose turn
/// ends at the very moment at which it starts.
#[test]
fn the_counter_sees_what_is_executed() {
    let governor = Governor::AvxFreq;
    let settings = Settings { governor, scheduler: Scheduling::MuQss, ..Settings::default() };
    let mut machine = machine(settings);
    let late = machine.spawn(
        "late",
        Box::new(Script::once([Step::Run(heavy(Extent::Time(20 * US)))])),
        None,
    );
    machine.starts(late, at(10 * US));
    let code = |us| Step::Run(scalar(Extent::Time(us * US)));
    // Its deadline is the earlier one.
    let early = [code(5), Step::Sleep(5 * US), code(100)];
    machine.spawn("early", Box::new(Script::once(early)), None);
    machine.run(at(100 * US)).unwrap();
    assert_eq!(machine.cores().next().unwrap().interrupts, 0);
}

/// A request is made for code that other code joins at the same moment, on another CPU of the core.
#[test]
fn a_core_sees_what_each_of_its_cpus_starts() {
    let settings = Settings { threads_per_core: 2, ..Settings::default() };
    let mut machine = machine(settings);
    let code = heavy(Extent::Time(100 * US));
    // L1 at once, and L1 after 12431 instructions, on the way to L2.
    let light = Segment { class: InstructionClass::Light512, ..code };
    let dirty = Segment { class: InstructionClass::Heavy256, upper: Upper::Dirty, ..code };
    for (cpu, code) in [light, dirty].into_iter().enumerate() {
        let steps = [Step::Run(scalar(Extent::Time(10 * US))), Step::Run(code)];
        machine.spawn("a", Box::new(Script::once(steps)), Some(cpu));
    }
    machine.run(at(50 * US)).unwrap();
    assert_eq!(machine.into_observer().0.first().map(|(.., level)| *level), Some(1));
}

/// A thread that calls is on its CPU, also if it has come at this moment.
#[test]
fn a_call_finds_the_clock_of_as_many_cores_as_have_threads() {
    let mut model = model();
    // L1 is slower than L0 with several active cores alone.
    model.levels[1].bins = model.levels[0].bins.clone();
    for bin in &mut model.levels[1].bins[1..] {
        bin.mhz.value -= 1000;
    }
    let alone = model.levels[0].bins[0].cores;
    let settings = Settings { cores: alone + 1, governor: Governor::User, ..Settings::default() };
    let mut machine = Machine::new(&model, settings, ()).unwrap();
    let set = Step::Call(License::Set(LicenseLevel::new(1)));
    let code = Step::Run(scalar(Extent::Time(50 * US)));
    // It comes back at the very moment at which its first call is over.
    machine.spawn("a", Box::new(Script::once([set, Step::Sleep(US), set, code])), Some(0));
    for cpu in 1..=alone {
        let cpu = usize::try_from(cpu).unwrap();
        machine.spawn("b", Box::new(Script::once([code, code])), Some(cpu));
    }
    machine.run(Moment::MAX).unwrap();
    assert_eq!(machine.cores().next().unwrap().still, 10 * US);
}
