//! Tests of the governor with made-up code on the i9-7940X of paper 000, and on a made-up processor
//! of the newer kind.

use dimmer_processor::model::{Model, Upper, builtin};

use super::rules::{LongRecurrence, Recurrence};
use super::*;
use crate::license::log_normal;

mod splitting;

/// Always draws the median, never an unlikely value.
struct Median;

impl Chance for Median {
    fn uniform(&mut self) -> f64 {
        // Box and Muller: a quarter turn is no deviation; as a share it is more than any used here.
        0.75
    }
}

/// A small generator (Marsaglia, "Xorshift RNGs", 2003).
struct Any(u64);

impl Chance for Any {
    fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

fn i9_7940x() -> Model {
    Model::parse(std::path::Path::new("i9-7940x"), builtin("i9-7940x").unwrap()).unwrap()
}

fn skylake() -> Rules {
    Rules::new(&i9_7940x()).unwrap()
}

fn newer() -> Rules {
    let mut rules = skylake();
    for ask in rules.asks.iter_mut().flatten() {
        ask.grant_ns = Some((1600.0, 0.0));
    }
    rules.is_in_turn = false;
    rules.stall = Nanos::ZERO;
    rules.release_stall = Nanos::from_ns(1400);
    rules.hold_ns = 2500.0;
    rules.extended = None;
    rules.slot = Nanos::ZERO;
    rules.recurrence = Some(Recurrence {
        below: Nanos::from_us(240),
        after: Nanos::from_ms(5),
        is_measured: false,
    });
    rules
}

const DENSE_512: Demand =
    Demand { class: InstructionClass::Heavy512, upper: Upper::Any, per_cycle: 2.0 };
const LIGHT_512: Demand = Demand { class: InstructionClass::Light512, ..DENSE_512 };
const CHAINED_512: Demand = Demand { per_cycle: 0.25, ..DENSE_512 };
const DENSE_256: Demand = Demand { class: InstructionClass::Heavy256, ..DENSE_512 };
const CHAINED_256: Demand = Demand { per_cycle: 0.25, ..DENSE_256 };

/// A core that runs code by a schedule.
struct Bench<C> {
    rules: Rules,
    control: PowerControl,
    chance: C,
    core: Hardware,
    now: Time,
    /// The count that goes on: its number, until when its instructions are counted, and how many
    /// of them were executed.
    counting: (u64, Time, f64),
    /// What changed, as (time, order).
    seen: Vec<(Time, Order)>,
}

impl<C: Chance> Bench<C> {
    fn new(rules: Rules, chance: C) -> Self {
        let core = Hardware::default();
        Self {
            rules,
            control: PowerControl::default(),
            chance,
            core,
            now: Time::START,
            counting: (0, Time::START, 0.0),
            seen: Vec::new(),
        }
    }

    fn note(&mut self) {
        let order = self.core.order();
        if self.seen.last().is_none_or(|(_, last)| *last != order) {
            self.seen.push((self.now, order));
        }
    }

    /// Runs this code for `ns`, with `per_ns` instructions each nanosecond.
    fn run(&mut self, demand: Demand, ns: u64, per_ns: f64) -> &mut Self {
        let end = self.now + Nanos::from_ns(ns);
        let begin = self.now;
        let Self { rules, control, chance, core, .. } = self;
        core.runs(begin, demand, rules, control, chance);
        self.note();
        loop {
            let count = self.core.counts().map(|count| self.reaches(count, begin, per_ns));
            let wake = self.core.next_wakeup();
            let next = count.into_iter().chain(wake).min().map(|next| next.max(self.now));
            let Some(next) = next.filter(|next| *next < end) else { break };
            self.now = next;
            let Self { rules, control, chance, core, .. } = self;
            if wake.is_some_and(|wake| wake <= next) {
                core.wake(next, rules, control, chance);
            } else {
                core.counted(next, rules, control, chance);
            }
            self.note();
        }
        self.now = end;
        if self.core.counts().is_some() {
            let from = begin.max(self.counting.1);
            self.counting.2 += (end - from).as_f64() * per_ns;
            self.counting.1 = end;
        }
        self
    }

    /// When the counted instructions of the running code, which started at `begin`, are executed.
    fn reaches(&mut self, count: Count, begin: Time, per_ns: f64) -> Time {
        if self.counting.0 != count.id {
            self.counting = (count.id, self.now, 0.0);
        }
        let (_, since, done) = self.counting;
        let left = (count.instructions as f64 - done).max(0.0);
        since.max(begin) + Nanos::rounded(left / per_ns)
    }

    /// Each change of level, as (time in ns, level).
    fn levels(&self) -> Vec<(u64, u32)> {
        let mut levels: Vec<(u64, u32)> = Vec::new();
        for (time, order) in &self.seen {
            let level = order.level.index();
            if levels.last().is_none_or(|(_, last)| *last != level) {
                levels.push((time.ns(), level));
            }
        }
        levels
    }
}

/// Paper 000 §3.3.3: throttled, L1, L2; §3.3.4: two thirds of a millisecond to L0.
#[test]
fn heavy_512_goes_by_way_of_l1_and_comes_back_in_one_step() {
    let mut bench = Bench::new(skylake(), Median);
    bench.run(Demand::SCALAR, 1_000_000, 1.0).run(DENSE_512, 200_000, 1.8);
    bench.run(Demand::SCALAR, 2_000_000, 1.0);
    let up = 1_000_000;
    let down = up + 200_000 + 674_000;
    assert_eq!(bench.levels(), [(0, 0), (up + 24_590, 1), (up + 51_430, 2), (down, 0)]);
    let throttled: Vec<u64> = bench
        .seen
        .iter()
        .filter(|(_, order)| order.is_throttled)
        .map(|(time, _)| time.ns() - up)
        .collect();
    assert_eq!(throttled, [0], "from the first instruction to the standstill before L1");
    let changes = bench.seen.iter().filter(|(_, order)| order.changes_to.is_some());
    let still = changes.map(|(time, _)| time.ns());
    let begins = [up + 14_590, up + 41_430, down - 10_000];
    assert_eq!(still.collect::<Vec<_>>(), begins);
}

#[test]
fn code_that_waits_for_itself_asks_for_less() {
    let mut bench = Bench::new(skylake(), Median);
    bench.run(CHAINED_512, 500_000, 1.0);
    assert_eq!(bench.levels(), [(0, 0), (24_590, 1)]);
    let mut bench = Bench::new(skylake(), Median);
    bench.run(CHAINED_256, 500_000, 1.0);
    assert_eq!(bench.seen.len(), 1);
}

#[test]
fn heavy_256_asks_after_thousands_of_instructions() {
    let mut bench = Bench::new(skylake(), Median);
    bench.run(DENSE_256, 5_000, 1.8).run(Demand::SCALAR, 100_000, 1.0);
    assert_eq!(bench.levels(), [(0, 0)], "9000 are not enough");
    assert!(bench.seen.iter().any(|(_, order)| order.is_throttled));
    bench.run(DENSE_256, 7_000, 1.8).run(Demand::SCALAR, 100_000, 1.0);
    assert_eq!(
        bench.levels()[1..],
        [(105_000 + 51_520, 1)],
        "12 600 are, though they end before the level comes"
    );
}

#[test]
fn dirty_upper_halves_make_256_bit_code_ask_for_l2() {
    let mut bench = Bench::new(skylake(), Median);
    bench.run(Demand { upper: Upper::Dirty, ..DENSE_256 }, 500_000, 1.8);
    assert_eq!(bench.levels().last().unwrap().1, 2);
}

#[test]
fn code_within_the_hold_keeps_the_level_and_begins_it_anew() {
    let mut bench = Bench::new(skylake(), Median);
    bench.run(DENSE_512, 100_000, 1.8).run(Demand::SCALAR, 600_000, 1.0);
    bench.run(DENSE_512, 10, 1.8).run(Demand::SCALAR, 2_000_000, 1.0);
    assert_eq!(bench.levels()[3..], [(700_010 + 674_000, 0)]);
}

/// Paper 000 figures 3.13 and 3.14: after heavy 512-bit code at L1, not from L2, nor after 256-bit
/// code.
#[test]
fn releases_are_extended_after_heavy_512_bit_code_at_l1_alone() {
    let longer = |demand| {
        let mut bench = Bench::new(skylake(), Any(7));
        let mut holds = Vec::new();
        for _ in 0..1000 {
            let begin = bench.now.ns();
            bench.run(demand, 200_000, 1.8).run(Demand::SCALAR, 3_000_000, 1.0);
            let back = bench.levels().last().unwrap().0;
            holds.push(back - begin - 200_000);
            bench.seen.clear();
            bench.note();
        }
        assert!(holds.iter().all(|hold| (674_000..=1_333_000).contains(hold)));
        holds.iter().filter(|hold| **hold > 700_000).count()
    };
    let after_l1 = longer(CHAINED_512);
    assert!((250..350).contains(&after_l1), "{after_l1}");
    assert_eq!((longer(DENSE_512), longer(DENSE_256), longer(LIGHT_512)), (0, 0, 0));
}

/// As was seen on the Xeon 6: episodes, until bursts have recurred for long enough; then the level
/// stays.
#[test]
fn bursts_that_recur_keep_the_level() {
    let mut bench = Bench::new(newer(), Median);
    for _ in 0..100 {
        bench.run(DENSE_512, 5_000, 1.8).run(Demand::SCALAR, 95_000, 1.0);
    }
    let levels = bench.levels();
    let last = levels.last().unwrap();
    assert_eq!(last.1, 2, "{levels:?}");
    assert!((5_000_000..5_200_000).contains(&last.0), "{levels:?}");
    // Isolated again: 240 us after the last burst, then as at the start.
    bench.seen.clear();
    bench.run(Demand::SCALAR, 1_000_000, 1.0).run(DENSE_512, 5_000, 1.8);
    bench.run(Demand::SCALAR, 1_000_000, 1.0);
    let back: Vec<u64> =
        bench.levels().iter().filter(|(_, level)| *level == 0).map(|(time, _)| *time).collect();
    assert_eq!(back, [9_905_000 + 240_000 + 1400, 11_005_000 + 2500 + 1400]);
}

/// The clock between bursts is another one only where it was measured.
#[test]
fn a_governor_says_when_it_keeps_a_level_between_bursts() {
    let between = |is_measured: bool| {
        let mut rules = newer();
        rules.recurrence.as_mut().unwrap().is_measured = is_measured;
        let mut bench = Bench::new(rules, Median);
        let mut between = Vec::new();
        for _ in 0..60 {
            bench.run(DENSE_512, 5_000, 1.8);
            let during = bench.core.order().is_between_bursts;
            bench.run(Demand::SCALAR, 95_000, 1.0);
            between.push((during, bench.core.order().is_between_bursts));
        }
        between
    };
    assert!(between(false).iter().all(|found| *found == (false, false)));
    let measured = between(true);
    assert_eq!(measured[0], (false, false), "they do not recur yet");
    assert_eq!(measured[59], (false, true));
}

/// As on an Emerald Rapids: code between long bursts runs slower, the more so the closer they are.
#[test]
fn long_bursts_that_recur_slow_the_code_between_them() {
    let mut rules = newer();
    let long = |level, gap, slowdown| LongRecurrence {
        level: LicenseLevel::new(level),
        burst: Nanos::from_us(5),
        gap: Nanos::from_us(gap),
        slowdown,
    };
    rules.long_recurrences = vec![long(1, 1400, 0.03), long(1, 80, 0.07), long(3, 5000, 0.5)];
    let slowed = |gap_ns: u64, burst_ns: u64| {
        let mut bench = Bench::new(rules.clone(), Median);
        for _ in 0..3 {
            bench.run(DENSE_512, burst_ns, 1.8);
            assert_eq!(bench.core.order().between_long, None, "none in a burst");
            bench.run(Demand::SCALAR, gap_ns, 1.0);
        }
        let begins = 3 * (burst_ns + gap_ns) - gap_ns;
        let last = bench.seen.iter().filter(|(time, _)| time.ns() >= begins);
        let mut found: Vec<Option<usize>> = last.map(|(_, order)| order.between_long).collect();
        found.dedup();
        found
    };
    assert_eq!(slowed(79_999, 5_000), [Some(1)]);
    assert_eq!(slowed(80_000, 5_000), [Some(0)]);
    assert_eq!(slowed(1_399_999, 5_000), [Some(0)]);
    assert_eq!(slowed(1_400_000, 5_000), [None]);
    assert_eq!(slowed(50_000, 4_999), [None], "too short");
    // After the last one the closest distance is over first.
    let mut bench = Bench::new(rules.clone(), Median);
    for _ in 0..3 {
        bench.run(DENSE_512, 5_000, 1.8).run(Demand::SCALAR, 10_000, 1.0);
    }
    // A short burst in between is not slowed, and changes nothing.
    bench.run(DENSE_512, 1_000, 1.8).run(Demand::SCALAR, 3_000_000, 1.0);
    let ended = 3 * 15_000 - 10_000;
    let mut changes: Vec<(u64, Option<usize>)> = Vec::new();
    for (time, order) in bench.seen.iter().filter(|(time, _)| time.ns() >= ended) {
        if changes.last().is_none_or(|(_, last)| *last != order.between_long) {
            changes.push((time.ns() - ended, order.between_long));
        }
    }
    let expected =
        [(0, Some(1)), (10_000, None), (11_000, Some(1)), (80_000, Some(0)), (1_400_000, None)];
    assert_eq!(changes, expected);
}

/// If bursts recur at once, the second keeps the level, and isolated ones never do.
#[test]
fn isolated_bursts_give_the_level_back_after_its_hold() {
    let mut rules = newer();
    rules.recurrence =
        Some(Recurrence { below: Nanos::from_us(240), after: Nanos::ZERO, is_measured: false });
    let given_back = |scalar_ns: u64| {
        let mut bench = Bench::new(rules.clone(), Median);
        for _ in 0..4 {
            bench.run(DENSE_512, 5_000, 1.8).run(Demand::SCALAR, scalar_ns, 1.0);
        }
        bench.levels().iter().filter(|(time, level)| *level == 0 && *time > 0).count()
    };
    assert_eq!(given_back(300_000), 4);
    assert_eq!(given_back(100_000), 1);
}

#[test]
fn wishes_made_while_others_are_served_wait_for_the_next_slot() {
    let (rules, mut control) = (skylake(), PowerControl::default());
    let mut served = |now| control.ask(Time::from_ns(now), &rules, &mut Median).ns();
    assert_eq!((served(1_000), served(1_000)), (1_000, 1_000), "together with the first");
    assert_eq!((served(2_000), served(3_000)), (26_000, 26_000));
    assert_eq!((served(26_500), served(200_000)), (51_000, 200_000));
}

/// Paper 000 §3.3.3: three cores that ask together change together, and later than one core alone.
#[test]
fn a_slot_is_as_slow_as_its_slowest_wish() {
    let (mut rules, mut chance) = (skylake(), Any(7));
    rules.missed_share = 0.0;
    let mut granted = |cores: usize| {
        let mut dues: Vec<u64> = (0..1000)
            .map(|_| {
                let (mut control, mut cores) =
                    (PowerControl::default(), vec![Hardware::default(); cores]);
                for core in &mut cores {
                    core.runs(Time::START, DENSE_512, &rules, &mut control, &mut chance);
                }
                for core in &mut cores {
                    core.wake(Time::from_ns(1), &rules, &mut control, &mut chance);
                }
                assert!(cores.iter().all(|core| *core == cores[0]), "{cores:?}");
                assert!(control.is_settled(), "{control:?}");
                (cores[0].next_wakeup().unwrap() + rules.stall).ns()
            })
            .collect();
        dues.sort_unstable();
        dues[500]
    };
    // Half of the maxima of n draws are below the deviation below which 0.5^(1/n) of single draws
    // are.
    for (cores, deviation) in [(1, 0.0), (2, 0.545), (3, 0.819)] {
        let expected = log_normal(24_590.0, 0.064, deviation);
        let median = granted(cores) as f64;
        assert!((median / expected - 1.0).abs() < 0.01, "{cores}: {median} of {expected}");
    }
}

/// Paper 000 §3.3.4, figure 3.15.
#[test]
fn releases_are_extended_less_often_beside_a_core_at_a_level() {
    let rules = skylake();
    let extended = |raised: usize| {
        let mut chance = Any(7);
        let core = Hardware { level: LicenseLevel::new(1), ..Hardware::default() };
        let mut control = PowerControl::default();
        control.raised = raised;
        (0..1000)
            .filter(|_| {
                let after = InstructionClass::Heavy512;
                core.hold(after, &rules, &control, &mut chance).ns() > 700_000
            })
            .count()
    };
    let (alone, beside) = (extended(1), extended(2));
    assert!((250..350).contains(&alone) && (30..80).contains(&beside), "{alone}, {beside}");
}

#[test]
fn models_that_say_too_little_are_told_what_is_missing() {
    let mut model = i9_7940x();
    model.release.hold_ns = None;
    let error = Rules::new(&model).unwrap_err().to_string();
    assert!(error.contains("`release.hold_ns`"), "{error}");
    model.rules.clear();
    assert_eq!(Rules::new(&model).unwrap().level_of(&DENSE_512), L0);
}

/// For any code: the core has the level of the code, or the code is throttled or the core stands
/// still on the way there; the governor is called again while there is anything left to do; and the
/// core is back at L0 within the bound.
#[test]
fn whatever_runs_no_wake_up_is_lost() {
    for (rules, hold) in [(skylake(), 1_333_000), (newer(), 240_000)] {
        let mut bench = Bench::new(rules, Any(42));
        for round in 0..3000 {
            let demand = [Demand::SCALAR, DENSE_512, CHAINED_512, DENSE_256, CHAINED_256]
                [usize::try_from(bench.chance.0 % 5).unwrap()];
            let ns = 1 + bench.chance.0 % [100, 30_000, 2_000_000][round % 3];
            let per_ns = 0.2 + bench.chance.uniform();
            bench.run(demand, ns, per_ns);
            let (order, asked) = (bench.core.order(), bench.rules.level_of(&demand));
            let has_more_to_do =
                bench.core.next_wakeup().is_some() || bench.core.counts().is_some();
            assert!(order.level == asked || has_more_to_do, "{:?}", bench.core);
            let is_on_its_way =
                order.is_throttled || order.changes_to.is_some() || order.level > L0;
            assert!(order.level >= asked || is_on_its_way, "{:?}", bench.core);
        }
        bench.run(Demand::SCALAR, hold + 200_000, 1.0);
        assert_eq!((bench.core.order().level, bench.core.next_wakeup()), (L0, None));
        assert_eq!((bench.control.raised, bench.control.is_settled()), (0, true));
    }
}
