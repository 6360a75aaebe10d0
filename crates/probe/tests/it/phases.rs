//! Phases on made-up processors: they complete as many iterations as the clock allows, and report
//! the time that they lose to other code.

use std::time::Duration;

use dimmer_probe::kernel::Kernel;
use dimmer_probe::lab::Observer;
use dimmer_probe::phases::{self, Code, Found, Phase, UNROLLED, Wide};
use dimmer_probe::program::{Stamp, Trace};
use dimmer_probe::target::{Job, Target, TargetError};
use dimmer_processor::class::InstructionClass;
use dimmer_processor::units::{CpuId, TscFrequency};

use crate::fake::{Fake, SKYLAKE};

const GHZ: f64 = 4.0;

/// A made-up processor that lacks some classes or loses time.
struct Less {
    fake: Fake,
    /// The widest class that it has.
    widest: InstructionClass,
    /// From this run on (first number), other code takes the CPU for this many ticks (second
    /// number) in the middle of each run.
    stolen: Option<(usize, u64)>,
    runs: usize,
}

impl Less {
    fn new(fake: Fake) -> Self {
        Self { fake, widest: InstructionClass::Tile, stolen: None, runs: 0 }
    }
}

impl Target for Less {
    fn now(&self) -> Duration {
        self.fake.now()
    }

    fn tsc(&self) -> TscFrequency {
        self.fake.tsc()
    }

    fn cpus(&self) -> &[CpuId] {
        self.fake.cpus()
    }

    fn siblings(&self, cpu: CpuId) -> Vec<CpuId> {
        self.fake.siblings(cpu)
    }

    fn lacks(&self, kernel: &Kernel) -> Option<String> {
        (kernel.class > self.widest).then(|| format!("it has no {}", kernel.class))
    }

    fn run(&mut self, jobs: &[Job<'_>]) -> Result<Vec<Trace>, TargetError> {
        let mut traces = self.fake.run(jobs)?;
        self.runs += 1;
        if let Some((_, ticks)) = self.stolen.filter(|(from, _)| self.runs >= *from) {
            let stamps = &mut traces[0].stamps;
            let middle = stamps.len() / 2;
            for stamp in &mut stamps[middle..] {
                let interrupted = u64::from(stamp.interrupted()) * Stamp::INTERRUPTED;
                *stamp = Stamp::from_bits((stamp.ticks() + ticks) | interrupted);
            }
        }
        Ok(traces)
    }
}

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

/// Without interrupts and stolen time.
fn quiet() -> Fake {
    let mut fake = Fake::new(Some(SKYLAKE));
    fake.disturbances = f64::INFINITY;
    fake
}

fn run(target: &mut Less, phases: &[Phase]) -> Found {
    let mut observer = StopAfter(usize::MAX);
    phases::run(target, CpuId::new(0), phases, 8, &mut observer).unwrap()
}

fn scalar(us: f64) -> Phase {
    Phase { code: Code::Scalar, ns: us * 1000.0 }
}

/// Checks that the median of a phase is within `tolerance` (relative) of `iterations`.
#[track_caller]
fn check(found: &Found, phase: usize, iterations: f64, tolerance: f64) {
    let median = found.iterations(phase).quantile(0.5).unwrap();
    assert!((median / iterations - 1.0).abs() < tolerance, "{median} is not {iterations}");
}

#[test]
fn phases_complete_what_the_clock_allows() {
    let mut target = Less::new(quiet());
    let wide = Wide::of(&target).unwrap();
    assert_eq!((wide.bits, wide.lacks), (512, None));
    let heavy = Phase { code: wide.heavy, ns: 2e6 };
    let found = run(&mut target, &[scalar(2000.0), heavy, scalar(666.0)]);
    assert_eq!((found.runs.len(), found.interrupted), (8, false));
    check(&found, 0, 2e6 * GHZ, 0.002);
    // Throttled to a quarter, then halted for part of the time, then at the clock of the level.
    let after = SKYLAKE.pending + SKYLAKE.grant_stall;
    let cycles = (SKYLAKE.pending / 4.0 + (2e6 - after) * SKYLAKE.ratio) * GHZ;
    check(&found, 1, cycles * 2.0 / f64::from(UNROLLED), 0.003);
    // The level is held longer than the last phase lasts.
    check(&found, 2, 666e3 * GHZ * SKYLAKE.ratio, 0.005);
    for run in &found.runs {
        assert!((2e6..2.1e6).contains(&run[0].lasted_ns), "{run:?}");
        assert!(run.iter().all(|seen| !seen.is_disturbed), "{run:?}");
    }
}

#[test]
fn a_processor_without_512_bits_takes_256_and_says_why() {
    let mut target = Less::new(quiet());
    target.widest = InstructionClass::Heavy256;
    let wide = Wide::of(&target).unwrap();
    assert_eq!((wide.bits, wide.lacks.as_deref()), (256, Some("it has no heavy-512")));
    let found = run(&mut target, &[Phase { code: wide.waiting, ns: 100e3 }]);
    assert_eq!(found.runs.len(), 8);
    target.widest = InstructionClass::Light256;
    let error = Wide::of(&target).unwrap_err();
    assert_eq!(error.to_string(), "there are no wide multiply-adds here: it has no heavy-256");
}

#[test]
fn phases_shorter_than_a_window_are_run_too() {
    let found = run(&mut Less::new(quiet()), &[scalar(1.0), scalar(50.0)]);
    // A time stamp takes 9 ns of the 250 of a window.
    check(&found, 0, 1e3 * GHZ, 0.05);
    check(&found, 1, 50e3 * GHZ, 0.01);
}

#[test]
fn stolen_time_is_told_and_left_out() {
    let mut target = Less::new(quiet());
    // 40 us are 2 % of the phase, and no interrupt is flagged.
    target.stolen = Some((6, 100_000));
    let found = run(&mut target, &[scalar(2000.0)]);
    let disturbed = found.disturbed(0);
    assert!((3..=5).contains(&disturbed), "{disturbed}");
    assert_eq!(found.iterations(0).len(), 8 - disturbed);
    let lost = found.runs.last().unwrap()[0].lost_ns;
    assert!((39e3..42e3).contains(&lost), "{lost}");
    check(&found, 0, 2e6 * GHZ, 0.002);
}

#[test]
fn interrupts_are_counted_as_time_lost() {
    let mut target = Less::new(quiet());
    target.fake.disturbances = 1e6;
    let found = run(&mut target, &[scalar(20_000.0)]);
    assert!(found.runs.iter().all(|run| run[0].lost_ns > 20e3), "{:?}", found.runs);
    // Some microseconds a millisecond are not yet a disturbance.
    assert!(found.disturbed(0) < 8);
}

#[test]
fn stop_returns_what_is_complete() {
    let mut observer = StopAfter(3);
    let mut target = Less::new(quiet());
    let found = phases::run(&mut target, CpuId::new(0), &[scalar(100.0)], 8, &mut observer);
    let found = found.unwrap();
    assert!(found.interrupted);
    assert!((1..=2).contains(&found.runs.len()), "{}", found.runs.len());
}
