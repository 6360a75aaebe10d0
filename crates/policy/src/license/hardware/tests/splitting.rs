//! Code counts, holds and asks the same however it is split, and each request is one of its own.

use super::*;

/// The same code at a slightly lower rate: another demand, but the same rules.
fn slower(demand: Demand) -> Demand {
    Demand { per_cycle: 1.9, ..demand }
}

/// Levels over time if `code` is run `pieces` times, `ns` each.
fn levels(code: &[Demand], pieces: usize, ns: u64) -> Vec<(u64, u32)> {
    let mut bench = Bench::new(skylake(), Any(3));
    for piece in 0..pieces {
        bench.run(code[piece % code.len()], ns, 1.8);
    }
    bench.run(Demand::SCALAR, 2_000_000, 1.0);
    bench.levels()
}

#[test]
fn counted_instructions_go_on_through_pieces_of_the_same_code() {
    let whole = levels(&[DENSE_256], 1, 400_000);
    assert_eq!(whole.len(), 3, "{whole:?}");
    assert_eq!(levels(&[DENSE_256, slower(DENSE_256)], 400, 1000), whole);
    // Other code in between ends the count: no piece is long enough.
    assert_eq!(levels(&[DENSE_256, Demand::SCALAR], 400, 1000), [(0, 0)]);
}

#[test]
fn a_count_that_starts_again_has_a_number_of_its_own() {
    let mut bench = Bench::new(skylake(), Median);
    let mut id = |demand| bench.run(demand, 100, 1.0).core.counts().map(|count| count.id);
    let first = id(DENSE_256);
    assert_eq!((first.is_some(), id(slower(DENSE_256))), (true, first));
    assert_eq!(id(Demand::SCALAR), None);
    assert_ne!(id(DENSE_256), first);
}

/// After heavy code, which asks for L2, light code asks for L1 only: L2 is held since the heavy
/// code, whatever runs meanwhile.
#[test]
fn a_level_is_held_since_the_last_code_that_asks_for_it() {
    let after = |code: &[(Demand, u64)]| {
        let mut bench = Bench::new(skylake(), Median);
        bench.run(DENSE_512, 1_000_000, 1.8);
        for (demand, ns) in code.iter().cycle().take(2000) {
            bench.run(*demand, *ns, 1.8);
        }
        let from_l2 = bench.levels()[3..].to_vec();
        from_l2.into_iter().take_while(|(at, _)| *at < 10_000_000).collect::<Vec<_>>()
    };
    let released = [(1_000_000 + 674_000, 1)];
    assert_eq!(after(&[(LIGHT_512, 10_000)]), released);
    assert_eq!(after(&[(LIGHT_512, 10_000), (slower(LIGHT_512), 10_000)]), released);
    assert_eq!(after(&[(LIGHT_512, 1000), (Demand::SCALAR, 99_000)]), released);
    assert_eq!(after(&[(Demand::SCALAR, 99_000)]), [(1_000_000 + 674_000, 0)]);
}

/// L1 is still held for the light code when L2 is released, and goes a while after it.
#[test]
fn each_level_is_held_since_its_own_code() {
    let after = |light_ns| {
        let mut bench = Bench::new(skylake(), Median);
        bench.run(DENSE_512, 1_000_000, 1.8).run(LIGHT_512, light_ns, 1.8);
        bench.run(Demand::SCALAR, 3_000_000, 1.0);
        bench.levels()[3..].to_vec()
    };
    assert_eq!(after(300_000), [(1_674_000, 1), (1_300_000 + 674_000, 0)]);
    // A level that would be released before the standstill is over is not stopped at.
    assert_eq!(after(9_000), [(1_674_000, 0)]);
}

/// Light code of 512 bits gets L1 24.59 us after it starts, though 256-bit code asked before it,
/// which takes 51.52 us.
#[test]
fn a_faster_request_overtakes_a_slower_one() {
    let first_level = |switched: u64, to: Demand| {
        let mut bench = Bench::new(skylake(), Median);
        bench.run(DENSE_256, switched, 1.8).run(to, 200_000, 1.8);
        bench.levels()[1]
    };
    assert_eq!(first_level(8_000, LIGHT_512), (8_000 + 24_590, 1));
    assert_eq!(first_level(8_000, DENSE_512), (8_000 + 24_590, 1));
    assert_eq!(first_level(40_000, LIGHT_512), (51_520, 1), "not sooner");
}

#[test]
fn each_request_made_together_misses_the_slot_by_itself() {
    const ROUNDS: u32 = 4000;
    let (rules, mut chance) = (skylake(), Any(7));
    for cores in [2, 3, 8, 16] {
        let mut late = 0;
        for _ in 0..ROUNDS {
            let mut control = PowerControl::default();
            let begins = |control: &mut PowerControl, chance: &mut Any| {
                control.ask(Time::from_ns(1_000), &rules, chance).ns()
            };
            assert_eq!(begins(&mut control, &mut chance), 1_000, "the first starts the slot");
            for _ in 1..cores {
                let at = begins(&mut control, &mut chance);
                assert!(at == 1_000 || at == 26_000, "{at}");
                late += u32::from(at > 1_000);
            }
        }
        let share = f64::from(late) / f64::from(ROUNDS * (cores - 1));
        assert!((share - 0.172).abs() < 0.02, "{cores}: {share}");
    }
}

/// A core that goes on to the next level starts a slot where it is alone, and waits where others
/// do.
#[test]
fn slots_do_not_overlap() {
    let rules = skylake();
    let at = Time::from_ns;
    let mut alone = PowerControl::default();
    assert_eq!(alone.ask(at(1_000), &rules, &mut Median).ns(), 1_000);
    assert_eq!(alone.go_on(at(25_000), at(1_000), &rules, &mut Median).ns(), 25_000);
    assert_eq!(alone.go_on(at(25_000), at(1_000), &rules, &mut Median).ns(), 25_000);
    assert_eq!(alone.ask(at(26_500), &rules, &mut Median).ns(), 50_000);

    let mut beside = PowerControl::default();
    assert_eq!(beside.ask(at(1_000), &rules, &mut Median).ns(), 1_000);
    assert_eq!(beside.ask(at(2_000), &rules, &mut Median).ns(), 26_000);
    assert_eq!(beside.go_on(at(25_000), at(1_000), &rules, &mut Median).ns(), 26_000);
    // Granted after the next slot has started.
    assert_eq!(beside.go_on(at(26_500), at(1_000), &rules, &mut Median).ns(), 51_000);
}

/// The spread is that of the time from the first instruction, not of the way from L1.
#[test]
fn the_time_to_the_second_level_has_the_spread_of_the_model() {
    let (mut logs, mut chance) = (Vec::new(), 11);
    for _ in 0..2000 {
        let mut bench = Bench::new(skylake(), Any(chance));
        bench.run(DENSE_512, 200_000, 1.8);
        chance = bench.chance.0;
        let (at, level) = bench.levels()[2];
        assert_eq!(level, 2);
        logs.push((at as f64).ln());
    }
    let mean = logs.iter().sum::<f64>() / logs.len() as f64;
    let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / logs.len() as f64;
    assert!((mean.exp() / 51_430.0 - 1.0).abs() < 0.01, "{}", mean.exp());
    assert!((variance.sqrt() / 0.068 - 1.0).abs() < 0.05, "{}", variance.sqrt());
}

#[test]
fn what_is_used_in_the_place_of_missing_values_is_named() {
    let model = |name| Model::parse(std::path::Path::new(name), builtin(name).unwrap()).unwrap();
    let assumed = |name, code: &[Demand], cores| -> Vec<String> {
        let rules = Rules::new(&model(name)).unwrap();
        rules.assumed(code, cores).iter().map(ToString::to_string).collect()
    };
    let nothing: [&str; 0] = [];
    assert_eq!(assumed("i9-7940x", &[DENSE_512, DENSE_256], 4), nothing);
    assert_eq!(assumed("xeon-w-2104", &[Demand::SCALAR], 1), nothing);
    assert_eq!(
        assumed("xeon-w-2104", &[DENSE_512], 1),
        [
            "rule.instructions (heavy-512, L1): 1: the first instruction asks",
            "rule.grant_ns (heavy-512, L1): 20000 ns: the time throttled and the standstill",
            "rule.instructions (heavy-512, L2): 1: the first instruction asks",
            "rule.grant_ns (heavy-512, L2): 20000 ns: the time throttled and the standstill",
            "request.path: directly",
        ]
    );
    let beside = assumed("xeon-w-2104", &[LIGHT_512], 2);
    assert_eq!(beside.len(), 2, "{beside:?}");
    assert!(beside[1].starts_with("request.slot_ns: none"), "{beside:?}");
}
