//! Core specialisation on the machine (paper 003).

use dimmer_policy::specialise::{self, sets};
use dimmer_processor::units::Nanos;

use super::*;

/// One wide core, the last one; nothing that moving takes is counted.
fn one_wide_core(phases: specialise::Settings) -> Specialise {
    Specialise {
        wide_cores: WideCores::Fixed(1),
        traps: Traps::Registers,
        phases,
        is_random: false,
        stays_near: false,
        trap_ns: 0.0,
        interrupt_ns: 0.0,
    }
}

/// Three cores, on which four threads compute, and serve requests that begin with 50 us of wide
/// code and end with 200 us of scalar code.
fn run(specialise: Option<Specialise>) -> Machine<Levels> {
    let mut machine = machine(Settings {
        cores: 3,
        scheduler: Scheduling::MuQss,
        specialise,
        ..Settings::default()
    });
    for _ in 0..4 {
        let wide = Step::Run(heavy(Extent::Instructions(2e5)));
        let narrow = Step::Run(scalar(Extent::Instructions(8e5)));
        let script = Script::new(
            [wide, narrow].into_iter().map(|step| (step, LicenseLevel::new(0))).collect(),
            400,
        );
        machine.spawn("server", Box::new(script.serving(Arrivals::Closed)), None);
    }
    machine.run(Moment::MAX).unwrap();
    assert!(machine.threads().all(|thread| thread.finished.is_some()));
    machine
}

/// The time of a core at other levels than L0.
fn reduced(machine: &Machine<Levels>, core: usize) -> Picos {
    machine.cores().nth(core).unwrap().level.iter().skip(1).copied().sum()
}

#[test]
fn narrow_cores_keep_their_clock() {
    let everywhere = run(None);
    assert!((0..3).all(|core| reduced(&everywhere, core) > MS));
    assert!(everywhere.threads().all(|thread| thread.traps == 0));
    for phases in [specialise::Settings::PAPER, specialise::Settings::learning(Nanos::from_us(10))]
    {
        let apart = run(Some(one_wide_core(phases)));
        assert_eq!([0, 1].map(|core| reduced(&apart, core)), [Picos::ZERO; 2]);
        assert!(reduced(&apart, 2) > MS);
        assert!(apart.threads().any(|thread| thread.traps > 0));
        // Each executes what it would without it.
        for (one, other) in everywhere.threads().zip(apart.threads()) {
            let instructions = |of: &ThreadTotals| of.instructions.iter().sum::<f64>();
            assert!((instructions(one) / instructions(other) - 1.0).abs() < 1e-6);
        }
    }
}

#[test]
fn a_thread_that_may_run_on_a_narrow_core_alone_is_allowed_there() {
    let specialise = Some(one_wide_core(specialise::Settings::PAPER));
    let mut machine = machine(Settings { cores: 2, specialise, ..Settings::default() });
    machine.spawn("a", steps(1, &[Step::Run(heavy(Extent::Time(MS)))]), Some(0));
    machine.run(Moment::MAX).unwrap();
    let thread = machine.threads().next().unwrap();
    assert!(thread.finished.is_some() && thread.traps == 0);
    assert!(reduced(&machine, 0) > Picos::ZERO);
}

/// It traps once, and goes home by itself 2 ms later, in the midst of scalar code.
#[test]
fn a_thread_without_calls_returns_after_two_milliseconds() {
    let specialise = Some(one_wide_core(specialise::Settings::PAPER));
    let mut machine = machine(Settings { cores: 2, specialise, ..Settings::default() });
    // Someone else wants the wide core.
    machine.spawn("wide", steps(1, &[Step::Run(heavy(Extent::Time(20 * MS)))]), Some(1));
    let both = [heavy(Extent::Instructions(1e5)), scalar(Extent::Instructions(60e6))];
    machine.spawn("both", steps(1, &both.map(Step::Run)), None);
    machine.run(Moment::MAX).unwrap();
    let both = machine.threads().nth(1).unwrap();
    assert_eq!(both.traps, 1);
    let (took, alone) = (both.finished.unwrap().since_start(), 60e6 / 4.3 / 1e6);
    assert!(took.as_f64() / MS.as_f64() < alone + 8.0, "{took:?}");
}

#[test]
fn traps_and_interrupts_take_time() {
    let free = one_wide_core(specialise::Settings::PAPER);
    let dear = Specialise { trap_ns: 20_000.0, interrupt_ns: 5_000.0, ..free };
    let delayed = |specialise| run(Some(specialise)).cores().map(|core| core.delayed).sum();
    let [free, dear]: [Picos; 2] = [free, dear].map(delayed);
    assert_eq!(free, Picos::ZERO);
    assert!(dear > MS, "{dear:?}");
}

/// Without system calls, a phase lasts for 2 ms, which is many rounds.
#[test]
fn a_system_call_ends_a_phase() {
    let traps_with = |step: Option<Step>| {
        let specialise = Some(one_wide_core(specialise::Settings::PAPER));
        let mut machine = machine(Settings { cores: 2, specialise, ..Settings::default() });
        let wide = Step::Run(heavy(Extent::Instructions(1e4)));
        let narrow = Step::Run(scalar(Extent::Instructions(4e5)));
        let of_one: Vec<Step> = [Some(wide), step, Some(narrow)].into_iter().flatten().collect();
        machine.spawn("one", steps(200, &of_one), None);
        machine.spawn("other", steps(200, &of_one), None);
        machine.run(Moment::MAX).unwrap();
        machine.threads().map(|thread| thread.traps).sum::<u64>()
    };
    let traps = [Some(Step::SystemCall), None].map(traps_with);
    assert!(traps[0] > 2 * traps[1], "{traps:?}");
}

/// Four threads of 200 ms, each on what would be one of four cores.
#[test]
fn as_many_cores_are_wide_as_the_load_asks_for() {
    let cores_with = |wide_cores, wide: usize| {
        let specialise =
            Specialise { wide_cores, ..one_wide_core(specialise::Settings::learning(Nanos::ZERO)) };
        let specialise = Some(specialise);
        let mut machine = machine(Settings { cores: 4, specialise, ..Settings::default() });
        for thread in 0..4 {
            let code: fn(Extent) -> Segment = if thread < wide { heavy } else { scalar };
            let step = Step::Run(code(Extent::Instructions(2e6)));
            machine.spawn("thread", steps(400, &[step]), None);
        }
        machine.run(Moment::MAX).unwrap();
        assert!(machine.threads().all(|thread| thread.finished.is_some()));
        (0..4).filter(|core| reduced(&machine, *core) > Picos::ZERO).count()
    };
    let by_load = WideCores::ByLoad(sets::Settings::DEFAULT);
    for wide in 0..=4 {
        assert_eq!(cores_with(by_load, wide), wide, "{wide}");
        assert_eq!(cores_with(WideCores::Fixed(1), wide), wide.min(1), "{wide}");
    }
}

/// Threads that spin execute, so that cores are wide for them as well: for three threads, of which
/// one has the lock.
#[test]
fn cores_are_wide_for_threads_that_spin() {
    let wide_cores = WideCores::ByLoad(sets::Settings::DEFAULT);
    let learning = specialise::Settings::learning(Nanos::ZERO);
    let specialise = Some(Specialise { wide_cores, ..one_wide_core(learning) });
    let mut machine = machine(Settings { cores: 4, specialise, ..Settings::default() });
    let code = |span: u64| Step::Run(heavy(Extent::Time(span * MS)));
    let owner = [Step::Lock(0), code(400), Step::Unlock(0)];
    machine.spawn("owner", Box::new(Script::once(owner)), None);
    for _ in 0..2 {
        let spins = Step::Spin(0, heavy(Extent::Time(MS)));
        let steps = [Step::Sleep(US), spins, code(1), Step::Unlock(0)];
        machine.spawn("spins", Box::new(Script::once(steps)), None);
    }
    machine.run(Moment::MAX).unwrap();
    let wide = (0..4).filter(|core| reduced(&machine, *core) > 100 * MS).count();
    assert_eq!(wide, 3);
}

/// On a processor that tells, code that asks for no level goes anywhere, and a phase ends when it
/// is over.
#[test]
fn a_processor_that_tells_traps_what_asks_for_a_level() {
    let told = specialise::Settings {
        timeout: Nanos::from_us(100),
        ..specialise::Settings::learning(Nanos::ZERO)
    };
    let specialise = Some(Specialise { traps: Traps::Levels, ..one_wide_core(told) });
    let mut machine = machine(Settings { cores: 2, specialise, ..Settings::default() });
    let light = Segment { class: InstructionClass::Light256, ..scalar(Extent::Time(MS)) };
    machine.spawn("light", steps(20, &[Step::Run(light)]), Some(1));
    let both = [heavy(Extent::Instructions(1e5)), scalar(Extent::Instructions(2e7))];
    machine.spawn("both", steps(3, &both.map(Step::Run)), None);
    machine.run(Moment::MAX).unwrap();
    let traps: Vec<u64> = machine.threads().map(|thread| thread.traps).collect();
    assert_eq!(traps[0], 0);
    assert!(traps[1] > 1, "{traps:?}");
    assert_eq!(reduced(&machine, 0), Picos::ZERO);
}

/// Which threads run at a time, and for how long threads of the numbers 0 and 1 ran beside others.
#[derive(Debug, Default)]
struct Beside {
    since: Moment,
    runs: [bool; 4],
    mixed: Picos,
    alike: Picos,
}

impl Beside {
    fn is_until(&mut self, now: Moment) {
        let (wide, others) = self.runs.split_at(2);
        match (wide, others) {
            ([true, true], _) | (_, [true, true]) => self.alike += now - self.since,
            (wide, others) if wide.contains(&true) && others.contains(&true) => {
                self.mixed += now - self.since;
            }
            _ => {}
        }
        self.since = now;
    }
}

impl Observer for Beside {
    fn runs(&mut self, now: Moment, _: usize, thread: usize, _: &Segment) {
        self.is_until(now);
        self.runs[thread] = true;
    }

    fn stops(&mut self, now: Moment, _: usize, thread: usize) {
        self.is_until(now);
        self.runs[thread] = false;
    }
}

/// A core of two CPUs and four threads, two of them wide, which sleep now and then.
#[test]
fn core_scheduling_lets_no_thread_run_beside_a_wide_one() {
    let mixed = |core_scheduling: bool| {
        let settings = Settings {
            threads_per_core: 2,
            scheduler: Scheduling::MuQss,
            core_scheduling,
            ..Settings::default()
        };
        let mut machine = Machine::new(&model(), settings, Beside::default()).unwrap();
        for thread in 0..4 {
            let code: fn(Extent) -> Segment = if thread < 2 { heavy } else { scalar };
            let work = code(Extent::Instructions(7e6 + 1e6 * f64::from(thread)));
            machine.spawn("thread", steps(50, &[Step::Run(work), Step::Sleep(MS)]), None);
        }
        machine.run(Moment::MAX).unwrap();
        assert!(machine.threads().all(|thread| thread.finished.is_some()));
        let seen = machine.into_observer();
        (seen.mixed, seen.alike)
    };
    let (together, _) = mixed(false);
    assert!(together > 20 * MS, "{together:?}");
    let (together, alike) = mixed(true);
    assert_eq!(together, Picos::ZERO);
    assert!(alike > 20 * MS, "{alike:?}");
}
