//! Made-up findings of three machines. Samples come from a fixed sequence, so that every run has
//! the same ones.

use std::iter;

use dimmer_probe::mode::Mode;
use dimmer_probe::outcome::{
    CurvePoint, Detail, Downclock, Episode, Findings, Gap, Instructions, Instrument, Levels,
    Neighbour, Outcome, Quantity, Recurrence, Relation, Skipped, Step, Surroundings, Throttle,
    Throttling,
};
use dimmer_probe::program::Counts;
use dimmer_probe::stats::{Estimate, Samples};
use dimmer_processor::class::InstructionClass;
use dimmer_processor::units::CpuId;

use crate::MachineDescription;

/// The kernel that shows the effects best.
pub(super) const HEAVY_512: &str = "vfmadd231pd-512-unrolled";
/// A mixture, whose name cannot be used as a file name unchanged.
pub(super) const MIXTURE: &str = "vfmadd231pd-512-unrolled:1+add-scalar-unrolled:15";

/// A machine and its findings.
pub(super) struct Fixture {
    pub(super) machine: MachineDescription,
    pub(super) findings: Findings,
}

/// A Xeon 6 in a virtual machine: effects of microseconds, and a governor with a memory.
pub(super) fn xeon_6() -> Fixture {
    let mut outcomes = vec![
        xeon_6_episode(HEAVY_512, InstructionClass::Heavy512, 800, 1640.0, 0.94, 2610.0),
        xeon_6_episode("tdpbf16ps-tile-unrolled", InstructionClass::Tile, 64, 2310.0, 0.84, 2900.0),
        xeon_6_episode(MIXTURE, InstructionClass::Heavy512, 12_800, 1590.0, 0.94, 2580.0),
    ];
    for (kernel, class) in [
        ("vfmadd231pd-256-unrolled", InstructionClass::Heavy256),
        ("vpaddd-512-unrolled", InstructionClass::Light512),
        ("mulsd-scalar-unrolled", InstructionClass::Scalar),
    ] {
        outcomes.push(without_effect(kernel, class, Mode::Episode, 38.0));
    }
    outcomes.extend([xeon_6_recurrence(), xeon_6_throttle(), xeon_6_instructions()]);
    outcomes.extend(levels(
        HEAVY_512,
        InstructionClass::Heavy512,
        &[(1, 3.61, 0.94), (2, 3.60, 0.938)],
    ));
    outcomes.extend(levels(
        "vfmadd231pd-256-unrolled",
        InstructionClass::Heavy256,
        &[(1, 3.84, 1.0), (2, 3.84, 1.0)],
    ));
    let skipped = vec![Skipped {
        mode: None,
        kernel: "tdpbssd-tile-unrolled".to_owned(),
        reason: "the kernel refuses tile data to this process".to_owned(),
        is_disturbed: false,
    }];
    Fixture {
        machine: machine("GenuineIntel", "Intel(R) Xeon(R) 6985P-C", "Granite Rapids", Some("KVM")),
        findings: Findings {
            tsc_ghz: 2.299_998_7,
            instrument: instrument(3, 3.84),
            surroundings: Some(Surroundings {
                clock_ghz: some(quantity(3.41, 0.1, 400, 31)),
                busy_sibling_share: 0.375,
            }),
            outcomes,
            skipped,
            interrupted: false,
        },
    }
}

/// A Skylake-X as in paper 000 §3.3: 25 us down, two thirds of a millisecond up.
pub(super) fn skylake() -> Fixture {
    let curve = step_curve(&[(0.0, 1.0), (24_590.0, 0.79), (51_430.0, 0.65)], 1e6, 1.0, None);
    let downclock = Downclock {
        observed_ns: 1e6,
        effect_share: None,
        lowest: None,
        settle_ns: quantity(51_430.0, 4_100.0, 1000, 1),
        stall_ns: quantity(10_400.0, 900.0, 1000, 2),
        clock_ratio: some(quantity(0.65, 0.001, 1000, 3)),
        instructions_per_cycle: some(quantity(1.6, 0.002, 1000, 4)),
        throttling: throttling(24_500.0, 0.26),
        steps: vec![
            Step { at_ns: 0.0, clock_ratio: 1.0, instructions_per_cycle: 0.42 },
            Step { at_ns: 24_590.0, clock_ratio: 0.79, instructions_per_cycle: 1.0 },
            Step { at_ns: 51_430.0, clock_ratio: 0.65, instructions_per_cycle: 1.6 },
        ],
        curve,
        throughput: logarithmic(100.0, 1e6, 30)
            .map(|at| (at, if at < 24_590.0 { 0.42 } else { 1.6 }))
            .collect(),
    };
    let mut upclock = episode(200_000, 61_000.0, 118_000.0, 0.79);
    let mut delays: Vec<f64> = samples(674_000.0, 3_000.0, 700, 6);
    // Three in ten runs take up to twice as long (paper 000 figure 3.14).
    delays.extend((0..300).map(|i| 680_000.0 + f64::from(i) * 2_180.0));
    upclock.release_delay_ns = Quantity::new(Samples::new(delays));
    upclock.release_stall_ns = quantity(10_200.0, 700.0, 1000, 7);
    upclock.curve = step_curve(&[(0.0, 0.79), (674_000.0, 1.0)], 4e6, 1.0, Some(674_000.0));
    let mut ramp = outcome(
        Mode::Downclock,
        HEAVY_512,
        InstructionClass::Heavy512,
        true,
        26_000.0,
        Detail::Downclock(downclock),
    );
    ramp.counts = Some(Counts {
        ns: 1.2e9,
        events: vec![("cycles", 4_990_000_000), ("CORE_POWER.LVL2_TURBO_LICENSE", 2_310_000_000)],
    });
    let outcomes = vec![
        ramp,
        outcome(
            Mode::Upclock,
            HEAVY_512,
            InstructionClass::Heavy512,
            true,
            121_000.0,
            Detail::Episode(upclock),
        ),
        without_effect(
            "vfmadd231pd-256-dependent",
            InstructionClass::Heavy256,
            Mode::Upclock,
            210.0,
        ),
    ];
    Fixture {
        machine: machine(
            "GenuineIntel",
            "Intel(R) Core(TM) i9-7940X CPU @ 3.10GHz",
            "Skylake-SP",
            None,
        ),
        findings: Findings {
            tsc_ghz: 3.1,
            instrument: instrument(3, 4.3),
            surroundings: None,
            outcomes,
            skipped: Vec::new(),
            interrupted: true,
        },
    }
}

/// A processor without any effect, and without some extensions.
pub(super) fn zen_5() -> Fixture {
    let kernels = [
        (HEAVY_512, InstructionClass::Heavy512, 31.0),
        ("vfmadd231pd-256-unrolled", InstructionClass::Heavy256, 27.0),
        ("vpaddd-512-unrolled", InstructionClass::Light512, 29.4),
        ("a<b>&\"c\"", InstructionClass::Light128, 30.0),
    ];
    let mut outcomes: Vec<Outcome> = kernels
        .iter()
        .map(|(kernel, class, bound)| without_effect(kernel, *class, Mode::Episode, *bound))
        .collect();
    let gaps = logarithmic(1.0, 100_000.0, 11).map(|gap_us| Gap {
        gap_us,
        slowdown_pct: around(0.01, 0.04),
        stall_share: 0.0,
        burst_ns: around(98.0, 1.0),
        kept_share: None,
        kept_after_ms: None,
        clock_ratio: 1.0,
    });
    let recurrence = Recurrence {
        burst_instructions: 800,
        gaps: gaps.collect(),
        regime_change_us: None,
        regime: "all gaps behave alike".to_owned(),
    };
    let detail = Detail::Recurrence(recurrence);
    outcomes.push(outcome(
        Mode::Recurrence,
        HEAVY_512,
        InstructionClass::Heavy512,
        false,
        44.0,
        detail,
    ));
    let skipped = ["tdpbf16ps-tile-unrolled", "tdpbssd-tile-unrolled"].map(|kernel| Skipped {
        mode: None,
        kernel: kernel.to_owned(),
        reason: "the processor lacks amx_tile".to_owned(),
        is_disturbed: false,
    });
    Fixture {
        machine: machine("AuthenticAMD", "AMD EPYC 9755 128-Core Processor", "Zen 5", None),
        findings: Findings {
            tsc_ghz: 2.7,
            instrument: instrument(3, 4.1),
            surroundings: None,
            outcomes,
            skipped: skipped.into(),
            interrupted: false,
        },
    }
}

fn machine(
    vendor: &str,
    brand: &str,
    microarchitecture: &str,
    hypervisor: Option<&str>,
) -> MachineDescription {
    MachineDescription {
        vendor: vendor.to_owned(),
        brand: brand.to_owned(),
        microarchitecture: microarchitecture.to_owned(),
        microcode: Some("0x1000405".to_owned()),
        hypervisor: hypervisor.map(str::to_owned),
        kernel: Some("6.12.9".to_owned()),
        cpus: 2,
        time: "2026-03-01T12:34:56+01:00".to_owned(),
        version: "0.1.0".to_owned(),
        command: "dimmer probe --quick --report report.html".to_owned(),
    }
}

fn instrument(multiplication_cycles: u32, nominal_ghz: f64) -> Instrument {
    Instrument {
        multiplication_cycles,
        nominal_ghz,
        issue_per_cycle: 3.98,
        resolution_ns: 0.434_782_6,
        overhead_ns: 11.3,
        window_ns: 512.25,
    }
}

fn outcome(
    mode: Mode,
    kernel: &str,
    class: InstructionClass,
    effect: bool,
    bound_ns: f64,
    detail: Detail,
) -> Outcome {
    Outcome {
        mode,
        kernel: kernel.to_owned(),
        class,
        cpu: CpuId::new(1),
        threads: 1,
        repetitions: 400,
        disturbed_windows: 7,
        stolen_windows: 2,
        preemptions: 0,
        effect,
        bound_ns,
        horizon_ns: 4e6,
        counts: None,
        detail,
    }
}

fn without_effect(kernel: &str, class: InstructionClass, mode: Mode, bound_ns: f64) -> Outcome {
    let mut detail = episode(800, 98.0, 2.0, 1.0);
    detail.curve = step_curve(&[(0.0, 1.0)], 4e6, 1.0, None);
    outcome(mode, kernel, class, false, bound_ns, Detail::Episode(detail))
}

fn episode(burst_instructions: u32, burst_ns: f64, extra_ns: f64, clock_ratio: f64) -> Episode {
    Episode {
        burst_instructions,
        quiet_ns: 5e6,
        burst_ns: some(quantity(burst_ns, burst_ns * 0.04, 400, 11)),
        effect_share: None,
        extra_ns: some(quantity(extra_ns, 300.0, 400, 12)),
        mean_extra_ns: None,
        clock_ratio_after: some(quantity(clock_ratio, 0.01, 400, 13)),
        issue_ratio_after: some(quantity(1.0, 0.01, 400, 14)),
        release_delay_ns: None,
        release_stall_ns: None,
        throttling: None,
        curve: Vec::new(),
        neighbours: Vec::new(),
    }
}

fn xeon_6_episode(
    kernel: &str,
    class: InstructionClass,
    instructions: u32,
    extra_ns: f64,
    clock_ratio: f64,
    delay_ns: f64,
) -> Outcome {
    let mut detail = episode(instructions, 1510.0, extra_ns, clock_ratio);
    detail.release_delay_ns = quantity(delay_ns, 400.0, 400, 15);
    detail.release_stall_ns = quantity(1400.0, 120.0, 400, 16);
    detail.throttling = throttling(1480.0, 0.25);
    detail.curve = step_curve(&[(0.0, clock_ratio), (delay_ns, 1.0)], 4e6, 1.0, Some(delay_ns));
    detail.neighbours = vec![Neighbour {
        cpu: CpuId::new(0),
        relation: Relation::OtherCore,
        extra_ns: some(quantity(4.0, 60.0, 400, 17)),
        effect: false,
    }];
    outcome(Mode::Episode, kernel, class, true, extra_ns + 90.0, Detail::Episode(detail))
}

fn xeon_6_recurrence() -> Outcome {
    let gaps = logarithmic(1.0, 100_000.0, 26).map(|gap_us| {
        let isolated = gap_us > 250.0;
        let slowdown = if isolated { 164.0 / gap_us } else { 6.1 };
        Gap {
            gap_us,
            slowdown_pct: around(slowdown, 0.1),
            stall_share: if isolated { 0.97 } else { 0.01 },
            burst_ns: if isolated { around(1510.0, 40.0) } else { around(412.0, 9.0) },
            kept_share: Some(if isolated { 0.0 } else { 1.0 }),
            kept_after_ms: (!isolated).then_some(3.2),
            clock_ratio: if isolated { 1.0 } else { 0.94 },
        }
    });
    let recurrence = Recurrence {
        burst_instructions: 800,
        gaps: gaps.collect(),
        regime_change_us: Some(Estimate { median: 250.0, ci95: (242.0, 258.0) }),
        regime: "below, the clock stays lowered all the time; above, every burst is an episode of its own"
            .to_owned(),
    };
    let detail = Detail::Recurrence(recurrence);
    outcome(Mode::Recurrence, HEAVY_512, InstructionClass::Heavy512, true, 1730.0, detail)
}

fn xeon_6_throttle() -> Outcome {
    let throttle = Throttle {
        pre_throttle_ns: quantity(12.0, 3.0, 400, 21),
        pre_throttle_instructions: quantity(34.0, 6.0, 400, 22),
        throttling: throttling(1480.0, 0.25),
        throughput: logarithmic(1.0, 4096.0, 25)
            .map(|n| {
                (
                    n,
                    if n < 34.0 {
                        1.9
                    } else if n < 800.0 {
                        0.5
                    } else {
                        2.0
                    },
                )
            })
            .collect(),
    };
    let detail = Detail::Throttle(throttle);
    outcome(Mode::Throttle, HEAVY_512, InstructionClass::Heavy512, true, 1200.0, detail)
}

fn xeon_6_instructions() -> Outcome {
    let response = (0..13_u32).map(|power| {
        let number = 1 << power;
        (number, 1.0 / (1.0 + (60.0 / f64::from(number)).powi(3)), 100)
    });
    let instructions = Instructions {
        response: response.collect(),
        quantiles: vec![(0.05, 22.0), (0.25, 42.0), (0.5, 60.0), (0.75, 87.0), (0.95, 160.0)],
        median: Some(Estimate { median: 60.0, ci95: (54.0, 67.0) }),
    };
    let detail = Detail::Instructions(instructions);
    outcome(Mode::Instructions, HEAVY_512, InstructionClass::Heavy512, true, 1700.0, detail)
}

fn levels<'a>(
    kernel: &'a str,
    class: InstructionClass,
    settled: &'a [(usize, f64, f64)],
) -> impl Iterator<Item = Outcome> + 'a {
    settled.iter().map(move |&(active, ghz, ratio)| {
        let detail = Detail::Levels(Levels {
            active,
            clock_ghz: around(ghz, 0.004),
            clock_ratio: around(ratio, 0.001),
            instructions_per_cycle: around(1.998, 0.002),
        });
        Outcome {
            threads: active,
            ..outcome(Mode::Levels, kernel, class, ratio < 1.0, 5.0, detail)
        }
    })
}

fn throttling(throttled_ns: f64, factor: f64) -> Option<Throttling> {
    Some(Throttling {
        throttled_ns: some(quantity(throttled_ns, 60.0, 400, 31)),
        throttle_factor: around(factor, 0.004),
    })
}

/// The clock over time: each level holds from its time on. Stalls happen at `stall_ns`.
fn step_curve(
    levels: &[(f64, f64)],
    until_ns: f64,
    begin: f64,
    stall_ns: Option<f64>,
) -> Vec<CurvePoint> {
    let level = |at: f64| levels.iter().rev().find(|(from, _)| *from <= at).map_or(begin, |l| l.1);
    logarithmic(260.0, until_ns, 60)
        .map(|at_ns| CurvePoint {
            at_ns,
            clock_ratio: around(level(at_ns), 0.003),
            stall_share: stall_ns.map_or(0.0, |stall| {
                // Stalls lie around the release, in whole thousandths.
                let distance = (at_ns / stall).ln() * 6.0;
                (800.0 * (-distance * distance).exp()).round() / 1000.0
            }),
        })
        .collect()
}

fn logarithmic(low: f64, high: f64, number: u32) -> impl Iterator<Item = f64> {
    let step = (high / low).ln() / f64::from(number - 1);
    (0..number).map(move |i| low * (step * f64::from(i)).exp())
}

fn around(median: f64, half_width: f64) -> Estimate {
    Estimate { median, ci95: (median - half_width, median + half_width) }
}

fn quantity(centre: f64, spread: f64, number: usize, seed: u64) -> Option<Quantity> {
    Quantity::new(Samples::new(samples(centre, spread, number, seed)))
}

fn some(quantity: Option<Quantity>) -> Quantity {
    quantity.unwrap()
}

/// Bell-shaped samples: sums of four uniform ones.
fn samples(centre: f64, spread: f64, number: usize, seed: u64) -> Vec<f64> {
    let mut state = seed;
    let mut uniform = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1_u64 << 53) as f64
    };
    iter::repeat_with(|| {
        let sum: f64 = (0..4).map(|_| uniform() - 0.5).sum();
        centre + spread * sum * 1.7
    })
    .take(number)
    .collect()
}
