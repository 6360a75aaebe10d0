//! P-states that programs request: their cost, shared clocks, and what rated power allows.

use super::*;

fn shipped(name: &str) -> Model {
    Model::parse(std::path::Path::new(name), builtin(name).unwrap()).unwrap()
}

/// A machine of this model whose cores request this P-state at the start.
fn starting(name: &str, cores: u32, pstate: Option<&str>) -> Machine<()> {
    let pstate = pstate.map(str::to_owned);
    Machine::new(&shipped(name), Settings { cores, pstate, ..Settings::default() }, ()).unwrap()
}

/// The names of the FX-8120's P-states contain their indices.
const SLOW: usize = 6;

fn cycles(machine: &Machine<()>, thread: usize) -> f64 {
    machine.threads().nth(thread).unwrap().instructions.iter().sum()
}

#[track_caller]
fn close(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 1e-4, "{found}, expected {expected}");
}

/// Paper 002 Table 4, P6 to P0: the request takes 471 ns, and the clock is there after 56 747 ns;
/// it rises evenly (§4.4).
#[test]
fn a_request_keeps_the_core_and_then_the_clock_ramps() {
    let run = |us: u64| {
        let mut machine = starting("fx-8120", 8, Some("P6"));
        let code = Step::Run(scalar(Extent::Time(us * US)));
        machine.spawn("a", Box::new(Script::once([Step::Ask(0), code])), Some(0));
        machine.run(at(us * US)).unwrap();
        assert_eq!(machine.cores().next().unwrap().stolen, 471 * PS);
        cycles(&machine, 0)
    };
    let ramp = 56_747.0 - 471.0;
    close(run(100), ramp * (1.4 + 4.0) / 2.0 + (100_000.0 - 56_747.0) * 4.0);
    // Half-way, the clock has risen by half.
    let (early, late) = (run(28), run(29));
    assert!(((late - early) / 1000.0 - 2.7).abs() < 0.1, "{}", late - early);
}

/// On the way down the request takes nearly all of the time: P2 to P6, 7021 of 7445 ns.
#[test]
fn going_down_keeps_the_core_for_nearly_all_of_the_time() {
    let mut machine = starting("fx-8120", 8, Some("P2"));
    let code = Step::Run(scalar(Extent::Time(100 * US)));
    machine.spawn("a", Box::new(Script::once([Step::Ask(SLOW), code])), Some(0));
    machine.run(at(100 * US)).unwrap();
    close(cycles(&machine, 0), 424.0 * (3.1 + 1.4) / 2.0 + (100_000.0 - 7445.0) * 1.4);
}

/// Paper 002 §4.4: a critical section that is entered at P6 can be boosted to P0 and left at P2, or
/// run at P2. Boosting pays from about 109 us or 436 648 cycles of P0 on.
#[test]
fn boosting_pays_from_where_the_paper_says() {
    let boosted_ns = |cycles: f64| {
        let mut machine = starting("fx-8120", 8, Some("P6"));
        let code = Step::Run(scalar(Extent::Instructions(cycles)));
        // The request at the end occupies the core; the code after it is one cycle.
        let end = Step::Run(scalar(Extent::Instructions(1.0)));
        let steps = [Step::Ask(0), code, Step::Ask(2), end];
        machine.spawn("a", Box::new(Script::once(steps)), Some(0));
        machine.run(Moment::MAX).unwrap();
        machine.threads().next().unwrap().finished.unwrap().since_start().as_f64() / 1e3
    };
    let gain = |cycles: f64| cycles / 3.1 - boosted_ns(cycles);
    let (mut low, mut high) = (1e5, 1e6);
    while high - low > 10.0 {
        let middle = (low + high) / 2.0;
        (low, high) = if gain(middle) > 0.0 { (low, middle) } else { (middle, high) };
    }
    let break_even_us = low / 3.1 / 1e3;
    assert!((break_even_us / 109.16 - 1.0).abs() < 0.005, "{break_even_us} us");
}

/// Two cores that share a clock, both at 2 GHz: instructions of the second in its first 10 us while
/// the first takes these steps. A request for 3 GHz takes 5 us.
fn beside(steps: &[Step]) -> f64 {
    let text = r#"
schema = "dimmer/model/1"
name = "A"
vendor = "V"
microarchitecture = "M"
[clock]
domain = { value = "package", source = "s" }
[[level]]
name = "L0"
bins = [{ cores = 2, mhz = { value = 3000, source = "s" } }]
[[pstate]]
name = "P0"
mhz = { value = 3000, source = "s" }
[[pstate]]
name = "P1"
mhz = { value = 2000, source = "s" }
[[transition]]
from = "P1"
to = "P0"
request_ns = { value = 5_000, source = "s" }
[[transition]]
from = "P0"
to = "P1"
"#;
    let model = Model::parse(std::path::Path::new("made-up"), text).unwrap();
    let settings = Settings { cores: 2, pstate: Some("P1".to_owned()), ..Settings::default() };
    let mut machine = Machine::new(&model, settings, ()).unwrap();
    machine.spawn("a", Box::new(Script::once(steps.to_vec())), Some(0));
    let code = Step::Run(scalar(Extent::Time(10 * US)));
    machine.spawn("b", Box::new(Script::once([code])), Some(1));
    machine.run(at(10 * US)).unwrap();
    cycles(&machine, 1)
}

#[test]
fn a_clock_changes_when_the_request_ends_if_nothing_else_is_known() {
    let code = Step::Run(scalar(Extent::Time(10 * US)));
    close(beside(&[Step::Ask(0), code]), 5e3 * 2.0 + 5e3 * 3.0);
}

#[test]
fn a_core_that_requests_and_waits_does_not_decide_about_the_clock() {
    close(beside(&[Step::Ask(0), Step::Sleep(10 * US)]), 10e3 * 2.0);
}

/// The first core's request counts again when it executes again, and no sooner.
#[test]
fn a_request_for_what_is_requested_changes_nothing() {
    let code = |us: u64| Step::Run(scalar(Extent::Time(us * US)));
    let sleep = Step::Sleep(2 * US);
    close(beside(&[Step::Ask(0), code(6), sleep, Step::Ask(0), sleep]), 9e3 * 2.0 + 1e3 * 3.0);
}

/// Paper 002 §2.1: a module runs at the faster P-state of its two cores; other modules run at their
/// own.
#[test]
fn cores_of_a_module_share_the_fastest_request() {
    let mut machine = starting("fx-8120", 8, Some("P2"));
    let span = Extent::Time(MS);
    for (core, ask) in [(0, None), (1, Some(SLOW)), (2, Some(SLOW))] {
        let ask = ask.map(Step::Ask).into_iter();
        let steps = ask.chain([Step::Run(scalar(span))]);
        machine.spawn("a", Box::new(Script::once(steps)), Some(core));
    }
    machine.run(at(MS)).unwrap();
    let [first, sibling, other] = [0, 1, 2].map(|thread| cycles(&machine, thread) / 1e6);
    assert!((first / 3.1 - 1.0).abs() < 1e-6, "{first}");
    assert!((0.99..1.0).contains(&(sibling / 3.1)), "{sibling}");
    assert!((0.99..1.02).contains(&(other / 1.4)), "{other}");
}

/// When the faster core waits, its module runs at the P-state of the other.
#[test]
fn who_waits_does_not_count() {
    let mut machine = starting("fx-8120", 8, Some("P2"));
    let code = |span| Step::Run(scalar(Extent::Time(span)));
    machine.spawn("fast", Box::new(Script::once([code(MS)])), Some(0));
    machine.spawn("slow", Box::new(Script::once([Step::Ask(SLOW), code(2 * MS)])), Some(1));
    machine.run(at(2 * MS)).unwrap();
    let slow = cycles(&machine, 1) / 1e6;
    assert!((0.99..1.01).contains(&(slow / (3.1 + 1.4))), "{slow}");
}

/// Paper 002 §2.2: all cores that execute share one clock. Table 5: P8 to P34 takes 14 393 ns,
/// 13 073 ns of them for the request.
#[test]
fn a_package_shares_one_clock() {
    let mut machine = starting("i7-4770", 2, Some("P8"));
    let code = |span| Step::Run(scalar(Extent::Time(span)));
    machine.spawn("slow", Box::new(Script::once([code(2 * MS)])), Some(0));
    let steps = [Step::Sleep(MS), Step::Ask(1), code(MS / 2)];
    machine.spawn("fast", Box::new(Script::once(steps)), Some(1));
    machine.run(at(2 * MS)).unwrap();
    assert_eq!(machine.cores().nth(1).unwrap().stolen, 13_073 * PS);
    // The other one runs on at 0.8 GHz during the request. Then it runs at 3.4 GHz until the fast
    // one has finished, and slows down for 17 288 ns (P34 to P8).
    let expected = 0.8 * 1_000_000.0
        + 0.8 * 13_073.0
        + 2.1 * 1320.0
        + 3.4 * (500_000.0 - 14_393.0)
        + 2.1 * 17_288.0
        + 0.8 * (500_000.0 - 17_288.0);
    close(cycles(&machine, 0), expected);
}

/// A thread that spins keeps its core executing, so that its module runs at what it asks for. It
/// has the lock as soon as that is released.
#[test]
fn a_thread_that_spins_executes_until_it_has_the_lock() {
    let code = |us: u64| scalar(Extent::Time(us * US));
    let run = |waits: Step| {
        let mut machine = starting("fx-8120", 8, Some("P2"));
        let owner = [Step::Lock(0), Step::Run(code(100)), Step::Unlock(0)];
        machine.spawn("owner", Box::new(Script::once(owner)), Some(0));
        let slow = Segment { counter: 1, ..code(1) };
        let next = [waits, Step::Run(slow), Step::Unlock(0), Step::Run(code(10))];
        machine.spawn("next", Box::new(Script::once(next)), Some(2));
        assert!(!machine.run(Moment::MAX).unwrap());
        let next = machine.threads().nth(1).unwrap();
        assert_eq!(next.finished, Some(at(111 * US)));
        (machine.cores().nth(2).unwrap().idle, next.instructions[0])
    };
    let (idle, executed) = run(Step::Spin(0, code(0)));
    assert_eq!(idle, Picos::ZERO);
    close(executed, 110e3 * 3.1);
    let (idle, executed) = run(Step::Lock(0));
    assert_eq!(idle, 100 * US);
    close(executed, 10e3 * 3.1);
}

/// On one CPU, a thread that spins has turns as others do, and one that has got its lock while it
/// waits for its turn goes on then.
#[test]
fn a_thread_that_spins_takes_turns_with_the_owner() {
    let mut machine = starting("fx-8120", 1, Some("P2"));
    let code = |ms: u64| scalar(Extent::Instructions(ms as f64 * 3.1e6));
    let owner = [Step::Lock(0), Step::Run(code(20)), Step::Unlock(0), Step::Run(code(20))];
    machine.spawn("owner", Box::new(Script::once(owner)), Some(0));
    let next = [Step::Spin(0, code(0)), Step::Run(code(20)), Step::Unlock(0)];
    machine.spawn("next", Box::new(Script::once(next)), Some(0));
    machine.run(Moment::MAX).unwrap();
    let [owner, next] = [0, 1].map(|thread| cycles(&machine, thread));
    close(owner, 40e6 * 3.1);
    assert!(next > 25e6 * 3.1, "{next}");
    assert!(machine.threads().all(|thread| thread.finished.is_some()));
}

/// Paper 002 §4.3, `dlgt`: the neighbour makes the request, which keeps it and not the owner, whose
/// module then ramps from P6 to P0.
#[test]
fn a_neighbour_requests_for_its_module() {
    let mut machine = starting("fx-8120", 8, Some("P6"));
    let code = |us: u64| Step::Run(scalar(Extent::Time(us * US)));
    let asks = Step::AskBy { core: 1, by: 1, wish: 0 };
    machine.spawn("neighbour", Box::new(Script::once([code(100)])), Some(1));
    machine.spawn("owner", Box::new(Script::once([asks, code(100)])), Some(0));
    machine.run(at(100 * US)).unwrap();
    let stolen: Vec<Picos> = machine.cores().take(2).map(|core| core.stolen).collect();
    assert_eq!(stolen, [Picos::ZERO, 471 * PS]);
    let ramp = 56_747.0 - 471.0;
    let all = 471.0 * 1.4 + ramp * 2.7 + (100_000.0 - 56_747.0) * 4.0;
    close(cycles(&machine, 1), all);
    close(cycles(&machine, 0), all - 471.0 * 1.4);
}

/// A core of another module may make the request for this one: it alone is kept.
#[test]
fn a_core_requests_for_another_one() {
    let mut machine = starting("fx-8120", 8, Some("P6"));
    let code = |us: u64| Step::Run(scalar(Extent::Time(us * US)));
    let asks = Step::AskBy { core: 0, by: 4, wish: 0 };
    machine.spawn("owner", Box::new(Script::once([asks, code(100)])), Some(0));
    machine.spawn("other", Box::new(Script::once([code(100)])), Some(4));
    machine.run(at(100 * US)).unwrap();
    let stolen: Vec<Picos> = machine.cores().step_by(4).map(|core| core.stolen).collect();
    assert_eq!(stolen, [Picos::ZERO, 471 * PS]);
    close(cycles(&machine, 1), (100_000.0 - 471.0) * 1.4);
    assert!(cycles(&machine, 0) > 2.0 * cycles(&machine, 1));
}

/// Table 4: the kernel moves a thread within 6682 ns.
#[test]
fn a_thread_migrates_by_the_kernel() {
    let mut machine = starting("fx-8120", 8, Some("P2"));
    let code = || Step::Run(scalar(Extent::Time(10 * US)));
    let steps = [code(), Step::Go(6), code(), Step::Go(6), code(), Step::Go(0), code()];
    machine.spawn("a", Box::new(Script::once(steps)), Some(0));
    machine.run(Moment::MAX).unwrap();
    close(cycles(&machine, 0), (40_000.0 - 2.0 * 6682.0) * 3.1);
    let delayed: Vec<Picos> = machine.cores().step_by(6).map(|core| core.delayed).collect();
    assert_eq!(delayed, [6682 * PS; 2]);
    let mut machine = starting("fx-8120", 2, None);
    machine.spawn("a", Box::new(Script::once([Step::Go(2)])), Some(0));
    let error = machine.run(Moment::MAX).unwrap_err().to_string();
    assert_eq!(error, "thread a migrates to CPU 2, expected 0 to 1");
}

/// Paper 002 §2.1, §4.2: without requests, one core of eight that execute runs at P2; while the
/// others wait by MWAIT, at P1; once one of them is in C6, at P0.
#[test]
fn the_fastest_pstate_needs_a_deep_idle_core() {
    let clock = |waits: Step, from: u64| {
        let settings = Settings { cores: 8, idle_states: true, ..Settings::default() };
        let mut machine = Machine::new(&shipped("fx-8120"), settings, ()).unwrap();
        let code = |span: u64| Step::Run(scalar(Extent::Time(span * US)));
        let owner = [Step::Lock(0), code(200), Step::Unlock(0)];
        machine.spawn("owner", Box::new(Script::once(owner)), Some(0));
        for core in 1..8 {
            let steps = [waits, code(1), Step::Unlock(0)];
            machine.spawn("waits", Box::new(Script::once(steps)), Some(core));
        }
        machine.run(at(from * US)).unwrap();
        let before = cycles(&machine, 0);
        machine.run(at((from + 10) * US)).unwrap();
        ((cycles(&machine, 0) - before) / 1e3).round() / 10.0
    };
    let spins = Step::Spin(0, scalar(Extent::Time(US)));
    assert_eq!(clock(spins, 100), 3.1);
    assert_eq!(clock(Step::Mwait(0), 100), 3.4);
    assert_eq!(clock(Step::Lock(0), 5), 3.4);
    assert_eq!(clock(Step::Lock(0), 100), 4.0);
}

/// MWAIT leaves the shallowest idle state, whatever the wait; a thread that leaves its CPU may be
/// in a deep one.
#[test]
fn waiting_by_mwait_is_left_soon() {
    let delayed = |waits: Step| {
        let settings = Settings { cores: 8, idle_states: true, ..Settings::default() };
        let mut machine = Machine::new(&shipped("fx-8120"), settings, ()).unwrap();
        let code = |span: u64| Step::Run(scalar(Extent::Time(span * US)));
        let owner = [Step::Lock(0), code(200), Step::Unlock(0)];
        machine.spawn("owner", Box::new(Script::once(owner)), Some(0));
        let next = [waits, code(100), Step::Unlock(0)];
        machine.spawn("next", Box::new(Script::once(next)), Some(2));
        machine.run(Moment::MAX).unwrap();
        machine.cores().nth(2).unwrap().delayed
    };
    assert_eq!(delayed(Step::Mwait(0)), 454 * PS);
    assert_eq!(delayed(Step::Lock(0)), 22_021 * PS);
}

#[test]
fn what_the_model_does_not_tell_is_refused() {
    let mut machine = starting("fx-8120", 8, Some("P3"));
    machine.spawn("a", Box::new(Script::once([Step::Ask(5)])), None);
    assert_eq!(
        machine.run(at(MS)).unwrap_err().to_string(),
        "the model of AMD FX-8120 has no `[[transition]]` from P3 to P5, which a thread asks for"
    );
    let settings =
        |pstate: &str| Settings { pstate: Some(pstate.to_owned()), ..Settings::default() };
    let refused = |name, pstate| Machine::new(&shipped(name), settings(pstate), ()).unwrap_err();
    assert!(refused("i7-4770", "P9").to_string().ends_with("`P9`, expected P39, P34, P20, P8"));
    assert!(refused("i9-7940x", "P1").to_string().ends_with("expected none: it has no P-states"));
}

/// The clocks (GHz) of cores of the FX-8120 after a while. `asks` lists the cores that execute, and
/// the P-state that each requests before.
fn clocks(asks: &[(usize, Option<usize>)]) -> Vec<f64> {
    let mut machine = starting("fx-8120", 8, None);
    let rate = |machine: &Machine<()>| -> Vec<f64> {
        (0..asks.len()).map(|thread| cycles(machine, thread)).collect()
    };
    for (core, ask) in asks {
        // P0 to P6 was not measured, but P0 to P2 and P2 to P6 were.
        let by = ask.map_or(Vec::new(), |ask| {
            if ask == SLOW { vec![Step::Ask(2), Step::Ask(SLOW)] } else { vec![Step::Ask(ask)] }
        });
        let steps = by.into_iter().chain([Step::Run(scalar(Extent::Time(MS)))]);
        machine.spawn("a", Box::new(Script::once(steps)), Some(*core));
    }
    machine.run(at(MS / 2)).unwrap();
    let before = rate(&machine);
    machine.run(at(MS / 2 + 100 * US)).unwrap();
    let after = rate(&machine);
    after
        .iter()
        .zip(before)
        .map(|(after, before)| ((after - before) / 1e4).round() / 10.0)
        .collect()
}

/// Paper 002 §2.1: one core or module reaches P0 if the others wait or run at P6; all cores
/// together run at P2.
#[test]
fn rated_power_limits_the_boost() {
    assert_eq!(clocks(&[(0, None)]), [4.0]);
    assert_eq!(clocks(&[(0, None), (1, None)]), [4.0, 4.0]);
    let all: Vec<(usize, Option<usize>)> = (0..8).map(|core| (core, None)).collect();
    assert_eq!(clocks(&all), [3.1; 8]);
    let module: Vec<(usize, Option<usize>)> =
        (0..8).map(|core| (core, Some(if core > 1 { SLOW } else { 0 }))).collect();
    assert_eq!(clocks(&module), [4.0, 4.0, 1.4, 1.4, 1.4, 1.4, 1.4, 1.4]);
    // Without a request, P0 needs a core that is idle.
    let module: Vec<(usize, Option<usize>)> =
        (0..8).map(|core| (core, (core > 1).then_some(SLOW))).collect();
    assert_eq!(clocks(&module), [3.4, 3.4, 1.4, 1.4, 1.4, 1.4, 1.4, 1.4]);
    // A second module exceeds rated power.
    assert_eq!(clocks(&[(0, None), (2, None)]), [3.1, 3.1]);
}

/// Paper 002 §4.3: P0 is allowed only if three modules are at P6, so a module waits for that which
/// leaves P0, for 5800 and 7445 ns (table 4). The clock of the base does not wait.
#[test]
fn a_boost_waits_until_the_module_before_has_slowed_down() {
    let executed = |wish: usize| {
        let pstate = |core: usize| if core < 2 { "P0" } else { "P6" }.to_owned();
        let core_pstates = (0..8).map(pstate).collect();
        let settings = Settings { cores: 8, core_pstates, ..Settings::default() };
        let mut machine = Machine::new(&shipped("fx-8120"), settings, ()).unwrap();
        let code = |us: u64| Step::Run(scalar(Extent::Time(us * US)));
        let slows = [code(100), Step::Ask(2), Step::Ask(SLOW), code(200)];
        machine.spawn("before", Box::new(Script::once(slows)), Some(0));
        machine.spawn(
            "next",
            Box::new(Script::once([code(101), Step::Ask(wish), code(199)])),
            Some(2),
        );
        machine.run(at(300 * US)).unwrap();
        cycles(&machine, 1)
    };
    let (waits, ramp) = (5800.0 + 7445.0 - 1000.0, 56_747.0);
    let slow = (101_000.0 - 471.0 + waits) * 1.4;
    let near = |found: f64, expected: f64| {
        assert!((found / expected - 1.0).abs() < 1e-3, "{found}, expected {expected}");
    };
    near(executed(0), slow + ramp * 2.7 + (199_000.0 - waits - ramp) * 4.0);
    let ramp = 45_839.0 - 471.0;
    near(executed(2), 101_000.0 * 1.4 + ramp * (1.4 + 3.1) / 2.0 + (199_000.0 - 45_839.0) * 3.1);
}

/// What a governor in software waits for: the model's times, or assumed ones if the model has none.
#[test]
fn governors_pay_what_the_model_says() {
    let text = r#"
schema = "dimmer/model/1"
name = "Made up"
vendor = "V"
microarchitecture = "M"
[[level]]
name = "L0"
bins = [{ cores = 1, mhz = { value = 3000, source = "s" } }]
[[level]]
name = "L1"
bins = [{ cores = 1, mhz = { value = 2000, source = "s" } }]
[[rule]]
class = "heavy-512"
level = { value = "L1", source = "s" }
[request]
throttled_ns = { value = 0, source = "s" }
stall_ns = { value = 0, source = "s" }
[release]
hold_ns = { value = 0, source = "s" }
[[pstate]]
name = "P0"
mhz = { value = 3000, source = "s" }
[[pstate]]
name = "P1"
mhz = { value = 2000, source = "s" }
"#;
    let transitions = r#"
[[transition]]
from = "P0"
to = "P1"
request_ns = { value = 5_000, source = "s" }
total_ns = { value = 5_000, source = "s" }
[[transition]]
from = "P1"
to = "P0"
request_ns = { value = 500, source = "s" }
total_ns = { value = 20_500, source = "s" }
"#;
    let run = |text: &str| {
        let model = Model::parse(std::path::Path::new("made-up"), text).unwrap();
        let settings = Settings { governor: Governor::User, ..Settings::default() };
        let mut machine = Machine::new(&model, settings, ()).unwrap();
        let l0 = LicenseLevel::new(0);
        let steps = vec![
            (Step::Run(scalar(Extent::Time(100 * US))), l0),
            (Step::Run(heavy(Extent::Time(100 * US))), LicenseLevel::new(1)),
            (Step::Run(scalar(Extent::Time(100 * US))), l0),
        ];
        let program = Script::new(steps, 1).under(Governor::User);
        machine.spawn("a", Box::new(program), None);
        machine.run(at(300 * US)).unwrap();
        (machine.cores().next().unwrap().stolen, cycles(&machine, 0))
    };
    // Calls at the start, before the wide code and after it: each is assumed to take 1 us.
    assert_eq!(run(text).0, 3 * US);
    let (stolen, with) = run(&(text.to_owned() + transitions));
    assert_eq!(stolen, US + 5 * US + US / 2);
    // Two instructions of wide code per cycle; after it, 20 us of ramp from 2 to 3 GHz.
    close(with, 3.0 * 99e3 + 2.0 * 2.0 * 95e3 + 2.5 * 20e3 + 3.0 * 79.5e3);
}
