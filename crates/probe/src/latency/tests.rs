//! Latencies from made-up exchanges, and the form of those of this machine.

#![expect(clippy::print_stdout, reason = "tests say why they are skipped")]

use dimmer_host::machine::Machine;

use super::*;

struct Patient;

impl Observer for Patient {
    fn begins(&mut self, _what: &str, _done: f64) {}

    fn wants_stop(&self) -> bool {
        false
    }
}

const MADE_UP_NS: f64 = 0.5;

fn exchange(sent: u64, seen: u64, back: u64) -> Exchange {
    Exchange { sent, returned: None, seen, back }
}

/// The counter of the other CPU is a thousand ticks behind; the line takes 40 there and 60 back, so
/// the middle is off by 10.
#[test]
fn the_difference_of_two_counters_is_within_its_bound() {
    let slow = exchange(5000, 4500, 5900);
    let fast = exchange(9000, 8040, 9100);
    assert_eq!(offset(&[slow, fast]), Some((-1010.0, 50.0)));
    assert_eq!(offset(&[]), None);
}

#[test]
fn a_woken_thread_runs_on_its_own_counter() {
    let (one, other) = (CpuId::new(0), CpuId::new(1));
    let kind = |way, asleep| Kind::Exchange { way, asleep, from: one, to: other };
    let spin = Turn {
        what: What::WaitSpin,
        also: Some(What::Line),
        kind: kind(Way::Spin, Duration::ZERO),
    };
    let sleep =
        Turn { what: What::Woken, also: Some(What::Wake), kind: kind(Way::Futex, SHORT_SLEEP) };
    let round = |exchanges| Taken { exchanges, ..Taken::default() };
    let taken = [
        vec![round(vec![exchange(100, 1150, 200)])],
        vec![round(vec![Exchange { returned: Some(1400), ..exchange(1000, 2600, 1700) }])],
    ];
    let topology = Topology::default();
    let series = Series {
        topology: &topology,
        turns: &[spin, sleep],
        taken: &taken,
        tick_ns: MADE_UP_NS,
        step_ns: MADE_UP_NS,
    };
    let found: Vec<_> =
        series.latencies().iter().map(|one| (one.what, one.ns.values().to_vec())).collect();
    assert_eq!(
        found,
        [
            (What::Line, vec![50.0]),
            (What::WaitSpin, vec![25.0]),
            (What::Wake, vec![200.0]),
            (What::Woken, vec![300.0]),
        ]
    );
    assert_eq!(series.bound(), Some(50.0));
}

#[test]
fn time_stamps_are_taken_off_acts_but_not_off_a_share_of_them() {
    let cpu = CpuId::new(0);
    let turn = |act, what| Turn { what, also: None, kind: Kind::Alone { act, cpu } };
    let turns = [
        turn(Act::Nothing, What::Stamps),
        turn(Act::Call, What::Call),
        turn(Act::Pause, What::Pause),
    ];
    let round = |ticks| vec![Taken { ticks, ..Taken::default() }];
    let taken = [round(vec![20.0]), round(vec![220.0]), round(vec![8.0])];
    let topology = Topology::default();
    let series = Series {
        topology: &topology,
        turns: &turns,
        taken: &taken,
        tick_ns: MADE_UP_NS,
        step_ns: MADE_UP_NS,
    };
    let found: Vec<_> = series.latencies().iter().map(|one| one.ns.values().to_vec()).collect();
    assert_eq!(found, [[10.0], [100.0], [4.0]]);
}

#[test]
fn halves_that_differ_by_more_than_their_spread_are_not_steady() {
    let ramp = |from: i32| -> Samples { (from..from + 20).map(f64::from).collect() };
    assert!(is_steady(&ramp(100), &ramp(104), 0.0));
    assert!(!is_steady(&ramp(100), &ramp(110), 0.0));
    let (low, high) = (Samples::new(vec![100.0; 20]), Samples::new(vec![110.0; 20]));
    assert!(!is_steady(&low, &high, 5.0) && is_steady(&low, &high, 10.0));
    assert!(!is_steady(&Samples::default(), &low, 1e9), "half of it is missing");
}

#[test]
fn measures_one_pair_of_each_relation_in_both_directions() {
    let cpus: Vec<CpuId> = (0..4).map(CpuId::new).collect();
    let topology = Topology::default();
    let pairs = pairs(&cpus, &topology, cpus[3]);
    assert_eq!(pairs.len(), 1, "{pairs:?}");
    let bare = Cpuid::parse("0x0 0x0: eax=0x0 ebx=0x0 ecx=0x0 edx=0x0\n").unwrap();
    let (turns, skipped) = turns(&Root::live(), &bare, cpus[3], &pairs);
    let both = |what| {
        let ends = turns.iter().filter(|turn| turn.what == what).map(|turn| turn.kind.ends());
        ends.collect::<Vec<_>>()
    };
    let expected = [(cpus[3], Some(cpus[0])), (cpus[0], Some(cpus[3]))];
    assert_eq!(both(What::WaitSpin), expected);
    assert_eq!(both(What::WokenLong), expected);
    assert_eq!(both(What::Call), [(cpus[3], None)]);
    let skipped: Vec<_> = skipped.iter().map(|one| one.what).collect();
    assert_eq!(
        skipped,
        [
            "wait-umwait-c0.1",
            "wait-umwait-c0.2",
            "wait-mwaitx-c0",
            "wait-mwaitx-c1",
            "tpause-c0.1-late",
            "tpause-c0.2-late"
        ]
    );
}

/// The machine is what it is, so only what no load changes is checked.
#[test]
fn this_machine_gives_every_latency_or_a_reason() {
    let (root, cpuid) = (Root::live(), Cpuid::instruction());
    let machine = Machine::read(&root, &cpuid);
    if !machine.tsc.invariant {
        println!("SKIPPED: the time-stamp counter is not invariant");
        return;
    }
    let home = *machine.allowed.last().unwrap();
    let plan = Plan { allowed: &machine.allowed, topology: &machine.topology, home, samples: 1 };
    let found = measure(&root, &cpuid, plan, &mut Patient).unwrap();
    assert!(!found.interrupted);
    for latency in &found.latencies {
        let may_lack = matches!(latency.what, What::TpauseC01 | What::TpauseC02);
        let may_lack = may_lack || latency.to.is_some();
        assert!(may_lack || latency.left_out == 0, "{latency:?}");
        assert!(!latency.ns.is_empty() || latency.left_out > 0, "{latency:?}");
    }
    // Every kind of row is there, in both directions of every pair, or there is a reason.
    let related = pairs(&machine.allowed, &machine.topology, home);
    let rows = |what| found.latencies.iter().filter(|one| one.what == what).count();
    let is_skipped = |what: What| found.skipped.iter().any(|one| one.what == what.name());
    let between = WAITS.map(|(_, what)| what).into_iter().chain(SLEEPS.map(|(_, _, what)| what));
    let others = [What::Line, What::Wake, What::WakeLong, What::Migrate, What::MigrateAwake];
    for what in between.chain(others) {
        let expected = if is_skipped(what) { 0 } else { 2 * related.len() };
        assert_eq!(rows(what), expected, "{what:?}");
    }
    for (_, what) in ACTS {
        assert_eq!(rows(what), usize::from(!is_skipped(what)), "{what:?}");
    }
    let are_pairs_skipped =
        found.skipped.iter().any(|one| one.what == "everything between two CPUs");
    assert_eq!(are_pairs_skipped, related.is_empty());
    assert!(!is_skipped(What::Call) && !is_skipped(What::Pause) && !is_skipped(What::Line));
}
