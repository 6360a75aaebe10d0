//! What the probe's findings become as a processor model.

use dimmer_probe::kernel;
use dimmer_probe::mode::Mode;
use dimmer_probe::model;
use dimmer_probe::outcome::{Detail, Findings, Outcome};
use dimmer_probe::session::{self, Plan};
use dimmer_probe::stats::Estimate;
use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::{Identity, Model, Shape, Sourced, Upper};

use crate::fake::{BetweenLong, Fake, Governor, XEON_6};
use crate::finds::{HEAVY, NARROW, Silent, assert_is_the_memory, close, plan, probe};

fn model_of(findings: &Findings) -> Model {
    let text = |text: &str| text.to_owned();
    let (name, vendor) = (text("Made up"), text("Nobody"));
    let identity = Identity { name, vendor, microarchitecture: text("None"), note: None };
    model::of(findings, identity, Shape::default())
}

#[test]
fn findings_become_a_model_that_reads_back() {
    let modes = [Mode::Episode, Mode::Downclock, Mode::Recurrence];
    let findings = probe(&mut Fake::new(Some(XEON_6)), &modes, &[HEAVY, NARROW]);
    let model = model_of(&findings);
    let read = Model::parse(std::path::Path::new("m.toml"), &model.to_toml()).unwrap();
    assert_eq!(read, model);
    assert_eq!(model.level_of(InstructionClass::Heavy512, Upper::Any).index(), 1);
    assert_eq!(model.level_of(InstructionClass::Heavy256, Upper::Any).index(), 0);
    let value = |value: &Option<Sourced<u64>>| value.as_ref().unwrap().value as f64;
    close("hold", value(&model.release.hold_ns), XEON_6.hold, 0.1);
    close("stall", value(&model.release.stall_ns), XEON_6.release_stall, 0.1);
    assert_is_the_memory(value(&model.release.recurrence_ns));
    let after = value(&model.release.recurrence_after_ns);
    close("time to learn", after, XEON_6.learns, 0.1);
    let slower = model.release.recurrence_slowdown.as_ref().unwrap().value;
    close("slow-down while kept", slower, 1.0 / XEON_6.ratio - 1.0, 0.1);
    assert!(value(&model.release.episode_ns) > 0.9 * XEON_6.release_stall, "{model:?}");
    close("ratio", model.levels[1].clock_ratio.as_ref().unwrap().value, XEON_6.ratio, 0.01);
    assert_eq!(model.long_recurrences, []);
}

/// As on an Emerald Rapids: bursts of thousands of instructions slow the code between them where
/// short ones do not.
#[test]
fn how_long_bursts_slow_the_code_between_them_becomes_part_of_the_model() {
    let long = BetweenLong { instructions: 2000, gap: 1.2e6, ratio: 0.92 };
    let governor = Governor { between_long: Some(long), ..XEON_6 };
    let modes = [Mode::Episode, Mode::Downclock, Mode::Recurrence];
    let mut plan = plan(&modes, &[HEAVY]);
    let bursts = [4000, 8000];
    plan.items.extend(Plan::cross(&[Mode::Recurrence], &[kernel::find(HEAVY).unwrap()], &bursts));
    let mut observer = Silent { stop_after: usize::MAX, begun: 0 };
    let findings = session::run(&mut Fake::new(Some(governor)), &plan, &mut observer).unwrap();
    let model = model_of(&findings);
    let read = Model::parse(std::path::Path::new("m.toml"), &model.to_toml()).unwrap();
    assert_eq!(read, model);
    // The longest ones cause no more than those before.
    let [found] = &model.long_recurrences[..] else { panic!("{:?}", model.long_recurrences) };
    close("gap", found.gap_ns.value as f64, long.gap, 0.35);
    close("slow-down", found.slowdown.value, 1.0 / long.ratio - 1.0, 0.1);
    assert_eq!(found.level.value, model.level_of(InstructionClass::Heavy512, Upper::Any));
    // From those that do nothing to those that do.
    let ns = |instructions: f64| instructions / 2.0 / 4.0;
    let (shorter, longer) = found.burst_ns.ci95.unwrap();
    assert!((shorter as f64) < ns(2000.0) && ns(2000.0) < longer as f64, "{found:?}");
    assert_eq!(found.burst_ns.value, longer);
}

/// As on an Emerald Rapids: isolated bursts lower the clock now and then, for some microseconds,
/// and recurring ones hardly slow the code between them.
#[test]
fn how_recurring_bursts_slow_code_while_the_level_is_held_is_measured_too() {
    let modes = [Mode::Episode, Mode::Downclock, Mode::Recurrence];
    let mut findings = probe(&mut Fake::new(Some(XEON_6)), &modes, &[HEAVY]);
    let hold_us = model_of(&findings).release.hold_ns.unwrap().value as f64 / 1000.0;
    let recurrence = findings.outcomes.iter_mut().find(|one| one.mode == Mode::Recurrence).unwrap();
    recurrence.effect = false;
    let Detail::Recurrence(found) = &mut recurrence.detail else { unreachable!() };
    found.regime_change_us = None;
    found.gaps[0].gap_us = hold_us / 2.0;
    found.gaps[0].slowdown_pct = Estimate { median: 0.8, ci95: (0.6, 1.0) };
    found.gaps.truncate(1);
    // Of longer bursts, the change is not that of these.
    let mut longer = recurrence.clone();
    let Detail::Recurrence(found) = &mut longer.detail else { unreachable!() };
    (longer.effect, found.regime_change_us) =
        (true, Some(Estimate { median: 200.0, ci95: (150.0, 250.0) }));
    found.burst_instructions *= 10;
    findings.outcomes.push(longer);
    let model = model_of(&findings);
    assert_eq!(model.release.recurrence_ns, None);
    assert_eq!(model.release.recurrence_slowdown.unwrap().value, 0.008);
}

#[test]
fn what_was_not_measured_of_the_heaviest_class_comes_from_the_next() {
    let modes = [Mode::Episode, Mode::Downclock, Mode::Recurrence];
    let mut findings = probe(&mut Fake::new(Some(XEON_6)), &modes, &[HEAVY]);
    // As a quick probe does, of tiles: no recurrence, and no throttling that was seen.
    let is_burst = |outcome: &&Outcome| outcome.mode == Mode::Episode;
    let mut tile = findings.outcomes.iter().find(is_burst).unwrap().clone();
    tile.class = InstructionClass::Tile;
    if let Detail::Episode(found) = &mut tile.detail {
        found.throttling = None;
    }
    let without = model_of(&findings);
    findings.outcomes.push(tile);
    let model = model_of(&findings);
    assert!(model.request.throttled_ns.is_some());
    assert_eq!(model.request, without.request);
    assert!(model.release.recurrence_ns.is_some());
    assert_eq!(model.release.recurrence_ns, without.release.recurrence_ns);
}

#[test]
fn what_costs_time_at_the_nominal_clock_asks_for_no_level() {
    let mut findings = probe(&mut Fake::new(Some(XEON_6)), &[Mode::Episode], &[HEAVY, NARROW]);
    let narrow =
        findings.outcomes.iter_mut().find(|outcome| outcome.class == InstructionClass::Heavy256);
    let narrow = narrow.unwrap();
    assert!(!narrow.effect);
    narrow.effect = true;
    let Detail::Episode(found) = &narrow.detail else { panic!("{narrow:?}") };
    assert!(found.clock_ratio_after.estimate.ci95.1 >= 1.0, "{found:?}");
    let model = model_of(&findings);
    assert_eq!(model.levels.len(), 2, "{:?}", model.levels);
    assert_eq!(model.level_of(InstructionClass::Heavy256, Upper::Any).index(), 0);
    let toml = model.to_toml();
    assert!(toml.contains("an effect, but no lower clock"), "{toml}");
}

/// As at times on an Emerald Rapids: long stretches lower the clock, and bursts cost nothing.
#[test]
fn a_level_whose_bursts_cost_nothing_is_not_held() {
    let modes = [Mode::Episode, Mode::Downclock];
    let mut findings = probe(&mut Fake::new(Some(XEON_6)), &modes, &[HEAVY]);
    for outcome in &mut findings.outcomes {
        outcome.effect = outcome.mode == Mode::Downclock;
    }
    let model = model_of(&findings);
    assert_eq!(model.level_of(InstructionClass::Heavy512, Upper::Any).index(), 1);
    let hold = model.release.hold_ns.as_ref().unwrap();
    assert_eq!(hold.value, 0);
    assert!(hold.source.contains("no effect above"), "{hold:?}");
    assert_eq!((&model.release.stall_ns, &model.release.episode_ns), (&None, &None));
    let read = Model::parse(std::path::Path::new("m.toml"), &model.to_toml()).unwrap();
    assert_eq!(read, model);
}

#[test]
fn a_stall_that_heavier_code_lacks_is_not_that_of_a_request() {
    let mut findings = probe(&mut Fake::new(Some(XEON_6)), &[Mode::Downclock], &[HEAVY]);
    let heavy = findings.outcomes.last_mut().unwrap();
    assert!(heavy.effect && heavy.class == InstructionClass::Heavy512);
    let mut tile = heavy.clone();
    tile.class = InstructionClass::Tile;
    for (outcome, has_stall) in [(&mut *heavy, true), (&mut tile, false)] {
        let Detail::Downclock(found) = &mut outcome.detail else { panic!("{outcome:?}") };
        // Any quantity will do.
        found.stall_ns = has_stall.then(|| found.clock_ratio.clone());
    }
    assert!(model_of(&findings).request.stall_ns.is_some());
    findings.outcomes.push(tile);
    assert_eq!(model_of(&findings).request.stall_ns, None);
}
