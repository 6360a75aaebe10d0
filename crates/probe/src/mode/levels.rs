//! The settled state: clock and throughput of a kernel, by the number of CPUs that run it.

use super::Mode;
use super::{downclock, ramp};
use crate::lab::{Lab, ModeError, check_usable, floor_u32};
use crate::outcome::{Detail, Levels, Outcome};
use crate::program::{Program, Trace, Work};
use crate::stats::{Estimate, Samples, floor_index};
use crate::target::Job;

/// Length of a kernel window (ns); each has a clock window beside it.
const WINDOW_NS: f64 = 2000.0;

/// Measures the kernel on 1, 2, 4 ... and all usable CPUs; one outcome each.
pub(crate) fn measure(lab: &mut Lab<'_>) -> Result<Vec<Outcome>, ModeError> {
    let all = lab.target.cpus().len();
    let mut counts: Vec<usize> =
        std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|n| *n < all).collect();
    counts.push(all);
    counts.into_iter().map(|active| on(lab, active)).collect()
}

fn on(lab: &mut Lab<'_>, active: usize) -> Result<Outcome, ModeError> {
    let length_ns = if lab.is_quick() { 25e6 } else { 100e6 };
    let repetitions = if lab.is_quick() { 4 } else { 10 };
    let rate = ramp::rate(lab)?;
    let count = floor_u32(rate * WINDOW_NS).max(1);
    let windows = floor_index(length_ns / (WINDOW_NS + lab.calibration.clock_ns)).max(8);
    let clock = lab.calibration.clock.clone();
    let wide = program(Work::burst(&lab.kernel, count), &clock, windows);
    let stand_in = Work::issue(floor_u32(
        lab.calibration.instrument.issue_per_cycle
            * lab.calibration.instrument.nominal_ghz
            * WINDOW_NS,
    ));
    let narrow = program(stand_in, &clock, windows);
    let first = lab.target.cpus().iter().position(|cpu| *cpu == lab.cpu).unwrap_or(0);
    let cpus: Vec<_> = lab.target.cpus().iter().copied().cycle().skip(first).take(active).collect();
    let (mut ratios, mut clocks, mut per_cycle) = (Vec::new(), Vec::new(), Vec::new());
    let (mut disturbed, mut preemptions) = (0, 0);
    for _ in 0..repetitions {
        if lab.observer.wants_stop() {
            return Err(ModeError::Interrupted);
        }
        let mut both = Vec::new();
        for program in [&narrow, &wide] {
            let jobs: Vec<Job<'_>> = cpus.iter().map(|&cpu| Job { cpu, program }).collect();
            both.push(lab.target.run(&jobs)?);
        }
        let [narrow_traces, wide_traces] = both.as_slice() else { continue };
        for (narrow, wide) in narrow_traces.iter().zip(wide_traces) {
            preemptions += wide.preemptions;
            disturbed += (0..2 * windows).filter(|&window| wide.interrupted(window)).count();
            let overhead = lab.calibration.instrument.overhead_ns;
            let clock_ns = |trace: &Trace| settled(lab, trace, windows, 1).map(|ns| ns - overhead);
            let (Some(narrow_ns), Some(wide_ns)) = (clock_ns(narrow), clock_ns(wide)) else {
                continue;
            };
            let ghz = lab.calibration.ghz(wide_ns + overhead);
            ratios.push(narrow_ns / wide_ns);
            clocks.push(ghz);
            let kernel_ns = settled(lab, wide, windows, 0);
            per_cycle.extend(kernel_ns.map(|ns| f64::from(count) / ((ns - overhead) * ghz)));
        }
    }
    let nothing = Estimate { median: f64::NAN, ci95: (f64::NAN, f64::NAN) };
    let estimate = |values: Vec<f64>| Samples::new(values).estimate().unwrap_or(nothing);
    let ratios: Samples = ratios.into_iter().collect();
    check_usable(ratios.len(), "run of the kernel")?;
    let lowered = ratios
        .centre()
        .is_some_and(|(mean, error)| 1.0 - mean > downclock::SMALLEST_STEP.max(4.5 * error));
    let clock_ratio = ratios.estimate().unwrap_or(nothing);
    let detail = Levels {
        active,
        clock_ghz: estimate(clocks),
        clock_ratio,
        instructions_per_cycle: estimate(per_cycle),
    };
    Ok(Outcome {
        threads: active,
        repetitions,
        disturbed_windows: disturbed,
        preemptions,
        effect: lowered,
        bound_ns: (1.0 - clock_ratio.ci95.0).max(0.0) * length_ns,
        horizon_ns: length_ns,
        ..lab.outcome(Mode::Levels, Detail::Levels(detail))
    })
}

/// Windows of `work`, alternating with clock windows.
fn program(work: Work, clock: &Work, windows: usize) -> Program {
    let mut program = Program::default();
    program.push(&[work, clock.clone()], windows);
    program
}

/// Mean duration of the kernel (`parity` 0) or clock windows (1) in the second half (ns).
fn settled(lab: &Lab<'_>, trace: &Trace, windows: usize, parity: usize) -> Option<f64> {
    let half = (windows..2 * windows).filter(|window| window % 2 == parity);
    let undisturbed = half.filter(|&window| !trace.interrupted(window));
    let samples: Samples =
        undisturbed.map(|window| lab.calibration.ns(trace.ticks(window))).collect();
    samples.trimmed_mean(0.1)
}
