//! Calibration: measures the duration of a chain link, a window and a time stamp on this machine.

use std::time::Duration;

use dimmer_processor::units::{CpuId, TscFrequency, TscTicks, nearest};

use crate::outcome::Instrument;
use crate::program::{Program, Trace, Work};
use crate::stats::Samples;
use crate::target::{Job, Target, TargetError};

/// Nominal length of the clock window in a pair (ns).
const CLOCK_WINDOW_NS: f64 = 250.0;

/// Nominal length of the issue window in a pair (ns). Pairs of these two give the probe its
/// resolution of 0.4 us: short against the microseconds for which licenses are held, long against
/// the steps of coarse time-stamp counters (10 ns on Zen 5).
const ISSUE_WINDOW_NS: f64 = 150.0;

/// Largest relative difference of a measured latency from a whole number of cycles.
const LATENCY_TOLERANCE: f64 = 0.03;

/// Largest distance of the clock's quartiles, relative to the median, at which it counts as
/// settled. License steps of interest are half a percent to forty; frequency scaling that still
/// acts at the end of the warm-up shows as tens of percent.
const UNSETTLED: f64 = 0.10;

/// Durations of the windows on one target.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// Frequency of the time-stamp counter.
    pub tsc: TscFrequency,
    /// Core cycles per multiplication of a clock chain.
    pub link_cycles: u32,
    /// Time of one link at the nominal clock (ns).
    pub link_ns: f64,
    /// The clock window of a pair.
    pub clock: Work,
    /// The issue window of a pair.
    pub issue: Work,
    /// Nominal time of the clock window (ns), stamp included.
    pub clock_ns: f64,
    /// Nominal time of a pair (ns), stamps included.
    pub pair_ns: f64,
    /// The part that the report shows.
    pub instrument: Instrument,
}

impl Calibration {
    /// Warms the core up and measures the instrument on `cpu`. Takes about 0.1 s, some seconds on a
    /// busy machine.
    ///
    /// # Errors
    /// [`TargetError::NoClock`] if a multiplication does not take a whole number of cycles by
    /// comparison with additions, or if the clock does not settle; errors of the target.
    pub fn take(target: &mut dyn Target, cpu: CpuId) -> Result<Self, TargetError> {
        // A machine that is busy now may be quiet a moment later.
        const ATTEMPTS: usize = 20;
        const PAUSE: Duration = Duration::from_millis(100);
        for _ in 1..ATTEMPTS {
            if let Ok(calibration) = Self::attempt(target, cpu) {
                return Ok(calibration);
            }
            std::thread::sleep(PAUSE);
        }
        Self::attempt(target, cpu)
    }

    fn attempt(target: &mut dyn Target, cpu: CpuId) -> Result<Self, TargetError> {
        let tsc = target.tsc();
        let mut program = Program::default();
        program.push(&[Work::clock(32_000)], 1000);
        let first = program.push(&[Work::clock(16_000), Work::Unit { links: 48_000 }], 400);
        let issue = program.push(&[Work::issue(64_000)], 200);
        let tiny = program.push(&[Work::clock(16)], 4000);
        let trace = run_one(target, cpu, &program)?;
        let chain = tsc_samples(tsc, &trace, (first..issue).step_by(2));
        let units = tsc_samples(tsc, &trace, (first + 1..issue).step_by(2));
        let issue_ns = midmean(&tsc_samples(tsc, &trace, issue..tiny))? / 64_000.0;
        let link_ns = midmean(&chain)? / 16_000.0;
        let latency = link_ns / (midmean(&units)? / 48_000.0);
        let spread = spread(&chain);
        if spread > UNSETTLED {
            let why = format!(
                "the clock does not settle: half of all windows differ by more than {:.0} %",
                spread * 100.0
            );
            return Err(TargetError::NoClock { why });
        }
        let link_cycles = whole(latency).ok_or_else(|| TargetError::NoClock {
            why: format!("a multiplication seems to take {latency:.2} cycles, not a whole number"),
        })?;
        let tiny = tsc_samples(tsc, &trace, tiny..program.windows());
        let overhead_ns = (midmean(&tiny)? - 16.0 * link_ns).max(0.0);
        let clock = Work::clock(round(CLOCK_WINDOW_NS / link_ns));
        let issue = Work::issue(round(ISSUE_WINDOW_NS / issue_ns));
        let nominal_ghz = f64::from(link_cycles) / link_ns;
        let mut this = Self {
            tsc,
            link_cycles,
            link_ns,
            clock,
            issue,
            clock_ns: 0.0,
            pair_ns: 0.0,
            instrument: Instrument {
                multiplication_cycles: link_cycles,
                nominal_ghz,
                issue_per_cycle: 1.0 / (issue_ns * nominal_ghz),
                resolution_ns: resolution(&tiny, tsc),
                overhead_ns,
                window_ns: 0.0,
            },
        };
        let mut program = Program::default();
        program.push(&this.pair(), 2000);
        let trace = run_one(target, cpu, &program)?;
        let windows = program.windows();
        this.clock_ns = midmean(&tsc_samples(tsc, &trace, (0..windows).step_by(2)))?;
        this.pair_ns = this.clock_ns + midmean(&tsc_samples(tsc, &trace, (1..windows).step_by(2)))?;
        this.instrument.window_ns = this.pair_ns;
        Ok(this)
    }

    /// The two windows of scalar code with which everything is observed.
    #[must_use]
    pub fn pair(&self) -> [Work; 2] {
        [self.clock.clone(), self.issue.clone()]
    }

    /// The clock (GHz) that corresponds to a clock window of this duration, without the time
    /// stamp's share. This is the clock now, independent of the clock during the calibration.
    #[must_use]
    pub fn ghz(&self, clock_window_ns: f64) -> f64 {
        let Work::Clock { links } = self.clock else { return f64::NAN };
        f64::from(links) * f64::from(self.link_cycles)
            / (clock_window_ns - self.instrument.overhead_ns)
    }

    /// Number of pairs that take `ns`, at least one.
    #[must_use]
    pub fn pairs(&self, ns: f64) -> usize {
        crate::stats::floor_index(ns / self.pair_ns).max(1)
    }

    /// Ticks as time (ns).
    #[must_use]
    pub fn ns(&self, ticks: u64) -> f64 {
        self.tsc.ns(TscTicks::from_ticks(ticks))
    }
}

/// Runs one program on one CPU.
pub(crate) fn run_one(
    target: &mut dyn Target,
    cpu: CpuId,
    program: &Program,
) -> Result<Trace, TargetError> {
    let mut traces = target.run(&[Job { cpu, program }])?;
    traces.pop().ok_or(TargetError::ThreadGone { cpu })
}

/// Durations of undisturbed windows (ns).
pub(crate) fn tsc_samples(
    tsc: TscFrequency,
    trace: &Trace,
    windows: impl Iterator<Item = usize>,
) -> Samples {
    let undisturbed = windows.filter(|&window| !trace.interrupted(window));
    undisturbed.map(|window| tsc.ns(TscTicks::from_ticks(trace.ticks(window)))).collect()
}

/// Mean of the middle half: as robust as a median, and finer than the counter's steps.
pub(crate) fn midmean(samples: &Samples) -> Result<f64, TargetError> {
    let mean = samples.trimmed_mean(0.25).filter(|mean| *mean > 0.0);
    mean.ok_or_else(|| TargetError::NoClock {
        why: "no window of the calibration was free of interrupts".to_owned(),
    })
}

/// Distance of the quartiles over the median.
fn spread(samples: &Samples) -> f64 {
    let quantile = |q| samples.quantile(q).unwrap_or(f64::NAN);
    (quantile(0.75) - quantile(0.25)) / quantile(0.5)
}

/// The whole number (1 to 20) that `value` is close to.
fn whole(value: f64) -> Option<u32> {
    (1..=20).find(|&n| (value / f64::from(n) - 1.0).abs() < LATENCY_TOLERANCE)
}

/// The smallest distance between two durations (ns): the counter's step.
fn resolution(samples: &Samples, tsc: TscFrequency) -> f64 {
    let tick = 1.0 / tsc.ghz();
    let steps = samples.values().windows(2).map(|pair| pair[1] - pair[0]);
    let smallest = steps.filter(|step| *step > tick / 2.0).fold(f64::INFINITY, f64::min);
    if smallest.is_finite() { smallest } else { tick }
}

/// A positive count, rounded.
fn round(value: f64) -> u32 {
    u32::try_from(nearest(value)).unwrap_or(u32::MAX)
}
