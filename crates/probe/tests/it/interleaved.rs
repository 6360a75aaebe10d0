//! Scalar code between bursts on made-up processors: it must be slowed as their constants require.

use std::sync::Arc;

use dimmer_probe::interleaved::{self, Found, Pattern};
use dimmer_probe::kernel;
use dimmer_probe::lab::Observer;
use dimmer_probe::stats::Samples;
use dimmer_processor::units::CpuId;

use crate::fake::{Fake, Governor, SKYLAKE, XEON_6};

const HEAVY: &str = "vfmadd231pd-512-unrolled";
const NARROW: &str = "vfmadd231pd-256-unrolled";

struct StopAfter(usize);

impl Observer for StopAfter {
    fn begins(&mut self, _: &str, done: f64) {
        assert!((0.0..1.0).contains(&done));
        self.0 = self.0.saturating_sub(1);
    }

    fn wants_stop(&self) -> bool {
        self.0 == 0
    }
}

fn pattern(kernel: &str, scalar_us: f64) -> Pattern {
    let kernel = Arc::new(kernel::find(kernel).unwrap());
    Pattern { kernel, burst: 100, scalar_ns: scalar_us * 1000.0 }
}

fn run(fake: &mut Fake, patterns: &[Pattern], stop_after: usize) -> Found {
    interleaved::run(fake, CpuId::new(0), patterns, 5, &mut StopAfter(stop_after)).unwrap()
}

/// Checks that the slow-down is within half a percentage point of `expected` (a share).
#[track_caller]
fn check(governor: Option<Governor>, kernel: &str, scalar_us: f64, expected: f64) {
    let found = run(&mut Fake::new(governor), &[pattern(kernel, scalar_us)], usize::MAX);
    let measured = &found.patterns[0];
    let slowdown = Samples::new(measured.slowdowns.clone()).quantile(0.5).unwrap();
    assert!((slowdown - expected).abs() < 0.005, "{slowdown} is not {expected}");
    assert_eq!(measured.slowdowns.len() + measured.unsettled, 5);
    // Interrupts come every 2 ms, and each affects one window.
    assert!(measured.left_out > 0 && measured.left_out < measured.windows / 10, "{measured:?}");
}

#[test]
fn nothing_slows_where_nothing_is() {
    check(None, HEAVY, 3.0, 0.0);
    check(Some(SKYLAKE), NARROW, 3.0, 0.0);
}

#[test]
fn a_level_held_between_bursts_slows_by_its_clock() {
    check(Some(SKYLAKE), HEAVY, 30.0, 1.0 / SKYLAKE.ratio - 1.0);
    check(Some(XEON_6), HEAVY, 30.0, 1.0 / XEON_6.ratio - 1.0);
}

#[test]
fn a_halt_in_each_gap_counts() {
    // Without memory the level is released in each gap. Nothing happens while the license is still
    // pending after the burst; then the clock is low for the rest of the hold; then the core
    // stalls.
    let forgetful = Governor { memory: 0.0, ..XEON_6 };
    let low_ns = XEON_6.hold - XEON_6.pending;
    let cost_ns = low_ns * (1.0 - XEON_6.ratio) + XEON_6.release_stall;
    check(Some(forgetful), HEAVY, 100.0, cost_ns / 100e3);
}

#[test]
fn kernels_are_the_widest_heavy_the_widest_light_and_a_narrower_heavy_one() {
    let names = interleaved::kernels(&Fake::new(None));
    let names: Vec<&str> = names.iter().map(|kernel| kernel.name.as_str()).collect();
    assert_eq!(names, [HEAVY, "vpaddd-512-unrolled", NARROW]);
}

#[test]
fn stop_returns_what_is_complete() {
    let patterns = [pattern(HEAVY, 10.0), pattern(NARROW, 10.0)];
    let found = run(&mut Fake::new(None), &patterns, 4);
    assert!(found.interrupted);
    let counts = found.patterns.iter().map(|one| one.slowdowns.len() + one.unsettled);
    assert_eq!(counts.collect::<Vec<_>>(), [2, 1]);
}
