//! Cores that wait by MWAIT or make requests for others, and cores that a machine leaves out.

use super::*;

fn shipped(name: &str) -> Model {
    Model::parse(std::path::Path::new(name), builtin(name).unwrap()).unwrap()
}

fn with_idle_states<O: Observer>(model: &Model, cores: u32, observer: O) -> Machine<O> {
    let settings = Settings { cores, idle_states: true, ..Settings::default() };
    Machine::new(model, settings, observer).unwrap()
}

fn code(us: u64) -> Step {
    Step::Run(scalar(Extent::Time(us * US)))
}

/// A machine in which core 0 has lock 0 for 200 µs.
fn with_owner(model: &Model, cores: u32) -> Machine<()> {
    let mut machine = with_idle_states(model, cores, ());
    let owner = [Step::Lock(0), code(200), Step::Unlock(0)];
    machine.spawn("owner", Box::new(Script::once(owner)), Some(0));
    machine
}

fn delayed(machine: &Machine<()>, core: usize) -> Picos {
    machine.cores().nth(core).unwrap().delayed
}

/// 0.938 W at 1 V, at the 1.2 V of the fastest core.
#[test]
fn a_core_in_which_a_thread_waits_by_mwait_takes_power_until_then() {
    let joules = |waits: Step, us: u64| {
        let mut machine = with_owner(&shipped("ryzen-1600x"), 6);
        let next = [waits, code(10), Step::Unlock(0)];
        machine.spawn("next", Box::new(Script::once(next)), Some(1));
        machine.run(at(us * US)).unwrap();
        machine.energy().unwrap().packages[0].joules
    };
    for us in [100, 200, 300, 1000] {
        let more = joules(Step::Mwait(0), us) - joules(Step::Lock(0), us);
        let waited = 1e-6 * f64::from(u32::try_from(us.min(200)).unwrap());
        let expected = 0.938 * 1.2_f64.powi(2) * waited;
        assert!((more / expected - 1.0).abs() < 0.01, "{us} µs: {more}, expected {expected}");
    }
}

#[test]
fn a_core_waits_by_mwait_between_other_threads() {
    let mut machine = with_owner(&shipped("fx-8120"), 8);
    let next = [Step::Mwait(0), code(10), Step::Unlock(0)];
    machine.spawn("next", Box::new(Script::once(next)), Some(2));
    let other = [Step::Sleep(20 * US), code(10)];
    machine.spawn("other", Box::new(Script::once(other)), Some(2));
    machine.run(Moment::MAX).unwrap();
    assert_eq!(delayed(&machine, 2), 2 * 454 * PS);
}

#[test]
fn a_core_is_no_longer_in_mwait_when_its_thread_runs_elsewhere() {
    let mut machine = with_owner(&shipped("fx-8120"), 8);
    let next = [Step::Mwait(0), code(10), Step::Unlock(0)];
    machine.spawn("next", Box::new(Script::once(next)), None);
    let other = [Step::Sleep(100 * US), code(200), Step::Sleep(100 * US), code(100)];
    machine.spawn("other", Box::new(Script::once(other)), Some(1));
    machine.run(at(150 * US)).unwrap();
    assert_eq!(delayed(&machine, 1), 454 * PS);
    machine.run(Moment::MAX).unwrap();
    assert_eq!(delayed(&machine, 1), (454 + 22_021) * PS);
    // It was run by another core.
    assert!(machine.threads().nth(1).unwrap().finished.unwrap() < at(250 * US));
}

#[test]
fn mwait_leaves_the_shallowest_idle_state_in_whatever_order_the_model_has_them() {
    let mut model = shipped("fx-8120");
    model.cstates.reverse();
    let mut machine = with_owner(&model, 8);
    let next = [Step::Mwait(0), code(10), Step::Unlock(0)];
    machine.spawn("next", Box::new(Script::once(next)), Some(2));
    machine.run(Moment::MAX).unwrap();
    assert_eq!(delayed(&machine, 2), 454 * PS);
}

/// Paper 002 §2.1: P0 needs idle cores. Those of the package that the machine leaves out are.
#[test]
fn cores_that_a_machine_leaves_out_are_idle() {
    let ghz = |cores: u32| {
        let mut machine = with_idle_states(&shipped("fx-8120"), cores, ());
        for core in 0..2 {
            machine.spawn("a", Box::new(Script::once([code(1000)])), Some(core));
        }
        // Those of the machine are deeply idle from 22 µs on.
        machine.run(at(10 * US)).unwrap();
        let cycles: f64 = machine.threads().next().unwrap().instructions.iter().sum();
        (cycles / 1e3).round() / 10.0
    };
    assert_eq!(ghz(2), 4.0);
    assert_eq!(ghz(8), 3.4);
}

/// Who requests what for which core, from when to when.
#[derive(Debug, Default)]
struct Requests(Vec<([Moment; 2], (usize, usize), usize)>);

impl Observer for Requests {
    fn asks(&mut self, (begin, end): (Moment, Moment), cores: (usize, usize), pstate: usize) {
        self.0.push(([begin, end], cores, pstate));
    }
}

/// P2 to P6 takes 7021 ns, C6 22 021 ns to leave.
#[test]
fn an_idle_core_wakes_up_to_make_a_request() {
    let settings = Settings {
        cores: 8,
        idle_states: true,
        pstate: Some("P2".to_owned()),
        ..Settings::default()
    };
    let mut machine = Machine::new(&shipped("fx-8120"), settings, Requests::default()).unwrap();
    let asks = Step::AskBy { core: 0, by: 4, wish: 6 };
    machine.spawn("a", Box::new(Script::once([code(100), asks, asks, code(100)])), Some(0));
    machine.run(Moment::MAX).unwrap();
    let stolen: Vec<Picos> = machine.cores().step_by(4).map(|core| core.stolen).collect();
    // The core idles again after it: what it does is no code of a thread.
    assert_eq!(stolen, [Picos::ZERO; 2]);
    let begin = at(100 * US) + 22_021 * PS;
    // The second request is for what is in force.
    assert_eq!(machine.into_observer().0, [([begin, begin + 7021 * PS], (4, 0), 6)]);
}

#[test]
fn a_request_that_is_in_force_costs_nothing() {
    let settings = Settings { cores: 8, pstate: Some("P2".to_owned()), ..Settings::default() };
    let mut machine = Machine::new(&shipped("fx-8120"), settings, ()).unwrap();
    machine.spawn("a", Box::new(Script::once([Step::Ask(2), code(10)])), Some(0));
    machine.run(Moment::MAX).unwrap();
    let core = machine.cores().next().unwrap();
    assert_eq!((core.stolen, core.interrupts), (Picos::ZERO, 0));
}
