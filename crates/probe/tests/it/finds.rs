//! Findings of each mode on a processor with known constants.

use std::time::Duration;

use dimmer_probe::kernel;
use dimmer_probe::lab::{Effort, Observer, Settings};
use dimmer_probe::mode::Mode;
use dimmer_probe::outcome::{Detail, Findings, Outcome};
use dimmer_probe::session::{self, Plan};
use dimmer_probe::target::{Target, TargetError};
use dimmer_processor::class::InstructionClass;
use dimmer_processor::units::CpuId;

use crate::fake::{Fake, Governor, SKYLAKE, XEON_6};

pub(crate) struct Silent {
    pub(crate) stop_after: usize,
    pub(crate) begun: usize,
}

impl Observer for Silent {
    fn begins(&mut self, _: &str, done: f64) {
        assert!((0.0..=1.0).contains(&done));
        self.begun += 1;
    }

    fn wants_stop(&self) -> bool {
        self.begun > self.stop_after
    }
}

pub(crate) const HEAVY: &str = "vfmadd231pd-512-unrolled";
pub(crate) const NARROW: &str = "vfmadd231pd-256-unrolled";

pub(crate) fn plan(modes: &[Mode], kernels: &[&str]) -> Plan {
    Plan {
        items: Plan::cross(
            modes,
            &kernels.iter().map(|name| kernel::find(name).unwrap()).collect::<Vec<_>>(),
            &[800],
        ),
        budget: Duration::from_secs(3600),
        cpu: CpuId::new(0),
        settings: Settings { effort: Effort::Quick, repetitions: 200, threads: 1, load: None },
        only_where_effect: false,
    }
}

pub(crate) fn probe(fake: &mut Fake, modes: &[Mode], kernels: &[&str]) -> Findings {
    let mut observer = Silent { stop_after: usize::MAX, begun: 0 };
    session::run(fake, &plan(modes, kernels), &mut observer).unwrap()
}

#[track_caller]
fn one(governor: Option<Governor>, mode: Mode, kernel: &str) -> Outcome {
    let mut findings = probe(&mut Fake::new(governor), &[mode], &[kernel]);
    assert_eq!(findings.outcomes.len(), 1);
    findings.outcomes.remove(0)
}

/// With a thousand repetitions: with fewer, no effect is reported as absent.
fn thoroughly(fake: &mut Fake, mode: Mode, kernel: &str) -> Outcome {
    let mut plan = plan(&[mode], &[kernel]);
    plan.settings = Settings { effort: Effort::Full, repetitions: 1000, ..plan.settings };
    let mut observer = Silent { stop_after: usize::MAX, begun: 0 };
    session::run(fake, &plan, &mut observer).unwrap().outcomes.remove(0)
}

/// Checks that `found` is within `tolerance` (relative) of the constant that was put there.
#[track_caller]
pub(crate) fn close(what: &str, found: f64, expected: f64, tolerance: f64) {
    assert!(
        (found / expected - 1.0).abs() < tolerance,
        "{what}: found {found:.4}, put there {expected:.4}"
    );
}

#[test]
fn calibration_finds_the_instrument() {
    let findings = probe(&mut Fake::new(None), &[], &[]);
    let instrument = findings.instrument;
    assert_eq!(instrument.multiplication_cycles, 3);
    close("clock", instrument.nominal_ghz, 4.0, 0.002);
    close("issue", instrument.issue_per_cycle, 4.0, 0.01);
    close("resolution", instrument.resolution_ns, 0.4, 0.01);
    close("overhead", instrument.overhead_ns, 9.0, 0.1);
}

#[test]
fn coarse_stamps_are_recognised() {
    let mut fake = Fake::new(None);
    fake.step = 10.0;
    let instrument = probe(&mut fake, &[], &[]).instrument;
    close("resolution", instrument.resolution_ns, 10.0, 0.01);
    close("clock", instrument.nominal_ghz, 4.0, 0.002);
}

#[test]
fn refuses_a_clock_that_makes_no_sense() {
    let mut fake = Fake::new(None);
    fake.multiplication = 3.5;
    let plan = plan(&[], &[]);
    let mut observer = Silent { stop_after: usize::MAX, begun: 0 };
    let error = session::run(&mut fake, &plan, &mut observer).unwrap_err();
    assert!(matches!(error, TargetError::NoClock { .. }), "{error}");
    assert!(error.to_string().contains("3.50 cycles"), "{error}");
}

#[track_caller]
fn check_absent(step: f64, kernel: &str, governor: Option<Governor>) {
    let mut fake = Fake::new(governor);
    fake.step = step;
    let outcome = thoroughly(&mut fake, Mode::Episode, kernel);
    let Detail::Episode(episode) = &outcome.detail else { panic!("{outcome:?}") };
    assert!(!outcome.effect, "{:?}", episode.extra_ns.estimate);
    assert!(outcome.bound_ns < 100.0, "{}", outcome.bound_ns);
    let (low, high) = episode.extra_ns.estimate.ci95;
    assert!(low <= outcome.bound_ns && high <= outcome.bound_ns);
    assert!(episode.release_delay_ns.is_none() && episode.release_stall_ns.is_none());
    assert!(episode.throttling.is_none());
}

#[test]
fn episode_finds_nothing_where_nothing_is() {
    check_absent(0.4, HEAVY, None);
}

#[test]
fn episode_finds_nothing_with_coarse_stamps_either() {
    check_absent(10.0, HEAVY, None);
}

#[test]
fn episode_finds_nothing_for_code_below_the_governors_class() {
    check_absent(0.4, NARROW, Some(XEON_6));
}

fn check_xeon_6_episode(step: f64) {
    let mut fake = Fake::new(Some(XEON_6));
    fake.step = step;
    let outcome = probe(&mut fake, &[Mode::Episode], &[HEAVY]).outcomes.remove(0);
    let Detail::Episode(episode) = &outcome.detail else { panic!("{outcome:?}") };
    assert!(outcome.effect);
    let slow = XEON_6.hold * (1.0 - XEON_6.ratio);
    close("cost", episode.extra_ns.estimate.median, XEON_6.release_stall + slow, 0.05);
    let delay = episode.release_delay_ns.as_ref().unwrap().estimate.median;
    close("release delay", delay, XEON_6.hold, 0.08);
    let stall = episode.release_stall_ns.as_ref().unwrap().estimate.median;
    close("release stall", stall, XEON_6.release_stall, 0.08);
    close("clock", episode.clock_ratio_after.estimate.median, XEON_6.ratio, 0.01);
    // Fewer instructions a nanosecond, but as many a cycle.
    close("issue", episode.issue_ratio_after.estimate.median, 1.0, 0.01);
    let throttling = episode.throttling.as_ref().unwrap();
    // The burst ends before the license is granted, so all of it except its first instructions is
    // throttled.
    close("throttled time", throttling.throttled_ns.estimate.median, 400.0, 0.25);
    close("throttle factor", throttling.throttle_factor.median, 0.25, 0.1);
}

#[test]
fn episode_finds_the_xeon_6_kind() {
    check_xeon_6_episode(0.4);
}

#[test]
fn episode_finds_the_xeon_6_kind_with_coarse_stamps() {
    check_xeon_6_episode(10.0);
}

#[test]
fn episode_tells_bursts_with_the_effect_from_those_without() {
    let mut fake = Fake::new(Some(XEON_6));
    (fake.present, fake.wanders) = (0.3, true);
    let outcome = probe(&mut fake, &[Mode::Episode], &[HEAVY]).outcomes.remove(0);
    let Detail::Episode(episode) = &outcome.detail else { panic!("{outcome:?}") };
    assert!(outcome.effect);
    let share = episode.effect_share.unwrap();
    assert!((0.15..0.45).contains(&share.median), "{share:?}");
    let slow = XEON_6.hold * (1.0 - XEON_6.ratio);
    close("cost", episode.extra_ns.estimate.median, XEON_6.release_stall + slow, 0.06);
    let delay = episode.release_delay_ns.as_ref().unwrap().estimate.median;
    close("release delay", delay, XEON_6.hold, 0.1);
    close("clock", episode.clock_ratio_after.estimate.median, XEON_6.ratio, 0.01);
}

#[test]
fn episode_finds_an_effect_that_few_bursts_have() {
    let mut fake = Fake::new(Some(XEON_6));
    (fake.present, fake.wanders) = (0.06, true);
    let outcome = thoroughly(&mut fake, Mode::Episode, HEAVY);
    let Detail::Episode(episode) = &outcome.detail else { panic!("{outcome:?}") };
    assert!(outcome.effect);
    let share = episode.effect_share.unwrap();
    assert!(share.ci95.0 < 0.06 && 0.06 < share.ci95.1, "{share:?}");
    let slow = XEON_6.hold * (1.0 - XEON_6.ratio);
    let cost = XEON_6.release_stall + slow;
    close("cost", episode.extra_ns.estimate.median, cost, 0.06);
    let mean = episode.mean_extra_ns.unwrap();
    assert!(mean.ci95.0 < 0.06 * cost && 0.06 * cost < mean.ci95.1, "{mean:?}");
}

#[test]
fn episode_finds_nothing_where_only_the_clock_wanders() {
    let mut fake = Fake::new(None);
    fake.wanders = true;
    let outcome = thoroughly(&mut fake, Mode::Episode, HEAVY);
    let Detail::Episode(episode) = &outcome.detail else { panic!("{outcome:?}") };
    assert!(!outcome.effect, "{:?}", episode.extra_ns.estimate);
    assert!(outcome.bound_ns < 100.0, "{}", outcome.bound_ns);
    let share = episode.effect_share.unwrap();
    assert!(share.ci95.0 == 0.0 && share.ci95.1 < 0.03, "{share:?}");
}

#[test]
fn episode_finds_the_skylake_kind() {
    // 800 multiply-adds end before the license is granted. The code after them meets only a halt,
    // the lowered clock for the hold, and another halt.
    let outcome = one(Some(SKYLAKE), Mode::Episode, HEAVY);
    let Detail::Episode(episode) = &outcome.detail else { panic!("{outcome:?}") };
    assert!(outcome.effect);
    let lowered = SKYLAKE.hold - SKYLAKE.pending - SKYLAKE.grant_stall;
    let cost = lowered * (1.0 - SKYLAKE.ratio) + SKYLAKE.grant_stall + SKYLAKE.release_stall;
    close("cost", episode.extra_ns.estimate.median, cost, 0.1);
    let delay = episode.release_delay_ns.as_ref().unwrap().estimate.median;
    close("release delay", delay, SKYLAKE.hold, 0.03);
    close("clock", episode.clock_ratio_after.estimate.median, SKYLAKE.ratio, 0.02);
}

#[test]
fn upclock_finds_the_hold() {
    let outcome = one(Some(SKYLAKE), Mode::Upclock, HEAVY);
    let Detail::Episode(episode) = &outcome.detail else { panic!("{outcome:?}") };
    let delay = episode.release_delay_ns.as_ref().unwrap().estimate.median;
    close("release delay", delay, SKYLAKE.hold, 0.03);
    let stall = episode.release_stall_ns.as_ref().unwrap().estimate.median;
    close("release stall", stall, SKYLAKE.release_stall, 0.1);
}

#[test]
fn downclock_finds_throttling_and_the_settled_clock() {
    let outcome = one(Some(SKYLAKE), Mode::Downclock, HEAVY);
    let Detail::Downclock(downclock) = &outcome.detail else { panic!("{outcome:?}") };
    assert!(outcome.effect);
    close("clock", downclock.clock_ratio.estimate.median, SKYLAKE.ratio, 0.01);
    close("throughput", downclock.instructions_per_cycle.estimate.median, 2.0, 0.02);
    let throttling = downclock.throttling.as_ref().unwrap();
    // A throttled coarse window is 2 us long, and the last one also contains the halt.
    close("throttled time", throttling.throttled_ns.estimate.median, SKYLAKE.pending, 0.15);
    let settle = downclock.settle_ns.as_ref().unwrap().estimate.median;
    close("settle time", settle, SKYLAKE.pending + SKYLAKE.grant_stall, 0.15);
    assert_eq!(downclock.steps.len(), 2, "{:?}", downclock.steps);
}

#[test]
fn downclock_finds_nothing_where_nothing_is() {
    let outcome = one(None, Mode::Downclock, HEAVY);
    let Detail::Downclock(downclock) = &outcome.detail else { panic!("{outcome:?}") };
    assert!(!outcome.effect);
    assert!(downclock.settle_ns.is_none() && downclock.throttling.is_none());
    close("clock", downclock.clock_ratio.estimate.median, 1.0, 0.003);
}

#[test]
fn throttle_finds_when_throttling_begins() {
    let late = Governor { instructions: 400, ..SKYLAKE };
    let outcome = one(Some(late), Mode::Throttle, HEAVY);
    let Detail::Throttle(throttle) = &outcome.detail else { panic!("{outcome:?}") };
    let count = throttle.pre_throttle_instructions.as_ref().unwrap().estimate.median;
    close("instructions before throttling", count, 400.0, 0.45);
    let outcome = one(Some(SKYLAKE), Mode::Throttle, HEAVY);
    let Detail::Throttle(throttle) = &outcome.detail else { panic!("{outcome:?}") };
    let count = throttle.pre_throttle_instructions.as_ref().unwrap().estimate.median;
    assert!(count <= 1.0, "{count}");
}

#[test]
fn instructions_finds_the_number_required() {
    for required in [1, 40] {
        let governor = Governor { instructions: required, ..XEON_6 };
        let outcome = one(Some(governor), Mode::Instructions, HEAVY);
        let Detail::Instructions(found) = &outcome.detail else { panic!("{outcome:?}") };
        close("instructions", found.median.unwrap().median, f64::from(required), 0.2);
        let bursts: usize = found.response.iter().map(|point| point.2).sum();
        assert!(bursts >= 20 * found.response.len() && outcome.repetitions > bursts, "{found:?}");
    }
}

/// Gaps are stated as the scalar work in them, which takes longer while the license is kept. The
/// first interrupt or stolen stretch makes a gap that is nearly as long as the memory longer than
/// the memory. The bursts then have to be learned again, so the license is mostly not kept.
pub(crate) fn assert_is_the_memory(change_ns: f64) {
    const LONGEST_INTERRUPTS: f64 = 5000.0 + 21_000.0;
    let [least, most] =
        [XEON_6.memory - LONGEST_INTERRUPTS, XEON_6.memory].map(|gap_ns| gap_ns * XEON_6.ratio);
    assert!((least..=most).contains(&change_ns), "{change_ns} is not in {least} to {most}");
}

#[test]
fn recurrence_finds_the_memory() {
    let outcome = one(Some(XEON_6), Mode::Recurrence, HEAVY);
    let Detail::Recurrence(recurrence) = &outcome.detail else { panic!("{outcome:?}") };
    assert!(outcome.effect);
    let change = recurrence.regime_change_us.unwrap();
    assert_is_the_memory(change.median * 1000.0);
    let at = |gap_us: f64| {
        recurrence
            .gaps
            .iter()
            .min_by(|a, b| (a.gap_us - gap_us).abs().total_cmp(&(b.gap_us - gap_us).abs()))
    };
    // Kept: slower all the time, and no stalls.
    let kept = at(30.0).unwrap();
    close("slow-down while kept", kept.slowdown_pct.median, 100.0 / 0.94 - 100.0, 0.1);
    assert!(kept.stall_share < 0.1, "{kept:?}");
    assert!(kept.kept_share.is_some_and(|share| share > 0.95), "{kept:?}");
    close("time to learn", kept.kept_after_ms.unwrap(), XEON_6.learns / 1e6, 0.05);
    // Released: isolated episodes, each with its stall.
    let isolated = at(1000.0).unwrap();
    assert!(isolated.stall_share > 0.8, "{isolated:?}");
    assert_eq!((isolated.kept_share, isolated.kept_after_ms), (Some(0.0), None));
    assert!(isolated.slowdown_pct.median < 0.5, "{isolated:?}");
}

#[test]
fn a_quick_probe_of_everything_examines_the_recurrence_of_one_kernel() {
    const LOADS: &str = "vfmadd231pd-512-unrolled-load";
    let modes = [Mode::Downclock, Mode::Recurrence];
    let plan = Plan { only_where_effect: true, ..plan(&modes, &[HEAVY, LOADS, NARROW]) };
    let mut observer = Silent { stop_after: usize::MAX, begun: 0 };
    let findings = session::run(&mut Fake::new(Some(SKYLAKE)), &plan, &mut observer).unwrap();
    let of_recurrence = |outcome: &&Outcome| outcome.mode == Mode::Recurrence;
    let examined: Vec<&str> =
        findings.outcomes.iter().filter(of_recurrence).map(|one| one.kernel.as_str()).collect();
    assert_eq!(examined, [HEAVY]);
    let skipped: Vec<&str> = findings.skipped.iter().map(|one| one.kernel.as_str()).collect();
    assert_eq!(skipped, [LOADS, NARROW]);
}

#[test]
fn recurrence_finds_nothing_where_nothing_is() {
    let outcome = one(None, Mode::Recurrence, HEAVY);
    let Detail::Recurrence(recurrence) = &outcome.detail else { panic!("{outcome:?}") };
    assert!(!outcome.effect, "{:?}", recurrence.gaps);
    assert!(recurrence.regime_change_us.is_none());
    // Less than 0.4 % of the longest of these gaps would not count as an effect.
    close("horizon", outcome.horizon_ns, 1e6, 0.05);
    assert!(outcome.bound_ns >= 0.004 * outcome.horizon_ns, "{}", outcome.bound_ns);
    for gap in recurrence.gaps.iter().filter(|gap| gap.gap_us <= 1100.0) {
        let cost_ns = gap.slowdown_pct.bound() / 100.0 * gap.gap_us * 1000.0;
        assert!(outcome.bound_ns >= cost_ns, "{gap:?}");
    }
}

#[test]
fn levels_finds_the_settled_clock() {
    let outcome = one(Some(SKYLAKE), Mode::Levels, HEAVY);
    let Detail::Levels(levels) = &outcome.detail else { panic!("{outcome:?}") };
    assert!(outcome.effect);
    close("clock", levels.clock_ghz.median, 4.0 * SKYLAKE.ratio, 0.01);
    close("ratio", levels.clock_ratio.median, SKYLAKE.ratio, 0.01);
    close("throughput", levels.instructions_per_cycle.median, 2.0, 0.02);
    assert_eq!(levels.active, 1);
}

#[test]
fn a_clock_that_wanders_is_told() {
    let mut fake = Fake::new(None);
    fake.wanders = true;
    let surroundings = probe(&mut fake, &[Mode::Episode], &[HEAVY]).surroundings.unwrap();
    let ghz = |share| surroundings.clock_ghz.samples.quantile(share).unwrap();
    close("lowest clock", ghz(0.05), 4.0 * 0.95, 0.005);
    close("highest clock", ghz(0.95), 4.0, 0.005);
    assert!(surroundings.busy_sibling_share < 0.01, "{}", surroundings.busy_sibling_share);
}

#[test]
fn same_processor_same_findings() {
    let run = || format!("{:?}", probe(&mut Fake::new(Some(XEON_6)), &[Mode::Throttle], &[HEAVY]));
    assert_eq!(run(), run());
}

#[test]
fn a_clock_that_falls_under_all_code_is_no_effect_of_the_kernel() {
    let mut fake = Fake::new(None);
    fake.tired = 0.87;
    let mut plan = plan(&[Mode::Downclock], &[NARROW]);
    plan.settings.effort = Effort::Full;
    let mut observer = Silent { stop_after: usize::MAX, begun: 0 };
    let findings = session::run(&mut fake, &plan, &mut observer).unwrap();
    assert!(!findings.outcomes[0].effect, "{:?}", findings.outcomes[0].detail);
}

#[test]
fn a_clock_that_falls_in_some_stretches_of_the_kernel_is_an_effect() {
    let mut fake = Fake::new(Some(Governor { throttle: 1.0, ratio: 0.7, ..SKYLAKE }));
    fake.present = 0.5;
    let findings = probe(&mut fake, &[Mode::Downclock], &[HEAVY]);
    let Detail::Downclock(found) = &findings.outcomes[0].detail else { panic!("{findings:?}") };
    assert!(findings.outcomes[0].effect && found.throttling.is_none(), "{found:?}");
    let share = found.effect_share.expect("a part").median;
    assert!((0.3..0.7).contains(&share), "{share}");
}

#[test]
fn what_is_interrupted_every_time_is_skipped_and_ends_in_time() {
    let modes = [Mode::Episode, Mode::Upclock, Mode::Downclock, Mode::Throttle, Mode::Instructions];
    for mode in modes {
        let mut fake = Fake::new(Some(XEON_6));
        fake.interrupted = Some(InstructionClass::Heavy512);
        let mut plan = plan(&[mode], &[HEAVY]);
        plan.budget = Duration::from_secs(1);
        plan.settings.repetitions = 100_000;
        let mut observer = Silent { stop_after: usize::MAX, begun: 0 };
        let findings = session::run(&mut fake, &plan, &mut observer).unwrap();
        assert!(findings.outcomes.is_empty() && !findings.interrupted, "{findings:?}");
        let [skipped] = findings.skipped.as_slice() else { panic!("{mode}: {findings:?}") };
        assert_eq!((skipped.mode, skipped.is_disturbed), (Some(mode), true));
        assert!(skipped.reason.starts_with("nearly every "), "{}", skipped.reason);
        assert!(fake.now() < Duration::from_secs(5), "{mode} took {:?}", fake.now());
    }
}

#[test]
fn a_kernel_that_is_interrupted_every_time_keeps_no_other_from_being_measured() {
    let mut fake = Fake::new(Some(XEON_6));
    fake.interrupted = Some(InstructionClass::Heavy512);
    let findings = probe(&mut fake, &[Mode::Episode, Mode::Throttle], &[HEAVY, NARROW]);
    let skipped: Vec<&str> = findings.skipped.iter().map(|one| one.kernel.as_str()).collect();
    assert_eq!(skipped, [HEAVY, HEAVY]);
    let measured: Vec<&str> = findings.outcomes.iter().map(|one| one.kernel.as_str()).collect();
    assert_eq!(measured, [NARROW, NARROW]);
}

#[test]
fn lacking_kernels_are_skipped_with_the_reason() {
    let findings = probe(&mut Fake::new(None), &[Mode::Throttle], &["tdpbssd-tile-unrolled"]);
    assert!(findings.outcomes.is_empty());
    assert_eq!(findings.skipped[0].reason, "the made-up processor has none");
}

#[test]
fn stop_returns_what_is_complete() {
    let plan = plan(&[Mode::Throttle], &[HEAVY, NARROW]);
    let mut observer = Silent { stop_after: 2, begun: 0 };
    let findings = session::run(&mut Fake::new(None), &plan, &mut observer).unwrap();
    assert!(findings.interrupted);
    assert_eq!(findings.outcomes.len(), 1);
    assert_eq!(findings.outcomes[0].class, InstructionClass::Heavy512);
}
