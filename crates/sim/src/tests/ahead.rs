//! The oracle's knowledge of threads that do not run. At the i9-7940X's prices, it gives a level
//! back for more than some 60 us of scalar code.

use super::*;

/// Two hardware threads of one core under the oracle.
fn siblings() -> Machine<Levels> {
    let governor = Governor::Oracle;
    machine(Settings { governor, threads_per_core: 2, ..Settings::default() })
}

fn for_us(code: fn(Extent) -> Segment, us: u64) -> Step {
    Step::Run(code(Extent::Time(us * US)))
}

fn spawn(machine: &mut Machine<Levels>, cpu: usize, steps: &[Step], times: u64) {
    let steps = steps.iter().map(|step| (*step, LicenseLevel::new(0))).collect();
    machine.spawn("t", Box::new(Script::new(steps, times)), Some(cpu));
}

/// How often the level changes within 20 ms.
fn changes(mut machine: Machine<Levels>) -> u64 {
    machine.run(at(20 * MS)).unwrap();
    machine.cores().next().unwrap().changes
}

#[test]
fn a_level_is_kept_while_its_thread_sleeps_and_given_back_for_what_it_does_then() {
    let changes = |next: Step| {
        let mut machine = siblings();
        spawn(&mut machine, 0, &[for_us(heavy, 100), Step::Sleep(MS), next], 1);
        changes(machine)
    };
    assert_eq!(changes(for_us(heavy, 100)), 1);
    assert_eq!(changes(for_us(scalar, 10_000)), 2);
}

#[test]
fn a_level_is_kept_for_a_thread_that_wakes_up_soon() {
    let changes = |sleeps: u64| {
        let mut machine = siblings();
        spawn(&mut machine, 0, &[for_us(heavy, 100), for_us(scalar, 10_000)], 1);
        spawn(&mut machine, 1, &[Step::Sleep(sleeps * US), for_us(heavy, 100)], 1);
        changes(machine)
    };
    assert_eq!(changes(130), 2);
    assert_eq!(changes(1000), 4);
}

#[test]
fn a_level_is_kept_for_a_thread_that_gets_a_lock_soon() {
    let changes = |holds: u64| {
        let mut machine = siblings();
        let first = [Step::Lock(0), for_us(heavy, 100), for_us(scalar, holds), Step::Unlock(0)];
        spawn(&mut machine, 0, &[&first[..], &[for_us(scalar, 10_000)]].concat(), 1);
        let second = [Step::Sleep(US), Step::Lock(0), for_us(heavy, 100), Step::Unlock(0)];
        spawn(&mut machine, 1, &second, 1);
        changes(machine)
    };
    assert_eq!(changes(30), 2);
    assert_eq!(changes(1000), 4);
}

/// As above, but the second thread executes while it waits for the lock.
#[test]
fn a_level_is_kept_for_a_thread_that_spins_and_gets_a_lock_soon() {
    let changes = |holds: u64| {
        let mut machine = siblings();
        let first = [Step::Lock(0), for_us(heavy, 100), for_us(scalar, holds), Step::Unlock(0)];
        spawn(&mut machine, 0, &[&first[..], &[for_us(scalar, 10_000)]].concat(), 1);
        let spin = Step::Spin(0, scalar(Extent::Time(US)));
        spawn(&mut machine, 1, &[Step::Sleep(US), spin, for_us(heavy, 100), Step::Unlock(0)], 1);
        changes(machine)
    };
    assert_eq!(changes(30), 2);
    assert_eq!(changes(1000), 4);
}

/// The scalar thread has its turn for a moment; the wide one waits for its own.
#[test]
fn a_level_is_kept_for_a_thread_whose_turn_comes_soon() {
    let changes = |runs: u64| {
        let mut machine = siblings();
        spawn(&mut machine, 0, &[for_us(heavy, 100_000)], 1);
        spawn(&mut machine, 0, &[Step::Sleep(3 * MS), for_us(scalar, runs)], 3);
        changes(machine)
    };
    assert_eq!(changes(20), 1);
    assert_eq!(changes(1000), 7);
}
